"""Where the open clinical data are, and copies of them to spoil."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """The folder of one open data set; the test is skipped where it is absent."""

    def folder(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"the open data {name} are not beside the project (shared/data)")
        return path

    return folder


@pytest.fixture
def mimic_copy(data: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the MIMIC-IV demo that a test may spoil."""
    source, target = data("mimic-iv-demo-2.2"), tmp_path / "mimic"
    for part in ("hosp", "icu"):
        (target / part).mkdir(parents=True)
        for file in (source / part).iterdir():
            shutil.copyfile(file, target / part / file.name)
    return target
