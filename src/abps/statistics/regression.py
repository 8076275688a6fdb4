"""Regressions as people use them: a request on one table, a result with its table, and its files."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from scipy import stats

from abps import files
from abps.core.errors import RequestError
from abps.data.reading import frame_of
from abps.data.table import read_frame
from abps.statistics.design import Formula, agree, complete_rows, parse_formula
from abps.statistics.families import LIKELIHOODS, CanonicalGLM, Floats, HospitalRows
from abps.statistics.heterogeneity import (
    EffectHeterogeneity,
    LikelihoodSummary,
    effect_profile,
    hospital_estimates,
    likelihood_summary,
    summarise,
)
from abps.statistics.newton import Fit, fit

#: What the exponential of a coefficient is called.
RATIO: Final = {"logistic": "odds ratio", "poisson": "rate ratio", "cox": "hazard ratio"}

#: Events that a hospital needs for its own estimate to be shown.
SHOWN_EVENTS: Final = 5

#: Events below which a hospital's estimate is not taken for normal, and points of its likelihood then.
SPARSE_EVENTS: Final = 20
PROFILE_POINTS: Final = 41

SCHEMA: Final = "abps.regression/1"


@dataclass(frozen=True)
class EffectEstimate:
    name: str
    estimate: float
    se: float
    low: float
    high: float
    p: float
    heterogeneity: EffectHeterogeneity | None = None


@dataclass(frozen=True, eq=False)
class RegressionResult:
    """The result of a regression over hospitals.

    lr, wald: tests of all columns together on lr_df degrees of freedom. sd: of random intercepts. hospitals:
    by effect, the hospitals' own estimates and standard errors. equal: score test that effects are the same
    everywhere (statistic, degrees of freedom, p). ratios: by hospital its events, and those that its patients
    would have had at the average hospital.
    """

    family: str
    intercepts: str
    robust: bool
    outcome: str
    effects: tuple[EffectEstimate, ...]
    rows: int
    events: int
    incomplete: int
    centers: tuple[str, ...]
    taking_part: int
    rounds: int
    bytes: int
    loglik: float
    lr: float
    lr_df: int
    lr_p: float
    wald: float
    wald_p: float
    sd: float
    hospitals: dict[str, dict[str, tuple[float, float]]]
    equal: tuple[float, int, float]
    ratios: dict[str, tuple[int, float]]
    notes: tuple[str, ...] = ()

    def frame(self) -> pl.DataFrame:
        rows = []
        for e in self.effects:
            row: dict[str, Any] = {"effect": e.name}
            row |= {key: getattr(e, key) for key in ("estimate", "se", "low", "high", "p")}
            if self.family in RATIO:
                row |= dict(zip(("ratio", "ratio_low", "ratio_high"), map(_exp, (e.estimate, e.low, e.high))))
            h = e.heterogeneity
            rows.append({**row, "tau2": h and h.tau2, "i2": h and h.i2, "q_p": h and h.p})
        return pl.DataFrame(rows, infer_schema_length=None)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Head and rows as text, for terminals and pages."""
        ratio = self.family in RATIO
        head = ("effect", RATIO.get(self.family, "estimate"), "95 % interval", "p", "τ", "I²")
        rows: list[tuple[str, ...]] = []
        for e in self.effects:
            if e.name == "intercept" and ratio:
                continue
            value, low, high = (_number(_exp(v) if ratio else v) for v in (e.estimate, e.low, e.high))
            h, differ = e.heterogeneity, ("–", "–")
            if h is not None:
                tau = h.tau2**0.5 if h.likelihood is None else h.likelihood.tau
                differ = (f"{tau:.2f}", f"{100 * h.i2:.0f} %")
            rows.append((e.name, value, f"{low} to {high}", _p(e.p), *differ))
        return head, rows

    def to_json(self) -> dict[str, Any]:
        """Plain data: numbers as numbers, undefined ones as null; jsonlite reads it as a list."""
        body = {name: value for name, value in vars(self).items() if name != "effects"}
        effects = [
            {**vars(e), "heterogeneity": None if e.heterogeneity is None else asdict(e.heterogeneity)}
            for e in self.effects
        ]
        return dict(files.finite({"schema": SCHEMA, **body, "effects": effects}))

    def write(self, out: Path) -> list[Path]:
        out.mkdir(parents=True, exist_ok=True)
        made = {
            "effects.csv": self.frame().write_csv(),
            "effects.tex": _latex(*self.table()),
            "regression.json": json.dumps(self.to_json(), indent=1) + "\n",
        }
        for name, content in made.items():
            files.write_text(out / name, content)
        return [out / name for name in made]


