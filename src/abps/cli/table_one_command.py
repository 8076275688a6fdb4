"""``abps table-one``: what the patients of a federation look like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abps.cli import options


def table_one(
    data: Annotated[Path, typer.Option(help="A CSV, Parquet or Excel file.")],
    center: Annotated[str, typer.Option(help="The column that names the hospital of a row.")],
    columns: Annotated[str, typer.Option(help="Columns with commas between; default: all.")] = "",
    min_cell: Annotated[int, typer.Option(help="Cells with fewer patients are suppressed.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Write table-one.csv, with a column per hospital.")] = None,
) -> None:
    """Describe a federation: counts, means, quantiles and missingness, overall and by hospital.

    Example: abps table-one --data stays.csv --center hospital --columns age,sex,died --out table
    """
    from rich.table import Table

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
    table = Table(box=None, pad_edge=False)
    for k, name in enumerate(("column", "level", "overall", "largest difference")):
        table.add_column(name, justify="left" if k < 2 else "right")
    for line in found.lines:
        shown = "–" if line.difference != line.difference else f"{line.difference:.2f}"
        table.add_row(line.column, line.level, line.overall, shown)
    console.print(table)
