"""``abps site explain`` and ``harmonise``: help from the operator, and columns that differ."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer

from abps import files
from abps.cli import options
from abps.cli.site_command import Kit, emit, own_file, read_codebook, say, show
from abps.core.errors import RequestError
from abps.sites.consent.keys import read_root
from abps.sites.store.store import Store


def explain(
    source: Annotated[Path, typer.Argument(help="A startup kit, or a bundle that a site has released.")],
    out: Annotated[Path | None, typer.Option(help="Write the bundle here, to be read.")] = None,
    release: Annotated[Path | None, typer.Option(help="Sign this bundle, which you have read.")] = None,
    by: Annotated[str, typer.Option(help="Name of the person who releases it; it is recorded.")] = "",
    kit: Annotated[Path | None, typer.Option(help="With a bundle: any kit of the network.")] = None,
    as_json: options.Json = False,
) -> None:
    """Say what failed at a site: versions, checks, decline codes, the last log rows without their words.

    No cell, no path, no value of a column is in it. Read it, release it with a name, and send the file to the
    operator, who verifies and prints it: abps site explain bundle.json --kit operator

    Example: abps site explain north --out bundle.json; abps site explain north --release bundle.json --by Ada
    """
    from abps.sites.node.explain import failure_bundle, read_bundle, release_bundle

    if release is not None:
        release_bundle(source, release, by)
        return emit(
            as_json, {"released": str(release)}, f"{by} has released {release}; send it to the operator"
        )
    if source.is_file():
        authority = None if kit is None else read_root(kit)
        if authority is None:
            raise RequestError("name a kit of the network with --kit, to verify who released the bundle")
        found = read_bundle(source, authority)
        say(f"released by {found['site']}, unchanged")
    else:
        found = failure_bundle(source)
    if out is not None:
        files.write_json(out, found)
        say(f"wrote {out}; read it, then release it with --release {out} --by NAME")
    if as_json:
        typer.echo(json.dumps(found))
    else:
        show(
            {**found, "studies": [{k: v for k, v in each.items() if k != "log"} for each in found["studies"]]}
        )
        for each in found["studies"]:
            show({"log": each["log"]})
    return None


def harmonise(
    kit: Kit,
    codebook: Annotated[Path, typer.Option(help="The study's common columns.")],
    study: Annotated[str | None, typer.Option(help="A study whose common scales were counted.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the proposed map here (TOML).")] = None,
    as_json: options.Json = False,
) -> None:
    """Compare this site's table with a study's columns, and propose a map: names, units, levels.

    Units are judged by the codebook's scales or, with --study, by those that all sites counted under masks;
    nothing leaves. The map, TABLE.harmonise.toml beside the table, is applied whenever the table is read.
    Read it, correct it, and run `abps site init` again: the codebook and the proposal hold its digest.

    Example: abps site harmonise north --codebook codebook.json --study icu --out stays.harmonise.toml
    """
    from abps.data import harmonise as maps
    from abps.sites.node import measuring

    own, book = own_file(kit), read_codebook(codebook)
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


COMMANDS = (explain, harmonise)
