"""Run a method on a federation, in one process, all centers at once.

``engine="debug"`` runs the same method with one center at a time, a plain ``nn.Module`` and a plain
optimiser: slow, easy to step through, the same answers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError, nearest
from abps.data.federation import Federation, groups_of
from abps.data.prepare import Prepared, prepare
from abps.data.split import assign_folds, fold_split
from abps.engine import checkpoint as checkpoints
from abps.engine.partners import partners_of
from abps.engine.result import Run, RunArtifacts, bytes_of, evaluated
from abps.engine.rounds import RunState
from abps.engine.track import RoundReport, Track, row_scores
from abps.methods.accounting import counting_of, with_noise
from abps.methods.accounting import ledger as ledger_of
from abps.methods.base import Context, Method
from abps.methods.catalog import name_of
from abps.methods.settings import configure, describe
from abps.models.layout import ModelFactory
from abps.models.learners import learner_for
from abps.models.metrics import mean_over_centers
from abps.models.threads import BLAS
from abps.registry import imported

ENGINES = ("simulate", "debug")

#: Called after every round with (round, rounds at most, mean validation AUROC).
Progress = Callable[[int, int, float], None]

#: A metric of one's own: (labels, predictions) of a center's test rows to a number. Predictions are
#: probabilities of a binary outcome, else what the model says in the outcome's own terms.
Metric = Callable[[Any, Any], float]


class RunOptions(TypedDict, total=False):
    """What few runs need.

    engine: ``simulate``, or ``debug`` (one center at a time).
    device: where PyTorch trains and predicts: cpu, cuda, cuda:1, mps, or auto (a GPU where there is one).
    Devices round differently, so the result names the device.
    name: what the result calls the method; default: its catalog name, or the configuration's class.
    attack: members that attack, as ``"sign-flip:share=0.2"`` (:mod:`abps.lab.attacks`).
    subgroups: columns by which accuracy is split, besides sex and age where they are found.
    metrics: further metrics by name; the result has them in ``measures``.
    progress: called after every round with (round, rounds at most, mean validation score).
    callback: called after every round with a :class:`abps.engine.track.RoundReport`; true ends the run.
    warm_start: an earlier run, or models (centers, P), to start from instead of the common start.
    checkpoint: a file that keeps the run after every round; where it is there, the run goes on from it.
    """

    engine: str
    device: str
    name: str | None
    attack: str | None
    subgroups: Sequence[str]
    metrics: Mapping[str, Metric]
    progress: Progress | None
    callback: Callable[[RoundReport], bool | None] | None
    warm_start: Run | NDArray[np.float32] | None
    checkpoint: str | Path | None


def simulate(
    federation: Federation | Prepared,
    method: str | Method,
    seed: int = 11,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    model: str | ModelFactory | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Run one method with one seed.

    federation: a :class:`Federation`, or one already prepared for this seed.
    method: a name of the catalog, or a configuration (also of a method of one's own).
    model: a name (mlp, linear, gam), ``package.module:FACTORY``, or a function that builds a
    ``torch.nn.Module`` for a number of inputs; default: the method's own, the paper's MLP for most.
    options: see :class:`RunOptions`.
    """
    began = time.perf_counter()
    request = _request(federation, method, seed, rounds, settings, model, options)
    context, attackers = _context(request, _rows(request))
    # A core each: on products this small threads would wait for each other, and round otherwise.
    with BLAS.limit(limits=1):
        run = _result(request, *_play(request, context, attackers))
    return replace(run, seconds=round(time.perf_counter() - began, 3))


@dataclass(frozen=True, eq=False)
class _Request:
    """A run as it was asked for, checked.  parts: by column, the subgroup of every row."""

    federation: Federation | Prepared
    config: Method
    name: str
    seed: int
    parts: Mapping[str, list[str | None]]
    options: RunOptions


