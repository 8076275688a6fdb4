"""``abps site``, for hospitals: the own table, decisions about studies, running a site, results, help."""

import contextlib
import datetime
import json
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from abps import files
from abps.cli import options, site_command
from abps.cli.site_command import emit, need_engine, own_file, say, show, show_rows, study_store
from abps.cli.study_commands import need_pages
from abps.core.errors import RequestError
from abps.data import harmonise as maps
from abps.data.prepare import excluded_columns
from abps.sites.consent import approval, keys, preflight, sitefile
from abps.sites.consent import preview as values
from abps.sites.consent.kit import Role, participant_kit, read_certificate, read_kit
from abps.sites.consent.preflight import State
from abps.sites.node import status as account
from abps.sites.store import audit
from abps.sites.store.audit import JournalEvent
from abps.sites.store.store import Store

FAILED = 3  # the exit code of a check that fails: neither a wrong request nor an internal error

Kit = Annotated[Path, typer.Argument(help="A startup kit, or the folder of a site's abps-site.json.")]
AnyKit = Annotated[Path, typer.Argument(help="The startup kit of a site, of the relay or of an operator.")]
Study = Annotated[str | None, "The study, if the site takes part in several."]
Named = Annotated[str, typer.Argument(help="The study.")]
By = Annotated[str, "Name of the person who decides; it is recorded."]
Reason = Annotated[str, "Why; it is recorded."]
Partner = Annotated[list[Path] | None, "A partner's heads.json (from its export); repeat for several."]


def init(
    table: Annotated[Path, "This site's own table, CSV or Parquet, all its rows."],
    label: Annotated[str, "Column to predict (two values, unless --outcome says otherwise)."],
    kit: Annotated[Path | None, "This site's startup kit."] = None,
    site: Annotated[str | None, "The site's name, if there is no kit yet."] = None,
    out: Annotated[Path | None, "Folder to write to, if there is no kit yet."] = None,
    store: Annotated[Path | None, "Folder of the stores (default: beside)."] = None,
    patient: options.Patient = None,
    time: options.Time = None,
    drop: options.Drop = "",
    positive: options.Positive = None,
    outcome: options.Outcome = None,
    duration: options.Duration = None,
    allow: Annotated[str, "Comma-separated packages besides abps that jobs may name."] = "",
    proxy: Annotated[str, "HTTP proxy on the way to the relay, http://HOST:PORT."] = "",
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
        duration=duration, proxy=proxy, harmonised=maps.map_digest(table),
    )  # fmt: skip
    if (doubt := own.labelled().doubt) and positive is None:
        # Another site may have read it the other way round; the model would then learn the contrary.
        raise RequestError(f"{doubt}; say which value is the event with --positive")
    rows = own.read_table()
    book = values.codebook_of(own, rows)
    files.write_json(folder / sitefile.CODEBOOK, book.to_json())
    written = [str(own.write(folder)), str(folder / sitefile.CODEBOOK)]
    kept_back = excluded_columns(rows, book)
    facts = {"rows": rows.rows, "columns": len(book.columns), "excluded": kept_back, "files": written}
    line = f"{site}: {rows.rows} rows, {rows.described}, {len(book.columns)} encoded columns"
    emit(as_json, {"site": site, **facts}, line, *_kept_back(kept_back), *(f"wrote {x}" for x in written))


def _kept_back(columns: dict[str, str]) -> list[str]:
    """A line for every column of a site's table of which nothing leaves."""
    return [f"the column {name!r} is not in the codebook: {why}" for name, why in columns.items()]


def start(kit: Annotated[Path, typer.Argument(help="The startup kit of the relay or of a site.")]) -> None:
    """Run the relay or a site from its kit, in the foreground, until it is stopped."""
    need_engine()
    from abps.sites.flare import kits

    kit = kit.absolute()
    given = participant_kit(kit)
    if given.role is Role.SITE:
        sitefile.find(given.name, given.local)  # a site without a table is of no use
    today, certificate = datetime.datetime.now(datetime.UTC), read_certificate(given.certificate)
    held = preflight.of_certificate("certificate", certificate, today, preflight.RENEW_KEY)
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
    codebook: Annotated[Path | None, "The common columns (default: what the site proposed)."] = None,
    as_json: options.Json = False,
) -> None:
    """Check that everything is ready: name, port, TLS, certificates, disk, memory, versions, table;
    and say what a job here is waiting for, for whom and since when.

    Exit code 0 if nothing fails (warnings are printed), 3 if something does.
    """
    given, book = read_kit(kit), None if codebook is None else site_command.read_codebook(codebook)
    found = list(preflight.checks(given, book))
    failed = any(c.state is State.FAIL for c in found)
    rows = [{"check": c.name, "state": str(c.state), "sentence": c.sentence} for c in found]
    if not emit(as_json, {"kit": str(kit), "name": given.name, "ok": not failed, "checks": rows}):
        show_rows(rows, f"{given.name} ({given.role})")
    if failed:
        raise typer.Exit(FAILED)


