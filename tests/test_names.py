"""The tree says what is where: no two modules of the package have one name."""

from collections import Counter
from pathlib import Path

import abps


def test_no_two_modules_have_one_name():
    files = Path(abps.__file__).parent.rglob("*.py")
    names = Counter(path.stem for path in files if not path.stem.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []
