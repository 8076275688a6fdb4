"""The page of ``abps regress``: effects, how hospitals differ in them, and outcomes beside expected ones."""

import math
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from abps.report.document import render
from abps.report.drawing import EARLY, LATE, QUIET, blank, draw
from abps.statistics.regression import RATIO, EffectEstimate, RegressionResult, summary

#: Hospitals in a forest plot: the most precise ones.
SHOWN = 40


def effects_page(result: RegressionResult) -> str:
    head, rows = result.table()
    plots = [
        draw(f"effect-{k}", effect.name, _differs(effect), partial(forest_plot, result, effect))
        for k, effect in enumerate(result.effects)
        if effect.heterogeneity is not None and result.hospitals
    ]
    if result.ratios:
        caption = (
            "Events of each hospital over those that its patients would have had at the average hospital. By "
            "chance alone 1 hospital in 20 lies outside the inner limits and 1 in 500 outside the outer ones."
        )
        title = "Outcomes beside expected ones"
        plots.append(draw("funnel", title, caption, partial(funnel_plot, result)))
    statistic, freedom, p = result.equal
    return render(
        "effects.html", title=f"Effects on {result.outcome}", said=summary(result), notes=result.notes,
        head=head, rows=rows, plots=plots, statistic=statistic, freedom=freedom, p=p,
        sparse=any(e.heterogeneity and e.heterogeneity.likelihood for e in result.effects),
    )  # fmt: skip


def _differs(effect: EffectEstimate) -> str:
    h = effect.heterogeneity
    assert h is not None
    said = (
        f"τ² {h.tau2:.3g}, I² {100 * h.i2:.0f} %, Q {h.q:.1f} (p {h.p:.3g}) over {h.hospitals} hospitals. "
        "Diamond: average with its 95 % interval (Hartung–Knapp); line below: where a further hospital "
        "would lie."
    )
    if h.likelihood is not None:
        said += (
            f" Some hospitals have few events; by their likelihoods the average is {h.likelihood.mean:.3f} "
            f"({h.likelihood.low:.3f} to {h.likelihood.high:.3f}) with τ {h.likelihood.tau:.3f}."
        )
    return said


def forest_plot(result: RegressionResult, effect: EffectEstimate) -> Figure:
    """Hospitals' estimates with intervals, the most precise at the top, then average and further hospital."""
    h = effect.heterogeneity
    assert h is not None
    shown = sorted(result.hospitals[effect.name].items(), key=lambda item: item[1][1])[:SHOWN]
    figure = blank(7.2, 1.1 + 0.19 * (len(shown) + 2))
    axes = figure.subplots()
    for place, (_, (estimate, se)) in enumerate(shown):
        axes.plot([estimate - 1.96 * se, estimate + 1.96 * se], [place, place], color=QUIET, linewidth=1)
        axes.plot([estimate], [place], "s", color=EARLY, markersize=3 + 3 * min(1.0, shown[0][1][1] / se))
    last = len(shown)
    diamond = [h.low, h.mean, h.high, h.mean], [last, last + 0.35, last, last - 0.35]
    axes.fill(*diamond, color=LATE, linewidth=0)
    if math.isfinite(h.next_low):
        axes.plot([h.next_low, h.next_high], [last + 1, last + 1], color=LATE, linewidth=1.5)
    axes.axvline(0.0, color=QUIET, linewidth=0.6)
    names = [name for name, _ in shown]
    axes.set_yticks(range(last + 2), [*names, "average", "a further hospital"], fontsize=7)
    axes.set_ylim(last + 1.7, -0.7)
    reach = [v for _, (b, se) in shown for v in (b - 2.5 * se, b + 2.5 * se)]
    spread = 4 * float(np.median([se for _, (_, se) in shown]))
    axes.set_xlim(max(min(reach), h.mean - spread), min(max(reach), h.mean + spread))
    axes.set_xlabel(f"log {RATIO[result.family]}" if result.family in RATIO else "effect")
    return figure


def funnel_plot(result: RegressionResult) -> Figure:
    figure = blank(7.2, 3.6)
    axes = figure.subplots()
    observed, expected = (np.array(v, dtype=float) for v in zip(*result.ratios.values(), strict=True))
    at = np.geomspace(max(expected.min() * 0.8, 1.0), expected.max() * 1.15, 200)
    for level, style in ((0.95, "--"), (0.998, "-")):
        for tail in ((1 - level) / 2, (1 + level) / 2):
            axes.plot(at, stats.poisson.ppf(tail, at) / at, style, color=QUIET, linewidth=0.8)
    ratio = observed / expected
    outer = stats.poisson.ppf([[0.001], [0.999]], expected) / expected
    outside = (ratio < outer[0]) | (ratio > outer[1])
    axes.plot(expected[~outside], ratio[~outside], "o", color=EARLY, markersize=3.5)
    axes.plot(expected[outside], ratio[outside], "o", color=LATE, markersize=4.5)
    for name, x, y, out in zip(result.ratios, expected, ratio, outside, strict=True):
        if out:
            axes.annotate(name, (x, y), fontsize=7, textcoords="offset points", xytext=(4, 3))
    axes.axhline(1.0, color=QUIET, linewidth=0.6)
    axes.set(xscale="log", xlabel="expected events", ylabel="observed / expected")
    return figure
