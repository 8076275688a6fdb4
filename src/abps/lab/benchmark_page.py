"""The page of ``abps benchmark``: one table of methods, mean ranks, and for whom collaboration pays."""

import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from scipy import stats

from abps import files
from abps.lab.benchmark import QUESTIONS, SIZES, BenchmarkResult, Ranking, ranking, to_frame
from abps.report.document import render
from abps.report.drawing import INK, LATE, Drawing, blank, draw

#: What a federation looks like: columns of its table, with their forms.
ANATOMY = (
    ("hospitals", "hospitals", "d"),
    ("rows", "patients", ",d"),
    ("median", "median size", "d"),
    ("rate", "events", ".1%"),
    ("low_rate", "10th", ".1%"),
    ("high_rate", "90th percentile", ".1%"),
    ("intercept_sd", "SD of intercepts", ".2f"),
    ("slope_sd", "SD of coefficients", ".2f"),
    ("slope_z", "z that they differ", ".1f"),
)

#: Columns of the table of methods after rank and difference to pooled, with their forms; the first section
#: has all, another the first two.
COLUMNS = (
    ("loss", "log-loss", ".3f"),
    ("worse_off", "worse off", ".0%"),
    ("slope", "slope", ".2f"),
    ("expected_error", "O/E error", ".2f"),
    ("kilobytes", "kB", ",.1f"),
)

#: The tables that a benchmark leaves behind.
FILES = ("benchmark", "contrasts", "sizes", "anatomy", "machine")

#: A method has settled if its mean AUROC changes by no more than this in the last quarter of its rounds.
SETTLED = 0.005


def write(result: BenchmarkResult, out: Path) -> None:
    """CSV files of all results, benchmark.md and benchmark.html in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("benchmark", "contrasts", "sizes", "anatomy"):
        entries = getattr(result, "rows" if name == "benchmark" else name)
        if entries:
            files.write_text(out / f"{name}.csv", to_frame(entries).write_csv())
    frames = read(out)
    parts, figures = blocks(frames), drawings(frames)
    files.write_text(out / "benchmark.md", "\n\n".join(parts.values()) + "\n")
    for figure in figures:
        figure.save(out)
    said = [parts[name] for name in sections(frames["benchmark"])]
    head, rows = methods_table(frames["benchmark"])
    page = render("benchmark.html", title="Benchmark", said=said, head=head, rows=rows, drawings=figures)
    files.write_text(out / "benchmark.html", page)


def read(folder: Path) -> dict[str, pl.DataFrame]:
    """The tables in a folder, by name; those that are there."""
    return {
        name: pl.read_csv(folder / f"{name}.csv", infer_schema_length=None)
        for name in FILES
        if (folder / f"{name}.csv").exists()
    }


def sections(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Real federations and generated ones, apart: they answer different questions."""
    named = {"real": frame.filter(pl.col("real")), "generated": frame.filter(~pl.col("real"))}
    return {name: part for name, part in named.items() if part.height}


def blocks(frames: dict[str, pl.DataFrame]) -> dict[str, str]:
    """Everything that a text about the benchmark quotes, as Markdown, by name."""
    frame = frames["benchmark"]
    found = {"time": spent(frames), "settled": settled(frame)}
    found |= {name: conclusion(name, ranking(part)) for name, part in sections(frame).items()}
    found["methods"], found["rivals"] = table(*methods_table(frame)), rivals(frame)
    if "contrasts" in frames:
        found["claims"] = claims(frames["contrasts"])
    if "sizes" in frames:
        found["sizes"] = by_size(frames["sizes"])
    if "anatomy" in frames:
        rows = [
            [row["federation"], *(f"{row[name]:{form}}" for name, _, form in ANATOMY)]
            for row in frames["anatomy"].iter_rows(named=True)
        ]
        found["anatomy"] = table(["federation", *(word for _, word, _ in ANATOMY)], rows)
        found["spread"] = spread(frames)
    return found


