"""What a site writes down: the rows of its store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Evidence:
    """What was observed of a peer: for it, against it, and how often (decayed alike)."""

    gain: float
    loss: float
    count: float

    def times(self, share: float) -> Evidence:
        """What is left when only a share of it counts."""
        return Evidence(self.gain * share, self.loss * share, self.count * share)


@dataclass(frozen=True)
class AlarmRow:
    """An alarm of drift, raised at a site in a round.

    statistic, p: what it was raised on, and its p-value where there is one; a peer does not tell.
    reckoned: the first round whose beliefs reckon with it; None until then.
    """

    round: int
    site: str
    statistic: str = ""
    p: float | None = None
    reckoned: int | None = None


@dataclass(frozen=True)
class Entry:
    """One payload that left the site or came in: what, to or from whom, how many bytes, why."""

    at: str
    round: int
    peer: str
    sent: bool
    #: weights, message, vector, alarm, request, note, answer, notice, head, place, address, told or decision
    kind: str
    bytes: int
    why: str


@dataclass(frozen=True)
class Head:
    """A log as its owner stood for it: how many rows, the digest of the last, the owner's signature."""

    site: str
    rows: int
    round: int
    digest: bytes
    signature: bytes = b""


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """Everything that one round changes, written together.

    state: the method's, without the model (:mod:`abps.methods.state_bytes`).  members: of whom it speaks.
    observations: what each partner was worth, in [0, 1].  beliefs: evidence after the round; both for the
    site's owner to look at.  errors: standard errors of observations, from methods that know them.
    alarms: raised in this round.  reckoned: earlier alarms that this state is the first to reckon with.
    """

    round: int
    weights: NDArray[np.float32]
    beliefs: Mapping[str, Evidence]
    observations: Mapping[str, float]
    partners: tuple[str, ...]
    rest: str
    validation: float
    members: tuple[str, ...] = ()
    state: bytes = b""
    alarms: tuple[AlarmRow, ...] = ()
    reckoned: tuple[AlarmRow, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundRow:
    """A finished round as it was written down."""

    number: int
    partners: tuple[str, ...]
    rest: str
    validation: float | None
