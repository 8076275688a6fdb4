"""abps: peer-to-peer federated learning for hospitals.

import abps
fed = abps.read_table("stays.parquet", label="died", center="hospital")
run = abps.simulate(fed, "abps-plus", seed=11)
run.auroc.mean, run.bytes.all_vs_fedavg, run.predictions()
study = abps.compare(fed, ["local-best", "fedavg", "abps-plus"], seeds=[11, 22, 33])
study.frame(), study.table(), study.report("my-report")
fitted = abps.fit(fed, "abps-plus")
fitted.models[0].predict_proba(new_rows)
abps.ABPSClassifier().fit(X, y, groups=hospital).predict_proba(new_X, groups=new_hospital)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abps.release import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from abps.core.errors import RequestError as RequestError
    from abps.data.federation import Federation as Federation
    from abps.data.table import check as check
    from abps.data.table import federation as federation
    from abps.data.table import load as load
    from abps.data.table import read_table as read_table
    from abps.engine.result import Run as Run
    from abps.engine.result import load_run as load_run
    from abps.engine.simulate import simulate as simulate
    from abps.fitted.estimator import ABPSClassifier as ABPSClassifier
    from abps.fitted.fit import fit as fit
    from abps.fitted.folder import load_model as load_model
    from abps.lab.benchmark import benchmark as benchmark
    from abps.methods.base import Method as Method
    from abps.methods.catalog import CATALOG as CATALOG
    from abps.methods.catalog import find as find
    from abps.statistics.regression import regress as regress
    from abps.study.compare import Study as Study
    from abps.study.compare import compare as compare
    from abps.study.compare import load_study as load_study

#: What the package offers, by the module in which it lies.
_PLACES = {
    "core.errors": "RequestError",
    "data.federation": "Federation",
    "data.table": "check federation load read_table",
    "engine.result": "Run load_run",
    "engine.simulate": "simulate",
    "fitted.estimator": "ABPSClassifier",
    "fitted.fit": "fit",
    "fitted.folder": "load_model",
    "lab.benchmark": "benchmark",
    "methods.base": "Method",
    "methods.catalog": "CATALOG find",
    "statistics.regression": "regress",
    "study.compare": "Study compare load_study",
}
_OFFERED = {name: f"abps.{module}" for module, names in _PLACES.items() for name in names.split()}

__all__ = sorted(_OFFERED)


def __getattr__(name: str) -> Any:
    """Imported when first asked for: a command line should not wait for what it does not need."""
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    offered = getattr(import_module(_OFFERED[name]), name)
    globals()[name] = offered
    return offered


def __dir__() -> list[str]:
    return sorted([*globals(), *_OFFERED])
