"""Files appear whole or not at all, with the rights that the user asked for."""

import os
import stat
import subprocess
import sys

import pytest

from abps import files


@pytest.mark.parametrize(("mask", "rights"), [(0o077, 0o600), (0o022, 0o644), (0o027, 0o640)])
def test_files_have_the_rights_that_the_umask_leaves(tmp_path, mask, rights):
    before = os.umask(mask)
    try:
        files.write_text(tmp_path / "a.txt", "secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == rights


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    files.write_text(tmp_path / "a.txt", "old")
    with pytest.raises(KeyError), files.replacing(tmp_path / "a.txt") as part:
        part.write_text("new")
        raise KeyError
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


FULL = """
import resource, sys
from abps.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, MOST))
main(sys.argv[1:])
"""


@pytest.mark.parametrize("limit", [100, 6000])
def test_a_full_disk_is_one_sentence(tmp_path, limit):
    """Files may not grow beyond a limit: the operating system refuses as on a full disk."""
    words = ["run", "--method", "abps-pq-k1", "--rounds", "1", "--data", "icu-synthetic:centers=8", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", FULL.replace("MOST", str(limit)), *words, "--out", str(tmp_path / "r")],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done.stderr[-600:]
    assert "File too large" in done.stderr and not (tmp_path / "r" / "result.json").exists()
    assert not list((tmp_path / "r").glob(".*"))
