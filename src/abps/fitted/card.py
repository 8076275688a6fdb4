"""The model card of one hospital: purpose, data, performance, limits.

It follows the items of TRIPOD+AI (the reporting guideline for prediction models) that a program can answer.
It asks people for the rest and never fills it in.
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
from abps.evaluate.subgroups import SubgroupPart
from abps.evaluate.verdicts import HospitalVerdict
from abps.fitted.curves import ChartLine, ColumnEffect, above, chart, effects
from abps.fitted.evaluation import ModelEvaluation, ScoreInterval
from abps.fitted.fit import ALONE, FitResult
from abps.fitted.guidelines import checklist
from abps.fitted.model import FittedModel

#: Curves that the card itself shows; all are in the folder.
SHOWN_CURVES = 12

#: The lowest net benefit that a decision curve shows.
LOWEST_BENEFIT = -0.02


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
class CardFigure:
    """A drawing, and the file that it is stored in."""

    svg: str
    file: str
    words: str


Block = Text | Grid | CardFigure


@dataclass(frozen=True)
class CardSection:
    """A heading with what stands under it.  items: the items of TRIPOD+AI that it answers."""

    title: str
    items: str
    blocks: tuple[Block, ...]


def card(fitted: FitResult, model: FittedModel) -> list[CardSection]:
    """The card of one center's model."""
    both = _both(fitted, model)
    if model.outcome.binary:
        results = [
            _performance(both),
            *_alone(fitted, model),
            _calibration(both),
            _decisions(fitted.overall),
            _subgroups(fitted),
        ]
    else:
        results = [_scores(both, model), *_alone(fitted, model)]
    sections = [
        _use(fitted, model),
        _cohort(fitted, model),
        _predictors(model),
        _making(fitted, model),
        *results,
        *_curves(model),
        _limits(fitted, model),
    ]
    return [*sections, _checklist(sections)]


def _both(fitted: FitResult, model: FittedModel) -> list[tuple[str, ModelEvaluation]]:
    """The center's own rows, and those of all where there are others."""
    own = (model.center, fitted.evaluations[model.center])
    if fitted.federation.size == 1:
        return [own]
    return [own, ("all hospitals, each by its own model", fitted.overall)]


def _use(fitted: FitResult, model: FittedModel) -> CardSection:
    others = fitted.making.others
    if fitted.making.method == ALONE:
        origin = "It was trained on this hospital's rows alone."
    else:
        origin = f"{others} other hospitals took part in its training by the method {fitted.making.method}."
    words = (
        f"The model predicts {_predicts(model)} for a new stay at {model.center}, from "
        f"{len(model.needs)} columns of a table of stays. {origin}"
    )
    ask = (
        "To be filled in by the people responsible: for whom the prediction is meant, when during the stay "
        "it is made, what is done differently because of it, and who must not rely on it. It supports people "
        "who decide; it does not decide. It is not a medical device unless somebody has had it approved."
    )
    return CardSection("Intended use", "1, 3, 4, 27", (Text(words), Text(ask)))


def _predicts(model: FittedModel) -> str:
    """What the model says of a stay, in half a sentence."""
    outcome, label = model.outcome, repr(model.label)
    if outcome.kind == "survival":
        until = outcome.grid[-1] if outcome.grid else model.baseline[-1][0] if model.baseline else 0.0
        return f"the chance to live without {label} (is {model.positive!r}) past times up to {until:g}"
    if outcome.kind == "classes":
        return f"the probability that {label} is each of {', '.join(outcome.names)}"
    if outcome.kind == "continuous":
        what = "the mean" if outcome.way == "squared" else f"the {outcome.quantile:g} quantile"
        return f"{what} of {label}"
    return f"the probability that {label} is {model.positive!r}"


#: What the column of counts beside rows is called.
_COUNTED = {"classes": "of rarer classes", "continuous": "above the median"}


