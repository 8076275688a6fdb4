"""``abps site share`` and ``gather``: codebooks reach the operator through the relay."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from abps import files
from abps.cli import options
from abps.cli.site_options import Kit, need_engine, own_file, read_codebook, say

By = Annotated[str, typer.Option(help="The name of the person who decides; it is written down.")]


def register(site: typer.Typer) -> None:
    """Add the commands."""
    for command in (share, gather):
        site.command(command.__name__)(command)


def share(kit: Kit, by: By, as_json: options.Json = False) -> None:
    """Let the network's operators have this site's codebook, as it lies there now. Read it before.

    It leaves when an operator gathers codebooks, in a letter that the relay cannot read. A codebook that is
    written anew has to be shared anew.

    Example: abps site share kits/north --by "Dr. Ada Example"
    """
    from abps.sites.consent import sharing

    own = own_file(kit)
    local = kit / "local" if (kit / "local").is_dir() else kit
    book = sharing.read(local)
    line = sharing.share(own.journal(kit), book, by)
    if as_json:
        told = {"site": own.site, "codebook": line.facts["codebook"], "by": line.facts["by"], "at": line.at}
        typer.echo(json.dumps(told))
        return
    what = f"{len(book.sources)} columns" + (", with their statistics" if book.told else "")
    say(f"{own.site}: {line.facts['by']} shares the codebook ({what}) with operators of this network")


def gather(
    kit: Annotated[Path, typer.Option(help="The operator's startup kit.")],
    study: Annotated[str, typer.Option(help="The study for which codebooks are asked.")],
    out: Annotated[Path, typer.Option(help="Write the common codebook here.")],
    members: Annotated[str, typer.Option(help="The sites to ask, with commas between (default: all).")] = "",
    codebook: Annotated[
        Path | None,
        typer.Option(help="The study's codebook, if it has one: who comes later has to fit it."),
    ] = None,
    patience: Annotated[float, typer.Option(help="Seconds to wait for people to share codebooks.")] = 0.0,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the job itself.")] = 600.0,
    as_json: options.Json = False,
) -> None:
    """Ask the sites for their codebooks and write the common one. Only what sites have shared comes.

    With --codebook, the study's columns stay as they are, and it is said which site does not fit them.

    Example: abps site gather --kit kits/operator@federation.example --study icu --out codebook.json
    """
    need_engine()
    logging.getLogger().addHandler(logging.NullHandler())  # the engine's loggers would use the terminal
    from abps.data.codebook import joining, merged
    from abps.sites.flare.submit import gather as ask

    known = None if codebook is None else read_codebook(codebook)
    files.check_writable(out.absolute().parent)
    console = options.terminal(stderr=True)
    done = ask(kit, study, options.split(members), patience, wait, lambda word: None)
    book = known if known is not None else merged(list(done.books.values()))
    fits = {name: joining(known, own) for name, own in done.books.items()} if known is not None else {}
    files.write_json(out, book.to_json())
    if as_json:
        told = {
            "job": done.job, "from": sorted(done.books), "left_out": done.left_out,
            "columns": len(book.columns), "fits": fits,
        }  # fmt: skip
        typer.echo(json.dumps(told))
        return
    console.print(f"codebooks of {', '.join(sorted(done.books))}: {len(book.columns)} encoded columns")
    for name, why in sorted(done.left_out.items()):
        console.print(f"{name} has sent none: {why}", markup=False, soft_wrap=True)
    for name, sentences in sorted(fits.items()):
        for sentence in sentences:
            console.print(f"{name}: {sentence}", markup=False, soft_wrap=True)
    say(f"wrote {out}")
