"""Repairs of cells that were meant as numbers, as dates, or as one and the same level, by stated rules.

Each rule looks at one whole column, because one cell does not show whether its comma separates decimals or
thousands. Every change is counted and shown with examples; what cannot be decided is a warning, or an error
(two units in one column). A column is numeric if at least half of its known cells are numbers once read by
these rules; its other cells are then missing, with a warning. Where only a few different whole numbers occur
among other words (1, 2, other), it is a category.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.reading import GAPS
from abps.data.roles import WORDS

#: What is done to cells, by the name of the rule.
RULES: Mapping[str, str] = {
    "limit": "a detection limit (<0.5, >89) is read as the limit itself",
    "missing word": "in a numeric column, a word for missing (unk, not done, n.b., -) is missing",
    "not a number": "in a numeric column, any other word is missing",
    "decimal comma": "a decimal comma is read as a decimal point",
    "thousands": "a thousands separator is removed",
    "unit": "the one unit of a column is removed",
    "flag": "a flag after a number (H, L, *) is removed",
    "sentinel": "a number that stands for missing (-999, 9999) is missing",
    "spelling": "spellings of one level (case, spaces) are merged into the most frequent",
    "synonym": "synonyms (male and M, yes and Y) are merged into the most frequent",
    "date": "text that holds dates is read as dates",
}

#: Words for missing; only where the other cells are numbers, since "none" may be an answer elsewhere.
MISSING_WORDS = frozenset(WORDS["missing"])

#: Different numbers that a column needs before other words in it are missing values and not names of levels;
#: numbers with decimals are no names, so five of them are enough.
MANY_NUMBERS, MANY_DECIMALS = 10, 5

#: The share of known cells that must be numbers, and the share from which on a category with numbers is
#: worth a warning.
MOSTLY, PARTLY = 0.5, 0.2

#: The share of a numeric column that words for missing may have without a warning.
FEW_MISSING_WORDS = 0.05

_SYNONYMS = [(frozenset(one), frozenset(other)) for one, other in WORDS["synonyms"]]
#: Words that may stand beside a pair of synonyms without belonging to it.
_NEITHER = frozenset(WORDS["neither"])
_UNITS, _FLAGS = frozenset(WORDS["units"]), frozenset(WORDS["flags"])

_CELL = re.compile(
    r"(?P<limit>[<>≤≥]=?|=[<>])?\s*"
    r"(?P<number>[-+]?(?:\d+(?:[.,'’ \u00a0\u202f]\d+)*[.,]?|[.,]\d+)(?:[eE][-+]?\d+)?)"
    r"\s*(?P<unit>(?:[^\W\d_]|[%°*!(\[↑↓]|/[^\W\d_]|(?:10|x ?10)[\^*e]).*)?"
)
_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
_THREE = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
_ENGLISH = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_CONTINENTAL = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+,\d+|[-+]?\d{1,3}(?:\.\d{3}){2,}")
_SPACED = re.compile(r"[-+]?\d{1,3}(?:['’ \u00a0\u202f]\d{3})+(?:[.,]\d+)?")

#: So many formats of dates may stand in one column.
MANY_FORMATS = 4

_DATES = (
    "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M",
    "%Y-%m-%d", "%d.%m.%Y", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d-%b-%Y", "%Y%m%d",
)  # fmt: skip


@dataclass(frozen=True)
class Repair:
    """What one rule did to one column.  examples: a cell before and after."""

    column: str
    rule: str
    cells: int
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class RepairResult:
    """A column after all rules, what they did, and what remains doubtful (sentences)."""

    values: pl.Series
    repairs: tuple[Repair, ...] = ()
    doubts: tuple[str, ...] = ()


#: A change to one column: the rule, a cell before and after, and how many cells were like it.
_Change = tuple[str, str, str, int]


def _repairs(column: str, changes: Sequence[_Change]) -> tuple[Repair, ...]:
    by_rule = {rule: [change[1:] for change in changes if change[0] == rule] for rule in RULES}
    return tuple(
        Repair(column, rule, sum(n for *_, n in found), tuple((a, b) for a, b, _ in found[:3]))
        for rule, found in by_rule.items()
        if found
    )


def repair_column(column: pl.Series) -> RepairResult:
    """A column that may become a feature, after all rules."""
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        text = column.cast(pl.String).str.strip_chars()
        text = text.set(text.is_in(list(GAPS)).fill_null(False), None)
        found = _numbers(text) or _dates(text)
        if found is None:
            return _levels(text)
        if found.values.dtype.is_numeric():
            more = _sentinels(found.values)
            return RepairResult(more.values, found.repairs + more.repairs, found.doubts + more.doubts)
        return found
    if column.dtype.is_numeric():
        return _sentinels(column)
    return RepairResult(column)


def merge_spellings(column: pl.Series) -> RepairResult:
    """A column of names (of centers): spellings that differ in case or spaces only are one."""
    if column.dtype not in (pl.String, pl.Categorical, pl.Enum):
        return RepairResult(column)
    return _merge(column.cast(pl.String).str.strip_chars(), [("spelling", {})])


def _counts(text: pl.Series) -> dict[str, int]:
    """Every known cell and how often it occurs, the most frequent first, ties by the alphabet."""
    known = text.drop_nulls().alias("value")  # the column itself may be called count
    pairs = known.value_counts().sort(["count", "value"], descending=[True, False])
    return {str(value): int(n) for value, n in pairs.iter_rows()}


@dataclass(frozen=True)
class _Cell:
    number: str
    limit: bool
    unit: str


def _parse(text: str) -> _Cell | None:
    """A cell's parts if it is one number, with or without a limit and a unit."""
    match = _CELL.fullmatch(text.replace("−", "-"))
    if match is None:
        return None
    unit = re.sub(r"\s+", "", match["unit"] or "").casefold().replace("μ", "µ").strip("[]")
    return _Cell(match["number"].strip(), bool(match["limit"]), unit)


