"""``abps evaluate``: models at every hospital."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abps.cli import options
from abps.core.errors import RequestError

if TYPE_CHECKING:
    import polars as pl


def evaluate(
    data: Annotated[Path, typer.Option(help="A CSV, Parquet or Excel file.")],
    label: Annotated[str, typer.Option(help="The outcome, 0 or 1.")],
    center: Annotated[str, typer.Option(help="The column that names the hospital of a row.")],
    model: Annotated[
        list[str],
        typer.Option(
            help="A folder of `abps fit`, a JSON file of coefficients, or a column of probabilities; "
            "may be repeated."
        ),
    ],
    thresholds: Annotated[str, typer.Option(help="Net benefit at these, with commas between.")] = "0.1,0.2",
    min_cell: Annotated[int, typer.Option(help="Fewest events and non-events of a hospital.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Write evaluation.csv to this folder.")] = None,
) -> None:
    """Evaluate models at every hospital: AUROC, calibration, Brier score and net benefit.

    Example: abps evaluate --data new.csv --label died --center hospital --model fitted/north --out matrix
    """
    from rich.table import Table

    from abps import files
    from abps.data.table import read_frame
    from abps.statistics.evaluation import evaluate_models

    try:
        at = [float(part) for part in options.split(thresholds)]
    except ValueError as error:
        raise RequestError(f"--thresholds {thresholds}: write numbers between 0 and 1") from error
    frame = read_frame(data)
    for column in (label, center):
        if column not in frame.columns:
            raise RequestError(f"{data} has no column {column!r}")
    frame = frame.drop_nulls([label, center])
    probabilities = {name: _probabilities(name, frame) for name in model}
    hospitals = frame[center].cast(str).to_list()
    found = evaluate_models(probabilities, frame[label].to_numpy(), hospitals, at, min_cell)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        files.write_text(out / "evaluation.csv", found.frame().write_csv())
    console = options.terminal()
    table = Table(box=None, pad_edge=False)
    for name in ("model", "hospitals", "AUROC", "95 % interval", "next hospital", "τ²"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for name in probabilities:
        said = found.summary(name)
        if said is None:
            table.add_row(name, "–", f"fewer than two hospitals with {min_cell} events", "", "", "")
            continue
        table.add_row(
            name,
            f"{int(said['hospitals'])}",
            f"{said['mean']:.3f}",
            f"{said['low']:.3f} to {said['high']:.3f}",
            f"{said['next_low']:.3f} to {said['next_high']:.3f}",
            f"{said['tau2']:.3f}",
        )
    console.print(table)


def _probabilities(name: str, frame: pl.DataFrame) -> Any:
    from abps.fitted.folder import load_model
    from abps.statistics.evaluation import formula_probabilities

    if name in frame.columns:
        return frame[name].to_numpy()
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        return formula_probabilities(frame, json.loads(path.read_text(encoding="utf-8")))
    if path.is_dir():
        return load_model(path).predict_proba(frame)[:, 1]
    raise RequestError(f"--model {name}: no column of the table, no JSON file of coefficients and no folder")
