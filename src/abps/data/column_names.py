"""What names and words mean in English, German, French, Spanish, Italian and Portuguese (``words.json``).

A name of a column is compared without accents, case and separators: ``EntlassungsDatum``,
``entlassungs_datum`` and ``Entlassungs-Datum`` are the same name.
"""

from __future__ import annotations

import json
import re
import unicodedata
from importlib import resources
from typing import Any, Final

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
    """Whether a column is called like one of a kind of ``words.json``: stay, date, place, person, id, …

    >>> is_called("Liegedauer", "stay"), is_called("los", "stay"), is_called("glossitis", "stay")
    (True, True, False)
    """
    return bool(_PATTERNS[kind].search(normalise(name)))


def is_age(name: str) -> bool:
    """Whether a column holds ages, by its name.

    >>> [is_age(n) for n in ("Alter", "âge", "age_years", "edad", "età", "stage", "dosage", "page")]
    [True, True, True, True, True, False, False, False]
    """
    return is_called(name, "age")


def is_sex(name: str) -> bool:
    """Whether a column holds the patient's sex, by its name.

    >>> [is_sex(n) for n in ("Geschlecht", "sexe", "SEXO", "is_male", "gender", "Essex", "malaria")]
    [True, True, True, True, True, False, False]
    """
    return is_called(name, "sex")


def is_patient_name(name: str) -> bool:
    """Whether a column is called like the key of a patient, and not of a stay or case."""
    return is_called(name, "patient") and not is_called(name, "case")


def is_time_after(name: str) -> bool:
    """Whether a column is called like a time that is known only after the outcome: discharge, death."""
    return is_called(name, "after") and is_called(name, "time")
