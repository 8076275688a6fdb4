"""How selection grows with the number of centers: seconds per round and peak memory.

Every size is measured in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from abps.core import goals, streams
from abps.core.beliefs import Beliefs
from abps.core.candidates import candidates
from abps.core.selection import Selection
from abps.core.sparse_selection import select_sparsely
from abps.lab.speed import peak_mb

P = ParamSpec("P")
T = TypeVar("T")

#: Sizes of ``abps bench --scale``.
SIZES = (1_000, 10_000, 100_000)


@dataclass(frozen=True)
class SelectionCost:
    """What selection costs at a size.

    seconds: of a round, median; setup_seconds: of calibrating the filter, once.
    start_mb: memory of the process before; peak_mb: at most.
    rest: share of centers without a partner.  proposals: per center and round.
    """

    centers: int
    goal: str
    kappa: int
    seconds: float
    setup_seconds: float
    start_mb: float
    peak_mb: float
    rest: float
    proposals: float


def metadata(n: int, seed: int = 0) -> NDArray[np.float64]:
    """(n, 15) published vectors as six kinds of care units have them: outcome rate, log of the rows, year
    over 2030, and twelve prevalences around those of the unit."""
    rng = streams.generator(seed, "generate")
    unit = rng.integers(6, size=n)
    prevalence = rng.beta(1.2, 6.0, size=(6, 12))[unit] + rng.normal(0.0, 0.05, size=(n, 12))
    year = (2110 + 80 * rng.random(n)) / 2030
    return np.c_[rng.beta(3.0, 40.0, n), rng.normal(5.2, 0.6, n), year, np.clip(prevalence, 0.0, 1.0)]


def selection_cost(n: int, goal: str = "homogeneity", kappa: int = 1, rounds: int = 3) -> SelectionCost:
    """Some rounds of selection among n centers that learn random utilities of each other."""
    vectors = metadata(n)
    ids = streams.bits(0, "generate", 0, np.arange(n))
    start = own_peak_mb()
    began = time.perf_counter()
    chosen = None if goal == "none" else [goals.goal(goal)] * n
    sets = candidates(vectors, chosen, 0.25, "global_pairs")
    setup = time.perf_counter() - began
    config, beliefs = Selection(kappa=kappa), Beliefs(n)
    seconds, rest, proposals = [], [], []
    for t in range(1, rounds + 1):
        began = time.perf_counter()
        plan = select_sparsely(config, beliefs, sets, True, ids, 1, t, rounds)
        seconds.append(time.perf_counter() - began)
        rest.append(float(np.mean(plan.rest != 0)))
        proposals.append(plan.proposals / n)
        i, j = np.concatenate([plan.pairs, plan.pairs[:, ::-1]]).T
        beliefs = beliefs.observe(i, j, streams.uniforms(2, "generate", t, ids[i]))
    return SelectionCost(
        centers=n,
        goal=goal,
        kappa=kappa,
        seconds=statistics.median(seconds),
        setup_seconds=setup,
        start_mb=start,
        peak_mb=own_peak_mb(),
        rest=statistics.mean(rest),
        proposals=statistics.mean(proposals),
    )


def own_peak_mb() -> float:
    """The largest resident memory of this process; on Linux without what its parent held when it started."""
    status = Path("/proc/self/status")
    if not status.exists():
        return peak_mb()
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def in_its_own_process(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``work`` from a fresh process, whose peak memory is that of ``work``."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *args, **kwargs).result()


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The b of seconds ~ sizes ** b, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
