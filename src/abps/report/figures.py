"""Figures of a study: accuracy against bytes, and accuracy over rounds."""

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from abps.methods.catalog import CATALOG
from abps.report.analysis import MethodLine, Part
from abps.report.drawing import INK, Drawing, blank, draw

#: Colour and name of every family; ABPS-X and ABPS+ stand out of theirs.
FAMILIES = {
    "reference": ("#8a8f98", "reference"),
    "star": ("#3d7edb", "star"),
    "peer": ("#2a9d74", "peer to peer"),
    "control": ("#9b6bd1", "control"),
    "abps": ("#e08a2e", "ABPS"),
    "abps-x": ("#d6455d", "ABPS-X"),
    "abps-plus": ("#c43d9a", "ABPS+"),
}
#: The paper's ablation path through the accuracy-bytes plane.
PATH = ("abps", "abps-p", "abps-q", "abps-pq-k1", "abps-x")

_PALETTE = ("#3d7edb", "#e08a2e", "#2a9d74", "#d6455d", "#9b6bd1", "#b8860b", "#17a2b8", "#c43d9a", "#6b8e23")


def family(line: MethodLine) -> str:
    if line.method == "abps-x":
        return "abps-x"
    entry = CATALOG.get(line.method)
    name = entry.family if entry else "reference"
    if name == "extension":
        return "abps-plus"
    return next((k for k in FAMILIES if name.startswith(k)), "peer" if "p2p" in name else "reference")


def draw_all(part: Part) -> list[Drawing]:
    caption = "Mean over centers and repeats, a panel per family; grey: FedAvg, dotted: training alone."
    rounds = draw("rounds", f"{part.measure} over rounds", caption, partial(over_rounds, part))
    if not any(line.all_vs_fedavg > 0 for line in part.lines):
        return [rounds]
    caption = (
        f"Mean {part.measure} against all bytes in multiples of 50 rounds of FedAvg. The stepped line "
        "joins the methods that no other beats in both; arrows follow the ablation path to ABPS-X."
    )
    return [draw("pareto", "Accuracy and bytes", caption, partial(pareto, part)), rounds]


def _grid(axes: Axes) -> None:
    axes.grid(True, color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)


# ---------------------------------------------------------------- accuracy and bytes


def pareto(part: Part) -> Figure:
    figure = blank(7.2, 5.0)
    axes = figure.add_subplot()
    sending = [line for line in part.lines if _cost(line) > 0]
    costs, means = [*map(_cost, sending)], [line.mean for line in sending]
    left, right = min(costs) / 1.5, max(costs) * 2.2
    room = max((max(means) - min(means)) * 0.12, 0.004)
    bottom, top = min(means) - room, max(means) + room
    axes.set(xscale="log", xlim=(left, right), ylim=(bottom, top))
    for line in part.lines:
        if line.all_vs_fedavg == 0:
            _bound(axes, line, bottom, top)
    frontier = sorted((line for line in sending if not any(beats(o, line) for o in sending)), key=_cost)
    steps = [*map(_cost, frontier), right], [*(line.mean for line in frontier), frontier[-1].mean]
    axes.step(*steps, where="post", color=INK, alpha=0.3, linewidth=1.0)
    path = [step for name in PATH if (step := part.find(name)) is not None]
    arrow = {"arrowstyle": "-|>", "color": "#d6455d", "alpha": 0.5, "shrinkA": 5, "shrinkB": 5}
    for a, b in itertools.pairwise(path):
        axes.annotate("", (_cost(b), b.mean), (_cost(a), a.mean), arrowprops=arrow)
    for known, (tint, title) in FAMILIES.items():
        mine = [line for line in sending if family(line) == known]
        mark, size = ("*", 13) if known in ("abps-x", "abps-plus") else ("o", 7)
        if mine:
            places = [*map(_cost, mine)], [line.mean for line in mine]
            axes.plot(*places, mark, color=tint, markersize=size, label=title)
    bytes_ = "bytes, multiples of 50 rounds of FedAvg (log scale)"
    axes.set(xlabel=bytes_, ylabel=f"mean {part.measure} over centers")
    ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0) if left <= t <= right]
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    axes.minorticks_off()
    _grid(axes)
    axes.legend(handletextpad=0.2, loc="lower left", ncols=7, bbox_to_anchor=(0, 1.0), columnspacing=1)
    _name_points(figure, axes, sending)
    return figure


