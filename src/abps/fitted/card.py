"""The model card of one hospital: purpose, data, performance, limits.

It follows the items of TRIPOD+AI (the reporting guideline for prediction models) that a program can answer,
and asks people for the rest. The sentences stand in ``card_words.toml``, the page in ``card.html``.
"""

import functools
import html
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from abps.evaluate.calibration import Interval
from abps.evaluate.performance import Area, Subgroup
from abps.evaluate.verdicts import HospitalVerdict
from abps.fitted.curves import GRAY, ORANGE, ChartLine, chart, effects, template
from abps.fitted.evaluation import ModelEvaluation
from abps.fitted.fit import ALONE, FitResult
from abps.fitted.model import FittedModel

#: Curves that the card shows: of the columns that move the prediction most.
SHOWN_CURVES = 12

#: The lowest net benefit that a decision curve shows.
LOWEST_BENEFIT = -0.02


@dataclass(frozen=True)
class Grid:
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class CardFigure:
    svg: str
    file: str
    words: str


#: A paragraph, a table or a drawing.
Block = str | Grid | CardFigure


@dataclass(frozen=True)
class CardSection:
    """A heading with what stands under it.  items: the items of TRIPOD+AI that it answers."""

    title: str
    items: str
    blocks: tuple[Block, ...]


@functools.cache
def _sentences() -> dict[str, dict[str, str]]:
    return tomllib.loads((Path(__file__).parent / "card_words.toml").read_text(encoding="utf-8"))


def _say(section: str, sentence: str, **numbers: Any) -> str:
    return _sentences()[section][sentence].format(**numbers)


def _section(key: str, *blocks: Block) -> CardSection:
    return CardSection(_sentences()[key]["title"], _sentences()[key]["items"], blocks)


def card(fitted: FitResult, model: FittedModel) -> list[CardSection]:
    """The card of one center's model: on its own rows, and on those of all where there are others."""
    both = [(model.center, fitted.evaluations[model.center])]
    if fitted.federation.size > 1:
        both.append(("all hospitals, each by its own model", fitted.overall))
    results = [_performance(both, model), *_alone(fitted, model)]
    if model.outcome.binary:
        results += [_calibration(both), _decisions(fitted.overall), _subgroups(fitted)]
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


def _use(fitted: FitResult, model: FittedModel) -> CardSection:
    making = fitted.making
    how = "alone" if making.method == ALONE else "together"
    origin = _say("use", how, others=making.others, method=making.method)
    what = {"what": _predicts(model), "center": model.center, "columns": len(model.needs), "origin": origin}
    return _section("use", _say("use", "what", **what), _say("use", "ask"))


def _predicts(model: FittedModel) -> str:
    outcome, label = model.outcome, repr(model.label)
    if outcome.kind == "survival":
        until = outcome.grid[-1] if outcome.grid else 0.0
        return f"the chance to live without {label} (is {model.positive!r}) past times up to {until:g}"
    if outcome.kind == "classes":
        return f"the probability that {label} is each of {', '.join(outcome.names)}"
    if outcome.kind == "continuous":
        return f"the mean of {label}"
    return f"the probability that {label} is {model.positive!r}"


#: What the column of counts beside rows is called.
_COUNTED = {"classes": "of rarer classes", "continuous": "above the median"}


