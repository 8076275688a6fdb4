"""The theorems and the lemma, checked by simulation with known utilities. Every study is a function of a
seed; :func:`check` runs all of them and decides every statement of the text by the number that settles it."""

import functools
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from abps.core import selection, streams
from abps.lab import guarantees
from abps.lab.guarantees import GAMMA, Bandit, BanditRun, Constant, Epsilon, Gaps, Prior, play

Floats = NDArray[np.float64]


def _generator(seed: int, study: str) -> np.random.Generator:
    return streams.generator(seed, "generate", center=streams.center_id(f"theory/{study}"))


# --------------------------------------------------------------------------- Theorem 1

COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
DELTAS = (0.01, 0.05, 0.1, 0.2, 0.5)
DRIFTS = (0.0, 0.02, 0.1)
PRIORS: tuple[Prior, ...] = ((1.0, 1.0), (0.5, 0.5), (2.0, 2.0), (5.0, 1.0), (0.01, 0.01))
UTILITIES = (0.1, 0.3, 0.5, 0.8)
#: How expectations stray inside the tolerance: all the way up, all the way down, or from down to up.
DRIFT_SHAPES = ("up", "down", "ramp")


@dataclass(frozen=True)
class Coverage:
    """How often Theorem 1 was violated in one cell of the grid, and the exact probability if known.  reach:
    the (1 - delta) quantile of the error over the bound; 1 would be a bound without slack."""

    count: int
    delta: float
    drift: float
    prior: Prior
    utility: float
    shape: str
    violations: float
    exact: float | None
    reach: float


def coverage(seed: int, replicates: int = 10_000) -> list[Coverage]:
    """Theorem 1 over counts, failure probabilities, drifts, priors, utilities and shapes of drift."""
    rng, rows = _generator(seed, "coverage"), []
    for count in COUNTS:
        for drift in DRIFTS:
            for utility in UTILITIES:
                for shape in DRIFT_SHAPES if drift else ("up",):
                    path = _path(utility, drift, shape, count)
                    sums = sum(rng.binomial(size, mean, replicates) for mean, size in path)
                    exact = binom.pmf(np.arange(count + 1), count, path[0][0]) if len(path) == 1 else None
                    rows += _cell(count, drift, utility, shape, np.asarray(sums), exact)
    return rows


def _path(utility: float, drift: float, shape: str, count: int) -> list[tuple[float, int]]:
    """(expectation, number of observations) pieces of a window that stays within the tolerance."""
    if shape != "ramp":
        return [(utility + (drift if shape == "up" else -drift), count)]
    pieces = np.array_split(np.arange(count), min(count, 8))
    steps = np.linspace(-drift, drift, len(pieces)) if len(pieces) > 1 else np.array([drift])
    return [(utility + float(d), len(piece)) for d, piece in zip(steps, pieces, strict=True)]


def _cell(
    count: int, drift: float, utility: float, shape: str, sums: NDArray[np.int64], exact: Floats | None
) -> list[Coverage]:
    rows = []
    for prior in PRIORS:
        error = np.abs(guarantees.posterior_mean(sums, count, prior) - utility)
        each = np.abs(guarantees.posterior_mean(np.arange(count + 1), count, prior) - utility)
        for delta in DELTAS:
            bound = float(guarantees.concentration(count, delta, drift=drift, prior=prior).total)
            violations = float((error > bound).mean())
            chance = None if exact is None else float(exact[each > bound].sum())
            reach = float(np.quantile(error, 1 - delta)) / bound
            rows.append(Coverage(count, delta, drift, prior, utility, shape, violations, chance, reach))
    return rows


@dataclass(frozen=True)
class Monitoring:
    """P(the bound is violated at some round up to the horizon) if a belief is looked at in every round."""

    delta: float
    horizon: int
    fixed: float
    at_all_times: float


