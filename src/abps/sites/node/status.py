"""What a site's store holds for its owner: the state of a study, and everything that ever left."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from abps import files
from abps.data.outcome import parse_outcome
from abps.sites.consent.kit import Kit, Role
from abps.sites.consent.preflight import Check, State
from abps.sites.node.privacy_ledger import ledger_of
from abps.sites.node.status_file import STEPS, read_status
from abps.sites.store.audit import heads_json
from abps.sites.store.rows import EntryKind, LogEntry
from abps.sites.store.store import Store

#: The privacy account in an export.
PRIVACY = "privacy.json"


def summary(store: Store) -> dict[str, Any]:
    """The state of a study at this site, as plain data."""
    facts = store.facts()
    alpha, beta = json.loads(facts.get("prior", "[1.0, 1.0]"))
    rounds = store.rounds()
    matched = Counter(peer for peers in store.partners().values() for peer in peers)
    beliefs = []
    for peer, e in sorted(store.beliefs().items()):
        mean = (alpha + e.gain) / (alpha + beta + e.gain + e.loss)
        beliefs.append({"peer": peer, "mean": mean, "observations": e.count, "partner": matched[peer]})
    sent = store.sent_bytes()
    spent = ledger_of(store)
    account = {} if spent is None else spent["centers"][facts["site"]]
    return {
        "schema": "abps.site-status/1",
        "site": facts["site"],
        "study": facts.get("study", store.path.stem),
        "method": facts.get("method", ""),
        "round": store.round,
        "of": int(facts["rounds"]) if "rounds" in facts else None,
        "partners": list(rounds[-1].partners) if rounds else [],
        "validation_auroc": rounds[-1].validation if rounds else None,
        "measure": _measure(facts),
        "beliefs": beliefs,
        "rests": dict(sorted(Counter(r.rest for r in rounds if r.rest).items())),
        "bytes_sent": {**sent, "total": sum(sent.values())},
        "epsilon": account.get("epsilon"),
        "epsilon_budget": account.get("budget"),
        "in_doubt": store.in_doubt(),
        "refused": [
            {"peer": peer, "reason": reason, "count": count}
            for (peer, reason), count in sorted(store.refusals().items())
        ],
    }


def _measure(facts: Mapping[str, str]) -> str:
    """The validation measure by the study's outcome: an AUROC, or its main score."""
    about = json.loads(facts.get("codebook", "{}")).get("outcome", {})
    return parse_outcome(str(about.get("predicts", "binary"))).measure


def summary_at(path: Path) -> dict[str, Any]:
    """The same for a store that is opened only to be read."""
    store = Store.look(path)
    try:
        return summary(store)
    finally:
        store.close()


def sentence(entry: LogEntry) -> str:
    """One line of the audit log: when, what, to whom, how many bytes, why."""
    if entry.kind in (EntryKind.DECISION, EntryKind.RESTORED):
        return f"{entry.at}  round {entry.round}: {entry.why}"
    way = f"sent {entry.bytes:,} bytes to" if entry.sent else f"received {entry.bytes:,} bytes from"
    return f"{entry.at}  round {entry.round}: {way} {entry.peer}: {entry.why}"


def export(store: Store, out: Path) -> list[Path]:
    """Write what the store holds as files that anybody can read. Returns them."""
    folder = files.folder(out)
    written = [
        folder / name for name in ("audit.txt", "audit.csv", "rounds.csv", "status.json", "heads.json")
    ]
    entries = store.traffic()
    files.write_text(written[0], "".join(f"{sentence(entry)}\n" for entry in entries))
    _table(
        written[1],
        ("at", "round", "direction", "peer", "kind", "bytes", "why"),
        [(e.at, e.round, "sent" if e.sent else "received", e.peer, e.kind, e.bytes, e.why) for e in entries],
    )
    credit = store.observations()
    _table(
        written[2],
        ("round", "partners", "credit", "rest", "validation_auroc"),
        [
            (
                r.number,
                " ".join(r.partners),
                " ".join(f"{p}={credit[(r.number, p)]:.6g}" for p in r.partners if (r.number, p) in credit),
                r.rest,
                "" if r.validation is None else f"{r.validation:.6f}",
            )
            for r in store.rounds()
        ],
    )
    files.write_json(written[3], summary(store))
    files.write_json(written[4], heads_json(store))
    spent = ledger_of(store)
    if spent is not None:
        written.append(folder / PRIVACY)
        files.write_json(written[-1], spent)
    for which in ("current", "best"):
        weights = store.model(which)
        if weights is not None:
            path = folder / f"model-{which}.npy"
            with files.replacing(path) as part, part.open("wb") as stream:
                np.save(stream, weights)
            written.append(path)
    return written


def _table(path: Path, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    with files.replacing(path) as part, part.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(head)
        writer.writerows(rows)


def diagnose(kit: Kit, after: float) -> Iterator[Check]:
    """What a job here is waiting for, and since when; a step longer than ``after`` seconds fails."""
    now = read_status(kit.local)
    if kit.role is Role.OPERATOR:
        return  # it runs no job
    if now is None:
        yield Check("job", State.OK, "no job has run from this kit yet")
        return
    what = STEPS.get(now.step, now.step)
    where = (
        f"study {now.study}, round {now.round}" if now.round else f"study {now.study}, before its first round"
    )
    if now.step == "done":
        yield Check("job", State.OK, f"{where}: the last job ended at {now.since}")
    elif not now.alive:
        seen = f"{where}: the process of the job is gone, in the midst of {what}, since {now.since} or later"
        yield Check("job", State.WARN, f"{seen}; submit the job again")
    else:
        whom = f" by {', '.join(now.waiting)}" if now.waiting else ""
        seen = f"{where}: {what}{whom} for {now.seconds:.0f} s, since {now.since}"
        state = State.FAIL if now.seconds > after else State.OK
        hint = "; look at the logs there" if state is State.FAIL else ""
        yield Check("job", state, f"{seen}{hint}")
