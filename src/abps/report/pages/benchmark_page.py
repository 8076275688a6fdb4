"""The page of ``abps benchmark``: methods × federations, mean ranks, and the critical-difference diagram."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from abps import files
from abps.lab.benchmark import BenchmarkResult, Ranking, ranking, to_frame
from abps.report.drawing import INK, LATE, Drawing, blank, draw


def write(result: BenchmarkResult, out: Path) -> None:
    """benchmark.csv, contrasts.csv, sizes.csv, benchmark.md and benchmark.html in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    frame = to_frame(result.rows)
    found = ranking(frame)
    for name, entries in (("contrasts", result.contrasts), ("sizes", result.sizes)):
        if entries:
            files.write_text(out / f"{name}.csv", to_frame(entries).write_csv())
    files.write_text(out / "benchmark.csv", frame.write_csv())
    files.write_text(out / "benchmark.md", markdown(frame, found))
    figure = draw("ranks", "Mean ranks", "Methods that a bar joins do not differ.", lambda: ranks(found))
    figure.save(out)
    files.write_text(out / "benchmark.html", _page(frame, found, figure))


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
    head = ["method", "mean rank", "to pooled", "log-loss", "slope", "O/E error", "worse off", "kB", "codec"]
    return [*head, *names], rows


def _means(rows: list[dict[str, Any]], name: str) -> float:
    """The mean over federations that have it."""
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) / len(known) if known else math.nan


def _shown(value: float, form: str, unit: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}{unit}"


def markdown(frame: pl.DataFrame, found: Ranking) -> str:
    """The table as Markdown, with one sentence about it."""
    head, rows = cells(frame, found)
    return "\n".join([conclusion(found), "", *table(head, rows)]) + "\n"


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


def _page(frame: pl.DataFrame, found: Ranking, figure: Drawing) -> str:
    head, rows = cells(frame, found)
    top = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    said = html.escape(conclusion(found).replace("`", ""))
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' "
        "content='width=device-width'><title>Benchmark</title><style>body{font:15px/1.5 system-ui;max-width:"
        "72rem;margin:2rem auto;padding:0 1rem}.wide{overflow-x:auto}table{border-collapse:collapse}td,th{"
        "padding:.25rem .5rem;border-bottom:1px solid #ccc;text-align:right}td:first-child,th:first-child{"
        "text-align:left}svg{max-width:100%;height:auto}</style>"
        f"<h1>Benchmark</h1><p>{said}</p>{figure.svg}<p>{html.escape(figure.caption)}</p>"
        f"<div class='wide' tabindex='0'><table><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></html>\n"
    )
