"""The benchmark: methods × federations, cross-fitted, with intervals, ranks, bytes and harm.

Every federation is a study of its own (resumable, in its own folder). On a real table the repeats divide the
patients anew; of a generator every repeat is a new world, and intervals are over worlds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

from abps.core.errors import RequestError, nearest
from abps.data.federation import Federation
from abps.engine.result import Run
from abps.evaluate.inference import average_gain, fold_inflation
from abps.evaluate.measured import Measured, measured
from abps.lab.suite import Description, make_federation, suite
from abps.study.compare import Study, compare
from abps.study.plan import slug

#: What differences are taken to: all rows in one place, and the best that a hospital does alone.
POOLED, ALONE = "pooled-best", "local-best"

#: What stands beside the methods on every federation.
BESIDE = (ALONE, POOLED, "glm-exact")

#: A hospital is worse off if it loses more than this to its own model.
RELEVANT = 0.02


@dataclass(frozen=True)
class Row:
    """One method on one federation; differences are in the main measure, with 95 % intervals.

    worse_off: share of scored hospitals that measure more than 0.02 below their own model.
    kilobytes: all that one hospital sends and receives.  seconds: of one repeat.
    """

    federation: str
    real: bool
    method: str
    centers: int
    repeats: int
    score: float
    loss: float
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


@dataclass(frozen=True, eq=False)
class _Part:
    """One study's runs by method, and the measures of their rows."""

    runs: Mapping[str, Sequence[Run]]
    scores: Measured
    folds: int


def run_benchmark(
    chosen: Sequence[Description],
    methods: Sequence[str],
    seeds: Sequence[int],
    folder: Path | None,
    out: Path | None,
    model: str = "gam",
    folds: int = 5,
    jobs: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """All methods on all federations; what is finished in ``out`` is not computed again.

    model: what every method shares; references have their own.
    """
    rows: list[Row] = []
    asked = [method for method in methods if method not in BESIDE]
    for description in chosen:
        worlds = [tuple(seeds)] if description.real else [(seed,) for seed in seeds]
        parts = []
        for own in worlds:
            name = description.name if description.real else f"{description.name}-{own[0]}"
            progress(f"{name}: {len(asked)} methods, {len(own)} repeat(s), {folds} folds")
            federation = make_federation(description, folder, own[0])
            place = None if out is None else out / "studies" / name
            study = compare(
                federation, asked, own, model=model, folds=folds, out=place, jobs=jobs, references=BESIDE
            )
            parts.append(_part(study, folds))
        rows += _rows(description, parts)
    return rows


def benchmark(
    federations: Mapping[str, Federation] | Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int] = (11, 22, 33),
    *,
    out: Path | str | None = None,
    data_folder: Path | str | None = None,
    model: str = "gam",
    folds: int = 5,
    jobs: int | None = None,
) -> pl.DataFrame:
    """Methods on several federations: one line per method and federation, with differences to pooled rows and
    to hospitals alone, bytes, harm and time.

    federations: by name, or names of the package's suite (``data_folder`` holds the real tables of that).
    model: what every method shares.  out: a folder that keeps the runs; ``jobs`` processes need one.
    """
    place = None if out is None else Path(out)
    if not isinstance(federations, Mapping):
        known, folder = suite(), None if data_folder is None else Path(data_folder)
        for name in federations:
            if name not in known:
                raise RequestError(f"there is no federation {name!r} in the suite{nearest(name, known)}")
        chosen = [known[name] for name in federations]
        return to_frame(run_benchmark(chosen, methods, seeds, folder, place, model, folds, jobs))
    rows: list[Row] = []
    asked = [method for method in methods if method not in BESIDE]
    for name, federation in federations.items():
        here = None if place is None else place / "studies" / slug(name)
        study = compare(
            federation, asked, seeds, model=model, folds=folds, out=here, jobs=jobs, references=BESIDE
        )
        rows += _rows(Description(name), [_part(study, folds)])
    return to_frame(rows)


def _part(study: Study, folds: int) -> _Part:
    runs: dict[str, list[Run]] = {}
    for planned, run in sorted(study.runs, key=lambda each: each[1].seed):
        runs.setdefault(planned.label, []).append(run)
    whole = {label: found for label, found in runs.items() if len(found) == max(map(len, runs.values()))}
    frames = {label: [run.row_scores for run in found] for label, found in whole.items()}
    centers = next(iter(whole.values()))[0].data.centers
    return _Part(whole, measured(frames, centers), folds)  # type: ignore[arg-type]


def _rows(description: Description, parts: Sequence[_Part]) -> list[Row]:
    labels = [label for label in parts[0].runs if all(label in part.runs for part in parts)]
    return [_row(description, parts, label) for label in labels]


def _row(description: Description, parts: Sequence[_Part], label: str) -> Row:
    levels = [part.scores.level(label) for part in parts]
    runs = [run for part in parts for run in part.runs[label]]
    worse = [
        level - part.scores.level(ALONE) < -RELEVANT
        for part, level in zip(parts, levels)
        if ALONE in part.runs and label != ALONE
    ]
    known = [np.isfinite(level) for level in levels]
    return Row(
        description.name,
        description.real,
        label,
        runs[0].data.centers,
        len(runs),
        _mean([float(np.nanmean(level)) for level in levels]),
        _mean([float(np.nanmean(part.scores.mean_loss(label))) for part in parts]),
        *_difference(parts, label, POOLED),
        *_difference(parts, label, ALONE),
        _mean([float(w[k].mean()) for w, k in zip(worse, known)]) if worse else math.nan,
        _mean([run.bytes.all / run.data.centers / 1e3 for run in runs]),
        _mean([run.bytes.all_vs_fedavg for run in runs]),
        _mean([run.seconds for run in runs]),
    )


def _difference(parts: Sequence[_Part], label: str, other: str) -> tuple[float, float, float]:
    """A method minus another, with an interval by patients and runs, or over the worlds of a generator."""
    if label == other or not all(other in part.runs for part in parts):
        return math.nan, math.nan, math.nan
    gains = [average_gain(part.scores.cells(label, other), fold_inflation(part.folds)) for part in parts]
    if len(gains) == 1:
        return gains[0].estimate, *gains[0].interval()
    values = np.array([gain.estimate for gain in gains])
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return float(values.mean()), float(values.mean()) - half, float(values.mean()) + half


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def to_frame(rows: Sequence[Row]) -> pl.DataFrame:
    """One line per method and federation, for a CSV that others can add lines to."""
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
    own = frame.filter(~pl.col("method").is_in([POOLED, "centralized", "centralized-stopped"]))
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
