"""Charlson comorbidities from ICD-9 and ICD-10 codes.

A code belongs to a category if it begins with one of the category's prefixes, within its own ICD
version. Codes are text without dots; a leading zero is part of the code (07070 is hepatitis, 7070 a
pressure ulcer).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import polars as pl

from abps.core.errors import RequestError

#: The reading of the paper's 12 categories, all 17 of the index, or none.
CHOICES = ("12", "17", "none")


@dataclass(frozen=True)
class CharlsonTable:
    """prefixes: category -> ICD version (9 or 10) -> prefixes. paper: the 12 columns and what they unite."""

    prefixes: dict[str, dict[int, tuple[str, ...]]]
    paper: dict[str, tuple[str, ...]]

    def columns(self, choice: str) -> dict[str, tuple[str, ...]]:
        """Column name -> the categories it unites, for one of :data:`CHOICES`."""
        if choice == "12":
            return {f"cci_{name}": parts for name, parts in self.paper.items()}
        if choice == "17":
            return {f"cci_{name}": (name,) for name in self.prefixes}
        if choice == "none":
            return {}
        raise RequestError(f"charlson={choice!r}: choose one of {', '.join(CHOICES)}")


@cache
def table() -> CharlsonTable:
    """The shipped table."""
    text = resources.files("abps.cohorts").joinpath("tables/charlson.json").read_text(encoding="utf-8")
    raw = json.loads(text)
    return CharlsonTable(
        prefixes={
            name: {int(version): tuple(codes) for version, codes in versions.items()}
            for name, versions in raw["categories"].items()
        },
        paper={name: tuple(parts) for name, parts in raw["paper"].items()},
    )


def categories_of(code: str, version: int) -> tuple[str, ...]:
    """The categories of one code.

    >>> categories_of("40403", 9)
    ('congestive_heart_failure', 'renal')
    """
    return tuple(
        name for name, prefixes in table().prefixes.items() if code.startswith(prefixes.get(version, ()))
    )


def flags(diagnoses: pl.DataFrame, keys: pl.Series, choice: str) -> pl.DataFrame:
    """For every key one row of 0/1 comorbidities.

    diagnoses: columns key, icd_code (text), icd_version (9 or 10). keys: all keys, in the order wanted;
    a key without diagnoses gets zeros.
    """
    columns = table().columns(choice)
    codes = diagnoses.select("icd_code", "icd_version").unique().drop_nulls()
    matched = [
        (code, version, category)
        for code, version in codes.iter_rows()
        for category in categories_of(normal(code), version)
    ]
    hits = pl.DataFrame(
        matched,
        schema={"icd_code": pl.String, "icd_version": diagnoses.schema["icd_version"], "category": pl.String},
        orient="row",
    )
    present = diagnoses.join(hits, on=["icd_code", "icd_version"]).select("key", "category").unique()
    result = pl.DataFrame({"key": keys})
    for name, parts in columns.items():
        having = present.filter(pl.col("category").is_in(list(parts)))["key"].unique()
        result = result.with_columns(pl.col("key").is_in(having.implode()).cast(pl.Int8).alias(name))
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


def lost_zeros(codes: pl.DataFrame) -> str | None:
    """A warning if ICD-9 codes have lost their leading zeros (a spreadsheet read them as numbers).

    codes: columns icd_code (undotted text) and icd_version, one row per coded diagnosis or per code.
    """
    numeric = codes.filter(
        (pl.col("icd_version") == 9) & pl.col("icd_code").str.contains(r"^\s*[0-9]+\s*$")
    ).select(pl.col("icd_code").str.strip_chars())
    short = numeric.filter(pl.col("icd_code").str.len_chars() < 3).unique().sort("icd_code")
    if short.height:
        examples = ", ".join(short["icd_code"].head(3).to_list())
        return (
            f"{short.height} ICD-9 codes have fewer than three digits ({examples}): leading zeros were lost, "
            "and comorbidities whose codes begin with 0 are missed; use the diagnoses file as distributed"
        )
    if numeric.height >= _ENOUGH and not numeric["icd_code"].str.starts_with("0").any():
        return (
            f"none of {numeric.height} numeric ICD-9 codes begins with 0: leading zeros were probably lost, "
            "and comorbidities whose codes begin with 0 are missed; use the diagnoses file as distributed"
        )
    return None
