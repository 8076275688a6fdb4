"""Open a site's part in a job: its own file, the consent of its people, its table and its store. Every stage
that can fail has a decline code: only the code leaves the site, the sentence stays in its log."""

import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.data.screening import identifying_reason
from abps.sites.consent import keys, sitefile
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.approval import Consent, anchored, check_journal, declining
from abps.sites.consent.kit import Membership
from abps.sites.consent.proposal import SignedProposal
from abps.sites.consent.sitefile import SiteFile
from abps.sites.node import measuring
from abps.sites.node.context import JobTerms, account_of, inherit
from abps.sites.node.differencing import check_table
from abps.sites.node.site import Site
from abps.sites.node.transport import Send
from abps.sites.protocol.commands import DeclineCode
from abps.sites.store.audit import Journal
from abps.sites.store.store import Store

STORE_SECONDS = 15.0  # seconds that the process of the last job gets to release the store


@dataclass(frozen=True)
class SiteJob:
    """A job as a site's process knows it.  local: the ``local`` folder of its kit.  proposal: JSON text."""

    site: str
    local: Path
    job: str
    proposal: str

    @property
    def kit(self) -> Path:
        return self.local.parent

    def own_file(self) -> tuple[SiteFile, Journal]:
        with declining(DeclineCode.FILE):
            own = sitefile.find(self.site, self.local)
            return own, own.journal(self.kit)


def open_study(
    given: SiteJob, own: SiteFile, journal: Journal, send: Send, counting: bool, scales: Any
) -> Site | measuring.ScaleCounting:
    """The site's part in a study or, if ``counting``, in the counts for its common scales.  scales: what was
    counted before, as the scheduler says."""
    with declining(DeclineCode.AGREEMENT):
        signed = SignedProposal.from_json(json.loads(given.proposal))
        agreement = signed.proposal.agreement
    with declining(DeclineCode.ALLOWED):
        agreement = agreement.admitted(own.allow)
    with declining(DeclineCode.AGREEMENT):
        if not counting:
            agreement = measuring.resolved(agreement, scales, _from_counts(own, agreement)[0])
        method = agreement.config()
    if not method.training.linear:
        import torch

        torch.set_num_threads(own.threads)
    authority, revoked = keys.read_root(given.kit), Membership(given.kit).now
    consent = Consent(Path(own.store), journal, own.policy, signed, authority, revoked)
    approval = consent.given()
    with declining(DeclineCode.TABLE):
        table = own.read_table(agreement.book)
        _names_nobody(table, agreement)
        check_table(own, agreement.book.min_cell)
    with declining(DeclineCode.FEW):
        own.policy.check_rows(table.rows, table.outcome.informative(table.label))
    # What protects patients must not follow from a seed that all know.
    secret = secrets.randbits(62) if agreement.book.min_cell or method.privacy.budget is not None else 0
    terms = JobTerms(given.job, own.limits, consent, journal.signer, secret, own.another_table)
    if counting:
        with _opened_store(given, own, agreement, measuring.store_name(agreement.study)) as store:
            return measuring.ScaleCounting(given.site, agreement, table, store, terms)
    with declining(DeclineCode.TABLE):
        data = agreement.prepare(table)
    with _opened_store(given, own, agreement, agreement.study) as store:
        inherit(store, _from_counts(own, agreement)[1])
        site = Site(given.site, agreement, data, store, send, terms)
        check_journal(store, journal)
        site.transport.log_decision(anchored(approval))
        return site


def _names_nobody(table: Federation, agreement: Agreement) -> None:
    """Refuse columns that name people by this site's own rules, whatever others put into the codebook."""
    for name in agreement.book.sources:
        column = table.features.get_column(name) if name in table.features.columns else None
        why = None if column is None else identifying_reason(column, table.patient, agreement.book.min_cell)
        if why:
            raise RequestError(f"the study asks for the column {name!r}: {why}; it stays here")


@contextlib.contextmanager
def _opened_store(given: SiteJob, own: SiteFile, agreement: Agreement, study: str) -> Iterator[Any]:
    """The store of a study, closed again if what follows fails; the last job may need a moment to end."""
    known = agreement.digest(), agreement.notes()
    with declining(DeclineCode.STORE):
        store = Store.open(own.store_of(study), given.site, *known, wait=STORE_SECONDS)
        try:
            yield store
        except BaseException:
            store.close()
            raise


def _from_counts(own: SiteFile, agreement: Agreement) -> tuple[Any, Any]:
    """What the site keeps of the counts for a study: common scales, and the privacy spent on them."""
    path = own.store_of(measuring.store_name(agreement.study))
    if not path.is_file():
        return None, None
    with contextlib.closing(Store.look(path)) as store:
        return measuring.kept_in(store), account_of(store)
