"""What a method must do to be run, compared and trusted: checked in short runs on a small federation.

from abps.checks import check_method
check_method(MyMethod())          # raises CheckFailure with one sentence, or returns the checks that passed

Every check is a function of a :class:`MethodTrial` that returns nothing if all is well, or else what is
wrong.
"""

import dataclasses
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.data.prepare import prepare
from abps.engine.result import Run
from abps.engine.rounds import RunState
from abps.engine.simulate import simulate
from abps.methods.base import Context, Method
from abps.methods.settings import names, with_settings
from abps.methods.state_bytes import freeze, thaw
from abps.methods.sum_study import SumStudy
from abps.models.learners import learner_for
from abps.registry import first_line

ROUNDS: Final = 2
SEED: Final = 11
SMALL: Final = {"batch": 32, "hidden": (16, 8)}  # small enough for the plain loop; batches of unequal size

#: How far weights may differ between engines: Adam divides by the gradient, and where that vanishes rounding
#: alone may move a few weights by up to the learning rate.
FEW, FAR, NEAR = 1e-3, 2e-3, 1e-4


def small_federation() -> Federation:
    """Six centers of 40 to 115 stays in two groups, with a category and gaps; the same every time."""
    rng = streams.generator(5, "generate")
    center = np.repeat(np.arange(6), [40, 55, 70, 85, 100, 115]).astype(np.int32)
    x = rng.normal(size=(len(center), 4)) + 0.3 * center[:, None]
    score = x[:, 0] - 0.7 * x[:, 1] + 0.5 * rng.normal(size=len(center))
    gaps = rng.random(len(center)) < 0.1
    ward = np.array(["north", "south", "west"])[rng.integers(0, 3, len(center))]
    features = pl.DataFrame(x, schema=["a", "b", "c", "d"]).with_columns(
        d=pl.Series(np.where(gaps, np.nan, x[:, 3])).fill_nan(None),
        smoker=(rng.random(len(center)) < 0.3).astype(np.int8),
        ward=ward,
    )
    return Federation(
        name="six small centers",
        features=features,
        label=(score > np.quantile(score, 0.7)).astype(np.int8),
        center=center,
        centers=tuple(f"center {i}" for i in range(6)),
        time=(2010.0 + center).astype(np.float64),
        groups=("even", "odd") * 3,
        descriptors=("smoker",),
        in_order=True,
    )


class CheckFailure(RequestError):
    """A method breaks a rule that everything else relies on: which check, and what happened."""

    def __init__(self, what: str, check: str, why: str) -> None:
        super().__init__(f"{what} fails the check {check!r}: {why}")
        self.check, self.why = check, why


@dataclass(frozen=True, eq=False)
class MethodTrial:
    """A method on trial: its configuration with a small network, and where it is tried."""

    config: Method
    federation: Federation

    def run(self, engine: str = "simulate", seed: int = SEED, rounds: int = ROUNDS, **settings: Any) -> Run:
        config = with_settings(self.config, settings) if settings else self.config
        return simulate(self.federation, config, seed, rounds, engine=engine, name="on trial")

    @cached_property
    def once(self) -> Run:
        return self.run()


def settings_have_names(trial: MethodTrial) -> str | None:
    """Settings are fields of a frozen dataclass."""
    config = trial.config
    if not dataclasses.is_dataclass(config) or not type(config).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return "its class is not a frozen dataclass, so that its settings could change under a run"
    missing = [name for name in ("rounds", "lr", "epochs", "batch", "budget") if name not in names(config)]
    if missing:
        return f"it has no setting {missing[0]!r}; derive it from abps.Method and keep its fields"
    return None


def numbers_are_numbers(trial: MethodTrial) -> str | None:
    """Models and metrics are finite."""
    models = _models(trial.once)
    if models.ndim != 2 or len(models) not in (1, trial.federation.size):
        return "its state has no matrix 'models' with a row for every center (or one for all)"
    if not np.isfinite(models).all():
        return "its models hold numbers that are not finite"
    scored = trial.once.auroc.scored_centers == trial.federation.size
    return None if scored else "some predictions are not numbers"


def the_same_twice(trial: MethodTrial) -> str | None:
    """A run is a function of data, configuration and seed."""
    again = trial.run()
    if not np.array_equal(_models(again), _models(trial.once)):
        return "two runs with one seed differ in their models; draw only from abps.core.streams"
    if _content(again) != _content(trial.once) or not again.decisions.equals(trial.once.decisions):
        return "two runs with one seed end with the same models but record different decisions or results"
    return None


def seeds_matter(trial: MethodTrial) -> str | None:
    """Another seed is another run."""
    same = np.array_equal(_models(trial.run(seed=SEED + 1)), _models(trial.once))
    return "another seed gives the same models; use the context's seed in every draw" if same else None


def engines_agree(trial: MethodTrial) -> str | None:
    """One center at a time, with a plain module and optimiser, comes to the same."""
    other = trial.run(engine="debug")
    apart = np.abs(_models(other) - _models(trial.once))
    if (apart > NEAR).mean() >= FEW or apart.max() >= FAR:
        return f"computed one center at a time, weights differ by up to {apart.max():.2g}"
    return "computed one center at a time, it sends other bytes" if other.bytes != trial.once.bytes else None


