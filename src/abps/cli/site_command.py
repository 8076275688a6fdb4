"""``abps site``: the real federation, from certificates to a running job."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from abps import files
from abps.cli import (
    options,
    site_audit,
    site_check,
    site_consent,
    site_gather,
    site_members,
    site_preview,
    site_rehearse,
    site_report,
    site_start,
)
from abps.cli.site_options import (
    Kit,
    Study,
    need_engine,
    own_file,
    read_codebook,
    say,
    say_not_told,
    study_store,
)
from abps.core.errors import RequestError
from abps.data.codebook import merged
from abps.data.prepare import codebook, not_told, with_statistics
from abps.privacy.small_counts import MIN_CELL
from abps.sites.consent import sitefile
from abps.sites.node import status as account

HELP = """The real federation: hospitals that keep their tables, over NVIDIA FLARE.

1. The operator, once: `abps site provision north south east west --host relay.example.org --out kits`

2. Each hospital, with its kit: `abps site init --kit kits/north --table stays.parquet --label died`

3. The relay, `abps site start kits/relay`, and each hospital, `abps site start kits/north`

4. Each hospital, having read its codebook: `abps site share kits/north --by "Dr. Ada Example"`; then the
operator: `abps site gather --kit kits/operator@federation.example --study icu --out book.json` and
`abps site submit --kit kits/operator@federation.example --study icu --codebook book.json`

5. Each hospital, at any time: `abps site check kits/north`, `abps site status kits/north`

Try all of it on one machine first: `abps site rehearse`

The engine is an extra: `pip install 'abps[flare]'`.
"""

#: Commands with a file of their own.
PARTS = (
    site_start,
    site_check,
    site_consent,
    site_gather,
    site_preview,
    site_audit,
    site_members,
    site_rehearse,
    site_report,
)


def register(app: typer.Typer) -> None:
    """Add the command and its parts."""
    site = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="markdown")
    for command in (init, provision, submit, status, export):
        site.command(command.__name__)(command)
    for part in PARTS:
        part.register(site)
    app.add_typer(site, name="site")


def init(
    table: Annotated[Path, typer.Option(help="This site's own table, CSV or Parquet, all its rows.")],
    label: Annotated[
        str, typer.Option(help="The column to predict (two values, unless --outcome says otherwise).")
    ],
    kit: Annotated[Path | None, typer.Option(help="This site's startup kit.")] = None,
    site: Annotated[str | None, typer.Option(help="The site's name, if there is no kit yet.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write to, if there is no kit yet.")] = None,
    store: Annotated[Path | None, typer.Option(help="Where to remember studies (default: beside).")] = None,
    patient: options.Patient = None,
    time: options.Time = None,
    drop: options.Drop = "",
    positive: options.Positive = None,
    outcome: options.Outcome = None,
    duration: options.Duration = None,
    threads: Annotated[int, typer.Option(help="Cores for training.")] = 1,
    allow: Annotated[
        str, typer.Option(help="Packages besides abps that jobs may name, with commas between.")
    ] = "",
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Tell counts, means and groups of numeric columns, too.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The study's seed, for --statistics: of its training rows.")] = 11,
    as_json: options.Json = False,
) -> None:
    """Tell a site which table is its own. Nothing of it leaves the machine.

    Writes abps-site.json, and codebook.json: names of columns and category levels, which the sites exchange
    to agree on what their models see. Read it before you pass it on. With --statistics it also holds a
    summary of each numeric column, from which common scales follow; linear and additive models need them.

    Example: abps site init --kit kits/north --table stays.parquet --label died --patient patient
    """
    if (kit is None) == (site is None or out is None):
        raise RequestError("give either --kit KIT, or --site NAME with --out FOLDER")
    if threads < 1:
        raise RequestError(f"--threads {threads}: choose at least 1")
    if kit is not None:
        need_engine()
        from abps.sites.consent.kit import Role, participant_kit

        given = participant_kit(kit)
        if given.role is Role.RELAY:
            raise RequestError(f"{kit} is the relay's kit; the relay has no table")
        site, folder = given.name, given.local
    else:
        assert site is not None and out is not None
        folder = files.folder(out)
    dropped, allowed = options.split(drop), options.split(allow)
    remember = (store or folder / "studies").absolute()
    own = sitefile.SiteFile(
        site,
        str(table.absolute()),
        label,
        str(remember),
        patient,
        time,
        dropped,
        threads,
        allow=allowed,
        positive=positive,
        outcome=outcome,
        duration=duration,
    )
    found = own.labelled()
    if found.doubt and positive is None:
        # Another site may have read it the other way round; the model would then learn the contrary.
        raise RequestError(f"{found.doubt}; say which value is the event with --positive")
    rows = own.read_table()
    book = replace(codebook(rows, seed=0, floor=MIN_CELL), events=found.event_words, others=found.other_words)
    if statistics:
        book = with_statistics(book, rows, seed)
    files.write_json(folder / sitefile.CODEBOOK, book.to_json())
    written = [own.write(folder), folder / sitefile.CODEBOOK]
    if as_json:
        summary = {
            "site": site,
            "rows": rows.rows,
            "columns": len(book.columns),
            "not_told": not_told(rows, book),
            "files": [str(p) for p in written],
        }
        typer.echo(json.dumps(summary))
        return
    say(f"{site}: {rows.rows} rows, {rows.described}, {len(book.columns)} encoded columns")
    say_not_told(not_told(rows, book))
    for path in written:
        say(f"wrote {path}")


def provision(
    sites: Annotated[list[str], typer.Argument(help="The names of all sites.")],
    out: options.Out,
    host: Annotated[str, typer.Option(help="The DNS name by which sites reach the relay.")] = "localhost",
    port: Annotated[int, typer.Option(help="The one port that the relay listens on.")] = 8002,
    operator: Annotated[str, typer.Option(help="Who submits jobs.")] = "operator@federation.example",
    own_keys: Annotated[
        bool, typer.Option("--own-keys", help="Sites make their keys themselves: kits without keys.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Make an authority, certificates and one startup kit for each participant.

    Give each hospital its kit and nothing else; keep the folder `authority` to yourself: who has it can make
    members. It keeps no member's key: a kit is made once. Run again with more names to add sites.

    With --own-keys a site's kit has no key: the site makes it, and nobody else has it (`abps site request`).

    Example: abps site provision north south east west --host relay.example.org --out kits
    """
    need_engine()
    from abps.sites.flare import kits

    made = kits.provision(out, sites, host, port, operator, own_keys)
    if as_json:
        kits_of = {name: str(path) for name, path in made.sites.items()}
        typer.echo(json.dumps({"relay": str(made.relay), "operator": str(made.operator), "sites": kits_of}))
        return
    say(f"the relay's kit: {made.relay} (listens on {host}:{port})")
    say(f"the operator's kit: {made.operator}")
    for path in made.sites.values():
        say(f"a site's kit: {path}{'' if path.is_dir() else ' (made before, and not here any more)'}")
    say(f"keep this to yourself: {made.authority}")


