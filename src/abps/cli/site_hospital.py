"""``abps site``, for hospitals: the own table, decisions about studies, running a site, results."""

from __future__ import annotations

import csv
import datetime
import json
import math
import os
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from abps import files
from abps.cli import options
from abps.cli.app_command import need_pages
from abps.cli.site_command import (
    By,
    Kit,
    Reason,
    Study,
    emit,
    local,
    need_engine,
    own_file,
    read_codebook,
    say,
    show,
    show_rows,
    study_store,
)
from abps.core.errors import RequestError
from abps.data.harmonise import map_digest
from abps.data.prepare import codebook, excluded_columns
from abps.privacy.small_counts import MIN_CELL
from abps.sites.consent import approval, preflight, sharing, sitefile
from abps.sites.consent import preview as values
from abps.sites.consent.approval import ProposalRecord
from abps.sites.consent.journal import JournalEvent
from abps.sites.consent.keys import install_certificate, read_signer, request_certificate
from abps.sites.consent.kit import Role, participant_kit, read_certificate, read_kit
from abps.sites.consent.preflight import State
from abps.sites.node import status as account
from abps.sites.node.status import diagnose
from abps.sites.store import audit

#: The exit code of a check that fails: neither a wrong request nor an internal error.
FAILED = 3

#: Seconds that the engine's process gets to end when it is asked to.
GRACE = 20.0

AnyKit = Annotated[Path, typer.Argument(help="The startup kit of a site, of the relay or of an operator.")]
Named = Annotated[str, typer.Argument(help="The study.")]
Partner = Annotated[
    list[Path] | None, typer.Option(help="A partner's heads.json (from its export); repeat for several.")
]


def init(
    table: Annotated[Path, typer.Option(help="This site's own table, CSV or Parquet, all its rows.")],
    label: Annotated[
        str, typer.Option(help="Column to predict (two values, unless --outcome says otherwise).")
    ],
    kit: Annotated[Path | None, typer.Option(help="This site's startup kit.")] = None,
    site: Annotated[str | None, typer.Option(help="The site's name, if there is no kit yet.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to, if there is no kit yet.")] = None,
    store: Annotated[Path | None, typer.Option(help="Folder of the stores (default: beside).")] = None,
    patient: options.Patient = None,
    time: options.Time = None,
    drop: options.Drop = "",
    positive: options.Positive = None,
    outcome: options.Outcome = None,
    duration: options.Duration = None,
    allow: Annotated[
        str, typer.Option(help="Comma-separated packages besides abps that jobs may name.")
    ] = "",
    proxy: Annotated[str, typer.Option(help="HTTP proxy on the way to the relay, http://HOST:PORT.")] = "",
    as_json: options.Json = False,
) -> None:
    """Name this site's own table. Nothing of it leaves the machine.

    Writes abps-site.json, and codebook.json: names of columns and category levels, which the sites exchange
    to agree on what their models see. Read it before you share it.

    Example: abps site init --kit kits/north --table stays.parquet --label died --patient patient
    """
    if kit is not None:
        need_engine()
        given = participant_kit(kit)
        if given.role is Role.RELAY:
            raise RequestError(f"{kit} is the relay's kit; the relay has no table")
        site, folder = given.name, given.local
    elif site is not None and out is not None:
        folder = files.folder(out)
    else:
        raise RequestError("give either --kit KIT, or --site NAME with --out FOLDER")
    own = sitefile.SiteFile(
        site, str(table.absolute()), label, str((store or folder / "studies").absolute()), patient, time,
        options.split(drop), allow=options.split(allow), positive=positive, outcome=outcome,
        duration=duration, proxy=proxy, harmonised=map_digest(table),
    )  # fmt: skip
    found = own.labelled()
    if found.doubt and positive is None:
        # Another site may have read it the other way round; the model would then learn the contrary.
        raise RequestError(f"{found.doubt}; say which value is the event with --positive")
    rows = own.read_table()
    book = replace(
        codebook(rows, seed=0, min_cell=MIN_CELL),
        events=found.event_words,
        others=found.other_words,
        harmonised=(own.harmonised,) if own.harmonised else (),
    )
    files.write_json(folder / sitefile.CODEBOOK, book.to_json())
    written = [own.write(folder), folder / sitefile.CODEBOOK]
    kept_back = excluded_columns(rows, book)
    summary = {
        "site": site, "rows": rows.rows, "columns": len(book.columns), "excluded": kept_back,
        "files": [str(path) for path in written],
    }  # fmt: skip
    emit(
        as_json,
        summary,
        f"{site}: {rows.rows} rows, {rows.described}, {len(book.columns)} encoded columns",
        *_kept_back(kept_back),
        *(f"wrote {path}" for path in written),
    )


