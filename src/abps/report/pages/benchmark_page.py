"""The page of ``abps benchmark``: methods × federations, mean ranks, and the critical-difference diagram."""

from __future__ import annotations

import html
import math
from pathlib import Path

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
    """Head and rows: per method its mean rank, mean difference to pooled rows, and score per federation."""
    names = frame["federation"].unique(maintain_order=True).to_list()
    others = [m for m in frame["method"].unique(maintain_order=True).to_list() if m not in found.methods]
    by = {(row["federation"], row["method"]): row for row in frame.iter_rows(named=True)}
    rows = []
    for method in [*found.methods, *others]:
        place = found.methods.index(method) if method in found.methods else None
        own = [by.get((name, method)) for name in names]
        bytes_ = [row["all_vs_fedavg"] for row in own if row is not None]
        harm = [row["worse_off"] for row in own if row is not None and row["worse_off"] is not None]
        rows.append(
            [
                method,
                "–" if place is None else f"{found.ranks[place]:.1f}",
                "–"
                if place is None or math.isnan(found.to_pooled[place])
                else f"{found.to_pooled[place]:+.3f}",
                f"{max(bytes_):.2g}×" if bytes_ else "–",
                f"{100 * sum(harm) / len(harm):.0f} %" if harm else "–",
                *("–" if row is None else f"{row['score']:.3f}" for row in own),
            ]
        )
    return ["method", "mean rank", "to pooled", "bytes, at most", "worse off", *names], rows


def markdown(frame: pl.DataFrame, found: Ranking) -> str:
    """The table as Markdown, with one sentence about it."""
    head, rows = cells(frame, found)
    lines = [conclusion(found), "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


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
