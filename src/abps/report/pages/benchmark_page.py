"""The page of ``abps benchmark``: methods × federations, mean ranks, and the critical-difference diagram."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from abps import files
from abps.lab.benchmark import SIZES, BenchmarkResult, Ranking, ranking, to_frame
from abps.report.drawing import INK, LATE, Drawing, blank, draw
from abps.report.pages.document import render

#: What a federation looks like: columns of its table, with their forms.
ANATOMY = (
    ("hospitals", "hospitals", "d"),
    ("rows", "patients", ",d"),
    ("median", "median size", "d"),
    ("largest", "largest", ",d"),
    ("rate", "events", ".1%"),
    ("low_rate", "10th", ".1%"),
    ("high_rate", "90th percentile", ".1%"),
    ("intercept_sd", "SD of intercepts", ".2f"),
    ("slope_sd", "SD of coefficients", ".2f"),
    ("slope_z", "z that they differ", ".1f"),
)


def write(result: BenchmarkResult, out: Path) -> None:
    """CSV files of all results, benchmark.md and benchmark.html in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        entries = getattr(result, "rows" if name == "benchmark" else name)
        if entries:
            files.write_text(out / f"{name}.csv", to_frame(entries).write_csv())
    frames = read(out)
    parts, figures = blocks(frames), drawings(frames)
    files.write_text(out / "benchmark.md", "\n\n".join(parts.values()) + "\n")
    for figure in figures:
        figure.save(out)
    files.write_text(out / "benchmark.html", _page(frames, figures))


#: The tables that a benchmark leaves behind.
FILES = ("benchmark", "contrasts", "sizes", "anatomy")


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
    found = {"time": spent(frames["benchmark"])}
    for name, part in sections(frames["benchmark"]).items():
        ranked = ranking(part)
        head, rows = cells(part, ranked)
        split = len(SUMMARY) + 1
        found[name] = conclusion(ranked)
        found[f"{name}-methods"] = "\n".join(table(head[:split], [row[:split] for row in rows]))
        scores = [[row[0], *row[split:]] for row in rows]
        found[f"{name}-scores"] = "\n".join(table([head[0], *head[split:]], scores))
    if "contrasts" in frames:
        found["counts"] = "\n".join(counted(frames["contrasts"]))
        found["answers"] = "\n".join(answers(frames["contrasts"]))
    if "sizes" in frames:
        found["sizes"] = "\n".join(by_size(frames["sizes"]))
    if "anatomy" in frames:
        rows = [
            [row["federation"], *(f"{row[name]:{form}}" for name, _, form in ANATOMY)]
            for row in frames["anatomy"].iter_rows(named=True)
        ]
        found["anatomy"] = "\n".join(table(["federation", *(word for _, word, _ in ANATOMY)], rows))
    return found


def spent(frame: pl.DataFrame) -> str:
    """How many runs there were, and how long they took."""
    runs, minutes = frame["repeats"].sum(), float((frame["seconds"] * frame["repeats"]).sum()) / 60.0
    return f"{runs:,} cross-fitted runs, {minutes:,.0f} minutes of wall-clock time one after the other."


def drawings(frames: dict[str, pl.DataFrame]) -> list[Drawing]:
    """Mean ranks on real and on generated federations, and gains by size of hospital."""
    found = []
    for name, part in sections(frames["benchmark"]).items():
        ranked = ranking(part)
        words = "Methods that a bar joins cannot be distinguished (Nemenyi, 5 %)."
        title = f"Mean ranks, {name} federations"
        found.append(draw(f"ranks-{name}", title, words, functools.partial(ranks, ranked)))
    if "sizes" in frames:
        words = "A point: hospitals of one federation; its area: how many. The line: mean over all hospitals."
        title = "What a hospital gains on its own model, by its events"
        found.append(draw("gains", title, words, lambda: gains(frames["sizes"])))
    return found


