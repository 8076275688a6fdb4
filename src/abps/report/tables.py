"""Tables of a study as Markdown, CSV and LaTeX. No times in them: they must not change when repeated."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from operator import attrgetter

from abps.core.matching import CAUSES
from abps.report.statistics import BUDGETS, TARGETS, UNKNOWN, Difference, Part, answers, at_budget, to_target

#: What stands where there is nothing to say.
NOTHING = "–"


@dataclass(frozen=True)
class Table:
    """A table as text: a file name, a caption, column heads, rows, and notes below."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return as_markdown(self)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        return f"<table><caption>{escape(self.caption)}</caption><tr>{head}</tr>{body}</table>"


# ---------------------------------------------------------------- numbers as text


def number(value: float, digits: int = 3) -> str:
    """A number, or a dash."""
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else NOTHING


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign; a real minus, and no sign on zero.

    >>> signed(0.0123), signed(-0.5), signed(-0.0001)
    ('+0.012', '−0.500', '0.000')
    """
    if not math.isfinite(value):
        return NOTHING
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def times(value: float) -> str:
    """A multiple of FedAvg's bytes, with enough digits to tell small ones from nothing.

    >>> times(1.5), times(0.0312), times(0.00004), times(0.0)
    ('1.50×', '0.031×', '0.00004×', '0.00×')
    """
    if not math.isfinite(value):
        return NOTHING
    digits = 2 if value == 0 or abs(value) >= 0.1 else 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{digits}f}×"


def percent(part: int | float, whole: int | float) -> str:
    """A share in per cent."""
    return f"{100 * part / whole:.0f} %" if whole else NOTHING


def spoken(difference: Difference | None) -> str:
    """A difference with its interval and verdict: ``+0.012 (+0.003 to +0.021) better``."""
    if difference is None or difference.verdict == UNKNOWN:
        return NOTHING
    d = difference
    return f"{signed(d.estimate)} ({signed(d.low)} to {signed(d.high)}) {d.verdict}"


def brief(difference: Difference | None) -> str:
    """A difference and its verdict."""
    if difference is None or difference.verdict == UNKNOWN:
        return NOTHING
    return f"{signed(difference.estimate)} {difference.verdict}"


def with_deviation(mean: float, deviation: float) -> str:
    """Mean ± standard deviation over seeds."""
    if not math.isfinite(mean):
        return NOTHING
    return number(mean) if not math.isfinite(deviation) else f"{number(mean)} ± {number(deviation)}"


# ---------------------------------------------------------------- the tables


def headline(part: Part) -> Table:
    """Accuracy, bytes, what may be said against FedAvg, random partners and training alone."""
    rows = []
    for line in part.lines:
        r = line.result
        rows.append(
            (
                r.label,
                with_deviation(r.mean, r.deviation),
                times(r.vs_fedavg),
                spoken(line.to_fedavg),
                spoken(line.to_random),
                spoken(line.to_local),
                NOTHING if line.harmed is None else percent(*line.harmed),
                percent(r.rest, 1) if r.rest else NOTHING,
                str(len(r.seeds)),
            )
        )
    return Table(
        "headline",
        f"Accuracy and bytes on {part.data.name} ({part.data.centers} centers).",
        (
            "method",
            "AUROC",
            "bytes",
            "to FedAvg",
            "to random partners",
            "to Local",
            "harmed",
            "rest",
            "seeds",
        ),
        tuple(rows),
        (
            "AUROC: mean over centers of each center's own test rows, mean ± standard deviation over seeds.",
            "Bytes: each payload once per edge and round, in multiples of 50 rounds of FedAvg in fp32.",
            "Differences: paired by seed and center, with 95 % bootstrap interval over centers and seeds; "
            "a tie is an interval that covers zero. Intervals are not corrected for many comparisons.",
            "To random partners: against random-k3 for methods with more than one partner, else random-k1.",
            "Harmed: centers more than 0.02 below Local, averaged over seeds; small centers are noisy, so "
            "this share is not zero even for a method that harms nobody.",
            "Rest: share of center-rounds without a partner.",
        ),
    )


def numbers(part: Part) -> Table:
    """The headline with every number in a column of its own, for programs."""
    columns = [
        "method", "auroc_mean", "auroc_sd", "auroc_at_best_validation", "auprc_mean", "brier_mean",
        "bytes_vs_fedavg", "bytes_all_vs_fedavg", "edge_bytes", "directed_bytes", "control_bytes",
        "cost_usd", "partners_mean",
        "rest_share", *(f"rest_{cause.key}" for cause in CAUSES), "rounds_mean",
    ]  # fmt: skip
    for other in ("fedavg", "random", "local"):
        columns += [f"to_{other}", f"to_{other}_low", f"to_{other}_high", f"to_{other}_verdict"]
    columns += ["random_control", "harmed_centers", "compared_centers", "seeds"]
    rows = []
    for line in part.lines:
        r = line.result
        values: list[float | str] = [
            r.label, r.mean, r.deviation, r.average(lambda run: run.auroc.at_best_validation),
            r.average(lambda run: run.auprc.mean), r.average(lambda run: run.brier.mean), r.vs_fedavg,
            r.average(lambda run: run.bytes.all_vs_fedavg), r.average(lambda run: run.bytes.edge),
            r.average(lambda run: run.bytes.directed), r.average(lambda run: run.bytes.control),
            r.average(lambda run: run.cost_usd), r.average(lambda run: run.partners_mean),
            r.rest, *(r.average(attrgetter(f"rest.{cause.key}")) for cause in CAUSES),
            r.average(lambda run: run.rounds),
        ]  # fmt: skip
        for d in (line.to_fedavg, line.to_random, line.to_local):
            values += ["", "", "", ""] if d is None else [d.estimate, d.low, d.high, d.verdict]
        values += [
            line.random,
            *(("", "") if line.harmed is None else map(str, line.harmed)),
            str(len(r.seeds)),
        ]
        rows.append(tuple(v if isinstance(v, str) else _plain(v) for v in values))
    return Table("headline", "", tuple(columns), tuple(rows))


def _plain(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if math.isfinite(value) else ""


def equal_bytes(part: Part, budgets: Sequence[float] = BUDGETS) -> Table:
    """AUROC that each method has reached when a budget is used up."""
    sending = [line.result for line in part.lines if line.result.vs_fedavg > 0]
    rows = tuple((r.label, *(number(at_budget(r, budget, part.unit)) for budget in budgets)) for r in sending)
    return Table(
        "equal-bytes",
        "AUROC at equal bytes: the last round that a budget pays for.",
        ("method", *(times(budget) for budget in budgets)),
        rows,
        (
            "A method that ends below a budget is shown with its final value; "
            f"{NOTHING}: not even its first exchange fits.",
        ),
    )


def targets(part: Part, goals: Sequence[float] = TARGETS) -> Table:
    """Bytes that each method needs to reach an AUROC."""
    rows = []
    for line in part.lines:
        r = line.result
        cells = []
        for goal in goals:
            needed, count = to_target(r, goal, part.unit)
            few = "" if count == len(r.seeds) else f" ({count} of {len(r.seeds)} seeds)"
            cells.append(NOTHING if not count else f"{times(needed)}{few}")
        rows.append((r.label, *cells))
    return Table(
        "bytes-to-target",
        "Bytes until the mean test AUROC first reaches a target, in multiples of 50 rounds of FedAvg.",
        ("method", *(f"AUROC {goal:.3f}" for goal in goals)),
        tuple(rows),
        (f"{NOTHING}: not reached. Mean over the seeds that reach it.",),
    )


def direct(part: Part) -> Table:
    """The direct comparisons."""
    rows = tuple(
        (a.question, f"{a.first} − {a.second}", spoken(a.difference), str(a.difference.seeds))
        for a in answers(part)
    )
    return Table(
        "questions",
        "Direct comparisons, paired by seed and center.",
        ("question", "difference", "AUROC (95 % interval), verdict", "seeds"),
        rows,
    )


def runs(part: Part) -> Table:
    """One line per run."""
    columns = (
        "method",
        "seed",
        "rounds",
        "auroc",
        "auroc_at_best_validation",
        "auprc",
        "brier",
        "vs_fedavg",
        "rest",
    )
    rows = []
    for line in part.lines:
        for run in line.result.runs:
            values = [
                run.auroc.mean, run.auroc.at_best_validation, run.auprc.mean,
                run.brier.mean, run.bytes.vs_fedavg, run.rest.share,
            ]  # fmt: skip
            rows.append((line.result.label, str(run.seed), str(run.rounds), *map(_plain, values)))
    return Table("runs", "Every run.", columns, tuple(rows))


def centers(part: Part) -> Table:
    """One line per center and method: mean AUROC over seeds."""
    import numpy as np

    rows = []
    for line in part.lines:
        values = line.result.auroc
        for c, name in enumerate(part.centers):
            known = values[:, c][np.isfinite(values[:, c])]
            mean = float(known.mean()) if len(known) else math.nan
            rows.append((line.result.label, name, _plain(mean), str(len(known))))
    return Table("centers", "Every center.", ("method", "center", "auroc", "seeds"), tuple(rows))


# ---------------------------------------------------------------- the three forms


def as_markdown(table: Table) -> str:
    """A GitHub table with caption and notes."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    ruler = line(["---", *(["---:"] * (len(table.columns) - 1))])
    body = [line(row) for row in table.rows]
    notes = [f"- {note}" for note in table.notes]
    parts = [f"**{table.caption}**", "", line(table.columns), ruler, *body, "", *notes]
    return "\n".join(parts).rstrip() + "\n"


def as_csv(table: Table) -> str:
    """Comma-separated values with a header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return out.getvalue()


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "×": r"$\times$", "−": r"$-$", "–": "--", "κ": r"$\kappa$", "+": "+",
}  # fmt: skip


def as_latex(table: Table) -> str:
    """A booktabs table; every special character is escaped."""

    def cell(text: str) -> str:
        return "".join(_LATEX.get(character, character) for character in text)

    body = "\n".join("  " + " & ".join(cell(c) for c in row) + r" \\" for row in table.rows)
    head = " & ".join(cell(c) for c in table.columns)
    notes = " ".join(cell(note) for note in table.notes)
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{cell(table.caption)} {notes}}}\n"
        f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}\n\\toprule\n"
        f"  {head} \\\\\n\\midrule\n{body}\n\\bottomrule\n"
        "\\end{tabular}\n\\end{table}\n"
    )
