"""What a method spends of a privacy budget: the noise that it takes, what every round releases, and what an
account does not cover. The same for the simulation and for a site."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from abps.core import streams
from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.data.scales import PASSES, HistogramSum, outcome_columns
from abps.methods.base import ROWS, Context, Method
from abps.methods.star import StarMethod
from abps.privacy.budget import Account, PrivacyLedger, Release, noise_for, noisy


def counting_of(method: Method, seed: int) -> HistogramSum:
    """How centers sum the counts for common scales and for the outcome's time grid or level."""
    private = method.privacy.budget is not None
    return HistogramSum(method.privacy.secure, method.training.noise_multiplier if private else 0.0, seed)


def to_count(method: Method, book: Codebook) -> tuple[str, ...]:
    """What sites count under masks before a study, where a codebook does not say it: columns without a common
    scale, and statistics of an outcome that is not settled yet."""
    known = book.statistics or {}
    common = method.training.standardise == "common"
    lacking = [name for name in book.numbers if name not in known] if common else []
    return (*lacking, *outcome_columns(book.outcome))


def checked(method: Method, centers: int) -> None:
    """Raise where a server shall see sums alone, and the method needs more than sums, or nothing is one."""
    if not method.privacy.secure:
        return
    if centers < 3:
        raise RequestError(f"secure=yes: {centers} center(s); with fewer than 3 a sum shows a summand")
    if isinstance(method, StarMethod):
        if method.adds is None or method.noted:
            raise RequestError(
                "secure=yes: this method's server needs more than the sum of what is sent; choose fedavg "
                "with aggregate=mean, or another that averages"
            )
    elif method.kind != "coordinated" and method.training.standardise != "common":
        raise RequestError(
            "secure=yes: nothing of this method is a sum; choose one with a server, or standardise=common"
        )


def with_noise(method: Method) -> Method:
    """The method with the noise that its budget takes for all that is released, unless noise is given."""
    budget, training = method.privacy.budget, method.training
    if budget is None or training.noise_multiplier:
        return method
    if training.clip is None:
        raise RequestError(f"dp_epsilon={budget}: only private training protects rows; set clip (to 1, say)")
    steps = method.stop.rounds * training.private_steps(training.epochs)
    plan = {"training": (training.sampling, steps), "metadata": (1.0, 1)}
    if training.standardise == "common":
        plan["statistics"] = (1.0, PASSES)
    noise = noise_for(budget, method.privacy.dp_delta, plan)
    return replace(method, training=replace(training, noise_multiplier=noise))


def releases(method: Method, t: int) -> tuple[Release, ...]:
    training = method.training
    steps = training.private_steps(training.epochs)
    return (Release(t, "training", training.noise_multiplier, training.sampling, steps),)


def not_covered(method: Method, context: Context) -> tuple[str, ...]:
    gaps = []
    counted = context.data.counted
    if method.training.standardise == "common" and counted is not None and not counted.noise:
        gaps.append("common statistics of numeric columns have no noise; scales in a codebook need none")
    elif method.training.standardise == "own":
        gaps.append("each center standardises by its own rows, and this is not counted")
    gaps.append("names of columns and of category levels in the codebook are not counted")
    if method.kind == "star" or ROWS not in method.publish(context).names:
        gaps.append("numbers of training rows, by which models are averaged, are published without noise")
    if context.learner.looked:
        gaps.append("the method looks at training rows beside training, and this is not counted")
    if method.kind != "alone":
        gaps.append("choices that are made on validation rows are not counted; training rows are protected")
    return tuple(gaps)


# ---------------------------------------------------------------- a private run in a simulation


@dataclass(frozen=True)
class Spending:
    """What one center has spent; all spend the same.  seen: private steps taken so far."""

    account: Account
    seen: int = 0

    def after(self, method: Method, context: Context, t: int) -> Spending:
        """After round t; a method that took more steps than a round has cannot be accounted."""
        planned_releases = releases(method, t)
        steps, planned = sum(context.learner.noisy_steps.values()), planned_releases[-1].times
        if not 0 < steps - self.seen <= planned:
            raise RequestError(
                f"dp_epsilon: {steps - self.seen} private steps in round {t}, where {planned} are "
                "accounted for; choose a method that trains every center once a round"
            )
        return Spending(self.account.spend(*planned_releases), steps)


def begun(method: Method, context: Context) -> tuple[Context, Spending | None]:
    """Before the first round: what is published, with noise, and the account that was opened by it."""
    budget = method.privacy.budget
    if budget is None:
        return context, None
    account, noise = Account(budget, method.privacy.dp_delta), method.training.noise_multiplier
    if context.data.counted is not None:
        account = account.spend(Release(0, "statistics", noise, times=PASSES))
    published = method.publish(context)
    if not len(published.names):
        return context, Spending(account)
    hidden = np.empty_like(published.vectors)
    for k, (center, size) in enumerate(zip(context.ids.tolist(), context.data.train.sizes.tolist())):
        stream = streams.generator(context.seed, "private-noise", 0, center)
        hidden[k] = noisy(published.names, published.vectors[k], size, noise, stream)
    account = account.spend(Release(0, "metadata", noise))
    rows = context.reported_rows
    if ROWS in published.names:  # nobody knows more of another's rows than it published
        rows = np.rint(np.exp(hidden[:, published.names.index(ROWS)])).astype(np.float32)
    return replace(context, published=hidden, reported_rows=rows), Spending(account)


def ledger(method: Method, context: Context, spending: Spending) -> PrivacyLedger:
    return PrivacyLedger(dict.fromkeys(context.data.centers, spending.account), not_covered(method, context))
