"""``icu-synthetic``: intensive-care stays of many centers, made from a formula; no number was fitted to
patients.

A center is one care unit in one two-year window. Stays follow the unit's case mix; who dies follows a latent
severity, the risk that features explain plus logistic noise, and the unit's share of stays with the highest
severity dies: every unit has exactly its stated mortality. The risk has direct effects (age, comorbidity,
admission, a temperature that nobody charted), U-shaped effects of vital signs, and interactions. Units may
differ in case mix and in risk; knobs say how much, and whether the two go together.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from abps.core import streams
from abps.core.errors import RequestError

Floats = NDArray[np.float64]

# ---------------------------------------------------------------------------------------------------
# Difficulty: the numbers that were chosen by how well models do (docs/icu-synthetic.md).

#: Standard deviation of the risk common to all units, in log-odds.
RISK_SPREAD = 1.55
#: How the variance of the common risk divides over its three parts.
DIRECT_SHARE, CURVED_SHARE, INTERACTION_SHARE = 0.38, 0.47, 0.15
#: Standard deviation of a unit's own risk, in log-odds, at ``risk=1``.
UNIT_RISK_SPREAD = 0.6

# ---------------------------------------------------------------------------------------------------
# The schema.

COMORBIDITIES = (
    "myocardial_infarct", "congestive_heart_failure", "peripheral_vascular", "cerebrovascular", "dementia",
    "chronic_pulmonary", "rheumatic", "peptic_ulcer", "liver", "diabetes", "renal", "cancer",
)  # fmt: skip
VITALS = ("heart_rate", "sbp", "dbp", "mbp", "resp_rate", "spo2", "temperature")

#: Mean and standard deviation of a stay's 24-hour mean, and how far its extremes lie from it.
VITAL_MEAN = np.array([86.0, 119.0, 63.0, 79.0, 19.5, 96.9, 36.9])
VITAL_SD = np.array([16.0, 17.0, 11.0, 11.0, 4.0, 2.0, 0.55])
VITAL_RANGE = np.array([18.0, 24.0, 16.0, 18.0, 7.0, 3.5, 0.65])
#: How much the swing of a vital varies: with the stay (all vitals swing) and by itself, as a logarithm.
SWING_SHARED, SWING_OWN = 0.25, 0.60
#: How much it varies, as a share of the swing, on which side of the mean most of it lies.
LEAN = 0.35
VITAL_LOWEST = np.array([20.0, 40.0, 15.0, 25.0, 3.0, 50.0, 30.0])
VITAL_HIGHEST = np.array([220.0, 260.0, 160.0, 190.0, 65.0, 100.0, 42.5])

_TABLES: dict[str, Any] = json.loads(
    resources.files("abps.lab").joinpath("icu_synthetic.json").read_text(encoding="utf-8")
)

#: Levels and their shares over all units. The empty level is "not recorded" (a missing value).
CATEGORIES: dict[str, dict[str, float]] = _TABLES["categories"]


@dataclass(frozen=True)
class Unit:
    """What sets one care unit apart. The figures are round and plausible, not measured."""

    name: str
    mortality: float  # share of its stays that end in death
    volume: float  # its stays relative to an average unit's
    age: float  # mean age
    male: float
    comorbidity: tuple[float, ...]  # prevalence, in the order of COMORBIDITIES
    vitals: tuple[float, ...]  # shift of the mean, in standard deviations, in the order of VITALS
    planned: float  # shift of the log-odds of planned over emergency admission


UNITS = tuple(Unit(**unit) for unit in _TABLES["units"])

#: The first two-year window, and how many there are.
FIRST_YEAR, WINDOWS = 2110, 41
#: Stays and centers of the default federation, so that the mean size carries over to other numbers.
STAYS, CENTERS = 71_008, 230
#: No center has fewer stays than this.
SMALLEST_CENTER = 20
#: Standard deviation of the logarithm of a center's size.
SIZE_SPREAD = 0.60
#: Share of stays whose patient was in the same center before (and left it alive).
READMITTED = 0.10
#: How far the centers of one unit scatter around it: log-odds of a prevalence, SDs of a vital's mean.
CENTER_SCATTER = 0.06


RANGES = {
    "heterogeneity": (0, 20), "risk": (0, 20), "case_mix": (0, 5), "alike": (0, 1),
    "centers": (1, 100_000), "groups": (1, 1_000), "seed": (0, 2**63 - 1),
}  # fmt: skip


def check_ranges(name: str, knobs: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuse a knob outside its range; unset knobs pass, NaN does not."""
    for knob, (low, high) in ranges.items():
        value = getattr(knobs, knob)
        if value is not None and not low <= value <= high:
            raise RequestError(f"{name}: {knob}={value} is out of range; choose {low} to {high}")


