"""Choosing without peeking: the penalty by validation rows, and a last fit on all rows that may be seen.

The federation tries penalties in short runs beside each other. Every center tells the mean loss on its
validation rows, four bytes a penalty, and the penalty with the lowest mean over centers is taken; test rows
are not looked at. What was sent in the other short runs is paid for: the one that is taken goes on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from abps.core.errors import RequestError
from abps.core.ledger import Ledger, Traffic
from abps.engine.attacks import Siege
from abps.engine.rounds import Course
from abps.methods.base import Choosing, Method, World
from abps.models.metrics import labels_of, log_loss, mean_over_centers


def with_penalty(config: Method, world: World, penalty: float) -> tuple[Method, World]:
    """The method with a penalty, and a world that learns with it."""
    training = replace(config.training, weight_decay=penalty)
    # The learners are dataclasses of data, training and seed.
    learner = replace(world.learner, training=training)  # type: ignore[type-var]
    return replace(config, training=training), replace(world, learner=learner)


def validation_loss(course: Course) -> float:
    """The mean over centers of the loss on validation rows."""
    rows = course.world.data.validation
    logits = course.method.logits(course.world, course.state, rows)
    return mean_over_centers(log_loss(logits, labels_of(rows)))[0]


def tried(config: Method, world: World, siege: Siege | None) -> tuple[Method, World, Traffic]:
    """The method with the penalty that validation rows prefer, its world, and what the choice took beyond the
    run itself."""
    penalties, rounds = config.choosing.penalties, min(config.choosing.trial_rounds, world.horizon)
    if config.choosing != Choosing() and Course.start(config, world, siege).spending is not None:
        raise RequestError(
            "penalties and refit read the rows once more, which the account of privacy does not reckon with; "
            "choose without noise, or leave them out"
        )
    if not penalties:
        return config, world, Traffic()
    losses, spent = [], []
    for penalty in penalties:
        course = Course.start(*with_penalty(config, world, penalty), siege)
        begun = course.ledger.spent
        for t in range(1, rounds + 1):
            course, _ = course.round(t)
        losses.append(validation_loss(course))
        spent.append(_without(course.ledger.spent, begun))
    if np.isnan(losses).all():
        raise RequestError(
            "penalties: no center has validation rows of both outcomes; set weight_decay instead"
        )
    best = int(np.nanargmin(losses))
    others = [traffic for k, traffic in enumerate(spent) if k != best]
    told = Traffic(control=4 * world.n * len(penalties))
    return *with_penalty(config, world, penalties[best]), sum(others, told)


def refitted(course: Course, rounds: int, siege: Siege | None) -> Course:
    """So many rounds anew, on training and validation rows; both runs are paid for."""
    world = course.world
    data = replace(world.data, train=world.data.own)
    again = Course.start(course.method, replace(world, data=data, learner=world.learner.on(data)), siege)
    again = replace(again, ledger=Ledger(course.ledger.budget, course.ledger.spent))
    for t in range(1, rounds + 1):
        again, _ = again.round(t)
    return again


def _without(spent: Traffic, part: Traffic) -> Traffic:
    return Traffic(spent.edge - part.edge, spent.directed - part.directed, spent.control - part.control)
