"""How a study stands at a site: what its store holds for its owner, everything that ever left, and, if
something failed, what an operator needs to help.

The failure bundle is redacted by construction: numbers, times, versions, names of members and words of fixed
lists; no sentence of the site's log, which may hold a path or a value of the table. A named person of the
site reads and releases it, which signs it and is recorded in the journal; the operator verifies the
signature.
"""

import contextlib
import csv
import datetime
import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from abps import files
from abps.core.errors import RequestError
from abps.data.outcome import parse_outcome
from abps.release import VERSION
from abps.sites.consent import keys, sitefile
from abps.sites.consent.kit import read_kit
from abps.sites.consent.preflight import checks
from abps.sites.node.context import ledger_of
from abps.sites.protocol.commands import DeclineCode
from abps.sites.store.audit import JournalEvent, heads_json
from abps.sites.store.rows import EntryKind, LogEntry, canonical, digest
from abps.sites.store.store import Store
from abps.wire.admission import Reason

PRIVACY = "privacy.json"  # the privacy account in an export


def summary(store: Store) -> dict[str, Any]:
    facts, rounds, sent, spent = store.facts(), store.rounds(), store.sent_bytes(), ledger_of(store)
    about = json.loads(facts.get("codebook", "{}")).get("outcome", {})
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
        "measure": parse_outcome(str(about.get("predicts", "binary"))).measure,
        "rests": dict(sorted(Counter(r.rest for r in rounds if r.rest).items())),
        "last_message": max((e.at for e in store.traffic()), default=None),
        "bytes_sent": {**sent, "total": sum(sent.values())},
        "epsilon": account.get("epsilon"),
        "epsilon_budget": account.get("budget"),
        "refused": [
            {"peer": peer, "reason": reason, "count": count}
            for (peer, reason), count in sorted(store.refusals().items())
        ],
    }


def sentence(entry: LogEntry) -> str:
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


FAILURE_SCHEMA = "abps.failure/2"

PURPOSE = "failure bundle"  # what signatures of bundles are for
_PACKAGES = ("grpcio", "numpy", "nvflare", "polars")  # packages whose versions matter
MOST = 30  # how many log rows and failures a bundle has at most


def failure_bundle(kit: Path) -> dict[str, Any]:
    """What went wrong at a site, as plain data that may leave it."""
    given, now = read_kit(kit), datetime.datetime.now(datetime.UTC)
    store, lines = given.folder, []
    with contextlib.suppress(RequestError):
        own = sitefile.find(given.name, given.local)
        store = Path(own.store)
        lines = own.journal(given.folder).lines()
    sent = [line for line in lines if line.facts.get("code") in set(DeclineCode)][-MOST:]
    said = ("code", "command", "error", "where")
    return {
        "schema": FAILURE_SCHEMA,
        "site": given.name,
        "at": now.isoformat(timespec="seconds"),
        "versions": {
            "abps": VERSION, "python": platform.python_version(), "system": platform.system(),
            **{each.name: each.version for each in metadata.distributions() if each.name in _PACKAGES},
        },
        "checks": {check.name: str(check.state) for check in checks(given)},
        "failures": [{"at": line.at, **{name: line.facts.get(name) for name in said}} for line in sent],
        "studies": list(_studies(store)),
    }  # fmt: skip


def _studies(folder: Path) -> Iterator[dict[str, Any]]:
    """The last log rows of every study, without their words, and refusals by reason."""
    for path in sorted(folder.glob("*.sqlite")):
        with contextlib.suppress(RequestError), contextlib.closing(Store.look(path)) as store:
            refused: Counter[str] = Counter()
            for (_, reason), count in store.refusals().items():
                refused[reason if reason in set(Reason) else "another"] += count
            said = ("at", "round", "peer", "sent", "kind", "bytes")
            rows = [{name: getattr(e, name) for name in said} for e in store.traffic()[-MOST:]]
            facts = {"agreement": store.facts()["agreement"], "round": store.round}
            yield {**facts, "refused": dict(refused), "log": rows}
            continue
        yield {"agreement": None, "round": None, "refused": {}, "log": [], "damaged": True}


def release_bundle(kit: Path, path: Path, by: str) -> dict[str, Any]:
    """Sign a bundle that somebody has read, and record the release; the signed bundle replaces the file."""
    bundle, given = _read(path), read_kit(kit)
    if bundle["site"] != given.name:
        whose = f"of {bundle['site']}, not of {given.name}"
        raise RequestError(f"{path} is {whose}; write it with `abps site explain`")
    if not by.strip():
        raise RequestError("a release needs the name of the person who decides it: --by NAME")
    journal = sitefile.find(given.name, given.local).journal(given.folder)
    if journal.signer is None:
        raise RequestError(f"{kit} has no key to sign with; take the kit as it was made")
    plain = {name: value for name, value in bundle.items() if name not in ("certificate", "signature")}
    data = canonical(plain)
    journal.write(JournalEvent.RELEASED, bundle=digest(data).hex(), by=by.strip(), bytes=len(data))
    signature = journal.signer.sign(PURPOSE, data).hex()
    signed = {**plain, "certificate": journal.signer.certificate.decode(), "signature": signature}
    files.write_json(path, signed)
    return signed


def read_bundle(path: Path, authority: bytes) -> dict[str, Any]:
    """A released bundle whose signature is its site's, without certificate and signature."""
    bundle = _read(path)
    certificate, signature = (str(bundle.pop(name, "")) for name in ("certificate", "signature"))
    try:
        signed = canonical(bundle), bytes.fromhex(signature)
        if keys.signer_of(certificate.encode(), authority, PURPOSE, *signed).name != bundle["site"]:
            raise ValueError("another site signed it")
    except ValueError as error:
        raise RequestError(f"{path} was not released by {bundle['site']}: {error}") from error
    return bundle


def _read(path: Path) -> dict[str, Any]:
    try:
        bundle = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(bundle, Mapping) or bundle.get("schema") != FAILURE_SCHEMA:
            raise ValueError("another schema")
        if not all(isinstance(each["log"], list) for each in bundle["studies"]):
            raise ValueError("no log of a study")
        return {**bundle, "site": str(bundle["site"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{path} is no failure bundle ({error})"
        raise RequestError(f"{why}; write it with `abps site explain`") from error
