"""``abps site courier``: a study without any connection, by signed and sealed files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from abps import files
from abps.cli import options
from abps.cli.site_command import METHOD, Kit, Study, emit, need_engine, read_codebook
from abps.cli.site_operator import Kits, OperatorKit, study_settings
from abps.core.errors import RequestError

HELP = """A study without any connection: files that people carry (USB, SFTP, mail), signed and sealed.

1. The operator: `abps site courier propose --kit kits/operator@federation.example --kits kits --study icu
--codebook north.json --codebook south.json --codebook east.json --out icu.study`

2. Each hospital: `abps site courier in north icu.study`, then `abps site approve`

3. Each hospital, in turn: `abps site courier out north --out to-send`, and with the files that the others
sent: `abps site courier in north received/*.abps --out to-send`, until it says that the study is over
"""

Out = Annotated[Path, typer.Option(help="Copy the files to send into this folder.")]


def propose(
    kit: OperatorKit,
    kits: Kits,
    study: Annotated[str, typer.Option(help="Name of the study; sites keep one store per study.")],
    codebook: Annotated[list[Path], typer.Option(help="The sites' codebooks; repeat to merge several.")],
    out: Annotated[Path, typer.Option(help="Write the study, for all members, here.")],
    members: Annotated[str, typer.Option(help="Comma-separated sites (default: all).")] = "",
    method: Annotated[str, typer.Option(help="A method that runs between sites.")] = METHOD,
    seed: Annotated[int, typer.Option(help="Seed of the split, the initial weights and all draws.")] = 11,
    rounds: Annotated[int | None, typer.Option(help="Exchanges at most (default: the method's).")] = None,
    set_: options.Settings = None,
    as_json: options.Json = False,
) -> None:
    """Write a study as one signed file for all members. It holds no secret.

    Example: abps site courier propose --kit operator --kits kits --study icu --codebook a.json --out x.study
    """
    need_engine()
    from abps.data.codebook import merged
    from abps.sites.consent.agreement import Agreement
    from abps.sites.consent.keys import read_signer
    from abps.sites.consent.proposal import Proposal, sign
    from abps.sites.courier.study import check_method, study_file
    from abps.sites.flare.authority import Authority

    settings, rounds = study_settings(method, set_, None, rounds)
    book = merged([read_codebook(path) for path in codebook])
    agreement = Agreement(study, method, book, seed, rounds, settings)
    check_method(agreement)
    authority = Authority(kits)
    named = options.split(members) or tuple(authority.sites())
    if len(named) < 3:
        raise RequestError("a study by courier needs three members: name them with --members")
    certificates = {name: authority.certificate(name) for name in named}
    signed = sign(Proposal(study, agreement, named), read_signer(kit))
    files.write_json(out, study_file(signed, certificates))
    digest = signed.proposal.digest()
    emit(as_json, {"proposal": digest, "file": str(out)}, f"wrote {out}: proposal {digest[:16]}")


def take(
    kit: Kit,
    brought: Annotated[list[Path], typer.Argument(help="Files that the operator or other sites wrote.")],
    out: Annotated[Path | None, typer.Option(help="Copy the files to send into this folder.")] = None,
    as_json: options.Json = False,
) -> None:
    """Take files in, and go on as far as they allow. The same file twice changes nothing.

    A file that is altered, foreign or not due is named with the reason and changes nothing (exit code 2).

    Example: abps site courier in north received/*.abps --out to-send
    """
    from abps.sites.courier.study import Courier, bring

    said: list[str] = []
    waiting, last = list(brought), None
    while True:  # a file that is not due may be after another one
        wrong: dict[Path, str] = {}
        touched: dict[str, Courier] = {}
        for path in waiting:
            try:
                sentence, courier = bring(kit, path)
                said.append(sentence)
                if courier is not None:
                    touched[courier.digest] = last = courier
            except RequestError as error:
                wrong[path] = str(error)
        for courier in touched.values():
            courier.go_on()
        if not touched or not wrong:
            break
        waiting = list(wrong)
    if last is not None:
        _report(last, out, said, as_json)
    else:
        emit(as_json, {"said": said}, *said)
    if wrong:
        raise RequestError("; ".join(wrong.values()))


def out(kit: Kit, out: Out, study: Study = None, as_json: options.Json = False) -> None:
    """Write what this site must send now. Until others' files are taken it is the same.

    Example: abps site courier out north --out to-send
    """
    from abps.sites.courier.study import find

    courier = find(kit, study)
    courier.go_on()
    _report(courier, out, [], as_json)


def status(kit: Kit, study: Study = None, as_json: options.Json = False) -> None:
    """Say at which step this site is, and whose files it waits for.

    Example: abps site courier status north
    """
    from abps.sites.courier.study import find

    _report(find(kit, study), None, [], as_json)


def _report(courier: Any, out: Path | None, said: list[str], as_json: bool) -> None:
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


def app() -> typer.Typer:
    """The command and its parts."""
    made = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="markdown")
    for command in (propose, take, out, status):
        made.command("in" if command is take else command.__name__)(command)
    return made