def preview(
    kit: Kit,
    study: Named,
    out: Annotated[Path | None, "Write all values into this CSV file."] = None,
    as_json: options.Json = False,
) -> None:
    """Show every value that would leave this site in a study, to whom, and whether the relay can read it.

    Nothing is sent. The functions that the study uses compute the values from the site's own table; weights,
    which come of training, are shown by number and bytes.

    Example: abps site preview kits/north icu --out leaving.csv
    """
    own = own_file(kit)
    known = approval.proposals(Path(own.store), own.journal(kit), study)
    if not known:
        raise RequestError(f"no proposal of a study {study!r} has arrived at {own.site}")
    proposal = known[-1].proposal
    found = values.preview(own, proposal)
    rows = [asdict(value) for value in found]
    if out is not None:
        frame = pl.DataFrame([_no_formula(row) for row in rows], infer_schema_length=None)
        files.write_with(out, frame.write_csv)
    if emit(as_json, rows, f"proposal {proposal.digest()[:16]}"):
        return
    if out is None:
        show_rows(rows)
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
    """List the studies that were proposed to this site, with what was decided about them."""
    own = own_file(kit)
    found = approval.proposals(Path(own.store), own.journal(kit))
    if not emit(as_json, [each.to_json() for each in found]):
        if not found:
            say(f"{own.site}: no study has been proposed yet")
        for each in found:
            _show_proposal(each)


def approve(
    kit: Kit,
    study: Named,
    by: By,
    proposal: Annotated[str, "Digest of the proposal that you read (`proposals`)."],
    reason: Reason = "",
    as_json: options.Json = False,
) -> None:
    """Approve a study that was proposed to this site. Without it nothing leaves.

    The approval is of this proposal alone: another method, more columns or more rounds have to be approved
    anew. Look at what would leave first: abps site preview.

    Example: abps site approve kits/north icu --proposal 4f0c9a1be2d35a77 --by "Dr. Ada Example"
    """
    _decide(kit, study, JournalEvent.APPROVED, by, reason, as_json, proposal)


def refuse(kit: Kit, study: Named, by: By, reason: Reason = "", as_json: options.Json = False) -> None:
    """Refuse the latest proposal of a study."""
    _decide(kit, study, JournalEvent.REFUSED, by, reason, as_json)


def withdraw(kit: Kit, study: Named, by: By, reason: Reason = "", as_json: options.Json = False) -> None:
    """Take this site out of a study: from the next round on it takes no part.

    It holds for every proposal of the study, until one is approved again. What partners have learned from
    earlier rounds cannot be called back.
    """
    _decide(kit, study, JournalEvent.WITHDRAWN, by, reason, as_json)


def _decide(
    kit: Path, study: str, verdict: JournalEvent, by: str, reason: str, as_json: bool, digest: str = ""
) -> None:
    own = own_file(kit)
    done = approval.decide(Path(own.store), own.journal(kit), study, verdict, by, digest or None, reason)
    if not emit(as_json, done.to_json()):
        _show_proposal(done)


def _show_proposal(each: approval.ProposalRecord) -> None:
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
    """
    own_file(kit)  # a folder that is no kit ends here
    need_pages()
    from abps.app.console import routes
    from abps.app.pages import serve

    serve(f"abps · {kit.resolve().name}", routes(), port, show_page, kit=kit.resolve())


def status(kit: Kit, study: Study = None, as_json: options.Json = False) -> None:
    """Show a site's part in a study: exchanges, rests, bytes, refusals."""
    with study_store(kit, study) as store:
        summary = account.summary(store)
    if not emit(as_json, summary):
        show(summary)


def export(kit: Kit, out: options.Out, study: Study = None, as_json: options.Json = False) -> None:
    """Write what a site has of a study: the audit log in plain words, rounds, its model and card as
    `abps fit` would, and report.html. Nothing is sent.
    """
    from abps.report.site_page import site_report

    with study_store(kit, study) as store:
        left = site_report(store, own_file(kit), out)
    model, written = left.model and str(left.model), [str(path) for path in left.files]
    summary = {"site": left.site, "page": str(left.page), "model": model, "test_auroc": left.auroc}
    lines = [*(f"wrote {path}" for path in written), f"model: {model or left.no_model}"]
    emit(as_json, {**summary, "files": written}, *lines)


