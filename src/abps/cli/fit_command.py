"""``abps fit``: the final models, one folder per hospital."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn

from abps.cli import options

if TYPE_CHECKING:
    from pathlib import Path

    from abps.fitted.fit import FitResult


def fit(
    method: options.Method,
    out: options.Out,
    columns: options.DataOptions,
    data: options.Data = "icu-synthetic",
    seed: options.Seed = 11,
    rounds: options.Rounds = None,
    model: options.Model = None,
    set_: options.Settings = None,
    folds: Annotated[int, typer.Option(help="Folds of the cross-fitted evaluation on the cards.")] = 5,
    alone: Annotated[bool, typer.Option(help="Compare with the best model of each hospital alone.")] = True,
    subgroups: options.Subgroups = "",
    as_json: options.Json = False,
) -> None:
    """Train each hospital's final model on all rows and write it with its model card.

    Every hospital gets a folder: weights, codebook, recalibration, thresholds, model.onnx (with abps[onnx]),
    card.html and card.md. The numbers on the card are out of fold: each patient is predicted by a model that
    was trained without them, beside the best model of that hospital alone.

    Example: abps fit --method abps-plus --data stays.csv --label died --center hospital --out models

    Example: abps fit --method local-best --data stays.csv --label died --center hospital --out alone
    """
    from abps.cli.check_command import announce
    from abps.fitted.fit import fit as fit_models
    from abps.fitted.handover import check_new, write_models
    from abps.methods.settings import configure

    settings = options.settings(set_, model)
    configure(method, settings, rounds)  # a wrong setting ends here, before the table is read
    check_new(out)
    federation = columns.federation(data)
    announce(federation.notes, columns.strict)
    console = options.terminal(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task(method, total=None)
        fitted = fit_models(
            federation,
            method,
            seed,
            rounds,
            settings,
            options.split(subgroups),
            folds,
            alone,
            lambda t, most, _value: bar.update(task, completed=t, total=most),
        )
    folders = write_models(fitted, out)
    if as_json:
        print(json.dumps(_summary(fitted, folders)))
    else:
        _show(fitted, out, folders)


def _summary(fitted: FitResult, folders: dict[str, Path]) -> dict[str, Any]:
    """What came out, for machines."""
    overall = fitted.overall
    found = {name: measure.value for name, measure in overall.measures.items()}
    return {
        "method": fitted.making.method,
        "seed": fitted.making.seed,
        "folders": {center: str(path) for center, path in folders.items()},
        "auroc": overall.area.value if overall.area.enough else None,
        "events": overall.events,
        "slope": overall.calibration.slope.value if overall.calibration.slope else None,
        **({"measures": found} if found else {}),
        "verdicts": {center: found.verdict.value for center, found in fitted.alone.items()},
    }


def _show(fitted: FitResult, out: Path, folders: dict[str, Path]) -> None:
    """What came out, for people."""
    from abps.fitted.card import area_words, decimal, estimate_words

    overall, console = fitted.overall, options.terminal()
    lines = [
        f"{len(folders)} models in {out}, a folder for each hospital",
        f"out of fold: {overall.rows:,} rows, {overall.events:,} events",
    ]
    if overall.measures:
        lines.append("; ".join(f"{name} {decimal(m.value)}" for name, m in overall.measures.items()))
    else:
        slope = estimate_words(overall.calibration.slope)
        lines.append(f"AUROC {area_words(overall.area)}; calibration slope {slope}")
    counts: dict[str, int] = {}
    for found in fitted.alone.values():
        counts[found.verdict.value] = counts.get(found.verdict.value, 0) + 1
    if counts:
        said = ", ".join(f"{count} {word}" for word, count in sorted(counts.items(), key=lambda c: -c[1]))
        lines.append(f"against each hospital alone: {said}")
    first = next(iter(folders.values()))
    lines.append(f"read {first}/card.html, then: abps predict --model {first} --data new.csv --out p.csv")
    for line in lines:
        console.print(line, soft_wrap=True)
