"""survival-synthetic: a made federation with times to an event, in which effects differ between groups.

Centers come in groups. In a group, log-hazards are linear in the features, by coefficients that the group
shares; ``heterogeneity`` says how far groups differ. With ``crossing``, effects turn around at a time in
the middle: who is at risk early is not who is at risk late, and groups differ in both. Every center has a
baseline hazard of its own (Weibull), which rises or falls. Watching ends at random and at a common end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from abps.core import streams
from abps.core.errors import RequestError
from abps.data.synthetic import check_ranges

#: Days: half of all events come before ``MIDDLE`` where the hazard is constant; watching ends at ``END``.
MIDDLE, END = 120.0, 720.0


RANGES = {
    "heterogeneity": (0, 20), "centers": (2, 100_000), "groups": (1, 1_000), "features": (1, 1_000),
    "stays": (20, 100_000), "censored": (0, 0.9), "signal": (0, 10), "seed": (0, 2**63 - 1),
}  # fmt: skip


@dataclass(frozen=True)
class SurvivalSynthetic:
    """heterogeneity: how far the groups' effects differ, in standard deviations of the common ones.

    crossing: whether effects turn around in the middle.  censored: about what share leaves before the end.
    stays: mean patients per center.  signal: the size of all effects.  seed: which federation of this kind.
    """

    heterogeneity: float = 1.0
    crossing: bool = False
    centers: int = 40
    groups: int = 4
    features: int = 8
    stays: int = 150
    censored: float = 0.3
    signal: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges("survival-synthetic", self, RANGES)
        if self.groups > self.centers:
            raise RequestError(
                f"survival-synthetic: groups={self.groups} but centers={self.centers}; every group needs one"
            )

    def effects(self) -> np.ndarray:
        """(groups, 2, features) log-hazards per standard deviation, early and late."""
        rng = streams.generator(self.seed, "generate", 1)
        common = rng.standard_normal((1, 2, self.features))
        own = rng.standard_normal((self.groups, 2, self.features))
        found = (common + self.heterogeneity * own) / np.sqrt(1.0 + self.heterogeneity**2)
        if not self.crossing:
            found[:, 1] = found[:, 0]
        return np.asarray(self.signal * found / np.sqrt(self.features) * np.sqrt(2.0))

    def generate(self) -> pl.DataFrame:
        """One row per patient: died, days, center, group, then the features."""
        digits, effects, parts = len(str(self.centers - 1)), self.effects(), []
        for k in range(self.centers):
            name, group = f"center-{k:0{digits}d}", k % self.groups
            rng = streams.generator(self.seed, "generate", 0, streams.center_id(name))
            size = max(20, int(self.stays * np.exp(rng.normal(-0.125, 0.5))))
            x = rng.standard_normal((size, self.features))
            shape, level = np.exp(rng.normal(0.0, 0.2)), rng.normal(0.0, 0.3)
            early, late = (x @ effect + level for effect in effects[group])
            # Cumulative hazard log 2 · (t / MIDDLE)^shape, times each patient's risk, early and late.
            left = rng.exponential(size=size)
            until = np.log(2.0) * np.exp(early)
            rest = np.maximum(left - until, 0.0) * np.exp(-late)
            scaled = np.where(left <= until, left * np.exp(-early), np.log(2.0) + rest) / np.log(2.0)
            time = MIDDLE * scaled ** (1.0 / shape)
            leaves = np.where(rng.random(size) < self.censored, rng.uniform(1.0, END, size), END)
            parts.append(
                pl.DataFrame(
                    {
                        "died": (time <= leaves).astype(np.int8),
                        "days": np.maximum(np.ceil(np.minimum(time, leaves)), 1.0),
                        "center": [name] * size,
                        "group": [f"group-{group}"] * size,
                    }
                    | {f"x{j + 1}": x[:, j] for j in range(self.features)}
                )
            )
        return pl.concat(parts)
