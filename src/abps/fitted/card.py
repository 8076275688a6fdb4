"""The model card of one center: what the model is for, what it was made from, how good it is, where it ends.

It follows the items of TRIPOD+AI (the reporting guideline for prediction models) that a program can answer;
what only people can answer is asked for in so many words, never filled in.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from abps.evaluate.calibration import Estimate
from abps.evaluate.net_benefit import Share
from abps.evaluate.roc import Area
from abps.evaluate.subgroups import Part
from abps.fitted.charts import Line, chart
from abps.fitted.curves import Effect, effects
from abps.fitted.evaluation import Evaluation
from abps.fitted.fit import Fitted
from abps.fitted.model import FittedModel

#: Curves that the card itself shows; all are in the folder.
SHOWN_CURVES = 12


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str


@dataclass(frozen=True)
class Grid:
    """A table."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A drawing, and the file that it is stored in."""

    svg: str
    file: str
    words: str


Block = Text | Grid | Figure


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it.  items: the items of TRIPOD+AI that it answers."""

    title: str
    items: str
    blocks: tuple[Block, ...]


def card(fitted: Fitted, model: FittedModel) -> list[Section]:
    """The card of one center's model."""
    every = fitted.overall
    if not model.outcome.binary:
        return [
            _use(fitted, model),
            _cohort(fitted, model),
            _predictors(model),
            _making(fitted, model),
            _scores(_both(fitted, model), model),
            *_curves(model),
            _limits(fitted, model),
            _people(),
        ]
    return [
        _use(fitted, model),
        _cohort(fitted, model),
        _predictors(model),
        _making(fitted, model),
        _performance(_both(fitted, model)),
        _calibration(_both(fitted, model)),
        _decisions(every),
        _subgroups(fitted),
        *_outsiders(fitted),
        *_curves(model),
        _limits(fitted, model),
        _people(),
    ]


def _both(fitted: Fitted, model: FittedModel) -> list[tuple[str, Evaluation]]:
    """The center's own rows, and those of all where there are others."""
    own = (model.center, fitted.evaluations[model.center])
    return (
        [own]
        if fitted.federation.size == 1
        else [own, ("all centers, each by its own model", fitted.overall)]
    )


def _use(fitted: Fitted, model: FittedModel) -> Section:
    words = (
        f"The model gives {_gives(model)} for a new stay at "
        f"{model.center}, from {len(model.needs)} columns that a table of stays has. It was made together "
        f"with {fitted.making.others} other centers by the method {fitted.making.method}."
    )
    ask = (
        "To be filled in by the people who answer for it: for whom the prediction is meant, at what moment "
        "of the stay it is made, what is done differently because of it, and who must not rely on it. It "
        "supports people who decide; it does not decide. It is no medical device unless "
        "somebody has had it approved."
    )
    return Section("Intended use", "1, 3, 4, 27", (Text(words), Text(ask)))


def _gives(model: FittedModel) -> str:
    """What the model says of a stay, in half a sentence."""
    outcome, label = model.outcome, repr(model.label)
    if outcome.kind == "survival":
        until = outcome.grid[-1] if outcome.grid else model.baseline[-1][0] if model.baseline else 0.0
        return f"the chance to live without {label} (is {model.positive!r}) longer than times up to {until:g}"
    if outcome.kind == "classes":
        return f"the probability that {label} is each of {', '.join(outcome.names)}"
    if outcome.kind == "continuous":
        what = "the mean" if outcome.way == "squared" else f"the {outcome.quantile:g} quantile"
        return f"{what} of {label}"
    return f"the probability that {label} is {model.positive!r}"


#: What the column of counts beside rows is called.
_COUNTED = {"classes": "of rarer classes", "continuous": "above the median"}


