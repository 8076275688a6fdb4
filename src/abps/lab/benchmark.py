"""The benchmark: methods × federations, cross-fitted, with intervals, ranks, bytes, calibration and harm.

Every federation is a study of its own (resumable, in its own folder). On a real table the repeats divide the
patients anew; of a generator every repeat is a new world, and intervals are over worlds. All methods share
the folds, the model and the codec of the weights they send; bytes are those of both directions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from abps import files
from abps.core.errors import RequestError, nearest
from abps.data.federation import Federation
from abps.engine.result import Run
from abps.evaluate.calibration import calibration, expit
from abps.evaluate.inference import average_gain, fold_inflation
from abps.evaluate.measured import Measured, measured
from abps.evaluate.paired import PairedCells
from abps.lab.anatomy import Anatomy, anatomy
from abps.lab.suite import Description, make_federation, smaller, suite
from abps.methods.catalog import find
from abps.methods.settings import names
from abps.study.compare import Study, compare
from abps.study.execute import Executor
from abps.study.plan import slug

#: What differences are taken to: all rows in one place, and the best that a hospital does alone.
POOLED, ALONE = "pooled-best", "local-best"

#: What stands beside the methods on every federation.
BESIDE = (ALONE, POOLED, "glm-exact")

#: A hospital is worse off if it loses more than this to its own model.
RELEVANT = 0.02

#: Expected events from which a hospital's observed and expected numbers are compared.
ENOUGH = 10

#: Questions that two methods answer: what it asks, the method that should win, and the other.
QUESTIONS = (
    ("bandit selection beats random pairs", "abps-pq-k1", "random-k1"),
    ("rest pays", "abps-k1-rests", "abps-k1-never-rests"),
    ("abps-plus beats random intercepts alone", "abps-plus", "glmm"),
    ("abps-plus beats clustered FedAvg", "abps-plus", "clustered"),
    ("abps-plus beats FedAvg", "abps-plus", "fedavg"),
)

#: Lower ends of classes of hospitals by their events.
SIZES = (0, 10, 20, 50, 100, 200)


@dataclass(frozen=True)
class Setup:
    """What all methods of a benchmark share.

    model: what they train; references have their own, and ``method@model`` another.  codec: of weights sent;
    methods that send sums or scores have a form of their own.  folds: every patient is scored out of fold.
    rows: larger federations are cut to whole hospitals with at most so many rows; 0: all; none: as described.
    rounds: of methods with a server that average models, which converge; none: each method's own.
    jobs: processes; more than one need a folder.  executor: what else computes the runs, such as a cluster.
    """

    model: str = "gam"
    codec: str = "bf16"
    folds: int = 5
    rows: int | None = None
    rounds: int | None = None
    jobs: int = 1
    executor: Executor | None = None


@dataclass(frozen=True)
class Row:
    """One method on one federation; differences are in the main measure, with 95 % intervals.

    codec: of weights; sums: of numbers that are no weights.  loss: log-loss.  slope: calibration slope.
    expected_ratio: observed over expected events.  expected_error: mean |log of it| over hospitals.
    worse_off: share of scored hospitals that measure more than 0.02 below their own model.
    kilobytes: all that one hospital sends and receives.  seconds: of one repeat.
    late_change: of the mean AUROC in the last quarter of the rounds.
    """

    federation: str
    real: bool
    method: str
    codec: str
    centers: int
    repeats: int
    score: float
    loss: float
    slope: float
    expected_ratio: float
    expected_error: float
    to_pooled: float
    to_pooled_low: float
    to_pooled_high: float
    to_alone: float
    to_alone_low: float
    to_alone_high: float
    worse_off: float
    kilobytes: float
    all_vs_fedavg: float
    seconds: float
    late_change: float


@dataclass(frozen=True)
class MethodContrast:
    """The answer of one federation to a question: first minus second, in AUROC and in log-loss saved."""

    question: str
    federation: str
    real: bool
    first: str
    second: str
    auroc: float
    auroc_low: float
    auroc_high: float
    loss: float
    loss_low: float
    loss_high: float


@dataclass(frozen=True)
class SizeClass:
    """Hospitals with a number of events, and what a method gains there on a hospital's own model.

    better: share of hospitals with the smaller log-loss.
    """

    federation: str
    method: str
    least_events: int
    hospitals: int
    auroc: float
    loss: float
    better: float


@dataclass(frozen=True, eq=False)
class BenchmarkResult:
    """What a benchmark found."""

    rows: tuple[Row, ...] = ()
    contrasts: tuple[MethodContrast, ...] = ()
    sizes: tuple[SizeClass, ...] = ()
    anatomy: tuple[Anatomy, ...] = ()

    def __add__(self, more: BenchmarkResult) -> BenchmarkResult:
        return BenchmarkResult(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(self)))


@dataclass(frozen=True, eq=False)
class _Part:
    """One federation's runs by method, and the measures of their rows."""

    runs: Mapping[str, Sequence[Run]]
    scores: Measured
    folds: int