@dataclass(frozen=True)
class IcuSynthetic:
    """The knobs of ``icu-synthetic``. The defaults give the 230 centers that the reports use.

    heterogeneity: how much care units differ: 0 one risk for all, 1 mild, 2 medium, 4 severe.
        The default lies between none and mild.
    risk: differences in the risk function alone; unset, it follows ``heterogeneity``.
    case_mix: differences in who is admitted, and how ill; unset, (1 + heterogeneity) / 2.
    aligned: units with one case mix also share one risk function. If false, a center takes case mix,
        size and mortality from any unit by chance, so that published metadata say nothing about the
        risk function; ``careunit`` still names the unit whose risk function the center follows.
    alike: share of the centers that follow the common risk and the common case mix; their
        ``careunit`` is ``COMMON``.
    centers, groups: how many centers, from how many care units.
    group_sizes: centers per care unit, if they are not to be equal.
    stays: stays in all centers together; unset, 309 per center as in the default federation.
    seed: which federation of this kind.
    """

    heterogeneity: float = 0.3
    risk: float | None = None
    case_mix: float | None = None
    aligned: bool = True
    alike: float = 0.0
    centers: int = CENTERS
    groups: int = 6
    group_sizes: tuple[int, ...] = ()
    stays: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges("icu-synthetic", self, RANGES)
        if self.group_sizes:
            if len(self.group_sizes) != self.groups and self.groups != type(self).groups:
                raise RequestError(
                    f"icu-synthetic: group_sizes names {len(self.group_sizes)} groups "
                    f"but groups={self.groups}; leave groups out"
                )
            if min(self.group_sizes) < 1 or sum(self.group_sizes) != self.centers:
                raise RequestError(
                    f"icu-synthetic: group_sizes add up to {sum(self.group_sizes)} but "
                    f"centers={self.centers}; give positive sizes that add up to the number of centers"
                )
        elif self.groups > self.centers:
            raise RequestError(
                f"icu-synthetic: groups={self.groups} but centers={self.centers}; every group needs a center"
            )
        if self.total_stays < SMALLEST_CENTER * self.centers:
            raise RequestError(
                f"icu-synthetic: stays={self.stays} is too few for {self.centers} centers; "
                f"give at least {SMALLEST_CENTER * self.centers} ({SMALLEST_CENTER} per center)"
            )

    @property
    def total_stays(self) -> int:
        return round(STAYS * self.centers / CENTERS) if self.stays is None else self.stays

    def generate(self) -> pl.DataFrame:
        """One row per stay: died, center, careunit, admission_year, patient, then the features."""
        return draw_with_risk(population_of(self), self.seed)[0]


@dataclass(frozen=True, eq=False)
class Population:
    """What the stays of every center are drawn from; (n,) or (n, k) arrays, one row per center."""

    names: tuple[str, ...]
    groups: tuple[str, ...]
    stratum: NDArray[np.int64]  # centers of one stratum share one mortality
    mortality: Floats  # (strata,)
    year: Floats  # first year of the window
    sizes: NDArray[np.int64]
    age: Floats  # mean age
    male: Floats  # log-odds
    comorbidity: Floats  # (n, 12) log-odds
    vitals: Floats  # (n, 7) shift of the mean in standard deviations
    categories: dict[str, Floats]  # (n, levels) log-shares
    own: Floats  # (n, terms) weights of the center's own direct effects


