"""Figures of a study."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from abps.methods.catalog import CATALOG
from abps.report.analysis import MethodResult, Part
from abps.report.drawing import INK, LATE, Drawing, blank, draw
from abps.report.tables import percent
from abps.report.words import shares_of, small, tested

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
CAUSES = {
    "no_candidates": ("#3d7edb", "filter leaves nobody"),
    "all_full": ("#e08a2e", "all candidates taken"),
    "declined": ("#d6455d", "all candidates declined"),
    "budget": ("#8a8f98", "budget used up"),
    "quiet": ("#c9ccd1", "no exchange in this round"),
    "privacy": ("#5b4a8a", "privacy account spent"),
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
    return next(
        (known for known in FAMILIES if name.startswith(known)), "peer" if "p2p" in name else "reference"
    )


def colour(result: MethodResult) -> str:
    """A method's colour."""
    return FAMILIES[family(result)][0]


def draw_all(part: Part, only: str = "") -> list[Drawing]:
    """Every figure that the runs allow, or one of them."""
    sending = any(line.result.all_vs_fedavg > 0 for line in part.lines)
    resting = any(line.result.rest > 0 for line in part.lines)
    differing = tested(part) or ("", [])
    wanted: list[tuple[bool, str, str, str, Callable[[Part], Figure]]] = [
        (
            True, "ranking", "Accuracy ranking",
            f"{part.measure} of the average hospital, over all repeats.",
            ranking,
        ),
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
            resting, "rest", "Rest by cause",
            "Share of centers without a partner in each round, by the reason why (mean over repeats).",
            rest_by_cause,
        ),
        (
            shares_of(differing[1]) != {}, "differences", "By what the hospitals differ",
            f"Share of the difference in risk between hospitals that each column carries, by the test of "
            f"{differing[0]}; mean over repeats.",
            differences,
        ),
        (
            bool(_alive(part)), "survival", "Survival in the federation",
            "Kaplan-Meier curve of all hospitals' rows, from counts on a common grid of "
            "times. No step is of fewer than ten events, so the curve ends before the last of them.",
            survival_curve,
        ),
        (
            len(_calibrated(part)) > 0, "calibration", "Calibration",
            "Share of scored rows with the outcome against the predicted probability, in ten groups, all "
            "hospitals together, before any recalibration; mean over repeats. Right on the diagonal.",
            reliability,
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


# ---------------------------------------------------------------- ranking


def ranking(part: Part) -> Figure:
    """Methods by mean AUROC."""
    ordered = sorted(_results(part), key=lambda r: (r.mean, r.label))
    figure = blank(7.2, 0.9 + 0.27 * len(ordered))
    axes = figure.add_subplot()
    top = part.find("centralized")
    if top is not None:
        axes.axvline(top.mean, color=INK, alpha=0.5, linewidth=0.8, linestyle=(0, (4, 3)))
    for y, r in enumerate(ordered):
        tint = colour(r)
        axes.plot(r.mean, y, "o", color=tint, markersize=6.5)
        axes.annotate(
            f"{r.mean:.3f}",
            (1.0, y),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(ordered)), [r.label for r in ordered])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.7, len(ordered) - 0.3)
    axes.set_xlabel(f"mean {part.measure} over centers")
    _grid(axes, "x")
    _family_legend(axes, ordered, loc="lower left", ncols=7, bbox_to_anchor=(0, 1.0), columnspacing=1)
    return figure


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
    bottom, top = _zoom(sending)
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
        arrow = {
            "arrowstyle": "-|>",
            "color": "#d6455d",
            "alpha": 0.5,
            "linewidth": 1.2,
            "shrinkA": 5,
            "shrinkB": 5,
        }
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


def _zoom(shown: Sequence[MethodResult]) -> tuple[float, float]:
    """Limits that use the space for the methods that are compared."""
    low, high = min(r.mean for r in shown), max(r.mean for r in shown)
    room = max((high - low) * 0.12, 0.004)
    return low - room, high + room