def _scores(both: list[tuple[str, ModelEvaluation]], model: FittedModel) -> CardSection:
    """Performance for an outcome that is not binary: its own scores."""
    names = list(both[0][1].measures)
    rows = [
        (name, number(e.rows), number(e.events), *(score_words(e.measures.get(each)) for each in names))
        for name, e in both
    ]
    counted = _COUNTED.get(model.outcome.kind, "events")
    words = (
        f"The 95 % interval of {model.outcome.measure} comes from a bootstrap of the rows; there is none "
        f"below 5 {counted if counted == 'events' else 'rows ' + counted}."
    )
    if model.outcome.kind == "survival":
        words += " Scores by IPCW are weighted for censored rows."
    header = ("rows of", "rows", counted, *names)
    return CardSection(
        "Performance on patients the model had not seen",
        "12, 16, 23",
        (Grid(header, tuple(rows)), Text(words)),
    )


def _cohort(fitted: FitResult, model: FittedModel) -> CardSection:
    federation, notes = fitted.federation, fitted.federation.notes
    mine = federation.center == federation.centers.index(model.center)
    event = federation.outcome.events(federation.label)
    rows = [("stays of this hospital", number(mine.sum()), number(event[mine].sum()))]
    if notes is not None:
        left = f"rows of {len(notes.left_out)} hospitals that do not take part"
        flow = [
            ("rows in the table", number(notes.rows), ""),
            ("exact duplicates, removed", number(notes.copies), ""),
            (left, number(sum(o.rows for o in notes.left_out)), ""),
            (f"rows of {federation.size} hospitals", number(federation.rows), number(event.sum())),
        ]
        rows = [*flow, *rows]
    learned, events = model.about["rows"], model.about["events"]
    rows += [
        ("… for training", number(learned["learned"]), number(events["learned"])),
        ("… for validation", number(learned["validation"]), number(events["validation"])),
    ]
    unknown = "how stays were chosen" if federation.time is not None else "how stays were chosen, which years"
    positive = f" is {model.positive!r}" if model.positive else ""
    blocks: list[Block] = [
        Text(
            f"Source: {federation.name}{_years(fitted)}. Outcome: {model.outcome.asked}, {model.label!r}"
            f"{positive}. The table does not say {unknown} and how the outcome was ascertained: add it here."
        ),
        Grid(("flow", "rows", _COUNTED.get(model.outcome.kind, "events")), tuple(rows)),
    ]
    if notes is not None and notes.repairs:
        lines = tuple((r.column, r.rule, number(r.cells)) for r in notes.repairs)
        blocks.append(Grid(("column repaired", "by the rule", "cells"), lines))
    if notes is not None and notes.warnings:
        blocks.append(Text("Warnings of the check: " + "; ".join(notes.warnings) + "."))
    return CardSection("Cohort and flow", "5, 6, 7, 8, 20", tuple(blocks))


def _years(fitted: FitResult) -> str:
    """The period of the stays, where the table has a time column."""
    if fitted.federation.time is None:
        return ""
    time = np.asarray(fitted.federation.time, dtype=np.float64)
    known = time[np.isfinite(time)]
    return f", {int(known.min())} to {int(known.max())}" if len(known) else ""


def _predictors(model: FittedModel) -> CardSection:
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
        "A missing number is filled with the agreed value (the mean); where gaps are frequent, an extra "
        "column marks them. An unknown category counts as none of the known ones. Numbers outside the range "
        "are refused or reported."
    )
    return CardSection(
        "Predictors and missing values",
        "9, 11",
        (Grid(("column", "read as", "expected range"), tuple(rows)), Text(gaps)),
    )


def _making(fitted: FitResult, model: FittedModel) -> CardSection:
    making = fitted.making
    size = number(sum(v.size for v in model.network.tensors().values()))
    words = f"Method {making.method}, {making.rounds} rounds, seed {making.seed}. "
    if making.sent:
        words += (
            f"No row left its hospital: the hospitals exchanged models and small summaries, "
            f"{number(making.sent)} bytes in all, with {making.partners:.2f} partners per hospital and round "
            "on average. "
        )
    words += f"The model has {size} numbers. Every setting stands in model.json. "
    words += "Rows are used as they are: rare outcomes get no extra weight."
    again = {
        "none": "Rows that the model had not seen gave no reason to recalibrate."
        if model.outcome.binary
        else "Its predictions are not recalibrated.",
        "intercept": "The level of the probabilities was shifted.",
        "intercept and slope": "Level and spread of the probabilities were refitted.",
    }[model.recalibration.kind]
    return CardSection(
        "How it was made", "12, 13, 16, 21, 22", (Text(words), Text(again), Text(making.measured))
    )


