"""Starting quickly: nothing heavy is imported before it is needed."""

import os
import resource
import subprocess
import sys

import pytest

import abps
from abps.cli.main import COMMANDS, loaded, purpose
from abps.cli.options import NAMES

HEAVY = "torch", "matplotlib", "numba", "polars"


LISTED = "from abps.cli.main import loaded; loaded({!r})"


@pytest.mark.parametrize(
    "what",
    [
        "import abps",
        "from abps.cli.main import app; app()",
        *(LISTED.format(n) for n in ("demo", "run", "compare")),
    ],
)
def test_what_is_not_needed_is_not_imported(what):
    check = f"{what}; import sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout == "[]\n"


def run(words: str, **variables: str) -> tuple[str, float]:
    """The output of a command line, and the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.argv = {words.split()!r}; from abps.cli.main import main; main()",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def complete(words: str, place: int) -> tuple[str, float]:
    return run("abps", _ABPS_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(place))


def test_help_lists_every_command_with_its_own_first_sentence():
    out, _ = run("abps --help", COLUMNS="300")
    for name in COMMANDS:
        first = " ".join((loaded(name).help or "").split("\n\n")[0].split())
        assert first == purpose(name) and first in out
    assert "--install-completion" in out


def test_importing_the_package_takes_at_most_three_tenths_of_a_second_of_cpu():
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "import abps"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(3)) <= 0.3


def test_starting_takes_at_most_half_a_second_of_cpu():
    """The least of three: another process on the machine must not count."""
    for told, ask in (
        ("abps 0", lambda: run("abps --version")),
        ("compare", lambda: run("abps --help")),
        ("cohort", lambda: complete("abps co", 1)),
        ("abps-plus", lambda: complete("abps run --method abps-pl", 3)),
        ("local,fedavgm", lambda: complete("abps compare --methods local,fedavg", 3)),
    ):
        out, seconds = min((ask() for _ in range(3)), key=lambda found: found[1])
        assert told in out and seconds <= 0.5, (told, seconds)


def test_completion_knows_every_method():
    assert list(abps.CATALOG) == NAMES


def test_the_package_offers_what_it_names():
    for name in abps.__all__:
        assert getattr(abps, name) is not None and name in dir(abps)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        abps.simulat  # noqa: B018
