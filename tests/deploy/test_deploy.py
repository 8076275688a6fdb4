"""The files under ``deploy``: they can be read, and every command in them exists with its options."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml

from abps.cli.main import loaded

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def known(words: list[str]) -> None:
    """A command line of ``abps site`` whose options are known."""
    group, name, *rest = words
    assert group == "site"
    command = loaded("site").commands[name]
    context = typer.Context(command)
    options = {option for parameter in command.get_params(context) for option in parameter.opts}
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in options, f"abps site {name} has no {word}"


def test_the_compose_file_rehearses_four_hospitals():
    data = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = data["services"]
    assert {"relay", "north", "south", "east", "west", "operator", "prepare"} == set(services)
    for name, service in services.items():
        known(service["command"])
        assert service["user"] == "10001" and service["read_only"] and service["cap_drop"] == ["ALL"]
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()
        assert "ports" not in service, name  # nothing is reached from outside
        for other in service.get("depends_on", {}):
            assert other in services
    assert data["networks"]["federation"]["internal"] is True
    started = [s["command"][2] for s in services.values() if s["command"][1] == "start"]
    home = services["prepare"]["command"][services["prepare"]["command"].index("--out") + 1]
    assert sorted(started) == [f"{home}/kits/{name}" for name in ("east", "north", "relay", "south", "west")]


def test_the_image_runs_as_nobody_and_fetches_packages_alone():
    text = (DEPLOY / "Dockerfile").read_text()
    steps = [line.split(maxsplit=1) for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert [rest for word, rest in steps if word == "FROM"] == [
        "python:3.11-slim AS build",
        "python:3.11-slim",
    ]
    assert [rest for word, rest in steps if word == "USER"] == ["10001"]
    assert not re.search(r"\b(curl|wget|git clone|ADD http|apt-get)\b", text)
    for word, rest in steps:
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
    assert '["abps"]' in text and 'CMD ["site", "--help"]' in text
    loaded("site")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_start_a_kit_as_a_user_of_its_own(unit):
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=/opt/abps/bin/abps (.*)$", text, re.M)
    known(command.split())
    for line in ("User=abps", "Restart=always", "NoNewPrivileges=yes", "ProtectSystem=strict"):
        assert line in text
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
        )
        # Here is no /opt/abps; everything else must be in order.
        exposed = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", str(unit)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        # Older versions of it know no such check.
        found = re.search(r"exposure level for \S+: ([0-9.]+)", exposed.stdout)
        assert found is None or float(found[1]) <= 3.0, exposed.stdout[-500:]
        complaints = [line for line in done.stderr.splitlines() if unit.stem.rstrip("@") in line]
        assert all("/opt/abps/bin/abps is not executable" in line for line in complaints), done.stderr