def regress(
    table: Any,
    label: str,
    center: str,
    formula: str | Formula,
    family: str = "logistic",
    intercepts: str = "common",
    duration: str | None = None,
    robust: bool = False,
    min_cell: int = 10,
) -> RegressionResult:
    """Effects with intervals from a table in which a column names the hospital of every row.

    The fit uses sums over hospitals and equals that of the pooled rows. table: a pandas or polars frame,
    a mapping of columns, or the path of a file. label: 0 or 1, a count, a number, or for Cox the event.
    duration: time to the event or to the end of observation. robust: standard errors that allow for
    correlation within hospitals. min_cell: rows and events that every level needs in all hospitals.

    >>> rng = np.random.default_rng(0)
    >>> age = rng.normal(size=900)
    >>> died = (age + rng.logistic(size=900) > 1).astype(int)
    >>> stays = {"age": age, "died": died, "hospital": ["a", "b", "c"] * 300}
    >>> found = regress(stays, "died", "hospital", "age").frame()
    >>> found["effect"].to_list(), found["estimate"].round(2).to_list()
    (['intercept', 'age'], [-1.03, 0.87])
    """
    frame = read_frame(Path(table)) if isinstance(table, str | Path) else frame_of(table)
    chosen = _family(family, intercepts, duration)
    parsed = parse_formula(formula) if isinstance(formula, str) else formula
    for role, column in (("label", label), ("center", center), ("duration", duration)):
        if column in parsed.columns:
            raise RequestError(f"{column!r} is the {role} and cannot be in the formula")
    others = [label, center, *([duration] if duration else [])]
    known, incomplete = complete_rows(frame, [*parsed.columns, *others])
    if not known.height:
        raise RequestError(
            "no row is complete in the columns of the formula; leave out columns with many gaps"
        )
    parts = known.sort(center, maintain_order=True).partition_by(center, maintain_order=True)
    names = tuple(str(part[center][0]) for part in parts)
    if len(parts) < 2:
        raise RequestError(f"{center!r} names {len(parts)} hospital; a regression over hospitals needs two")
    schema = agree(parsed, parts, min_cell)
    rows = [_rows(part, schema.build(part), label, duration, family) for part in parts]
    notes = _notes(rows, names, intercepts, family)
    fits = fit(rows, schema.names, chosen, intercepts, robust, min_cell)
    result = common_result(fits[0], family, intercepts, robust, label, notes)
    return replace(_with_hospitals(result, fits, rows, names), incomplete=incomplete)


def _family(family: str, intercepts: str, duration: str | None) -> Any:
    if family not in LIKELIHOODS:
        raise RequestError(f"family {family!r}: choose {', '.join(LIKELIHOODS)}")
    if duration is not None and family != "cox":
        raise RequestError(f"--duration {duration}: times are for --family cox")
    if duration is None and family == "cox":
        raise RequestError("cox needs the column with times: --duration COL")
    if family == "cox" and intercepts != "common":
        raise RequestError("cox is stratified by hospital already; leave --intercepts out")
    if intercepts not in ("common", "fixed", "random"):
        raise RequestError(f"intercepts {intercepts!r}: choose common, fixed or random")
    return LIKELIHOODS[family]