def run_benchmark(
    chosen: Sequence[Description],
    methods: Sequence[str],
    seeds: Sequence[int],
    folder: Path | None,
    out: Path | None,
    setup: Setup = Setup(),
    progress: Callable[[str], None] = lambda line: None,
) -> BenchmarkResult:
    """All methods on all federations; what is finished in ``out`` is not computed again.

    On a real table all repeats are one study; of a generator every repeat is another world, with its own.
    """
    found = BenchmarkResult()
    for description in chosen:
        parts: list[_Part] = []
        for own in [tuple(seeds)] if description.real else [(seed,) for seed in seeds]:
            federation = make_federation(description, folder, own[0])
            if not parts and federation.outcome.binary:
                found += BenchmarkResult(anatomy=(anatomy(description.name, federation),))
            rows = description.rows if setup.rows is None else setup.rows
            name = description.name if description.real else f"{description.name}-{own[0]}"
            parts.append(_part(smaller(federation, rows), name, own, methods, out, setup))
            progress(f"{name}: {len(methods)} methods, {len(own)} repeat(s)")
        found += _results(description.name, description.real, parts)
    return found


def _add_time(out: Path, seconds: float) -> None:
    """Processor seconds of all runs in a folder."""
    place = out / "machine.csv"
    before = float(pl.read_csv(place)["cpu_seconds"][0]) if place.exists() else 0.0
    files.write_text(place, pl.DataFrame({"cpu_seconds": [round(before + seconds, 1)]}).write_csv())


def benchmark(
    federations: Mapping[str, Federation] | Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int] = (11, 22, 33),
    *,
    out: Path | str | None = None,
    data_folder: Path | str | None = None,
    **setup: Any,
) -> pl.DataFrame:
    """Methods on several federations: one line per method and federation, with differences to pooled rows and
    to hospitals alone, bytes, calibration, harm and time.

    federations: by name, or names of the package's suite (``data_folder`` holds the real tables of that).
    out: a folder that keeps the runs; ``jobs`` processes need one.  setup: fields of :class:`Setup`.
    """
    place, shared = None if out is None else Path(out), Setup(**setup)
    if not isinstance(federations, Mapping):
        known, folder = suite(), None if data_folder is None else Path(data_folder)
        for name in federations:
            if name not in known:
                raise RequestError(f"there is no federation {name!r} in the suite{nearest(name, known)}")
        chosen = [known[name] for name in federations]
        return to_frame(run_benchmark(chosen, methods, seeds, folder, place, shared).rows)
    found = BenchmarkResult()
    for name, federation in federations.items():
        rows = shared.rows or 0
        part = _part(smaller(federation, rows), slug(name), tuple(seeds), methods, place, shared)
        found += _results(name, True, [part])
    return to_frame(found.rows)


def _part(
    federation: Federation,
    name: str,
    seeds: tuple[int, ...],
    methods: Sequence[str],
    out: Path | None,
    setup: Setup,
) -> _Part:
    """The measures of all methods together; a method that lacks a repeat is left out."""
    place = None if out is None else out / "studies" / name
    stored, began = _stored(place), sum(os.times()[:4])
    runs: dict[str, list[Run]] = {}
    for study, other in _studies(federation, seeds, methods, place, setup):
        runs |= {f"{label}{other}": own for label, own in _by_label(study).items()}
    if out is not None:
        _add_time(out, sum(os.times()[:4]) - began if _stored(place) > stored else 0.0)
    whole = {label: found for label, found in runs.items() if len(found) == len(seeds)}
    if not {ALONE, POOLED} <= set(whole):
        raise RequestError(f"{name}: runs are missing; give the same command again when they are there")
    frames = {label: [run.row_scores for run in found] for label, found in whole.items()}
    centers = next(iter(whole.values()))[0].data.centers
    return _Part(whole, measured(frames, centers), setup.folds)  # type: ignore[arg-type]


