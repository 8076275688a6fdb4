"""A hospital's console: what was proposed, what would leave, decisions, where studies stand, the signed log.

Every page is a command of ``abps site`` on the hospital's kit; the same rules hold here and there.
"""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from abps.app.jobs import command_words, last_sentence, run_now
from abps.app.pages import WORDS, checked_form, go, page
from abps.core.errors import RequestError

#: Lines of the log on a page, and values of a preview.
SHOWN = 300

#: What a hospital can decide about a study.
DECISIONS = ("approve", "refuse", "withdraw")


async def _site(request: Request, *words: str) -> Any:
    """What a command of ``abps site`` says as JSON, good or bad; its refusal becomes the page's sentence."""
    kit: Path = request.app.state.kit
    arguments = ["site", words[0], str(kit), *words[1:], "--json"]
    found = await to_thread.run_sync(lambda: run_now(arguments, kit.parent))
    if not found.stdout.strip():
        raise RequestError(last_sentence(found.stderr))
    return json.loads(found.stdout.strip().splitlines()[-1])


async def _proposals(request: Request) -> list[dict[str, Any]]:
    """All proposals, the latest first, each with its study and its decision in words."""
    found: list[dict[str, Any]] = await _site(request, "proposals")
    for each in found:
        made = each["decision"]
        each["study"] = each["terms"]["study"]
        each["decision"] = made and ", ".join(
            made[name] for name in ("what", "by", "at", "reason") if made[name]
        )
    return found[::-1]


async def overview(request: Request) -> Response:
    """What was proposed, and whether everything is ready."""
    found = await _proposals(request)
    return page(request, "console.html", proposals=found, name=request.app.state.kit.name)


async def ready(request: Request) -> Response:
    """The checks of this kit: certificate days, clock, disk, versions, table."""
    found = await _site(request, "check")
    return page(request, "console_rows.html", title=WORDS["console"]["ready"], rows=found["checks"], note="")


async def proposal(request: Request) -> Response:
    """One proposal with everything that was agreed."""
    digest = request.path_params["digest"]
    found = next((p for p in await _proposals(request) if p["proposal"].startswith(digest)), None)
    if found is None:
        raise HTTPException(404, WORDS["error"]["absent"])
    command = command_words(
        ["site", "approve", str(request.app.state.kit), found["study"], "--proposal", digest]
    )
    found["terms"] = {name: _plain(value) for name, value in found["terms"].items()}
    return page(request, "proposal.html", proposal=found, digest=digest, decisions=DECISIONS, command=command)


async def preview(request: Request) -> Response:
    """Every value that would leave, computed from the hospital's own table."""
    study = request.path_params["study"]
    found = await _site(request, "preview", study)
    note = f"{len(found):,} values; {WORDS['console']['leaves_lead']}"
    return page(request, "console_rows.html", title=WORDS["console"]["leaves"], rows=found[:SHOWN], note=note)


async def decide(request: Request) -> Response:
    """Approve, refuse or withdraw, with a name."""
    form = await checked_form(request)
    verdict, study, digest = (str(form.get(name, "")) for name in ("decision", "study", "digest"))
    if verdict not in DECISIONS:
        raise RequestError(f"{verdict}: choose approve, refuse or withdraw")
    words = [verdict, study, "--by", str(form.get("by", ""))]
    if str(form.get("reason", "")).strip():
        words += ["--reason", str(form.get("reason"))]
    await _site(request, *words, *([] if verdict == "withdraw" else ["--proposal", digest]))
    return go(f"/proposals/{digest}")


async def status(request: Request) -> Response:
    """Where a study stands at this site: partners, bytes, privacy."""
    found = await _site(request, "status", "--study", request.path_params["study"])
    rows = [{"what": name, "value": _plain(value)} for name, value in found.items()]
    return page(request, "console_rows.html", title=WORDS["console"]["status"], rows=rows, note="")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{k}: {_plain(v)}" for k, v in value.items())
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)


async def log(request: Request) -> Response:
    """The signed log of a study: verified, and searched."""
    study, wanted = request.path_params["study"], request.query_params.get("search", "").casefold()
    verified = await _site(request, "verify", "--study", study)
    with tempfile.TemporaryDirectory() as folder:
        await _site(request, "export", "--study", study, "--out", f"{folder}/export")
        with Path(folder, "export", "audit.csv").open(encoding="utf-8", newline="") as stream:
            rows = [
                row for row in csv.DictReader(stream) if wanted in " ".join(map(str, row.values())).casefold()
            ]
    return page(
        request, "console_log.html", study=study, rows=rows[-SHOWN:], found=len(rows), search=wanted,
        verified=_plain(verified),
    )  # fmt: skip


def routes() -> list[BaseRoute]:
    """Every page of the console."""
    return [
        Route("/", overview),
        Route("/ready", ready),
        Route("/proposals/{digest}", proposal),
        Route("/decide", decide, methods=["POST"]),
        Route("/studies/{study}/preview", preview),
        Route("/studies/{study}/status", status),
        Route("/studies/{study}/log", log),
    ]
