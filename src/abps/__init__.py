"""abps: peer-to-peer federated learning for hospitals.

import abps
fed = abps.read_table("stays.parquet", label="died", center="hospital")
run = abps.simulate(fed, "abps-pq-k1", seed=11)
run.auroc.mean, run.bytes.vs_fedavg, run.rest.share
"""

from __future__ import annotations

__version__ = "0.1.0"

from abps.cohorts.federation import Federation as Federation
from abps.cohorts.table import load as load
from abps.cohorts.table import read_table as read_table
from abps.core.errors import RequestError as RequestError
from abps.engines.result import Run as Run
from abps.engines.simulate import simulate as simulate
from abps.methods.base import Method as Method
from abps.methods.catalog import CATALOG as CATALOG
from abps.methods.catalog import find as find