def counted(contrasts: pl.DataFrame) -> list[str]:
    """One line per question: on how many federations the answer is yes, the opposite, or open."""
    rows, contrasts = [], contrasts.with_columns(one=pl.lit(1.0))
    for (question, real), part in contrasts.group_by("question", "real", maintain_order=True):
        for name, word in (("auroc", "AUROC"), ("loss", "log-loss")):
            said = [verdict(r[f"{name}_low"], r[f"{name}_high"]) for r in part.iter_rows(named=True)]
            kinds = ("yes", "cannot tell", "no, the opposite", "no interval")
            where = "real" if real else "generated"
            counts = [str(said.count(kind)) for kind in kinds]
            rows.append([str(question), where, word, *counts, f"{_weighted(part[name], part['one']):+.4f}"])
    head = ["question", "federations", "by", "yes", "cannot tell", "no, the opposite", "no interval", "mean"]
    return table(head, rows)


def by_size(sizes: pl.DataFrame) -> list[str]:
    """One line per class of hospitals: mean gains over all real federations."""
    rows = []
    for least, part in _classes(sizes):
        weight = part["hospitals"]
        mean = [_weighted(part[name], weight) for name in ("auroc", "loss", "better")]
        rows.append([least, str(weight.sum()), f"{mean[0]:+.3f}", f"{mean[1]:+.4f}", f"{mean[2]:.0%}"])
    return table(["events of the hospital", "hospitals", "AUROC", "log-loss saved", "smaller log-loss"], rows)


def _classes(sizes: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Classes of hospitals by their events, in words."""
    above = dict(itertools.pairwise(SIZES))
    names = {low: f"{low} to {above[low] - 1}" if low in above else f"{low} or more" for low in SIZES}
    parts = {int(key[0]): part for key, part in sizes.partition_by("least_events", as_dict=True).items()}
    return [(names[low], parts[low]) for low in SIZES if low in parts]


def _weighted(values: pl.Series, weight: pl.Series) -> float:
    known = values.is_not_null().to_numpy()
    given, size = values.to_numpy()[known], weight.to_numpy()[known]
    return float(given @ size / size.sum()) if known.any() else math.nan


def gains(sizes: pl.DataFrame) -> Figure:
    """Gains on the own model by a hospital's events."""
    figure = blank(7.0, 3.4)
    axes = figure.add_subplot()
    classes = _classes(sizes)
    for at, (_, part) in enumerate(classes):
        known = part.filter(pl.col("auroc").is_not_null())
        axes.scatter([at] * known.height, known["auroc"], s=6 * known["hospitals"], color=INK, alpha=0.35)
    mean = [_weighted(part["auroc"], part["hospitals"]) for _, part in classes]
    axes.plot(range(len(classes)), mean, color=LATE, linewidth=2.0)
    axes.axhline(0.0, color=INK, linewidth=0.6)
    axes.set_xticks(range(len(classes)), [words for words, _ in classes])
    axes.set(xlabel="events of the hospital", ylabel="AUROC gained on its own model")
    return figure


#: Columns of the table of methods, besides the name.
SUMMARY = ("mean rank", "to pooled", "log-loss", "slope", "O/E error", "worse off", "kB", "codec")


def cells(frame: pl.DataFrame, found: Ranking) -> tuple[list[str], list[list[str]]]:
    """Head and rows: per method what all federations say together, and the score on each."""
    names = frame["federation"].unique(maintain_order=True).to_list()
    others = [m for m in frame["method"].unique(maintain_order=True).to_list() if m not in found.methods]
    by = {(row["federation"], row["method"]): row for row in frame.iter_rows(named=True)}
    rows = []
    for method in [*found.methods, *others]:
        place = found.methods.index(method) if method in found.methods else None
        own = [by.get((name, method)) for name in names]
        there = [row for row in own if row is not None]
        differs = _means(there, "to_pooled")
        rows.append(
            [
                method,
                "–" if place is None else f"{found.ranks[place]:.1f}",
                "–" if math.isnan(differs) else f"{differs:+.3f}",
                _shown(_means(there, "loss"), ".3f"),
                _shown(_means(there, "slope"), ".2f"),
                _shown(_means(there, "expected_error"), ".2f"),
                _shown(100 * _means(there, "worse_off"), ".0f", " %"),
                _shown(_means(there, "kilobytes"), ",.1f"),
                there[0]["codec"],
                *("–" if row is None else f"{row['score']:.3f}" for row in own),
            ]
        )
    return ["method", *SUMMARY, *names], rows


def _means(rows: list[dict[str, Any]], name: str) -> float:
    """The mean over federations that have it."""
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) / len(known) if known else math.nan


