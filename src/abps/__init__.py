"""abps: peer-to-peer federated learning for hospitals.

import abps
fed = abps.read_table("stays.parquet", label="died", center="hospital")
run = abps.simulate(fed, "abps-pq-k1", seed=11)
run.auroc.mean, run.bytes.vs_fedavg, run.rest.share
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from abps.core.errors import RequestError as RequestError
    from abps.data.federation import Federation as Federation
    from abps.data.table import load as load
    from abps.data.table import read_table as read_table
    from abps.methods.base import Method as Method
    from abps.methods.catalog import CATALOG as CATALOG
    from abps.methods.catalog import find as find
    from abps.simulator.result import Run as Run
    from abps.simulator.simulate import simulate as simulate

__all__ = [
    "CATALOG",
    "Federation",
    "Method",
    "RequestError",
    "Run",
    "find",
    "load",
    "read_table",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """What the package offers, imported when first asked for: a command line should not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from abps.core.errors import RequestError
    from abps.data.federation import Federation
    from abps.data.table import load, read_table
    from abps.methods.base import Method
    from abps.methods.catalog import CATALOG, find
    from abps.simulator.result import Run
    from abps.simulator.simulate import simulate

    offered = {
        "CATALOG": CATALOG,
        "Federation": Federation,
        "Method": Method,
        "RequestError": RequestError,
        "Run": Run,
        "find": find,
        "load": load,
        "read_table": read_table,
        "simulate": simulate,
    }
    globals().update(offered)
    return offered[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
