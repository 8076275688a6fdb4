"""How fast this machine learns: the stacked engine, a plain PyTorch loop and the matrix-multiply roof; and
how selection grows with the number of centers.

Engine, loop and roof are measured in turns, because machines are noisy: what counts are the ratios. The plain
loop gets the faster of one thread and all threads.
"""

import itertools
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from abps.core import streams
from abps.core.arrays import repeated
from abps.core.beliefs import Beliefs
from abps.core.goals import Candidates
from abps.core.selection import RoundKeys, Selection
from abps.data.prepare import Prepared, Rows
from abps.data.table import load
from abps.engine.simulate import simulate
from abps.machine import available_cores
from abps.methods.proposals import match_by_beliefs
from abps.models.learners import learner_for
from abps.models.training import Training

#: Times that the engine is measured in every turn: the plain loop takes so much longer.
ROUNDS_PER_TURN = 4

#: Sizes of ``abps bench --scale``: centers among which partners are selected, centers that abps-plus fits.
SIZES = (1_000, 10_000, 100_000)
FIT_SIZES = (230, 1_000, 3_000, 10_000)


@dataclass(frozen=True)
class Speed:
    """What a benchmark found; the fields of ``abps bench --json``."""

    centers: int
    rows: int
    features: int
    cores: int
    center_rounds_per_s: float
    loop_center_rounds_per_s: float
    ratio_to_loop: float
    useful_gflops: float
    sgemm_gflops: float
    fraction_of_roof: float
    peak_mb: float


def uniform(centers: int = 230, rows: int = 256, width: int = 64, seed: int = 0) -> Prepared:
    """Centers of one size with a linear risk: the shape in which engines are compared."""
    rng = np.random.default_rng(seed)
    slope = rng.standard_normal(width) / np.sqrt(width)

    def part(count: int) -> Rows:
        x = rng.standard_normal((centers * count, width)).astype(np.float32)
        y = (rng.random(len(x)) < 1 / (1 + np.exp(2.0 - 2.0 * (x @ slope)))).astype(np.float32)
        return Rows(x, y, np.arange(centers + 1) * count)

    return Prepared(
        name=f"uniform {centers}x{rows}x{width}",
        centers=tuple(f"c{i:06d}" for i in range(centers)),
        columns=tuple(f"x{k}" for k in range(width)),
        train=part(rows),
        validation=part(max(1, rows // 5)),
        test=part(max(1, rows // 5)),
        metadata=np.zeros((centers, 2)),
        metadata_names=("positive rate", "log training rows"),
        base_metadata=2,
        groups=None,
        seed=seed,
    )


def flops_per_round(data: Prepared, training: Training) -> float:
    """Useful floating-point operations of one round of local training: those of the matrix products; the
    first layer needs no gradient with respect to its input."""
    hidden = () if training.optimizer == "newton" else training.hidden
    sizes = [data.width, *hidden, 1]
    products = [a * b for a, b in itertools.pairwise(sizes)]
    per_row = 2 * (2 * sum(products) + sum(products[1:]))
    return float(per_row * len(data.train.y) * training.epochs)


def plain_round(data: Prepared, training: Training, models: list[nn.Module]) -> None:
    """One round of some centers, as anybody would write it."""
    for i, model in enumerate(models):
        rows = data.train.only(i)
        x, y = torch.from_numpy(rows.x), torch.from_numpy(rows.y)
        descent = training.optimizer == "newton"
        kind = torch.optim.SGD if descent else torch.optim.Adam
        optimizer = kind(model.parameters(), lr=training.lr, weight_decay=training.decay)
        model.train()
        for _ in range(training.epochs):
            for index in torch.randperm(len(y)).split(len(y) if descent else training.batch):
                loss = F.binary_cross_entropy_with_logits(model(x[index]), y[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def sgemm_gflops(size: int = 1024, seconds: float = 0.15) -> float:
    """The machine's own single-precision matrix-multiply speed, all cores."""
    a = torch.randn(size, size)
    out = torch.empty(size, size)
    torch.mm(a, a, out=out)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        torch.mm(a, a, out=out)
        count += 1
    return 2.0 * size**3 * count / (time.perf_counter() - began) / 1e9


def measure(
    data: Prepared,
    turns: int = 5,
    loop_centers: int = 24,
    progress: Callable[[int, int], None] = lambda done, of: None,
    training: Training | None = None,
) -> Speed:
    """Engine, loop and roof in turns; medians of each, and of the ratios within a turn."""
    training, cores = training or Training(), len(available_cores())
    learner = learner_for(data, training, 1)
    w = repeated(learner.start, data.size).copy()
    few = min(loop_centers, data.size)
    models = [training.factory(data.width) for _ in range(few)]
    share = float(data.train.sizes[:few].sum() / data.train.sizes.sum())
    threads = torch.get_num_threads()
    learner.train(w, 0)  # warm: buffers, threads, kernels
    stacked, loops, roofs = [], [], []
    for turn in range(turns):
        torch.set_num_threads(cores)
        for _ in range(ROUNDS_PER_TURN):
            roofs.append(sgemm_gflops())
            stacked.append(_seconds(partial(learner.train, w, turn + 1)))
        fastest = np.inf
        for count in {1, cores}:
            torch.set_num_threads(count)
            fastest = min(fastest, _seconds(partial(plain_round, data, training, models)))
        loops.append(fastest / share)
        progress(turn + 1, turns)
    torch.set_num_threads(threads)
    seconds, useful = statistics.median(stacked), flops_per_round(data, training) / 1e9
    return Speed(
        centers=data.size,
        rows=len(data.train.y),
        features=data.width,
        cores=cores,
        center_rounds_per_s=data.size / seconds,
        loop_center_rounds_per_s=data.size / statistics.median(loops),
        ratio_to_loop=statistics.median([b / a for a, b in zip(stacked[::ROUNDS_PER_TURN], loops)]),
        useful_gflops=useful / seconds,
        sgemm_gflops=statistics.median(roofs),
        fraction_of_roof=statistics.median([useful / a / r for a, r in zip(stacked, roofs)]),
        peak_mb=peak_mb(),
    )


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def selection_cost(n: int, kappa: int = 1, rounds: int = 3) -> tuple[float, float]:
    """Processor seconds (median) of a round of selection among n centers that learn random utilities of each
    other, and the peak memory of the process."""
    ids, config, beliefs = streams.bits(0, "generate", 0, np.arange(n)), Selection(kappa=kappa), Beliefs(n)
    seconds = []
    for t in range(1, rounds + 1):
        began = time.process_time()
        plan = match_by_beliefs(config, beliefs, Candidates(), True, RoundKeys(ids, 1, t, rounds))
        seconds.append(time.process_time() - began)
        i, j = np.concatenate([plan.pairs, plan.pairs[:, ::-1]]).T
        beliefs = beliefs.observe(i, j, streams.uniforms(2, "generate", t, ids[i]))
    return statistics.median(seconds), peak_mb()


def fit_cost(n: int, rows: int = 60) -> tuple[float, float]:
    """Seconds of a run of abps-plus on n centers that differ, of so many rows each, and its peak memory."""
    federation = load(f"icu-synthetic:heterogeneity=4,centers={n},stays={n * rows}")
    began = time.perf_counter()
    simulate(federation, "abps-plus", seed=11)
    return time.perf_counter() - began, peak_mb()


def peak_mb() -> float:
    """The largest resident memory of this process; on Linux without what its parent held when it started."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def in_its_own_process(work: Callable[..., Any], *args: Any) -> Any:
    """The result of ``work`` from a fresh process, whose peak memory is that of ``work``."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *args).result()
