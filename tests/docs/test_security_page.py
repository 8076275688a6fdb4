"""The page about attacks names tests: every one of them is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_page_names_exists() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
    assert len(named) >= 30
    for file, name in named:
        twins = ("test_attacks.py", "test_regression.py", "test_site.py")
        (path,) = (ROOT / "tests").rglob(file) if file not in twins else [ROOT / "tests" / "sites" / file]
        assert re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE), f"{file}::{name}"
    lines = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(line.split("|")[1]) for line in lines] == list(range(1, len(lines) + 1))
    assert all("`test_" in line for line in lines)
