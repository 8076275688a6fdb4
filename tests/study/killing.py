"""Runs a command of the command line again and again, killed with SIGKILL at random moments.

    python killing.py SEED KILLS COMMAND… --out STUDY …

The command runs in a fork, so that what is killed is the command at work, not Python starting up. A moment
is drawn as "so many more finished runs, and then so many seconds", which means the same on an idle machine
and on a busy one. Prints one JSON line: how many runs were finished at each kill, and the exit code of the
last, undisturbed call.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from abps.cli.main import main

#: Runs of the study.
TOTAL = 6


def finished(out):
    """How many runs of the study are there."""
    return len(list(out.glob("runs/*/run.json")))


def start(arguments):
    """The command in a process of its own."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            main(arguments)
        except SystemExit as stop:
            os._exit(int(stop.code or 0))
        os._exit(1)
    return child


def kill_at(arguments, out, more, seconds):
    """Start the command and kill it at a moment; False if it was done before."""
    wanted = finished(out) + more
    child, reached = start(arguments), None
    while reached is None or time.monotonic() < reached + seconds:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        if reached is None and finished(out) >= wanted:
            reached = time.monotonic()
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


if __name__ == "__main__":
    import abps.cli.outcomes
    import abps.study.compare  # noqa: F401 (everything is imported before the first fork)

    seed, kills, *arguments = sys.argv[1:]
    out = Path(arguments[arguments.index("--out") + 1])
    rng = random.Random(int(seed))
    seen = []
    while len(seen) < int(kills):
        more, seconds = rng.choice([0, 0, 1, 1, 2]), rng.uniform(0, 1.5)
        if seen and seen[-1] == TOTAL:  # all runs are there: kill it while it writes the report
            more, seconds = 0, 3 * seconds
        if kill_at(arguments, out, more, seconds):
            seen.append(finished(out))
        elif len(seen) == 0:
            sys.exit("the study was done before the first kill")
    code = os.waitstatus_to_exitcode(os.waitpid(start(arguments), 0)[1])
    print(json.dumps({"finished": seen, "code": code}))
