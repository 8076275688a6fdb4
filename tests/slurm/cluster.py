"""A real single-node Slurm for tests: munged, slurmctld and slurmd, all in one folder, loopback only.

Needs Debian's packages slurmctld, slurmd, slurm-client and munge, and to be root. Everything is started
here by hand and stopped by its process number.

    python tests/slurm/cluster.py /some/empty/folder     keeps one running until interrupted
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo")


def missing() -> str:
    """Why no Slurm can be started here; empty if one can."""
    lacking = [name for name in NEEDED if _program(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed (packages slurmctld slurmd slurm-client munge)"
    if os.geteuid() != 0:
        return "a Slurm daemon of one's own needs root"
    return ""


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


CONF = """\
ClusterName=abpstest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
ReturnToService=2
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SwitchType=switch/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A running cluster; yields the environment in which its commands work."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    host = socket.gethostname().split(".")[0]
    ctld_port, slurmd_port = _free_ports(2)
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, ctld_port=ctld_port, slurmd_port=slurmd_port))
    environment = os.environ | {"SLURM_CONF": str(conf)}
    commands = [
        [
            "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munge.seed",
        ],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-f", str(conf)],
    ]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            program = _program(command[0])
            assert program is not None
            with (folder / f"{command[0]}.out").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        [program, *command[1:]],
                        env=environment,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
            if command[0] == "munged":
                _until(lambda: (folder / "munge.socket").exists(), "munged has no socket", folder)
        _until(lambda: _idle(environment), "the node does not become idle", folder)
        yield environment
    finally:
        with contextlib.suppress(Exception):
            subprocess.run(["scancel", "--state=RUNNING", "--me"], env=environment, timeout=5, check=False)
        for process in reversed(started):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _idle(environment: dict[str, str]) -> bool:
    try:
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.stdout.strip() == "idle"


def _until(ready: object, complaint: str, folder: Path, seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        if time.monotonic() > end:
            logs = "\n".join(
                f"{p.name}: {p.read_text(errors='replace')[-800:]}" for p in sorted(folder.glob("*.out"))
            )
            raise RuntimeError(f"{complaint}\n{logs}")
        time.sleep(0.2)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the daemons are stopped then, too
    with cluster(Path(sys.argv[1]).resolve()) as running:
        print(f"export SLURM_CONF={running['SLURM_CONF']}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