def _stream(seed: int, what: str) -> np.random.Generator:
    """A stream per ingredient: a new ingredient does not change the draws of the others."""
    return streams.generator(seed, "generate", 0, streams.center_id(what))


def _logit(p: ArrayLike) -> Floats:
    p = np.asarray(p, dtype=np.float64)
    return np.asarray(np.log(p / (1.0 - p)))


def _apportion(weights: Floats, total: int, least: int) -> NDArray[np.int64]:
    """Whole numbers in proportion to the weights, at least ``least`` each, adding up to ``total``."""
    spare = total - least * len(weights)
    share = weights / weights.sum() * spare
    sizes = np.floor(share).astype(np.int64)
    rest = spare - int(sizes.sum())
    sizes[np.argsort(sizes - share, kind="stable")[:rest]] += 1
    return np.asarray(sizes + least)


def _units(knobs: IcuSynthetic, groups: int) -> tuple[list[str], dict[str, Floats]]:
    """Names of the care units and their profiles, (groups, k) arrays on an unbounded scale. Beyond six, a
    unit repeats one of the six with a variation of its own."""
    table = [UNITS[g % len(UNITS)] for g in range(groups)]
    names = [u.name if g < len(UNITS) else f"UNIT{g + 1}" for g, u in enumerate(table)]
    rng = _stream(knobs.seed, "further units")
    novel = (np.arange(groups) >= len(UNITS))[:, None]
    profile = {
        "mortality": np.array([[u.mortality] for u in table]),
        "volume": np.log([[u.volume] for u in table]),
        "age": np.array([[u.age] for u in table]),
        "male": _logit([[u.male] for u in table]),
        "comorbidity": _logit([u.comorbidity for u in table]),
        "vitals": np.array([u.vitals for u in table]),
        "planned": np.array([[u.planned] for u in table]),
    }
    for name, width in (("age", 3.0), ("comorbidity", 0.4), ("vitals", 0.2), ("planned", 0.5)):
        profile[name] = profile[name] + novel * rng.normal(0.0, width, profile[name].shape)
    return names, profile


def _windows(knobs: IcuSynthetic, counts: list[int], volume: Floats) -> tuple[NDArray[np.int64], Floats]:
    """(n,) the window of every center, and its expected size. Each unit has a cell in every window; where
    there are more cells than centers, its smallest are left out."""
    rng = _stream(knobs.seed, "sizes")
    cells = max(WINDOWS, *counts)
    size = np.exp(volume + SIZE_SPREAD * rng.standard_normal((len(counts), cells)))
    kept = [np.sort(np.argsort(-size[g], kind="stable")[:count]) for g, count in enumerate(counts)]
    return np.concatenate(kept), np.concatenate([size[g, k] for g, k in enumerate(kept)])


def _dealt(counts: list[int], rng: np.random.Generator) -> NDArray[np.int64]:
    """(n,) a center for every center, without replacement, each group's dealt evenly over all groups."""
    n, group = sum(counts), np.repeat(np.arange(len(counts)), counts)
    by_group = np.lexsort((rng.random(n), group))
    # Members of a group at even distances on a line: whichever stretch of it holds all groups alike.
    line = np.concatenate([(rng.permutation(count) + rng.random()) / count for count in counts])
    donor = np.empty(n, dtype=np.int64)
    donor[np.argsort(line, kind="stable")] = by_group
    return donor


