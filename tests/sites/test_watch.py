"""Seen while it runs: health, metrics and a page on loopback, and a word when a round is stuck."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import subprocess
import sys
import time

import psutil
import pytest

from abps.core.errors import RequestError
from abps.sites.consent import sitefile
from abps.sites.consent.kit import read_kit
from abps.sites.consent.sitefile import SiteFile, Watch
from abps.sites.coordinator.loopback import LoopbackNetwork
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.flare import kits
from abps.sites.flare.on_one_machine import free_port
from abps.sites.node import monitor
from abps.sites.node.monitor import Monitor
from abps.sites.node.status_file import NOW, StatusFile
from abps.sites.protocol.commands import Timeouts

from .network import close, open_site
from .processes import LONG


@pytest.fixture(scope="module")
def site(six, tmp_path_factory):
    """The kit of a site that has three rounds behind it."""
    folder = tmp_path_factory.mktemp("watched")
    network, agreement = LoopbackNetwork(), six.agreement("abps-pq-k1")
    for name in six.names:
        open_site(six, name, agreement, folder / "stores", network)
    Scheduler(network, agreement, 3, Timeouts(poll=0.0)).run(six.names)
    network.sites["site-1"].receive("site-2", "message", b"nonsense")
    close(network)
    kit = kits.provision(folder / "kits", six.names[:2], "localhost", 18995).sites["site-1"]
    own = folder / "site-1"
    own.mkdir()
    (folder / "stores" / "site-1.sqlite").rename(own / "test.sqlite")
    SiteFile("site-1", str(six.tables["site-1"]), "died", str(own), watch=Watch(port=0)).write(kit / "local")
    return read_kit(kit)


@pytest.fixture(autouse=True)
def quiet(site):
    yield
    (site.local / NOW).unlink(missing_ok=True)


def ask(port, path, host=None, method="GET"):
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        line.request(method, path, headers={} if host is None else {"Host": host})
        reply = line.getresponse()
        return reply.status, reply.read().decode()
    finally:
        line.close()


def page(told, store, sentence):
    from abps.cli.site_hospital import _page

    return _page(told, store, sentence)


def test_health_metrics_and_page(site):
    with Monitor(site, monitor.settings(site), page) as watchman:
        code, text = ask(watchman.port, "/healthz")
        assert code == 200 and text == "No job runs here now.\n"
        code, text = ask(watchman.port, "/metrics")
        assert code == 200 and "abps_up 1\n" in text
        assert 'abps_round{study="test"} 3' in text
        assert 'abps_refusals_total{study="test",peer="site-2",reason="malformed"} 1' in text
        assert re.search(r'abps_sent_bytes_total\{study="test",kind="weights"\} \d{4,}', text)
        assert 355 < float(re.search(r"abps_certificate_days ([\d.]+)", text)[1]) <= 360
        for line in text.splitlines():  # the exposition format
            assert re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+(\{.*\})? [-+.\deNa]+", line), line
        code, text = ask(watchman.port, "/")
        assert code == 200 and "site-1 in the study test" in text and "No job runs here now." in text
        assert "malformed" in text and "<script" not in text
        assert ask(watchman.port, "/etc/passwd")[0] == 404
        assert ask(watchman.port, "/healthz", host="evil.example")[0] == 403
        assert ask(watchman.port, "/healthz", method="POST")[0] == 501
        assert watchman._server.server_address[0] == "127.0.0.1"
    with pytest.raises(OSError):
        ask(watchman.port, "/healthz")


def test_what_is_not_well(site):
    board = StatusFile(site.local, "icu")
    board.write(4, "train", ("south",))
    assert monitor.health(site, 600.0).sentence.startswith("Round 4 of icu: training, for")
    told = monitor.health(site, 0.0)
    assert not told.well and "round 4 of icu is stuck: training by south" in told.sentence
    assert "abps_up 0" in monitor.metrics(site, told)
    assert "does not run" in monitor.health(site, 600.0, alive=False).sentence
    gone = json.loads((site.local / NOW).read_text()) | {"process": 2**22 + 1}
    (site.local / NOW).write_text(json.dumps(gone))
    assert "in the midst of round 4" in monitor.health(site, 600.0).sentence
    with Monitor(site, Watch(port=0), page) as watchman:
        assert ask(watchman.port, "/healthz")[0] == 503


def test_a_stuck_round_is_told_once_and_calls_the_hook(site, tmp_path, caplog):
    told = tmp_path / "told"
    script = f"import os; open({str(told)!r}, 'a').write(os.environ['ABPS_SENTENCE'] + '\\n')"
    watchman = Monitor(site, Watch(stuck_seconds=1e-9, hook=(sys.executable, "-c", script)))
    StatusFile(site.local, "icu").write(2, "exchange", ("south", "east"))
    with caplog.at_level(logging.WARNING, "abps.watch"):
        watchman.look_once()
        watchman.look_once()
    (line,) = told.read_text().splitlines()
    assert line.startswith("round 2 of icu is stuck: exchanging weights by south, east for")
    assert caplog.text.count("is stuck") == 1
    StatusFile(site.local, "icu").write(3, "train")
    Monitor(site, Watch(stuck_seconds=1e-9, hook=("/no/such/program",))).look_once()  # ends nothing
    assert "could not be run" in caplog.text


def test_settings_of_the_watch(site, tmp_path):
    assert monitor.settings(site) == Watch(port=0)
    relay = read_kit(site.folder.parent / "relay")
    assert monitor.settings(relay) == Watch() and not Watch().wanted
    (relay.local / monitor.RELAY_FILE).write_text('{"watch": {"port": 9101, "hook": ["page", "me"]}}')
    assert monitor.settings(relay) == Watch(9101, 600.0, ("page", "me"))
    own = json.loads((site.local / sitefile.FILE).read_text())
    for wrong in (
        {"port": 99999},
        {"port": "a"},
        {"port": True},
        {"hook": "rm -rf"},
        {"stuck_seconds": 0},
        {"x": 1},
    ):
        (tmp_path / sitefile.FILE).write_text(json.dumps(own | {"watch": wrong}))
        with pytest.raises(RequestError, match="not a site's file"):
            sitefile.read(tmp_path / sitefile.FILE)
    (relay.local / monitor.RELAY_FILE).write_text("{}")
    with pytest.raises(RequestError, match="cannot be read"):
        monitor.settings(relay)


def test_a_port_that_is_taken(site):
    with (
        Monitor(site, Watch(port=0), page) as first,
        pytest.raises(RequestError, match="nothing can listen"),
    ):
        Monitor(site, Watch(port=first.port)).__enter__()


def test_the_process_that_wrote_it_is_this_one(site):
    StatusFile(site.local, "icu").write(1, "train")
    assert json.loads((site.local / NOW).read_text())["process"] == os.getpid()


@pytest.mark.slow
def test_a_relay_that_is_started_and_watched(tmp_path):
    """Healthy while it runs; asked to end, it ends with everything that it began."""
    network = kits.provision(tmp_path / "kits", ["north", "south"], "localhost", free_port())
    port = free_port()
    (network.relay / "local" / monitor.RELAY_FILE).write_text(json.dumps({"watch": {"port": port}}))
    environment = os.environ | {"HOME": str(tmp_path)}
    command = [sys.executable, "-m", "abps", "site", "start", str(network.relay)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                code, text = ask(port, "/healthz")
                break
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.5)
        assert (code, text) == (200, "No job runs here now.\n")
        assert "abps_up 1" in ask(port, "/metrics")[1]
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        process.terminate()
        process.wait(60)
        _, left = psutil.wait_procs(family, timeout=10)
        assert not left
    finally:
        for one in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            one.kill()
        process.kill()
        process.wait()
