"""What centers tell of their patients at a roll call: scores and slopes, sums over training rows.

A *score* (:mod:`abps.lab.spectrum`) says in which direction a center's patients want the common model to
change, one number a column; it tells who is like whom. A *slope* is that of the mean training loss, one
number a shared weight; it tells what all want together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError
from abps.data.prepare import Prepared, Rows
from abps.lab import spectrum
from abps.methods.base import Floats, Ints, World
from abps.models import outcomes
from abps.privacy.noise import clip_rows
from abps.privacy.small_counts import without_small
from abps.tensors import Tensor
from abps.wire.numerals import Form, Stretch


def score_columns(names: tuple[str, ...]) -> list[int]:
    """The columns that scores are told of: each encoded column once, of smooth terms the first, which is
    nearly the column itself."""
    return [k for k, name in enumerate(names) if "~" not in name or name.endswith(" ~1")]


def categories(data: Prepared) -> Ints:
    """(columns,) of which category every encoded column is a level; -1 of others."""
    known = () if data.book is None else data.book.columns
    source = {column.name: column.source for column in known if column.kind == "level"}
    numbers = {name: k for k, name in enumerate(dict.fromkeys(source.values()))}
    return np.array([numbers.get(source.get(name, ""), -1) for name in data.columns], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Told:
    """Scores as they are told: values (r, entries), columns and null draws of each, and how it is written."""

    values: Floats
    columns: int
    draws: int
    form: Form


def scores(world: World, models: Tensor, reference: Tensor, t: int, least: int, noise: float = 0.0) -> Told:
    """What the centers here tell of their patients at the common model, under their own private layers.

    least: a center with fewer positive or negative rows tells nothing.
    A row: information, score, null draws and the public vector. A null draw takes a byte for each column, and
    a scale of two.
    noise: standard deviation over sensitivity of what is added to all of it, in a private run; the public
    vector is then not told.
    """
    columns, outcome = score_columns(world.data.columns), world.data.outcome
    k, count, rows = len(columns) * len(outcome.mix), spectrum.draws(world.n), world.data.train
    common = models.clone()
    common[:, : len(reference)] = reference
    offset = world.learner.logits(common, rows).values.astype(np.float64)
    told = np.zeros((world.r, 1 + k * (1 + count)))
    positives, groups = rows.positives(), categories(world.data)[columns]
    for i in range(world.r):
        mine = slice(int(rows.start[i]), int(rows.start[i + 1]))
        floor = int(world.data.least[i]) if world.data.floor else 0
        if noise:
            center = int(world.ids[world.here[i]])
            told[i] = noisy_scores(world, rows.only(i), columns, offset[mine], count, t, center, noise)
            continue
        if min(positives[i], rows.sizes[i] - positives[i]) < max(least, floor):
            continue
        x = rows.x[mine][:, columns].astype(np.float64)
        if floor:
            x = without_small(x, outcome.events(rows.y[mine]).astype(np.float64), floor, groups)
        # Who knew the signs could solve for single rows: between sites nobody else knows the secret.
        stream = streams.generator(world.seed + world.secret, "null", t, int(world.ids[world.here[i]]))
        signs = np.where(stream.integers(0, 2, size=(count, len(x))) > 0, 1.0, -1.0)
        y = rows.y[mine].astype(np.float64)
        if outcome.binary:
            score, null, information = spectrum.score(x, y, offset[mine], signs)
        else:
            residual, weight = outcomes.residuals(outcome, offset[mine], y)
            score, null, information = spectrum.mixed_score(x, residual, weight, outcome.mix, signs)
        told[i] = np.concatenate([[information], score, null.ravel()])
    public = np.zeros_like(world.data.metadata) if noise else world.data.metadata
    form = (
        Stretch("single", 1),
        Stretch("half", k),
        Stretch("small", k, count),
        Stretch("half", public.shape[1]),
    )
    return Told(np.concatenate([told, public], axis=1), k, count, form)


def noisy_scores(
    world: World,
    rows: Rows,
    columns: list[int],
    offset: Floats,
    draws: int,
    t: int,
    center: int,
    noise: float,
) -> Floats:
    """(entries,) information, score and null draws of one center as a Gaussian mechanism.

    A row's part in the score is cut to the length 1, and so is it in every null draw, and a squared residual
    is at most 1: all together a row moves by at most the root of 2 + draws. Nothing is centred, and no
    intercept is fitted: both would depend on all rows at once.
    """
    outcome = world.data.outcome
    if not outcome.binary:
        raise RequestError("dp_epsilon: scores of roll calls are private for binary outcomes only")
    x, y = rows.x[:, columns].astype(np.float64), rows.y.astype(np.float64)
    from scipy.special import expit  # loaded where it is used: a site's process is the smaller

    residual = y - expit(offset)
    parts = clip_rows(x * residual[:, None], 1.0)
    stream = streams.generator(world.seed + world.secret, "null", t, center)
    signs = np.where(stream.integers(0, 2, size=(len(x), draws)).T > 0, 1.0, -1.0)  # a row has its own
    told = np.concatenate([[residual @ residual], parts.sum(axis=0), (signs @ parts).ravel()])
    hidden = streams.generator(world.seed + world.secret, "private-noise", -100 - t, center)
    told += noise * np.sqrt(2.0 + draws) * hidden.standard_normal(len(told))
    told[0] = max(told[0], 0.0)
    return told


def told_columns(data: Prepared) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(centers,) which have too few events, or rows without one, to tell sums of them under the floor, and
    (centers, columns) of which columns others may tell: those without a small cell."""
    rows, groups = data.train, categories(data)
    few = np.minimum(rows.positives(), rows.sizes - rows.positives()) < data.least
    told = np.zeros((data.size, rows.x.shape[1]), dtype=bool)
    for i in range(data.size):
        mine = slice(int(rows.start[i]), int(rows.start[i + 1]))
        events = data.outcome.events(rows.y[mine]).astype(np.float64)
        told[i] = without_small(rows.x[mine].astype(np.float64), events, int(data.least[i]), groups).any(
            axis=0
        )
    return np.asarray(few), told


def own_slopes(world: World, models: Tensor, shared: int) -> Floats:
    """(r, shared) the slopes of the centers' mean training losses; nothing of what is of too few patients."""
    slopes = world.learner.gradient(models, world.data.train)[:, :shared].numpy().astype(np.float64)
    if not world.data.floor:
        return slopes
    few, told = told_columns(world.data)
    for i in range(world.r):
        slopes[i] *= 0.0 if few[i] else np.resize(told[i], shared)  # several answers: columns for each
    return slopes