def population_of(knobs: IcuSynthetic) -> Population:
    n = knobs.centers
    counts = list(knobs.group_sizes) or [len(part) for part in np.array_split(np.arange(n), knobs.groups)]
    groups = len(counts)
    risk = knobs.heterogeneity if knobs.risk is None else knobs.risk
    case_mix = (1.0 + knobs.heterogeneity) / 2.0 if knobs.case_mix is None else knobs.case_mix
    unit_names, profile = _units(knobs, groups)
    risk_unit = np.repeat(np.arange(groups), counts)
    window, size = _windows(knobs, counts, profile["volume"])

    # Whose case mix: the center's own unit's, or each unit's dealt evenly over all units.
    donor = np.arange(n) if knobs.aligned else _dealt(counts, _stream(knobs.seed, "alignment"))
    mix_unit = risk_unit[donor]
    size = size[donor]
    common = _stream(knobs.seed, "alike").permutation(n) < round(knobs.alike * n)

    scatter = _stream(knobs.seed, "scatter")

    def of_center(name: str, jitter: float = CENTER_SCATTER) -> Floats:
        """(n, k) the average over units, plus the unit's difference and the center's scatter."""
        average = profile[name].mean(axis=0)
        difference = np.where(common[:, None], 0.0, case_mix * (profile[name][mix_unit] - average))
        return np.asarray(average + difference + scatter.normal(0.0, jitter, difference.shape))

    planned = of_center("planned")
    categories = {}
    for name, levels in CATEGORIES.items():
        tilt = np.array([_PLANNED.get(level, 0.0) for level in levels])
        categories[name] = np.log(list(levels.values())) + planned * tilt

    # A unit's own risk: direct effects beside the common ones, which cancel over the units, so that
    # the common risk stays the average of all.
    own = _stream(knobs.seed, "unit risk").standard_normal((groups, len(_DIRECT)))
    own = own - own.mean(axis=0)  # so a federation of one unit has nothing of its own
    own = own * (risk * UNIT_RISK_SPREAD / np.maximum(np.sqrt((own**2).sum(axis=1, keepdims=True)), 1e-9))

    # Centers with one case mix and one risk function share one mortality, that of the case mix.
    strata, stratum = np.unique(
        np.column_stack([mix_unit, np.where(common, -1, risk_unit)]), axis=0, return_inverse=True
    )
    years = FIRST_YEAR + 2 * window
    careunit = [unit_names[g] for g in risk_unit]
    return Population(
        names=tuple(f"{unit}/{year}" for unit, year in zip(careunit, years)),
        groups=tuple("COMMON" if alike else unit for alike, unit in zip(common, careunit)),
        stratum=stratum.reshape(-1),
        mortality=profile["mortality"][strata[:, 0], 0],
        year=years.astype(np.float64),
        sizes=_apportion(size, knobs.total_stays, SMALLEST_CENTER),
        age=of_center("age", 0.5)[:, 0],
        male=of_center("male")[:, 0],
        comorbidity=of_center("comorbidity"),
        vitals=of_center("vitals"),
        categories=categories,
        own=np.where(common[:, None], 0.0, own[risk_unit]),
    )


#: Levels that go with planned (+) or unplanned (-) admission.
_PLANNED: dict[str, float] = _TABLES["planned"]

#: How the way into the unit, and what nobody could ask about, goes with severity.
_ROUTE: dict[str, dict[str, float]] = _TABLES["route"]

# How the vitals move together: two shared factors (pressure, distress) and each vital's own part.
# Mean pressure has no part of its own: it is two thirds diastolic and one third systolic.
_PRESSURE = np.array([-0.08, 0.64, 0.60, 0.0, -0.04, 0.04, 0.00])
_DISTRESS = np.array([0.33, -0.06, 0.06, 0.00, 0.36, -0.27, 0.21])
_OWN = np.sqrt(1.0 - _PRESSURE**2 - _DISTRESS**2)

#: Direct effects: term and its weight in the common risk (only the proportions matter).
_DIRECT = {
    "age": 1.0,
    **dict(zip(
        (f"cci_{name}" for name in COMORBIDITIES),
        (0.1, 0.4, 0.2, 0.4, 0.2, 0.2, 0.0, 0.0, 0.5, -0.1, 0.3, 0.6),
    )),
    **{f"{v}_level": w for v, w in zip(VITALS, (0.4, -0.3, -0.1, -0.3, 0.5, -0.4, -0.3))},
    **{f"{v}_range": w for v, w in zip(VITALS, (0.3, 0.2, 0.1, 0.1, 0.3, 0.4, 0.2))},
    "temperature_missing": 0.4,
    "route": 1.0,
}  # fmt: skip

#: U-shaped effects of the vitals' means: weight of too low and of too high, in the order of VITALS.
_TOO_LOW = np.array([0.9, 1.1, 0.8, 0.8, 0.8, 1.0, 1.1])
_TOO_HIGH = np.array([1.1, 0.9, 0.6, 0.6, 1.1, 0.5, 0.9])


