"""A center that encodes its own table by the codebook gets what the simulation gives it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from abps.core.errors import RequestError
from abps.data.codebook import Codebook, Column, merged
from abps.data.prepare import codebook, prepare
from abps.data.table import MIN_CLASS, federate, own_outcome, own_table
from abps.lab.synthetic import builtin_table


@pytest.fixture(scope="module")
def federation():
    frame, roles = builtin_table("icu-synthetic:centers=6,stays=1500")
    return frame, roles, federate(frame, roles, "icu", MIN_CLASS)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_alone_or_together_a_center_sees_the_same_numbers(federation, tmp_path, suffix):
    frame, roles, whole = federation
    together = prepare(whole, 11)
    book = Codebook.from_json(json.loads(json.dumps(codebook(whole, 11).to_json())))
    assert tuple(c.name for c in book.columns) == together.columns
    for i, center in enumerate(whole.centers):
        path = tmp_path / f"{i}.{suffix}"
        own = frame.filter(pl.col("center") == center).drop("center", "careunit")
        getattr(own, f"write_{suffix}")(path)
        alone = prepare(
            own_table(path, center, roles.label, book, patient=roles.patient, time=roles.time), 11, book
        )
        expected = together.only(i)
        for part in ("train", "validation", "test"):
            np.testing.assert_array_equal(getattr(alone, part).x, getattr(expected, part).x)
            np.testing.assert_array_equal(getattr(alone, part).y, getattr(expected, part).y)
        np.testing.assert_array_equal(alone.metadata, expected.metadata)
        assert alone.metadata_names == expected.metadata_names


def test_what_is_published_fits_in_four_bytes_a_number(federation):
    vectors = prepare(federation[2], 11).metadata
    np.testing.assert_array_equal(vectors, vectors.astype(np.float32))


def test_a_codebook_says_nothing_that_was_counted(federation):
    text = json.dumps(codebook(federation[2], 11).to_json())
    values = json.loads(text)
    assert set(values) == {"schema", "time", "descriptors", "columns"}
    assert all(set(c) <= {"source", "kind", "level"} for c in values["columns"])


def test_codebooks_of_several_sites_become_one():
    a = Codebook((Column("age", "number"), Column("ward", "level", "A"), Column("dm", "flag")), ("dm", "hf"))
    b = Codebook(
        (
            Column("age", "number"),
            Column("age", "missing"),
            Column("ward", "level", "B"),
            Column("dm", "number"),
        ),
        ("hf",),
    )
    both = merged([a, b])
    assert [c.name for c in both.columns] == ["age", "age missing", "dm", "ward=A", "ward=B"]
    assert both.columns[2].kind == "number" and both.descriptors == ("hf",)
    assert merged([a]) == merged([a, a])


def test_codebooks_that_contradict_each_other():
    number, text = Codebook((Column("x", "number"),)), Codebook((Column("x", "level", "A"),))
    with pytest.raises(RequestError, match="'x' is text for one site"):
        merged([number, text])
    with pytest.raises(RequestError, match="time column"):
        merged([number, Codebook((Column("x", "number"),), time=True)])
    with pytest.raises(RequestError, match="no codebook"):
        merged([])


BOOK = {"schema": "abps.codebook/3", "columns": [], "descriptors": [], "time": False}


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        BOOK,
        BOOK | {"schema": "x"},
        BOOK | {"columns": [{"source": "a", "kind": "odd"}]},
        BOOK | {"columns": [{"source": "a", "kind": "level"}]},
    ],
)
def test_a_file_that_is_no_codebook(content):
    with pytest.raises(RequestError, match="not a codebook"):
        Codebook.from_json(content)


def write(tmp_path, **columns):
    path = tmp_path / "own.csv"
    pl.DataFrame(columns).write_csv(path)
    return path


def test_a_table_that_does_not_fit_the_codebook(tmp_path):
    path = write(tmp_path, died=[0, 1] * 10, age=list(range(20)), ward=["A", "B"] * 10)
    book = Codebook((Column("agee", "number"),))
    with pytest.raises(RequestError, match=r"asks for the column 'agee'.*did you mean 'age'"):
        own_table(path, "ada", "died", book=book)
    with pytest.raises(RequestError, match="'ward' holds text"):
        own_table(path, "ada", "died", book=Codebook((Column("ward", "number"),)))
    with pytest.raises(RequestError, match="asks for a time column"):
        own_table(path, "ada", "died", book=Codebook((Column("age", "number"),), time=True))


def test_a_column_without_a_value_at_this_site_is_zeros(tmp_path):
    path = write(tmp_path, died=[0, 1] * 10, age=list(range(20)), lactate=[None] * 20)
    book = Codebook((Column("age", "number"), Column("lactate", "number"), Column("lactate", "missing")))
    rows = prepare(own_table(path, "ada", "died", book=book), 3, book).train
    assert not rows.x[:, 1].any() and rows.x[:, 2].all()


def test_a_site_without_enough_of_each_class(tmp_path):
    path = write(tmp_path, died=[0] * 18 + [1] * 2, age=list(range(20)))
    with pytest.raises(RequestError, match="fewer than 3 positive rows"):
        own_table(path, "ada", "died")


def _labelled(folder, name, words):
    path = folder / f"{name}.csv"
    ages = [str(40 + k % 37) for k in range(60)]
    rows = [f"{age},{words[k % 3 == 0]}" for k, age in enumerate(ages)]
    path.write_text("\n".join(["age,outcome", *rows]) + "\n")
    return path


def test_an_outcome_that_is_turned_round_is_not_federated(tmp_path):
    """1 = died, 2 = alive here; 1 = died, 0 = alive there: the larger number is not the event at both."""
    zero, two = _labelled(tmp_path, "zero", ("0", "1")), _labelled(tmp_path, "two", ("2", "1"))
    books = []
    for path, positive in ((zero, None), (two, None), (two, "1")):
        found = own_outcome(path, "outcome", positive=positive)
        book = Codebook((Column("age", "number"),), events=found.event_words, others=found.other_words)
        assert Codebook.from_json(book.to_json()) == book
        books.append(book)
    with pytest.raises(RequestError, match="'1' is the event at one site and not at another"):
        merged(books[:2])
    agreed = merged([books[0], books[2]])
    assert (agreed.events, agreed.others) == (("1",), ("0", "2"))
    with pytest.raises(RequestError, match="the other way round than the codebook"):
        own_table(two, "two", "outcome", book=agreed)
    silent = replace(agreed, events=(), others=())  # a codebook that was written by hand
    with pytest.raises(RequestError, match="does not say whether '1'"):
        own_table(two, "two", "outcome", book=silent)
    assert own_table(zero, "zero", "outcome", book=silent).rows == own_table(zero, "zero", "outcome").rows
    right = own_table(two, "two", "outcome", book=agreed, positive="1")
    assert right.label.tolist() == own_table(zero, "zero", "outcome", book=agreed).label.tolist()
    home = _labelled(tmp_path, "home", ("home", "expired"))
    with pytest.raises(RequestError, match="does not say whether"):
        own_table(home, "home", "outcome", book=agreed)
    told = own_table(home, "home", "outcome", book=agreed, positive="expired")
    assert told.label.tolist() == right.label.tolist()