def _request(
    federation: Federation | Prepared,
    method: str | Method,
    seed: int,
    rounds: int | None,
    settings: Mapping[str, Any] | None,
    model: str | ModelFactory | None,
    options: RunOptions,
) -> _Request:
    known = RunOptions.__annotations__
    for word in options:
        if word not in known:
            raise TypeError(f"simulate() has no argument {word!r}{nearest(word, known)}")
    engine = options.get("engine", "simulate")
    if not isinstance(federation, Federation | Prepared):
        raise RequestError(
            f"simulate() got a {type(federation).__name__} as its federation; make one with abps.load(…), "
            "abps.read_table(…) or abps.federation(…)"
        )
    if seed < 0:
        raise RequestError(f"seed={seed}: choose a whole number from 0")
    if engine not in ENGINES:
        raise RequestError(f"engine={engine!r}: choose {' or '.join(ENGINES)}")
    parts = _parts(federation, options.get("subgroups", ()))
    chosen = ({} if model is None else {"model": model}) | dict(settings or {})
    return _Request(
        federation,
        with_noise(configure(method, chosen, rounds)),
        options.get("name") or (method if isinstance(method, str) else name_of(method)),
        seed,
        parts,
        options,
    )


def _parts(federation: Federation | Prepared, columns: Sequence[str]) -> dict[str, list[str | None]]:
    if isinstance(federation, Federation) and federation.outcome.binary:
        return groups_of(federation, columns)
    if columns:
        raise RequestError(
            f"subgroups {', '.join(columns)} need a binary outcome, and a federation instead of rows "
            "already prepared; leave them out"
        )
    return {}


def _rows(request: _Request) -> Prepared:
    """The federation as numbers, as the method wants them."""
    federation, config, seed = request.federation, request.config, request.seed
    if isinstance(federation, Federation):
        return shared_rows(federation, seed, config)[0]
    how, min_cell = config.training, config.privacy.min_cell
    book = federation.book
    made = "own" if book is None or book.statistics is None else "common"
    if book is not None and (made, federation.splines) != (how.standardise, how.splines):
        raise RequestError(
            f"{federation.name} was not prepared with standardise={how.standardise!r}, "
            f"splines={how.splines}, as the model needs it; prepare it so, or give the federation itself"
        )
    if federation.min_cell < min_cell:
        raise RequestError(
            f"{federation.name} has min_cell={federation.min_cell}, not {min_cell}; prepare it so, or give "
            "the federation itself"
        )
    return federation


def _context(request: _Request, data: Prepared) -> tuple[Context, Any]:
    """What the method knows before the first round, and who attacks."""
    config, seed = request.config, request.seed
    if not data.outcome.binary and config.only_binary:
        raise RequestError(f"{request.name} with an outcome of {data.outcome.kind}: {config.only_binary}")
    ids = streams.center_ids(data.centers)
    attack, plain = request.options.get("attack"), request.options.get("engine") == "debug"
    attackers = None if attack is None else imported("abps.lab.attacks:attackers_of")(attack, seed, ids)
    if attackers is not None:
        data = attackers.attack.on_rows(data, attackers.who)
    device = request.options.get("device", "cpu")
    learner = learner_for(data, config.training, seed, plain=plain, device=device)
    return Context(learner, data, ids, seed, config.stop.rounds), attackers


def _play(request: _Request, context: Context, attackers: Any) -> tuple[RunState, Any, Track]:
    """All rounds, until the last or until the method or a callback stops: the run, the method's state that is
    evaluated, and what was noted."""
    config, options = request.config, request.options
    state, track = RunState.start(config, context, attackers), Track(context.data.centers)
    start = options.get("warm_start")
    if start is not None:
        state = _warmed(state, start.models if isinstance(start, Run) else start)
    best, done, keep = state.state, 0, options.get("checkpoint")
    run = "" if keep is None else checkpoints.identity(state, request.federation.about(), request.name)
    if keep is not None:
        state, best, done = checkpoints.read(Path(keep), run, state, track)
    progress, callback = options.get("progress"), options.get("callback")
    for t in range(done + 1, config.stop.rounds + 1):
        if t > 1 and (config.stop.over(t - 1, track.record.best) or config.finished(state.state)):
            break
        state, result = state.round(t)
        if track.add(state, result):
            best = state.state
        if keep is not None:
            checkpoints.write(Path(keep), run, state, best, track)
        if progress is not None:
            progress(t, config.stop.rounds, mean_over_centers(track.record.validation[-1])[0])
        if callback is not None and callback(track.report(state, config.stop.rounds)):
            break
    return state, best if config.stop.restore_best else state.state, track


