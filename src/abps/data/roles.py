"""What the columns of a table are for (label, center, patient, time), and what their names mean.

Names are compared without accents, case and separators (``EntlassungsDatum`` is ``entlassungs_datum``); words
are known in English, German, French, Spanish, Italian and Portuguese (``words.json``).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

import polars as pl

#: The key under which a table's provenance is stored in the Parquet file itself.
PROVENANCE_KEY = "abps.provenance"


class RoleOptions(TypedDict, total=False):
    """Roles besides label and center, as functions take them by name; see :class:`Roles`."""

    patient: str | None
    time: str | None
    group: str | None
    drop: Collection[str]
    keep: Collection[str]
    positive: str | None
    outcome: str | None
    duration: str | None


@dataclass(frozen=True)
class Roles:
    """Which columns of a table are not features, and what they are instead.

    keep: columns to learn from although they look like an identifier, a date or a copy of the label.
    positive: the label's value that counts as the event; None: stated rules decide.
    outcome: what the label is (:mod:`abps.data.outcome`); None: survival with a duration, else binary.
    duration: the column with the time to the event, or to censoring.
    """

    label: str
    center: str
    patient: str | None = None
    time: str | None = None
    group: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    positive: str | None = None
    outcome: str | None = None
    duration: str | None = None

    @staticmethod
    def of(label: str, center: str, **more: Unpack[RoleOptions]) -> Roles:
        """From what a function was given by name; a single column to drop or keep may be a plain string."""
        plain: dict[str, Any] = dict(more)
        for name in ("drop", "keep"):
            given = plain.get(name, ())
            plain[name] = (given,) if isinstance(given, str) else tuple(given)
        return Roles(label, center, **plain)

    def columns(self) -> dict[str, str]:
        names = ("label", "center", "patient", "time", "group", "duration")
        return {name: str(getattr(self, name)) for name in names if getattr(self, name)}


def read_provenance(path: Path) -> dict[str, Any] | None:
    try:
        found = pl.read_parquet_metadata(path).get(PROVENANCE_KEY)
    except (OSError, pl.exceptions.PolarsError):
        return None
    return json.loads(found) if found else None


def recorded_roles(path: Path) -> dict[str, Any]:
    """The roles that a table from ``abps cohort`` or ``abps partition`` carries: label, center, patient,
    time, group, and drop (a list), as far as known."""
    if path.suffix != ".parquet" or not path.is_file():
        return {}
    roles: dict[str, Any] = (read_provenance(path) or {}).get("roles", {})
    return roles


def completed(path: Path, given: Roles) -> Roles:
    """The roles that were given, completed by those that a table of ours carries.

    A column with a recorded role is never a feature, also where another column was chosen in its place.
    """
    own = recorded_roles(path)
    if not own:
        return given
    center = given.center or own["center"]
    made = replace(
        given,
        label=given.label or own["label"],
        center=center,
        patient=given.patient or own.get("patient"),
        time=given.time or own.get("time"),
        group=given.group or (own.get("group") if center == own["center"] else None),
    )
    used = set(made.columns().values())
    recorded = [v for k, v in own.items() if k != "drop"] + list(own.get("drop", ()))
    return replace(made, drop=tuple(dict.fromkeys([*given.drop, *(c for c in recorded if c not in used)])))


# --- names and words ---------------------------------------------------------------------------------

#: Words by what they mean, and patterns of columns' names by what the columns hold.
WORDS: Final[dict[str, Any]] = json.loads(
    resources.files("abps.data").joinpath("words.json").read_text(encoding="utf-8")
)

_HUMP = re.compile(r"(?<=[a-zà-ÿ0-9])(?=[A-ZÀ-Þ])")
_SEPARATOR = re.compile(r"[\W_]+")


def normalise(name: str) -> str:
    """A name in lower case, without accents, its words separated by single spaces.

    >>> normalise("AgeAtAdmission"), normalise("Âge_(années)"), normalise("Größe")
    ('age at admission', 'age annees', 'grosse')
    """
    plain = unicodedata.normalize("NFKD", _HUMP.sub(" ", name).replace("ß", "ss"))
    letters = "".join(c for c in plain if not unicodedata.combining(c))
    return _SEPARATOR.sub(" ", letters).strip().lower()


def _pattern(words: list[str], pattern: str) -> re.Pattern[str]:
    """Whole words (an underscore stands for a space), or a pattern."""
    whole = "|".join(word.replace("_", " ") for word in words)
    parts = ([rf"(^| )({whole})( |$)"] if whole else []) + ([pattern] if pattern else [])
    return re.compile("|".join(parts))


_PATTERNS = {name: _pattern(each["words"], each["pattern"]) for name, each in WORDS["columns"].items()}


def is_called(name: str, kind: str) -> bool:
    """Whether a column is called like one of a kind of ``words.json``: age, sex, stay, date, place, id, …

    >>> is_called("Liegedauer", "stay"), is_called("los", "stay"), is_called("glossitis", "stay")
    (True, True, False)
    >>> [is_called(n, "age") for n in ("Alter", "âge", "age_years", "età", "stage", "dosage", "page")]
    [True, True, True, True, False, False, False]
    >>> [is_called(n, "sex") for n in ("Geschlecht", "SEXO", "is_male", "gender", "Essex", "malaria")]
    [True, True, True, True, False, False]
    """
    return bool(_PATTERNS[kind].search(normalise(name)))


def is_patient_name(name: str) -> bool:
    """Whether a column is called like the key of a patient, and not of a stay or case."""
    return is_called(name, "patient") and not is_called(name, "case")