def spent(frames: dict[str, pl.DataFrame]) -> str:
    """How many runs there were, and how long they took."""
    frame = frames["benchmark"]
    kinds = []
    for name, part in sections(frame).items():
        repeats = sorted(set(part["repeats"].to_list()))
        words = " to ".join(str(count) for count in dict.fromkeys((repeats[0], repeats[-1])))
        worlds = "" if name == "real" else ", every repeat a fresh world"
        kinds.append(f"{part['federation'].n_unique()} {name} federations, {words} repeats{worlds}")
    said = f"{frame['repeats'].sum():,} cross-fitted runs ({'; '.join(kinds)})"
    if "machine" in frames:
        said += f", {frames['machine']['cpu_seconds'].to_numpy().sum() / 60.0:,.0f} minutes of processor time"
    return said + "."


def settled(frame: pl.DataFrame) -> str:
    """Which methods still change when they end."""
    change = pl.col("late_change").cast(pl.Float64).mean()
    late = frame.group_by("method").agg(change).sort("late_change", "method", descending=True)
    moving = [f"`{m}` ({v:.3f})" for m, v in late.iter_rows() if v is not None and round(v, 3) > SETTLED]
    said = f"In the last quarter of its rounds the mean AUROC of a method changes by at most {SETTLED}"
    return said + (f"; more for {', '.join(moving)}." if moving else ".")


def conclusion(name: str, found: Ranking) -> str:
    """Who ranks first, and who cannot be separated from it."""
    if not found.methods:
        return f"No method ran on every {name} federation."
    close = [
        f"`{method}`"
        for method, rank in zip(found.methods[1:], found.ranks[1:])
        if not math.isnan(found.critical) and rank - found.ranks[0] < found.critical
    ]
    said = f"Over {found.federations} {name} federations `{found.methods[0]}` has the best mean rank"
    said += f" ({found.ranks[0]:.1f} of {len(found.methods)})."
    return said + (f" Not separated from it at 5 % (Nemenyi): {', '.join(close)}." if close else "")


def rivals(frame: pl.DataFrame) -> str:
    """The table of methods over the real federations on which all of them ran; nothing if those are all."""
    real = frame.filter("real")
    ran = real.group_by("federation").agg(pl.col("method").n_unique())
    shared = ran.filter(pl.col("method") == real["method"].n_unique())["federation"].sort().to_list()
    if len(shared) in (0, ran.height):
        return ""
    part = real.filter(pl.col("federation").is_in(shared))
    said = f"All {real['method'].n_unique()} methods ran on {', '.join(shared)}, with at least "
    return f"{said}{min(part['repeats'].to_list())} repeats.\n\n{table(*methods_table(part))}"