def _cohort(fitted: FitResult, model: FittedModel) -> CardSection:
    federation, notes = fitted.federation, fitted.federation.notes
    mine = federation.center == federation.centers.index(model.center)
    event = federation.outcome.events(federation.label)
    rows = [("stays of this hospital", number(mine.sum()), number(event[mine].sum()))]
    if notes is not None:
        left = f"rows of {len(notes.left_out)} hospitals that do not take part"
        rows = [
            ("rows in the table", number(notes.rows), ""),
            ("exact duplicates, removed", number(notes.copies), ""),
            (left, number(sum(o.rows for o in notes.left_out)), ""),
            (f"rows of {federation.size} hospitals", number(federation.rows), number(event.sum())),
            *rows,
        ]
    learned, events = model.about["rows"], model.about["events"]
    for name, key in (("… for training", "learned"), ("… for validation", "validation")):
        rows.append((name, number(learned[key]), number(events[key])))
    years, unknown = "", "how stays were chosen, which years"
    if federation.time is not None:
        known = federation.time[np.isfinite(federation.time)]
        years = f", {int(known.min())} to {int(known.max())}" if len(known) else ""
        unknown = "how stays were chosen"
    positive = f" is {model.positive!r}" if model.positive else ""
    about = {"name": federation.name, "outcome": model.outcome.kind, "label": model.label}
    source = _say("cohort", "source", **about, years=years, unknown=unknown, positive=positive)
    blocks: list[Block] = [
        source,
        Grid(("flow", "rows", _COUNTED.get(model.outcome.kind, "events")), tuple(rows)),
    ]
    if notes is not None and notes.repairs:
        lines = tuple((r.column, r.rule, number(r.cells)) for r in notes.repairs)
        blocks.append(Grid(("column repaired", "by the rule", "cells"), lines))
    if notes is not None and notes.warnings:
        blocks.append(_say("cohort", "warnings", warnings="; ".join(notes.warnings)))
    return _section("cohort", *blocks)


def _predictors(model: FittedModel) -> CardSection:
    kinds: dict[str, list[str]] = {}
    words = {"number": "number", "flag": "yes/no", "missing": "whether missing"}
    for column in model.book.columns:
        kinds.setdefault(column.source, []).append(words.get(column.kind, f"is {column.level!r}"))
    spans = {name: "{:.4g} to {:.4g}".format(*span.allowed) for name, span in model.ranges.items()}
    rows = tuple((source, ", ".join(read), spans.get(source, "")) for source, read in kinds.items())
    table = Grid(("column", "read as", "expected range"), rows)
    return _section("predictors", table, _say("predictors", "gaps"))


def _making(fitted: FitResult, model: FittedModel) -> CardSection:
    making = fitted.making
    size = number(sum(v.size for v in model.network.tensors().values()))
    sent = ""
    if making.sent:
        sent = _say("making", "sent", bytes=number(making.sent), partners=making.partners)
    how = {"method": making.method, "rounds": making.rounds, "seed": making.seed}
    again = _say("making", model.recalibration.kind if model.outcome.binary else "never")
    words = _say("making", "method", **how, sent=sent, size=size)
    return _section("making", words, again, making.measured)


def _performance(both: list[tuple[str, ModelEvaluation]], model: FittedModel) -> CardSection:
    counted, names = _COUNTED.get(model.outcome.kind, "events"), list(both[0][1].measures)
    words = _say("performance", "binary")
    if not model.outcome.binary:
        few = counted if counted == "events" else f"rows {counted}"
        words = _say("performance", "other", measure=model.outcome.measure, counted=few)
    if model.outcome.kind == "survival":
        words += _say("performance", "survival")
    rows = []
    for name, e in both:
        scores = [interval_words(e.measures[each]) for each in names]
        if model.outcome.binary:
            scores = [area_words(e.area), decimal(e.brier)]
        rows.append((name, number(e.rows), number(e.events), *scores))
    heads = ["AUROC", "Brier score"] if model.outcome.binary else names
    return _section("performance", Grid(("rows of", "rows", counted, *heads), tuple(rows)), words)


def _alone(fitted: FitResult, model: FittedModel) -> list[CardSection]:
    found = fitted.alone.get(model.center)
    if found is None:
        return []
    rows = (
        (f"alone ({ALONE})", decimal(found.alone)),
        (f"together ({fitted.making.method})", decimal(found.together)),
        ("difference on its own patients", decimal(found.evidence.own.value, "+.3f")),
        ("estimated gain, with the evidence of all hospitals", interval_words(found.evidence.gain, "+.3f")),
        ("probability of a gain", chance_words(found.evidence.better)),
    )
    verdict, needed = found.evidence.verdict, found.evidence.needed
    words = _say("alone", verdict.value)
    events = fitted.evaluations[model.center].events
    if not verdict.answers or verdict.value.startswith("probably"):
        if math.isfinite(needed) and needed > events:
            words += _say("alone", "needed", needed=number(needed), events=events)
    elif verdict in (HospitalVerdict.LOSES, HospitalVerdict.SAME):
        words += _say("alone", "command", alone=ALONE)
    table = Grid((model.outcome.measure, model.center), rows)
    return [_section("alone", words, table, _say("alone", "note"))]


