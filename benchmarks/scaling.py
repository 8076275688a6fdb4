"""How time and memory grow: with centers (selection, abps-plus), rows per center, partners and parameters.

    python benchmarks/scaling.py                       # everything; figures into docs/images
    python benchmarks/scaling.py --largest 10000       # smaller
    python benchmarks/scaling.py --only selection
    python benchmarks/scaling.py --only fits --csv benchmarks/results/flagship_scale.csv

Every point is measured in a process of its own, whose peak memory stands beside the time. Prints the tables
of docs/speed.md and writes the figures. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from abps.core import streams
from abps.engine.rounds import RunState
from abps.lab import speed as bench
from abps.methods.abps import ABPS, Selection
from abps.methods.base import Context
from abps.models.learners import learner_for
from abps.models.training import Training

CENTERS = (8, 32, 128, 512, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
#: (goal, κ, name, largest size). A center that rests looks at every free one: diversity makes many rest.
ROWS = (16, 64, 256, 1_024, 4_096)
KAPPAS = (1, 2, 3, 5, 8)
HIDDEN = ((8, 4), (32, 16), (128, 64), (512, 256), (1024, 512))


@dataclass(frozen=True)
class RoundCost:
    """Seconds of local training alone and of a whole ABPS round, medians, and peak memory."""

    centers: int
    rows: int
    kappa: int
    parameters: int
    train_seconds: float
    round_seconds: float
    peak_mb: float


def round_cost(centers: int, rows: int, kappa: int, hidden: tuple[int, ...], turns: int) -> RoundCost:
    """Whole rounds of ABPS on centers of one size."""
    data = bench.uniform(centers, rows)
    method = ABPS(training=Training(hidden=hidden), selection=Selection(kappa=kappa))
    learner = learner_for(data, method.training, 1)
    context = Context(learner, data, streams.center_ids(data.centers), 1, turns + 1)
    course, _ = RunState.start(method, context).round(1)  # warm
    train, whole = [], []
    for t in range(2, turns + 2):
        began = time.perf_counter()
        learner.train(course.state.models, t)
        train.append(time.perf_counter() - began)
        began = time.perf_counter()
        course, _ = course.round(t)
        whole.append(time.perf_counter() - began)
    return RoundCost(
        centers=centers,
        rows=rows,
        kappa=kappa,
        parameters=learner.layout.size,
        train_seconds=statistics.median(train),
        round_seconds=statistics.median(whole),
        peak_mb=bench.peak_mb(),
    )


def measure_selection(largest: int) -> list[dict[str, Any]]:
    """One entry per κ and size."""
    found = []
    for kappa in (1, 3):
        for n in CENTERS:
            if n <= largest:
                seconds, memory = bench.in_its_own_process(bench.selection_cost, n, kappa, 5)
                say(f"selection, κ = {kappa}, {n:,} centers: {seconds:.3f} s, {memory:,.0f} MB")
                cost = {"centers": n, "kappa": kappa, "seconds": seconds, "peak_mb": memory}
                found.append({"name": f"κ = {kappa}"} | cost)
    return found


def measure_rounds(turns: int) -> dict[str, list[dict[str, Any]]]:
    """Curves over rows, κ, parameters and centers."""
    points = {
        "rows": [(64, rows, 1, (128, 64)) for rows in ROWS],
        "kappa": [(230, 256, kappa, (128, 64)) for kappa in KAPPAS],
        "parameters": [(64, 256, 1, hidden) for hidden in HIDDEN],
        "centers": [(n, 64, 1, (128, 64)) for n in (100, 1_000, 10_000)],
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for curve, settings in points.items():
        found[curve] = []
        for each in settings:
            cost = bench.in_its_own_process(round_cost, *each, turns)
            say(f"{curve}: {cost}")
            found[curve].append(asdict(cost))
    return found


def fit_cost(centers: int) -> tuple[float, float]:
    """Processor seconds of a federation's making and of abps-plus on it, and peak memory."""
    began = time.process_time()
    _, peak = bench.fit_cost(centers)
    return time.process_time() - began, peak


def measure_fits() -> list[dict[str, float]]:
    """abps-plus at every size of ``abps bench --scale``."""
    found = []
    for n in bench.FIT_SIZES:
        seconds, peak = bench.in_its_own_process(fit_cost, n)
        say(f"abps-plus, {n:,} centers: {seconds:.1f} s, {peak:,.0f} MB")
        found.append({"centers": n, "cpu_seconds": round(seconds, 1), "peak_gb": round(peak / 1024, 2)})
    return found


def fits_figure(found: list[dict[str, float]]) -> Figure:
    """Seconds and memory of abps-plus over the number of centers, beside lines through the last point."""
    figure = Figure(figsize=(7.6, 3.0), layout="constrained")
    sizes = np.array([f["centers"] for f in found])
    units = {"cpu_seconds": "Processor seconds", "peak_gb": "Peak memory, GB"}
    for axes, (name, title) in zip(figure.subplots(1, 2), units.items()):
        values = np.array([f[name] for f in found])
        axes.plot(sizes, values, "o-", color="#d6455d", ms=3, lw=1.2, label="abps-plus")
        axes.plot(sizes, values[-1] * sizes / sizes[-1], "--", color="#8a8f98", lw=1, label="linear")
        axes.set(xlabel="centers of 60 rows", title=title, ylim=(0, None))
        axes.grid(alpha=0.25, lw=0.5)
        axes.legend(fontsize=7)
    return figure


