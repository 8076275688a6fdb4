"""A private run: how much noise it takes, what every center spends, and what the account does not cover."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from abps.core import streams
from abps.core.errors import RequestError
from abps.methods.base import Method, World
from abps.methods.peers import PeerMethod
from abps.privacy.published import noisy
from abps.privacy.spending import Account, PrivacyLedger, Release, noise_for


def with_noise(method: Method) -> Method:
    """The method with the noise that its budget takes: as it is, where there is no budget, or noise is given.

    All rounds' steps, and one vector that is published, are reckoned with.
    """
    budget, training = method.privacy.budget, method.training
    if budget is None or training.noise_multiplier:
        return method
    if training.clip is None:
        raise RequestError(
            f"dp_epsilon={budget}: rows are protected by private training; set clip, too (1 is a start)"
        )
    steps = method.stop.rounds * training.private_steps(training.epochs)
    plan = {"training": (training.sampling, steps), "metadata": (1.0, 1)}
    noise = noise_for(budget, method.privacy.dp_delta, plan)
    return replace(method, training=replace(training, noise_multiplier=noise))


@dataclass(frozen=True)
class Spending:
    """What one center has spent; all centers spend the same, because all take the same steps.

    seen: private steps that the learner has taken so far.
    """

    account: Account
    seen: int = 0

    def round(self, method: Method, t: int) -> Release:
        """What round t's training releases."""
        training = method.training
        steps = training.private_steps(training.epochs)
        return Release(t, "training", training.noise_multiplier, training.sampling, steps)

    def after(self, method: Method, world: World, t: int) -> Spending:
        """After round t; a method that took more steps than a round has cannot be accounted."""
        release = self.round(method, t)
        steps = sum(world.learner.noisy_steps.values())
        if not 0 < steps - self.seen <= release.times:
            raise RequestError(
                f"dp_epsilon: {steps - self.seen} private steps in round {t}, where {release.times} are "
                "accounted for; choose a method that trains every center once a round"
            )
        return Spending(self.account.spend(release), steps)


def begun(method: Method, world: World) -> tuple[World, Spending | None]:
    """Before the first round: what is published, with noise, and the account that was opened by it."""
    budget = method.privacy.budget
    if budget is None:
        return world, None
    account = Account(budget, method.privacy.dp_delta)
    published = method.publish(world)
    if not len(published.names):
        return world, Spending(account)
    noise = method.training.noise_multiplier
    rows, told = world.data.train.sizes, np.empty_like(published.vectors)
    for k, place in enumerate(world.here):
        stream = streams.generator(world.seed + world.secret, "private-noise", 0, int(world.ids[place]))
        told[k] = noisy(published.names, published.vectors[k], int(rows[k]), noise, stream)
    account = account.spend(Release(0, "metadata", noise))
    return replace(world, bulletin=told), Spending(account)


def ledger(method: Method, world: World, spending: Spending) -> PrivacyLedger:
    """All centers' accounts, and what they leave out."""
    gaps = []
    if method.training.standardise == "common" and world.data.agreed:
        gaps.append(
            "common statistics of numeric columns were told without noise; scales in a codebook need none"
        )
    elif method.training.standardise == "own":
        gaps.append("each center standardises by its own rows, and this is not counted")
    if world.learner.looked:
        gaps.append(
            "the method looks at training rows beside training, and what follows from it is not counted"
        )
    if method.kind != "alone":
        gaps.append("choices that are made on validation rows are not counted; training rows are protected")
    if method.kind not in ("alone", "star") and any(
        cast(PeerMethod, method).questions(t, world.horizon) for t in range(1, world.horizon + 1)
    ):
        gaps.append("answers to roll calls are not counted")
    return PrivacyLedger(dict.fromkeys(world.data.centers, spending.account), tuple(gaps))