def _numbers(text: pl.Series) -> RepairResult | None:
    """A column of text as numbers, or as a category that holds some; None if it is neither."""
    counts = _counts(text)
    cells = {value: _parse(value) for value in counts}
    parsed = {value: cell for value, cell in cells.items() if cell is not None}
    if not parsed:
        return None
    decode, doubts = _notation(text.name, {cell.number: counts[v] for v, cell in parsed.items()})
    numbers = {value: decode(cell.number) for value, cell in parsed.items()}
    words = [v for v in counts if numbers.get(v) is None and not _is_missing_word(v)]
    gaps = [v for v in counts if numbers.get(v) is None and _is_missing_word(v)]
    known = sum(counts.values()) - sum(counts[v] for v in gaps)
    good = sum(counts[v] for v, number in numbers.items() if number is not None)
    different = {number for number in numbers.values() if number is not None}
    units = Counter[str]()
    for value, cell in parsed.items():
        if numbers[value] is not None:
            units[cell.unit] += counts[value]
    if good == 0 or good < MOSTLY * known:
        if good > PARTLY * known and len(different) > MANY_NUMBERS:
            doubt = (
                f"the column {text.name!r} holds numbers in {good} and words such as {words[0]!r} in "
                f"{known - good} of {known} cells; it is used as a category"
            )
            return _levels(text, (doubt,))
        return None
    flags = _one_unit(text.name, units, different, bool(words))
    if flags is None:
        return None
    changes = [*_number_changes(counts, parsed, numbers, flags)]
    missing = sum(counts[v] for v in gaps)
    if words or missing > FEW_MISSING_WORDS * (known + missing):
        shown = sorted([*words, *gaps], key=lambda v: -counts[v])
        doubts = (
            *doubts,
            f"{text.name!r}: {sum(counts[v] for v in shown)} of {known + missing} cells of this numeric "
            f"column hold words ({', '.join(map(repr, shown[:4]))}{', …' * (len(shown) > 4)}); they are read "
            "as missing",
        )
    named = sorted(unit for unit in units if unit)
    if 0 < units[""] < sum(units.values()) and named and not flags:
        doubts = (
            *doubts,
            f"{text.name!r}: {units[named[0]]} cell(s) have the unit {named[0]!r} and {units['']} have none; "
            f"all are read as {named[0]}",
        )
    values = text.replace_strict(
        list(counts), [numbers.get(v) for v in counts], default=None, return_dtype=pl.Float64
    ).alias(text.name)
    return RepairResult(values, _repairs(text.name, changes), tuple(doubts))


def _one_unit(name: str, units: Counter[str], different: set[float], words: bool) -> bool | None:
    """Whether what stands after the numbers are flags (H, L); None if the column is no numeric one."""
    named = {unit for unit in units if unit}
    decimals = sum(number % 1 != 0 for number in different) >= MANY_DECIMALS
    one_unit = len(named) <= 1 and named <= _UNITS
    if len(different) <= MANY_NUMBERS and not (one_unit and (decimals or not words)):
        return None  # 1A and 2B, or 1, 2 and other: names of levels
    flags = bool(named) and named <= _FLAGS
    if len(named) > 1 and not flags:
        if not named <= _UNITS:
            return None
        shown = " and ".join(f"{unit!r} ({units[unit]} cells)" for unit in sorted(named)[:3])
        raise RequestError(
            f"the column {name!r} holds numbers in more than one unit: {shown}; convert them to one unit, or "
            f"leave the column out with drop={name}"
        )
    return flags


