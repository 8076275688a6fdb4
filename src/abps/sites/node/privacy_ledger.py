"""A site's privacy account, in its store: what was spent is written down before anything of it leaves.

It holds every release with its noise, so that ε can be computed again from the file that ``abps site export``
writes.
"""

from __future__ import annotations

import json
import math
from typing import Any

from abps.core.errors import RequestError
from abps.methods.accounting import not_covered, releases
from abps.methods.base import Context, Method
from abps.privacy.budget import Account, PrivacyLedger, Release
from abps.sites.store.store import Store

#: The facts of a store that hold an account, and what it leaves out.
_ACCOUNT, _GAPS = "privacy", "privacy_gaps"


class PrivacyBudget:
    """The account of one study at one site."""

    def __init__(self, store: Store, method: Method) -> None:
        budget = method.privacy.budget
        self._store, self._method = store, method
        known = account_of(store)
        self.account = known or Account(math.inf if budget is None else budget, method.privacy.dp_delta)

    def pays(self, context: Context, round: int) -> bool:
        """Pay for a round, and write it down; False if the account does not afford it."""
        due = releases(self._method, round)
        if not self.account.affords(*due):
            return False
        after = self.account.spend(*due)
        gaps = json.dumps(list(not_covered(self._method, context)))
        self._store.keep(**{_ACCOUNT: json.dumps(after.to_json()), _GAPS: gaps})
        self.account = after
        return True


def pay(store: Store, method: Method, *due: Release) -> None:
    """Pay for what leaves before the study has begun, in a store of its own; the study's account begins with
    it (:func:`inherit`)."""
    budget = method.privacy.budget
    before = account_of(store) or Account(math.inf if budget is None else budget, method.privacy.dp_delta)
    if not before.affords(*due):
        raise RequestError("the privacy account does not afford what the scheduler asks for")
    store.keep(**{_ACCOUNT: json.dumps(before.spend(*due).to_json())})


def inherit(store: Store, before: Account | None) -> None:
    """Let the account of a study begin with what was spent before its first round; once."""
    if before is not None and account_of(store) is None:
        store.keep(**{_ACCOUNT: json.dumps(before.to_json())})


def account_of(store: Store) -> Account | None:
    """The account that a store holds; none of a study without a budget."""
    kept = store.facts().get(_ACCOUNT)
    return None if kept is None else Account.from_json(json.loads(kept))


def ledger_of(store: Store) -> dict[str, Any] | None:
    """The same as a ledger of one center for a file, with the ε that stands in the store."""
    facts = store.facts()
    if _ACCOUNT not in facts:
        return None
    account = Account.from_json(json.loads(facts[_ACCOUNT]))
    ledger = PrivacyLedger({facts["site"]: account}, tuple(json.loads(facts.get(_GAPS, "[]")))).to_json()
    ledger["centers"][facts["site"]]["epsilon"] = json.loads(facts[_ACCOUNT])["epsilon"]
    return ledger
