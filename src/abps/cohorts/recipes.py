"""Every cohort by its name, ours or anybody's: one object each.

A recipe of your own is a :class:`CohortRecipe` in any module that Python can import
(``package.module:NAME``), or an entry point of the group ``abps.cohorts``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abps.cohorts import eicu, heart, meds, mimiciv, omop, physionet2012
from abps.cohorts.duck import Progress
from abps.cohorts.tidy import Cohort
from abps.registry import Registry


@dataclass(frozen=True)
class NoOptions:
    """A recipe without options."""


@dataclass(frozen=True)
class CohortRecipe:
    """How a cohort is made. options: the defaults, a frozen dataclass. build: (place, options, progress)."""

    name: str
    about: str
    options: Any
    build: Callable[[Path, Any, Progress], Cohort]


def _heart(place: Path, _options: NoOptions, progress: Progress) -> Cohort:
    return heart.build(place, progress)


_OURS = (
    CohortRecipe("mimiciv", "MIMIC-IV as distributed", mimiciv.MimicOptions(), mimiciv.build),
    CohortRecipe("eicu", "eICU as distributed", eicu.EicuOptions(), eicu.build),
    CohortRecipe("physionet2012", "PhysioNet 2012", physionet2012.PhysionetOptions(), physionet2012.build),
    CohortRecipe("meds", "ICU stays in MEDS events", meds.MedsOptions(), meds.build),
    CohortRecipe("omop", "ICU stays in an OMOP CDM", omop.OmopOptions(), omop.build),
    CohortRecipe("heart", "UCI Heart Disease", NoOptions(), _heart),
)

RECIPES: Registry[CohortRecipe] = Registry(
    kind="cohort",
    group="abps.cohorts",
    builtin={recipe.name: recipe for recipe in _OURS},
    accept=lambda found: found if isinstance(found, CohortRecipe) else None,
    wanted="an abps.cohorts.recipes.CohortRecipe",
)
