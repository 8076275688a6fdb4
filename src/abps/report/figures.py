"""Figures of a study."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from abps.methods.catalog import CATALOG
from abps.report.analysis import MethodResult, Part
from abps.report.drawing import INK, LATE, Drawing, blank, draw

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


def family(result: MethodResult) -> str:
    """A method's family as figures know it."""
    if result.method == "abps-x":
        return "abps-x"
    entry = CATALOG.get(result.method)
    name = entry.family if entry else "reference"
    if name == "extension":
        return "abps-plus"
    return next((k for k in FAMILIES if name.startswith(k)), "peer" if "p2p" in name else "reference")


def colour(result: MethodResult) -> str:
    """A method's colour."""
    return FAMILIES[family(result)][0]


def draw_all(part: Part, only: str = "") -> list[Drawing]:
    """Every figure that the runs allow, or one of them."""
    sending = any(line.result.all_vs_fedavg > 0 for line in part.lines)
    wanted: list[tuple[bool, str, str, str, Callable[[Part], Figure]]] = [
        (
            sending, "pareto", "Accuracy and bytes",
            f"Mean {part.measure} against all bytes in multiples of 50 rounds of FedAvg. The stepped line "
            "joins the methods that no other beats in both; arrows follow the ablation path to ABPS-X.",
            pareto,
        ),
        (
            True, "rounds", f"{part.measure} over rounds",
            "Mean over centers and repeats, a panel per family; grey: FedAvg, dotted: training alone.",
            over_rounds,
        ),
        (
            bool(_alive(part)), "survival", "Survival in the federation",
            "Kaplan-Meier curve of all hospitals' rows, from counts on a common grid of "
            "times. No step is of fewer than ten events, so the curve ends before the last of them.",
            survival_curve,
        ),
    ]  # fmt: skip
    return [
        draw(name, title, caption, partial(make, part))
        for possible, name, title, caption, make in wanted
        if possible and only in ("", name)
    ]


def _grid(axes: Axes, axis: str = "both") -> None:
    axes.grid(True, axis=axis, color=INK, alpha=0.12, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def _results(part: Part) -> list[MethodResult]:
    return [line.result for line in part.lines]


def _family_legend(axes: Axes, shown: Sequence[MethodResult], **place: Any) -> None:
    for known, (tint, title) in FAMILIES.items():
        if any(family(r) == known for r in shown):
            axes.plot([], [], "o", color=tint, markersize=5, label=title)
    axes.legend(handletextpad=0.2, **place)


# ---------------------------------------------------------------- accuracy and bytes


def pareto(part: Part) -> Figure:
    """Accuracy against bytes, with the frontier and the ablation path."""
    figure = blank(7.2, 5.0)
    axes = figure.add_subplot()
    sending = [r for r in _results(part) if r.all_vs_fedavg > 0]
    left = min(r.all_vs_fedavg for r in sending) / 1.5
    right = max(r.all_vs_fedavg for r in sending) * 2.2
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    low, high = min(r.mean for r in sending), max(r.mean for r in sending)
    room = max((high - low) * 0.12, 0.004)
    bottom, top = low - room, high + room
    axes.set_ylim(bottom, top)
    for r in _results(part):
        if r.all_vs_fedavg == 0:
            _bound(axes, r, bottom, top)
    frontier = sorted(
        (r for r in sending if not any(beats(o, r) for o in sending)), key=lambda r: r.all_vs_fedavg
    )
    axes.step(
        [r.all_vs_fedavg for r in frontier] + [right],
        [r.mean for r in frontier] + [frontier[-1].mean],
        where="post",
        color=INK,
        alpha=0.3,
        linewidth=1.0,
    )
    steps = [r for r in (part.find(name) for name in PATH) if r is not None]
    for a, b in itertools.pairwise(steps):
        arrow = {"arrowstyle": "-|>", "color": "#d6455d", "alpha": 0.5, "shrinkA": 5, "shrinkB": 5}
        axes.annotate("", (b.all_vs_fedavg, b.mean), (a.all_vs_fedavg, a.mean), arrowprops=arrow)
    for r in sending:
        star = family(r) in ("abps-x", "abps-plus")
        axes.plot(
            r.all_vs_fedavg, r.mean, "*" if star else "o", color=colour(r), markersize=13 if star else 7
        )
    axes.set_xlabel("bytes, multiples of 50 rounds of FedAvg (log scale)")
    axes.set_ylabel(f"mean {part.measure} over centers")
    ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0) if left <= t <= right]
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    axes.minorticks_off()
    _grid(axes)
    _family_legend(axes, sending, loc="lower left", ncols=7, bbox_to_anchor=(0, 1.0), columnspacing=1)
    _name_points(figure, axes, sending)
    return figure


def beats(a: MethodResult, b: MethodResult) -> bool:
    """Whether a is at least as accurate and as cheap as b, and better in one of the two."""
    return (
        a.all_vs_fedavg <= b.all_vs_fedavg
        and a.mean >= b.mean
        and (a.all_vs_fedavg < b.all_vs_fedavg or a.mean > b.mean)
    )