def _shown(value: float, form: str, unit: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}{unit}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def verdict(low: float | None, high: float | None) -> str:
    """What an interval of a difference says."""
    if low is None or high is None:
        return "no interval"
    return "yes" if low > 0 else "no, the opposite" if high < 0 else "cannot tell"


def _difference(value: float, low: float | None, high: float | None) -> str:
    return f"{value:+.4f}" + ("" if low is None or high is None else f" ({low:+.4f} to {high:+.4f})")


def answers(contrasts: pl.DataFrame) -> list[str]:
    """One line per question and federation: differences with intervals, and the verdict by log-loss."""
    rows = []
    for row in contrasts.iter_rows(named=True):
        shown = [_difference(row[n], row[f"{n}_low"], row[f"{n}_high"]) for n in ("auroc", "loss")]
        verdicts = [verdict(row[f"{name}_low"], row[f"{name}_high"]) for name in ("auroc", "loss")]
        rows.append([row["question"], row["federation"], shown[0], verdicts[0], shown[1], verdicts[1]])
    return table(["question", "federation", "AUROC", "verdict", "log-loss saved", "verdict"], rows)


def conclusion(found: Ranking) -> str:
    """Who ranks first, and who cannot be separated from it."""
    if not found.methods:
        return "No method ran on every federation."
    close = [
        name
        for name, rank in zip(found.methods[1:], found.ranks[1:])
        if not math.isnan(found.critical) and rank - found.ranks[0] < found.critical
    ]
    said = f"Over {found.federations} federations `{found.methods[0]}` has the best mean rank"
    said += f" ({found.ranks[0]:.1f} of {len(found.methods)})."
    if close:
        said += f" Not separated from it at 5 % (Nemenyi): {', '.join(f'`{name}`' for name in close)}."
    return said


def ranks(found: Ranking) -> Figure:
    """Critical-difference diagram: methods on a line of mean ranks, bars over those that do not differ."""
    k = max(len(found.methods), 1)
    figure = blank(7.0, 0.6 + 0.24 * k)
    axes = figure.add_subplot()
    for place, (name, rank) in enumerate(zip(found.methods, found.ranks)):
        axes.plot([rank, rank], [0, -place - 1], color=INK, linewidth=0.6)
        axes.text(rank, -place - 1, f" {name} ({rank:.1f})", va="center", fontsize=8)
    level = 0.35
    if not math.isnan(found.critical):
        for first, rank in enumerate(found.ranks):
            last = max((r for r in found.ranks if r - rank < found.critical), default=rank)
            before = found.ranks[first - 1] if first else -math.inf
            reached = max((r for r in found.ranks if r - before < found.critical), default=before)
            if last > rank and last > reached:
                axes.plot([rank, last], [level, level], color=LATE, linewidth=2.5)
                level += 0.35
    axes.set(xlim=(0.8, k + 1.5), ylim=(-k - 1, level + 0.3), xlabel="mean rank (1 is best)")
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    return figure


def _page(frames: dict[str, pl.DataFrame], figures: Sequence[Drawing]) -> str:
    parts = []
    for name, part in sections(frames["benchmark"]).items():
        found = ranking(part)
        parts.append((f"{name.capitalize()} federations", conclusion(found), *cells(part, found)))
    return render("benchmark.html", title="Benchmark", parts=parts, drawings=figures)
