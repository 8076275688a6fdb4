"""``abps regress``, ``evaluate`` and ``table-one``: federated statistics of a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from abps.cli import options
from abps.core.errors import RequestError

if TYPE_CHECKING:
    import polars as pl

TableFile = Annotated[Path, "A CSV, Parquet or Excel file."]
Hospital = Annotated[str, "The column that names the hospital of a row."]


def regress(
    data: TableFile,
    label: Annotated[str, "The outcome: 0 or 1, a count, a number, or with cox the event."],
    center: Hospital,
    formula: Annotated[str, "Columns: 'age + sex + age:sex + spline(bmi, 3) + offset(log_days)'."] = "",
    columns: Annotated[str, "Columns with commas between, instead of a formula."] = "",
    family: Annotated[str, "logistic, linear, poisson, or cox (stratified by hospital)."] = "logistic",
    intercepts: Annotated[str, "common (one), fixed (one per hospital) or random."] = "common",
    duration: Annotated[str | None, "Cox: time to the event or to the end of observation."] = None,
    robust: Annotated[bool, "Standard errors that allow for correlation within hospitals."] = False,
    min_cell: Annotated[int, "Fewest rows and events of a level in all hospitals together."] = 10,
    out: Annotated[Path | None, "Write CSV, LaTeX, HTML and JSON to this folder."] = None,
    as_json: options.Json = False,
) -> None:
    """Estimate effects with intervals from sums over hospitals; equal to the fit on pooled rows.

    Example: abps regress --data stays.csv --label died --center hospital --formula "age + sex" --out effects
    """
    from abps import files
    from abps.report.effects_page import effects_page
    from abps.statistics import regression

    text = formula or " + ".join(options.split(columns))
    if not text:
        raise RequestError("name the columns: --formula 'age + sex', or --columns age,sex")
    result = regression.regress(data, label, center, text, family, intercepts, duration, robust, min_cell)
    if out is not None:
        result.write(out)
        files.write_text(out / "effects.html", effects_page(result))
    if as_json:
        print(json.dumps(result.to_json()))
        return
    console = options.terminal()
    console.print(regression.summary(result))
    for note in result.notes:
        console.print(note)
    head, rows = result.table()
    console.print(options.rows_table(head, rows))


def table_one(
    data: TableFile,
    center: Hospital,
    columns: Annotated[str, "Columns with commas between; default: all."] = "",
    min_cell: Annotated[int, "Cells with fewer patients are suppressed."] = 10,
    out: Annotated[Path | None, "Write table-one.csv, with a column per hospital."] = None,
) -> None:
    """Describe a federation: counts, means, quantiles and missingness, overall and by hospital.

    Example: abps table-one --data stays.csv --center hospital --columns age,sex,died --out table
    """
    from abps import files
    from abps.data.table import read_frame
    from abps.statistics.table_one import table_one as make

    found = make(read_frame(data), center, options.split(columns), min_cell)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        files.write_text(out / "table-one.csv", found.frame().write_csv())
    console = options.terminal()
    hidden = f"cells below {min_cell} suppressed"
    console.print(f"{found.total:,} rows of {len(found.centers)} hospitals; {hidden}")
    head = ("column", "level", "overall", "largest difference")
    apart = [f"{line.difference:.2f}".replace("nan", "–") for line in found.lines]
    rows = ((line.column, line.level, line.overall, far) for line, far in zip(found.lines, apart))
    console.print(options.rows_table(head, rows, left=head[:2]))


def evaluate(
    data: TableFile,
    label: Annotated[str, "The outcome, 0 or 1."],
    center: Hospital,
    model: Annotated[list[str], "Folder of `abps fit`, ONNX, JSON of coefficients, or column. Repeatable."],
    thresholds: Annotated[str, "Net benefit at these, with commas between."] = "0.1,0.2",
    subgroups: Annotated[str, "Columns of subgroups, with commas between."] = "",
    outside: Annotated[str, "Hospitals that took no part in making the models, with commas between."] = "",
    min_cell: Annotated[int, "Fewest events and non-events of a hospital."] = 10,
    out: Annotated[Path | None, "Write the evaluation (CSV, JSON) to this folder."] = None,
    as_json: options.Json = False,
) -> None:
    """Evaluate models at every hospital: AUROC, calibration, Brier score and net benefit.

    Example: abps evaluate --data new.csv --label died --center hospital --model fitted/north --out matrix
    """
    from abps import files
    from abps.data.table import read_frame
    from abps.statistics.evaluation import evaluate_models

    at = options.numbers(thresholds, "--thresholds", float, "numbers between 0 and 1")
    frame, by = read_frame(data), options.split(subgroups)
    for column in (label, center, *by):
        if column not in frame.columns:
            raise RequestError(f"{data} has no column {column!r}")
    frame = frame.drop_nulls([label, center])
    probabilities = {name: _probabilities(name, frame) for name in model}
    levels = {name: frame[name].cast(str).to_list() for name in by}
    found = evaluate_models(
        probabilities, frame[label].to_numpy(), frame[center].cast(str).to_list(), at, min_cell, levels,
        options.split(outside),
    )  # fmt: skip
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        files.write_text(out / "evaluation.csv", found.frame().write_csv())
        files.write_text(out / "matrix.csv", found.matrix().write_csv())
        files.write_json(out / "evaluation.json", found.to_json())
    if as_json:
        print(json.dumps(found.to_json()))
        return
    rows = []
    for name, group in found.summaries:
        said = found.summary(name, group)
        if said is None:
            rows.append((name, group, "–", f"fewer than two hospitals with {min_cell} events", "", "", ""))
            continue
        interval, following = (f"{said[f'{k}low']:.3f} to {said[f'{k}high']:.3f}" for k in ("", "next_"))
        following = "–" if "nan" in following else following
        mean, tau2 = f"{said['mean']:.3f}", f"{said['tau2']:.3f}"
        rows.append((name, group, f"{int(said['hospitals'])}", mean, interval, following, tau2))
    head = ("model", "patients", "hospitals", "AUROC", "95 % interval", "next hospital", "τ²")
    console = options.terminal()
    console.print(options.rows_table(head, rows, left=head[:2]))
    for line in (line for name in probabilities for line in found.transport(name)):
        console.print(line)


def _probabilities(name: str, frame: pl.DataFrame) -> Any:
    from abps.fitted.folder import load_model
    from abps.statistics.evaluation import formula_probabilities, onnx_probabilities

    if name in frame.columns:
        return frame[name].to_numpy()
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        try:
            return formula_probabilities(frame, json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, AttributeError, TypeError) as error:
            raise RequestError(f'{path}: write coefficients as {{"intercept": -3, "age": 0.04}}') from error
    if path.suffix == ".onnx" and path.is_file():
        return onnx_probabilities(frame, path)
    if path.is_dir():
        return load_model(path).predict_proba(frame)[:, 1]
    raise RequestError(f"--model {name}: no column, no JSON file of coefficients, no ONNX file and no folder")
