"""Files appear whole or not at all, with the rights that the user asked for."""

import os
import stat

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
