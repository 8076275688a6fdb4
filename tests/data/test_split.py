"""A patient is in one split everywhere, and the order of rows in a file means nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abps
from abps.data.codebook import Codebook
from abps.data.prepare import codebook, prepare
from abps.data.roles import Roles
from abps.data.split import assign_splits, by_key, patient_numbers, quotas
from abps.data.table import federate, own_table
from abps.lab.synthetic import builtin_table


def stays(
    patients: int, centers: int = 3, visits: int = 2, seed: int = 0, everywhere: bool = True
) -> pl.DataFrame:
    """Stays of patients with noise for labels; each visits one center, or several."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), visits)
    first = who % centers
    where = (first + np.tile(np.arange(visits), patients)) % centers if everywhere else first
    outcome = rng.random(patients) < 0.4  # of the patient: a stay tells the label of all others
    trait = rng.normal(size=(patients, 20))[who]
    return pl.DataFrame(
        {
            "died": outcome[who].astype(int),
            "hospital": [f"h{c}" for c in where],
            "person": [f"p-{p:05d}" for p in who],
            **{f"x{k}": trait[:, k] + 0.01 * rng.normal(size=len(who)) for k in range(20)},
        }
    )


ROLES = Roles("died", "hospital", patient="person")


def splits_of(frame: pl.DataFrame, split: np.ndarray) -> pl.DataFrame:
    return frame.with_columns(split=pl.Series(split)).group_by("person").agg(n=pl.col("split").n_unique())


@given(st.integers(0, 1000), st.integers(2, 5), st.integers(1, 3), st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_nobody_is_in_two_splits(table, centers, visits, seed):
    frame = stays(150, centers, visits, table)
    split = assign_splits(federate(frame, ROLES, "t", 3), seed)
    assert (splits_of(frame, split)["n"] == 1).all()


def test_labels_of_noise_cannot_be_learned_from_patients_of_other_centers():
    """Each patient's outcome is a coin, and each is in two centers: what scores above one half remembers."""
    frame = stays(400, centers=4)
    # The same rows, each center's patients taken for its own: memory shows as skill.
    apart = frame.with_columns(person=pl.col("person") + "@" + pl.col("hospital"))

    def centralized(table: pl.DataFrame) -> float:
        federation = federate(table, ROLES, "coins")
        runs = [abps.simulate(federation, "centralized", seed, rounds=30) for seed in (11, 22, 33, 44)]
        return float(np.mean([run.auroc.mean for run in runs]))

    assert abs(centralized(frame) - 0.5) < 0.06  # the standard error of 4 × 60 patients is about .035
    assert centralized(apart) > 0.75


def test_sites_agree_without_asking_each_other(tmp_path):
    frame = stays(300, centers=3)
    whole = federate(frame, ROLES, "t")
    book = codebook(whole, 5)
    assert book.shared_patients and Codebook.from_json(book.to_json()) == book
    seen: dict[int, int] = {}
    for k, center in enumerate(whole.centers):
        path = tmp_path / f"{k}.csv"
        frame.filter(pl.col("hospital") == center).drop("hospital").write_csv(path)
        own = own_table(path, center, "died", book, patient="person")
        split = assign_splits(own, 5, book.shared_patients)
        assert codebook(own, 5).shared_patients  # a center by itself cannot know
        for person, part in zip(own.patient.tolist(), split.tolist()):
            assert seen.setdefault(person, part) == part
        # The simulation of what sites do, by the same codebook, has the same rows in the same order.
        alone, together = prepare(own, 5, book), prepare(whole, 5, book).only(k)
        np.testing.assert_array_equal(alone.train.x, together.train.x)
        np.testing.assert_array_equal(alone.test.y, together.test.y)
    assert len(seen) == 300


def test_where_patients_are_a_centers_own_quotas_hold():
    frame = stays(200, centers=3, everywhere=False)
    federation = federate(frame, ROLES, "t")
    split = assign_splits(federation, 7)
    people = frame.with_columns(split=pl.Series(split)).unique("person")
    for _, mine in people.group_by("hospital", "died"):
        assert tuple(np.bincount(mine["split"], minlength=3)) == quotas(mine.height)
    assert not codebook(federation, 7).shared_patients


def test_those_of_one_center_fill_what_patients_of_several_leave():
    frame = pl.concat([stays(150, 3), stays(150, 3, 1, seed=1).with_columns(person="q" + pl.col("person"))])
    split = assign_splits(federate(frame, ROLES, "t"), 7)
    people = frame.with_columns(split=pl.Series(split)).unique(["person", "hospital"])
    for _, mine in people.group_by("hospital", "died"):
        assert tuple(np.bincount(mine["split"], minlength=3)) == quotas(mine.height)


def test_a_patient_of_several_centers_lands_by_shares():
    share = np.bincount(by_key(np.arange(40_000), 3), minlength=3) / 40_000
    np.testing.assert_allclose(share, (0.70, 0.15, 0.15), atol=0.008)
    assert (by_key(np.arange(100), 3) != by_key(np.arange(100), 4)).any()


@pytest.mark.parametrize("patient", ["person", None])
def test_the_order_of_rows_changes_no_bit(patient):
    frame = stays(200, centers=3)
    frame = pl.concat([frame, frame.head(9)])  # some rows are there twice
    roles = replace(ROLES, patient=patient, drop=() if patient else ("person",))
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=3)
    tables = [federate(f, roles, "t") for f in (frame, shuffled)]
    one, two = (prepare(table, 11) for table in tables)
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(one, part).x, getattr(two, part).x)
        np.testing.assert_array_equal(getattr(one, part).y, getattr(two, part).y)
    np.testing.assert_array_equal(one.metadata, two.metadata)
    first, second = (abps.simulate(table, "abps-pq-k1", seed=11, rounds=3) for table in tables)
    assert first.auroc.per_center == second.auroc.per_center


def test_the_order_of_rows_of_a_table_with_times_and_gaps_changes_no_bit():
    frame, roles = builtin_table("icu-synthetic:centers=6,stays=1500")
    frame = frame.with_columns(
        patient=pl.when(pl.int_range(pl.len()) % 7 == 0).then(None).otherwise(pl.col("patient"))
    )
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=4)
    one, two = (prepare(federate(f, roles, "t", 3), 11) for f in (frame, shuffled))
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(one, part).x, getattr(two, part).x)


def test_the_built_in_federation_is_split_as_ever():
    """Patients of the generator never change the center: quotas, and the splits of all earlier results."""
    federation = abps.load("icu-synthetic:centers=24,heterogeneity=4")
    split = assign_splits(federation, 11)
    assert np.bincount(split).tolist() == [5200, 1115, 1095]
    weights = np.arange(1, federation.rows + 1) % 9973
    assert int((split * weights).sum()) == 12_273_052


def test_keys_are_numbers_that_all_tables_share():
    content = np.arange(6, dtype=np.uint64)
    text = patient_numbers(pl.Series(["17", "a b", " 17 ", None, "", None]), content)
    number = patient_numbers(pl.Series([17.0, None, 3.0, 17.0, 3.0, None]), content)
    assert text[0] == text[2] == number[0] == number[3] == 17 and number[2] == number[4] == 3
    assert (text[3:] < 0).all() and len(set(text[3:].tolist())) == 3  # nobody is a patient of its own
    assert text[1] > 2**61
    with_others = patient_numbers(pl.Series(["zz", "a b"]), content[:2])
    assert with_others[1] == text[1]