def _kept_back(columns: dict[str, str]) -> list[str]:
    """A line for every column of a site's table of which nothing leaves."""
    return [f"the column {name!r} is not in the codebook: {why}" for name, why in columns.items()]


def start(kit: Annotated[Path, typer.Argument(help="The startup kit of the relay or of a site.")]) -> None:
    """Run the relay or a site from its kit, in the foreground, until it is stopped.

    Example: abps site start kits/north
    """
    need_engine()
    kit = kit.absolute()
    from abps.sites.flare import kits

    given = participant_kit(kit)
    if given.role is Role.SITE:
        sitefile.find(given.name, given.local)  # a site without a table is of no use
    today = datetime.datetime.now(datetime.UTC)
    held = preflight.of_certificate(
        "certificate", read_certificate(given.certificate), today, preflight.RENEW_KEY
    )
    if held.state is State.FAIL:
        raise RequestError(f"the certificate of {given.name} {held.sentence}")
    if held.state is State.WARN:
        say(f"the certificate of {given.name} {held.sentence}")
    if given.role is Role.RELAY:
        preflight.need_free_port(given)
    command, environment = kits.command(kit)
    os.chdir(kit)
    os.execve(command[0], command, environment)


def check(
    kit: AnyKit,
    codebook: Annotated[
        Path | None, typer.Option(help="The common columns (default: what the site proposed).")
    ] = None,
    after: Annotated[float, typer.Option(help="Seconds in one step after which it counts as stuck.")] = 300.0,
    as_json: options.Json = False,
) -> None:
    """Check that everything is ready: name, port, TLS, certificates, clock, disk, memory, versions, table;
    and say what a job here is waiting for, for whom and since when.

    Exit code 0 if nothing fails (warnings are printed), 3 if something does.

    Example: abps site check kits/north
    """
    given, book = read_kit(kit), None if codebook is None else read_codebook(codebook)
    found = [*diagnose(given, after), *preflight.checks(given, book)]
    failed = any(c.state is State.FAIL for c in found)
    rows = [{"check": c.name, "state": str(c.state), "sentence": c.sentence} for c in found]
    if as_json:
        summary = {"kit": str(kit), "name": given.name, "ok": not failed, "checks": rows}
        typer.echo(json.dumps(summary))
    else:
        show_rows(rows, f"{given.name} ({given.role})")
    if failed:
        raise typer.Exit(FAILED)


def share(kit: Kit, by: By, as_json: options.Json = False) -> None:
    """Let the network's operators have this site's codebook, as it is now. Read it before.

    It leaves when an operator gathers codebooks, in a letter that the relay cannot read. A codebook that is
    written anew has to be shared anew.

    Example: abps site share kits/north --by "Dr. Ada Example"
    """

    own, book = own_file(kit), sharing.read(local(kit))
    line = sharing.share(own.journal(kit), book, by)
    person, what = line.facts["by"], f"{len(book.sources)} columns"
    summary = {"site": own.site, "codebook": line.facts["codebook"], "by": person, "at": line.at}
    emit(as_json, summary, f"{own.site}: {person} shares the codebook ({what}) with operators")


