"""A study as a proposal: what an operator asks hospitals for, signed with the operator's key. Everything that
a study does follows from its agreement; :meth:`Proposal.terms` says it in words for the person who
decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from abps.core.errors import RequestError
from abps.data.outcome import Outcome
from abps.sites.consent import keys
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.keys import Signer
from abps.sites.consent.kit import RevocationList
from abps.sites.store import rows as chain
from abps.wire import messages

SCHEMA = "abps.proposal/2"

PURPOSE = "proposal"  # what signatures of proposals are for


@dataclass(frozen=True)
class Proposal:
    """agreement: what would run.  members: the sites that may take part; none: every site of the network.
    wire: the version of the wire format that the operator's abps speaks."""

    agreement: Agreement
    members: tuple[str, ...] = ()
    wire: tuple[int, int] = messages.VERSION

    @property
    def study(self) -> str:
        return self.agreement.study

    def to_json(self) -> dict[str, Any]:
        named = {"schema": SCHEMA, "members": sorted(self.members), "wire": list(self.wire)}
        return {**named, "agreement": self.agreement.to_json()}

    @staticmethod
    def from_json(data: Any) -> Proposal:
        try:
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']!r}")
            major, minor = data["wire"]
            members = tuple(str(name) for name in data["members"])
            return Proposal(Agreement.from_json(data["agreement"]), members, (int(major), int(minor)))
        except RequestError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"this is not a proposal ({error!r}); submit it with abps") from error

    def digest(self) -> str:
        return chain.digest_of(self.to_json())

    def terms(self) -> dict[str, Any]:
        """What is asked for, in the words of the one who has to decide."""
        agreement, config, book = self.agreement, self.agreement.config(), self.agreement.book
        return {
            "study": agreement.study,
            "members": sorted(self.members) or "every site of this network",
            "method": agreement.method,
            "who sees our uploads": "nobody: masked sums" if config.privacy.secure else "each coordinator",
            "if a member is absent": config.if_absent()[1] if config.privacy.secure else "others go on",
            "counted by all sites under masks before": list(agreement.uncounted),
            "settings": dict(agreement.settings),
            "model": str(config.training.model),
            "rounds": agreement.rounds,
            "local epochs in a round": config.training.epochs,
            "budget of epsilon, each site": config.privacy.budget,
            "columns": list(book.sources),
            "category levels": [column.name for column in book.columns if column.kind == "level"],
            "predicts": book.outcome.kind,
            **_outcome_terms(book.outcome),
            "the event": list(book.events) or "as each site reads it",
            "minimum cell size, patients": book.min_cell,
            **({"maps by which sites read their tables": list(book.harmonised)} if book.harmonised else {}),
            "wire format": ".".join(map(str, self.wire)),
        }


def _outcome_terms(outcome: Outcome) -> dict[str, Any]:
    if outcome.kind == "classes":
        return {"classes": list(outcome.names)}
    if outcome.kind == "continuous":
        return {"level and scale of the numbers": [outcome.level, outcome.scale]}
    return {"ends of the intervals of time": list(outcome.grid)} if outcome.grid else {}


@dataclass(frozen=True)
class SignedProposal:
    """A proposal, and whose key signed it; certificate and signature are empty in a trial without keys."""

    proposal: Proposal
    certificate: str = ""
    signature: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "proposal": self.proposal.to_json()}

    def text(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    @staticmethod
    def from_json(data: Any) -> SignedProposal:
        if not isinstance(data, Mapping) or not {"proposal", "certificate", "signature"} <= set(data):
            raise RequestError("the job brings no proposal; submit it with abps")
        proposal = Proposal.from_json(data["proposal"])
        return SignedProposal(proposal, str(data["certificate"]), str(data["signature"]))

    def operator(self, authority: bytes | None, revoked: RevocationList) -> str:
        """Who signed it, checked, and not expelled; a site without an authority (a trial) takes an unsigned
        one."""
        if authority is None:
            return "nobody (a trial without certificates)"
        if not self.signature:
            raise RequestError("the proposal is not signed; submit it with the operator's kit")
        signed = chain.canonical(self.proposal.to_json())
        try:
            signature = bytes.fromhex(self.signature)
            name, role = keys.signer_of(self.certificate.encode(), authority, PURPOSE, signed, signature)
        except ValueError as error:
            raise RequestError(f"the proposal's signature cannot be trusted: {error}") from error
        if role != keys.OPERATOR_ROLE:
            raise RequestError(f"the proposal is signed by {name}, who is no operator of this network")
        serial = x509.load_pem_x509_certificate(self.certificate.encode()).serial_number
        if name in revoked.expelled or revoked.has(serial):
            raise RequestError(f"{name} was expelled; its proposals are not kept, and get nothing")
        return name


def sign(proposal: Proposal, signer: Signer | None) -> SignedProposal:
    if signer is None:  # a trial without keys
        return SignedProposal(proposal)
    signature = signer.sign(PURPOSE, chain.canonical(proposal.to_json()))
    return SignedProposal(proposal, signer.certificate.decode(), signature.hex())