def order_is_nothing(trial: MethodTrial) -> str | None:
    """Centers may be listed in any order."""
    given = trial.federation
    center, groups = (given.size - 1 - given.center).astype(np.int32), given.groups and given.groups[::-1]
    turned = replace(given, center=center, centers=given.centers[::-1], groups=groups)
    found, wanted = replace(trial, federation=turned).run().auroc.per_center, trial.once.auroc.per_center
    worst = max(abs(found[name] - value) for name, value in wanted.items())
    return f"with centers listed backwards an AUROC changes by {worst:.3f}" if worst > 1e-3 else None


def bytes_add_up(trial: MethodTrial) -> str | None:
    """What is sent is booked, in every round."""
    spent, history = trial.once.bytes, trial.once.history
    if not 0 <= spent.edge <= spent.directed <= 2 * spent.edge + 1:
        return f"{spent.edge} bytes over edges and {spent.directed} one way do not fit together"
    if history.edge_bytes[-1] != spent.edge or list(history.edge_bytes) != sorted(history.edge_bytes):
        return "the bytes of its rounds do not add up to those of the run"
    if trial.config.kind == "alone" and spent.directed:
        return "it says that its centers are alone, and sends bytes"
    rest = trial.once.rest
    causes = rest.no_candidates + rest.all_full + rest.declined + rest.budget + rest.quiet
    return None if abs(rest.share - causes) < 1e-9 else "the causes of rest do not add up to its share"


def a_budget_ends_it(trial: MethodTrial) -> str | None:
    """Nothing is sent beyond the budget, and centers go on alone."""
    first = trial.once.history.edge_bytes[0]
    if not first:
        return None
    run = trial.run(rounds=3, budget=float(first + 1))
    if run.history.edge_bytes != (first, first, first):
        return f"with a budget of {first + 1} bytes it sends {run.bytes.edge}"
    # A round in which the method exchanges nothing anyway does not find out that nothing is left.
    if run.history.rest[1:] != (1.0, 1.0) or abs(run.rest.budget + run.rest.quiet - 2 / 3) > 1e-9:
        return "when its budget is spent its centers do not rest for that cause"
    if np.array_equal(_models(run)[0], _models(run)[1]):
        return "when its budget is spent its centers still have one model"
    return None if np.isfinite(_models(run)).all() else "after its budget its models are not finite"


def it_can_be_written_down(trial: MethodTrial) -> str | None:
    """A result survives its file, and a state the night between two rounds."""
    content = json.loads(json.dumps(trial.once.to_json(), allow_nan=False))
    if Run.from_json(content).to_json() != content:
        return "its result is not the same when read back from its file"
    config = trial.config
    data = prepare(trial.federation, SEED, standardise=config.training.standardise)
    learner = learner_for(data, config.training, SEED)
    context = Context(learner, data, streams.center_ids(data.centers), SEED, ROUNDS)
    state, _ = RunState.start(config, context).round(1)
    try:
        back = thaw(type(state.state), freeze(state.state))
    except (TypeError, ValueError) as error:
        return f"its state cannot be written down: {first_line(error)}"
    return None if freeze(back) == freeze(state.state) else "its state is another one when read back"


def _models(run: Run) -> NDArray[np.float32]:
    """(centers, P), or (1, P); empty if the state has none."""
    return np.zeros(0, dtype=np.float32) if run.models is None else np.asarray(run.models)


def _content(run: Run) -> dict[str, Any]:
    return run.to_json() | {"seconds": 0}


Check = Callable[[MethodTrial], str | None]

#: Every check by the name that failures carry, the cheap ones first.
CHECKS: Final[dict[str, Check]] = {
    check.__name__.replace("_", " "): check
    for check in (
        settings_have_names, numbers_are_numbers, bytes_add_up, the_same_twice, seeds_matter, engines_agree,
        order_is_nothing, a_budget_ends_it, it_can_be_written_down,
    )
}  # fmt: skip

#: The checks that a user's own method passes before it enters a study.
QUICK: Final = ("settings have names", "numbers are numbers", "bytes add up", "the same twice")


def check_method(
    config: Method,
    federation: Federation | None = None,
    skip: Collection[str] = (),
    only: Collection[str] = (),
    name: str = "",
) -> tuple[str, ...]:
    """Check that a method does what everything else relies on.

    federation: where to try it; default: six small centers.  skip, only: names of checks.
    name: what to call it in a failure.
    Returns the names of the checks that it passed; raises :class:`CheckFailure` at the first that fails.
    """
    known = [s for s in SMALL if s in names(config)] if dataclasses.is_dataclass(config) else []
    small = with_settings(config, {key: SMALL[key] for key in known})
    trial = MethodTrial(small, federation if federation is not None else small_federation())
    chosen = [check for check in CHECKS if check not in skip and (not only or check in only)]
    called = name or type(config).__name__
    for check in chosen:
        try:
            why = CHECKS[check](trial)
        except Exception as error:  # whatever a foreign method does wrong is its failure
            raise CheckFailure(called, check, f"{type(error).__name__}: {first_line(error)}") from error
        if why is not None:
            raise CheckFailure(called, check, why)
    return tuple(chosen)


def quick_check(config: Method, name: str = "") -> None:
    """The cheap checks: two short runs."""
    if isinstance(config, SumStudy):
        what = "on one table use abps regress, abps table-one or abps evaluate"
        raise RequestError(f"{name!r} makes statistics between sites and trains no model; {what}")
    check_method(config, only=QUICK, name=name)
