"""A site's privacy account, in its store: what was spent is written down before anything of it leaves.

It holds every release with its noise, so that ε can be computed again from the file that ``abps site export``
writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from abps.methods.base import Method
from abps.privacy.budget import Account, PrivacyLedger, Release
from abps.sites.store.store import Store

#: The facts of a store that hold an account, and what it leaves out.
_ACCOUNT, _GAPS = "privacy", "privacy_gaps"


def pay(store: Store, method: Method, due: Sequence[Release], gaps: Sequence[str] = ()) -> bool:
    """Pay for what leaves, and write it down; False if the account does not afford it.

    gaps: what the account does not cover, in words.
    """
    budget = method.privacy.budget
    before = account_of(store) or Account(math.inf if budget is None else budget, method.privacy.dp_delta)
    if not before.affords(*due):
        return False
    spent = json.dumps(before.spend(*due).to_json())
    store.keep(**{_ACCOUNT: spent, **({_GAPS: json.dumps(list(gaps))} if gaps else {})})
    return True


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
    facts, account = store.facts(), account_of(store)
    if account is None:
        return None
    ledger = PrivacyLedger({facts["site"]: account}, tuple(json.loads(facts.get(_GAPS, "[]")))).to_json()
    ledger["centers"][facts["site"]]["epsilon"] = json.loads(facts[_ACCOUNT])["epsilon"]
    return ledger