def exponent(sizes: Any, seconds: Any) -> float:
    """The b of seconds ~ sizes ** b, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def selection_figure(found: list[dict[str, Any]]) -> Figure:
    """Seconds per round and memory over the number of centers."""
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = ("#d6455d", "#3d7edb", "#e08a2e", "#8a8f98")
    for name, colour in zip(dict.fromkeys(f["name"] for f in found), colours):
        these = [f for f in found if f["name"] == name]
        sizes, seconds = [f["centers"] for f in these], [f["seconds"] for f in these]
        large = [(n, s) for n, s in zip(sizes, seconds) if n >= 1_000]
        label = name
        if len(large) > 1:
            label += f"  (n^{exponent(*zip(*large)):.2f})"
        left.plot(sizes, seconds, "o-", color=colour, ms=3, lw=1.2, label=label)
        right.plot(sizes, [f["peak_mb"] - f["start_mb"] for f in these], "o-", color=colour, ms=3, lw=1.2)
    left.set(xscale="log", yscale="log", xlabel="centers", title="Seconds per round of selection")
    right.set(xscale="log", yscale="log", xlabel="centers", title="Memory above that of the start, MB")
    left.legend(title="fitted from 1,000 centers", title_fontsize=7, fontsize=7)
    for axes in (left, right):
        axes.grid(alpha=0.25, lw=0.5)
    return figure


def rounds_figure(found: dict[str, list[dict[str, Any]]]) -> Figure:
    """Seconds of a round over what makes it longer."""
    figure = Figure(figsize=(7.6, 5.4), layout="constrained")
    names = {
        "centers": ("centers", "centers of 64 rows"),
        "rows": ("rows", "rows per center (64 centers)"),
        "kappa": ("kappa", "partners κ (230 centers of 256 rows)"),
        "parameters": ("parameters", "parameters (64 centers of 256 rows)"),
    }
    for axes, (curve, (key, label)) in zip(figure.subplots(2, 2).flat, names.items()):
        these = found[curve]
        x = [f[key] for f in these]
        axes.plot(
            x, [f["round_seconds"] for f in these], "o-", color="#d6455d", ms=3, lw=1.2, label="ABPS round"
        )
        axes.plot(
            x,
            [f["train_seconds"] for f in these],
            "o-",
            color="#3d7edb",
            ms=3,
            lw=1.2,
            label="training alone",
        )
        axes.set(xlabel=label, ylabel="seconds")
        if curve != "kappa":
            axes.set(xscale="log", yscale="log")
        else:
            axes.set_ylim(bottom=0)
        for f, place in zip(these, x):
            axes.annotate(
                f"{f['peak_mb'] / 1024:.1f} GB",
                (place, f["round_seconds"]),
                (0, 5),
                textcoords="offset points",
                fontsize=6,
                ha="center",
            )
        axes.margins(0.12)  # room for the memory beside the points
        axes.grid(alpha=0.25, lw=0.5)
        axes.legend(fontsize=7)
    return figure


def selection_table(found: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| centers | κ | seconds per round | peak memory |", "|---|---|---|---|"]
    for f in found:
        if f["centers"] in (1_000, 10_000, 20_000, 100_000):
            lines.append(f"| {f['centers']:,} | {f['kappa']} | {f['seconds']:.2f} | {f['peak_mb']:,.0f} MB |")
    return "\n".join(lines)


def rounds_table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown."""
    lines = ["| centers | rows each | κ | parameters | training, s | whole round, s | peak memory |"]
    lines.append("|---|---|---|---|---|---|---|")
    for f in (f for curve in found.values() for f in curve):
        lines.append(
            f"| {f['centers']:,} | {f['rows']:,} | {f['kappa']} | {f['parameters']:,} | "
            f"{f['train_seconds']:.3f} | {f['round_seconds']:.3f} | {f['peak_mb']:,.0f} MB |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("selection", "rounds", "fits"))
    parser.add_argument("--largest", type=int, default=100_000, help="centers at most, in selection")
    parser.add_argument("--turns", type=int, default=3, help="rounds that are timed")
    parser.add_argument("--images", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    parser.add_argument("--json", type=Path, help="write every number")
    parser.add_argument("--csv", type=Path, help="write what abps-plus costs")
    a = parser.parse_args()
    every: dict[str, Any] = {}
    if a.only in (None, "selection"):
        every["selection"] = measure_selection(a.largest)
        draw(selection_figure(every["selection"]), "scale-selection", a.images)
        print(selection_table(every["selection"]) + "\n")
    if a.only in (None, "rounds"):
        every["rounds"] = measure_rounds(a.turns)
        draw(rounds_figure(every["rounds"]), "scale-rounds", a.images)
        print(rounds_table(every["rounds"]))
    if a.only in (None, "fits"):
        every["fits"] = measure_fits()
        draw(fits_figure(every["fits"]), "scale-fits", a.images)
        if a.csv:
            lines = [",".join(every["fits"][0]), *(",".join(map(str, f.values())) for f in every["fits"])]
            a.csv.write_text("\n".join(lines) + "\n")
    if a.json:
        a.json.write_text(json.dumps(every, indent=1) + "\n")


def draw(figure: Figure, name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(folder / f"{name}.svg", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
