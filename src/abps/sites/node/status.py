"""How a study stands at a site: what its store holds for its owner, everything that ever left, and what the
process of a job is doing this moment (a small file with names of sites and of steps, nothing of the data)."""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from abps import files
from abps.core.errors import RequestError
from abps.data.outcome import parse_outcome
from abps.sites.consent.kit import Kit, Role
from abps.sites.consent.preflight import Check, State
from abps.sites.node.context import ledger_of
from abps.sites.protocol.commands import Command
from abps.sites.store.audit import heads_json
from abps.sites.store.rows import EntryKind, LogEntry
from abps.sites.store.store import Store

#: The file's name, in the participant's ``local`` folder.
NOW = "abps-now.json"

_NOW_SCHEMA = "abps.now/1"

#: What a step of a round means, for people.
STEPS = {
    Command.OPEN: "reading its table and its store",
    Command.INTRODUCE: "returning heads of logs",
    Command.CONTRIBUTE: "uploading to the coordinator",
    Command.COORDINATE: "aggregating as the coordinator",
    Command.CONCLUDE: "updating its model",
    Command.SUM_TOTAL: "updating the common model",
    "idle": "waiting for the scheduler",
    "done": "done",
}


@dataclass(frozen=True)
class StepStatus:
    """step: of the round (0: before the first).  waiting: for whom.  since: when the step began, UTC."""

    study: str
    round: int
    step: str
    since: str
    waiting: tuple[str, ...] = ()
    process: int = 0

    @property
    def seconds(self) -> float:
        """How long the step has lasted."""
        began = datetime.datetime.fromisoformat(self.since)
        return max(0.0, (datetime.datetime.now(datetime.UTC) - began).total_seconds())

    @property
    def alive(self) -> bool:
        """Whether the process that wrote it still runs (on this machine)."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.process).status() != psutil.STATUS_ZOMBIE
        return False


class StatusFile:
    """The file in which a process says what it is doing."""

    def __init__(self, local: Path, study: str) -> None:
        self.path = Path(local) / NOW
        self.study = study
        self._last: tuple[int, str, tuple[str, ...]] | None = None

    def write(self, round: int, step: str, waiting: Sequence[str] = ()) -> None:
        """A step begins. A disk that is full or gone must not end a job."""
        status = (round, step, tuple(waiting))
        if status == self._last:
            return
        self._last = status
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        now = StepStatus(self.study, round, step, at, tuple(waiting), os.getpid())
        with contextlib.suppress(RequestError, OSError):
            files.write_json(self.path, {"schema": _NOW_SCHEMA, **asdict(now)})


def read_status(local: Path) -> StepStatus | None:
    """What a job here is doing, or did last; None if there was none yet."""
    try:
        data = json.loads((Path(local) / NOW).read_text(encoding="utf-8"))
        if data.pop("schema") != _NOW_SCHEMA:
            return None
        return StepStatus(**{**data, "waiting": tuple(data["waiting"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


#: The privacy account in an export.
PRIVACY = "privacy.json"


def summary(store: Store) -> dict[str, Any]:
    """The state of a study at this site, as plain data."""
    facts = store.facts()
    rounds = store.rounds()
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
        "weights": json.loads(facts.get("weights", "{}")),
        "validation_auroc": rounds[-1].validation if rounds else None,
        "measure": _measure(facts),
        "rests": dict(sorted(Counter(r.rest for r in rounds if r.rest).items())),
        "bytes_sent": {**sent, "total": sum(sent.values())},
        "epsilon": account.get("epsilon"),
        "epsilon_budget": account.get("budget"),
        "refused": [
            {"peer": peer, "reason": reason, "count": count}
            for (peer, reason), count in sorted(store.refusals().items())
        ],
    }


def _measure(facts: Mapping[str, str]) -> str:
    """The validation measure by the study's outcome: an AUROC, or its main score."""
    about = json.loads(facts.get("codebook", "{}")).get("outcome", {})
    return parse_outcome(str(about.get("predicts", "binary"))).measure


def sentence(entry: LogEntry) -> str:
    """One line of the audit log: when, what, to whom, how many bytes, why."""
    if entry.kind in (EntryKind.DECISION, EntryKind.RESTORED):
        return f"{entry.at}  round {entry.round}: {entry.why}"
    way = f"sent {entry.bytes:,} bytes to" if entry.sent else f"received {entry.bytes:,} bytes from"
    return f"{entry.at}  round {entry.round}: {way} {entry.peer}: {entry.why}"


def export(store: Store, out: Path) -> list[Path]:
    """Write what the store holds as files that anybody can read. Returns them."""
    folder, entries, spent = files.folder(out), store.traffic(), ledger_of(store)
    files.write_text(folder / "audit.txt", "".join(f"{sentence(entry)}\n" for entry in entries))
    log = [(e.at, e.round, "sent" if e.sent else "received", e.peer, e.kind, e.bytes, e.why) for e in entries]
    scores = [
        (r.number, " ".join(r.partners), r.rest, "" if r.validation is None else f"{r.validation:.6f}")
        for r in store.rounds()
    ]
    tables: dict[str, list[tuple[Any, ...]]] = {
        "audit.csv": [("at", "round", "direction", "peer", "kind", "bytes", "why"), *log],
        "rounds.csv": [("round", "partners", "rest", "validation_auroc"), *scores],
    }
    for name, rows in tables.items():
        with files.replacing(folder / name) as part, part.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows(rows)
    documents = {"status.json": summary(store), "heads.json": heads_json(store)}
    documents |= {} if spent is None else {PRIVACY: spent}
    for name, content in documents.items():
        files.write_json(folder / name, content)
    return [folder / name for name in ("audit.txt", *tables, *documents)]


#: Seconds in one step after which a job counts as stuck.
STUCK = 300.0


def diagnose(kit: Kit) -> Iterator[Check]:
    """What a job here is waiting for, and since when; a step that is stuck fails."""
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
        state = State.FAIL if now.seconds > STUCK else State.OK
        hint = "; look at the logs there" if state is State.FAIL else ""
        yield Check("job", state, f"{seen}{hint}")
