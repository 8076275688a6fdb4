"""Every cohort by its name, ours or anybody's: one object each.

A recipe of your own is a :class:`CohortRecipe` in any module that Python can import
(``package.module:NAME``), or an entry point of the group ``abps.cohorts``.
"""

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
    """How a cohort is made. options: the defaults, a frozen dataclass. build: (place, options, progress).
    place, help: what to give as its source, and what the command line says about it."""

    name: str
    about: str
    options: Any
    build: Callable[[Path, Any, Progress], Cohort]
    place: str = ""
    help: str = ""


_OURS = (
    CohortRecipe(
        "mimiciv",
        "MIMIC-IV as distributed",
        mimiciv.MimicOptions(),
        mimiciv.build,
        "The folder that contains hosp and icu.",
        "MIMIC-IV v2.2 to v3.1 as distributed (.csv.gz or .csv): in-hospital death of adult ICU stays.\n\n"
        "Example: abps cohort mimiciv mimic-iv-3.1 --diagnoses earlier --out cohort.parquet",
    ),
    CohortRecipe(
        "eicu",
        "eICU as distributed",
        eicu.EicuOptions(),
        eicu.build,
        "The folder that contains patient.csv.gz.",
        "eICU v2.0 and its demo: hospital death of unit stays; every hospital is a center.\n\n"
        "Example: abps cohort eicu eicu-crd-2.0 --min-age 18 --out cohort.parquet",
    ),
    CohortRecipe(
        "physionet2012",
        "PhysioNet 2012",
        physionet2012.PhysionetOptions(),
        physionet2012.build,
        "The folder with Outcomes-*.txt and the sets (folders or tar).",
        "PhysioNet/CinC Challenge 2012, sets a, b and c: in-hospital death in four ICU types.\n\n"
        "Example: abps cohort physionet2012 challenge-2012 --out cohort.parquet",
    ),
    CohortRecipe(
        "meds",
        "ICU stays in MEDS events",
        meds.MedsOptions(),
        meds.build,
        "A MEDS folder (data/**/*.parquet) or one Parquet file.",
        "MEDS events (Parquet) with a small map of their codes; one for MIMIC-IV is built in.\n\n"
        "Example: abps cohort meds mimic-iv-meds --out cohort.parquet",
    ),
    CohortRecipe(
        "omop",
        "ICU stays in an OMOP CDM",
        omop.OmopOptions(),
        omop.build,
        "A DuckDB database, or a folder of CDM tables (Parquet, CSV).",
        "OMOP CDM 5.3 and 5.4: hospital death of ICU stays, concepts and units by a shipped map.\n\n"
        "Example: abps cohort omop cdm.duckdb --features labs,gcs --out cohort.parquet",
    ),
    CohortRecipe(
        "heart",
        "UCI Heart Disease",
        NoOptions(),
        heart.build,
        "The folder with the four processed.*.data files.",
        "UCI Heart Disease: four hospitals, 920 patients.\n\n"
        "Example: abps cohort heart heart-disease --out heart.parquet",
    ),
)

RECIPES: Registry[CohortRecipe] = Registry(
    kind="cohort",
    group="abps.cohorts",
    builtin={recipe.name: recipe for recipe in _OURS},
    accept=lambda found: found if isinstance(found, CohortRecipe) else None,
    wanted="an abps.cohorts.recipes.CohortRecipe",
)
