"""Federations of the benchmark are read and made; what is missing is said."""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl
import pytest

from abps.core.errors import RequestError
from abps.lab.suite import Description, make_federation, missing, read_description, smaller, suite

OWN = """
name = "mine"
title = "My hospitals"
file = "stays.csv"
sha256 = "{digest}"
label = "died"
center = "hospital"
obtain = "Ask the data office."
licence = "internal"
"""


@pytest.fixture
def mine(tmp_path):
    rng = np.random.default_rng(1)
    n = 400
    pl.DataFrame(
        {
            "hospital": rng.choice(["a", "b", "c"], n),
            "age": rng.normal(60, 10, n),
            "died": rng.integers(0, 2, n),
        }
    ).write_csv(tmp_path / "stays.csv")
    digest = hashlib.sha256((tmp_path / "stays.csv").read_bytes()).hexdigest()
    (tmp_path / "mine.toml").write_text(OWN.format(digest=digest))
    return tmp_path


def test_the_package_describes_eleven_real_and_nine_synthetic_federations():
    found = suite()
    real = [each for each in found.values() if each.real]
    assert len(real) == 11 and len(found) == 20
    assert all(each.source and each.licence and each.obtain and each.title for each in found.values())


def test_a_federation_of_one_s_own_enters_by_one_file(mine):
    found = suite([mine / "mine.toml"])["mine"]
    assert missing(found, mine) == ""
    federation = make_federation(found, mine, world=1)
    assert federation.name == "mine" and federation.size == 3 and federation.rows == 400


def test_what_is_missing_is_said_with_how_to_get_it(mine, tmp_path):
    found = read_description(mine / "mine.toml")
    assert "--data-folder" in missing(found, None)
    assert "Ask the data office" in missing(found, tmp_path / "elsewhere")
    with (mine / "stays.csv").open("a") as file:
        file.write("a,50,1\n")
    assert "SHA-256" in missing(found, mine)
    with pytest.raises(RequestError, match="another version"):
        make_federation(found, mine, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = 'x'", "file .* or synthetic"),
        ("name = 'x'\nfile = 'a.csv'", "label and center"),
        ("name = 'x'\nsynthetic = 'icu-synthetic'\nlable = 'died'", "no entry 'lable'.*label"),
        ("name = ", "not a description"),
    ],
)
def test_bad_descriptions_get_one_sentence(tmp_path, text, says):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(RequestError, match=says):
        read_description(tmp_path / "bad.toml")


def test_large_federations_are_cut_to_whole_hospitals():
    whole = make_federation(Description("large", synthetic="icu-synthetic:centers=40"), None, 1)
    part = smaller(whole, 5000)
    assert smaller(whole, 0) is whole and smaller(whole, whole.rows) is whole
    assert 4000 < part.rows <= 5000 and part.size < whole.size and set(part.centers) < set(whole.centers)
    sizes = dict(zip(whole.centers, np.bincount(whole.center)))
    for name, rows in zip(part.centers, np.bincount(part.center), strict=True):
        assert rows == sizes[name]
    k = whole.centers.index(part.centers[3])
    assert part.groups[3] == whole.groups[k]
    assert (part.label[part.center == 3] == whole.label[whole.center == k]).all()


def test_names_are_unique(mine):
    with pytest.raises(RequestError, match="two federations are called"):
        suite([mine / "mine.toml", mine / "mine.toml"])


def test_worlds_differ_and_repeat():
    found = suite()["world-severe"]
    one, same, other = (make_federation(found, None, world) for world in (1, 1, 2))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_real_federations_are_made_where_the_data_are(data):
    folder = data("hospitals").parent
    for name in ("heart", "rand-hie", "zambia", "dialysis-rio"):
        found = suite()[name]
        assert missing(found, folder) == ""
        assert make_federation(found, folder, 1).size >= 4
