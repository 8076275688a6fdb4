"""``icu-stream``: the intensive-care federation of ``icu-synthetic``, changing while it is learned from.

Every few rounds all centers see new stays. For some centers these come from another population: their
risk function, their mortality or their case mix changed, at once, gradually, or back and forth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError, nearest
from abps.data.synthetic import check_ranges
from abps.data.synthetic.icu import UNIT_RISK_SPREAD, Floats, IcuSynthetic, Population, draw, population_of

#: What can change. risk: a center takes over the risk function of another care unit, drawn for it by
#: chance. protocol: all centers of one care unit turn to a risk function that nobody had. outcome:
#: mortality. case_mix: who is admitted.
CHANGES = ("risk", "protocol", "outcome", "case_mix", "none")
COURSES = ("sudden", "gradual", "recurring")

# The change of case mix at strength 1: older, sicker, and ill in another way.
_AGE, _COMORBIDITY = 6.0, 0.6
_VITALS = np.array([0.5, -0.5, -0.3, -0.4, 0.5, -0.4, 0.4])


STREAM_RANGES = {
    "share": (0, 1), "strength": (-5, 5), "rounds": (1, 10_000), "every": (1, 10_000), "at": (1, 10_000),
    "over": (1, 10_000),
}  # fmt: skip


@dataclass(frozen=True)
class IcuStream(IcuSynthetic):
    """The knobs of ``icu-stream``: those of ``icu-synthetic`` (``stays`` is per window), and of the change.

    change: risk, protocol, outcome, case_mix, or none.  course: sudden, gradual, or recurring.
    at: the round of the change.  over: rounds that a gradual change takes, or half a recurring one's period.
    share: share of the centers that change.  unit: instead, all centers of this care unit.
    strength: 1 is the change as described; for outcome, by how much the log-odds of death rise.
    rounds, every: the stream is made for so many rounds, and brings new stays every so many.
    """

    change: str = "risk"
    course: str = "sudden"
    at: int = 25
    over: int = 16
    share: float = 0.5
    unit: str = ""
    strength: float = 1.0
    rounds: int = 48
    every: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, known in (("change", self.change, CHANGES), ("course", self.course, COURSES)):
            if value not in known:
                raise RequestError(
                    f"icu-stream: {name}={value!r}{nearest(value, known)}; choose {', '.join(known)}"
                )
        check_ranges("icu-stream", self, STREAM_RANGES)
        if self.change == "risk" and self.groups == 1:
            raise RequestError("icu-stream: change=risk needs two care units at least; set groups=2 or more")
        if self.change == "protocol" and not self.unit:
            raise RequestError("icu-stream: change=protocol needs a care unit; write unit=MICU")

    @property
    def eras(self) -> int:
        """How many windows of stays there are."""
        return -(-self.rounds // self.every)

    def progress(self, era: int) -> float:
        """How far the change has come in a window, 0 to 1."""
        first = 1 + era * self.every
        if self.change == "none" or first < self.at:
            return 0.0
        if self.course == "gradual":
            return min(1.0, (first - self.at + self.every) / self.over)
        if self.course == "recurring":
            return 1.0 - ((first - self.at) // self.over) % 2
        return 1.0

    def affected(self, before: Population) -> NDArray[np.bool_]:
        """(n,) which centers change."""
        if self.unit:
            chosen = np.array([group == self.unit for group in before.groups])
            if not chosen.any():
                known = sorted(set(before.groups))
                raise RequestError(
                    f"icu-stream: no center is of unit={self.unit!r}{nearest(self.unit, known)}; "
                    f"there are {', '.join(known)}"
                )
            return chosen
        rng = streams.generator(self.seed, "generate", 0, streams.center_id("who changes"))
        return np.asarray(rng.permutation(self.centers) < round(self.share * self.centers))

    def generate(self) -> pl.DataFrame:
        """One row per stay as in ``icu-synthetic``, and its window: ``era`` 0, 1, …"""
        before = population_of(self)
        changed = self.affected(before)
        frames = []
        for era in range(self.eras):
            population = self._moved(before, changed, self.progress(era))
            table = draw(population, streams.key(self.seed, "generate", era + 1) >> 1)
            # Nobody is a patient of two windows.
            patient = pl.col("patient") + 10_000_000 * (era + 1)
            frames.append(table.with_columns(patient, era=pl.lit(era, dtype=pl.Int16)))
        return pl.concat(frames)

    def _moved(self, before: Population, changed: NDArray[np.bool_], far: float) -> Population:
        """The population when the change has come so far."""
        if far == 0.0:
            return before
        size = far * self.strength
        # Each is a stratum of its own: its mortality stays, and nobody's deaths elsewhere depend on it.
        own_stratum = len(before.mortality) + np.arange(len(changed))
        kept = before.mortality[before.stratum]
        apart = replace(
            before,
            stratum=np.where(changed, own_stratum, before.stratum),
            mortality=np.concatenate([before.mortality, kept]),
        )
        if self.change in ("risk", "protocol"):
            target = self._other_units_risk(before) if self.change == "risk" else self._new_risk(before)
            moved = np.where(changed[:, None], before.own + size * (target - before.own), before.own)
            return replace(apart, own=moved)
        if self.change == "outcome":
            odds = np.log(kept / (1 - kept)) + size
            return replace(apart, mortality=np.concatenate([before.mortality, 1 / (1 + np.exp(-odds))]))
        shift = changed[:, None] * size
        return replace(
            apart,
            age=before.age + _AGE * shift[:, 0],
            comorbidity=before.comorbidity + _COMORBIDITY * shift,
            vitals=before.vitals + _VITALS * shift,
        )

    def _other_unit(self, before: Population) -> NDArray[np.int64]:
        """(n,) for every center a center of another care unit, drawn by chance."""
        names = list(dict.fromkeys(before.groups))
        unit = np.array([names.index(group) for group in before.groups])
        rng = streams.generator(self.seed, "generate", 0, streams.center_id("which unit"))
        other = (unit + rng.integers(1, len(names), len(unit))) % len(names)
        return np.array([before.groups.index(names[k]) for k in other])

    def _other_units_risk(self, before: Population) -> Floats:
        """(n, terms) every center's weights if it followed that other care unit."""
        return before.own[self._other_unit(before)]

    def follows(self, era: int) -> dict[str, str]:
        """Every center, and the care unit whose risk function it follows most closely in a window."""
        before = population_of(self)
        groups = np.array(before.groups, dtype=object)
        if self.progress(era) > 0.5:
            changed = self.affected(before)
            if self.change == "risk":
                groups = np.where(changed, groups[self._other_unit(before)], groups)
            elif self.change == "protocol":
                groups = np.where(changed, "NEW", groups)
        return dict(zip(before.names, groups.tolist()))

    def _new_risk(self, before: Population) -> Floats:
        """(n, terms) weights that no unit had: one new direction for all, as far out as a unit's own."""
        rng = streams.generator(self.seed, "generate", 0, streams.center_id("new protocol"))
        direction = rng.standard_normal(before.own.shape[1])
        risk = self.heterogeneity if self.risk is None else self.risk
        length = UNIT_RISK_SPREAD * max(1.0, risk)
        return np.broadcast_to(direction / np.linalg.norm(direction) * length, before.own.shape)