def _scores(both: list[tuple[str, Evaluation]], model: FittedModel) -> Section:
    """Performance of an outcome that is not an event or none: its own scores."""
    names = list(both[0][1].measures)
    rows = []
    for name, e in both:
        cells = []
        for each in names:
            score = e.measures.get(each)
            if score is None or math.isnan(score.value):
                cells.append("–")
            elif math.isnan(score.low):
                cells.append(decimal(score.value))
            else:
                cells.append(f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})")
        rows.append((name, number(e.rows), number(e.events), *cells))
    counted = _COUNTED.get(model.outcome.kind, "events")
    words = (
        f"Of {model.outcome.measure} the 95 % interval is over other test rows (bootstrap); below 5 "
        f"{counted if counted == 'events' else 'rows ' + counted} there is none."
    )
    if model.outcome.kind == "survival":
        words += " Scores by IPCW are weighted for rows whose watching ended early."
    header = ("rows of", "rows", counted, *names)
    return Section(
        "Performance on rows that were not learned from",
        "12, 16, 23",
        (Grid(header, tuple(rows)), Text(words)),
    )


def _cohort(fitted: Fitted, model: FittedModel) -> Section:
    federation, notes = fitted.federation, fitted.federation.notes
    mine = federation.center == federation.centers.index(model.center)
    event = federation.outcome.events(federation.label)
    rows = [("stays of this center", number(mine.sum()), number(event[mine].sum()))]
    if notes is not None:
        flow = [
            ("rows in the table", number(notes.rows), ""),
            ("rows that repeat another, taken once", number(notes.copies), ""),
            (
                f"rows of {len(notes.left_out)} centers that take no part",
                number(sum(o.rows for o in notes.left_out)),
                "",
            ),
            (f"rows of {federation.size} centers", number(federation.rows), number(event.sum())),
        ]
        rows = [*flow, *rows]
    about = model.about
    result, kept = about["rows"], about["events"]
    rows += [
        ("… of these learned from", number(result["learned"]), number(kept["learned"])),
        ("… of these to judge and calibrate by", number(result["validation"]), number(kept["validation"])),
    ]
    blocks: list[Block] = [
        Text(
            f"Source: {federation.name}. Outcome: {model.outcome.asked}, {model.label!r}"
            f"{f' is {model.positive!r}' if model.positive else ''}. The table does not "
            "say how stays were chosen, over which years, and how the outcome was ascertained: add it here."
        ),
        Grid(("flow", "rows", _COUNTED.get(model.outcome.kind, "events")), tuple(rows)),
    ]
    if notes is not None and notes.repairs:
        lines = tuple((r.column, r.rule, number(r.cells)) for r in notes.repairs)
        blocks.append(Grid(("column mended", "by the rule", "cells"), lines))
    if notes is not None and notes.warnings:
        blocks.append(Text("Warnings of the check: " + "; ".join(notes.warnings) + "."))
    return Section("Cohort and flow", "5, 6, 7, 8, 20", tuple(blocks))


def _predictors(model: FittedModel) -> Section:
    kinds: dict[str, list[str]] = {}
    for column in model.book.columns:
        word = {
            "number": "number",
            "flag": "yes/no",
            "missing": "whether missing",
            "level": f"is {column.level!r}",
        }
        kinds.setdefault(column.source, []).append(word[column.kind])
    rows = []
    for source, words in kinds.items():
        span = model.ranges.get(source)
        rows.append(
            (source, ", ".join(words), "" if span is None else "{:.4g} to {:.4g}".format(*span.allowed))
        )
    gaps = (
        "A gap in a number is filled with the value agreed on (the mean), and where gaps are frequent a "
        "column tells that there was one. A level that was not learned counts as none of the known. Numbers "
        "outside the range are refused or reported, not silently used."
    )
    return Section(
        "Predictors and missing values",
        "9, 11",
        (Grid(("column", "read as", "expected range"), tuple(rows)), Text(gaps)),
    )


