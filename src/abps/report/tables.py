"""Tables of a study as Markdown, CSV and LaTeX. No times in them: they must not change when repeated."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING

from abps.core.matching import CAUSES
from abps.report.statistics import (
    ABSENT,
    BETTER,
    BUDGETS,
    EQUAL,
    HARM,
    UNSURE,
    WORSE,
    Difference,
    Harm,
    Part,
    answers,
    at_budget,
    stages,
    to_target,
)

if TYPE_CHECKING:
    from abps.engine.result import Run
    from abps.report.hospitals import Hospitals

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
    ('1.50×', '0.031×', '0.000040×', '0×')
    """
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0×"
    digits = 2 if abs(value) >= 0.1 else 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{digits}f}×"


def money(dollars: float) -> str:
    """A price; fractions of a cent are none.

    >>> money(0.0004), money(1.5)
    ('< $0.01', '$1.50')
    """
    return "< $0.01" if 0 < dollars < 0.01 else f"${dollars:.2f}"


def volume(megabytes: float) -> str:
    """An amount of data in the unit that suits it.

    >>> volume(0.0), volume(0.00042), volume(0.0371), volume(12.34), volume(4321)
    ('0 kB', '0.42 kB', '37 kB', '12.3 MB', '4.3 GB')
    """
    if not math.isfinite(megabytes):
        return NOTHING
    if megabytes >= 1000:
        return f"{megabytes / 1000:.1f} GB"
    if megabytes >= 1:
        return f"{megabytes:.1f} MB"
    kilo = 1000 * megabytes
    return f"{kilo:.0f} kB" if kilo >= 10 or kilo == 0 else f"{kilo:.2g} kB"


def percent(part: int | float, whole: int | float) -> str:
    """A share in per cent."""
    return f"{100 * part / whole:.0f} %" if whole else NOTHING


def verdict(difference: Difference) -> str:
    """The verdict in words; equality with its margin, and doubt that only the correction leaves."""
    if difference.verdict == EQUAL:
        return f"equal within {difference.margin:g}"
    alone = difference.low > 0.0 or difference.high < 0.0
    return f"{UNSURE} after correction" if difference.verdict == UNSURE and alone else difference.verdict


def spoken(difference: Difference | None) -> str:
    """A difference with its interval and verdict: ``+0.012 (+0.003 to +0.021) better``."""
    if difference is None or difference.verdict == ABSENT:
        return NOTHING
    d = difference
    within = f" ({signed(d.low)} to {signed(d.high)})" if math.isfinite(d.low) else ""
    return f"{signed(d.estimate)}{within} {verdict(d)}"


def brief(difference: Difference | None) -> str:
    """A difference and its verdict, for narrow places; ``?`` where it cannot be told."""
    if difference is None or difference.verdict == ABSENT:
        return NOTHING
    short = difference.verdict if difference.verdict in (BETTER, WORSE, EQUAL) else "?"
    return f"{signed(difference.estimate)} {short}"


def harm(found: Harm | None) -> str:
    """The share of centers that are harmed, and how many surely: ``10 % (3 surely)``."""
    if found is None:
        return NOTHING
    return percent(found.expected, found.centers) + (f" ({found.sure} surely)" if found.sure else "")


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
                volume(r.megabytes_a_round),
                spoken(line.to_fedavg),
                spoken(line.to_random),
                spoken(line.to_alone),
                harm(line.harm),
                percent(r.rest, 1) if r.rest else NOTHING,
                str(len(r.seeds)),
            )
        )
    return Table(
        "headline",
        f"Accuracy and bytes on {part.data.name} ({part.data.centers} centers).",
        (
            "method",
            part.measure,
            "bytes",
            "per center and round",
            "to FedAvg",
            "to random partners",
            f"to {part.alone}" if part.alone else "to training alone",
            "harmed",
            "rest",
            "seeds",
        ),
        tuple(rows),
        (
            f"{part.measure}: mean over centers of each center's own test rows, mean ± standard deviation "
            f"over seeds{'; ' * bool(standing_on(part))}{standing_on(part)}.",
            "Bytes: each payload once per edge and round, in multiples of 50 rounds of FedAvg in fp32 with "
            "the paper's network; beside it what that is per center and round.",
            "Differences: paired by seed and center, with a 95 % interval for other centers and other seeds. "
            "Better and worse: after Holm's correction for the number of comparisons in the column. Equal: "
            f"the whole interval lies within {part.margin:g} of zero. One seed gives no verdict.",
            "To random partners: against random-k3 for methods with more than one partner, else random-k1.",
            f"Harmed: centers that truly lie more than {HARM:g} below {part.alone or 'training alone'}, "
            "with the noise of single centers taken out; surely: with 95 % certainty.",
            "Rest: share of center-rounds without a partner.",
        ),
    )