def _rows(
    part: pl.DataFrame, built: tuple[Floats, Floats], label: str, duration: str | None, family: str
) -> HospitalRows:
    values = part[label]
    if not values.dtype.is_numeric() and values.dtype != pl.Boolean:
        raise RequestError(f"{label!r} holds text; write 0 and 1 (or numbers), the event as 1")
    y = values.cast(pl.Float64).to_numpy()
    if family in ("logistic", "cox") and not np.isin(y, (0.0, 1.0)).all():
        raise RequestError(f"{label!r} has values other than 0 and 1; {family} needs the event as 1")
    if family == "poisson" and ((y < 0) | (y != np.floor(y))).any():
        raise RequestError(f"{label!r} has values that are no counts; poisson needs whole numbers from 0")
    time = None
    if duration:
        time = part[duration].cast(pl.Float64).to_numpy()
        if (time <= 0).any():
            raise RequestError(f"{duration!r} has times that are not positive; leave those rows out")
    return HospitalRows(*(built[0], y, built[1]), time)


def _notes(
    rows: Sequence[HospitalRows], names: Sequence[str], intercepts: str, family: str
) -> tuple[str, ...]:
    cox, own = family == "cox", intercepts == "fixed" and family != "linear"
    alike = [
        name for name, r in zip(names, rows) if (cox and not r.y.any()) or (own and r.y.min() == r.y.max())
    ]
    if not alike:
        return ()
    shown = ", ".join(alike[:3]) + (f" and {len(alike) - 3} more" if len(alike) > 3 else "")
    why = "no event, so in a stratum of their own" if cox else "one outcome only, so with their own intercept"
    return (f"{shown}: {why} they say nothing of the effects",)


def common_result(
    fitted: Fit,
    family: str,
    intercepts: str,
    robust: bool,
    label: str,
    notes: tuple[str, ...] = (),
) -> RegressionResult:
    """A regression as one of its hospitals knows it: nothing of single hospitals."""
    se = np.sqrt(np.diag(fitted.covariance))
    freedom = float("inf")
    if robust:
        freedom = fitted.hospitals - 1
    elif family == "linear":
        freedom = fitted.rows - len(fitted.beta) - (fitted.hospitals if intercepts == "fixed" else 0)
    critical, p = stats.t.ppf(0.975, freedom), 2.0 * stats.t.sf(np.abs(fitted.beta / se), freedom)
    first, columns = len(fitted.beta) - len(fitted.score), len(fitted.score)
    differ = (*(None,) * first, *fitted.differences)
    effects = tuple(
        EffectEstimate(
            name, float(b), float(s), float(b - critical * s), float(b + critical * s), float(q), h
        )
        for name, b, s, q, h in zip(fitted.names, fitted.beta, se, p, differ, strict=True)
    )
    inner = fitted.covariance[first:, first:]
    wald = float(fitted.beta[first:] @ np.linalg.solve(inner, fitted.beta[first:]))
    if fitted.unsettled:
        said = f"Not converged in {fitted.rounds} rounds: the last step was {fitted.unsettled:.2g} standard"
        notes = (*notes, f"{said} errors. Read these figures as approximate, or merge rare levels.")
    lr = float("nan") if robust else 2.0 * (fitted.loglik - fitted.null)
    return RegressionResult(
        family, intercepts, robust, label, effects, fitted.rows, fitted.events, 0, (), fitted.hospitals,
        fitted.rounds, fitted.bytes, fitted.loglik, lr, columns, float(stats.chi2.sf(lr, columns)), wald,
        float(stats.chi2.sf(wald, columns)), fitted.sd, {}, fitted.equal, {}, notes,
    )  # fmt: skip