def _performance(both: list[tuple[str, ModelEvaluation]]) -> CardSection:
    rows = tuple(
        (name, number(e.rows), number(e.events), area_words(e.area), decimal(e.brier)) for name, e in both
    )
    words = (
        "95 % intervals by DeLong; pairs of patients count if one model predicted both. No AUROC with fewer "
        "than 5 events or non-events. Brier score: mean squared error of the probabilities."
    )
    return CardSection(
        "Performance on patients the model had not seen",
        "12, 16, 23",
        (Grid(("rows of", "rows", "events", "AUROC", "Brier score"), rows), Text(words)),
    )


#: What a verdict means for the hospital.
_VERDICTS = {
    HospitalVerdict.GAINS: "This hospital gains by working together.",
    HospitalVerdict.PROBABLY_GAINS: "This hospital probably gains by working together.",
    HospitalVerdict.SAME: "Alone and together make no difference that matters here.",
    HospitalVerdict.INCONCLUSIVE: "Inconclusive: the patients of this hospital do not settle it.",
    HospitalVerdict.PROBABLY_LOSES: "This hospital probably loses by working together; use its model alone.",
    HospitalVerdict.LOSES: "This hospital loses by working together; use its model alone.",
    HospitalVerdict.TOO_FEW: "Too few events at this hospital to compare.",
}


def _alone(fitted: FitResult, model: FittedModel) -> list[CardSection]:
    """This hospital's best model alone beside the model of this card."""
    found = fitted.alone.get(model.center)
    if found is None:
        return []
    name = model.outcome.measure
    rows = (
        (f"alone ({ALONE})", decimal(found.alone)),
        (f"together ({fitted.making.method})", decimal(found.together)),
        ("difference on its own patients", signed(found.measured)),
        ("estimated gain, with the evidence of all hospitals", gain_words(found.gain)),
        ("probability of a gain", chance_words(found.better)),
    )
    words = _VERDICTS[found.verdict]
    events = fitted.evaluations[model.center].events
    if not found.verdict.answers or found.verdict.value.startswith("probably"):
        if math.isfinite(found.events_needed) and found.events_needed > events:
            words += f" About {number(found.events_needed)} events of its own would settle it ({events} now)."
    elif found.verdict in (HospitalVerdict.LOSES, HospitalVerdict.SAME):
        words += f" `abps fit --method {ALONE}` writes the model alone."
    note = (
        "Both were trained and scored on the same folds. The estimated gain combines this hospital's "
        "patients with what all hospitals show (a hierarchical model); 95 % interval."
    )
    table = Grid((name, model.center), rows)
    return [CardSection("Alone or together", "12, 23", (Text(words), table, Text(note)))]


def _calibration(both: list[tuple[str, ModelEvaluation]]) -> CardSection:
    rows = tuple(
        (
            name,
            number(e.calibration.observed),
            decimal(e.calibration.expected, 1),
            estimate_words(e.calibration.in_the_large),
            estimate_words(e.calibration.slope),
            "too few events" if e.curve is None else decimal(e.curve.error),
        )
        for name, e in both
    )
    ideal = ("calibration intercept (ideal 0)", "slope (ideal 1)", "mean distance (ideal 0)")
    blocks: list[Block] = [Grid(("rows of", "events", "expected", *ideal), rows)]
    drawn = next(((name, e.curve) for name, e in both if e.curve is not None), None)
    if drawn is not None:
        whose, curve = drawn
        ends = np.array([float(min(curve.at.min(), curve.observed.min())), float(curve.at.max())])
        lines = [
            ChartLine("observed", curve.at, curve.observed, curve.low, curve.high),
            ChartLine("ideal", ends, ends, dashed=True),
        ]
        svg = chart(lines, "predicted probability", "share of events", f"Calibration of {whose}")
        caption = f"Smooth calibration curve, {whose}; dashed: ideal."
        blocks.append(CardFigure(svg, "calibration.svg", caption))
    return CardSection("Calibration", "12, 23", tuple(blocks))