def _calibration(both: list[tuple[str, ModelEvaluation]]) -> CardSection:
    rows = tuple(
        (
            name,
            number(e.calibration.observed),
            decimal(e.calibration.expected, ".1f"),
            slope_words(e.calibration.in_the_large),
            slope_words(e.calibration.slope),
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
            ChartLine("ideal", ends, ends, dashed=True, color=GRAY),
        ]
        svg = chart(lines, "predicted probability", "share of events", f"Calibration of {whose}")
        blocks.append(CardFigure(svg, "calibration.svg", _say("calibration", "curve", whose=whose)))
    return _section("calibration", *blocks)


def _decisions(every: ModelEvaluation) -> CardSection:
    rows = []
    for name, at in every.thresholds.items():
        shares = (at.called, at.sensitivity, at.specificity, at.positive_value, at.negative_value)
        rows.append((f"{decimal(at.threshold)} ({name})", *(interval_words(s, ".0%") for s in shares)))
    header = ("threshold", "at or above", "sensitivity", "specificity", "PPV", "NPV")
    blocks: list[Block] = [Grid(header, tuple(rows)), _say("decisions", "judged")]
    if every.decisions is not None and every.events:
        d = every.decisions
        model, everybody = d.model >= LOWEST_BENEFIT, d.everyone >= LOWEST_BENEFIT
        lines = [
            ChartLine("model", d.thresholds[model], d.model[model]),
            ChartLine(
                "treat everybody", d.thresholds[everybody], d.everyone[everybody], dashed=True, color=GRAY
            ),
            ChartLine("treat nobody", d.thresholds, np.zeros(len(d.thresholds)), dashed=True, color=ORANGE),
        ]
        svg = chart(lines, "threshold", "net benefit", "Decision curve of all hospitals")
        blocks.append(CardFigure(svg, "decisions.svg", _say("decisions", "curve")))
    return _section("decisions", *blocks)


def _subgroups(fitted: FitResult) -> CardSection:
    rows = [(column, *_subgroup_words(part)) for column, parts in fitted.subgroups.items() for part in parts]
    if not rows:
        return _section("subgroups", _say("subgroups", "nothing"))
    header = ("column", "subgroup", "rows", "events", "AUROC", "observed / expected")
    return _section("subgroups", Grid(header, tuple(rows)), _say("subgroups", "hidden"))


def _curves(model: FittedModel) -> list[CardSection]:
    found = effects(model)
    if not found:
        return []
    what, against = "the log odds", "the event"
    if model.outcome.kind == "continuous":
        what, against = "the number in deviations", "a large number"
    levels = tuple((e.name, f"{e.amount:+.3f}") for e in found if e.curve is None)
    drawn = []
    for e, curve in [(e, e.curve) for e in found if e.curve is not None][:SHOWN_CURVES]:
        line, adds = [ChartLine(e.name, *curve)], f"added {what.removeprefix('the ')}"
        svg = chart(line, e.name, adds, e.name, e.knots)
        drawn.append(CardFigure(svg, f"{e.file}.svg", e.name))
    words = _say("curves", "sum", what=what, against=against)
    return [_section("curves", words, Grid(("column", f"adds to {what}"), levels), *drawn)]


def _limits(fitted: FitResult, model: FittedModel) -> CardSection:
    area = fitted.evaluations[model.center].area
    lines = [_say("limits", "elsewhere"), _say("limits", "causes")]
    if model.outcome.binary and not area.enough:
        lines.append(_say("limits", "few", center=model.center, events=area.events, others=area.others))
    if model.recalibration.kind != "none":
        lines.append(_say("limits", "recalibrated"))
    versions = ", ".join(f"{name} {value}" for name, value in model.about["versions"].items())
    lines.append(_say("limits", "versions", versions=versions))
    return _section("limits", *lines)


def number(value: float) -> str:
    return f"{int(value):,}"


def decimal(value: float, form: str = ".3f") -> str:
    """A number, or a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:{form}}"


def interval_words(found: Interval, form: str = ".3f", unknown: str = "–") -> str:
    """A number with its interval, where they are known."""
    if not found.known:
        return unknown
    within = "" if math.isnan(found.low) else f" ({found.low:{form}} to {found.high:{form}})"
    return f"{found.value:{form}}{within}"


def slope_words(found: Interval) -> str:
    return interval_words(found, ".2f", "too few events")


def area_words(area: Area) -> str:
    few = f"too few: {area.events} events, {area.others} non-events"
    return interval_words(area) if area.enough else few


def chance_words(chance: float) -> str:
    """A probability in percent, never quite 0 or 100.

    >>> chance_words(0.9999), chance_words(0.874)
    ('above 99%', '87%')
    """
    return "above 99%" if chance > 0.99 else "below 1%" if chance < 0.01 else decimal(chance, ".0%")


def _subgroup_words(part: Subgroup) -> tuple[str, ...]:
    if part.hidden:
        return part.name, "hidden", "hidden", interval_words(part.auroc, unknown=part.hidden), ""
    counts = part.name, number(part.rows), number(part.events)
    return *counts, interval_words(part.auroc), decimal(part.ratio, ".2f")


def _checklist(sections: Sequence[CardSection]) -> CardSection:
    """Every item of TRIPOD+AI, where the card answers it, and what is left to do."""
    partly = _sentences()["checklist"]["partly"].split(", ")
    rows = []
    for item, words in _sentences()["tripod"].items():
        where = "; ".join(section.title for section in sections if item in section.items.split(", "))
        done = "complete it" if item in partly else "answered"
        rows.append((item, words, where or "–", done if where else "open: people must answer"))
    return _section("checklist", Grid(("item", "asks", "where", "state"), tuple(rows)))


def front_matter(fitted: FitResult, model: FittedModel) -> str:
    """The YAML that Hugging Face reads at the beginning of card.md (JSON is YAML); scores that a card does
    not show are not in it. The licence of the model is for its owner to name."""
    own = fitted.evaluations[model.center]
    task = "tabular-regression" if model.outcome.kind == "continuous" else "tabular-classification"
    scores = {name: found.value for name, found in own.measures.items()}
    if model.outcome.binary and own.area.enough:
        scores = {"roc_auc": own.area.value, "brier_score": own.brier}
    name = f"{model.label} at {model.center}"
    metrics = [{"type": key, "value": round(value, 4)} for key, value in scores.items() if value == value]
    data = {"type": "tabular", "name": f"{fitted.federation.name}, {model.center}, out of fold"}
    result = {"task": {"type": task}, "dataset": data, "metrics": metrics}
    content: dict[str, Any] = {
        "library_name": "abps",
        "pipeline_tag": task,
        "tags": ["tabular", "clinical", "federated-learning", "tripod-ai", fitted.making.method],
        "model_name": name,
        **({"model-index": [{"name": name, "results": [result]}]} if metrics else {}),
    }
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items())
    return "\n".join(["---", *lines, "---", "", ""])


def markdown(title: str, sections: Sequence[CardSection]) -> str:
    """The card as Markdown; drawings are files beside it."""
    lines = [f"# {_md(title)}", ""]
    for section in sections:
        lines += [f"## {_md(section.title)}", ""]
        if section.items:
            lines += [f"*TRIPOD+AI items {section.items}*", ""]
        for block in section.blocks:
            if isinstance(block, str):
                lines += [_md(block), ""]
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


def page(title: str, sections: Sequence[CardSection]) -> str:
    """The card as one HTML page that needs nothing else."""
    return template("card.html").render(title=title, sections=sections)
