"""The report while a study runs: on loopback, to be read only, and gone with the study."""

import http.client
import re
import socket
import urllib.error
import urllib.parse
import urllib.request

import pytest

from abps.cli.main import main
from abps.report.live import serving
from made_runs import METHODS, stored_study


def fetch(address, path="report.html", method="GET", **headers):
    """Status, headers and text of an answer."""
    place = urllib.parse.urlsplit(address)
    line = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    line.request(method, f"/{path}", headers=headers)
    answer = line.getresponse()
    text = answer.read().decode()
    line.close()
    return answer.status, dict(answer.getheaders()), text


@pytest.fixture
def half(tmp_path):
    """A study of four runs, two of which are not there yet; and how to finish one."""
    study, plan = stored_study(tmp_path / "s", {n: METHODS[n] for n in ("local", "fedavg")}, (1, 2))
    hidden = [study.folder(run) for run in plan.runs[2:]]
    for path in hidden:
        path.rename(tmp_path / path.name)
    return study, hidden


def test_the_page_grows_with_the_study(half):
    study, hidden = half
    with serving(study.root) as address:
        status, headers, text = fetch(address)
        assert status == 200 and "2 of 4 runs are finished" in text and "not computed yet" in text
        assert fetch(address, "")[2] == text
        rules = headers["Content-Security-Policy"]
        assert "default-src 'none'" in rules and "frame-ancestors 'none'" in rules
        assert "unsafe" not in rules and "http" not in rules
        assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
        (study.root.parent / hidden[0].name).rename(hidden[0])
        assert "3 of 4 runs are finished" in fetch(address)[2]
    assert not (study.root / "report.html").exists()  # it reads, and writes nothing


def test_nothing_else_is_answered(half):
    study, _ = half
    with serving(study.root) as address:
        for path in ("study.json", "../study.json", "runs/", "%2e%2e/etc/passwd", "report.html?x"):
            assert fetch(address, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert fetch(address, method=method)[0] == 501
        # A page elsewhere that made its own name point here is not told anything.
        assert fetch(address, Host="evil.example")[0] == 403
        status, _, text = fetch(address, method="HEAD")
        assert status == 200 and text == ""


def test_only_this_machine_is_served_and_only_as_long_as_the_study_runs(half):
    study, _ = half
    with serving(study.root) as address:
        place = urllib.parse.urlsplit(address)
        assert place.hostname == "127.0.0.1"
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", place.port), timeout=5):
            pass  # bound to one address, not to all
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=5)


def test_a_folder_without_a_plan_waits(tmp_path):
    with serving(tmp_path) as address:
        status, _, text = fetch(address)
        assert status == 200 and "The study begins" in text


def test_the_command_serves_while_it_computes(tmp_path, capsys, monkeypatch):
    from abps.study.workers import processes

    seen = []

    def watched(study, todo, board, jobs):
        address = re.search(r"http://127\.0\.0\.1:\d+/", capsys.readouterr().err)[0]
        seen.append((address, fetch(address)[2]))
        local(study, todo, board, jobs)

    local = processes.run_local
    monkeypatch.setattr(processes, "run_local", watched)
    with pytest.raises(SystemExit) as stop:
        main(
            ["compare", "--no-references", "--methods", "local", "--seeds", "1", "--rounds", "1", "--data",
             "icu-synthetic:centers=6,stays=600", "--live", "--out", str(tmp_path / "s")]
        )  # fmt: skip
    assert not stop.value.code and (tmp_path / "s" / "report.html").exists()
    ((address, text),) = seen
    assert "0 of 1 runs are finished" in text
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=5)