def _choose(log_shares: Floats, center: NDArray[np.int64], u: Floats) -> NDArray[np.int64]:
    """(rows,) a level for every stay, from its center's shares."""
    shares = np.exp(log_shares - log_shares.max(axis=1, keepdims=True))
    bounds = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)[:, :-1]
    chosen = np.zeros(len(u), dtype=np.int64)
    for bound in bounds.T:
        chosen += u > bound[center]
    return chosen


def draw_with_risk(population: Population, seed: int) -> tuple[pl.DataFrame, Floats]:
    """Stays of every center with who died, and (rows,) the risk behind it: what the features explain, in
    log-odds up to a constant per stratum. No model can rank the stays of a center better."""
    center = np.repeat(np.arange(len(population.sizes)), population.sizes)
    rows = len(center)
    first = np.concatenate([[0], np.cumsum(population.sizes)[:-1]])

    # Who comes back: the row takes the person (not the physiology) of the last row that is somebody new.
    again = _stream(seed, "readmission").random(rows) < READMITTED
    again[first] = False
    person = np.maximum.accumulate(np.where(again, 0, np.arange(rows)))

    rng = _stream(seed, "person")
    frailty = rng.standard_normal(rows)[person]
    age = np.clip(population.age[center] + 15.0 * rng.standard_normal(rows)[person], 18.0, 95.0)
    age_z = (age - 64.0) / 15.0
    male = rng.random(rows)[person] < 1.0 / (1.0 + np.exp(-population.male[center]))
    odds = population.comorbidity[center] + 0.4 * frailty[:, None] + 0.35 * age_z[:, None]
    sick = rng.random((rows, len(COMORBIDITIES)))[person] < 1.0 / (1.0 + np.exp(-odds))

    rng = _stream(seed, "admission")
    columns: dict[str, pl.Series] = {}
    route = np.zeros(rows)
    for name, levels in CATEGORIES.items():
        u = rng.random(rows)
        chosen = _choose(population.categories[name], center, u[person] if name == "race" else u)
        labels = pl.Series(name, [level or None for level in levels], dtype=pl.String)
        columns[name] = labels.gather(chosen)
        route += np.array([_ROUTE[name].get(level, 0.0) for level in levels])[chosen]

    z, unstable, uncharted, charted = _draw_vitals(population.vitals[center], seed)
    swing = unstable / math.hypot(SWING_SHARED, SWING_OWN)
    parts = (age_z, (sick - 0.2) / 0.4, z, swing, (uncharted - 0.08) / 0.27, (route - 0.1) / 0.9)
    direct = np.column_stack(parts)
    own = np.einsum("rk,rk->r", direct, population.own[center])
    risk = RISK_SPREAD * _common_risk(direct, z, age_z, sick) + own
    severity = risk + _stream(seed, "unexplained").logistic(size=rows)
    died = _most_severe(severity, population.stratum[center], population.mortality)
    # The dead do not come back: the stay after a death belongs to somebody new.
    again &= ~died[np.maximum(np.arange(rows) - 1, 0)]
    patient = np.cumsum(~again) + 10_000_000

    # Rows of a center are in the order of admission.
    when = _stream(seed, "date").random(rows)
    year = population.year[center] + 2.0 * when[np.lexsort((when, center))]
    table: dict[str, pl.Series | NDArray[np.generic]] = {
        "died": died.astype(np.int8),
        "center": pl.Series(population.names).gather(center),
        "careunit": pl.Series(population.groups).gather(center),
        "admission_year": np.floor(year * 1000.0) / 1000.0,
        "patient": patient,
        "age": np.round(age),
        "sex": pl.Series(["F", "M"]).gather(male.astype(np.int64)),
        **columns,
        **{f"cci_{name}": sick[:, k].astype(np.int8) for k, name in enumerate(COMORBIDITIES)},
        **charted,
    }
    return pl.DataFrame(table), risk