def monitoring(seed: int, replicates: int = 2_000, horizon: int = 10_000) -> list[Monitoring]:
    """Theorem 1 is for a count fixed in advance; a monitor looks at every count."""
    rng = _generator(seed, "monitoring")
    counts = np.arange(1, horizon + 1)
    prior, utility = (0.01, 0.01), 0.5
    missed = {(d, a): 0 for d in DELTAS for a in (False, True)}
    bounds = {
        (d, a): guarantees.concentration(counts, d, prior=prior, at_all_times=a).total.astype(np.float32)
        for d, a in missed
    }
    for _ in range(replicates // 200):
        sums = np.cumsum(rng.random((200, horizon), dtype=np.float32) < utility, axis=1, dtype=np.int32)
        error = np.abs((prior[0] + sums) / (sum(prior) + counts) - utility).astype(np.float32)
        for key, bound in bounds.items():
            missed[key] += int((error > bound).any(axis=1).sum())
    runs = (replicates // 200) * 200
    return [Monitoring(d, horizon, missed[d, False] / runs, missed[d, True] / runs) for d in DELTAS]


# --------------------------------------------------------------------------- Theorem 2

#: Three good peers, three bad ones; every gap is wide enough for 50 000 rounds to show the rate.
PEERS = (0.9, 0.7, 0.6, 0.2, 0.15, 0.1)
HORIZONS = (500, 1_581, 5_000, 15_811, 50_000)
SCHEDULES = (Epsilon("constant", 0.1), Epsilon("inv_sqrt_horizon", 5.0), Epsilon("c_over_t", 5.0))
#: The printed theorem, the constant that belongs to gamma, and the gaps that belong to the slots.
BOUNDS: dict[str, tuple[Constant, Gaps]] = {
    "printed": ("printed", "best"),
    "constant": ("gamma", "best"),
    "slots": ("gamma", "slots"),
}


@dataclass(frozen=True)
class Regret:
    """Measured regret of one setting at rounds ``at``, beside the three bounds.

    slope: d log regret / d log T over the last decade. crossed: per bound, the first round at which the mean
    regret lies above it. worst: the largest ratio of regret to bound.
    """

    study: str
    means: tuple[float, ...]
    slots: int
    gamma: float
    epsilon: Epsilon
    at: NDArray[np.int64]
    mean: Floats
    error: Floats
    bounds: dict[str, Floats]
    slope: float
    crossed: dict[str, int | None]
    worst: dict[str, float]
    pulls: Floats


def _regret(study: str, bandit: Bandit, at: NDArray[np.int64], runs: Floats, pulls: Floats) -> Regret:
    """runs: (replicates, rounds)."""
    mean = runs.mean(axis=0)
    of = functools.partial(guarantees.regret_bound, bandit.means, at, slots=bandit.slots, gamma=bandit.gamma)
    bounds = {
        name: of(epsilon=bandit.epsilon, constant=constant, gaps=gaps).total
        for name, (constant, gaps) in BOUNDS.items()
    }
    late = at >= at[-1] / 10.5  # the last decade, with room for rounding
    slope = float(np.polyfit(np.log(at[late]), np.log(np.maximum(mean[late], 1e-9)), 1)[0])
    above = {name: mean > bound for name, bound in bounds.items()}
    crossed = {name: int(at[np.argmax(a)]) if a.any() else None for name, a in above.items()}
    worst = {name: float((mean / bound).max()) for name, bound in bounds.items()}
    error = runs.std(axis=0, ddof=1) / math.sqrt(len(runs))
    setting = (study, bandit.means, bandit.slots, bandit.gamma, bandit.epsilon)
    return Regret(*setting, at, mean, error, bounds, slope, crossed, worst, pulls)


def _gather(study: str, outcomes: list[BanditRun]) -> list[Regret]:
    """One row per setting; the runs of a schedule that depends on the horizon are one curve over horizons."""
    rows = []
    families: dict[tuple[object, ...], list[BanditRun]] = {}
    for each in outcomes:
        b = each.bandit
        if b.epsilon.schedule == "inv_sqrt_horizon":
            families.setdefault((b.means, b.slots, b.gamma, b.epsilon), []).append(each)
        else:
            rows.append(_regret(study, b, each.at, each.regret, each.pulls.mean(axis=0)))
    for family in families.values():
        family.sort(key=lambda o: o.bandit.horizon)
        at = np.array([o.bandit.horizon for o in family])
        runs = np.stack([o.regret[:, -1] for o in family], axis=1)
        rows.append(_regret(study, family[-1].bandit, at, runs, family[-1].pulls.mean(axis=0)))
    return rows


def regret_of_schedules(seed: int, replicates: int = 16) -> list[Regret]:
    """Three schedules of exploration, two exploration weights, one and three slots."""
    bandits = [
        Bandit(PEERS, horizon, slots, gamma, epsilon)
        for slots in (1, 3)
        for gamma in (1.0, GAMMA)
        for epsilon in SCHEDULES
        for horizon in (HORIZONS if epsilon.schedule == "inv_sqrt_horizon" else HORIZONS[-1:])
    ]
    return _gather("schedules", play(bandits, replicates, seed, "schedules"))


def regret_by_gamma(seed: int, replicates: int = 32) -> list[Regret]:
    """Two peers, no random swaps: where the printed constant is crossed as gamma grows."""
    none = Epsilon("constant", 0.0)
    bandits = [Bandit((0.9, 0.1), 20_000, 1, g, none) for g in (0.25, 0.5, 1.0, GAMMA, 2.0, 2.5, 3.0)]
    return _gather("gamma", play(bandits, replicates, seed, "gamma"))


def regret_of_slots(seed: int, replicates: int = 8) -> list[Regret]:
    """Two slots, one excellent peer and four nearly useless ones: gaps to the best peer mislead."""
    none = Epsilon("constant", 0.0)
    bandits = [Bandit((1.0, 0.03, 0.0, 0.0, 0.0), 120_000, 2, gamma, none) for gamma in (1.0, GAMMA)]
    return _gather("slots", play(bandits, replicates, seed, "slots"))


def regret_of_refusals(seed: int, replicates: int = 32) -> list[Regret]:
    """The best peer is willing in half of the rounds: refusals are paid for by worse partners."""
    eps = Epsilon("c_over_t", 5.0)
    bandits = [Bandit((0.8, 0.4), 10_000, 1, GAMMA, eps, accepts=(q, 1.0)) for q in (1.0, 0.5)]
    return _gather("refusals", play(bandits, replicates, seed, "refusals"))


# --------------------------------------------------------------------------- Lemma 1

TRANSITION_ROUNDS = (50, 200, 1_000, 5_000)
TRANSITION_GAMMAS = (GAMMA, 1.0, 0.5, 0.25)
TRANSITION_UTILITIES = np.round(np.arange(0.0, 0.7001, 0.02), 2)


@dataclass(frozen=True)
class Transition:
    """From collaborating to resting as the peer's utility falls, for one gamma and number of rounds.

    would_rest: P(score < threshold) if the peer was met in every round before (exact). rested: share of the
    rounds that a center rested that follows the score (simulated). half: where would_rest is one half.
    """

    gamma: float
    rounds: int
    utility: Floats
    would_rest: Floats
    rested: Floats
    half: float | None


def transition(seed: int, replicates: int = 40) -> list[Transition]:
    """The lemma's oracle rests below c_neg = 0.5; this is where the score does."""
    rng = _generator(seed, "transition")
    utilities, horizon = TRANSITION_UTILITIES, TRANSITION_ROUNDS[-1]
    gamma = np.repeat(TRANSITION_GAMMAS, utilities.size * replicates)
    mu = np.tile(np.repeat(utilities, replicates), len(TRANSITION_GAMMAS))
    total, count, rested = np.zeros(mu.size), np.zeros(mu.size), np.zeros(mu.size)
    shares = {}
    for t in range(1, horizon + 1):
        rest = guarantees.posterior_mean(total, count) + gamma * selection.radius(count, t, 1.0) < 0.5
        met = ~rest
        total += met & (rng.random(mu.size) < mu)
        count += met
        rested += rest
        if t in TRANSITION_ROUNDS:
            shares[t] = (rested / t).reshape(len(TRANSITION_GAMMAS), utilities.size, replicates).mean(axis=2)
    rows = []
    for g, weight in enumerate(TRANSITION_GAMMAS):
        for t in TRANSITION_ROUNDS:
            sums = np.arange(t)
            below = guarantees.score(sums, t - 1, t, weight) < 0.5
            would = binom.pmf(sums, t - 1, utilities[:, None])[:, below].sum(axis=1)
            rows.append(Transition(weight, t, utilities, would, shares[t][g], _half(utilities, would)))
    return rows


def _half(utility: Floats, probability: Floats) -> float | None:
    """Where a falling curve crosses one half, by interpolation."""
    over = np.flatnonzero(probability >= 0.5)
    if over.size == 0 or over[-1] + 1 == utility.size:
        return None
    i = over[-1]
    share = (probability[i] - 0.5) / (probability[i] - probability[i + 1])
    return float(utility[i] + share * (utility[i + 1] - utility[i]))


# --------------------------------------------------------------------------- the filter


@dataclass(frozen=True)
class FilterLoss:
    """P(the filter removes the best peer), for one relation of usefulness to descriptors."""

    relation: str
    lost: float


def filter_losses(
    seed: int,
    replicates: int = 2_000,
    centers: int = 230,
    keep: float = 0.25,
) -> list[FilterLoss]:
    """Keep the most similar quarter of the peers; usefulness is 1-Lipschitz in the descriptor each time."""
    rng = _generator(seed, "filter")
    lost = {"useful because similar": 0, "useful for a reason of its own": 0, "useful because different": 0}
    kept = round(keep * (centers - 1))
    for _ in range(replicates):
        peers, own, ideal = rng.random((centers - 1, 3)), rng.random(3), rng.random(3)
        distance = np.linalg.norm(peers - own, axis=1)
        passes = np.zeros(centers - 1, bool)
        passes[np.argsort(distance)[:kept]] = True
        utilities = (-distance, -np.linalg.norm(peers - ideal, axis=1), distance)
        for relation, utility in zip(lost, utilities, strict=True):
            lost[relation] += not passes[np.argmax(utility)]
    return [FilterLoss(relation, times / replicates) for relation, times in lost.items()]


# --------------------------------------------------------------------------- verdicts

#: holds: never contradicted. unproven: not contradicted, but its proof does not give it. fails: contradicted.
Verdict = Literal["holds", "unproven", "fails"]


@dataclass(frozen=True)
class Claim:
    """A statement, what was found, and what follows for it."""

    name: str
    statement: str
    found: str
    verdict: Verdict


@dataclass(frozen=True)
class TheoryResults:
    seed: int
    coverage: list[Coverage]
    monitoring: list[Monitoring]
    regret: list[Regret]
    transition: list[Transition]
    filter_losses: list[FilterLoss]
    claims: list[Claim]


def check(seed: int, progress: Callable[[str, float], None] = lambda study, share: None) -> TheoryResults:
    """Run every study. ``progress`` is called with the name of a study and the share of it that is done."""

    def of(name: str, study: Callable[[int], list[Any]]) -> list[Any]:
        progress(name, 0.0)
        found = study(seed)
        progress(name, 1.0)
        return found

    covered = of("Theorem 1: coverage", coverage)
    watched = of("Theorem 1: looked at in every round", monitoring)
    measured = [
        *of("Theorem 2: schedules, slots", regret_of_schedules),
        *of("Theorem 2: exploration weights", regret_by_gamma),
        *of("Theorem 2: gaps of several slots", regret_of_slots),
        *of("Theorem 2: refusals", regret_of_refusals),
    ]
    moved, filtered = of("Lemma 1: transition", transition), of("Filter", filter_losses)
    claims = [*about_beliefs(covered, watched), *about_regret(measured), *about_resting(moved)]
    claims += about_the_filter(filtered)
    return TheoryResults(seed, covered, watched, measured, moved, filtered, claims)


@functools.cache
def _texts() -> dict[str, dict[str, str]]:
    return tomllib.loads((Path(__file__).parent / "theory_claims.toml").read_text(encoding="utf-8"))


def _claim(key: str, true: bool | Verdict, **found: Any) -> Claim:
    text = _texts()[key]
    verdict: Verdict = ("holds" if true else "fails") if isinstance(true, bool | np.bool_) else true
    return Claim(text["name"], text["statement"], text["found"].format(**found), verdict)


def _of(regret: list[Regret], study: str, gamma: float | None = None) -> list[Regret]:
    return [r for r in regret if r.study == study and (gamma is None or r.gamma == gamma)]


def about_beliefs(covered: list[Coverage], watched: list[Monitoring]) -> list[Claim]:
    worst = max(covered, key=lambda c: c.violations / c.delta)
    reach, ratio = max(c.reach for c in covered), worst.violations / worst.delta
    within = all(c.violations <= c.delta for c in covered)
    shown = max(watched, key=lambda m: m.fixed / m.delta)
    always = all(m.fixed <= m.delta for m in watched)
    return [
        _claim("coverage", within, cells=len(covered), worst=worst, ratio=ratio, reach=reach),
        _claim("monitoring", always, m=shown),
    ]


def about_regret(regret: list[Regret]) -> list[Claim]:
    """Theorem 2: its constant, its slots, its schedule of exploration, and what it assumes."""
    (in_use,) = _of(regret, "gamma", GAMMA)
    above = [
        f"γ = {r.gamma:g} at T = {r.crossed['printed']}" for r in _of(regret, "gamma") if r.crossed["printed"]
    ]
    proven = [r for r in regret if np.isfinite(r.bounds["constant"]).all()]
    open_ = sorted({r.gamma for r in regret} - {r.gamma for r in proven})
    grid = [r for r in proven if r.study in ("schedules", "gamma")]
    (one,), (two,) = _of(regret, "slots", 1.0), _of(regret, "slots", GAMMA)
    filled = [r for r in regret if r.study != "refusals" and np.isfinite(r.bounds["slots"]).all()]
    slope = {r.epsilon.schedule: r.slope for r in _of(regret, "schedules", GAMMA) if r.slots == 1}
    swaps = guarantees.Epsilon("inv_sqrt_horizon", 5.0)
    growth = swaps.total(10**6) / swaps.total(10**4)  # a logarithm would give 1.5
    always, sometimes = _of(regret, "refusals")
    first = guarantees.first_informative_round(np.linspace(0.4, 0.6, 229))
    horizon, pulls = int(in_use.at[-1]), float(in_use.pulls[1])
    radius = float(selection.radius(pulls, horizon, GAMMA))
    return [
        _claim(
            "constant", "fails" if in_use.crossed["printed"] else "unproven",
            constant=guarantees.leading_constant(GAMMA), worst=in_use.worst["printed"],
            above=", ".join(above) or "no γ",
        ),
        _claim(
            "corrected_constant", all(r.crossed["constant"] is None for r in grid), settings=len(grid),
            worst=max(r.worst["constant"] for r in grid), open=", ".join(f"{g:g}" for g in open_),
        ),
        _claim(
            "slots", one.crossed["constant"] is None and two.crossed["printed"] is None, one=one, two=two,
            last=one.at[-1],
        ),
        _claim(
            "corrected_slots", all(r.crossed["slots"] is None for r in filled), settings=len(filled),
            worst=max(r.worst["slots"] for r in filled),
        ),
        _claim("schedule", growth < 2.0, slope=slope, growth=growth),
        _claim(
            "refusals", sometimes.crossed["constant"] is None, always=always, sometimes=sometimes,
            lost=(always.mean[-1], sometimes.mean[-1]), last=always.at[-1],
        ),
        _claim("experiment", first is not None and first <= 50, first=first),
        _claim("radius", radius < 0.1, pulls=pulls, horizon=horizon, radius=radius),
    ]  # fmt: skip


def about_resting(moved: list[Transition]) -> list[Claim]:
    harm, believed = guarantees.clipped_mean(*guarantees.HARMFUL_YET_ACCEPTED)
    help_, rejected = guarantees.clipped_mean(*guarantees.HELPFUL_YET_REJECTED)
    c_neg = guarantees.negative_transfer_threshold()
    expected, slack = [-0.01, -0.01], 0.02
    rested = next(m for m in moved if m.gamma == GAMMA and m.rounds == 50).rested[0]
    first = guarantees.first_rejection
    rounds = (first(), first(1.0), first(0.5), first(value=0.4))
    wins = all(guarantees.untried_wins(t, n) for t in range(2, 51) for n in range(1, t))
    at = {m.gamma: m for m in moved if m.rounds == 5000}
    width = math.sqrt(math.log(2 / 0.05) / (2 * 5000))
    where = ", ".join(f"{m.half:.3f} at γ = {g:.3g}" for g, m in at.items() if m.half is not None)
    return [
        _claim(
            "clipping", not (harm < 0 and believed > c_neg), harm=harm, believed=believed, c_neg=c_neg,
            help=help_, rejected=rejected,
        ),
        _claim("shapley", guarantees.rest_dominates(expected, slack), total=sum(expected) + 2 * slack),
        _claim("fifty_rounds", rested > 0, lowest=guarantees.lowest_ucb(50), first=rounds, rested=rested),
        _claim("ranking" if wins else "ranking_possible", not wins),
        _claim("transition", abs((at[GAMMA].half or 0.0) - 0.5) <= width, where=where, width=width),
    ]  # fmt: skip


def about_the_filter(filtered: list[FilterLoss]) -> list[Claim]:
    lost = "; ".join(f"{each.relation}: lost in {each.lost:.1%}" for each in filtered)
    return [_claim("filter", all(each.lost < 1e-3 for each in filtered), lost=lost)]
