"""How late detectors of change are, and how often they are wrong, on streams with known change points.

Streams look like what a center watches, in units of their standard deviation before the change: a
vital sign, an outcome (death or not), the utility of a peer. They run for ``CHANGE`` numbers, then
change at once, or over ``RAMP`` numbers, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.evaluate import change_detection as drift
from abps.evaluate.change_detection import DETECTORS, detector

Floats = NDArray[np.float64]

LENGTH, CHANGE, RAMP = 400, 200, 100
#: Streams per kind and change. KSWIN runs a Kolmogorov-Smirnov test per number, so it gets fewer.
REPLICATES = 100
FEWER = {"kswin": 10}
KINDS = ("vital sign", "outcome", "utility")
CHANGES = ("none", "sudden", "gradual")


@dataclass(frozen=True)
class Detection:
    """One detector on one kind of stream and change.

    false_alarms: per 1000 numbers before (or without) the change. any_false: share of streams with one.
    found: share of streams with an alarm after the change, of those it was found in: median delay.
    Without a change, found and delay are None.
    """

    detector: str
    kind: str
    change: str
    streams: int
    false_alarms: float
    any_false: float
    found: float | None
    delay: float | None


def stream(kind: str, change: str, rng: np.random.Generator, length: int = LENGTH) -> Floats:
    """(length,) one stream; it changes by 1 (vital sign, utility) or 0.67 (outcome) standard deviations."""
    t = np.arange(length)
    share = {
        "none": np.zeros(length),
        "sudden": (t >= CHANGE).astype(np.float64),
        "gradual": np.clip((t - CHANGE) / RAMP, 0.0, 1.0),
    }[change]
    if kind == "vital sign":
        return np.asarray(rng.normal(0.0, 1.0, length) + share)
    if kind == "outcome":  # mortality from 10 to 30 percent
        return np.asarray((rng.random(length) < 0.1 + 0.2 * share) / math.sqrt(0.1 * 0.9))
    # utility in [0, 1]: Beta with mean 0.6, falling by one standard deviation
    spread = math.sqrt(0.6 * 0.4 / 11.0)
    mean = 0.6 - spread * share
    return np.asarray(rng.beta(10.0 * mean, 10.0 * (1.0 - mean)) / spread)


def detection(
    seed: int,
    names: Sequence[str],
    replicates: int = REPLICATES,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Detection]:
    """Every detector on the same streams."""
    rows = []
    for k, kind in enumerate(KINDS):
        for c, change in enumerate(CHANGES):
            values = np.stack([_stream(seed, kind, change, r) for r in range(replicates)], axis=1)
            for i, name in enumerate(names):
                rows.append(_row(name, kind, change, _watch(seed, name, values)))
                progress(((k * len(CHANGES) + c) * len(names) + i + 1) / (9 * len(names)))
    return sorted(rows, key=lambda row: names.index(row.detector))


def _stream(seed: int, kind: str, change: str, replicate: int) -> Floats:
    center = streams.center_id(f"detection/{kind}/{change}")
    return stream(kind, change, streams.generator(seed, "generate", round=replicate, center=center))


def _watch(seed: int, name: str, values: Floats) -> list[list[int]]:
    """(length, streams) -> the times of the alarms on every stream."""
    rule = DETECTORS[name].rule if name in DETECTORS else None
    if rule is not None:  # all streams at once; an alarm is raised with the last number of its block
        raised = drift.alarms(rule, drift.blocks(values, rule.block))
        return [[int(b + 1) * rule.block - 1 for b in np.flatnonzero(each)] for each in raised.T]
    runs = []
    for r, column in enumerate(values.T[: FEWER.get(name)].tolist()):
        watcher = detector(name, seed=streams.key(seed, "generate", round=r, center=1))
        runs.append([t for t, value in enumerate(column) if watcher.update(value)])
    return runs


def _row(name: str, kind: str, change: str, runs: list[list[int]]) -> Detection:
    """runs: the times of the alarms of every stream."""
    until = LENGTH if change == "none" else CHANGE
    false = [sum(t < until for t in alarms) for alarms in runs]
    after = [min((t - CHANGE for t in alarms if t >= CHANGE), default=None) for alarms in runs]
    delays = [d for d in after if d is not None]
    return Detection(
        name,
        kind,
        change,
        len(runs),
        1000.0 * sum(false) / (until * len(runs)),
        float(np.mean([f > 0 for f in false])),
        None if change == "none" else len(delays) / len(runs),
        None if change == "none" or not delays else float(np.median(delays)),
    )
