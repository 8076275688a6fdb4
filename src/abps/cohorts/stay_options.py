"""What one may choose of an ICU cohort, whatever the source: window, diagnoses, ages, further features."""

from __future__ import annotations

from dataclasses import dataclass

from abps.cohorts import charlson, physiology, vitals
from abps.core.errors import RequestError

#: Diagnoses of the admission, of earlier ones only, or none.
DIAGNOSES = ("this", "earlier", "none")


@dataclass(frozen=True, kw_only=True)
class StayOptions:
    """window: one of :data:`abps.cohorts.vitals.WINDOWS`. charlson: 12 or 17 (or none) of the categories.

    features: groups of :data:`abps.cohorts.physiology.GROUPS` beyond the vitals. first_stay: leave out all
    but a patient's first ICU stay.
    """

    window: str = "24h"
    diagnoses: str = "this"
    charlson: str = "12"
    min_age: float | None = 18
    max_age: float | None = 95
    features: tuple[str, ...] = ()
    first_stay: bool = False

    def __post_init__(self) -> None:
        physiology.parse_groups(self.features)
        vitals.window_of(self.window)
        charlson.table().columns(self.charlson)
        if self.diagnoses not in DIAGNOSES:
            raise RequestError(f"diagnoses={self.diagnoses!r}: choose one of {', '.join(DIAGNOSES)}")

    @property
    def comorbidities(self) -> str:
        """The Charlson columns that are made."""
        return "none" if self.diagnoses == "none" else self.charlson