def numbers(part: Part) -> Table:
    """The headline with every number in a column of its own, for programs."""
    score = "auroc" if part.measure == "AUROC" else "score"
    columns = [
        "method", f"{score}_mean", f"{score}_sd", f"{score}_at_best_validation", "auprc_mean", "brier_mean",
        "bytes_vs_fedavg", "kb_per_center_and_round", "bytes_all_vs_fedavg", "edge_bytes", "directed_bytes",
        "control_bytes", "cost_usd", "partners_mean",
        "rest_share", *(f"rest_{cause.key}" for cause in CAUSES), "rounds_mean",
    ]  # fmt: skip
    for other in ("fedavg", "random", "alone"):
        columns += [f"to_{other}{what}" for what in ("", "_low", "_high", "_p", "_p_holm", "_verdict")]
    columns += ["random_control", "alone", "harmed_expected", "harmed_surely", "compared_centers", "seeds"]
    rows = []
    for line in part.lines:
        r = line.result
        values: list[float | str] = [
            r.label, r.mean, r.deviation, r.average(lambda run: run.main.at_best_validation),
            r.average(lambda run: run.auprc.mean), r.average(lambda run: run.brier.mean), r.vs_fedavg,
            1000 * r.megabytes_a_round,
            r.average(lambda run: run.bytes.all_vs_fedavg), r.average(lambda run: run.bytes.edge),
            r.average(lambda run: run.bytes.directed), r.average(lambda run: run.bytes.control),
            r.average(lambda run: run.cost_usd), r.average(lambda run: run.partners_mean),
            r.rest, *(r.average(attrgetter(f"rest.{cause.key}")) for cause in CAUSES),
            r.average(lambda run: run.rounds),
        ]  # fmt: skip
        for d in (line.to_fedavg, line.to_random, line.to_alone):
            values += [""] * 6 if d is None else [d.estimate, d.low, d.high, d.p, d.corrected, d.verdict]
        h = line.harm
        values += [line.random, part.alone or ""]
        values += ["", "", ""] if h is None else [h.expected, str(h.sure), str(h.centers)]
        values.append(str(len(r.seeds)))
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
        f"{part.measure} at equal bytes: the last round that a budget pays for.",
        ("method", *(times(budget) for budget in budgets)),
        rows,
        (
            "A method that ends below a budget is shown with its final value; "
            f"{NOTHING}: not even its first exchange fits.",
        ),
    )


def targets(part: Part, goals: Sequence[float] | None = None) -> Table:
    """Bytes that each method needs to reach an AUROC; unless told, on the way to the best method's."""
    goals = stages(part) if goals is None else goals
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
        f"Bytes until the mean test {part.measure} first reaches a target, in multiples of 50 rounds of "
        "FedAvg.",
        ("method", *(f"{part.measure} {goal:.3f}" for goal in goals)),
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
        ("question", "difference", f"{part.measure} (95 % interval), verdict", "seeds"),
        rows,
        ("Verdicts are corrected for the number of questions (Holm).",),
    )


