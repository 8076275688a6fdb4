"""The page of ``abps theory``: verdicts, tables and figures, in one HTML file and as SVG, PDF and CSV."""

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from abps import files
from abps.lab.guarantees import GAMMA
from abps.lab.theory import COUNTS, DELTAS, Coverage, Regret, TheoryResults
from abps.report.document import render
from abps.report.drawing import Drawing, blank, draw

#: Okabe and Ito's colours: distinct with any colour vision; every line has a style of its own as well.
BLUE, ORANGE, GREEN, RED, GREY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666", "#CC79A7"


def write(out: Path, checked: TheoryResults) -> Path:
    """Write figures, tables, theory.json and report.html into ``out``; gives back the page."""
    files.folder(out)
    figures = {drawing.name: drawing for drawing in _draw_all(checked)}
    for drawing in figures.values():
        drawing.save(out / "figures")
    tables: dict[str, list[dict[str, Any]]] = {
        "claims": [asdict(c) for c in checked.claims],
        "coverage": [
            asdict(c) | {"prior": f"Beta({c.prior[0]:g}, {c.prior[1]:g})"} for c in checked.coverage
        ],
        "monitoring": [asdict(m) for m in checked.monitoring],
        "regret": [regret_row(r) for r in checked.regret],
        "transition": [
            {"gamma": m.gamma, "rounds": m.rounds, "utility": u, "would_rest": w, "rested": r}
            for m in checked.transition
            for u, w, r in np.column_stack([m.utility, m.would_rest, m.rested]).tolist()
        ],
    }
    for name, rows in tables.items():
        frame = pl.DataFrame(rows, infer_schema_length=None)
        files.write_with(out / "tables" / f"{name}.csv", frame.write_csv)
    files.write_json(out / "theory.json", summary(checked))
    page = render(
        "theory.html",
        title="abps: guarantees, checked",
        checked=checked,
        figures=figures,
        coverage=worst_by_count(checked.coverage),
        deltas=DELTAS,
        regret=checked.regret,
        gamma_name=gamma_name,
    )
    files.write_text(out / "report.html", page)
    return out / "report.html"


def summary(checked: TheoryResults) -> dict[str, object]:
    return {
        "schema": "abps.theory/1",
        "seed": checked.seed,
        "claims": [asdict(c) for c in checked.claims],
        "verdicts": {v: sum(c.verdict == v for c in checked.claims) for v in ("holds", "unproven", "fails")},
    }


# --------------------------------------------------------------------------- tables


def worst_by_count(rows: Iterable[Coverage]) -> list[tuple[int, list[float]]]:
    """(K, largest rate of violations per delta) over drifts, priors, utilities and shapes."""
    worst: dict[tuple[int, float], float] = {}
    for row in rows:
        key = row.count, row.delta
        worst[key] = max(worst.get(key, 0.0), row.violations)
    return [(k, [worst[k, d] for d in DELTAS]) for k in COUNTS]


def regret_row(r: Regret) -> dict[str, Any]:
    return {
        "study": r.study,
        "utilities": " ".join(f"{m:g}" for m in r.means),
        "slots": r.slots,
        "gamma": r.gamma,
        "epsilon": f"{r.epsilon.schedule} {r.epsilon.value:g}",
        "rounds": int(r.at[-1]),
        "regret": float(r.mean[-1]),
        "standard_error": float(r.error[-1]),
        "slope": r.slope,
        **{f"bound_{name}": float(b[-1]) for name, b in r.bounds.items()},
        **{f"crossed_{name}": t for name, t in r.crossed.items()},
    }


def gamma_name(gamma: float) -> str:
    return "√2" if gamma == GAMMA else f"{gamma:g}"


# --------------------------------------------------------------------------- figures


def _draw_all(checked: TheoryResults) -> list[Drawing]:
    schedules = [r for r in checked.regret if r.study == "schedules"]
    regret = (
        "Regret against the best κ of six peers (0.9, 0.7, 0.6, 0.2, 0.15, 0.1), with two standard errors, "
        "both axes logarithmic. A straight line is a power of T and its slope the exponent; a logarithm "
        "flattens. Points under 5 / √T are runs of their own, because that schedule depends on the number of "
        "rounds."
    )
    rest = (
        "Above: probability that the score of a peer met in every round lies below 0.5. Below: rounds that a "
        "center rested that follows the score. Grey line: c_neg = 0.5, where the lemma's oracle changes."
    )
    return [
        draw("regret", "Regret of three schedules", regret, partial(regret_figure, schedules)),
        draw("transition", "Where resting begins", rest, partial(transition_figure, checked)),
    ]


def regret_figure(rows: list[Regret]) -> Figure:
    """Measured regret of the three schedules, with the bounds; a panel per slots and gamma."""
    kinds = {
        "constant": ("constant 0.1", RED, "-"),
        "inv_sqrt_horizon": ("5 / √T", ORANGE, "--"),
        "c_over_t": ("5 / t", BLUE, "-."),
    }
    figure = blank(8.2, 5.8)
    panels = sorted({(r.slots, r.gamma) for r in rows})
    grid = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
    for axes, (slots, gamma) in zip(grid, panels, strict=True):
        for r in rows:
            if (r.slots, r.gamma) != (slots, gamma):
                continue
            name, colour, dash = kinds[r.epsilon.schedule]
            marker = "o" if r.epsilon.schedule == "inv_sqrt_horizon" else ""
            label = f"ε = {name}: slope {r.slope:.2f}"
            axes.plot(r.at, r.mean, dash, color=colour, marker=marker, markersize=3, label=label)
            axes.fill_between(r.at, r.mean - 2 * r.error, r.mean + 2 * r.error, color=colour, alpha=0.2)
            axes.plot(r.at, r.bounds["slots"], ":", color=colour, linewidth=1.0)
        axes.plot([], [], ":", color=GREY, label="dotted: its bound (8 γ², gaps to the slots)")
        axes.set(xscale="log", yscale="log", title=f"κ = {slots}, γ = {gamma_name(gamma)}")
        axes.legend(fontsize=7)
    for axes in grid[2:]:
        axes.set_xlabel("rounds T")
    for axes in grid[::2]:
        axes.set_ylabel("regret")
    return figure


def transition_figure(checked: TheoryResults) -> Figure:
    """P(rest) over the peer's utility: a panel per gamma, a line per number of meetings."""
    gammas = list(dict.fromkeys(m.gamma for m in checked.transition))
    figure = blank(8.2, 4.6)
    grid = figure.subplots(2, len(gammas), sharex=True, sharey=True)
    looks = ((PURPLE, ":"), (ORANGE, "-."), (GREEN, "--"), (BLUE, "-"))
    for column, gamma in enumerate(gammas):
        at = [m for m in checked.transition if m.gamma == gamma]
        for m, (colour, dash) in zip(at, looks, strict=True):
            grid[0, column].plot(m.utility, m.would_rest, dash, color=colour, label=f"t = {m.rounds}")
            grid[1, column].plot(m.utility, m.rested, dash, color=colour, label=f"t = {m.rounds}")
        for axes in grid[:, column]:
            axes.axvline(0.5, color=GREY, linewidth=0.8)
        grid[0, column].set_title(f"γ = {gamma_name(gamma)}")
        grid[1, column].set_xlabel("utility μ*")
    grid[0, 0].set_ylabel("P(score < 0.5)\nmet in every round")
    grid[1, 0].set_ylabel("share of rounds rested\nby the rule itself")
    grid[0, -1].legend(fontsize=7)
    return figure