def _draw_vitals(shift: Floats, seed: int) -> tuple[Floats, Floats, NDArray[np.bool_], dict[str, pl.Series]]:
    """Vitals of all stays, by shifts (rows, 7) of the mean in deviations: (rows, 7) standardised means and
    instability, (rows,) whether temperature is uncharted, and the columns of the table."""
    rows = len(shift)
    rng = _stream(seed, "vitals")
    factors = rng.standard_normal((rows, 2))
    own = rng.standard_normal((rows, len(VITALS)))
    z = factors[:, :1] * _PRESSURE + factors[:, 1:] * _DISTRESS + own * _OWN
    z[:, 3] = 0.47 * z[:, 1] + 0.62 * z[:, 2] + 0.25 * own[:, 3]
    z += shift
    # The day's mean, and extremes on either side of it, further away in the unstable.
    unstable = rng.standard_normal((rows, 1)) * SWING_SHARED
    unstable = unstable + rng.standard_normal((rows, len(VITALS))) * SWING_OWN
    swing = VITAL_RANGE * np.exp(unstable)
    lean = 0.5 + LEAN * rng.standard_normal((rows, len(VITALS)))  # which side the day leaned to
    mean = np.clip(VITAL_MEAN + VITAL_SD * z, VITAL_LOWEST, VITAL_HIGHEST)
    lowest = np.clip(mean - 2.0 * swing * np.clip(lean, 0.1, 0.9), VITAL_LOWEST, mean)
    highest = np.clip(mean + 2.0 * swing * np.clip(1.0 - lean, 0.1, 0.9), mean, VITAL_HIGHEST)
    # Temperature goes uncharted in the calm, and in those who die before anyone takes it.
    calm = -0.5 * factors[:, 1]
    uncharted = rng.random(rows) < 1.0 / (1.0 + np.exp(2.6 - calm))
    columns = {}
    for k, name in enumerate(VITALS):
        decimals = 2 if name == "temperature" else 1
        for what, values in (("mean", mean), ("min", lowest), ("max", highest)):
            column = pl.Series(np.round(values[:, k], decimals))
            if name == "temperature":
                column = column.zip_with(pl.Series(~uncharted), pl.Series([None], dtype=pl.Float64))
            columns[f"{name}_{what}"] = column
    return z, unstable, uncharted, columns


def _common_risk(direct: Floats, z: Floats, age_z: Floats, sick: NDArray[np.bool_]) -> Floats:
    """(rows,) the risk that all units share, standard deviation about 1."""
    weights = np.array(list(_DIRECT.values()))
    linear = direct @ weights / np.sqrt((weights**2).sum())
    # The square of a vital's distance from normal, weighted by side; mean and variance for normal z.
    square = np.minimum(z**2, 9.0) * np.where(z < 0, _TOO_LOW, _TOO_HIGH)
    expected = (_TOO_LOW + _TOO_HIGH) / 2.0
    variance = 1.5 * (_TOO_LOW**2 + _TOO_HIGH**2) - expected**2
    curved = (square - expected).sum(axis=1) / np.sqrt(variance.sum())
    burden = (sick.sum(axis=1) - 2.4) / 1.4
    interactions = (
        age_z * burden
        - z[:, 0] * z[:, 1]  # fast pulse at low pressure
        - z[:, 4] * z[:, 5]  # fast breathing at low saturation
        + z[:, 6] * burden  # fever in the frail
    ) / 2.0
    return np.asarray(
        math.sqrt(DIRECT_SHARE) * linear
        + math.sqrt(CURVED_SHARE) * curved
        + math.sqrt(INTERACTION_SHARE) * interactions
    )


def _most_severe(severity: Floats, stratum: NDArray[np.int64], mortality: Floats) -> NDArray[np.bool_]:
    """(rows,) true for the most severe stays of each stratum, as many as its mortality says."""
    died = np.zeros(len(severity), dtype=bool)
    for s, rate in enumerate(mortality):
        rows = np.flatnonzero(stratum == s)
        deaths = round(rate * len(rows))
        died[rows[np.argsort(-severity[rows], kind="stable")[:deaths]]] = True
    return died
