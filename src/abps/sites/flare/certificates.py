"""Certificates of a new network's participants: each gets its key in its kit, and the authority keeps none.

The engine's own builder writes every private key down beside the authority's, so that a kit can be made
again. Ours keeps certificates alone: a kit is made once, and who lost it gets another key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvflare.lighter.constants import ParticipantType
from nvflare.lighter.impl.cert import CertBuilder

#: What the engine's state calls a member's private key.
PRIVATE = "pri_key"


class MemberCertificates(CertBuilder):
    """The engine's builder, without the keys that it would keep.

    own_keys: sites make their keys themselves; their kits come without key and certificate.
    """

    def __init__(self, root_valid_days: int, own_keys: bool = False) -> None:
        super().__init__(root_valid_days)
        self.own_keys = own_keys

    def _build_write_cert_pair(self, participant: Any, base_name: str, ctx: Any) -> None:
        if self.persistent_state.has_subject(participant.subject):
            return  # its kit was made before, and is not made again
        super()._build_write_cert_pair(participant, base_name, ctx)
        if self.own_keys and participant.type == ParticipantType.CLIENT:
            for name in (f"{base_name}.key", f"{base_name}.crt"):
                (Path(ctx.get_kit_dir(participant)) / name).unlink()

    def finalize(self, project: Any, ctx: Any) -> None:
        """Nothing is written down before all kits are there (:func:`abps.sites.flare.kits.provision`)."""

    @property
    def kept(self) -> dict[str, Any]:
        """What the authority needs later: its own key, and the members' certificates."""
        return without_keys(self.persistent_state.content)


def without_keys(state: dict[str, Any]) -> dict[str, Any]:
    """The authority's state with no private key but its own."""
    return {
        name: {k: v for k, v in value.items() if k != PRIVATE} if isinstance(value, dict) else value
        for name, value in state.items()
    }