def verify(kit: Kit, study: Study = None, partner: Partner = None, as_json: options.Json = False) -> None:
    """Verify a site's log: find a row that was deleted, changed or moved.

    Checks the chain of digests, the heads that this site signed, the journal of decisions and, with
    --partner, what partners know of this site's log. Exit code 2 if anything is wrong.

    Example: abps site verify kits/north --study icu --partner south-export/heads.json
    """
    own, signer = own_file(kit), keys.read_signer(kit)
    journal = own.journal(kit)
    lines = len(journal.lines())
    if study is not None:
        audit.check_not_gone(own.store_of(study), own.site, signer, partner or [])
    with study_store(kit, study, check=False) as store:
        found = audit.verify(store, signer, _heads(store, own, partner))
        faults = [*found.faults, *approval.journal_faults(store, journal)]
    facts = {"rows": found.rows, "heads": found.heads, "partners": found.partner_heads, "journal": lines}
    heads = f"{found.heads} heads of its own and {found.partner_heads} that partners hold"
    line = f"{own.site}: {found.rows} rows of the log are in order, and agree with {heads}"
    good = [f"{line}; {lines} lines of the journal are in order"]
    emit(as_json, {**facts, "faults": faults}, *([] if faults else good))
    if faults:
        raise RequestError(f"{store.path} cannot be believed: {'; '.join(faults)}")


def _heads(store: Store, own: sitefile.SiteFile, partner: list[Path] | None) -> list[Any]:
    agreement = store.facts()["agreement"]
    return [head for path in partner or [] for head in audit.read_heads(path, own.site, agreement)]


def backup(kit: Kit, out: options.Out, study: Study = None, as_json: options.Json = False) -> None:
    """Copy a site's store of a study: state, model, log. A job may run meanwhile."""
    with study_store(kit, study) as store:
        path = store.path
    written = audit.backup(path, out)
    emit(as_json, {"files": [str(written)]}, f"wrote {written}")


