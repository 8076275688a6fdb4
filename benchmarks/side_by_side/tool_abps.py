"""This package's engine."""

import numpy as np
import torch
from work import LEARNING_RATE, SIZES, both_orders, finish, task, timed

from abps.core.arrays import repeated
from abps.data.prepare import Prepared, Rows
from abps.models.learners import learner_for
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
learner = learner_for(data, training, 1)
shared = np.concatenate([w.ravel() for w in both_orders(job.start)])


def one(t: int) -> None:
    shared[:] = learner.train(repeated(shared, centers), t).mean(axis=0)


seconds = timed(job.rounds, one)
parts = np.split(shared, np.cumsum([w.size for w in job.start])[:-1])
weights = [part.reshape(w.shape[::-1]) if w.ndim == 2 else part for part, w in zip(parts, job.start)]
finish(job, seconds, list(both_orders(weights)), "torch")
