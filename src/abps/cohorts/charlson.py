"""Charlson comorbidities from ICD-9 and ICD-10 codes.

A code belongs to a category if it begins with one of its prefixes, within its ICD version. Codes are text
without dots; a leading zero is part of the code (07070 is hepatitis, 7070 a pressure ulcer).
"""

import re
from dataclasses import dataclass
from functools import cache

import msgspec
import polars as pl

from abps.cohorts.tidy import Variable, shipped
from abps.core.errors import RequestError

#: The reading of the paper's 12 categories, all 17 of the index, or none.
CHOICES = ("12", "17", "none")


@dataclass(frozen=True)
class CharlsonTable:
    """categories: category -> ICD version (9 or 10) -> prefixes. paper: 12 columns and what they unite."""

    categories: dict[str, dict[int, tuple[str, ...]]]
    paper: dict[str, tuple[str, ...]]

    def columns(self, choice: str) -> dict[str, tuple[str, ...]]:
        """Column name -> the categories it unites, for one of :data:`CHOICES`."""
        if choice not in CHOICES:
            raise RequestError(f"charlson={choice!r}: choose one of {', '.join(CHOICES)}")
        all_17 = {name: (name,) for name in self.categories}
        united = self.paper if choice == "12" else all_17 if choice == "17" else {}
        return {f"cci_{name}": parts for name, parts in united.items()}


@cache
def table() -> CharlsonTable:
    return msgspec.convert(shipped("charlson"), CharlsonTable, str_keys=True)


def dictionary(choice: str, origin: str) -> list[Variable]:
    """Dictionary lines of the columns.  origin: where the codes come from, in words."""
    return [
        Variable(name, "feature", "0/1", f"{' or '.join(p.replace('_', ' ') for p in parts)}; {origin}")
        for name, parts in table().columns(choice).items()
    ]


def categories_of(code: str, version: int) -> tuple[str, ...]:
    """The categories of one code.

    >>> categories_of("40403", 9)
    ('congestive_heart_failure', 'renal')
    """
    return tuple(
        name for name, prefixes in table().categories.items() if code.startswith(prefixes.get(version, ()))
    )


def present(coded: pl.DataFrame) -> pl.DataFrame:
    """(stay, category) of diagnoses (stay, icd_code as text, icd_version 9 or 10)."""
    codes = coded.select("icd_code", "icd_version").unique().drop_nulls()
    matched = [
        (code, version, category)
        for code, version in codes.iter_rows()
        for category in categories_of(normal(code), version)
    ]
    kind = coded.schema["icd_version"]
    schema = {"icd_code": pl.String(), "icd_version": kind, "category": pl.String()}
    hits = pl.DataFrame(matched, schema=schema, orient="row")
    return coded.join(hits, on=["icd_code", "icd_version"]).select("stay", "category").unique()


def flags(found: pl.DataFrame | None, stays: pl.Series, choice: str) -> pl.DataFrame:
    """One row of 0/1 comorbidities for every stay, in the order given.

    found: (stay, category), as :func:`present` has them; None: nobody looked, and all are unknown.
    """
    result = pl.DataFrame({"stay": stays})
    for name, parts in table().columns(choice).items():
        flag: pl.Expr = pl.lit(None, pl.Int8)
        if found is not None:
            having = found.filter(pl.col("category").is_in(list(parts)))["stay"].unique()
            flag = pl.col("stay").is_in(having.implode()).cast(pl.Int8)
        result = result.with_columns(flag.alias(name))
    return result


def normal(code: str) -> str:
    """A code as the table has it: upper case, no dot, no blanks."""
    return code.replace(".", "").strip().upper()


def version_of(dotted: str) -> int:
    """The ICD version of a code written with its dot, where the source does not say it.

    ICD-9 has three digits before the dot (or V and two, or E and three); ICD-10 a letter and two.

    >>> [version_of(c) for c in ("428.0", "I50.9", "V42.7", "E849.0", "E87.2", "E46")]
    [9, 10, 9, 9, 10, 10]
    """
    code = dotted.strip().upper()
    return 9 if re.match(r"\d|V|E\d{3}(\.|$)", code) else 10


#: So many numeric ICD-9 codes without one that begins with 0 are no accident (in MIMIC-IV 3 % do).
_ENOUGH = 300


def lost_zeros(codes: pl.DataFrame) -> list[str]:
    """A warning if ICD-9 codes (undotted icd_code, icd_version) have lost their leading zeros to a
    spreadsheet."""
    numeric = codes.filter(
        (pl.col("icd_version") == 9) & pl.col("icd_code").str.contains(r"^\s*[0-9]+\s*$")
    ).select(pl.col("icd_code").str.strip_chars())
    short = numeric.filter(pl.col("icd_code").str.len_chars() < 3).unique().sort("icd_code")
    if short.height:
        examples = ", ".join(short["icd_code"].head(3).to_list())
        why = f"{short.height} ICD-9 codes have fewer than three digits ({examples}): leading zeros were lost"
    elif numeric.height >= _ENOUGH and not numeric["icd_code"].str.starts_with("0").any():
        many = numeric.height
        why = f"none of {many} numeric ICD-9 codes begins with 0: leading zeros were probably lost"
    else:
        return []
    missed = "comorbidities whose codes begin with 0 are missed; use the diagnoses file as distributed"
    return [f"{why}, and {missed}"]
