"""This package's engine."""

import numpy as np
import torch
from work import LEARNING_RATE, SIZES, both_orders, finish, task, timed

from abps.data.prepare import Prepared, Rows
from abps.models.batched import StackedLearner
from abps.models.training import Training

job = task()
torch.set_num_threads(job.threads)
centers, count, width = job.x.shape
rows = Rows(job.x.reshape(-1, width), job.y.ravel(), np.arange(centers + 1) * count)
data = Prepared(
    name="side by side",
    centers=tuple(f"c{i:04d}" for i in range(centers)),
    columns=tuple(f"x{k}" for k in range(width)),
    train=rows,
    validation=rows,
    test=rows,
    metadata=np.zeros((centers, 2)),
    metadata_names=("positive rate", "log training rows"),
    base_metadata=2,
    groups=None,
    seed=1,
)
training = Training(
    epochs=job.epochs,
    batch=job.batch,
    lr=LEARNING_RATE,
    weight_decay=0.0,
    hidden=SIZES[1:-1],
    dropout=job.dropout,
)
learner = StackedLearner(data, training, training.factory, 1)
shared = torch.from_numpy(np.concatenate([w.ravel() for w in both_orders(job.start)]))


def one(t: int) -> None:
    trained = learner.train(shared.expand(centers, -1).clone(), t)
    shared.copy_(trained.mean(dim=0))


seconds = timed(job.rounds, one)
parts = torch.split(shared, [w.size for w in job.start])
weights = [
    part.numpy().reshape(w.shape[::-1]) if w.ndim == 2 else part.numpy() for part, w in zip(parts, job.start)
]
finish(job, seconds, list(both_orders(weights)), "torch")