def _making(fitted: Fitted, model: FittedModel) -> Section:
    making = fitted.making
    size = number(sum(v.size for v in model.network.tensors().values()))
    words = (
        f"Method {making.method}, {making.rounds} rounds, seed {making.seed}. No row left its center: models "
        f"and small summaries were exchanged, {number(making.sent)} bytes in all, {making.partners:.2f} "
        f"partners per center and round on average. The model has {size} numbers. Every "
        "setting stands in model.json."
    )
    again = {
        "none": "The validation rows gave no reason to recalibrate."
        if model.outcome.binary
        else "What it says is not recalibrated.",
        "intercept": "The level of the probabilities was shifted on validation rows.",
        "intercept and slope": "Level and spread of the probabilities were refitted on validation rows.",
    }[model.recalibration.kind]
    return Section("How it was made", "12, 16, 21, 22", (Text(words), Text(again), Text(making.measured)))


def _performance(both: list[tuple[str, Evaluation]]) -> Section:
    rows = tuple(
        (name, number(e.rows), number(e.events), area_words(e.area), decimal(e.brier)) for name, e in both
    )
    words = (
        "95 % intervals by DeLong. With fewer than 5 events or non-events nothing is told. Brier score: mean "
        "squared error of the probabilities."
    )
    return Section(
        "Performance on rows that were not learned from",
        "12, 16, 23",
        (Grid(("rows of", "rows", "events", "AUROC", "Brier score"), rows), Text(words)),
    )


def _calibration(both: list[tuple[str, Evaluation]]) -> Section:
    rows = tuple(
        (
            name,
            number(e.calibration.observed),
            decimal(e.calibration.expected, 1),
            estimate_words(e.calibration.in_the_large),
            estimate_words(e.calibration.slope),
            "cannot tell" if e.curve is None else decimal(e.curve.error),
        )
        for name, e in both
    )
    right = ("in the large (0 is right)", "slope (1 is right)", "mean distance (0 is right)")
    header = ("rows of", "events", "expected", *right)
    blocks: list[Block] = [Grid(header, rows)]
    drawn = next(((name, e.curve) for name, e in both if e.curve is not None), None)
    if drawn is not None:
        whose, curve = drawn
        ends = np.array([float(min(curve.at.min(), curve.observed.min())), float(curve.at.max())])
        lines = [
            Line("observed", curve.at, curve.observed, curve.low, curve.high),
            Line("right", ends, ends, dashed=True),
        ]
        svg = chart(lines, "probability told", "share of events", f"Calibration of {whose}")
        blocks.append(Figure(svg, "calibration.svg", f"Smooth calibration curve, {whose}; dashed: right."))
    return Section("Calibration", "12, 23", tuple(blocks))


def _decisions(every: Evaluation) -> Section:
    rows = []
    for name, at in every.thresholds.items():
        shares = (at.called, at.sensitivity, at.specificity, at.positive_value, at.negative_value)
        rows.append((f"{decimal(at.threshold)} ({name})", *(share_words(s) for s in shares)))
    header = ("threshold", "called", "sensitivity", "specificity", "positive value", "negative value")
    blocks: list[Block] = [
        Grid(header, tuple(rows)),
        Text("Thresholds were chosen on validation rows of all centers; the numbers are of their test rows."),
    ]
    if every.decisions is not None and every.events:
        d = every.decisions
        least = -0.02
        lines = [
            Line("model", d.thresholds, np.maximum(d.model, least)),
            Line("call everybody", d.thresholds, np.maximum(d.everyone, least), dashed=True),
            Line("call nobody", d.thresholds, np.zeros(len(d.thresholds)), dashed=True),
        ]
        svg = chart(lines, "threshold", "net benefit", "Decision curve of all centers")
        words = "Net benefit of acting at a threshold; gray: call everybody, orange: call nobody."
        blocks.append(Figure(svg, "decisions.svg", words))
    return Section("Decisions and thresholds", "15, 23", tuple(blocks))