def restore(
    kit: Kit,
    source: Annotated[Path, typer.Option("--from", help="The folder that backup wrote.")],
    study: Annotated[str, "The study."],
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
    found = audit.restore(own.store_of(study), source, by, keys.read_signer(kit))
    with study_store(kit, study) as store:
        known = [head.rows for head in _heads(store, own, partner)]
    lost = max(0, max(known, default=0) - (found.rows - 1))
    lines = [f"restored {store.path}: {found.rows} rows of the log are in order"]
    lines += [f"partners know of {lost} rows that the backup did not have"] if known else []
    emit(as_json, {"rows": found.rows, "lost": lost}, *lines)


def request(
    kit: AnyKit,
    out: Annotated[Path, "Write the request, for the operator, here."],
    as_json: options.Json = False,
) -> None:
    """Make a new key, which never leaves this machine, and a request for its certificate.

    Send the request to the operator, who answers with a certificate (`abps site certify`); then run
    `abps site install`. The kit works as before until then. Read the printed fingerprint out to the operator
    by telephone, if the kit's key was lost.
    """
    made = keys.request_certificate(read_kit(kit), out)
    facts = {"member": made.member, "request": str(out), "fingerprint": made.fingerprint}
    lines = [f"wrote {out}; its fingerprint is {made.fingerprint}"]
    if not made.signature:
        lines.append("the kit has no key to sign the request with: read the fingerprint out to the operator")
    emit(as_json, {**facts, "signed": bool(made.signature)}, *lines)


def install(
    kit: AnyKit,
    certificate: Annotated[Path, "The certificate that the operator sent back."],
    as_json: options.Json = False,
) -> None:
    """Put the certificate that the operator sent, and the key that it is for, into the kit.

    Start it again afterwards.
    """
    until = keys.install_certificate(read_kit(kit), certificate).not_valid_after_utc
    line = f"{kit} has a key of its own, with a certificate good until {until:%Y-%m-%d}; start it again"
    emit(as_json, {"kit": str(kit), "until": until.isoformat()}, line)


def explain(
    source: Annotated[Path, typer.Argument(help="A startup kit, or a bundle that a site has released.")],
    out: Annotated[Path | None, "Write the bundle here, to be read."] = None,
    release: Annotated[Path | None, "Sign this bundle, which you have read."] = None,
    by: Annotated[str, "Name of the person who releases it; it is recorded."] = "",
    kit: Annotated[Path | None, "With a bundle: any kit of the network."] = None,
    as_json: options.Json = False,
) -> None:
    """Say what failed at a site: versions, checks, decline codes, the last log rows without their words.

    No cell, no path, no value of a column is in it. Read it, release it with a name, and send the file to the
    operator, who verifies and prints it: abps site explain bundle.json --kit operator

    Example: abps site explain north --out bundle.json; abps site explain north --release bundle.json --by Ada
    """
    if release is not None:
        account.release_bundle(source, release, by)
        emit(as_json, {"released": str(release)}, f"{by} has released {release}; send it to the operator")
        return
    if source.is_file():
        authority = None if kit is None else keys.read_root(kit)
        if authority is None:
            raise RequestError("name a kit of the network with --kit, to verify who released the bundle")
        found = account.read_bundle(source, authority)
        say(f"released by {found['site']}, unchanged")
    else:
        found = account.failure_bundle(source)
    if out is not None:
        files.write_json(out, found)
        say(f"wrote {out}; read it, then release it with --release {out} --by NAME")
    if not emit(as_json, found):
        studies = found["studies"]
        show({**found, "studies": [{k: v for k, v in each.items() if k != "log"} for each in studies]})
        for each in studies:
            show({"log": each["log"]})


def harmonise(
    kit: Kit,
    codebook: Annotated[Path, "The study's common columns."],
    study: Annotated[str | None, "A study whose common scales were counted."] = None,
    out: Annotated[Path | None, "Write the proposed map here (TOML)."] = None,
    as_json: options.Json = False,
) -> None:
    """Compare this site's table with a study's columns, and propose a map: names, units, levels.

    Units are judged by the codebook's scales or, with --study, by those that all sites counted under masks;
    nothing leaves. The map, TABLE.harmonise.toml beside the table, is applied whenever the table is read.
    Read it, correct it, and run `abps site init` again: the codebook and the proposal hold its digest.

    Example: abps site harmonise north --codebook codebook.json --study icu --out stays.harmonise.toml
    """
    from abps.sites.node import measuring

    own, book = own_file(kit), site_command.read_codebook(codebook)
    medians = maps.common_medians(book.statistics)
    if study is not None:
        with contextlib.closing(Store.look(own.store_of(measuring.store_name(study)))) as store:
            medians |= json.loads(store.facts().get(measuring.MEDIANS, "{}"))
    entries, said = maps.suggest(own.read_table().features, book, medians)
    entries = maps.added(maps.read_map(own.table), entries)
    if not medians:
        said.append("units were not compared: the codebook has no scales; name a counted study with --study")
    if out is not None and entries:
        files.write_text(out, files.as_toml(entries))
        said.append(f"wrote {out}; it is in force as {maps.map_path(own.table)}")
    summary = {"site": own.site, "entries": entries, "said": said}
    emit(as_json, summary, *(said or ["all columns fit"]), *files.as_toml(entries).splitlines())


_SEND = typer.Option(help="Copy the files to send into this folder.")


def take_in(
    kit: Kit,
    brought: Annotated[list[Path], typer.Argument(help="Files that the operator or other sites wrote.")],
    out: Annotated[Path | None, _SEND] = None,
    as_json: options.Json = False,
) -> None:
    """Take files in, and go on as far as they allow. The same file twice changes nothing.

    A file that is altered, foreign or not due is named with the reason and changes nothing (exit code 2).

    Example: abps site courier in north received/*.abps --out to-send
    """
    from abps.sites.courier.study import bring_all

    said, courier, wrong = bring_all(kit, brought)
    if courier is None:
        emit(as_json, {"said": said}, *said)
    else:
        _show_courier(courier, out, said, as_json)
    if wrong:
        raise RequestError("; ".join(wrong))


def write_out(
    kit: Kit, out: Annotated[Path, _SEND], study: Study = None, as_json: options.Json = False
) -> None:
    """Write what this site must send now. Until others' files are taken it is the same."""
    from abps.sites.courier.study import find

    courier = find(kit, study)
    courier.go_on()
    _show_courier(courier, out, [], as_json)


def courier_status(kit: Kit, study: Study = None, as_json: options.Json = False) -> None:
    """Say at which step this site is, and whose files it waits for."""
    from abps.sites.courier.study import find

    _show_courier(find(kit, study), None, [], as_json)


def _show_courier(courier: Any, out: Path | None, said: list[str], as_json: bool) -> None:
    place, missing, due = courier.place(), courier.missing(), courier.due()
    if out is not None:
        for path in due:
            files.write_text(out / path.name, path.read_text(encoding="utf-8"))
    summary = {
        "study": courier.agreement.study, "step": place, "over": courier.over, "waits_for": missing,
        "history": courier.history(place)[:16], "send": [path.name for path in due], "said": said,
    }  # fmt: skip
    where = "the study is over here" if courier.over else f"step {place} of at most {len(courier.track) - 1}"
    lines = [f"{courier.me}: {where}; history {summary['history'] or 'none'}"]
    lines += [f"waits for {', '.join(missing)}"] if missing else []
    lines += [f"to send{f', in {out}' if out else ''}: {path.name}" for path in due]
    emit(as_json, summary, *said, *lines)


COMMANDS = (
    init, start, check, preview, proposals, approve, refuse, withdraw, status, export,
    verify, backup, restore, request, install, console, explain, harmonise,
)  # fmt: skip