def _stored(place: Path | None) -> int:
    """How many results of a federation are there."""
    return 0 if place is None else len(list(place.parent.glob(f"{place.name}*/runs/*/result.json")))


def _studies(
    federation: Federation, seeds: Sequence[int], methods: Sequence[str], place: Path | None, setup: Setup
) -> Iterator[tuple[Study, str]]:
    """Studies of the references, and of methods with the same settings, each with what its labels get.

    What a study's settings are depends on a method alone, so that methods can be added to a folder.
    """
    groups: dict[tuple[str, bool, int | None], list[str]] = {}
    for method in methods:
        name, _, model = method.partition("@")
        if name not in BESIDE:
            config = find(name)
            sends, star = "codec" in names(config), config.kind == "star"
            rounds = setup.rounds if star and sends and not model else None
            groups.setdefault((model or setup.model, sends, rounds), []).append(name)
    jobs = setup.jobs if setup.jobs > 1 else None
    how: dict[str, Any] = {"folds": setup.folds, "references": False}
    how |= {"jobs": jobs, "executor": setup.executor}

    def folder(suffix: str) -> Path | None:
        return None if place is None else place.with_name(f"{place.name}{suffix}")

    yield compare(federation, BESIDE, seeds, out=folder("-references"), **how), ""
    for (model, sends, rounds), asked in groups.items():
        other = "" if model == setup.model else f"@{model}"
        suffix = f"{other.replace('@', '-')}{'' if sends else '-sums'}{'' if rounds is None else '-star'}"
        settings = {"codec": setup.codec} if sends else {}
        more: dict[str, Any] = {"model": model, "settings": settings, "rounds": rounds}
        yield compare(federation, asked, seeds, out=folder(suffix), **more, **how), other


def _by_label(study: Study) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {}
    for planned, run in sorted(study.runs, key=lambda each: each[1].seed):
        runs.setdefault(planned.label, []).append(run)
    return runs


def _results(name: str, real: bool, parts: Sequence[_Part]) -> BenchmarkResult:
    labels = [label for label in parts[0].runs if all(label in part.runs for part in parts)]
    rows = tuple(_row(name, real, parts, label) for label in labels)
    contrasts = tuple(
        MethodContrast(
            question, name, real, first, second,
            *_interval([part.scores.cells(first, second) for part in parts], parts[0].folds, real),
            *_interval([part.scores.loss_cells(first, second) for part in parts], parts[0].folds, real),
        )
        for question, first, second in QUESTIONS
        if first in labels and second in labels
    )  # fmt: skip
    collaborating = [label for label in ("abps-plus", "glmm", "fedavg") if label in labels]
    sizes = _size_classes(name, parts, collaborating[0]) if real and collaborating and ALONE in labels else ()
    return BenchmarkResult(rows, contrasts, sizes)


