"""What the commands of ``abps site`` share: how a kit and a study are named, and how they speak."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated

import typer

from abps.cli import options
from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.sites.consent import sitefile
from abps.sites.store.store import Store

Kit = Annotated[Path, typer.Argument(help="A startup kit, or the folder of a site's abps-site.json.")]
Study = Annotated[str | None, typer.Option(help="The study, if the site takes part in several.")]


def need_engine() -> None:
    """Say what to install where the engine is not."""
    if importlib.util.find_spec("nvflare") is None:
        raise RequestError("NVIDIA FLARE is not installed here; run: pip install 'abps[flare]'")


def say(text: str) -> None:
    """A line for people, beside the output proper."""
    options.terminal(stderr=True).print(text, soft_wrap=True)


def say_not_told(columns: dict[str, str]) -> None:
    """Every column of a site's table that nobody is told of, and why."""
    for name, why in columns.items():
        say(f"the column {name!r} is not in the codebook: {why}")


def own_file(where: Path) -> sitefile.SiteFile:
    """The settings of the site whose kit or folder this is."""
    return sitefile.read((where / "local" if (where / "local").is_dir() else where) / sitefile.FILE)


def study_store(where: Path, study: str | None) -> Store:
    """The store of a study at the site whose kit or folder this is."""
    own = own_file(where)
    if study is not None:
        return Store.look(own.store_of(study))
    found = sorted(Path(own.store).glob("*.sqlite"))
    if len(found) != 1:
        names = ", ".join(path.stem for path in found) or "none yet"
        raise RequestError(f"{own.site} takes part in {len(found)} studies ({names}); name one with --study")
    return Store.look(found[0])


def read_codebook(path: Path) -> Codebook:
    """A codebook that was named on the command line."""
    if not path.is_file():
        raise RequestError(f"--codebook {path}: no such file; `abps site init` writes one at each site")
    try:
        return Codebook.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise RequestError(f"--codebook {path}: {error}") from error
