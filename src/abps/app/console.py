"""A hospital's console: what was proposed, what would leave, decisions, where studies stand, the signed log.
Every page calls what a command of ``abps site`` calls, and shows it. Where the table is read, the command
itself runs as a process, so that no table stays in the server's memory."""

import contextlib
import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from abps.app.jobs import command_words, last_sentence, run_now
from abps.app.pages import WORDS, checked_form, go, page
from abps.core.errors import RequestError
from abps.sites.consent import approval, preflight, sitefile
from abps.sites.consent.keys import read_signer
from abps.sites.consent.kit import read_certificate, read_kit
from abps.sites.consent.preflight import Check
from abps.sites.consent.sitefile import SiteFile
from abps.sites.node import status as account
from abps.sites.store import audit
from abps.sites.store.audit import JournalEvent
from abps.sites.store.store import Store

SHOWN = 300  # lines of the log on a page, and values of a preview

#: What a hospital can decide about a study.
DECISIONS = {
    "approve": JournalEvent.APPROVED, "refuse": JournalEvent.REFUSED, "withdraw": JournalEvent.WITHDRAWN,
}  # fmt: skip


def _kit(request: Request) -> Path:
    kit: Path = request.app.state.kit
    return kit


def _own(request: Request) -> SiteFile:
    kit = _kit(request)
    return sitefile.read((kit / "local" if (kit / "local").is_dir() else kit) / sitefile.FILE)


def _command(request: Request, name: str, *words: str) -> str:
    return command_words(["site", name, str(_kit(request)), *words])


def _run(request: Request, name: str, *words: str) -> Any:
    """What a command says as JSON, good or bad; its refusal becomes the page's sentence."""
    found = run_now(["site", name, str(_kit(request)), *words, "--json"], _kit(request).parent)
    if not found.stdout.strip():
        raise RequestError(last_sentence(found.stderr))
    return json.loads(found.stdout.strip().splitlines()[-1])


def _store(request: Request) -> contextlib.closing[Store]:
    return contextlib.closing(Store.look(_own(request).store_of(request.path_params["study"]), check=False))


def _proposals(request: Request) -> list[dict[str, Any]]:
    """All proposals, the latest first, each with its study, its decision in words and who has approved it."""
    own = _own(request)
    journal = own.journal(_kit(request))
    found = []
    for record in reversed(approval.proposals(Path(own.store), journal)):
        each, study, digest = record.to_json(), record.proposal.study, record.proposal.digest()
        made, people = each["decision"], own.policy.people
        given = len(approval.approvers(journal.lines(), study, digest))
        each["study"] = study
        each["decision"] = made and ", ".join(made[k] for k in ("what", "by", "at", "reason") if made[k])
        if made and made["what"] == JournalEvent.APPROVED and 0 < given < people:
            each["decision"] += "; " + WORDS["console"]["people"].format(given=given, people=people)
        found.append(each)
    return found


def _now(request: Request) -> list[Check]:
    with contextlib.suppress(RequestError):
        kit, now = read_kit(_kit(request)), datetime.datetime.now(datetime.UTC)
        certificate = read_certificate(kit.certificate)
        return [preflight.of_certificate("certificate", certificate, now, preflight.RENEW_KEY)]
    return []  # there is no kit


def overview(request: Request) -> Response:
    return page(
        request, "console.html", proposals=_proposals(request), name=_own(request).site, now=_now(request),
        command=_command(request, "proposals"),
    )  # fmt: skip


def ready(request: Request) -> Response:
    return page(
        request, "console_rows.html", title=WORDS["console"]["ready"], rows=_run(request, "check")["checks"],
        study="", note="", command=_command(request, "check"),
    )  # fmt: skip


def proposal(request: Request) -> Response:
    digest = request.path_params["digest"]
    found = next((p for p in _proposals(request) if p["proposal"].startswith(digest)), None)
    if found is None:
        raise HTTPException(404, WORDS["error"]["absent"])
    found["terms"] = {name: plain(value) for name, value in found["terms"].items()}
    return page(
        request, "proposal.html", proposal=found, study=found["study"], digest=digest, decisions=DECISIONS,
        command=_command(request, "approve", found["study"], "--proposal", digest, "--by", "YOUR NAME"),
    )  # fmt: skip


