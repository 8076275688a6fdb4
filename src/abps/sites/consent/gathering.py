"""The scheduler of a job that asks for codebooks: it carries letters that it cannot read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from abps.core.errors import RequestError
from abps.sites.consent.sharing import MOST_BYTES
from abps.sites.coordinator.steps import run_with_approval
from abps.sites.protocol import answers
from abps.sites.protocol.commands import Command, Line, Timeouts

SCHEMA = "abps.gathered/1"

_PARTS = ("book", "certificate", "signature")


def gather(
    line: Line,
    sites: Sequence[str],
    timeouts: Timeouts | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Every site's letter, and why there is none."""
    timeouts = timeouts or Timeouts()
    replies, why = run_with_approval(line, sorted(sites), timeouts.talk, timeouts, Command.LETTER)
    letters, invalid = answers.check_all(replies, _letter)
    why |= invalid
    for name, reason in sorted(why.items()):
        log(f"{name} has sent no codebook: {reason}")
    if not letters:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(why.items()))
        raise RequestError(f"no site has sent a codebook ({reasons or 'no site is there'})")
    return {
        "schema": SCHEMA,
        "codebooks": letters,
        "left_out": {name: str(each) for name, each in why.items()},
    }


def _letter(value: Any) -> dict[str, str]:
    """A letter in its proper form, as text for a file."""
    if not isinstance(value, dict) or set(value) != set(_PARTS):
        raise ValueError("no letter")
    if not all(isinstance(part, bytes) and len(part) <= MOST_BYTES for part in value.values()):
        raise ValueError("no bytes")
    return {name: value[name].hex() for name in _PARTS}
