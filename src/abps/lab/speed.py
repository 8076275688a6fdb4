"""How fast this machine learns: the stacked engine, a plain PyTorch loop and the matrix-multiply roof; and
what a whole round of ABPS costs beside the training in it.

All in one run and in turns, because machines are noisy: what counts are the ratios. The plain loop is
what anybody would write: one ``nn.Module`` after the other, ``nn.Dropout``, ``torch.optim.Adam``, batches
by random permutation; it gets the faster of one thread and all threads.
"""

from __future__ import annotations

import itertools
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from abps.core import streams
from abps.core.arrays import repeated
from abps.cores import available_cores
from abps.data.prepare import Prepared, Rows
from abps.engine.rounds import RunState
from abps.engine.track import Track
from abps.methods.base import Context
from abps.methods.catalog import find
from abps.models.learners import learner_for
from abps.models.training import Learner, Training

#: Called with (what is being measured, done, of).
Progress = Callable[[str, int, int], None]


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
    round_to_training: dict[str, float]
    peak_mb: float


#: Methods whose whole rounds are measured beside the training that they contain.
ROUNDS = ("abps-pq-k1", "abps")


#: Times that these are measured in every turn: the plain loop takes so much longer.
ROUNDS_PER_TURN = 4


class _Rounds:
    """Whole rounds of a method, one after the other: training, selection, exchange, credit, evaluation."""

    def __init__(self, name: str, learner: Learner) -> None:
        data = learner.data
        method = find(name)
        context = Context(learner, data, streams.center_ids(data.centers), 1, method.stop.rounds)
        self._course = RunState.start(replace(method, budget=None), context)
        self._track, self._t = Track(data.centers), 0

    def play(self) -> float:
        """The seconds of one more round."""
        began = time.perf_counter()
        self._t += 1
        self._course, outcome = self._course.round(self._t)
        self._track.add(self._course, outcome)
        return time.perf_counter() - began


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
    """Useful floating-point operations of one round of local training (multiplications and additions of
    the matrix products; the first layer needs no gradient with respect to its input)."""
    hidden = () if training.optimizer == "descent" else training.hidden
    sizes = [data.width, *hidden, 1]
    products = [a * b for a, b in itertools.pairwise(sizes)]
    per_row = 2 * (2 * sum(products) + sum(products[1:]))
    return float(per_row * len(data.train.y) * training.epochs)


def plain_round(data: Prepared, training: Training, models: list[nn.Module]) -> None:
    """One round of some centers, as anybody would write it."""
    for i, model in enumerate(models):
        rows = data.train.only(i)
        x, y = torch.from_numpy(rows.x), torch.from_numpy(rows.y)
        descent = training.optimizer == "descent"
        kind = torch.optim.SGD if descent else torch.optim.Adam
        optimizer = kind(model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
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


def peak_mb() -> float:
    """The largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def measure(
    data: Prepared,
    turns: int = 5,
    loop_centers: int = 24,
    progress: Progress | None = None,
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
    whole = {name: _Rounds(name, learner) for name in ROUNDS}
    for rounds in whole.values():
        rounds.play()
    stacked, loops, roofs = [], [], []
    ratios: dict[str, list[float]] = {name: [] for name in ROUNDS}
    for turn in range(turns):
        torch.set_num_threads(cores)
        for _ in range(ROUNDS_PER_TURN):
            roofs.append(sgemm_gflops())
            began = time.perf_counter()
            learner.train(w, turn + 1)
            stacked.append(time.perf_counter() - began)
            for name, rounds in whole.items():
                ratios[name].append(rounds.play() / stacked[-1])
        fastest = np.inf
        for count in {1, cores}:
            torch.set_num_threads(count)
            began = time.perf_counter()
            plain_round(data, training, models)
            fastest = min(fastest, time.perf_counter() - began)
        loops.append(fastest / share)
        if progress is not None:
            progress("local training", turn + 1, turns)
    torch.set_num_threads(threads)
    seconds, roof = statistics.median(stacked), statistics.median(roofs)
    useful = flops_per_round(data, training) / 1e9
    return Speed(
        centers=data.size,
        rows=len(data.train.y),
        features=data.width,
        cores=cores,
        center_rounds_per_s=data.size / seconds,
        loop_center_rounds_per_s=data.size / statistics.median(loops),
        ratio_to_loop=statistics.median([b / a for a, b in zip(stacked[::ROUNDS_PER_TURN], loops)]),
        useful_gflops=useful / seconds,
        sgemm_gflops=roof,
        fraction_of_roof=statistics.median([useful / a / r for a, r in zip(stacked, roofs)]),
        round_to_training={name: statistics.median(found) for name, found in ratios.items()},
        peak_mb=peak_mb(),
    )
