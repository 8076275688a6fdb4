"""Columns that differ between hospitals: a map beside the table, its dry run, its place in the proposal."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from abps import files
from abps.cli.main import main
from abps.core.errors import RequestError
from abps.data.codebook import Codebook, Column, merged
from abps.data.harmonise import added, map_digest, map_path, read_harmonised
from abps.data.scales import PROBABILITIES, Scale
from abps.data.screening import conversion
from abps.sites.consent import sitefile
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.proposal import Proposal
from abps.sites.consent.sitefile import SiteFile

from .network import close
from .test_measuring import Desks, uncounted

ROWS = 400


@pytest.fixture
def tables(tmp_path):
    """The same patients twice: as the study has them, and as a German hospital would write them."""
    rng = np.random.default_rng(5)
    creatinine = np.exp(rng.normal(0, 0.4, ROWS)).round(3)
    fahrenheit = rng.normal(98.6, 1.2, ROWS)
    plain = pl.DataFrame(
        {
            "died": rng.integers(0, 2, ROWS),
            "creatinine": creatinine,
            "temperature": (fahrenheit - 32) / 1.8,
            "sex": rng.choice(["male", "female"], ROWS),
            "age": rng.integers(20, 90, ROWS),
        }
    )
    theirs = pl.DataFrame(
        {
            "died": plain["died"],
            "Creatinin": [f"{v * 88.42:.4f}".replace(".", ",") for v in creatinine],
            "temperature": fahrenheit,
            "sex": plain["sex"].replace({"male": "M.", "female": "W."}),
            "age": plain["age"],
        }
    )
    plain.write_parquet(tmp_path / "plain.parquet")
    theirs.write_csv(tmp_path / "theirs.csv", separator=";")
    return tmp_path


def book(tables) -> Codebook:
    frame = pl.read_parquet(tables / "plain.parquet")
    names = ("creatinine", "temperature", "age")
    scales = {}
    for name in names:
        values = frame[name].to_numpy()
        quantiles = tuple(float(v) for v in np.quantile(values, PROBABILITIES))
        scales[name] = Scale(float(values.mean()), float(values.std()), float(values.mean()), quantiles)
    columns = [Column(name, "number") for name in names]
    columns += [Column("sex", "level", level) for level in ("female", "male")]
    return Codebook(tuple(columns), statistics=scales)


def site(tables, name: str) -> SiteFile:
    own = SiteFile("north", str(tables / name), "died", str(tables / "studies"))
    own.write(tables)
    return own


def run(capsys, *words, code=0):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    assert ended.value.code == code, said.err
    return said.out + said.err


def test_the_dry_run_finds_names_and_units_and_its_map_gives_the_same_table(tables, capsys):
    own = site(tables, "theirs.csv")
    (tables / "book.json").write_text(json.dumps(book(tables).to_json()))
    proposed = map_path(own.table)
    ask = ("site", "harmonise", tables, "--codebook", tables / "book.json", "--out", proposed)
    said = run(capsys, *ask)
    assert "'creatinine' is not here; 'Creatinin' is close" in said and "°F and °C" in said
    assert "no level of the study" in said
    first = tomllib.loads(proposed.read_text())
    assert first["Creatinin"] == {"name": "creatinine"} and set(first) == {"Creatinin", "temperature", "sex"}
    first["sex"]["levels"] = {"M.": "male", "W.": "female"}  # what a person corrects
    proposed.write_text(files.as_toml(first))
    said = run(capsys, *ask)  # now the unit shows
    assert "'creatinine' seems to have another unit (µmol/L and mg/dL" in said
    entries = tomllib.loads(proposed.read_text())
    assert entries["Creatinin"] == {"name": "creatinine", "factor": pytest.approx(1 / 88.42)}
    assert "all columns fit" in run(capsys, *ask[:-2])
    found, plain = read_harmonised(tables / "theirs.csv").frame, pl.read_parquet(tables / "plain.parquet")
    assert found["sex"].to_list() == plain["sex"].to_list()
    for name in ("creatinine", "temperature"):
        np.testing.assert_allclose(found[name].cast(pl.Float64), plain[name], rtol=2e-4)
    shown = run(capsys, "check", tables / "theirs.csv", "--label", "died", "--center", "sex", code=0)
    assert "3 columns by theirs.harmonise.toml" in shown


def test_the_map_is_in_the_codebook_and_in_the_proposal_s_digest(tables, capsys):
    own = site(tables, "theirs.csv")
    agreed = book(tables)
    plain = Proposal(Agreement("s", "abps-plus", agreed))
    map_path(own.table).write_text('[Creatinin]\nname = "creatinine"\nfactor = 0.01131\n')
    digest = map_digest(own.table)
    with pytest.raises(RequestError, match="is not the map that the study's codebook was made with"):
        own.read_table(agreed)
    init = ("site", "init", "--site", "north", "--out", tables, "--table", own.table, "--label", "died")
    run(capsys, *init, "--positive", "1")
    written = Codebook.from_json(json.loads((tables / "codebook.json").read_text()))
    assert written.harmonised == (digest,)
    both = merged([written, replace(written, harmonised=("f" * 16,))])
    assert both.harmonised == tuple(sorted((digest, "f" * 16)))
    bound = replace(agreed, harmonised=(digest,))
    own = sitefile.read(tables / sitefile.FILE)  # as init wrote it
    own.read_table(replace(bound, columns=bound.columns[:1]))
    text = map_path(own.table).read_text()
    for other in (None, text.replace("0.01131", "0.0113")):
        if other is None:
            map_path(own.table).unlink()
        else:
            map_path(own.table).write_text(other)
        with pytest.raises(RequestError, match="is not the map"):  # gone, or another
            own.read_table(replace(bound, columns=bound.columns[1:2]))
    map_path(own.table).write_text(text)
    study = Proposal(Agreement("s", "abps-plus", bound))
    assert study.digest() != plain.digest() and digest in str(study.terms())
    assert study.agreement.digest() != plain.agreement.digest()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[nothere]\nfactor = 2\n", "no column 'nothere'"),
        ("[sex]\nfactor = 2\n", "'sex' is not a column of numbers"),
        ("[age]\nfactor = 0\n", "that of 'age' is none"),
        ("[age]\nfactor = inf\n", "that of 'age' is none"),
        ("[age]\nunit = 'a'\n", "that of 'age' is none"),
        ("age = 3\n", "that of 'age' is none"),
        ("[age\n", "is not TOML"),
        ("[age]\nname = 'sex'\n", "two columns would be called 'sex'"),
    ],
)
def test_a_wrong_map_is_one_sentence(tables, text, words):
    shutil.copy(tables / "theirs.csv", tables / "copy.csv")
    map_path(tables / "copy.csv").write_text(text)
    with pytest.raises(RequestError, match=words):
        read_harmonised(tables / "copy.csv")


def test_known_conversions_and_maps_that_are_added():
    assert conversion("creatinine", 88.0, 1.0) == (pytest.approx(1 / 88.42), 0.0, "µmol/L and mg/dL")
    assert conversion("Kreatinin", 1.0, 90.0)[0] == 88.42
    factor, offset, _ = conversion("temperature", 98.6, 37.0)
    assert 98.6 * factor + offset == pytest.approx(37.0)
    assert conversion("something", 10.0, 5.0) == (0.5, 0.0, "")
    known = {"T": {"name": "temperature", "factor": 2.0, "offset": 1.0}}
    both = added(known, {"temperature": {"factor": 3.0, "offset": 5.0}})
    assert both == {"T": {"name": "temperature", "factor": 6.0, "offset": 8.0}}
    assert tomllib.loads(files.as_toml({'a "b"': {"name": "ä", "levels": {"x": "y"}}})) == {
        'a "b"': {"name": "ä", "levels": {"x": "y"}}
    }


def test_masked_counts_show_the_site_whose_unit_is_another(four, tmp_path, capsys):
    """Common scales that four sites counted under masks, one of them in a unit 88 times as small."""
    name, folder = "sbp_mean", tmp_path / "tables"
    odd = min(four.names, key=lambda site: pl.read_parquet(four.tables[site]).height)
    folder.mkdir()
    tables = {site: folder / f"{site}.parquet" for site in four.names}
    for site, path in tables.items():
        factor = 88.42 if site == odd else 1.0
        pl.read_parquet(four.tables[site]).with_columns(pl.col(name) * factor).write_parquet(path)
    given = replace(four, tables=tables)
    agreement = uncounted(given, "abps-plus", model="linear")
    network = Desks(given, agreement, tmp_path)
    network.measured()
    close(network)
    (tmp_path / "book.json").write_text(json.dumps(agreement.book.to_json()))
    found = {}
    for site in four.names:
        home, roles = tmp_path / site, four.roles
        home.mkdir()
        SiteFile(site, str(tables[site]), roles.label, str(home), roles.patient, roles.time).write(home)
        shutil.copy(network.path(site), home / "test-scales.sqlite")
        words = ("site", "harmonise", home, "--codebook", tmp_path / "book.json", "--study", "test", "--json")
        found[site] = json.loads(run(capsys, *words))["entries"]
    assert found.pop(odd)[name] == {"factor": pytest.approx(1 / 88.42, rel=0.25)}
    assert not any(name in entries for entries in found.values())