def methods_table(frame: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Head and rows: one line per method that ran on every federation of a kind, with its mean rank and means
    over federations."""
    parts = sections(frame)
    ranked = {name: ranking(part) for name, part in parts.items()}
    first = next(iter(ranked.values()))
    counts = {name: part.group_by("method").len() for name, part in parts.items()}
    whole = {n: c.filter(pl.col("len") == c["len"].max())["method"].to_list() for n, c in counts.items()}
    ran = [
        m for m in frame["method"].unique(maintain_order=True) if any(m in each for each in whole.values())
    ]
    head, rows = ["method", "codec"], []
    shown = {name: COLUMNS if k == 0 else COLUMNS[:2] for k, name in enumerate(parts)}
    for name, columns in shown.items():
        head += [f"{name}: rank", "to pooled (95 %)", *(word for _, word, _ in columns)]
    for method in [*first.methods, *(m for m in ran if m not in first.methods)]:
        row = [method, frame.filter(pl.col("method") == method)["codec"][0]]
        for name, columns in shown.items():
            own, order = parts[name].filter(pl.col("method") == method), ranked[name]
            if method not in whole[name]:  # means over other federations mislead
                own = own.clear()
            row.append(f"{order.ranks[order.methods.index(method)]:.1f}" if method in order.methods else "–")
            row.append(_difference(own["to_pooled"]))
            means: list[Any] = [own[column].mean() for column, _, _ in columns]
            row += ["–" if m is None else f"{m:{form}}" for m, (_, _, form) in zip(means, columns)]
        rows.append(row)
    return head, rows


def over_federations(values: pl.Series) -> tuple[float, float, float]:
    """The mean of differences, and its 95 % interval over federations."""
    known = values.drop_nulls().to_numpy()
    mean = float(np.mean(known)) if len(known) else math.nan
    if len(known) < 2:
        return mean, math.nan, math.nan
    half = float(stats.t.ppf(0.975, len(known) - 1) * np.std(known, ddof=1) / math.sqrt(len(known)))
    return mean, mean - half, mean + half


def _difference(values: pl.Series) -> str:
    mean, low, high = over_federations(values)
    said = "–" if math.isnan(mean) else f"{mean:+.3f}"
    return said if math.isnan(low) else f"{said} ({low:+.3f} to {high:+.3f})"


def claims(contrasts: pl.DataFrame) -> str:
    """One line per claim of the paper and kind of federation: mean differences, on how many federations the
    interval says yes or the opposite, and what follows."""
    rows, asked = [], [question for question, _, _ in QUESTIONS[:2]]
    contrasts = contrasts.filter(pl.col("question").is_in(asked))
    if not contrasts.height:
        return "The methods of the two claims were not run."
    for (question, real), part in contrasts.group_by("question", "real", maintain_order=True):
        row, said = [str(question), f"{part.height} {'real' if real else 'generated'}"], []
        for name in ("auroc", "loss"):
            single = [verdict(r[f"{name}_low"], r[f"{name}_high"]) for r in part.iter_rows(named=True)]
            row += [_difference(part[name]), f"{single.count('yes')} / {single.count('no')}"]
            said.append(verdict(*over_federations(part[name])[1:]))
        rows.append([*row, said[0] if said[0] == said[1] else f"{said[0]} by AUROC, {said[1]} by log-loss"])
    head = ["claim", "federations", "AUROC", "yes / opposite", "log-loss saved", "yes / opposite", "verdict"]
    return table(head, rows)


def verdict(low: float | None, high: float | None) -> str:
    """What an interval of a difference says."""
    if low is None or high is None or math.isnan(low):
        return "no interval"
    return "yes" if low > 0 else "no" if high < 0 else "inconclusive"


def by_size(sizes: pl.DataFrame) -> str:
    """One line per class of hospitals: mean gains over all real federations."""
    rows = []
    for words, part in _classes(sizes):
        mean = [_weighted(part, name) for name in ("auroc", "loss", "better")]
        count = str(part["hospitals"].sum())
        rows.append([words, count, f"{mean[0]:+.3f}", f"{mean[1]:+.4f}", f"{mean[2]:.0%}"])
    return table(["events of the hospital", "hospitals", "AUROC", "log-loss saved", "smaller log-loss"], rows)


def spread(frames: dict[str, pl.DataFrame]) -> str:
    """How far the hospitals of real federations differ, beside the default of the generator."""
    frame = frames["anatomy"]
    real = frame.filter(
        pl.col("federation").is_in(frames["benchmark"].filter("real")["federation"].to_list())
    )
    if not real.height or "world-default" not in frame["federation"]:
        return ""
    own, said = frame.filter(pl.col("federation") == "world-default").row(0, named=True), []
    for column, word in (("intercept_sd", "intercepts"), ("slope_sd", "coefficients")):
        low, middle, high = np.quantile(real[column].to_numpy(), (0.25, 0.5, 0.75))
        said.append(f"{word} {middle:.2f} (half of them {low:.2f} to {high:.2f}), here {own[column]:.2f}")
    return f"Standard deviation between the hospitals of a real federation, median: {'; '.join(said)}."


def _classes(sizes: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Classes of hospitals by their events, in words."""
    above = dict(itertools.pairwise(SIZES))
    names = {low: f"{low} to {above[low] - 1}" if low in above else f"{low} or more" for low in SIZES}
    parts = {int(key[0]): part for key, part in sizes.partition_by("least_events", as_dict=True).items()}
    return [(names[low], parts[low]) for low in SIZES if low in parts]


def _weighted(part: pl.DataFrame, name: str) -> float:
    """The mean over hospitals of those that have it."""
    known = part.filter(pl.col(name).is_not_null())
    return float(np.average(known[name], weights=known["hospitals"])) if known.height else math.nan


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


# --------------------------------------------------------------------------- figures


def drawings(frames: dict[str, pl.DataFrame]) -> list[Drawing]:
    """Mean ranks on real and on generated federations, and for whom collaboration pays."""
    found = []
    for name, part in sections(frames["benchmark"]).items():
        words = "Methods that a bar joins cannot be distinguished (Nemenyi, 5 %)."
        title = f"Mean ranks, {name} federations"
        found.append(draw(f"ranks-{name}", title, words, functools.partial(ranks, ranking(part))))
    if "sizes" in frames:
        words = "A point: hospitals of one federation; its area: how many. The line: mean over all hospitals."
        title = "When collaboration pays: gain on a hospital's own best model, by its events"
        found.append(draw("gains", title, words, lambda: gains(frames["sizes"])))
    return found


def gains(sizes: pl.DataFrame) -> Figure:
    """Gains on the own model by a hospital's events: ranking, calibration, and how many gain."""
    figure, classes = blank(7.0, 3.8), _classes(sizes)
    panels = figure.subplots(1, 2)
    for axes, column, words in zip(panels, ("auroc", "loss"), ("AUROC gained", "log-loss saved")):
        for at, (_, part) in enumerate(classes):
            known = part.filter(pl.col(column).is_not_null())
            axes.scatter([at] * known.height, known[column], s=6 * known["hospitals"], color=INK, alpha=0.35)
        mean = [_weighted(part, column) for _, part in classes]
        axes.plot(range(len(classes)), mean, color=LATE, linewidth=2.0)
        axes.axhline(0.0, color=INK, linewidth=0.6)
        axes.set_xticks(range(len(classes)), [name.replace(" to ", "–") for name, _ in classes], fontsize=7)
        axes.set(xlabel="events of the hospital", ylabel=words)
    for at, (_, part) in enumerate(classes):
        share = f"{_weighted(part, 'better'):.0%}"
        panels[1].annotate(share, (at, 1.0), xycoords=("data", "axes fraction"), ha="center", fontsize=7)
    return figure


def ranks(found: Ranking) -> Figure:
    """Critical-difference diagram: methods on a line of mean ranks, bars over those that do not differ."""
    k = max(len(found.methods), 1)
    figure = blank(7.0, 0.6 + 0.24 * k)
    axes = figure.add_subplot()
    for place, (name, rank) in enumerate(zip(found.methods, found.ranks)):
        axes.plot([rank, rank], [0, -place - 1], color=INK, linewidth=0.6)
        axes.text(rank, -place - 1, f" {name} ({rank:.1f})", va="center", fontsize=8)
    level, reached = 0.35, -math.inf
    for rank in found.ranks if not math.isnan(found.critical) else ():
        last = max(r for r in found.ranks if r - rank < found.critical)
        if last > max(rank, reached):
            axes.plot([rank, last], [level, level], color=LATE, linewidth=2.5)
            level += 0.35
        reached = max(reached, last)
    axes.set(xlim=(0.8, k + 1.5), ylim=(-k - 1, level + 0.3), xlabel="mean rank (1 is best)")
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    return figure