def _decisions(every: ModelEvaluation) -> CardSection:
    rows = []
    for name, at in every.thresholds.items():
        shares = (at.called, at.sensitivity, at.specificity, at.positive_value, at.negative_value)
        rows.append((f"{decimal(at.threshold)} ({name})", *(share_words(s) for s in shares)))
    header = ("threshold", "at or above", "sensitivity", "specificity", "PPV", "NPV")
    blocks: list[Block] = [
        Grid(header, tuple(rows)),
        Text("Every row is judged by thresholds that were chosen on other rows."),
    ]
    if every.decisions is not None and every.events:
        d = every.decisions
        lines = [
            ChartLine("model", *above(d.thresholds, d.model, LOWEST_BENEFIT)),
            ChartLine("treat everybody", *above(d.thresholds, d.everyone, LOWEST_BENEFIT), dashed=True),
            ChartLine("treat nobody", d.thresholds, np.zeros(len(d.thresholds)), dashed=True),
        ]
        svg = chart(lines, "threshold", "net benefit", "Decision curve of all hospitals")
        words = "Net benefit of acting at a threshold; gray: treat everybody, orange: treat nobody."
        blocks.append(CardFigure(svg, "decisions.svg", words))
    return CardSection("Decisions and thresholds", "15, 23", tuple(blocks))


def _subgroups(fitted: FitResult) -> CardSection:
    rows: list[tuple[str, ...]] = []
    for column, parts in fitted.subgroups.items():
        rows += [(column, *part_words(part)) for part in parts]
    words = (
        "All hospitals, each row by its own hospital's model. A subgroup with fewer than 10 rows or 5 events "
        "or non-events is hidden; if only one is, the counts of the next smallest are hidden too."
    )
    if not rows:
        nothing = "No column was recognised as sex or age; name others with `--subgroups`."
        return CardSection("Subgroups", "14, 23", (Text(nothing),))
    header = ("column", "subgroup", "rows", "events", "AUROC", "observed / expected")
    return CardSection("Subgroups", "14, 23", (Grid(header, tuple(rows)), Text(words)))


def _curves(model: FittedModel) -> list[CardSection]:
    found = effects(model)
    if not found:
        return []
    against = "a large number" if model.outcome.kind == "continuous" else "the event"
    blocks: list[Block] = [
        Text(
            f"The model is a sum over columns. A curve shows what a value adds to {adds_to(model)}, compared "
            f"with the column's mean; below zero speaks against {against}. Ordered by how much a column "
            f"moves {adds_to(model)}."
            + (" Pairs of columns add to it, too." if len(model.network.branches) > 1 else "")
        ),
        Grid(
            ("column", f"adds to {adds_to(model)}"),
            tuple((e.name, f"{e.amount:+.3f}") for e in found if e.curve is None),
        ),
    ]
    for effect in [e for e in found if e.curve is not None][:SHOWN_CURVES]:
        blocks.append(CardFigure(draw(effect, adds_to(model)), f"{effect.file}.svg", effect.name))
    return [CardSection("What every column adds", "22", tuple(blocks))]


def adds_to(model: FittedModel) -> str:
    """What the columns of an additive model add up to."""
    if model.outcome.kind == "continuous":
        return "the number in deviations"
    return "the log relative risk" if model.outcome.way == "cox" else "the log odds"


def draw(effect: ColumnEffect, what: str = "the log odds") -> str:
    """The curve of one column."""
    assert effect.curve is not None
    at, adds = effect.curve
    words = f"added {what.removeprefix('the ')}"
    return chart([ChartLine(effect.name, at, adds)], effect.name, words, effect.name, effect.knots)


