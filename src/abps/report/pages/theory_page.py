"""The page of ``abps theory``: verdicts, tables and figures, in one HTML file and as SVG, PDF and CSV."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.figure import Figure

from abps import files
from abps.papers.claims import Checked
from abps.papers.detection import CHANGE, LENGTH, RAMP, Detection
from abps.papers.theorems import COUNTS, DELTAS, Coverage, Regret
from abps.stats.detectors import DETECTORS
from abps.stats.guarantees import GAMMA

#: Okabe and Ito's colours: told apart with any colour vision; every line has a style of its own as well.
BLUE, ORANGE, GREEN, RED, GREY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666", "#CC79A7"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "abps",  # the same figure gives the same file
    "svg.fonttype": "path",
}


def write(out: Path, checked: Checked, detections: list[Detection]) -> Path:
    """Write figures, tables, theory.json and report.html into ``out``; gives back the page."""
    files.folder(out)
    figures = {
        "coverage": coverage_figure(checked.coverage),
        "regret": regret_figure([r for r in checked.regret if r.study == "schedules"]),
        "constants": constants_figure(checked.regret),
        "transition": transition_figure(checked),
    }
    drawn = {}
    for name, figure in figures.items():
        svg, pdf = render(figure, "svg"), render(figure, "pdf")
        drawn[name] = _inline(svg.decode())
        for kind, data in (("svg", svg), ("pdf", pdf)):
            with files.replacing(out / "figures" / f"{name}.{kind}") as part:
                part.write_bytes(data)
    tables = {
        "claims": pl.DataFrame([asdict(c) for c in checked.claims]),
        "coverage": coverage_table(checked.coverage),
        "monitoring": pl.DataFrame([asdict(m) for m in checked.monitoring]),
        "regret": regret_table(checked.regret),
        "transition": transition_table(checked),
    }
    if detections:
        tables["detectors"] = pl.DataFrame([asdict(d) for d in detections], infer_schema_length=None)
    for name, table in tables.items():
        files.write_with(out / "tables" / f"{name}.csv", table.write_csv)
    files.write_json(out / "theory.json", summary(checked, detections))
    template = resources.files("abps.report").joinpath("templates/theory.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(template).render(
        checked=checked,
        figures=drawn,
        coverage=worst_by_count(checked.coverage),
        deltas=DELTAS,
        regret=checked.regret,
        detections=detections,
        detectors=DETECTORS,
        stream={"length": LENGTH, "change": CHANGE, "ramp": RAMP},
        gamma_name=gamma_name,
    )
    files.write_text(out / "report.html", page)
    return out / "report.html"


def summary(checked: Checked, detections: list[Detection]) -> dict[str, object]:
    """What was found, for machines."""
    return {
        "schema": "abps.theory/1",
        "seed": checked.seed,
        "claims": [asdict(c) for c in checked.claims],
        "verdicts": {v: sum(c.verdict == v for c in checked.claims) for v in ("holds", "unproven", "fails")},
        "detectors": [asdict(d) for d in detections],
    }


# --------------------------------------------------------------------------- tables


def worst_by_count(rows: Iterable[Coverage]) -> list[tuple[int, list[float]]]:
    """(K, largest rate of violations per delta) over drifts, priors, utilities and shapes."""
    worst: dict[tuple[int, float], float] = {}
    for row in rows:
        key = row.count, row.delta
        worst[key] = max(worst.get(key, 0.0), row.violations)
    return [(k, [worst[k, d] for d in DELTAS]) for k in COUNTS]


def coverage_table(rows: list[Coverage]) -> pl.DataFrame:
    plain = [{**asdict(r), "prior": f"Beta({r.prior[0]:g}, {r.prior[1]:g})"} for r in rows]
    return pl.DataFrame(plain, infer_schema_length=None)


def regret_table(rows: list[Regret]) -> pl.DataFrame:
    """One row per setting, at its last round."""
    return pl.DataFrame(
        [
            {
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
            for r in rows
        ],
        infer_schema_length=None,
    )


def transition_table(checked: Checked) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {"gamma": m.gamma, "rounds": m.rounds, "utility": u, "would_rest": w, "rested": r}
            for m in checked.transition
            for u, w, r in zip(m.utility.tolist(), m.would_rest.tolist(), m.rested.tolist(), strict=True)
        ]
    )


def gamma_name(gamma: float) -> str:
    return "√2" if gamma == GAMMA else f"{gamma:g}"


# --------------------------------------------------------------------------- figures


def render(figure: Figure, kind: str) -> bytes:
    """A figure as bytes that depend on nothing but the figure."""
    buffer = io.BytesIO()
    date = {"Date": None} if kind == "svg" else {"CreationDate": None}
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=kind, metadata=date)
    return buffer.getvalue()


def _inline(svg: str) -> str:
    """An SVG element that can stand in a page: no declaration, no document type, its own width."""
    return svg[svg.index("<svg") :]


def coverage_figure(rows: list[Coverage]) -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.subplots()
        worst = worst_by_count(rows)
        counts = np.array([k for k, _ in worst])
        for i, (delta, colour) in enumerate(zip(DELTAS, (BLUE, ORANGE, GREEN, RED, PURPLE), strict=True)):
            rate = np.array([rates[i] for _, rates in worst])
            seen = rate > 0
            axes.plot(counts[seen], rate[seen], "o-", color=colour, markersize=3, label=f"δ = {delta:g}")
            axes.axhline(delta, color=colour, linestyle="--", linewidth=0.8)
        axes.set(
            xscale="log", yscale="log", xlabel="observations K", ylabel="share of runs outside the bound"
        )
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def regret_figure(rows: list[Regret]) -> Figure:
    """Measured regret of the three schedules, with the bounds; a panel per slots and gamma."""
    kinds = {
        "constant": ("constant 0.1", RED, "-"),
        "inv_sqrt_horizon": ("5 / √T", ORANGE, "--"),
        "c_over_t": ("5 / t", BLUE, "-."),
    }
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.2, 5.8), layout="constrained")
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


def constants_figure(rows: list[Regret]) -> Figure:
    """Left: regret over bound as gamma grows. Right: two slots, where gaps to the best peer fail."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.2, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        sweep = [r for r in rows if r.study == "gamma"]
        gammas = [r.gamma for r in sweep]
        left.plot(gammas, [r.worst["printed"] for r in sweep], "o-", color=RED, label="printed: 8")
        proven = [r for r in sweep if np.isfinite(r.bounds["constant"]).all()]
        left.plot(
            [r.gamma for r in proven],
            [r.worst["constant"] for r in proven],
            "s--",
            color=BLUE,
            label="corrected: 8 γ²",
        )
        left.axhline(1.0, color=GREY, linewidth=0.8)
        left.axvline(GAMMA, color=GREY, linewidth=0.8, linestyle=":")
        left.set(
            xlabel="γ (dotted: √2)", ylabel="largest regret / bound", title="κ = 1, utilities 0.9 and 0.1"
        )
        left.legend()
        shown = [r for r in rows if r.study == "slots"]
        for r, colour in zip(shown, (BLUE, RED), strict=True):
            name = gamma_name(r.gamma)
            right.plot(r.at, r.mean, color=colour, label=f"regret, γ = {name}")
            style = {"color": colour, "linewidth": 0.9}
            right.plot(r.at, r.bounds["constant"], "--", label=f"8 γ², gaps to the best, γ = {name}", **style)
            right.plot(r.at, r.bounds["slots"], ":", label=f"8 γ², gaps to the slots, γ = {name}", **style)
        right.set(xscale="log", yscale="log", xlabel="rounds T", ylabel="regret")
        right.set_title("κ = 2, utilities " + ", ".join(f"{m:g}" for m in shown[0].means))
        right.set_xlim(left=1000)
        right.set_ylim(bottom=10)
        right.legend(fontsize=6.5)
    return figure


def transition_figure(checked: Checked) -> Figure:
    """P(rest) over the peer's utility: a panel per gamma, a line per number of meetings."""
    with mpl.rc_context(STYLE):
        gammas = list(dict.fromkeys(m.gamma for m in checked.transition))
        figure = Figure(figsize=(8.2, 4.6), layout="constrained")
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