def _bound(axes: Axes, r: MethodResult, bottom: float, top: float) -> None:
    """A method that sends nothing: a line across, or a note at the edge if it lies outside."""
    if bottom < r.mean < top:
        axes.axhline(r.mean, color=INK, alpha=0.5, linewidth=0.8, linestyle=(0, (4, 3)))
        text, y, shift, place = f"{r.label} {r.mean:.3f}", r.mean, 3, "bottom"
    elif r.mean >= top:
        text, y, shift, place = f"↑ {r.label} {r.mean:.3f}", top, -3, "top"
    else:
        text, y, shift, place = f"↓ {r.label} {r.mean:.3f}", bottom, 3, "bottom"
    axes.annotate(
        text,
        (0.008, y),
        xycoords=("axes fraction", "data"),
        xytext=(0, shift),
        textcoords="offset points",
        va=place,
        fontsize=8,
        alpha=0.85,
    )


#: A label's size in points: width of a character, height of a line.
_LETTER, _HEIGHT = 5.0, 10.5


def _name_points(figure: Figure, axes: Axes, shown: Sequence[MethodResult]) -> None:
    """A label near every point, where it covers neither a point nor another label."""
    figure.draw_without_rendering()  # settles the layout: from here on data have places
    scale = 72.0 / figure.dpi
    at = {r.label: axes.transData.transform((r.all_vs_fedavg, r.mean)) * scale for r in shown}
    frame = axes.get_window_extent()
    edges = (frame.x0 * scale, frame.y0 * scale, frame.x1 * scale, frame.y1 * scale)
    points = [(x - 5, y - 5, x + 5, y + 5) for x, y in at.values()]
    sizes = {r.label: (_LETTER * len(r.label), _HEIGHT) for r in shown}
    for label, (dx, dy) in place_labels(at, sizes, points, edges).items():
        r = next(r for r in shown if r.label == label)
        far = math.hypot(dx, dy) > 16
        line = {"arrowstyle": "-", "color": INK, "alpha": 0.3, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4}
        axes.annotate(
            label,
            (r.all_vs_fedavg, r.mean),
            (dx, dy),
            textcoords="offset points",
            fontsize=8,
            va="center",
            ha="left" if dx >= 0 else "right",
            arrowprops=line if far else None,
        )


Box = tuple[float, float, float, float]


def place_labels(
    at: Mapping[str, NDArray[np.float64]],
    sizes: Mapping[str, tuple[float, float]],
    taken: Sequence[Box],
    edges: Box,
) -> dict[str, tuple[float, float]]:
    """Offsets (points) of labels from their places: the nearest that covers nothing and stays inside.

    Right is tried before left, and near before far; a label that fits nowhere goes to its right.
    """
    tries = sorted(
        ((side * dx, dy) for side in (1, -1) for dx in (8, 16, 28) for dy in range(-66, 67, 6)),
        key=lambda t: (math.hypot(t[0], 1.5 * t[1]) + (6 if t[0] < 0 else 0), -t[1]),
    )
    full = list(taken)
    found: dict[str, tuple[float, float]] = {}
    for label, (x, y) in sorted(at.items(), key=lambda item: (-item[1][1], item[0])):
        width, height = sizes[label]

        def box(dx: float, dy: float, x: float = x, y: float = y, w: float = width, h: float = height) -> Box:
            start = x + dx if dx >= 0 else x + dx - w
            return (start, y + dy - h / 2, start + w, y + dy + h / 2)

        free = (
            t for t in tries if inside(box(*t), edges) and not any(overlap(box(*t), other) for other in full)
        )
        found[label] = next(free, tries[0])
        full.append(box(*found[label]))
    return found


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes (left, bottom, right, top) share an area."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def inside(a: Box, edges: Box) -> bool:
    """Whether a box lies within the edges."""
    return a[0] >= edges[0] and a[1] >= edges[1] and a[2] <= edges[2] and a[3] <= edges[3]


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
    titles = {
        "star": "star",
        "peer": "peer to peer",
        "control": "controls",
        "abps": "ABPS",
        "reference": "references",
    }
    groups: dict[str, list[MethodResult]] = {name: [] for name in titles}
    for r in _results(part):
        groups[family(r).split("-")[0]].append(r)
    return [(titles[name], members) for name, members in groups.items() if members]


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
        if any(r.method == "centralized" for r in members):
            axes.margins(y=0.05)
        else:
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