def _warmed(state: RunState, models: NDArray[np.float32] | None) -> RunState:
    """A run whose centers start from these models: (centers, P), or (1, P) for all."""
    own = getattr(state.state, "models", None)
    if models is None or own is None or state.method.fitted:
        why = "that run has no models" if models is None else "this method is fitted without a start"
        raise RequestError(f"warm_start: {why}; leave warm_start out")
    if models.shape[1:] != own.shape[1:] or len(models) not in (1, len(own)):
        raise RequestError(
            f"warm_start has models of shape {models.shape}, and the run needs {own.shape}; use the same "
            "federation, model and columns"
        )
    given = np.broadcast_to(models, own.shape).astype(own.dtype)
    return replace(state, state=replace(state.state, models=np.ascontiguousarray(given)))


def _result(request: _Request, state: RunState, final: Any, track: Track) -> Run:
    config, context, data = request.config, state.context, state.context.data
    logits = config.logits(context, final, data.test)
    judged = config.logits(context, final, data.validation) if data.outcome.binary else None
    attackers, decisions = state.attackers, track.decisions()
    fields, seen = evaluated(
        data,
        logits,
        judged,
        mean_over_centers(track.record.test[track.record.best - 1])[0],
        None if attackers is None else ~attackers.who,
        request.parts,
        request.options.get("metrics", {}),
    )
    return Run(
        method=request.name,
        seed=request.seed,
        rounds=track.rounds,
        data=replace(request.federation.about(), features=data.width),
        config=describe(config),
        device=getattr(context.learner, "device", "cpu"),
        attack="" if attackers is None else str(attackers.attack),
        **fields,
        bytes=bytes_of(data, state.ledger.spent),
        cost_usd=state.ledger.spent.usd,
        partners_mean=float(np.mean(track.record.partners)),
        rest=track.rest_shares(),
        history=track.history(state.ledger.rounds),
        seconds=0.0,
        partners=partners_of(decisions),
        artifacts=RunArtifacts(
            decisions=decisions,
            scores=row_scores(data.test, logits),
            centers=track.center_history(),
            models=getattr(final, "models", None),
            state=final,
            beliefs=config.beliefs(final),
            answers=logits,
            probabilities=seen,
            privacy=None if state.spending is None else ledger_of(config, context, state.spending),
        ),
    )


# ---------------------------------------------------------------- rows that several runs share

#: Bytes of the preparations that are kept, the last used ones.
MOST_BYTES: Final = 400_000_000

_HELD: Final[dict[tuple[Any, ...], list[Prepared]]] = {}


def shared_rows(federation: Federation, seed: int, config: Method, folds: int = 0) -> list[Prepared]:
    """The federation as a method wants it prepared: in the split of a seed, or with each of so many folds as
    its test rows in turn."""
    how: dict[str, Any] = {"standardise": config.training.standardise, "splines": config.training.splines}
    how |= {"min_cell": config.privacy.min_cell, "histograms": counting_of(config, seed)}
    key = (federation.fingerprint(), federation.name, seed, folds, *how.values())
    found = _HELD.pop(key, None)
    if found is None and folds:
        fold = assign_folds(federation, seed, folds)
        # All folds on one time grid and one scale, so that their answers can stand side by side.
        agreed = replace(federation, outcome=federation.outcome.settled(federation.label))
        found = [prepare(agreed, seed, split=fold_split(fold, k, folds), **how) for k in range(folds)]
    _HELD[key] = found or [prepare(federation, seed, **how)]  # the last one used goes last
    while len(_HELD) > 1 and sum(map(_size, _HELD.values())) > MOST_BYTES:
        del _HELD[next(iter(_HELD))]
    return _HELD[key]


def _size(parts: list[Prepared]) -> int:
    return sum(rows.x.nbytes for part in parts for rows in (part.train, part.validation, part.test))
