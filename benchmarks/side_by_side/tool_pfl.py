"""pfl-research: its simulated back-end and federated averaging, one worker or several (torchrun)."""

import itertools
import os
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch_model import load, network, unload
from work import LEARNING_RATE, finish, task

job = task()
workers = int(os.environ.get("WORLD_SIZE", "1"))
torch.set_num_threads(max(1, job.threads // workers))
np.random.seed(1)  # noqa: NPY002 (pfl draws from it)
torch.manual_seed(1)
set_framework_module(pytorch_ops)
pytorch_ops.setup_amp(None, False)


class Model(torch.nn.Module):
    """What pfl asks of a module: its loss and its metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(job.dropout)

    def forward(self, x):
        return self.net(x)

    def loss(self, x, y, is_eval=False):
        self.eval() if is_eval else self.train()
        return torch.nn.functional.binary_cross_entropy_with_logits(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        return {"loss": Weighted(float(self.loss(x, y, is_eval=True)) * len(y), len(y))}


module = Model()
load(module.net, job.start)
x, y = torch.from_numpy(job.x), torch.from_numpy(job.y)


def shuffled(user: str) -> Dataset:
    """Rows in a new order, as the other tools have it; pfl takes batches in the order of the data."""
    i = int(user)
    order = torch.randperm(y.shape[1])
    return Dataset((x[i][order], y[i][order]), user_id=user)


federated = FederatedDataset(shuffled, get_user_sampler("minimize_reuse", [str(i) for i in range(len(x))]))
stamps = [time.perf_counter()]


class Clock(TrainingProcessCallback):
    """Notes when rounds end."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        stamps.append(time.perf_counter())
        return False, Metrics()


model = PyTorchModel(module, torch.optim.Adam, torch.optim.SGD(module.parameters(), lr=1.0))
algorithm_params = NNAlgorithmParams(
    central_num_iterations=job.rounds,
    evaluation_frequency=job.rounds + 1,  # in the first round only, which is not timed
    train_cohort_size=len(x),
    val_cohort_size=1,
)
train_params = NNTrainHyperParams(
    local_num_epochs=job.epochs,
    local_learning_rate=LEARNING_RATE,
    local_batch_size=job.batch,
)
FederatedAveraging().run(
    backend=SimulatedBackend(training_data=federated, val_data=federated),
    model=model,
    algorithm_params=algorithm_params,
    model_train_params=train_params,
    model_eval_params=NNEvalHyperParams(local_batch_size=1024),
    callbacks=[Clock()],
)
if int(os.environ.get("RANK", "0")) == 0:
    seconds = [b - a for a, b in itertools.pairwise(stamps)]
    finish(job, seconds, unload(module.net), "pfl", "torch")
