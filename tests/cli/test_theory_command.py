"""``abps theory`` from the command line: its files, its summary, its refusals."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from abps.cli import lab_commands as command
from abps.cli.main import main
from abps.lab import theory as studies


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """The same studies with fewer runs and rounds."""
    real = studies.play

    def shorter(bandits, replicates, seed, name):  # type: ignore[no-untyped-def]
        short = [dataclasses.replace(b, horizon=min(b.horizon, 2000)) for b in bandits]
        return real(short, 3, seed, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "COUNTS", (1, 10, 100))
        patch.setattr("abps.lab.theory_page.COUNTS", (1, 10, 100))
        patch.setattr(studies, "HORIZONS", (100, 300, 1000))
        patch.setattr(studies, "play", shorter)
        patch.setattr(studies.coverage, "__defaults__", (200,))
        patch.setattr(studies.monitoring, "__defaults__", (200, 500))
        patch.setattr(studies.filter_losses, "__defaults__", (50, 230, 0.25))
        patch.setattr(studies.transition, "__defaults__", (2,))
        yield


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["theory", *arguments])
    return int(stop.value.code or 0)


ARGUMENTS = ("--seed", "3", "--json")


@pytest.fixture(scope="module")
def written(small: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One run: its folder, and what it printed."""
    out, printed = tmp_path_factory.mktemp("theory") / "out", io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run("--out", str(out), *ARGUMENTS) == 0
    return out, printed.getvalue()


def test_it_writes_a_page_figures_tables_and_a_summary(written: tuple[Path, str]) -> None:
    out, printed = written
    assert printed.count("\n") == 1
    summary = json.loads(printed)
    assert summary["schema"] == "abps.theory/1"
    assert sum(summary["verdicts"].values()) == len(summary["claims"]) == 16
    verdict = {claim["name"]: claim["verdict"] for claim in summary["claims"]}
    assert verdict["Theorem 2 at T = 50 with 229 peers"] == "fails"
    assert json.loads((out / "theory.json").read_text())["claims"] == summary["claims"]
    for name in ("regret", "transition"):
        assert (out / "figures" / f"{name}.svg").read_text().startswith("<svg")
        assert (out / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    for name in ("claims", "coverage", "monitoring", "regret", "transition"):
        assert (out / "tables" / f"{name}.csv").stat().st_size > 0
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 2 and "style=" not in page
    assert page.count('class="verdict ') == 16
    assert not re.search(r"""(src|href)=["']https?:""", page), "the page must work without a network"
    assert not list(out.rglob("*.part"))


def test_the_same_seed_writes_the_same_bytes(written: tuple[Path, str], tmp_path: Path) -> None:
    assert run("--out", str(tmp_path / "b"), *ARGUMENTS) == 0
    for one in sorted(written[0].rglob("*.*")):
        assert one.read_bytes() == (tmp_path / "b" / one.relative_to(written[0])).read_bytes(), one.name


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--seed", "-1"], "--seed"),
    ],
)
def test_wrong_requests_are_one_line(
    arguments: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--out", str(tmp_path / "x"), *arguments) == 2
    error = capsys.readouterr().err
    assert word in error and error.count("\n") == 1 and "Traceback" not in error
    assert not (tmp_path / "x").exists()


def test_every_verdict_has_a_colour() -> None:
    assert set(command.COLOURS) == set(studies.Verdict.__args__)  # type: ignore[attr-defined]