def _with_hospitals(
    result: RegressionResult, fits: Sequence[Fit], rows: Sequence[HospitalRows], names: tuple[str, ...]
) -> RegressionResult:
    first = len(fits[0].beta) - len(fits[0].score)
    events = np.array([len(r.y) if result.family == "linear" else int(r.y.sum()) for r in rows])
    effects, hospitals = list(result.effects), {}
    for column, unit in enumerate(fits[0].unit):
        estimates, variances = hospital_estimates(fits, column)
        good = (events >= SHOWN_EVENTS) & (variances < 25.0 * unit**2)
        effect, found = effects[first + column], None
        if good.sum() >= 2:
            found = summarise(estimates[good], variances[good])
            if events[good].min() < SPARSE_EVENTS and result.family != "linear":
                found = replace(found, likelihood=_by_likelihood(rows, fits, column, result.family, found))
        effects[first + column] = replace(effect, heterogeneity=found)
        hospitals[effect.name] = {
            names[i]: (float(estimates[i]), float(variances[i] ** 0.5)) for i in np.flatnonzero(good)
        }
    ratios = _ratios(rows, fits[0], names, result.family, events)
    return replace(result, effects=tuple(effects), centers=names, hospitals=hospitals, ratios=ratios)


def _by_likelihood(
    rows: Sequence[HospitalRows], fits: Sequence[Fit], column: int, family: str, found: EffectHeterogeneity
) -> LikelihoodSummary:
    chosen, beta = LIKELIHOODS[family], fits[0].beta[len(fits[0].beta) - len(fits[0].score) :]
    spread = max(found.tau2**0.5, found.se * found.hospitals**0.5, 1e-6)
    at = np.linspace(found.mean - 8.0 * spread, found.mean + 8.0 * spread, PROFILE_POINTS)
    profiles = [effect_profile(one, beta, column, at, chosen) for one in rows if one.y.min() < one.y.max()]
    return likelihood_summary(at, np.stack(profiles), (found.mean, spread))


def _ratios(
    rows: Sequence[HospitalRows], fitted: Fit, names: Sequence[str], family: str, counts: Floats
) -> dict[str, tuple[int, float]]:
    """Observed and expected events where there is a common intercept to expect them by."""
    chosen = LIKELIHOODS[family]
    if family == "linear" or not isinstance(chosen, CanonicalGLM) or fitted.names[0] != "intercept":
        return {}
    found = {}
    for name, one, events in zip(names, rows, counts):
        mean, _ = chosen.mean(fitted.beta[0] + one.x @ fitted.beta[1:] + one.offset)
        if events >= SHOWN_EVENTS:
            found[name] = (int(events), float(mean.sum()))
    return found


def _exp(value: float) -> float:
    return float(np.exp(np.clip(value, -700.0, 700.0)))


def _p(value: float) -> str:
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


def _number(value: float) -> str:
    return f"{value:.3f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def _latex(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        safe = [cell.replace("%", r"\%").replace("_", r"\_").replace("τ", r"$\tau$") for cell in cells]
        return " & ".join(cell.replace("²", "$^2$").replace("<", "$<$") for cell in safe) + r" \\"

    body = "\n".join(line(row) for row in rows)
    return (
        f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}\n\\hline\n{line(head)}\n\\hline\n{body}\n"
        "\\hline\n\\end{tabular}\n"
    )


def summary(result: RegressionResult) -> str:
    model = {"common": "one intercept", "fixed": "an intercept per hospital", "random": "random intercepts"}
    how = "stratified by hospital" if result.family == "cox" else model[result.intercepts]
    said = (
        f"{result.family} regression, {how}: {result.rows:,} rows of {result.taking_part} hospitals"
        f"{f', {result.events:,} events' if result.family != 'linear' else ''}; "
        f"{f'{result.incomplete:,} incomplete' if result.centers else 'incomplete'} rows left out. "
        f"{result.rounds} rounds, {result.bytes / 1e3 / result.taking_part:.1f} kB per hospital under masked "
        "sums."
    )
    name, value, p = "Likelihood-ratio", result.lr, result.lr_p
    if not np.isfinite(value):
        name, value, p = "Wald", result.wald, result.wald_p
    said += f" {name} test of all columns: {value:.1f} on {result.lr_df}, p {_p(p)}."
    if np.isfinite(result.sd):
        said += f" Standard deviation of hospital intercepts {result.sd:.3f}."
    if result.robust:
        said += " Standard errors allow for correlation within hospitals."
    return said
