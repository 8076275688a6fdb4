"""Flower's side of a center; imported by name in every actor, so that no data travel with the calls."""

import os
from functools import cache

import torch
from flwr.client import ClientApp, NumPyClient
from torch_model import load, network, train, unload
from work import task

#: The command line of the tool, for the actors.
ARGUMENTS = "SIDE_BY_SIDE_ARGUMENTS"


@cache
def ready():
    """Once per actor: the task, the data as tensors, the network, one thread."""
    job = task(os.environ[ARGUMENTS].split("\n"))
    torch.set_num_threads(1)
    return job, torch.from_numpy(job.x), torch.from_numpy(job.y), network(job.dropout)


class Center(NumPyClient):
    """One center."""

    def __init__(self, i: int) -> None:
        self.i = i

    def fit(self, parameters, config):
        job, x, y, model = ready()
        load(model, parameters)
        train(job, model, x[self.i], y[self.i])
        return unload(model), len(y[self.i]), {}


def client_fn(context):
    return Center(int(context.node_config["partition-id"])).to_client()


app = ClientApp(client_fn=client_fn)
