"""Star rounds under secure aggregation: the server sees the sum of all uploads and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from abps.core.arrays import Weights
from abps.core.ledger import Traffic
from abps.methods.base import Floats, Wire
from abps.methods.star import Adding, star_cost
from abps.privacy import fixed_point
from abps.privacy.fixed_point import NUMBER, protocol_bytes


def masked_cost(line: Wire, centers: int, up: Sequence[int], down: Sequence[int]) -> Traffic:
    """Bytes of a round: messages of these lengths go up in one masked sum, and come down in clear."""
    plain = star_cost(line, centers, (), down, False)
    sent = centers * NUMBER * (sum(up) + 1)
    edge = max(sent, (sent + plain.directed + 1) // 2)
    return Traffic(edge, sent + plain.directed, protocol_bytes(centers))


def summands(sent: Sequence[Weights], sizes: Floats, adding: Adding) -> Floats:
    """(centers, entries + 1) what each center adds: its messages (centers, columns) times its weight, and its
    weight."""
    weight = np.asarray(sizes, dtype=np.float64) if adding == "size" else np.ones(len(sizes))
    parts = [message.astype(np.float64) * weight[:, None] for message in sent]
    return np.concatenate([*parts, weight[:, None]], axis=1)


def from_sum(total: Floats, lengths: Sequence[int], adding: Adding) -> tuple[tuple[Weights, ...], Weights]:
    """The average and total weight as one sender's message, for a server that has seen the sum alone."""
    weight = float(total[-1])
    parts = np.split(total[:-1], np.cumsum(lengths)[:-1])
    if adding == "total":
        # Sums of a regression keep their double precision.
        exact = tuple(cast(Weights, part[None].copy()) for part in parts)
        return exact, np.array([weight], dtype=np.float32)
    means = (part[None] / max(weight, 1e-12) for part in parts)
    return tuple(mean.astype(np.float32) for mean in means), np.array([weight], dtype=np.float32)


def masked(sent: Sequence[Weights], sizes: Floats, adding: Adding) -> tuple[tuple[Weights, ...], Weights]:
    """What a server sees of messages (centers, columns) under masks: bit for bit the sum that a real secure
    aggregation gives, each summand rounded to a millionth."""
    total = fixed_point.exact_sum(summands(sent, sizes, adding))
    return from_sum(total, [message.shape[1] for message in sent], adding)