def preview(
    kit: Kit,
    study: Annotated[
        str | None, typer.Argument(help="A study that was proposed (default: what init would share).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write all values into this CSV file.")] = None,
    as_json: options.Json = False,
) -> None:
    """Show every value that would leave this site in a study, to whom, and whether the relay can read it.

    Nothing is sent. The functions that the study uses compute the values from the site's own table; weights,
    which come of training, are shown by number and bytes. Without a study: the codebook.

    Example: abps site preview kits/north icu --out leaving.csv
    """

    own, proposal = own_file(kit), None
    if study is None:
        found = values.codebook_values(values.codebook_of(own))
    else:
        known = approval.proposals(Path(own.store), own.journal(kit), study)
        if not known:
            raise RequestError(f"no proposal of a study {study!r} has arrived at {own.site}")
        proposal = known[-1].proposal
        found = values.preview(own, proposal)
    if out is not None:
        with files.replacing(out) as part, part.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(asdict(found[0])))
            writer.writeheader()
            writer.writerows(_no_formula(asdict(value)) for value in found)
    if as_json:
        typer.echo(json.dumps([asdict(value) for value in found]))
        return
    if proposal is not None:
        say(f"proposal {proposal.digest()[:16]}")
    if out is None:
        show_rows([asdict(value) for value in found])
    else:
        kinds = Counter((v.what, v.to, v.clear) for v in found)
        show_rows([{"what": w, "values": n, "to": to, "clear": c} for (w, to, c), n in kinds.items()])
        say(f"wrote {len(found)} values to {out}")
    for line in _kept_back(values.kept_back(own, proposal)):
        say(line)


def _no_formula(row: dict[str, object]) -> dict[str, object]:
    """A row whose text no spreadsheet takes for a formula."""
    return {k: f"'{v}" if isinstance(v, str) and v[:1] in "=+-@\t\r" else v for k, v in row.items()}


def proposals(kit: Kit, as_json: options.Json = False) -> None:
    """List the studies that were proposed to this site, with what was decided about them.

    Example: abps site proposals kits/north
    """

    own = own_file(kit)
    found = approval.proposals(Path(own.store), own.journal(kit))
    if as_json:
        typer.echo(json.dumps([each.to_json() for each in found]))
        return
    if not found:
        say(f"{own.site}: no study has been proposed yet")
    for each in found:
        _show_proposal(each)


def approve(
    kit: Kit,
    study: Named,
    by: By,
    proposal: Annotated[
        str | None, typer.Option(help="Digest of the proposal that you read, as `proposals` shows it.")
    ] = None,
    reason: Reason = "",
    as_json: options.Json = False,
) -> None:
    """Approve a study that was proposed to this site. Without it nothing leaves.

    The approval is of this proposal alone: another method, more columns or more rounds have to be approved
    anew. Look at what would leave first: abps site preview.

    Example: abps site approve kits/north icu --proposal 4f0c9a1be2d35a77 --by "Dr. Ada Example"
    """
    if proposal is None:
        own = own_file(kit)
        known = approval.proposals(Path(own.store), own.journal(kit), study)
        latest = f" (the latest is {known[-1].proposal.digest()[:16]})" if known else ""
        raise RequestError(
            f"say which proposal you read with --proposal DIGEST{latest}; `abps site proposals {kit}` shows "
            "what it asks for"
        )
    _decide(kit, study, JournalEvent.APPROVED, by, proposal, reason, as_json)


def refuse(
    kit: Kit,
    study: Named,
    by: By,
    proposal: Annotated[
        str | None, typer.Option(help="Beginning of a proposal's digest (default: the latest).")
    ] = None,
    reason: Reason = "",
    as_json: options.Json = False,
) -> None:
    """Refuse a study that was proposed to this site.

    Example: abps site refuse kits/north icu --by "Dr. Ada Example"
    """
    _decide(kit, study, JournalEvent.REFUSED, by, proposal, reason, as_json)


def withdraw(kit: Kit, study: Named, by: By, reason: Reason = "", as_json: options.Json = False) -> None:
    """Take this site out of a study: from the next round on it takes no part.

    It holds for every proposal of the study, until one is approved again. What partners have learned from
    earlier rounds cannot be called back.

    Example: abps site withdraw kits/north icu --by "Dr. Ada Example"
    """
    _decide(kit, study, JournalEvent.WITHDRAWN, by, None, reason, as_json)


def _decide(
    kit: Path, study: str, verdict: JournalEvent, by: str, digest: str | None, reason: str, as_json: bool
) -> None:
    own = own_file(kit)
    done = approval.decide(Path(own.store), own.journal(kit), study, verdict, by, digest, reason)
    if as_json:
        typer.echo(json.dumps(done.to_json()))
    else:
        _show_proposal(done)


