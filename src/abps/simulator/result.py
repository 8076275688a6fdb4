"""What a run leaves behind: the result as numbers, and the audit trail as a table."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from abps.core.beliefs import Beliefs
from abps.stats.guarantees import Standing

SCHEMA = "abps.run/1"


@dataclass(frozen=True, eq=False)
class Accuracy:
    """A metric of every center's final model on its own test rows (NaN: not defined there)."""

    per_center: dict[str, float]
    mean: float
    scored_centers: int
    at_best_validation: float = math.nan


@dataclass(frozen=True)
class Bytes:
    """Bytes of the whole run; ``vs_fedavg`` is edge bytes over those of 50 fp32 rounds of FedAvg."""

    edge: int
    directed: int
    control: int
    vs_fedavg: float


@dataclass(frozen=True)
class RestShares:
    """Shares of center-rounds spent without a partner, in all and by cause."""

    share: float
    no_candidates: float
    all_full: float
    declined: float
    budget: float


@dataclass(frozen=True)
class History:
    """One entry per round.

    beliefs: what Theorem 1 says about the beliefs, for methods that keep some.
    """

    auroc: tuple[float, ...]
    validation_auroc: tuple[float, ...]
    edge_bytes: tuple[int, ...]
    rest: tuple[float, ...]
    rest_causes: dict[str, tuple[float, ...]] = field(default_factory=dict)
    beliefs: tuple[Standing, ...] = ()


@dataclass(frozen=True, eq=False)
class Run:
    """One method, one seed, one federation.

    device: where centers trained and predicted; another one rounds otherwise.
    """

    method: str
    seed: int
    rounds: int
    data: dict[str, Any]
    config: dict[str, Any]
    device: str
    auroc: Accuracy
    auprc: Accuracy
    brier: Accuracy
    bytes: Bytes
    cost_usd: float
    partners_mean: float
    rest: RestShares
    history: History
    seconds: float
    decisions: pl.DataFrame
    models: torch.Tensor | None = None
    beliefs: Beliefs | None = None

    def to_json(self) -> dict[str, Any]:
        """The content of ``result.json``."""
        return {
            "schema": SCHEMA,
            "method": self.method,
            "seed": self.seed,
            "rounds": self.rounds,
            "data": self.data,
            "config": self.config,
            "device": self.device,
            "auroc": {
                "mean": _number(self.auroc.mean),
                "scored_centers": self.auroc.scored_centers,
                "at_best_validation": _number(self.auroc.at_best_validation),
                "per_center": {name: _number(v) for name, v in self.auroc.per_center.items()},
            },
            "auprc": {"mean": _number(self.auprc.mean)},
            "brier": {"mean": _number(self.brier.mean)},
            "bytes": {
                "edge": self.bytes.edge,
                "directed": self.bytes.directed,
                "control": self.bytes.control,
                "vs_fedavg": self.bytes.vs_fedavg,
            },
            "cost_usd": self.cost_usd,
            "partners_mean": self.partners_mean,
            "rest": {
                "share": self.rest.share,
                "no_candidates": self.rest.no_candidates,
                "all_full": self.rest.all_full,
                "declined": self.rest.declined,
                "budget": self.rest.budget,
            },
            "history": {
                "auroc": [_number(v) for v in self.history.auroc],
                "validation_auroc": [_number(v) for v in self.history.validation_auroc],
                "edge_bytes": list(self.history.edge_bytes),
                "rest": list(self.history.rest),
                "rest_causes": {cause: list(v) for cause, v in self.history.rest_causes.items()},
                "beliefs": {
                    name: [_number(getattr(s, name)) for s in self.history.beliefs]
                    for name in (("pairs", "radius", "useful", "harmful") if self.history.beliefs else ())
                },
            },
            "seconds": self.seconds,
            "versions": versions(),
        }


def _number(value: float) -> float | None:
    """JSON has no NaN: an undefined number is null."""
    return float(value) if math.isfinite(value) else None


def versions() -> dict[str, str]:
    """What ran: package, Python and the libraries that compute."""
    from abps import __version__

    return {
        "abps": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "polars": pl.__version__,
    }


def accuracy(centers: tuple[str, ...], values: NDArray[np.float64], at_best: float = math.nan) -> Accuracy:
    """Values of all centers as an :class:`Accuracy`."""
    scored = np.isfinite(values)
    mean = float(values[scored].mean()) if scored.any() else math.nan
    return Accuracy(dict(zip(centers, values.tolist())), mean, int(scored.sum()), at_best)
