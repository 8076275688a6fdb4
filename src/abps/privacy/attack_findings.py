"""What attacks on a study's exchanges found, as a folder keeps it: ``audit-privacy.json``."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from abps import files
from abps.core.errors import RequestError

SCHEMA = "abps.privacy-audit/1"
INFERRED = "audit-privacy.json"


@dataclass(frozen=True)
class Finding:
    """One line of the table: attacks on ``centers`` of one size, in one round, under one protection.
    alignment, shadow: area under the curve, 0.5 is guessing, and its standard error over centers.  attribute:
    the area for members less that for others, 0 is nothing."""

    protection: str
    rows: int
    round: int
    centers: int
    alignment: float
    alignment_se: float
    shadow: float
    shadow_se: float
    attribute: float


@dataclass(frozen=True)
class PrivacyAudit:
    """What was found about one run.  method: how the study calls it.  key: the digest of all that decided the
    run, empty outside a study."""

    method: str
    seed: int
    key: str
    findings: tuple[Finding, ...]


def keep(folder: Path, found: Sequence[PrivacyAudit]) -> Path:
    """Write what was found into a folder, in place of what stood there."""
    path = folder / INFERRED
    files.write_json(path, {"schema": SCHEMA, "runs": msgspec.to_builtins(list(found))})
    return path


def kept(folder: Path) -> tuple[PrivacyAudit, ...]:
    """What was found, as it was written; nothing, where nobody looked."""
    path = folder / INFERRED
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] == SCHEMA:
            return msgspec.convert(document["runs"], tuple[PrivacyAudit, ...])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise RequestError(f"{path} is damaged or no audit; delete it, or make the audit again")