def _show_proposal(each: ProposalRecord) -> None:
    line = each.decision
    decision = "waits for a decision" if line is None else f"{line.what} by {line.facts['by']} on {line.at}"
    head = {"proposal": each.proposal.digest()[:16], "operator": each.operator, "arrived": each.at}
    show({**head, **each.proposal.terms(), "decision": decision})


def console(
    kit: Kit,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    show_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
) -> None:
    """Read proposals, see what would leave, decide, and search the signed log, in the browser.

    Serves on this machine alone (127.0.0.1), to the one browser that opens the printed address. The same
    rules hold as for the commands.

    Example: abps site console kits/north
    """
    own_file(kit)  # a folder that is no kit ends here
    need_pages()
    from abps.app.console import routes
    from abps.app.serve import serve

    serve(f"abps · {kit.resolve().name}", routes(), port, show_page, kit=kit.resolve())


def status(kit: Kit, study: Study = None, as_json: options.Json = False) -> None:
    """Show a site's part in a study: exchanges, rests, bytes, refusals.

    Example: abps site status kits/north
    """
    store = study_store(kit, study)
    try:
        summary = account.summary(store)
    finally:
        store.close()
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        show(summary)


@dataclass(frozen=True)
class SiteReport:
    """What was written.  model: the folder of the model, or None, and why not.

    auroc: on the site's own test rows (of other outcomes than binary, their main score).
    """

    site: str
    page: Path
    files: tuple[Path, ...]
    model: Path | None
    no_model: str
    auroc: float | None


def export(kit: Kit, out: options.Out, study: Study = None, as_json: options.Json = False) -> None:
    """Write what a site has of a study: the audit log in plain words, rounds, its model and card as
    `abps fit` would, and report.html. Nothing is sent.

    Example: abps site export kits/north --out north-export
    """
    left = site_report(kit, out, study)
    model = left.model and str(left.model)
    summary = {
        "site": left.site, "page": str(left.page), "model": model, "test_auroc": left.auroc,
        "files": [str(path) for path in left.files],
    }  # fmt: skip
    lines = [*(f"wrote {path}" for path in left.files), f"model: {model or left.no_model}"]
    emit(as_json, summary, *lines)


def site_report(kit: Path, out: Path, study: str | None = None) -> SiteReport:
    """Write everything that a site has of a study into a new folder."""
    from abps.fitted.handover import check_new, site_effects, site_model, write_models
    from abps.report.pages.site_page import card_of, site_page

    own = own_file(kit)
    store = study_store(kit, study)
    try:
        check_new(out)
        written = account.export(store, out)
        summary, rounds = account.summary(store), store.rounds()
        model, evaluation, why = None, None, ""
        try:
            if (effects := site_effects(store, own)) is not None:
                written = [*written, *effects.write(out)]
            fitted = site_model(store, own)
            (model,) = write_models(fitted, out / "model").values()
            (evaluation,) = fitted.evaluations.values()
        except RequestError as error:
            why = f"there is none: {error}"
    finally:
        store.close()
    page = out / "report.html"
    card = "" if model is None else card_of(model, out)
    files.write_text(page, site_page(summary, rounds, evaluation, card, why))
    value = math.nan
    if evaluation is not None:
        value = next(iter(evaluation.measures.values()), evaluation.area).value
    auroc = value if math.isfinite(value) else None
    return SiteReport(own.site, page, (*written, page), model, why, auroc)


