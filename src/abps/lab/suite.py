"""Federations of the benchmark, described by small TOML files: what a table is, its source, how to read it.

Nothing of the data ships and nothing is downloaded. A real federation is a file, or a source folder of a
cohort, below a folder of the user's; a synthetic one is a generator of which every repeat makes a new world.
"""

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from abps.cohorts.partition import CellRule, Recipe, divide
from abps.core import streams
from abps.core.errors import RequestError, nearest
from abps.data.federation import Federation
from abps.data.roles import Roles
from abps.data.table import federate, load

#: Where the descriptions of the package lie.
OWN: Final = Path(__file__).parent / "federations"


@dataclass(frozen=True)
class Description:
    """One federation of the benchmark, as its TOML file says.

    file: below the data folder, a table or the source folder of a ``cohort``.  sha256: of a table.
    partition: how the cohort becomes centers.  synthetic: a generator with its knobs, instead of a file.
    outcome, duration, drop: as ``abps compare`` takes them.
    rows: cut to whole hospitals with at most so many rows (:func:`smaller`).
    """

    name: str
    title: str = ""
    source: str = ""
    licence: str = ""
    obtain: str = ""
    file: str = ""
    sha256: str = ""
    cohort: str = ""
    label: str = ""
    center: str = ""
    patient: str = ""
    outcome: str = ""
    duration: str = ""
    drop: tuple[str, ...] = ()
    synthetic: str = ""
    rows: int = 0
    partition: Mapping[str, Any] = field(default_factory=dict)

    @property
    def real(self) -> bool:
        """Whether it is made of patients."""
        return not self.synthetic


def read_description(path: Path) -> Description:
    """The description in a TOML file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{path}: not a description of a federation: {error}") from error
    known = {each.name for each in fields(Description)}
    unknown = sorted(set(content) - known)
    if unknown:
        raise RequestError(f"{path}: there is no entry {unknown[0]!r}{nearest(unknown[0], known)}")
    if not content.get("name") or not (content.get("synthetic") or content.get("file")):
        raise RequestError(f"{path}: give name, and file (with label and center) or synthetic")
    if content.get("file") and not (content.get("label") and content.get("center")):
        raise RequestError(f"{path}: name the columns: label and center")
    content["drop"] = tuple(content.get("drop", ()))
    return Description(**content)


def suite(more: Sequence[Path] = ()) -> dict[str, Description]:
    """Every federation by name: those of the package, and the user's own files."""
    found = [read_description(path) for path in sorted(OWN.glob("*.toml"))]
    found += [read_description(path) for path in more]
    names = [each.name for each in found]
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise RequestError(f"two federations are called {twins[0]!r}; rename yours")
    return {each.name: each for each in found}


def missing(description: Description, folder: Path | None) -> str:
    """Why a federation cannot run, with how to get it; nothing if it can."""
    if not description.real:
        return ""
    if folder is None:
        return f"name the folder that holds {description.file} with --data-folder. {description.obtain}"
    path = folder / description.file
    if not path.exists():
        return f"{description.file} is not in {folder}. {description.obtain} ({description.licence})"
    if description.sha256 and hashlib.sha256(path.read_bytes()).hexdigest() != description.sha256:
        return f"{path} is another version than the one described (its SHA-256 differs)"
    return ""


def make_federation(description: Description, folder: Path | None, world: int) -> Federation:
    """The federation; world: which one of a generator, ignored for real tables."""
    if not description.real:
        separator = "," if ":" in description.synthetic else ":"
        made = load(f"{description.synthetic}{separator}seed={world}")
        return replace(made, name=f"{description.name}, world {world}")
    reason = missing(description, folder)
    if reason:
        raise RequestError(f"{description.name}: {reason}")
    assert folder is not None
    path = folder / description.file
    roles = Roles(
        description.label,
        description.center,
        patient=description.patient or None,
        drop=description.drop,
        outcome=description.outcome or None,
        duration=description.duration or None,
    )
    if not description.cohort:
        return replace(load(str(path), roles), name=description.name)
    return replace(_from_cohort(description, path, roles), name=description.name)


def smaller(federation: Federation, rows: int) -> Federation:
    """The federation cut to whole hospitals, drawn by their names, with at most so many rows; 0: as it is.

    Hospitals keep their sizes, because these decide what collaboration is worth.
    """
    sizes = np.bincount(federation.center, minlength=federation.size)
    if not rows or federation.rows <= rows:
        return federation
    order = np.argsort(streams.bits(0, "partition", 0, streams.center_ids(federation.centers)), kind="stable")
    kept = np.sort(order[: max(2, int((np.cumsum(sizes[order]) <= rows).sum()))])
    part = federation.only(np.isin(federation.center, kept))
    groups = None if federation.groups is None else tuple(federation.groups[k] for k in kept)
    names = tuple(federation.centers[k] for k in kept)
    center = np.searchsorted(kept, part.center).astype(np.int32)
    return replace(part, center=center, centers=names, groups=groups)


def _from_cohort(description: Description, path: Path, roles: Roles) -> Federation:
    """A cohort's tidy table, divided into centers as described."""
    from abps.cohorts.recipes import RECIPES

    recipe = RECIPES.find(description.cohort)
    cohort = recipe.build(path, recipe.options, lambda *_: None)
    table, own = cohort.table, cohort.roles
    patient = own.patient
    if description.partition:
        given = dict(description.partition)
        rule = CellRule(small=given.pop("small")) if "small" in given else CellRule()
        cut = Recipe(**{name: _tuple(value) for name, value in given.items()})
        table = divide(table, cut, rule, own.label, patient, own.time).table
    unused = (*roles.drop, *own.drop, *(c for c in (own.center, "group", own.time) if c != roles.center))
    drop = tuple(dict.fromkeys(c for c in unused if c and c in table.columns))
    chosen = replace(roles, patient=patient, drop=drop)
    return federate(table, chosen, description.name)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
