"""Places that cannot be written to, and names that look like markup: one sentence, or plain text."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from abps.cli import site_hospital
from abps.cli.main import main
from abps.core.errors import RequestError
from abps.study.records import StudyFolder
from test_files import FULL


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out = capsys.readouterr()
    return stop.value.code or 0, out.out, out.err


STUDY = ["compare", "--no-references", "--methods", "local,abps-pq-k1", "--seeds", "1", "--rounds", "1",
         "--data", "icu-synthetic:centers=8,stays=800", "--jobs", "1"]  # fmt: skip


def test_a_full_disk_ends_a_study_with_a_sentence(tmp_path):
    """Files may not grow beyond a limit, in the workers either: as on a full disk."""
    done = subprocess.run(
        [sys.executable, "-c", FULL.replace("MOST", "20000"), *STUDY, "--out", str(tmp_path / "s")],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done.stderr[-600:]
    assert "File too large" in done.stderr
    assert not list((tmp_path / "s").rglob(".*.part"))


def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path, capsys, monkeypatch):
    closed = Path("/sys/kernel")  # not even root may make a file there
    if closed.is_dir():
        with pytest.raises(RequestError, match="cannot write in /sys/kernel"), StudyFolder(closed).alone():
            pass
        code, _, err = call(capsys, *STUDY, "--out", closed)
        assert code == 2 and err.count("abps: ") == 1 and "choose another place" in err
    (tmp_path / "file").write_text("")
    code, _, err = call(capsys, *STUDY, "--out", tmp_path / "file" / "study")
    assert code == 2 and err.count("abps: ") == 1 and "choose another place" in err


@pytest.mark.parametrize("name", ["x[/y]", "[red]x", "a]b[", "<b>"])
def test_a_study_may_have_a_name_with_brackets(name, capsys, monkeypatch):
    told = {
        "site": name, "study": name, "method": "abps", "round": 3, "of": 5, "partners": [name],
        "measure": "AUROC", "validation_auroc": None, "rests": {name: 1},
        "alarms": [{"round": 1, "site": name, "statistic": "t"}],
        "bytes_sent": {"total": 10, "model": 10}, "in_doubt": [2],
        "beliefs": [{"peer": name, "mean": 0.5, "observations": 1.0, "partner": 2}],
        "refused": [{"peer": name, "reason": name, "count": 1}],
    }  # fmt: skip

    monkeypatch.setattr(site_hospital, "study_store", lambda kit, study: contextlib.nullcontext())
    monkeypatch.setattr(site_hospital.account, "summary", lambda store: told)
    code, out, err = call(capsys, "site", "status", "kit")
    assert code == 0, err
    assert f"study: {name}\n" in out and f"rests: {name} 1" in out
    assert f"│ {name}" in out  # in the table too


def test_a_study_that_may_not_be_read_is_not_called_damaged_and_stays(tmp_path, capsys, monkeypatch):
    folder = StudyFolder(tmp_path / "s")
    folder.root.mkdir()
    folder.path.write_text("{}")
    read = Path.read_text

    def shut(path, *rest, **more):
        if path == folder.path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path, *rest, **more)

    monkeypatch.setattr(Path, "read_text", shut)
    for command in (["report", folder.root], [*STUDY, "--out", folder.root]):
        code, _, err = call(capsys, *command)
        assert code == 2 and err.strip().endswith(f"abps: Permission denied: {folder.path}")
    assert folder.path.read_bytes() == b"{}"


STANDING = """
import signal, sys, tempfile, time
from abps.cli import main

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it

def stand(*_):
    with tempfile.TemporaryDirectory(dir=sys.argv.pop(), prefix="rows-"):
        print("standing", flush=True)
        time.sleep(60)

main.app = lambda: (lambda **_: stand())
main.main()
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_command_that_is_asked_to_end_clears_up(tmp_path, number, code):
    with subprocess.Popen(
        [sys.executable, "-c", STANDING, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        assert command.stdout.readline() == "standing\n" and len(list(tmp_path.iterdir())) == 1
        command.send_signal(number)
        _, err = command.communicate(timeout=30)
    assert (command.returncode, err) == (code, "abps: stopped\n")
    assert not list(tmp_path.iterdir())