def submit(
    kit: Annotated[Path, typer.Option(help="The operator's startup kit.")],
    study: Annotated[str, typer.Option(help="A name for the common work; sites remember by it.")],
    codebook_: Annotated[
        list[Path], typer.Option("--codebook", help="The sites' codebooks; repeat to merge several.")
    ],
    method: Annotated[str, typer.Option(help="One of the abps family, or fedavg.")] = "abps-pq-k1",
    seed: Annotated[int, typer.Option(help="Splits, initial weights and every other draw.")] = 11,
    rounds: Annotated[int, typer.Option(help="Rounds of the whole study.")] = 50,
    job_rounds: Annotated[int, typer.Option(help="Rounds of this job; a site may come and go between.")] = 10,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of the method: --set gamma=0.5.")
    ] = None,
    members: Annotated[
        str, typer.Option(help="The sites that may take part, with commas between (default: all).")
    ] = "",
    min_sites: Annotated[int, typer.Option(help="Do not start with fewer sites.")] = 2,
    grace: Annotated[
        float, typer.Option(help="Seconds for the last sites in a round, once more than half are done.")
    ] = 300.0,
    sign_of_life: Annotated[
        float, typer.Option(help="Seconds in which a site must answer at all; more for a bad line.")
    ] = 5.0,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for sites whose people have not decided yet.")
    ] = 0.0,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the end; 0: do not wait.")] = 3600.0,
    to_the_end: Annotated[
        bool,
        typer.Option(
            "--to-the-end", help="Job after job until all rounds are done, also after a relay was lost."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the conductor's report here.")] = None,
    as_json: options.Json = False,
) -> None:
    """Send the sites a job: some rounds of a study, signed with the operator's key. The job carries no code.

    Sites that have not approved the study keep the proposal for their people to read, and take no part yet.
    Submit again with the same options to go on where the sites are, or let --to-the-end do that.

    Example: abps site submit --kit kits/operator@federation.example --study icu --codebook codebook.json
    """
    need_engine()
    # Without a handler the engine's loggers would write to the terminal; what matters is in our sentences.
    logging.getLogger().addHandler(logging.NullHandler())
    from abps.sites.consent.agreement import Agreement
    from abps.sites.flare import submit as jobs

    book = merged([read_codebook(path) for path in codebook_])
    agreement = Agreement(study, method, book, seed, rounds, options.settings(set_))
    agreement.config()
    if grace < 0 or patience < 0:
        raise RequestError("--grace and --patience are seconds: choose 0 or more")
    if not 1 <= sign_of_life <= 600:
        raise RequestError("--sign-of-life is in seconds: choose 1 to 600")
    if to_the_end and not wait:
        raise RequestError("--to-the-end timeouts for every job: leave --wait 0 out")
    console = options.terminal(stderr=True)
    with console.status("submitting") if console.is_terminal else Console(quiet=True).status("") as state:

        def once() -> jobs.Outcome:
            return jobs.submit(
                kit,
                agreement,
                job_rounds,
                min_sites,
                jobs.JobTimeouts(sign=sign_of_life, grace=grace, patience=patience),
                wait=wait + patience if wait else None,
                progress=lambda word: state.update(word),
                members=options.split(members),
            )

        done = jobs.to_the_end(once, rounds, say) if to_the_end else once()
    if out is not None and done.report is not None:
        files.write_json(out, done.report)
    if as_json:
        typer.echo(json.dumps({"job": done.job, "status": done.status, "report": done.report}))
    else:
        say(f"job {done.job}: {done.status}")
        _show_report(console, done.report)
    if done.report is not None and "error" in done.report:
        raise RequestError(f"the job did not run: {done.report['error']}")
    if done.ran and done.status != jobs.COMPLETED:
        say("its rounds are done; a site's process was gone when it ended")
    elif done.status.startswith("FINISHED") and done.status != jobs.COMPLETED:
        raise RequestError(f"the job ended as {done.status}; look into the relay's and the sites' logs")


def _show_report(console: Console, report: dict | None) -> None:
    if not report or "error" in report:
        return
    table = Table("round", "sites", "missing", "pairs", "edge bytes", "control bytes", "validation AUROC")
    for r in report["rounds"]:
        auroc = "" if r["validation"] is None else f"{r['validation']:.3f}"
        missing = ", ".join(sorted({*r["missing"], *report["left_out"]})) or "-"
        pairs = sum(r["partners"].values()) // 2
        row = (r["round"], len(r["present"]), missing, pairs, f"{r['edge']:,}", f"{r['control']:,}", auroc)
        table.add_row(*(str(cell) for cell in row))
    console.print(table)
    for name, why in sorted(report["left_out"].items()):
        console.print(f"{name} was left out: {why}", markup=False)


def status(kit: Kit, study: Study = None, as_json: options.Json = False) -> None:
    """Show a site's part in a study: partners, beliefs, rests, bytes, refusals.

    Example: abps site status kits/north
    """
    store = study_store(kit, study)
    try:
        told = account.summary(store)
    finally:
        store.close()
    if as_json:
        typer.echo(json.dumps(told))
        return
    console = options.terminal()
    of = "" if told["of"] is None else f" of {told['of']}"
    console.print(
        f"{told['site']} in the study {told['study']} ({told['method']}): round {told['round']}{of}"
    )
    auroc = told["validation_auroc"]
    console.print(f"partners of the last round: {', '.join(told['partners']) or 'none (rested)'}")
    value = "not defined" if auroc is None else f"{auroc:.3f}"
    console.print(f"validation {told['measure']} after it: {value}")
    rests = ", ".join(f"{why} {count}" for why, count in told["rests"].items())
    console.print(f"rounds rested: {rests or 'none'}")
    for a in told["alarms"]:
        whose = f"on {a['statistic']}" if a["site"] == told["site"] else f"told by {a['site']}"
        console.print(f"alarm of drift in round {a['round']}, {whose}", markup=False)
    sent = told["bytes_sent"]
    parts = ", ".join(f"{kind} {size:,}" for kind, size in sent.items() if kind != "total")
    console.print(f"bytes sent: {sent['total']:,} ({parts})")
    if told["in_doubt"]:
        console.print(f"rounds with a match in doubt, settled when the peer is back: {told['in_doubt']}")
    table = Table("peer", "belief", "observations", "rounds as partner")
    for b in told["beliefs"]:
        table.add_row(b["peer"], f"{b['mean']:.3f}", f"{b['observations']:g}", str(b["partner"]))
    console.print(table)
    for r in told["refused"]:
        console.print(f"refused from {r['peer']}: {r['reason']} ({r['count']} times)", markup=False)


def export(kit: Kit, out: options.Out, study: Study = None, as_json: options.Json = False) -> None:
    """Write what a site remembers as files: the audit log in plain words, rounds, beliefs, and its model as
    `abps fit` would, with its card.

    Example: abps site export kits/north --out north-export
    """
    from abps.fitted.at_site import site_model
    from abps.fitted.handover import write_models

    store = study_store(kit, study)
    try:
        written = account.export(store, out)
        try:
            written += write_models(site_model(store, own_file(kit)), out / "model").values()
        except RequestError as error:
            typer.echo(f"no model folder: {error}", err=True)
    finally:
        store.close()
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in written]}))
        return
    for path in written:
        say(f"wrote {path}")
