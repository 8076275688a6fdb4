"""Clustered FedAvg: the simplest control for methods that find out who resembles whom.

Some rounds of FedAvg; then the server divides the centers by the directions of their displacements from the
last average (k-means on the sphere); then FedAvg inside every cluster. The number of clusters has the largest
silhouette; where none separates, all stay together. No paper: CFL (Sattler et al. 2021) divides in two again
and again by cosines, and stops by thresholds that its authors tune.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core.arrays import Weights, shares, weighted_mean
from abps.core.errors import FROM_1
from abps.methods.base import Context, Floats, Ints, Models
from abps.methods.fedavg import FedAvg
from abps.methods.star import Adding, Server
from abps.models.layout import Layout

#: Steps of Lloyd's algorithm.
STEPS = 50


@dataclass(frozen=True, eq=False)
class ClusteredModels(Models):
    """models: (r, P).  cluster: (r,) every center's number, 0 before they are formed."""

    cluster: Floats


@dataclass(frozen=True)
class ClusteredFedAvg(FedAvg):
    """warmup: rounds of FedAvg before clusters are formed.  most: the most clusters.

    separation: the smallest mean silhouette with which centers are divided.
    """

    warmup: int = 6
    most: int = 8
    separation: float = 0.1

    #: The cluster's number travels with the model.
    noted = True

    limits: ClassVar = {"warmup": FROM_1, "most": FROM_1}
    searched: ClassVar = {"separation": (0.1, 0.3)}

    @property
    def adds(self) -> Adding | None:
        """The server looks at every model."""
        return None

    def answers(self, layout: Layout, t: int | None = None) -> tuple[int, ...]:
        """The average; and once the number of the center's cluster."""
        shared = layout.shared(self.wire.private_layers)
        return (shared, 1) if t in (None, self.warmup) else (shared,)

    def init(self, context: Context) -> ClusteredModels:
        """The common start; no clusters."""
        return ClusteredModels(context.common_start(), np.zeros(context.r))

    def note(self, context: Context, trained: ClusteredModels) -> Floats:
        """The number of the cluster."""
        return trained.cluster

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
        """The average of all, or of each sender's cluster."""
        models, weights, number = sent[0], shares(sizes, self.weighting), np.rint(sent[1])
        if t == self.warmup:
            before = server.last[0] if server.last else start[: models.shape[1]]
            number = clusters_of(models - before, self.most, self.separation).astype(np.float32)
        if t < self.warmup or not number.any():
            mean = weighted_mean(models, weights)
            return ((mean, np.zeros(1, dtype=np.float32)) if t == self.warmup else (mean,)), None
        reply = np.empty_like(models)
        for k in np.unique(number):
            reply[number == k] = weighted_mean(models[number == k], weights[number == k])
        return ((reply, number[:, None]) if t == self.warmup else (reply,)), None

    def receive(
        self, context: Context, state: Any, trained: ClusteredModels, down: tuple[Weights, ...], t: int
    ) -> ClusteredModels:
        """The average of the own cluster."""
        private = trained.models[:, down[0].shape[-1] :]
        trunk = np.broadcast_to(down[0], (context.r, down[0].shape[-1]))
        cluster = trained.cluster
        if t == self.warmup:
            cluster = np.broadcast_to(np.rint(down[1]).ravel(), context.r).astype(np.float64)
        return ClusteredModels(np.concatenate([trunk, private], axis=1), cluster)


def clusters_of(moved: NDArray[np.floating], most: int, separation: float) -> Ints:
    """(n,) numbers from 1 of clusters by direction of (n, columns) displacements; all 0: there are none."""
    from sklearn.metrics import silhouette_score

    centred = moved.astype(np.float64) - moved.mean(axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1), 1e-30)[:, None]
    best, found = separation, np.zeros(len(unit), dtype=np.int64)
    for k in range(2, min(most, len(unit) - 1) + 1):
        labels = _k_means(unit, k)
        if len(np.unique(labels)) > 1:
            score = float(silhouette_score(unit, labels, metric="cosine"))
            if score > best:
                best, found = score, labels + 1
    return found


def _k_means(unit: Floats, k: int) -> Ints:
    """(n,) Lloyd's algorithm with cosines, begun at points far from each other, so that nothing is random."""
    chosen = [int(np.argmin(unit @ unit.sum(axis=0)))]
    while len(chosen) < k:
        chosen.append(int(np.argmin((unit @ unit[chosen].T).max(axis=1))))
    middle, labels = unit[chosen], np.zeros(len(unit), dtype=np.int64)
    for _ in range(STEPS):
        labels = np.argmax(unit @ middle.T, axis=1)
        sums = np.stack([unit[labels == g].sum(axis=0) for g in range(k)])
        new = sums / np.maximum(np.linalg.norm(sums, axis=1), 1e-30)[:, None]
        if np.allclose(new, middle):
            break
        middle = new
    return labels
