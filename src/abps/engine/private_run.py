"""A private run: what every center spends, in one account."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from abps.core.errors import RequestError
from abps.data.histograms import PASSES
from abps.methods.accounting import not_covered, published_privately, releases
from abps.methods.base import ROWS, Context, Method
from abps.privacy.budget import Account, PrivacyLedger, Release


@dataclass(frozen=True)
class Spending:
    """What one center has spent; all centers spend the same, because all take the same steps.

    seen: private steps that the learner has taken so far.
    """

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
    if context.data.from_histograms:
        account = account.spend(Release(0, "statistics", noise, times=PASSES))
    published = method.publish(context)
    if not len(published.names):
        return context, Spending(account)
    noisy = np.empty_like(published.vectors)
    for k, place in enumerate(context.local_index):
        noisy[k] = published_privately(context, published, k, int(context.ids[place]), noise)
    account = account.spend(Release(0, "metadata", noise))
    rows = context.reported_rows
    if ROWS in published.names:  # nobody knows more of another's rows than it published
        rows = np.rint(np.exp(noisy[:, published.names.index(ROWS)])).astype(np.float32)
    return replace(context, published=noisy, reported_rows=rows), Spending(account)


def ledger(method: Method, context: Context, spending: Spending) -> PrivacyLedger:
    """All centers' accounts, and what they leave out."""
    return PrivacyLedger(dict.fromkeys(context.data.centers, spending.account), not_covered(method, context))