def runs(part: Part) -> Table:
    """One line per run."""
    score = "auroc" if part.measure == "AUROC" else "score"
    columns = (
        "method",
        "seed",
        "rounds",
        score,
        "test_events",
        f"{score}_at_best_validation",
        "auprc",
        "brier",
        "vs_fedavg",
        "rest",
    )
    rows = []
    for line in part.lines:
        for run in line.result.runs:
            values = [
                run.main.mean, events_of(run), run.main.at_best_validation, run.auprc.mean,
                run.brier.mean, run.bytes.vs_fedavg, run.rest.share,
            ]  # fmt: skip
            rows.append((line.result.label, str(run.seed), str(run.rounds), *map(_plain, values)))
    return Table("runs", "Every run.", columns, tuple(rows))


def events_of(run: Run) -> float:
    """The events that a run's scores stand on; NaN where it does not say it."""
    return float(sum(run.scored.per_center_events.values())) if run.scored.per_center_events else math.nan


def standing_on(part: Part) -> str:
    """What the scores of all methods stand on, in half a sentence; nothing where runs do not say it."""
    found = part.lines[0].result
    events = found.average(events_of)
    if not math.isfinite(events):
        return ""
    rows = found.average(lambda run: sum(run.scored.per_center_rows.values()))
    return f"scored on {rows:,.0f} test rows with {events:,.0f} events a seed"


def centers(part: Part) -> Table:
    """One line per center and method: mean AUROC over seeds."""
    import numpy as np

    rows = []
    for line in part.lines:
        values = line.result.auroc
        for c, name in enumerate(part.centers):
            known = values[:, c][np.isfinite(values[:, c])]
            mean = float(known.mean()) if len(known) else math.nan
            events = [run.scored.per_center_events.get(name) for run in line.result.runs]
            seen = [e for e in events if e is not None]
            counted = _plain(sum(seen) / len(seen)) if seen else ""
            rows.append((line.result.label, name, _plain(mean), counted, str(len(known))))
    score = "auroc" if part.measure == "AUROC" else "score"
    heads = ("method", "center", score, "test_events", "seeds")
    return Table("centers", "Every center.", heads, tuple(rows))


def hospitals(part: Part, found: Hospitals) -> Table:
    """One line per hospital under the method that the page is about."""
    rows = []
    for h in found.all:
        m = h.main
        values = [_plain(v) for v in (h.alone, m.auroc, m.gain, m.low, m.high)]
        price = [_plain(h.megabytes), _plain(h.dollars), str(sum(h.rested.values())), str(h.rounds)]
        stands = [_plain(v) for v in (h.scored.rows, h.scored.events, h.scored.expected, h.scored.slope)]
        rows.append((h.name, *values, m.verdict, *price, *stands))
    columns = ("hospital", "alone", "together", "gain", "gain_low", "gain_high", "verdict")
    more = ("megabytes", "dollars", "rested", "rounds")
    heads = (*columns, *more, "test_rows", "test_events", "expected_events", "calibration_slope")
    return Table("hospitals", f"{part.alone} and {found.lead.result.label}.", heads, tuple(rows))


# ---------------------------------------------------------------- the three forms


def as_markdown(table: Table) -> str:
    """A GitHub table with caption and notes; what a name holds is text, not markup."""

    def plain(text: str) -> str:
        text = " ".join(escape(text, quote=False).split())
        return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(plain(cell) for cell in cells) + " |"

    ruler = line(["---", *(["---:"] * (len(table.columns) - 1))])
    body = [line(row) for row in table.rows]
    notes = [f"- {plain(note)}" for note in table.notes]
    parts = [f"**{plain(table.caption)}**", "", line(table.columns), ruler, *body, "", *notes]
    return "\n".join(parts).rstrip() + "\n"


def as_csv(table: Table) -> str:
    """Comma-separated values with a header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([harmless(cell) for cell in row] for row in table.rows)
    return out.getvalue()


def harmless(cell: str) -> str:
    """A cell that a spreadsheet takes for text, whatever a center is called; numbers stay numbers.

    >>> harmless("=1+1"), harmless("-0.5"), harmless("north")
    ("'=1+1", '-0.5', 'north')
    """
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "×": r"$\times$", "−": r"$-$", "–": "--", "κ": r"$\kappa$", "+": "+",
    "ε": r"$\varepsilon$", "δ": r"$\delta$",
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