def _subgroups(fitted: Fitted) -> Section:
    rows: list[tuple[str, ...]] = []
    for column, parts in fitted.parts.items():
        rows += [(column, *part_words(part)) for part in parts]
    words = (
        "All centers, each row by its own center's model. A part with fewer than 10 rows or 5 events or "
        "non-events is hidden; where one alone would be, so are the counts of the next smallest."
    )
    if not rows:
        nothing = "The table has no column for sex or age, and no other was asked for (`--subgroups`)."
        return Section("Parts of the cohort", "14, 23", (Text(nothing),))
    header = ("column", "part", "rows", "events", "AUROC", "observed / expected")
    return Section("Parts of the cohort", "14, 23", (Grid(header, tuple(rows)), Text(words)))


def _outsiders(fitted: Fitted) -> list[Section]:
    if not fitted.outsiders:
        return []
    told = [o for o in fitted.outsiders if o.evaluation.area.told]
    rows = tuple(
        (
            o.center,
            number(o.evaluation.events),
            area_words(o.evaluation.area),
            estimate_words(o.evaluation.calibration.in_the_large),
        )
        for o in fitted.outsiders
    )
    words = (
        "Each center in turn (or in groups) stayed away, the others made a model, and the mean of their "
        "models was tried on all rows of the center that stayed away, without any recalibration. "
        f"{len(told)} of {len(fitted.outsiders)} centers have enough events to tell."
    )
    header = ("center that stayed away", "events", "AUROC", "in the large")
    return [Section("A hospital that did not take part", "23, 26", (Text(words), Grid(header, rows)))]


def _curves(model: FittedModel) -> list[Section]:
    found = effects(model)
    if not found:
        return []
    blocks: list[Block] = [
        Text(
            f"The model adds up what each column says. A curve shows what a value adds to {adds_to(model)}, "
            "against the value at which the column is on average; below zero speaks against "
            f"{'a large number' if model.outcome.kind == 'continuous' else 'the event'}. "
            f"Ordered by how much a column moves {adds_to(model)}."
        ),
        Grid(
            ("column", f"adds to {adds_to(model)}"),
            tuple((e.name, f"{e.amount:+.3f}") for e in found if e.curve is None),
        ),
    ]
    for effect in [e for e in found if e.curve is not None][:SHOWN_CURVES]:
        blocks.append(Figure(draw(effect, adds_to(model)), f"{effect.file}.svg", effect.name))
    return [Section("What every column says", "22", tuple(blocks))]


def adds_to(model: FittedModel) -> str:
    """What the columns of an additive model add up to."""
    if model.outcome.kind == "continuous":
        return "the number in deviations"
    return "the log relative risk" if model.outcome.way == "cox" else "the log odds"


def draw(effect: Effect, what: str = "the log odds") -> str:
    """The curve of one column."""
    assert effect.curve is not None
    at, adds = effect.curve
    words = f"added {what.removeprefix('the ')}"
    return chart([Line(effect.name, at, adds)], effect.name, words, effect.name, effect.knots)


def _limits(fitted: Fitted, model: FittedModel) -> Section:
    own = fitted.evaluations[model.center]
    lines = [
        "It was measured on stays of the same centers and years as it was made from. Elsewhere and later it "
        "may be worse: check calibration on own rows before use, and again when practice changes.",
        "It finds what goes together with the outcome, not what causes it: changing a column need not change "
        "the risk.",
    ]
    if model.outcome.binary and not own.area.told:
        lines.append(
            f"On the test rows of {model.center} there are {own.area.events} events: too few to say how good "
            "it is there. The numbers of all centers are no proof for this one."
        )
    if model.recalibration.kind != "none":
        lines.append("It was recalibrated on few rows; the shift itself is uncertain.")
    versions = ", ".join(f"{name} {value}" for name, value in model.about["versions"].items())
    blocks = (*(Text(line) for line in lines), Text(f"Made with {versions}."))
    return Section("Limits and versions", "18, 24, 25, 26", blocks)