def preview(request: Request) -> Response:
    """Every value that would leave, computed from the hospital's own table."""
    study = request.path_params["study"]
    found = _run(request, "preview", study)
    small = sum(bool(value["small"]) for value in found)
    words = WORDS["console"]["leaves_lead"].format(values=f"{len(found):,}", small=small)
    return page(
        request, "console_rows.html", title=WORDS["console"]["leaves"], study=study, note=words,
        rows=sorted(found, key=lambda value: not value["small"])[:SHOWN],
        command=_command(request, "preview", study, "--out", "leaving.csv"),
    )  # fmt: skip


async def decide(request: Request) -> Response:
    form = await checked_form(request)
    asked = ("decision", "study", "digest", "by", "reason")
    verdict, study, digest, by, reason = (str(form.get(name, "")) for name in asked)
    if verdict not in DECISIONS:
        raise RequestError(f"{verdict}: choose approve, refuse or withdraw")

    def decided() -> None:
        own, read = _own(request), None if verdict == "withdraw" else digest
        journal = own.journal(_kit(request))
        approval.decide(Path(own.store), journal, study, DECISIONS[verdict], by, read, reason)

    await to_thread.run_sync(decided)
    return go(f"/proposals/{digest}")


def status(request: Request) -> Response:
    with _store(request) as store:
        found = account.summary(store)
    study = request.path_params["study"]
    return page(
        request, "console_status.html", study=study, found=found,
        command=_command(request, "status", "--study", study),
    )  # fmt: skip


def plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{k}: {plain(v)}" for k, v in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "–"
    return "–" if value is None else str(value)


def log(request: Request) -> Response:
    study, wanted = request.path_params["study"], request.query_params.get("search", "")
    journal = _own(request).journal(_kit(request))
    with _store(request) as store:
        entries = store.traffic()
        checked = audit.verify(store, read_signer(_kit(request)))
        faults = [*checked.faults, *approval.journal_faults(store, journal)]
    rows = [line for line in map(account.sentence, entries) if wanted.casefold() in line.casefold()]
    return page(
        request, "console_log.html", study=study, lines=rows[: -SHOWN - 1 : -1], found=len(rows),
        search=wanted, checked=checked, decisions=len(journal.lines()), faults=faults,
        command=_command(request, "verify", "--study", study),
    )  # fmt: skip


def _bundle(request: Request) -> Path:
    return read_kit(_kit(request)).local / "failure.json"


def failure(request: Request) -> Response:
    """The failure bundle: what an operator needs to help, to be read before anybody releases it."""
    path = _bundle(request)
    found = _run(request, "explain", "--out", str(path))
    return page(
        request, "console_failure.html", bundle=json.dumps(found, indent=1),
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        command=_command(request, "explain", "--release", str(path), "--by", "YOUR NAME"),
    )  # fmt: skip


async def release(request: Request) -> Response:
    """Sign the bundle that was read, record who released it, and give it out as a file."""
    form, path = await checked_form(request), _bundle(request)

    def released() -> None:
        if hashlib.sha256(path.read_bytes()).hexdigest() != form.get("digest"):
            raise RequestError(WORDS["console"]["another_bundle"])
        account.release_bundle(_kit(request), path, str(form.get("by", "")))

    await to_thread.run_sync(released)
    return FileResponse(path, filename=f"{_own(request).site}-failure.json")


def routes() -> list[BaseRoute]:
    return [
        Route("/", overview),
        Route("/ready", ready),
        Route("/failure", failure),
        Route("/failure", release, methods=["POST"]),
        Route("/proposals/{digest}", proposal),
        Route("/decide", decide, methods=["POST"]),
        Route("/studies/{study}/preview", preview),
        Route("/studies/{study}/status", status),
        Route("/studies/{study}/log", log),
    ]