def _row(name: str, real: bool, parts: Sequence[_Part], label: str) -> Row:
    levels = [part.scores.level(label) for part in parts]
    runs = [run for part in parts for run in part.runs[label]]
    worse = [
        level - part.scores.level(ALONE) < -RELEVANT
        for part, level in zip(parts, levels)
        if ALONE in part.runs and label != ALONE
    ]
    known = [np.isfinite(level) for level in levels]
    calibrated = [_calibration(run) for run in runs]
    return Row(
        name,
        real,
        label,
        _codec(runs[0], label),
        runs[0].data.centers,
        len(runs),
        _mean([float(np.nanmean(level)) for level in levels]),
        _mean([float(np.nanmean(part.scores.mean_loss(label))) for part in parts]),
        _mean([slope for slope, _, _ in calibrated]),
        _mean([ratio for _, ratio, _ in calibrated]),
        _mean([error for _, _, error in calibrated]),
        *_against(parts, label, POOLED, real),
        *_against(parts, label, ALONE, real),
        _mean([float(w[k].mean()) for w, k in zip(worse, known)]) if worse else math.nan,
        _mean([run.bytes.all / run.data.centers / 1e3 for run in runs]),
        _mean([run.bytes.all_vs_fedavg for run in runs]),
        _mean([run.seconds for run in runs]),
        _mean([abs(h[-1] - h[-1 - len(h) // 4]) for h in (run.history.auroc for run in runs)]),
    )


def _codec(run: Run, label: str) -> str:
    """The codec of a run's weights, or that it sends none."""
    config = run.config
    wire = config.get("wire", config)
    found = wire.get("codec") if isinstance(wire, dict) else None
    return str(found) if found else "none" if label in (ALONE, POOLED) else "sums"


def _calibration(run: Run) -> tuple[float, float, float]:
    """Slope and observed/expected over all patients, and the mean |log O/E| over hospitals."""
    frame = run.row_scores
    if frame is None or "logit" not in frame.columns:
        return math.nan, math.nan, math.nan
    chance = expit(np.clip(frame["logit"].to_numpy().astype(np.float64), -30.0, 30.0))
    y, center = frame["y"].to_numpy().astype(np.float64), frame["center"].to_numpy()
    whole = calibration(chance, y)
    expected, observed = np.bincount(center, chance), np.bincount(center, y)
    known = (expected >= ENOUGH) & (observed > 0)
    error = float(np.abs(np.log(observed[known] / expected[known])).mean()) if known.any() else math.nan
    return whole.slope.value, y.sum() / chance.sum(), error


def _against(parts: Sequence[_Part], label: str, other: str, real: bool) -> tuple[float, float, float]:
    """A method minus another."""
    if label == other or not all(other in part.runs for part in parts):
        return math.nan, math.nan, math.nan
    return _interval([part.scores.cells(label, other) for part in parts], parts[0].folds, real)


def _interval(cells: Sequence[PairedCells], folds: int, real: bool) -> tuple[float, float, float]:
    """A mean difference, with an interval by patients and runs, or over the worlds of a generator."""
    gains = [average_gain(each, fold_inflation(folds)) for each in cells]
    if real:
        return gains[0].estimate, *gains[0].interval()
    values = np.array([gain.estimate for gain in gains])
    if len(values) < 2:
        return float(values[0]), math.nan, math.nan
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return float(values.mean()), float(values.mean()) - half, float(values.mean()) + half


def _size_classes(name: str, parts: Sequence[_Part], method: str) -> tuple[SizeClass, ...]:
    """Gains over hospitals alone by the hospitals' events."""
    scores = parts[0].scores
    repeats = len(parts[0].runs[method])
    events = np.bincount(scores.rows.center, scores.rows.y, scores.rows.centers) / repeats
    auroc = scores.level(method) - scores.level(ALONE)
    loss = scores.mean_loss(ALONE) - scores.mean_loss(method)
    number = np.searchsorted(SIZES, events, side="right") - 1
    found = []
    for k, least in enumerate(SIZES):
        mine = number == k
        if mine.any():
            gains = _known_mean(auroc[mine]), _known_mean(loss[mine])
            better = float((loss[mine] > 0).mean())
            found.append(SizeClass(name, method, least, int(mine.sum()), *gains, better))
    return tuple(found)


def _known_mean(values: NDArray[np.float64]) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def to_frame(rows: Sequence[Row | MethodContrast | SizeClass | Anatomy]) -> pl.DataFrame:
    """One line per entry, for a CSV that others can add lines to."""
    return pl.DataFrame([asdict(row) for row in rows]).with_columns(pl.col(pl.Float64).fill_nan(None))


@dataclass(frozen=True)
class Ranking:
    """Methods by mean rank over federations (1 is best), and the difference of ranks that chance gives.

    critical: Nemenyi's critical difference at 5 %.  to_pooled: mean difference to all rows in one place.
    """

    methods: tuple[str, ...]
    ranks: tuple[float, ...]
    to_pooled: tuple[float, ...]
    federations: int
    critical: float


def ranking(frame: pl.DataFrame) -> Ranking:
    """Mean ranks of the methods that ran on every federation, without those that need pooled rows."""
    count = frame["federation"].n_unique()
    own = frame.filter(~pl.col("method").is_in([POOLED, "centralized"]))
    whole = own.group_by("method").len().filter(pl.col("len") == count)["method"]
    own = own.filter(pl.col("method").is_in(whole.to_list()))
    ranked = own.with_columns(rank=pl.col("score").rank("average", descending=True).over("federation"))
    mean = (
        ranked.group_by("method")
        .agg(pl.col("rank").mean(), pl.col("to_pooled").mean())
        .sort("rank", "method")
    )
    k = mean.height
    critical = math.nan
    if k > 1 and count > 1:
        q = float(stats.studentized_range.ppf(0.95, k, np.inf)) / math.sqrt(2.0)
        critical = q * math.sqrt(k * (k + 1) / (6.0 * count))
    differences = tuple(math.nan if v is None else float(v) for v in mean["to_pooled"])
    return Ranking(tuple(mean["method"]), tuple(mean["rank"]), differences, count, critical)