def _number_changes(
    counts: Mapping[str, int], parsed: Mapping[str, _Cell], numbers: Mapping[str, float | None], flags: bool
) -> Iterator[_Change]:
    for value, n in counts.items():
        number = numbers.get(value)
        if number is None:
            yield "missing word" if _is_missing_word(value) else "not a number", value, "missing", n
            continue
        shown, cell = f"{number:g}", parsed[value]
        if cell.limit:
            yield "limit", value, shown, n
        if cell.unit:
            yield "flag" if flags else "unit", value, shown, n
        if not _PLAIN.fullmatch(cell.number):
            comma = bool(_COMMA.fullmatch(cell.number)) and abs(number) == abs(_with_point(cell.number))
            yield "decimal comma" if comma else "thousands", value, shown, n


def _is_missing_word(value: str) -> bool:
    return _folded(value) in MISSING_WORDS


def _with_point(number: str) -> float:
    return float(number.replace(",", "."))


def _notation(name: str, numbers: Mapping[str, int]) -> tuple[Callable[[str], float | None], tuple[str, ...]]:
    """How the numbers of one column are to be read, and what is doubtful about it."""
    single = [t for t in numbers if _COMMA.fullmatch(t)]
    unclear = [t for t in single if _THREE.fullmatch(t)]
    clear_decimal = len(unclear) < len(single)
    clear_thousands = any(_ENGLISH.fullmatch(t) and not _THREE.fullmatch(t) for t in numbers)
    points = any("." in t and _PLAIN.fullmatch(t) for t in numbers)
    doubts: tuple[str, ...] = ()
    if clear_decimal:
        thousands = False
    elif clear_thousands or points:
        thousands = True
    else:
        # Thousands are rarely in every cell; three decimals are in every cell or in none.
        thousands = len(unclear) < len(numbers)
    if unclear and not clear_decimal and not clear_thousands:
        meant = f"{1000 * _with_point(unclear[0]):g}" if thousands else f"{_with_point(unclear[0]):g}"
        doubts = (
            f"{name!r}: {unclear[0]!r} may mean thousands or decimals; it is read as {meant}; if that is "
            "wrong, write it without the comma",
        )

    def decode(text: str) -> float | None:
        if _PLAIN.fullmatch(text):
            return float(text)
        if _COMMA.fullmatch(text) and not (thousands and _THREE.fullmatch(text)):
            return _with_point(text)
        if _ENGLISH.fullmatch(text):
            return float(text.replace(",", ""))
        if _CONTINENTAL.fullmatch(text):
            return float(text.replace(".", "").replace(",", "."))
        if _SPACED.fullmatch(text):
            return float(re.sub(r"['’ \u00a0\u202f]", "", text).replace(",", "."))
        return None

    return decode, doubts


def _dates(text: pl.Series) -> RepairResult | None:
    """A column of text as dates, if all known cells are; cells of one shape (digits apart) have one form."""
    known = text.drop_nulls()
    first = known[0] if len(known) else ""
    if not any(c.isdigit() for c in first) or len(first) < 8:
        return None
    shapes = text.str.replace_all(r"\d+", "0")
    parts, doubts, examples = list[pl.Series](), list[str](), list[tuple[str, str]]()
    for shape in shapes.drop_nulls().unique(maintain_order=True).head(MANY_FORMATS + 1).to_list():
        cells = text.set((shapes != shape).fill_null(True), None)
        read = {form: _moments(cells, form) for form in _DATES}
        fitting = [form for form, values in read.items() if values.null_count() == cells.null_count()]
        if not fitting or len(examples) == MANY_FORMATS:
            return None
        form, first = fitting[0], str(cells.drop_nulls()[0])
        if any(not read[other].equals(read[form]) for other in fitting[1:]):
            doubts.append(
                f"{text.name!r}: the dates may be day/month or month/day ({first!r}); they are read as "
                f"{form.replace('%', '')}"
            )
        parts.append(read[form] if "%H" in form else read[form].cast(pl.Date))
        examples.append((first, str(parts[-1].drop_nulls()[0])))
    if len(examples) > 1:
        shown = " and ".join(repr(before) for before, _ in examples)
        doubts.insert(
            0, f"{text.name!r}: dates in {len(examples)} formats ({shown}); each is read by its own"
        )
    values = pl.select(pl.coalesce(parts)).to_series().alias(text.name)
    return RepairResult(values, (Repair(text.name, "date", len(known), tuple(examples)),), tuple(doubts))