def _people() -> Section:
    asked = (
        ("2", "a summary for readers who see nothing else"),
        ("3", "why this prediction is wanted, and what is known already"),
        ("10", "why this many stays are enough"),
        ("13", "whether rare outcomes need more than rows as they are, which is what was done"),
        ("17", "who approved the use of the data"),
        ("18", "money, interests, protocol, registration, where data and code can be had"),
        ("19", "how patients and the public took part"),
    )
    words = Text(
        "These items of the guideline ask for what no table holds. They are open until somebody answers."
    )
    return Section(
        "What only people can answer", "2, 3, 10, 13, 17, 18, 19", (words, Grid(("item", "asks"), asked))
    )


def number(value: float) -> str:
    """A count with thousands apart."""
    return f"{int(value):,}"


def decimal(value: float, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def area_words(area: Area) -> str:
    """An area with its interval, or why there is none."""
    if not area.told:
        return f"cannot tell: {area.events} events, {area.others} non-events"
    return f"{area.value:.3f} ({area.low:.3f} to {area.high:.3f})"


def estimate_words(estimate: Estimate | None) -> str:
    """An estimate with its interval."""
    if estimate is None:
        return "cannot tell"
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def share_words(share: Share) -> str:
    """A share with its interval."""
    return "–" if share.of == 0 else f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%})"


def part_words(part: Part) -> tuple[str, ...]:
    """The cells of one part of the cohort."""
    if part.area is None:
        return part.name, "hidden", "hidden", part.hidden or "", ""
    if part.calibration is None or part.rows is None:
        return part.name, "hidden", "hidden", area_words(part.area), ""
    ratio = decimal(part.calibration.ratio, 2)
    return part.name, number(part.rows), number(part.area.events), area_words(part.area), ratio


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The card as Markdown; drawings are files beside it."""
    lines = [f"# {_md(title)}", ""]
    for section in sections:
        lines += [f"## {_md(section.title)}", "", f"*TRIPOD+AI items {section.items}*", ""]
        for block in section.blocks:
            if isinstance(block, Text):
                lines += [_md(block.words), ""]
            elif isinstance(block, Figure):
                lines += [f"![{_md(block.words)}]({block.file})", ""]
            elif block.rows:
                lines.append("| " + " | ".join(_md(h) for h in block.header) + " |")
                lines.append("|" + "---|" * len(block.header))
                lines += ["| " + " | ".join(_md(cell) for cell in row) + " |" for row in block.rows]
                lines.append("")
    return "\n".join(lines)


def _md(text: str) -> str:
    """Text that Markdown shows as it is: no tags, no bars, no links."""
    plain = html.escape(" ".join(text.split()), quote=False)
    for mark in ("\\", "|", "*", "_", "[", "]", "`"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain


_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;"
    "padding:0 1rem}table{border-collapse:collapse;margin:1rem 0;font-size:.9rem;display:block;overflow:auto}"
    "th,td{border-bottom:1px solid #8886;padding:.3rem .6rem;text-align:left;vertical-align:top}"
    "figure{margin:1rem 0;max-width:30rem}small{opacity:.75}h2{margin-top:2.2rem}"
    "@media print{body{margin:0}section{break-inside:avoid}}"
)


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, sections: Sequence[Section]) -> str:
    """The card as one HTML page that needs nothing else."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    for section in sections:
        parts.append(f"<section><h2>{html.escape(section.title)}</h2>")
        parts.append(f"<p><small>TRIPOD+AI items {html.escape(section.items)}</small></p>")
        for block in section.blocks:
            if isinstance(block, Text):
                parts.append(f"<p>{html.escape(block.words)}</p>")
            elif isinstance(block, Figure):
                words = html.escape(block.words)
                parts.append(f"<figure>{block.svg}<figcaption>{words}</figcaption></figure>")
            elif block.rows:
                head = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in block.header)
                body = "".join(
                    "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
                    for row in block.rows
                )
                parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts.append("</section>")
    parts.append("</main></body></html>\n")
    return "".join(parts)
