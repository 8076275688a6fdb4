"""``abps site``, for operators: kits, members, codebooks, jobs, rehearsals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from abps import files
from abps.cli import options
from abps.cli.site_command import emit, need_engine, read_codebook, say, show_rows
from abps.core.errors import RequestError

if TYPE_CHECKING:
    from abps.sites.consent.agreement import Agreement

OperatorKit = Annotated[Path, "The operator's startup kit."]
Kits = Annotated[Path, "The folder that `abps site provision` made, with the authority."]
Named = Annotated[str, "Name of the study; sites keep one store per study."]
Codebooks = Annotated[list[Path], "The sites' codebooks; repeat to merge several."]
Members = Annotated[str, "Comma-separated sites that may take part (default: all)."]
Method = Annotated[str, "A method that runs between sites."]
Seed = Annotated[int, "Seed of the split, the initial weights and all draws."]
Rounds = Annotated[int | None, "Rounds of the study (default: the method's)."]
_DECIDE = "Seconds to wait for people at the sites to decide."
Approval = Annotated[float, typer.Option("--wait-for-approval", "--patience", help=_DECIDE)]

METHOD = "abps-plus"  # the method of a study if none is named


def provision(
    sites: Annotated[list[str], typer.Argument(help="The names of all sites.")],
    out: options.Out,
    host: Annotated[str, "DNS name by which sites reach the relay."] = "localhost",
    port: Annotated[int, "The one port that the relay listens on."] = 8002,
    operator: Annotated[str, "E-mail address of who submits jobs."] = "operator@federation.example",
    as_json: options.Json = False,
) -> None:
    """Make an authority, certificates and one startup kit for each participant.

    Give each hospital its kit and nothing else; keep the folder `authority` to yourself: its owner can make
    members. It keeps no member's key: a kit is made once. Run again with more names to add sites.

    Example: abps site provision north south east west --host relay.example.org --out kits
    """
    need_engine()
    from abps.sites.flare import kits

    made = kits.provision(out, sites, host, port, operator)
    names = {name: str(path) for name, path in made.sites.items()}
    lines = [
        f"the relay's kit: {made.relay} (listens on {host}:{port})",
        f"the operator's kit: {made.operator}",
    ]
    for path in made.sites.values():
        lines.append(f"a site's kit: {path}{'' if path.is_dir() else ' (made before, not here any more)'}")
    facts = {"relay": str(made.relay), "operator": str(made.operator), "sites": names}
    emit(as_json, facts, *lines, f"keep this to yourself: {made.authority}")


def submit(
    kit: OperatorKit,
    study: Named,
    codebook: Codebooks,
    method: Method = METHOD,
    seed: Seed = 11,
    rounds: Rounds = None,
    job_rounds: Annotated[int | None, "Rounds of this job (default: all)."] = None,
    set_: options.Settings = None,
    members: Members = "",
    min_sites: Annotated[int, "Do not start with fewer sites."] = 2,
    grace: Annotated[float, "Seconds for the last sites in a round, once more than half are done."] = 300.0,
    sign_of_life: Annotated[float, "Seconds in which a site must answer at all; more for a bad line."] = 5.0,
    approval: Approval = 0.0,
    wait: Annotated[float, "Seconds to wait for the end; 0: do not wait."] = 3600.0,
    to_the_end: Annotated[bool, "Submit job after job until all rounds are done."] = False,
    out: Annotated[Path | None, "Write the report of the job here."] = None,
    as_json: options.Json = False,
) -> None:
    """Send the sites a job: some rounds of a study, signed with the operator's key. The job carries no code.

    Sites that have not approved the study store the proposal for their people to read, and decline. Submit
    again with the same options to go on with the next rounds, or let --to-the-end do that.

    Example: abps site submit --kit kits/operator@federation.example --study icu --codebook codebook.json
    """
    need_engine()
    from abps.sites.flare import submit as jobs
    from abps.sites.flare.kits import provisioned
    from abps.sites.protocol.commands import Timeouts

    agreement = _agreement(study, codebook, method, seed, rounds, set_)
    if grace < 0 or approval < 0:
        raise RequestError("--grace and --wait-for-approval are seconds: choose 0 or more")
    if not 1 <= sign_of_life <= 600:
        raise RequestError("--sign-of-life is in seconds: choose 1 to 600")
    if to_the_end and not wait:
        raise RequestError("--to-the-end waits for every job: leave --wait 0 out")
    chosen = options.split(members)
    console = options.terminal(stderr=True)
    with console.status("submitting") if console.is_terminal else Console(quiet=True).status("") as state:

        def once() -> jobs.JobOutcome:
            return jobs.submit(
                kit, agreement, job_rounds or agreement.rounds, min_sites,
                Timeouts(sign=sign_of_life, grace=grace, approval=approval),
                wait=wait + approval if wait else None, progress=state.update, members=chosen,
            )  # fmt: skip

        done = jobs.to_the_end(once, agreement.rounds, say) if to_the_end else once()
    if out is not None and done.report is not None:
        files.write_json(out, done.report)
    summary = {"job": done.job, "status": done.status, "report": done.report}
    if not emit(as_json, summary, f"job {done.job}: {done.status}"):
        _show_report(done.report, chosen or provisioned(kit))
    if done.report is not None and "error" in done.report:
        raise RequestError(f"the job did not run: {done.report['error']}")
    if done.ran and done.status != jobs.COMPLETED:
        say("its rounds are done; a site's process was gone when it ended")
    elif done.ended and done.status != jobs.COMPLETED:
        raise RequestError(f"the job ended as {done.status}; look into the relay's and the sites' logs")


def _show_report(report: dict[str, Any] | None, expected: tuple[str, ...] = ()) -> None:
    """The rounds of a job, who was left out, and which of the expected sites were not connected."""
    report = report or {}
    absent = sorted(set(expected) - set(report.get("members", expected)))
    left_out = {**report.get("left_out", {}), **dict.fromkeys(absent, "it was not connected to the relay")}
    show_rows([
        {
            "round": r["round"],
            "sites": len(r["present"]),
            "missing": ", ".join(sorted({*r["missing"], *left_out})) or "-",
            "waited for": ", ".join(f"{name} {seconds:g} s" for name, seconds in r["late"].items()) or "-",
            "bytes": r["bytes"],
            "validation score": r["validation"],
            "of sites": r["scored"],
        }
        for r in report.get("rounds", [])
    ])  # fmt: skip
    for name, value in sorted(report.get("validation", {}).items()):
        say(f"{name}: validation score {value:.3f}")
    for name, why in sorted(left_out.items()):
        say(f"{name} was left out: {why}")


def certify(
    request: Annotated[Path, typer.Argument(help="A member's request.")],
    kits: Kits,
    fingerprint: Annotated[str, "Fingerprint that the member read out; needed without its old key."] = "",
    as_json: options.Json = False,
) -> None:
    """Give a member a certificate for the key that it has made itself (`abps site request`).

    Send the certificate back; it is no secret. The relay then refuses the old one.
    """
    need_engine()
    from abps.sites.consent.keys import read_request
    from abps.sites.flare.kits import Authority

    authority, asked = Authority(kits), read_request(request)
    path, until = authority.certify(asked, fingerprint)
    facts = {"member": asked.member, "until": until.isoformat(), "certificate": str(path)}
    line = f"the new certificate of {asked.member}, good until {until:%Y-%m-%d}: {path}"
    emit(as_json, facts, line, _COPY_LIST.format(authority.list))


def revoke(
    member: Annotated[str, typer.Argument(help="A site, or an operator's address.")],
    kits: Kits,
    as_json: options.Json = False,
) -> None:
    """Expel a member without making a new network.

    The relay refuses its certificate, jobs leave it out from the next round on, and every site that has seen
    the authority's signed list takes nothing from it. `abps site provision` brings it back.
    """
    need_engine()
    from abps.sites.flare.kits import Authority

    authority = Authority(kits)
    authority.revoke(member)
    lines = (f"{member} is no longer a member", _COPY_LIST.format(authority.list))
    emit(as_json, {"member": member, "list": str(authority.list)}, *lines)


_COPY_LIST = "if the relay's kit is on another machine, copy {} into its folder `local`; it may run on"


def rehearse(
    out: Annotated[Path, "A new folder: kits, tables, stores, models, pages."] = Path("abps-rehearsal"),
    sites: Annotated[int, "Number of hospitals."] = 4,
    method: Method = METHOD,
    rounds: Rounds = None,
    stays: Annotated[int, "Stays per hospital, on average."] = 300,
    seed: Seed = 11,
    set_: options.Settings = None,
    limit: Annotated[float, "Give up after so many seconds."] = 180.0,
    prepare_for: Annotated[str, "Only write kits and tables, for a relay of this name (port 8002)."] = "",
    as_json: options.Json = False,
) -> None:
    """Rehearse a federation on this machine: certificates, kits, processes with mutual TLS, a job, models.

    The hospitals' tables are synthetic (icu-synthetic). No container and no other machine is needed;
    everything that is started is stopped again. Ends with report.html, and a page and a model for every
    hospital.
    """
    need_engine()
    from abps.cli.site_command import own_file, study_store
    from abps.fitted.handover import check_new
    from abps.lab import rehearsal
    from abps.report.document import render
    from abps.report.site_page import site_report
    from abps.sites.flare.app import RESULT

    settings, rounds = study_settings(method, set_, rounds)
    plan = rehearsal.RehearsalPlan(sites, "rehearsal", method, settings, rounds, seed, stays, limit)
    if prepare_for:
        if not rehearsal.is_prepared(out):  # containers that are started again go on with what they have
            check_new(out)
            rehearsal.prepare(out, plan, prepare_for, 8002)
        emit(as_json, {"kits": str(out / "kits")}, f"kits and tables are in {out}")
        return
    check_new(out)
    progress = (lambda line: None) if as_json else say
    done = rehearsal.rehearse(out, plan, progress)
    assert done.outcome.report is not None
    files.write_json(out / RESULT, done.outcome.report)
    rows = []
    for name, kit in done.network.sites.items():
        with study_store(kit, plan.study) as store:
            left = site_report(store, own_file(kit), out / "sites" / name)
        card = "" if left.model is None else (left.model / "card.html").relative_to(out).as_posix()
        page = left.page.relative_to(out).as_posix()
        rows.append({"site": name, "auroc": left.auroc, "page": page, "model": card})
        auroc = "not defined" if left.auroc is None else f"{left.auroc:.3f}"
        progress(f"{name}: AUROC {auroc} on its own test rows; {left.page}")
    page_path, title = out / "report.html", f"A rehearsal with {len(rows)} hospitals"
    page = render("job.html", title=title, report=done.outcome.report, sites=rows, took=done.took)
    files.write_text(page_path, page)
    summary = {"page": str(page_path), "status": done.outcome.status, "sites": rows, "took": done.took}
    emit(as_json, summary, f"wrote {page_path}")


def propose(
    kit: OperatorKit,
    kits: Kits,
    study: Named,
    codebook: Codebooks,
    out: Annotated[Path, "Write the study, for all members, here."],
    members: Members = "",
    method: Method = METHOD,
    seed: Seed = 11,
    rounds: Rounds = None,
    set_: options.Settings = None,
    as_json: options.Json = False,
) -> None:
    """Write a study as one signed file for all members. It holds no secret.

    Example: abps site courier propose --kit operator --kits kits --study icu --codebook a.json --out x.study
    """
    need_engine()
    from abps.sites.courier.study import propose_study

    agreement = _agreement(study, codebook, method, seed, rounds, set_)
    digest = propose_study(kit, kits, agreement, options.split(members), out)
    emit(as_json, {"proposal": digest, "file": str(out)}, f"wrote {out}: proposal {digest[:16]}")


def _agreement(
    study: str, codebooks: list[Path], method: str, seed: int, rounds: int | None, pairs: list[str] | None
) -> Agreement:
    from abps.data.codebook import merged
    from abps.sites.consent.agreement import Agreement

    book = merged([read_codebook(path) for path in codebooks])
    settings, rounds = study_settings(method, pairs, rounds)
    agreement = Agreement(study, method, book, seed, rounds, settings)
    agreement.config()
    return agreement


def study_settings(method: str, pairs: list[str] | None, rounds: int | None) -> tuple[dict[str, str], int]:
    """The settings and rounds of a study; sites send masked sums by default."""
    from abps.methods.settings import configure

    settings = options.settings(pairs, None)
    config = configure(method, settings, rounds)
    if config.kind in ("coordinated", "star"):
        settings.setdefault("secure", "yes")
    return settings, config.stop.rounds


COMMANDS = (provision, submit, rehearse, certify, revoke)