def verify(kit: Kit, study: Study = None, partner: Partner = None, as_json: options.Json = False) -> None:
    """Verify a site's log: find a row that was deleted, changed or moved.

    Checks the chain of digests, the heads that this site signed, the journal of decisions and, with
    --partner, what partners know of this site's log. Exit code 2 if anything is wrong.

    Example: abps site verify kits/north --study icu --partner south-export/heads.json
    """

    own, signer = own_file(kit), read_signer(kit)
    journal = own.journal(kit)
    lines = len(journal.lines())
    if study is not None:
        audit.check_not_gone(own.store_of(study), own.site, signer, partner or [])
    store = study_store(kit, study)
    try:
        agreement = store.facts()["agreement"]
        heads = [head for path in partner or [] for head in audit.read_heads(path, own.site, agreement)]
        found = audit.verify(store, signer, heads)
        found = replace(found, faults=(*found.faults, *approval.journal_faults(store, journal)))
    finally:
        store.close()
    summary = {
        "rows": found.rows, "heads": found.heads, "partners": found.partner_heads, "journal": lines,
        "faults": list(found.faults),
    }  # fmt: skip
    line = (
        f"{own.site}: {found.rows} rows of the log are in order, and agree with {found.heads} heads of its "
        f"own and {found.partner_heads} that partners hold; {lines} lines of the journal are in order"
    )
    emit(as_json, summary, *([] if found.faults else [line]))
    if found.faults:
        raise RequestError(f"{store.path} cannot be believed: {'; '.join(found.faults)}")


def backup(kit: Kit, out: options.Out, study: Study = None, as_json: options.Json = False) -> None:
    """Copy a site's store of a study: state, model, log. A job may run meanwhile.

    Example: abps site backup kits/north --out backups/2026-11-17
    """

    store = study_store(kit, study)
    store.close()
    written = audit.backup(store.path, out)
    emit(as_json, {"files": [str(written)]}, f"wrote {written}")


def restore(
    kit: Kit,
    source: Annotated[Path, typer.Option("--from", help="The folder that backup wrote.")],
    study: Annotated[str, typer.Option(help="The study.")],
    by: By,
    partner: Partner = None,
    as_json: options.Json = False,
) -> None:
    """Restore a site's store of a study from a backup; what was there is kept beside it.

    A backup whose log is not in order is refused. With --partner the output says how many rows partners know
    of that the backup lacks.

    Example: abps site restore kits/north --study icu --from backups/2026-11-17 --by "Ada Example"
    """

    own = own_file(kit)
    path = own.store_of(study)
    found = audit.restore(path, source, by, read_signer(kit))
    store = study_store(kit, study)
    try:
        agreement = store.facts()["agreement"]
        known = [head.rows for p in partner or [] for head in audit.read_heads(p, own.site, agreement)]
    finally:
        store.close()
    lost = max(0, max(known, default=0) - (found.rows - 1))
    lines = [f"restored {path}: {found.rows} rows of the log are in order"]
    lines += [f"partners know of {lost} rows that the backup did not have"] if known else []
    emit(as_json, {"rows": found.rows, "lost": lost}, *lines)


def request(
    kit: AnyKit,
    out: Annotated[Path, typer.Option(help="Write the request, for the operator, here.")],
    as_json: options.Json = False,
) -> None:
    """Make a new key, which never leaves this machine, and a request for its certificate.

    Send the request to the operator, who answers with a certificate (`abps site certify`); then run
    `abps site install`. The kit works as before until then. Read the printed fingerprint out to the operator
    by telephone, if the kit's key was lost.

    Example: abps site request north --out north.csr
    """

    made = request_certificate(read_kit(kit), out)
    summary = {
        "member": made.member, "request": str(out), "fingerprint": made.fingerprint,
        "signed": bool(made.signature),
    }  # fmt: skip
    lines = [f"wrote {out}; its fingerprint is {made.fingerprint}"]
    if not made.signature:
        lines.append("the kit has no key to sign the request with: read the fingerprint out to the operator")
    emit(as_json, summary, *lines)


def install(
    kit: AnyKit,
    certificate: Annotated[Path, typer.Option(help="The certificate that the operator sent back.")],
    as_json: options.Json = False,
) -> None:
    """Put the certificate that the operator sent, and the key that it is for, into the kit.

    Start it again afterwards.

    Example: abps site install north --certificate client.crt
    """

    until = install_certificate(read_kit(kit), certificate).not_valid_after_utc
    line = f"{kit} has a key of its own, with a certificate good until {until:%Y-%m-%d}; start it again"
    emit(as_json, {"kit": str(kit), "until": until.isoformat()}, line)


COMMANDS = (
    init, start, check, share, preview, proposals, approve, refuse, withdraw, status, export,
    verify, backup, restore, request, install, console,
)  # fmt: skip
