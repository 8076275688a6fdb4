"""``abps fit`` and ``abps predict``: the final models, and their predictions for new rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from abps.cli import options
from abps.core.errors import RequestError, nearest

if TYPE_CHECKING:
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
    folds: Annotated[int, "Folds of the cross-fitted evaluation on the cards."] = 5,
    alone: Annotated[bool, "Compare with the best model of each hospital alone."] = True,
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
    with options.progress_bar() as bar:
        fitted = fit_models(
            federation,
            method,
            seed,
            rounds,
            settings,
            options.split(subgroups),
            folds,
            alone,
            lambda t, most, _value: bar(method, t / most),
        )
    folders = write_models(fitted, out)
    if as_json:
        print(json.dumps(_summary(fitted, folders)))
    else:
        _show(fitted, out, folders)


def _summary(fitted: FitResult, folders: dict[str, Path]) -> dict[str, Any]:
    overall = fitted.overall
    found = {name: measure.value for name, measure in overall.measures.items()}
    return {
        "method": fitted.making.method,
        "seed": fitted.making.seed,
        "folders": {center: str(path) for center, path in folders.items()},
        "auroc": overall.area.value if overall.area.enough else None,
        "events": overall.events,
        "slope": overall.calibration.slope.value if overall.calibration.slope.known else None,
        **({"measures": found} if found else {}),
        "verdicts": {center: found.evidence.verdict.value for center, found in fitted.alone.items()},
    }


def _show(fitted: FitResult, out: Path, folders: dict[str, Path]) -> None:
    from abps.fitted.card import area_words, decimal, slope_words

    overall, console = fitted.overall, options.terminal()
    lines = [f"{len(folders)} models in {out}, a folder for each hospital"]
    lines.append(f"out of fold: {overall.rows:,} rows, {overall.events:,} events")
    if overall.measures:
        lines.append("; ".join(f"{name} {decimal(m.value)}" for name, m in overall.measures.items()))
    else:
        slope = slope_words(overall.calibration.slope)
        lines.append(f"AUROC {area_words(overall.area)}; calibration slope {slope}")
    counts = Counter(found.evidence.verdict.value for found in fitted.alone.values())
    if counts:
        said = ", ".join(f"{count} {word}" for word, count in counts.most_common())
        lines.append(f"against each hospital alone: {said}")
    first = next(iter(folders.values()))
    lines.append(f"read {first}/card.html, then: abps predict --model {first} --data new.csv --out p.csv")
    for line in lines:
        console.print(line, soft_wrap=True)


def predict(
    model: Annotated[str, "Hospital's folder written by `abps fit`, or DIR/NAME with its own name."],
    data: Annotated[Path, "CSV, Excel or Parquet file with the columns that the model needs."],
    out: Annotated[Path, "File to write: .csv or .parquet."],
    carry: Annotated[str, "Comma-separated columns to copy, such as an ID."] = "",
    anyway: Annotated[bool, "Predict although columns are out of range."] = False,
    as_json: options.Json = False,
) -> None:
    """Predict every row of a table with a fitted model.

    Writes the probability of the event; for other outcomes the probability of every class, the expected
    number, or the chance of survival past each time. Repairs columns by the same rules as `abps check`.
    Stops if a column is missing, has another type, or is out of the range that the model has seen.

    Example: abps predict --model models/north --data new.csv --out predictions.csv
    """
    import numpy as np
    import polars as pl

    from abps import files
    from abps.cli.check_command import repair_words
    from abps.data.harmonise import read_harmonised
    from abps.data.roles import normalise
    from abps.fitted.folder import load_model
    from abps.fitted.model import readable

    if out.suffix not in (".parquet", ".csv"):
        raise RequestError(f"--out {out}: end it in .parquet or .csv")
    fitted = load_model(model)
    table = read_harmonised(data).frame
    spelled = {normalise(name): name for name in reversed(table.columns)}  # as in check, case does not count
    spelled |= {name: name for name in table.columns}
    carried = [spelled.get(name) or spelled.get(normalise(name), name) for name in options.split(carry)]
    for name in carried:
        if name not in table.columns:
            raise RequestError(f"--carry {name}: no such column{nearest(name, table.columns)}")
    found = readable(table, fitted.book, fitted.ranges, fitted.center, anyway)
    console = options.terminal(stderr=True)
    for repair in found.repairs:
        console.print(f"repaired: {repair_words(repair)}", soft_wrap=True)
    for sentence in found.warnings:
        console.print(f"warning: {sentence}", style="yellow", soft_wrap=True)
    said = fitted.foretold(found.features)
    copied = [table[name] for name in carried if name not in ("row", *said.columns)]
    row = pl.Series("row", range(said.height), dtype=pl.Int64)
    result = pl.DataFrame([row, *copied, *said.get_columns()])
    files.write_with(out, result.write_csv if out.suffix == ".csv" else result.write_parquet)
    means = {column.name: float(np.mean(column.to_numpy())) for column in said.get_columns()}
    if as_json:
        more = {"mean": means["probability"]} if fitted.outcome.binary else {"means": means}
        print(json.dumps({"rows": said.height, **more, "out": str(out)}))
    else:
        words = ", ".join(f"mean {name} {value:.3f}" for name, value in means.items())
        print(f"{said.height:,} rows, {words}: {out}")
