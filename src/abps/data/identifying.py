"""Columns that name people: by what they are called, by how few share a value, by what the values look like.

Such columns never enter a codebook that leaves a site: no name, date of birth, address or free text does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

#: A text this long, in characters or words, is a sentence and not a level.
LONG, WORDS = 60, 8

#: Values that look so in at least this share of a column's known rows decide about the column.
MOSTLY = 0.2

_CALLED = re.compile(
    r"(^|[\W_])((pat(ient)?|full|first|last|sur|fore|given|family|maiden|middle)[\W_]?names?|name|nom|prenom"
    r"|vorname|nachname|dob|birth[\W_]?(date|day)|date[\W_]?of[\W_]?birth|born([\W_]?on)?|geburtsdatum"
    r"|ssn|social[\W_]?security|mrn|passport|insurance[\W_]?(no|nr|number)|address|street|strasse|post[\W_]?code"
    r"|zip([\W_]?code)?|phone|telephone|mobile|fax|e?[\W_]?mail|iban|ip[\W_]?address|comments?|notes?|free[\W_]?text"
    r"|remarks?|nhs[\W_]?(no|nr|number)|medicare[\W_]?(no|nr|number|id)|svnr|ahv[\W_]?(no|nr)?"
    r"|(sozial)?versicherungs[\W_]?(nr|nummer)|versichertennummer|fallnummer|patienten[\W_]?(nr|nummer|name)"
    r"|geburtstag|geb[\W_]?(dat|datum)|adresse|plz|postleitzahl|telefon|handy|bemerkung(en)?|kommentar"
    r"|apellidos?|nombres?|cognome|geboortedatum|achternaam|voornaam|date[\W_]?de[\W_]?naissance)([\W_]|$)",
    re.IGNORECASE,
)
#: Where one word of a name such as "homePhone" ends and the next begins.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DATE = re.compile(r"^\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))(\D|$)")
_REACHED = re.compile(r"@\w+\.\w+|^\+?[\d ()/-]{9,}$|https?://")
_PERSON = re.compile(
    r"^\s*((mr|mrs|ms|miss|dr|prof|herr|frau|mme|sr|sra)\.?\s+\w+|[^\W\d_][\w'’-]+,\s*[^\W\d_][\w'’.-]*\.?)",
    re.IGNORECASE,
)

#: Given names that are common somewhere and mean little else: "Anna Huber" is somebody, "Medical Ward" not.
_NAMES = """
aaron abdul adam agnes ahmed aisha albert alejandro alessandro alexander alexandra ali alice amelia ana
andrea andreas andrew angela anja ann anna anne anthony antonio arthur astrid barbara ben benjamin bernd bob
boris brian bruno carl carla carlos carmen carol caroline catherine charles charlotte chen chiara chloe
christian christina christopher claire clara claudia daniel david deborah dennis diana dieter dirk dmitri
dominik donald dorothy edward elena elisabeth elizabeth ella emil emily emma eric erik erika ernst eva
fatima felix ferdinand florian francesca francesco frank franz frida friedrich fritz gabriel gabriele georg
george gerhard giovanni giulia giuseppe greta guido gunther hanna hannah hans harald hassan heidi heinrich
heinz helen helena helga henry herbert hiroshi holger hugo ibrahim igor ines ingrid irina isabel isabella
ivan jack jacob jakob james jan jane jean jennifer jens jessica joan joao johann johannes john jonas jose
josef joseph juan julia julian jurgen jürgen karen karin karl katarina katharina kathrin kevin klaus kumar
lars laura lea lena leon leonie linda lisa lorenzo louis louise luca lucas lucia luis lukas magdalena
manfred manuel marco margaret maria marie marina mario markus marta martha martin martina mary mateo matteo
matthew matthias max maximilian mehmet mei melanie michael michelle miguel mohamed mohammed monika moritz
muhammad mustafa nadia nancy natalia nathalie nicholas nico nicolas nina noah nora oksana olaf olga oliver
olivia omar oscar oskar otto pablo paolo patricia patrick paul paula paulo pavel pedro peter petra philip
philipp pierre priya rachel rainer ralf raphael rebecca regina renate richard robert roberto roland rosa
rudolf ruth sabine samuel sandra sara sarah sebastian sergei silvia simon simone sofia sonja sophia sophie
stefan stefanie stephan stephen steven susan susanne svetlana tanja tatiana teresa theo theresa thomas
thorsten tim timo tobias tom torsten ulrich ursula ute valentina vera victoria viktor vincent vladimir
walter werner wilhelm william wolfgang xavier yasmin yuki yusuf zeynep
"""
_GIVEN = frozenset(_NAMES.split())

#: Given names that a column may be called for another reason: max_temp, ana_titre, jan_admissions.
_AMBIGUOUS = frozenset(("ali", "ana", "ben", "carol", "chen", "frank", "jan", "max", "mei", "rosa", "tim"))


def _person(value: str) -> bool:
    """Whether a text is somebody's name: one with a title, "last, first", or two or three words of which the
    first or the last is a given name."""
    if _PERSON.search(value):
        return True
    words = value.split()
    return 2 <= len(words) <= 3 and bool({words[0].lower(), words[-1].lower()} & _GIVEN)


def _called_after(name: str) -> bool:
    """Whether a column is called after somebody: a given name and a word beside it, both capitalised."""
    words = re.split(r"[\W_]+", _HUMP.sub(" ", name))
    return any(
        first[:1].isupper()
        and last[:1].isupper()
        and bool({first.lower(), last.lower()} & (_GIVEN - _AMBIGUOUS))
        for first, last in itertools.pairwise(words)
    )


#: How a single value may tell who somebody is.
_LOOKS: tuple[tuple[Callable[[str], object], str], ...] = (
    (_DATE.search, "dates"),
    (_REACHED.search, "addresses or numbers"),
    (_person, "names of people"),
)


def names_somebody(level: str) -> bool:
    """Whether a value looks like somebody, a date or an address, or is a sentence: it is no level then, even
    if many share it and the other values of its column are harmless."""
    return any(bool(seen(level)) for seen, _ in _LOOKS) or len(level) > LONG or len(level.split()) > WORDS


def tells_who(column: pl.Series) -> str:
    """Why a column names people by what it is called or by what its values look like, in half a sentence;
    nothing if it does not."""
    if _CALLED.search(_HUMP.sub("_", column.name)) or _CALLED.search(column.name):
        return "by its name it tells who somebody is"
    if _called_after(column.name):
        return "it is called after somebody"
    if column.dtype not in (pl.String, pl.Categorical):
        return ""
    counted = column.cast(pl.String).drop_nulls().alias("value").value_counts(name="rows")
    values, rows = counted["value"], counted["rows"].to_numpy()
    if not len(values):
        return ""
    for seen, why in _LOOKS:
        if np.average([bool(seen(value)) for value in values.to_list()], weights=rows) >= MOSTLY:
            return f"its values look like {why}"
    long = (values.str.len_chars() > LONG) | (values.str.count_matches(r"\S+") > WORDS)
    return "its values are free text" if np.average(long.to_numpy(), weights=rows) >= MOSTLY else ""


def identifies(column: pl.Series, patient: NDArray[np.int64] | None, floor: int) -> str:
    """Why a column names people, in half a sentence; nothing if it does not.

    patient: (rows,) whose a row is; none: every row is another's.  floor: how many patients must share a
    value of a text for it not to name them.
    """
    told = tells_who(column)
    if told:
        return told
    if column.dtype.is_temporal():
        return "it holds dates"
    if column.dtype not in (pl.String, pl.Categorical):
        return ""
    text = column.cast(pl.String)
    known = text.is_not_null().to_numpy()
    values = text.drop_nulls()
    whose = np.flatnonzero(known) if patient is None else patient[known]
    people = pl.DataFrame({"value": values, "who": whose}).unique()
    shared = people.group_by("value").len()
    few = shared.filter(pl.col("len") < floor)["len"].sum()
    if few > 0.5 * people.height and shared.height > floor:
        return "most of its values are of a few patients each"
    return ""
