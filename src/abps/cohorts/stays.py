"""What all cohorts of ICU stays share: options, filters, columns, and the way to a finished cohort."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from abps.cohorts import charlson, physiology, vitals
from abps.cohorts.duck import DuckSession, Progress
from abps.cohorts.tidy import Cohort, Flow, Variable, describe_files, in_order
from abps.core.errors import RequestError
from abps.data.roles import Roles

#: Diagnoses of the admission, of earlier ones only, or none.
DIAGNOSES = ("this", "earlier", "none")

#: Whether a value counts from when it was measured, or only once it was stored.
CLOCKS = ("charttime", "storetime")


@dataclass(frozen=True, kw_only=True)
class FirstDayOptions:
    """charlson: 12 or 17 (or none) of the categories. min_age, max_age: both included; None: no limit.
    features: groups of :data:`abps.cohorts.physiology.GROUPS` beyond the vitals. first_stay: a patient's
    first ICU stay alone."""

    charlson: str = "12"
    min_age: float | None = None
    max_age: float | None = None
    features: tuple[str, ...] = ()
    first_stay: bool = False

    def __post_init__(self) -> None:
        physiology.parse_groups(self.features)
        charlson.table().columns(self.charlson)
        vitals.window_of(getattr(self, "window", "24h"))
        for name, known in (("diagnoses", DIAGNOSES), ("clock", CLOCKS)):
            if getattr(self, name, known[0]) not in known:
                raise RequestError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(known)}")

    @property
    def groups(self) -> tuple[str, ...]:
        return physiology.parse_groups(self.features)

    @property
    def when(self) -> str:
        return vitals.window_words(getattr(self, "window", "24h"))


@dataclass(frozen=True, kw_only=True)
class StayOptions(FirstDayOptions):
    """window: one of :data:`abps.cohorts.vitals.WINDOWS`. diagnoses: one of :data:`DIAGNOSES`."""

    window: str = "24h"
    diagnoses: str = "this"
    min_age: float | None = 18
    max_age: float | None = 95

    def columns(self, origins: tuple[str, str]) -> list[Variable]:
        """Dictionary lines of comorbidities and vitals.  origins: of this admission's codes, of earlier."""
        choice = "none" if self.diagnoses == "none" else self.charlson
        origin = dict(zip(DIAGNOSES, origins)).get(self.diagnoses, "")
        return [*charlson.dictionary(choice, origin), *vitals.dictionary(self.when)]


def chosen(flow: Flow, options: FirstDayOptions, order: Sequence[str] = ("intime", "stay")) -> Flow:
    """The stays that the options ask for: a patient's first (by ``order``), ages, and length."""
    if options.first_stay:
        first = flow.table.sort(order).unique("patient", keep="first", maintain_order=True)["stay"]
        unknown = pl.col("patient").is_null()
        flow = flow.keep(pl.col("stay").is_in(first.implode()) | unknown, "not the patient's first ICU stay")
    flow = keep_ages(flow, options.min_age, options.max_age)
    least = getattr(options, "min_hours", 0)
    return flow.keep(pl.col("hours") >= least, f"ICU stay shorter than {least:g} h") if least else flow


def keep_ages(flow: Flow, low: float | None, high: float | None) -> Flow:
    """The age filter, if any; a missing age cannot pass one."""
    if low is not None and high is not None and low > high:
        raise RequestError(f"min_age={low:g} is above max_age={high:g}; swap them")
    if low is None and high is None:
        return flow
    text = f"≥ {low:g}" if high is None else f"≤ {high:g}" if low is None else f"{low:g}–{high:g}"
    condition = pl.col("age").is_between(-1e9 if low is None else low, 1e9 if high is None else high)
    flow = flow.keep(pl.col("age").is_not_null(), "age unknown", always=False)
    return flow.keep(condition, f"age outside {text} years")


def short_unit(name: pl.Expr) -> pl.Expr:
    """A care unit's short name: "Medical Intensive Care Unit (MICU)" is MICU; others stay."""
    return name.str.extract(r"\(([^()]+)\)\s*$").fill_null(name)


def window_bounds(name: str) -> tuple[pl.Expr, pl.Expr]:
    """The first and last moment of a stay that count in a window of :data:`abps.cohorts.vitals.WINDOWS`."""
    hours = vitals.window_of(name)
    if hours is None:
        return pl.col("intime"), pl.col("outtime")
    return pl.col("intime") + pl.duration(hours=hours[0]), pl.col("intime") + pl.duration(hours=hours[1])


def in_time(flow: Flow) -> Flow:
    """The stays whose times are known and in order."""
    into, out = pl.col("intime"), pl.col("outtime")
    why = "times missing or out of order (out of the ICU before into it)"
    return flow.keep(into.is_not_null() & (out.is_null() | (out >= into)), why, always=False)


def no_vitals(table: pl.DataFrame) -> tuple[int, list[str]]:
    """How many stays have no vital sign, and a warning if some have none."""
    without = table.filter(pl.all_horizontal(pl.col(vitals.columns()).is_null())).height
    warning = f"{without} stays have no vital sign in the window; they stay in, with missing values"
    return without, [warning] if without else []


@dataclass(frozen=True, eq=False)
class StayTable:
    """What a source found.  flow: the exclusions.  table: stays with vitals and comorbidities.  more: further
    columns."""

    flow: Flow
    table: pl.DataFrame
    vitals: vitals.FirstDay
    more: physiology.Physiology | None


def combine(
    duck: DuckSession,
    flow: Flow,
    first_day: vitals.FirstDay,
    parts: Sequence[pl.DataFrame],
    options: FirstDayOptions,
    fill: Callable[[], set[str]],
    source: str,
) -> StayTable:
    """The stays with vitals, further columns (parts, by stay) and, where asked for, the rest of physiology.

    fill: fills the tables of :mod:`abps.cohorts.physiology` and says which inputs there are.
    """
    table = flow.table
    for part in (first_day.table, *parts):
        table = table.join(part, on="stay", how="left")
    if not options.groups:
        return StayTable(flow, table, first_day, None)
    physiology.empty_tables(duck)
    known = table.select("stay", "age", *vitals.columns())
    more = physiology.build(duck, known, options.groups, fill(), options.when, source)
    return StayTable(flow, table, first_day, more)


def finish(
    recipe: str,
    found: StayTable,
    roles: Roles,
    dictionary: Sequence[Variable],
    options: Any,
    sources: tuple[Iterable[Path], Path, Progress],
    warnings: Sequence[str],
    facts: Mapping[str, Any] | None = None,
) -> Cohort:
    """The cohort of a source.  sources: the files that were read, their folder, and the progress callback."""
    table, more = found.table, found.more
    if more is not None:
        table = table.join(more.table, on="stay", how="left")
        dictionary = (*dictionary, *more.dictionary)
    without, empty = no_vitals(table)
    return Cohort(
        source=recipe.partition("/")[0],
        recipe=recipe,
        table=in_order(table, dictionary),
        roles=roles,
        steps=found.flow.steps,
        dictionary=tuple(dictionary),
        files=describe_files(*sources),
        options=asdict(options),
        facts={
            "stays_without_vitals": without,
            "vital_values_used": found.vitals.counted,
            "vital_values_out_of_range": found.vitals.dropped,
            **({"lab_values_out_of_range": more.dropped} if more else {}),
            **(facts or {}),
        },
        warnings=(*warnings, *empty, *found.vitals.warnings()),
    )
