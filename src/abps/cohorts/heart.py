"""UCI Heart Disease: four hospitals, one small table. A real federation for a laptop lunch break."""

from pathlib import Path

import polars as pl

from abps.cohorts.duck import Progress, silent
from abps.cohorts.tidy import Cohort, Flow, Variable, describe_files, in_order, variables
from abps.core.errors import RequestError
from abps.data.roles import Roles

RECIPE = "heart/1"

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")

#: The fourteen columns of the processed files, in their order.
_COLUMNS = variables("""
age | feature | years | age
sex | feature | 0/1 | 1 male
cp | feature | | chest pain type
trestbps | feature | mmHg | resting blood pressure; 0 is missing
chol | feature | mg/dL | serum cholesterol; 0 is missing
fbs | feature | 0/1 | fasting blood sugar above 120 mg/dL
restecg | feature | | resting electrocardiogram
thalach | feature | /min | highest heart rate reached
exang | feature | 0/1 | angina on exercise
oldpeak | feature | mm | ST depression on exercise
slope | feature | | slope of the ST segment at peak exercise
ca | feature | | number of major vessels coloured
thal | feature | | thallium scan
num | label | | diagnosis 0 to 4
""")
_CATEGORIES = ("cp", "restecg", "slope", "thal")


def build(root: Path, _options: object = None, progress: Progress = silent) -> Cohort:
    root = Path(root)
    paths = [root / f"processed.{name}.data" for name in HOSPITALS]
    parts = []
    for name, path in zip(HOSPITALS, paths):
        if not path.is_file():
            raise RequestError(f"{path} is missing; give the folder with the four processed.*.data files")
        try:
            part = pl.read_csv(
                path,
                has_header=False,
                schema=dict.fromkeys((c.name for c in _COLUMNS), pl.String),
                null_values=["?", "NaN", ""],
            ).with_columns(pl.all().str.strip_chars().cast(pl.Float64))
        except OSError as error:
            raise RequestError(f"cannot read {path}: {error.strerror or error}") from None
        except pl.exceptions.PolarsError:
            raise RequestError(f"{path} is not a table of 14 numbers per line; download it again") from None
        parts.append(part.with_columns(hospital=pl.lit(name)))
    table = pl.concat(parts).with_row_index("row")
    # oldpeak is the one column that can be below zero; elsewhere negative numbers stand for missing
    signless = [c.name for c in _COLUMNS if c.name != "oldpeak"]
    table = table.with_columns(pl.when(pl.col(c) >= 0).then(pl.col(c)).alias(c) for c in signless)
    table = table.with_columns(
        *(pl.when(pl.col(c) > 0).then(pl.col(c)).alias(c) for c in ("trestbps", "chol")),
        *(pl.col(c).cast(pl.Int64).cast(pl.String).alias(c) for c in _CATEGORIES),
        disease=(pl.col("num") > 0).cast(pl.Int8),
    )
    flow = Flow.start(table, "patients in the four files", label="disease", patient=None)
    flow = flow.keep(pl.col("disease").is_not_null(), "diagnosis missing", always=False)
    dictionary = (
        Variable("disease", "label", "0/1", "diagnosis 1 to 4: some vessel narrowed by more than half"),
        Variable("hospital", "context", "", "hospital"),
        *_COLUMNS[:-1],
    )
    return Cohort(
        source="heart",
        recipe=RECIPE,
        table=in_order(flow.table, dictionary, by="row"),
        roles=Roles("disease", "hospital"),
        steps=flow.steps,
        dictionary=dictionary,
        files=describe_files(paths, root, progress),
        options={},
    )
