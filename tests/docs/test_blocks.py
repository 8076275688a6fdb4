"""What the README and the guides tell to type: Python blocks run, and every option of a command exists.

A fence ``python`` runs as it stands, block after block, in a folder with a made table ``stays.csv`` and
``stays.parquet``. A fence without a language holds commands: those of :data:`RUN` on the pages of
:data:`GUIDES` run, with fewer rounds where that saves minutes; of all others the options must be known to
the command. Commands between real sites are run by ``tests/sites``, those on raw clinical tables by
``tests/cohorts``.
"""

from __future__ import annotations

import functools
import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from abps.cli.main import app, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

#: Commands that run here, and what is added so that they are quick: the last word counts.
RUN = re.compile(r"abps (check|run|compare|methods|fit|predict|table-one|--help|--version)\b")
QUICKLY = {
    "run": ["--rounds", "2"],
    "fit": ["--rounds", "2"],
    "compare": ["--rounds", "1", "--seeds", "11", "--no-references", "--folds", "1"],
}

#: Pages whose commands are about the made table.
GUIDES = ("README", "own-table", "models-out", "own-model", "report")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[list[str]]:
    """Every ``abps …`` line of the page, as words; continued lines are one."""
    found = []
    for language, text in blocks(page):
        if language in ("", "sh", "bash", "console"):
            for line in re.sub(r"\\\n\s*", " ", text).splitlines():
                line = re.sub(r"\s+#\s.*$", "", line.strip().removeprefix("$ "))
                if re.match(r"(\.venv/bin/)?abps\s", line) and "…" not in line and "..." not in line:
                    found.append(["abps", *shlex.split(line)[1:]])
    return found


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A folder with a table of eight hospitals."""
    place = tmp_path_factory.mktemp("blocks")
    rng = np.random.default_rng(4)
    rows = 960
    hospital = np.repeat(np.arange(8), rows // 8)
    age, lactate = rng.normal(65, 12, rows), rng.gamma(2.0, 1.2, rows)
    risk = 0.05 * (age - 65) + 0.6 * (lactate - 2.4) - 1.2
    frame = pl.DataFrame(
        {
            "patient_id": np.arange(rows) // 2 + 1000,
            "hospital": ["north" if k == 7 else f"h{k}" for k in hospital],
            "age": age.round(1),
            "lactate": lactate.round(2),
            "ward": np.array(["north", "south", "west"])[rng.integers(0, 3, rows)],
            "died": (rng.random(rows) < 1 / (1 + np.exp(-risk))).astype(int),
        }
    )
    frame.write_csv(place / "stays.csv")
    frame.write_parquet(place / "stays.parquet")
    days = rng.exponential(30.0 * np.exp(-risk)).round(1) + 0.1
    frame.with_columns(days=days).write_csv(place / "follow-up.csv")
    frame.drop("died").head(50).write_csv(place / "new.csv")
    own = next(text for language, text in blocks(ROOT / "docs" / "own-model.md") if language == "python")
    (place / "narrow.py").write_text(own)
    return place


@functools.cache
def help_of(*words: str) -> str:
    wide = {"COLUMNS": "240", "NO_COLOR": "1", "TERM": "dumb"}
    done = CliRunner(env=wide).invoke(app(), [*words, "--help"])
    return done.stdout if done.exit_code == 0 else ""


ALL = [(page, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(
    ("page", "words"), ALL, ids=[f"{page.stem}-{k}-{words[1]}" for k, (page, words) in enumerate(ALL)]
)
def test_options_exist(page, words):
    depth = 4 if words[1:3] == ["site", "courier"] else 3
    command = [word for word in words[1:depth] if not word.startswith("-")]
    text = help_of(*command) or help_of(*command[:1])
    assert text, f"{page.name}: {' '.join(words)}: there is no such command"
    for word in words:
        if word.startswith("--"):
            option = word.partition("=")[0]
            assert option in text, f"{page.name}: {' '.join(words)}: {option} is unknown"


def quick() -> list[tuple[Path, list[str]]]:
    """The commands that run, each once: a guide may say what the README says."""
    found: dict[tuple[str, ...], tuple[Path, list[str]]] = {}
    for page, words in ALL:
        if page.stem in GUIDES and RUN.match(" ".join(words)):
            found.setdefault(tuple(words), (page, words))
    return list(found.values())


QUICK = quick()


def test_the_guides_have_commands():
    assert {words[1] for _, words in QUICK} >= {"check", "run", "compare", "fit", "predict"}
    assert {page.stem for page, _ in QUICK} >= {"README", "own-table", "models-out", "own-model", "report"}


@pytest.mark.parametrize(
    ("page", "words"), QUICK, ids=[f"{page.stem}-{k}-{words[1]}" for k, (page, words) in enumerate(QUICK)]
)
def test_quick_commands_run(folder, page, words, monkeypatch, capsys):
    place = folder / page.stem  # what one page writes is not in another's way
    if not place.exists():
        place.mkdir()
        for file in folder.iterdir():
            if file.is_file():
                (place / file.name).symlink_to(file)
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.path", [*sys.path])  # the command adds its folder
    with pytest.raises(SystemExit) as ended:
        main([*words[1:], *QUICKLY.get(words[1], [])])
    assert not ended.value.code, f"{page.name}: {' '.join(words)}: {capsys.readouterr().err[-800:]}"


PYTHON = [page for page in PAGES if any(language == "python" for language, _ in blocks(page))]


@pytest.mark.parametrize("page", PYTHON, ids=lambda page: page.stem)
def test_python_blocks_run(folder, page, monkeypatch, tmp_path):
    script = tmp_path / f"{page.stem}.py"
    script.write_text("\n".join(text for language, text in blocks(page) if language == "python"))
    monkeypatch.chdir(folder)
    runpy.run_path(str(script), run_name="__main__")
