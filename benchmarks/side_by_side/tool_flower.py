"""Flower: its simulation on Ray, one actor per core, federated averaging of all centers."""

import os
import sys
import time

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import itertools

from flower_center import ARGUMENTS, app
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from work import finish, task

job = task()
os.environ[ARGUMENTS] = "\n".join(sys.argv[1:])
stamps: list[float] = []
final: list = []


class Timed(FedAvg):
    """Federated averaging that notes when rounds end and keeps the last model."""

    def aggregate_fit(self, server_round, results, failures):
        assert not failures and len(results) == len(job.x), (len(results), failures[:1])
        averaged = super().aggregate_fit(server_round, results, failures)
        stamps.append(time.perf_counter())
        final[:] = parameters_to_ndarrays(averaged[0])
        return averaged


def server(context) -> ServerAppComponents:
    strategy = Timed(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=len(job.x),
        min_available_clients=len(job.x),
        initial_parameters=ndarrays_to_parameters(job.start),
    )
    stamps.append(time.perf_counter())
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=job.rounds))


run_simulation(
    server_app=ServerApp(server_fn=server),
    client_app=app,
    num_supernodes=len(job.x),
    backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0},
        "init_args": {"num_cpus": job.threads, "include_dashboard": False},
    },
)
seconds = [b - a for a, b in itertools.pairwise(stamps)]
finish(job, seconds, final, "flwr", "ray", "torch")
