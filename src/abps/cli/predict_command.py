"""``abps predict``: probabilities, chances over time or numbers for new rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import typer
from rich.console import Console

from abps import files
from abps.cli import options
from abps.cli.check_command import repair_words
from abps.core.errors import RequestError, nearest
from abps.data.reading import read_raw
from abps.fitted.folder import load_model
from abps.fitted.inputs import readable


def predict(
    model: Annotated[
        str, typer.Option(help="Hospital's folder written by `abps fit`, or DIR/NAME with its own name.")
    ],
    data: Annotated[Path, typer.Option(help="CSV or Parquet file with the columns that the model needs.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv or .parquet.")],
    carry: Annotated[str, typer.Option(help="Comma-separated columns to copy, such as an ID.")] = "",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Predict although columns are out of range.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Predict every row of a table with a fitted model.

    Writes the probability of the event; for other outcomes the probability of every class, the expected
    number, or the chance of survival past each time. Repairs columns by the same rules as `abps check`.
    Stops if a column is missing, has another type, or is out of the range that the model has seen.

    Example: abps predict --model models/north --data new.csv --out predictions.csv
    """
    if out.suffix not in (".parquet", ".csv"):
        raise RequestError(f"--out {out}: end it in .parquet or .csv")
    fitted = load_model(model)
    table = read_raw(data).frame
    carried = options.split(carry)
    for name in carried:
        if name not in table.columns:
            raise RequestError(f"--carry {name}: no such column{nearest(name, table.columns)}")
    found = readable(table, fitted.book, fitted.ranges, fitted.center, anyway)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    for repair in found.repairs:
        console.print(f"mended: {repair_words(repair)}")
    for sentence in found.warnings:
        console.print(f"warning: {sentence}", style="yellow")
    said = fitted.foretold(found.features)
    result = pl.DataFrame(
        [
            pl.Series("row", range(said.height), dtype=pl.Int64),
            *(table[name] for name in carried if name not in ("row", *said.columns)),
            *said.get_columns(),
        ]
    )
    files.write_with(out, result.write_csv if out.suffix == ".csv" else result.write_parquet)
    means = {column.name: float(np.mean(column.to_numpy())) for column in said.get_columns()}
    if as_json:
        more = {"mean": means["probability"]} if fitted.outcome.binary else {"means": means}
        print(json.dumps({"rows": said.height, **more, "out": str(out)}))
    else:
        words = ", ".join(f"mean {name} {value:.3f}" for name, value in means.items())
        print(f"{said.height:,} rows, {words}: {out}")
