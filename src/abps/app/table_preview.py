"""What a table looks like and what its columns may be for, before anybody has named one. Prints JSON, in a
process of its own, because a large table must not stay in the server's memory."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import polars as pl

from abps.core.errors import RequestError
from abps.data.reading import read_raw
from abps.data.roles import WORDS, is_called, is_patient_name, normalise

SHOWN, LETTERS = 8, 40  # rows to show, and letters of a cell
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b")  # a date, in any of the usual orders
_BIRTH = re.compile("birth|geburt|naiss|nacim|nascit|dob")  # what dates of birth are called
MOST_CENTERS = 2000  # values up to which a column may name hospitals

#: Names of columns with an outcome, in the languages that ``abps check`` reads.
OUTCOMES = (
    "died", "death", "dead", "mortality", "expired", "deceased", "event", "outcome", "label", "target",
    "verstorben", "gestorben", "tod", "mortalitat", "deces", "decede", "mort", "muerte", "fallecido",
    "defuncion", "decesso", "deceduto", "morto", "obito", "status", "hospital expire flag", "day30",
)  # fmt: skip


def preview(path: Path) -> dict[str, Any]:
    """Columns, first rows, a guess at the roles of columns, and which are known only after the outcome."""
    frame = read_raw(path).frame
    cells = [[_cell(value) for value in row] for row in frame.head(SHOWN).iter_rows()]
    few = {name: frame[name].drop_nulls().n_unique() for name in frame.columns}
    return {
        "rows": frame.height, "columns": frame.columns, "head": cells,
        "roles": guess(frame, few), "late": [n for n in frame.columns if is_late(n)],
    }  # fmt: skip


def is_late(name: str) -> bool:
    return is_called(name, "stay") or (is_called(name, "after") and is_called(name, "time"))


def _is_admission(column: pl.Series) -> bool:
    """Whether a column holds dates, and not those of births or of the end."""
    if not is_called(column.name, "date") or is_late(column.name) or _BIRTH.search(column.name.lower()):
        return False
    known = column.drop_nulls().head(200)
    return column.dtype.is_temporal() or (len(known) > 0 and all(_DATE.match(str(v)) for v in known))


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def guess(frame: pl.DataFrame, values: dict[str, int]) -> dict[str, str]:
    """By role the column that its name and its values (``values``: how many differ, by column) suggest."""
    roles: dict[str, str] = {}
    yes_no = {word.casefold() for word in (*WORDS["yes"], *WORDS["no"])}
    for name in frame.columns:
        plain = normalise(name)
        two = values[name] == 2 and all(
            str(v).casefold() in yes_no for v in frame[name].drop_nulls().unique().to_list()
        )
        words = plain.split()
        if values[name] == 2 and any(each == plain or each in words for each in OUTCOMES):
            roles.setdefault("label", name)
        elif (
            is_called(name, "place") and not two and 2 <= values[name] <= min(MOST_CENTERS, frame.height / 5)
        ):
            roles.setdefault("center", name)
        elif is_patient_name(name):
            roles.setdefault("patient", name)
        elif _is_admission(frame[name]):
            roles.setdefault("time", name)
    return roles


if __name__ == "__main__":
    try:
        print(json.dumps(preview(Path(sys.argv[1])), ensure_ascii=False))
    except RequestError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
