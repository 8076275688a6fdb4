"""Starting quickly: nothing heavy is imported before it is needed."""

import subprocess
import sys

import pytest

import abps

HEAVY = "torch", "matplotlib", "numba", "polars"


@pytest.mark.parametrize("what", ["import abps", "from abps.cli.main import app; app('demo')"])
def test_what_is_not_needed_is_not_imported(what):
    heavy = HEAVY if what == "import abps" else HEAVY[:3]
    check = f"{what}; import sys; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout == "[]\n"


def test_the_package_offers_what_it_names():
    for name in abps.__all__:
        assert getattr(abps, name) is not None and name in dir(abps)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        abps.simulat  # noqa: B018