def _limits(fitted: FitResult, model: FittedModel) -> CardSection:
    own = fitted.evaluations[model.center]
    lines = [
        "It was evaluated on stays of the same hospitals and years as it was trained on. Elsewhere and later "
        "it may be worse: check calibration on your own rows before use, and again when practice changes.",
        "It finds associations, not causes: changing a column need not change the risk.",
    ]
    if model.outcome.binary and not own.area.enough:
        lines.append(
            f"{model.center} has {own.area.events} events and {own.area.others} non-events, too few to say "
            "how good the model is there. The numbers of all hospitals are no proof for this one."
        )
    if model.recalibration.kind != "none":
        lines.append("It was recalibrated on few rows; the shift itself is uncertain.")
    versions = ", ".join(f"{name} {value}" for name, value in model.about["versions"].items())
    blocks = (*(Text(line) for line in lines), Text(f"Made with {versions}."))
    return CardSection("Limits and versions", "18, 24, 25, 26", blocks)


def _checklist(sections: Sequence[CardSection]) -> CardSection:
    rows = checklist({section.title: section.items for section in sections})
    header = ("item", "asks", "where", "state")
    return CardSection("Checklist of TRIPOD+AI", "", (Grid(header, rows),))


def number(value: float) -> str:
    """A count with thousands apart."""
    return f"{int(value):,}"


def decimal(value: float, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def signed(value: float) -> str:
    """A difference, or a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:+.3f}"


def score_words(score: ScoreInterval | None) -> str:
    """A score with its interval, where there is one."""
    if score is None or math.isnan(score.value):
        return "–"
    if math.isnan(score.low):
        return decimal(score.value)
    return f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})"


def chance_words(chance: float) -> str:
    """A probability in percent, never quite 0 or 100.

    >>> chance_words(0.9999), chance_words(0.874)
    ('above 99%', '87%')
    """
    if math.isnan(chance):
        return "–"
    return "above 99%" if chance > 0.99 else "below 1%" if chance < 0.01 else f"{chance:.0%}"


def gain_words(gain: ScoreInterval) -> str:
    """A gain with its interval."""
    return "–" if math.isnan(gain.value) else f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"


def area_words(area: Area) -> str:
    """An area with its interval, or why there is none."""
    if not area.enough:
        return f"too few: {area.events} events, {area.others} non-events"
    return f"{area.value:.3f} ({area.low:.3f} to {area.high:.3f})"


def estimate_words(estimate: Estimate | None) -> str:
    """An estimate with its interval."""
    if estimate is None:
        return "too few events"
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def share_words(share: Share) -> str:
    """A share with its interval."""
    return "–" if share.of == 0 else f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%})"


def part_words(part: SubgroupPart) -> tuple[str, ...]:
    """The cells of one subgroup."""
    if part.area is None:
        return part.name, "hidden", "hidden", part.hidden or "", ""
    if part.calibration is None or part.rows is None:
        return part.name, "hidden", "hidden", area_words(part.area), ""
    ratio = decimal(part.calibration.ratio, 2)
    return part.name, number(part.rows), number(part.area.events), area_words(part.area), ratio


def markdown(title: str, sections: Sequence[CardSection]) -> str:
    """The card as Markdown; drawings are files beside it."""
    lines = [f"# {_md(title)}", ""]
    for section in sections:
        lines += [f"## {_md(section.title)}", ""]
        if section.items:
            lines += [f"*TRIPOD+AI items {section.items}*", ""]
        for block in section.blocks:
            if isinstance(block, Text):
                lines += [_md(block.words), ""]
            elif isinstance(block, CardFigure):
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


def page(title: str, sections: Sequence[CardSection]) -> str:
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
        if section.items:
            parts.append(f"<p><small>TRIPOD+AI items {html.escape(section.items)}</small></p>")
        for block in section.blocks:
            if isinstance(block, Text):
                parts.append(f"<p>{html.escape(block.words)}</p>")
            elif isinstance(block, CardFigure):
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
