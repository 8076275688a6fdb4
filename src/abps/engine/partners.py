"""Whom a method's models rest on, from its audit trail: shares of information, structure, expected gains."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import polars as pl


@dataclass(frozen=True)
class Shares:
    """Where one center's model comes from, as shares: its own rows, named peers, all centers together.

    certainty: the probability that it belongs to the cluster of these peers.  rests: in which share of the
    trainings it kept a model of its own rows alone.
    """

    own: float
    all: float
    peers: dict[str, float] = field(default_factory=dict)
    certainty: float = math.nan
    rests: float = 0.0


@dataclass(frozen=True)
class Partners:
    """What a method that weighs peers says of a federation; of several folds the mean.

    differences: the p-value of the test whether centers differ.  structure: what is used of it (clusters, a
    continuum, nothing), and in how many folds.  expected_better: the expected share of centers whose loss on
    their next patients is smaller than that of a model of their rows alone.
    """

    differences: float = math.nan
    structure: dict[str, int] = field(default_factory=dict)
    expected_better: float = math.nan
    per_center: dict[str, Shares] = field(default_factory=dict)


def partners_of(decisions: pl.DataFrame | None) -> Partners:
    """From the audit trail of a run, or of all its folds; empty for methods that state no weights."""
    if decisions is None or decisions.filter(pl.col("decision") == "weight").is_empty():
        return Partners()
    trail = decisions if "fold" in decisions.columns else decisions.with_columns(fold=pl.lit(0))
    folds = trail["fold"].n_unique()

    def rows(decision: str) -> pl.DataFrame:
        return trail.filter(pl.col("decision") == decision)

    def mean(frame: pl.DataFrame) -> float:
        return float(frame["score"].to_numpy().mean()) if len(frame) else math.nan

    tested = rows("differences").group_by("fold").first()
    used = tested.group_by("reason").len().sort("reason")
    weights = rows("weight").group_by("center", "peer").agg(pl.col("score").sum() / folds)
    weights = weights.sort("center", "score", "peer", descending=[False, True, False])
    named = rows("weight").filter(pl.col("posterior_mean").is_not_null())
    belongs = dict(named.group_by("center").agg(pl.col("posterior_mean").mean()).iter_rows())
    rests = dict(rows("rested").group_by("center").agg(pl.len() / folds).iter_rows())
    found = {name: Shares(0.0, 0.0, {}, math.nan, rests[name]) for name in rests}
    for (name,), own in weights.partition_by("center", as_dict=True, maintain_order=True).items():
        share = dict(own.select("peer", "score").iter_rows())
        mine, everybody = share.pop(name, 0.0), share.pop(None, 0.0)
        found[name] = Shares(mine, everybody, share, belongs.get(name, math.nan), rests.get(name, 0.0))
    return Partners(
        mean(tested), dict(used.iter_rows()), mean(rows("collaboration")), dict(sorted(found.items()))
    )
