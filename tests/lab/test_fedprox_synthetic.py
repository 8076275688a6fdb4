"""FedProx-Synthetic: what alpha and beta say shows in the table."""

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.lab.synthetic import FedproxSynthetic


def models(knobs: FedproxSynthetic) -> np.ndarray:
    """(centers, features) the direction between the classes, per center, scaled by the features' variance."""
    table = knobs.generate()
    features = [c for c in table.columns if c.startswith("x")]
    rows = []
    for _, part in table.group_by("center", maintain_order=True):
        x, y = part.select(features).to_numpy(), part["y"].to_numpy() > 0
        rows.append((x[y].mean(axis=0) - x[~y].mean(axis=0)) / x.var(axis=0))
    return np.array(rows)


def agreement(vectors: np.ndarray) -> float:
    """Mean cosine of all pairs."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    n = len(unit)
    return float(((unit @ unit.T).sum() - n) / (n * (n - 1)))


def test_the_table() -> None:
    table = FedproxSynthetic().generate()
    assert table.columns[:3] == ["y", "center", "x01"] and table.width == 62
    sizes = table.group_by("center").len()["len"].to_numpy()
    assert len(sizes) == 30 and sizes.min() >= 50 and sizes.max() <= 5_000
    assert sizes.max() > 5 * np.median(sizes)  # heavy-tailed
    rates = table.group_by("center").agg(pl.col("y").mean())["y"].to_numpy()
    assert 0.09 < rates.min() < rates.max() < 0.91 and rates.std() > 0.05


def test_one_model_for_all_if_iid_and_unrelated_ones_if_not() -> None:
    size = {"smallest": 2_000, "largest": 2_001, "features": 20, "centers": 12}
    assert agreement(models(FedproxSynthetic(iid=True, **size))) > 0.9
    assert abs(agreement(models(FedproxSynthetic(alpha=0.0, **size)))) < 0.25


def test_alpha_moves_the_models_and_beta_the_data() -> None:
    size = {"smallest": 500, "largest": 501, "features": 20, "centers": 40}

    def spread_of_means(beta: float) -> float:
        table = FedproxSynthetic(beta=beta, **size).generate()
        features = [c for c in table.columns if c.startswith("x")]
        means = table.group_by("center").agg(pl.col(features).mean()).select(features).to_numpy()
        return float(means.mean(axis=1).std())

    assert spread_of_means(0.0) < 0.5 < 1.5 < spread_of_means(9.0)
    # With alpha the weights of a center share a sign: its model's mean weight strays from zero.
    assert (
        models(FedproxSynthetic(alpha=9.0, **size)).mean(axis=1).std()
        > 2 * models(FedproxSynthetic(alpha=0.0, **size)).mean(axis=1).std()
    )


def test_adding_centers_leaves_those_that_exist() -> None:
    few, more = (FedproxSynthetic(centers=c, seed=3).generate() for c in (20, 30))
    names = few["center"].unique().to_list()
    assert few.equals(more.filter(pl.col("center").is_in(names)))


@settings(max_examples=20, deadline=None)
@given(
    st.builds(
        FedproxSynthetic,
        alpha=st.floats(0, 100),
        beta=st.floats(0, 100),
        iid=st.booleans(),
        centers=st.integers(1, 8),
        features=st.integers(1, 12),
        largest=st.just(300),
        seed=st.integers(0, 2**40),
    )
)
def test_any_knobs_give_both_classes_in_every_center(knobs: FedproxSynthetic) -> None:
    table = knobs.generate()
    positives = table.group_by("center").agg(pl.col("y").sum(), pl.len())
    assert (positives["y"] >= 3).all() and (positives["len"] - positives["y"] >= 3).all()
    assert table.equals(knobs.generate())