# ---------------------------------------------------------------- rest


def rest_by_cause(part: Part) -> Figure:
    """Stacked shares of resting centers by cause."""
    resting = [r for r in _results(part) if r.rest > 0]
    columns = min(3, len(resting))
    rows = -(-len(resting) // columns)
    figure = blank(7.2, 0.6 + 1.9 * rows)
    highest = 100 * max(max(run.history.rest) for r in resting for run in r.runs)
    present = [c for c in CAUSES if any(getattr(run.rest, c) > 0 for r in resting for run in r.runs)]
    for k, r in enumerate(resting):
        axes = figure.add_subplot(rows, columns, k + 1)
        rounds = min(run.rounds for run in r.runs)
        layers = [
            np.mean([run.history.rest_causes[cause][:rounds] for run in r.runs], axis=0) * 100
            for cause in present
        ]
        axes.stackplot(
            np.arange(1, rounds + 1),
            layers,
            colors=[CAUSES[cause][0] for cause in present],
            alpha=0.85,
            linewidth=0,
        )
        axes.set_title(f"{r.label}  {percent(r.rest, 1)}", fontsize=8.5)
        axes.set_xlim(1, max(2, rounds))
        axes.set_ylim(0, min(100.0, highest * 1.08))
        if k % columns == 0:
            axes.set_ylabel("% of centers")
        if k >= len(resting) - columns:
            axes.set_xlabel("round")
        _grid(axes, "y")
    handles = [mpl.patches.Patch(color=CAUSES[c][0], alpha=0.85, label=CAUSES[c][1]) for c in present]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, fontsize=8)
    return figure


# ---------------------------------------------------------------- differences between hospitals


def differences(part: Part) -> Figure:
    """The columns that carry the difference in risk."""
    label, tests = tested(part) or ("", [])
    shares = dict(reversed(shares_of(tests).items()))
    figure = blank(7.2, 0.9 + 0.28 * len(shares))
    axes = figure.add_subplot()
    axes.barh(range(len(shares)), [100 * share for share in shares.values()], color=LATE, height=0.62)
    axes.set_yticks(range(len(shares)), list(shares))
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the difference")
    axes.set_title(f"{label}: largest p {small(max(test.p for test in tests))} over {len(tests)} repeat(s)")
    _grid(axes, "x")
    return figure


# ---------------------------------------------------------------- calibration

#: Methods whose calibration is shown, besides the one that stands for training alone.
_SHOWN = ("abps-plus", "fedavg", "pooled-best")


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


def _calibrated(part: Part) -> list[MethodResult]:
    """Methods whose calibration is known in every run, the most wanted first."""
    names = dict.fromkeys((*_SHOWN[:1], part.alone or "", *_SHOWN[1:]))
    found = [r for r in (part.find(name) for name in names) if r is not None]
    return [r for r in found if all(len(run.calibration.told) > 1 for run in r.runs)]


def reliability(part: Part) -> Figure:
    """Observed against predicted."""
    figure = blank(7.2, 4.2)
    axes = figure.add_subplot()
    highest = 0.05
    for r, tint in zip(_calibrated(part), _PALETTE):
        groups = min(len(run.calibration.told) for run in r.runs)
        told, seen = (
            np.mean([getattr(run.calibration, name)[:groups] for run in r.runs], axis=0)
            for name in ("told", "observed")
        )
        highest = max(highest, float(told.max()), float(seen.max()))
        axes.plot(told, seen, "o-", color=tint, markersize=4, linewidth=1.3, label=r.label)
    highest = min(1.0, highest * 1.05)
    axes.plot([0, highest], [0, highest], color=INK, alpha=0.4, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xlim(0, highest)
    axes.set_ylim(0, highest)
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("share with the outcome")
    axes.legend(loc="upper left")
    _grid(axes)
    return figure