def _cost(line: MethodLine) -> float:
    return line.all_vs_fedavg


def beats(a: MethodLine, b: MethodLine) -> bool:
    """Whether a is at least as accurate and as cheap as b, and better in one of the two."""
    return _cost(a) <= _cost(b) and a.mean >= b.mean and (_cost(a) < _cost(b) or a.mean > b.mean)


def _bound(axes: Axes, line: MethodLine, bottom: float, top: float) -> None:
    """A method that sends nothing: a line across, or a note at the edge if it lies outside."""
    axes.axhline(line.mean, color=INK, alpha=0.5, linewidth=0.8, linestyle=(0, (4, 3)))
    where = "↑ " if line.mean >= top else "↓ " if line.mean <= bottom else ""
    y, place = min(max(line.mean, bottom), top), "top" if line.mean >= top else "bottom"
    words, scale = f"{where}{line.label} {line.mean:.3f}", axes.get_yaxis_transform()
    axes.text(0.008, y, words, fontsize=8, alpha=0.85, va=place, transform=scale)


def _name_points(figure: Figure, axes: Axes, shown: Sequence[MethodLine]) -> None:
    """A label beside every point; labels that would touch move up."""
    figure.draw_without_rendering()  # settles the layout: from here on data have places
    scale = 72.0 / figure.dpi
    placed: list[tuple[float, float]] = []
    for line in sorted(shown, key=lambda line: (line.mean, line.label)):
        place = (_cost(line), line.mean)
        x, y = axes.transData.transform(place) * scale
        up = y
        for other_x, other_y in placed:
            if abs(other_x - x) < 60 and abs(up - other_y) < 10:
                up = other_y + 10
        placed.append((float(x), float(up)))
        axes.annotate(line.label, place, (8, up - y), textcoords="offset points", fontsize=8, va="center")


# ---------------------------------------------------------------- curves


def mean_curve(line: MethodLine, most: int = 1) -> NDArray[np.float64]:
    """(rounds,) mean of the main measure over seeds; a run that has stopped keeps its last value.  most: so
    long is the curve of a model that is fitted at once."""
    longest = max(run.rounds for run in line.runs)
    curves = [list(run.history.auroc) for run in line.runs]
    size = most if longest == 1 else longest
    return np.asarray(np.mean([c + [c[-1]] * (size - len(c)) for c in curves], axis=0))


def over_rounds(part: Part) -> Figure:
    """Learning curves by round: a panel per family, with the names beside it in the order of their end."""
    most = max(run.rounds for line in part.lines for run in line.runs)
    rounds, curves = np.arange(1, most + 1), {line.label: mean_curve(line, most) for line in part.lines}
    panels: dict[str, list[MethodLine]] = {}
    for line in part.lines:
        panels.setdefault(FAMILIES[family(line).split("-")[0]][1], []).append(line)
    figure = blank(7.2, 0.5 + 2.1 * len(panels))
    values = np.concatenate(
        [c for label, c in curves.items() if label != "centralized"] or [*curves.values()]
    )
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    room = max((high - low) * 0.05, 0.004)
    every = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, members) in zip(every, panels.items()):
        for name, style in (("fedavg", "-"), (part.alone, ":")):
            if name in curves and all(line.label != name for line in members):
                axes.plot(
                    rounds[: len(curves[name])], curves[name], style, color=INK, alpha=0.3, linewidth=1.6
                )
        for n, line in enumerate(sorted(members, key=lambda line: (-curves[line.label][-1], line.label))):
            tint, dash = _PALETTE[n % len(_PALETTE)], "-" if n < len(_PALETTE) else "--"
            curve = curves[line.label]
            axes.plot(rounds[: len(curve)], curve, dash, color=tint, linewidth=1.5, label=line.label)
            axes.plot(len(curve), curve[-1], "o", color=tint, markersize=3)
        if all(line.method != "centralized" for line in members):
            axes.set_ylim(low - room, high + room)
        axes.set(title=title, ylabel=f"mean {part.measure}")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.4, labelspacing=0.3)
        _grid(axes)
    every[-1].set_xlabel("round")
    return figure
