"""What a stuck job is waiting for, by what its processes last said here."""

from __future__ import annotations

from collections.abc import Iterator

from abps.sites.consent.kit import Kit, Role
from abps.sites.consent.preflight import Check, State
from abps.sites.node.status_file import STEPS, read_status


def diagnose(kit: Kit, after: float) -> Iterator[Check]:
    """What a job here is waiting for, and since when; a step longer than ``after`` seconds fails."""
    now = read_status(kit.local)
    if kit.role is Role.OPERATOR:
        return  # it runs no job
    if now is None:
        yield Check("job", State.OK, "no job has run from this kit yet")
        return
    what = STEPS.get(now.step, now.step)
    where = (
        f"study {now.study}, round {now.round}" if now.round else f"study {now.study}, before its first round"
    )
    if now.step == "done":
        yield Check("job", State.OK, f"{where}: the last job ended at {now.since}")
    elif not now.alive:
        said = f"{where}: the process of the job is gone, in the midst of {what}, since {now.since} or later"
        yield Check("job", State.WARN, f"{said}; submit the job again")
    else:
        whom = f" by {', '.join(now.waiting)}" if now.waiting else ""
        said = f"{where}: {what}{whom} for {now.seconds:.0f} s, since {now.since}"
        state = State.FAIL if now.seconds > after else State.OK
        hint = "; look at the logs there" if state is State.FAIL else ""
        yield Check("job", state, f"{said}{hint}")
