"""The penalty, chosen by the federation before a study: short trial studies, and the lowest mean loss.

Every site tells the mean loss on its validation rows after each trial, four bytes; the conductor takes the
penalty with the lowest mean over the sites, as the simulation does. What a trial leaves stays in a store of
its own. The study itself then begins with its first round: unlike in the simulation, the rounds of the trial
that won are run again, and paid for again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from abps.core.errors import RequestError
from abps.sites.consent.agreement import Agreement
from abps.sites.protocol import answers
from abps.sites.protocol.steps import Line, Timeouts

#: Which study a site is to open: a trial, or the one with the chosen penalty; and the penalty's place.
TRIAL, CHOSEN = "try", "chosen"
Which = tuple[str, int]


def resolved(agreement: Agreement, which: Sequence[object] | None) -> Agreement:
    """The study that is meant; one without penalties to try is what it is."""
    places = len(agreement.penalties())
    if which is None and not places:
        return agreement
    kind, place = which if which is not None else ("", -1)
    if kind not in (TRIAL, CHOSEN) or not isinstance(place, int) or not 0 <= place < places:
        raise RequestError("the conductor names no penalty of this study; is the relay of the same version?")
    return agreement.trial(place) if kind == TRIAL else agreement.settled(place)


def known(agreement: Agreement, digest: str) -> int | None:
    """The place of the penalty under which a store was made."""
    found = [k for k in range(len(agreement.penalties())) if agreement.settled(k).digest() == digest]
    return found[0] if found else None


def choose(
    line: Line,
    agreement: Agreement,
    members: Sequence[str],
    seconds: Timeouts,
    run: Callable[[Agreement, int, Which], object],
    tell: Callable[[str], None] = lambda line: None,
) -> int:
    """The place of the penalty of a study: as sites know it from earlier jobs, or by trials.

    run: lets the sites run so many rounds of a study.
    """
    penalties, last = agreement.penalties(), len(agreement.penalties()) - 1
    said, _ = line.ask(members, "chosen", seconds=seconds.talk)
    told, _ = answers.sorted_out(said, lambda v: answers.whole(v, -1, last))
    before = Counter(place for place in told.values() if place >= 0)
    if before:
        return before.most_common(1)[0][0]
    rounds = min(5, agreement.rounds)
    means = []
    for place, penalty in enumerate(penalties):
        run(agreement.trial(place), rounds, (TRIAL, place))
        said, _ = line.ask(members, "loss", seconds=seconds.sign)
        losses, _ = answers.sorted_out(said, answers.loss)
        scored = [value for value in losses.values() if math.isfinite(value)]
        means.append(float(np.mean(scored)) if scored else math.nan)
        tell(f"penalty {penalty:g}: mean validation loss {means[-1]:.5f} at {len(scored)} sites")
    if np.isnan(means).all():
        raise RequestError(
            "penalties: no site has validation rows of both outcomes; set weight_decay instead"
        )
    best = int(np.nanargmin(means))
    tell(f"the penalty is {penalties[best]:g}")
    return best