def _bound(axes: Axes, r: MethodResult, bottom: float, top: float) -> None:
    """A method that sends nothing: a line across, or a note at the edge if it lies outside."""
    axes.axhline(r.mean, color=INK, alpha=0.5, linewidth=0.8, linestyle=(0, (4, 3)))
    where = "↑ " if r.mean >= top else "↓ " if r.mean <= bottom else ""
    y, place = min(max(r.mean, bottom), top), "top" if r.mean >= top else "bottom"
    words, scale = f"{where}{r.label} {r.mean:.3f}", axes.get_yaxis_transform()
    axes.text(0.008, y, words, fontsize=8, alpha=0.85, va=place, transform=scale)


def _name_points(figure: Figure, axes: Axes, shown: Sequence[MethodResult]) -> None:
    """A label beside every point; labels that would touch move up."""
    figure.draw_without_rendering()  # settles the layout: from here on data have places
    scale = 72.0 / figure.dpi
    placed: list[tuple[float, float]] = []
    for r in sorted(shown, key=lambda r: (r.mean, r.label)):
        x, y = axes.transData.transform((r.all_vs_fedavg, r.mean)) * scale
        up = y
        for other_x, other_y in placed:
            if abs(other_x - x) < 60 and abs(up - other_y) < 10:
                up = other_y + 10
        placed.append((float(x), float(up)))
        place = (r.all_vs_fedavg, r.mean)
        axes.annotate(r.label, place, (8, up - y), textcoords="offset points", fontsize=8, va="center")


# ---------------------------------------------------------------- curves


def mean_curve(r: MethodResult) -> NDArray[np.float64]:
    """(rounds,) mean AUROC over seeds; a run that has stopped keeps its last value."""
    longest = max(run.rounds for run in r.runs)
    rows = []
    for run in r.runs:
        values = list(run.history.auroc)
        rows.append(values + [values[-1]] * (longest - len(values)))
    return np.asarray(np.mean(rows, axis=0))


def _panels(part: Part) -> list[tuple[str, list[MethodResult]]]:
    groups: dict[str, list[MethodResult]] = {}
    for r in _results(part):
        groups.setdefault(FAMILIES[family(r).split("-")[0]][1], []).append(r)
    return list(groups.items())


_PALETTE = ("#3d7edb", "#e08a2e", "#2a9d74", "#d6455d", "#9b6bd1", "#b8860b", "#17a2b8", "#c43d9a", "#6b8e23")


def over_rounds(part: Part) -> Figure:
    """Learning curves by round: a panel per family, with the names beside it in the order of their end."""
    panels = _panels(part)
    figure = blank(7.2, 0.5 + 2.1 * len(panels))
    compared = [r for r in _results(part) if r.method != "centralized"] or _results(part)
    values = np.concatenate([mean_curve(r) for r in compared])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    room = max((high - low) * 0.05, 0.004)
    shared: Axes | None = None
    for k, (title, members) in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, k + 1, sharex=shared)
        shared = shared or axes
        for name, style in (("fedavg", "-"), (part.alone or "", ":")):
            other = part.find(name)
            if other is None or other in members:
                continue
            axes.plot(rounds_of(other), mean_curve(other), style, color=INK, alpha=0.3, linewidth=1.6)
        for n, r in enumerate(sorted(members, key=lambda r: (-mean_curve(r)[-1], r.label))):
            tint, dash = _PALETTE[n % len(_PALETTE)], "-" if n < len(_PALETTE) else "--"
            axes.plot(rounds_of(r), mean_curve(r), dash, color=tint, linewidth=1.5, label=r.label)
            axes.plot(rounds_of(r)[-1], mean_curve(r)[-1], "o", color=tint, markersize=3)
        axes.set_title(title)
        if not any(r.method == "centralized" for r in members):
            axes.set_ylim(low - room, high + room)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.4, labelspacing=0.3)
        axes.set_ylabel(f"mean {part.measure}")
        _grid(axes)
        last = axes
    last.set_xlabel("round")
    return figure


def rounds_of(r: MethodResult) -> NDArray[np.float64]:
    """(rounds,) 1, 2, …"""
    return np.arange(1, len(mean_curve(r)) + 1, dtype=np.float64)


def _alive(part: Part) -> tuple[tuple[float, float], ...]:
    """Times and chances to live longer, of an outcome of survival."""
    return next((run.alive for r in _results(part) for run in r.runs if run.alive), ())


def survival_curve(part: Part) -> Figure:
    """The chance to live longer than a time, of all hospitals together."""
    figure = blank(5.0, 2.6)
    axes = figure.subplots()
    time, alive = np.array([(0.0, 1.0), *_alive(part)]).T
    axes.step(time, alive, where="post", color=LATE, linewidth=1.4)
    axes.set_ylim(0.0, 1.02)
    axes.set_xlim(0.0, float(time[-1]) * 1.02 or 1.0)
    axes.set_xlabel("time")
    axes.set_ylabel("without the event")
    _grid(axes)
    return figure