def _moments(text: pl.Series, form: str) -> pl.Series:
    return text.str.strptime(pl.Datetime("us"), form, strict=False)


def not_a_date(text: pl.Series) -> str:
    """The first known cell that is a date in no format that we know, or else the first."""
    known = text.drop_nulls()
    read = pl.select(pl.coalesce([_moments(known, form) for form in _DATES])).to_series()
    return str([*known.filter(read.is_null()), known[0]][0])


def _folded(level: str) -> str:
    return re.sub(r"[\s_]+", " ", level).strip().casefold()


def _levels(text: pl.Series, doubts: tuple[str, ...] = ()) -> RepairResult:
    """A category: one level for all its spellings, and for its synonyms where the column has no others."""
    seen = {_folded(level) for level in _counts(text)}
    rules: list[tuple[str, Mapping[str, str]]] = [("spelling", {})]
    for one, other in _SYNONYMS:
        if seen & one and seen & other and seen <= one | other | _NEITHER:
            rules.append(("synonym", dict.fromkeys(one, "one") | dict.fromkeys(other, "other")))
            break
    merged = _merge(text, rules)
    return RepairResult(merged.values, merged.repairs, doubts)


def to_levels(column: pl.Series, levels: Iterable[str]) -> pl.Series:
    """A column as text, its cells spelled as the agreed levels are where they mean one of them."""
    text = column.cast(pl.String).str.strip_chars()
    text = text.set(text.is_in(list(GAPS)).fill_null(False), None)
    wanted = {_folded(level): level for level in levels}
    for pair in _SYNONYMS:
        for words in pair:
            agreed = [level for folded, level in wanted.items() if folded in words]
            # One of the pair may not be a level of its own: it is the absence of the other.
            if len(agreed) == 1 and set(wanted) <= pair[0] | pair[1] | _NEITHER:
                wanted = dict.fromkeys(words, agreed[0]) | wanted
    meant = {cell: wanted.get(_folded(cell), cell) for cell in _counts(text)}
    return text.replace(meant) if meant else text


def _merge(text: pl.Series, rules: Iterable[tuple[str, Mapping[str, str]]]) -> RepairResult:
    """Levels of one key become their most frequent spelling.  rules: by name, the keys of levels that are not
    themselves (without case and spaces)."""
    counts = _counts(text)
    changes: list[_Change] = []
    now = {level: level for level in counts}
    for rule, other in rules:
        key = {level: other.get(_folded(level), _folded(level)) for level in now.values()}
        together: dict[str, Counter[str]] = {}
        for level, n in counts.items():
            together.setdefault(key[now[level]], Counter())[now[level]] += n
        chosen = {k: min((-n, level) for level, n in c.items())[1] for k, c in together.items()}
        for level, n in counts.items():
            after = chosen[key[now[level]]]
            if after != now[level]:
                changes.append((rule, now[level], after, n))
                now[level] = after
    return RepairResult(text.replace(now), _repairs(text.name, changes)) if changes else RepairResult(text)


def _sentinels(column: pl.Series) -> RepairResult:
    """Numbers that stand for missing: 9, 8 or 7 repeated, or -1, apart from everything else in the column."""
    values = column.cast(pl.Float64).to_numpy()
    different, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    whole = [str(abs(int(value))) if value == int(value) else "" for value in different.tolist()]
    repeated = np.array([set(digits) in ({"9"}, {"8"}, {"7"}) for digits in whole], dtype=bool)
    like = (different == -1) | repeated
    rest = different[~like]
    if len(rest) < 2 or not like.any():
        return RepairResult(column)
    gone = {
        value: n
        for value, n in zip(different[like].tolist(), counts[like].tolist())
        if _stands_for_missing(value, rest)
    }
    if not gone:
        return RepairResult(column)
    kept = column.set(column.cast(pl.Float64).is_in([*gone]).fill_null(False), None)
    changes = [("sentinel", f"{value:g}", "missing", n) for value, n in gone.items()]
    return RepairResult(kept, _repairs(column.name, changes))


def _stands_for_missing(value: float, rest: NDArray[np.float64]) -> bool:
    if set(rest.tolist()) in ({0.0, 1.0}, {1.0, 2.0}):
        return True  # yes, no, and not known
    if value < 0 <= rest[0]:
        return value != -1 or len(rest) > MANY_NUMBERS
    if rest[0] <= value <= rest[-1] or abs(value) < 10:
        return False
    gap = rest[0] - value if value < rest[0] else value - rest[-1]
    return bool(gap > 3 * (rest[-1] - rest[0]))
