"""An analyst's studies on disk: a folder each, with the table, what was chosen, and what came of it."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from abps import files
from abps.app.jobs import Job, command_words
from abps.core.errors import RequestError

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".xlsx", ".xls")  # files that can be read as tables

#: Roles that one column takes, options that take several columns, and options that are words.
ROLES = ("label", "center", "patient", "time", "duration", "group")
LISTS = ("drop", "keep")
TEXTS = ("positive", "outcome")

OUTCOMES = ("", "binary", "survival", "classes", "continuous")  # what an outcome can be; empty: recognised
OFFERS = ("patient", "time", "keep", "drop")  # corrections that the check's sentences name

METHODS = "local-best,fedavg,abps-plus"
DEPTHS = {"quick": "11", "thorough": "11,22,33"}

#: A rough duration of one repeat on two cores: seconds, and cells (rows × columns) per second. Measured on
#: tables of 1,200 to 150,000 rows; the page says "roughly", and tells the time left once it is known.
BASE_SECONDS, CELLS_PER_SECOND = 25.0, 12_000.0


@dataclass(frozen=True)
class Choices:
    """What an analyst has chosen. file: the table in the study's folder."""

    title: str
    file: str
    created: float
    columns: dict[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    positive: str = ""
    outcome: str = ""

    def fixed(self, option: str, column: str) -> Choices:
        if option in LISTS:
            kept = {name: tuple(c for c in getattr(self, name) if c != column) for name in LISTS}
            kept[option] += (column,)
            return replace(self, drop=kept["drop"], keep=kept["keep"])
        if option not in ROLES:
            raise RequestError(f"{option}: not a correction")
        return replace(self, columns={**self.columns, option: column})

    def options(self) -> dict[str, str | list[str]]:
        """What every command that reads the table takes about its columns."""
        lists = {name: list(getattr(self, name)) for name in LISTS}
        found = {**self.columns, **lists, **{name: getattr(self, name) for name in TEXTS}}
        return {name: value for name, value in found.items() if value}

    def flags(self) -> list[str]:
        given = {name: v if isinstance(v, str) else ",".join(v) for name, v in self.options().items()}
        return [word for name, value in given.items() for word in (f"--{name}", value)]


@dataclass(frozen=True)
class AppStudy:
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def choices(self) -> Choices:
        return msgspec.json.decode((self.folder / "choices.json").read_bytes(), type=Choices)

    def choose(self, choices: Choices) -> None:
        """Keep what was chosen; the check of other choices no longer holds."""
        files.write_json(self.folder / "choices.json", asdict(choices))
        (self.folder / "check.json").unlink(missing_ok=True)

    def read(self, file: str) -> Any:
        """One of the study's JSON files; None if it is not there."""
        try:
            return json.loads((self.folder / file).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    @property
    def compare(self) -> Job:
        return Job(self.folder, "compare")

    @property
    def fit(self) -> Job:
        return Job(self.folder, "fit")

    def check_command(self) -> list[str]:
        return ["check", self.choices.file, *self.choices.flags()]

    def compare_command(self, depth: str) -> list[str]:
        data = ["--data", self.choices.file, *self.choices.flags()]
        return ["compare", "--methods", METHODS, *data, "--seeds", DEPTHS[depth], "--out", "study"]

    def study_file(self, depth: str) -> str:
        """The comparison as a file that ``abps compare --config`` reads."""
        seeds = [int(seed) for seed in DEPTHS[depth].split(",")]
        how = {"methods": METHODS.split(","), "seeds": seeds}
        return files.as_toml({"data": [self.choices.file], **self.choices.options(), **how})

    def fit_command(self, method: str) -> list[str]:
        data = ["--data", self.choices.file, *self.choices.flags()]
        return ["fit", "--method", method, *data, "--out", "models"]

    def script(self) -> list[str]:
        """The commands of the whole path, as one types them in the study's folder."""
        steps = [self.check_command(), self.compare_command("thorough"), self.fit_command("abps-plus")]
        return [command_words(step) for step in steps]

    def minutes(self, depth: str) -> int:
        shape = self.read("preview.json")
        repeat = BASE_SECONDS + shape["rows"] * len(shape["columns"]) / CELLS_PER_SECOND
        return round(repeat * len(DEPTHS[depth].split(",")) / 60)

    def models(self) -> dict[str, Path]:
        found = {}
        for path in sorted((self.folder / "models").glob("*/model.json")):
            content = json.loads(path.read_text(encoding="utf-8"))
            found[str(content.get("center") or path.parent.name)] = path.parent
        return found


def table_suffix(name: str) -> str:
    """How the name of a table ends; other files are refused."""
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise RequestError(f"{name}: choose a table, a file that ends in {', '.join(SUFFIXES)}")
    return suffix


def new_study(home: Path, file_name: str) -> AppStudy:
    """A folder for a table that will be put into it.  file_name: as the browser gave it; only its letters and
    its known ending are used, never its path."""
    base = re.split(r"[\\/]", file_name)[-1]
    suffix = table_suffix(base)
    stem = re.sub(r"[^a-z0-9]+", "-", Path(base).stem.lower()).strip("-")[:40] or "table"
    folder = home / f"{stem}-{secrets.token_hex(3)}"
    folder.mkdir(parents=True, mode=0o700)
    study = AppStudy(folder)
    study.choose(Choices(base, f"{stem}{suffix}", time.time()))
    return study


def find_study(home: Path, name: str) -> AppStudy | None:
    """A study by its name; a name that is a path finds nothing."""
    if not re.fullmatch(r"[a-z0-9-]+", name) or not (home / name / "choices.json").is_file():
        return None
    return AppStudy(home / name)


def all_studies(home: Path) -> list[AppStudy]:
    found = [AppStudy(path.parent) for path in home.glob("*/choices.json")]
    return sorted(found, key=lambda study: -study.choices.created)


def remove(study: AppStudy) -> None:
    study.compare.stop()
    study.fit.stop()
    shutil.rmtree(study.folder)


def fixes(check: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The check's warnings and unused columns, each with the corrections it offers as (option, column)."""
    columns = {c["name"]: c for c in check["columns"]}
    sentences = list(check["warnings"])
    said = " ".join(sentences)
    sentences += [
        f"{name!r}: not used, {c['why']}"
        for name, c in columns.items()
        if c["role"] == "feature" and not c["used"] and f"{name!r}: " not in said
    ]
    found = []
    for place, sentence in enumerate(sentences):
        column = max((c for c in columns if sentence.startswith(f"{c!r}: ")), key=len, default="")
        # What the sentence says of options comes last, and is what the buttons do.
        names = {name for name in (column, shlex.quote(column)) if name}
        at = {o: sentence.find(f"{o}={n}") for o in OFFERS for n in names if f"{o}={n}" in sentence}
        offers = [(option, column) for option in at]
        if column and columns[column]["used"] and "drop" not in at:
            offers.append(("drop", column))
        words = sentence[: min(at.values(), default=len(sentence))].rstrip(" (;,")
        found.append({"sentence": words, "warning": place < len(check["warnings"]), "offers": offers})
    return found
