"""A study's file: it says what the study asked for, and asks for the same again."""

import json
import tomllib
from pathlib import Path

import pytest

import abps
from abps.cli import study_commands
from abps.cli.main import main

SMALL = "icu-synthetic:centers=6,stays=900"


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out = capsys.readouterr()
    return stop.value.code or 0, out.out, out.err


def test_the_file_beside_a_study_asks_for_the_same_study(tmp_path, capsys):
    words = ["--data", SMALL, "--methods", "local,fedavg", "--seeds", "3,5", "--rounds", "2", "--folds", "1",
             "--no-references", "--set", "lr=0.02", "--jobs", "1",
             "--drop", "race", "--json"]  # fmt: skip
    code, first, _ = call(capsys, "compare", *words, "--out", tmp_path / "first")
    file = tmp_path / "first" / "study.toml"
    asked = tomllib.loads(file.read_text())
    assert code == 0 and asked["methods"] == ["local", "fedavg"] and asked["seeds"] == [3, 5]
    assert asked["references"] is False
    validate(asked)
    code, second, _ = call(capsys, "compare", "--config", file, "--out", tmp_path / "second", "--json")
    assert code == 0 and json.loads(first)["data"] == json.loads(second)["data"]
    names = [sorted(p.name for p in (tmp_path / part / "runs").iterdir()) for part in ("first", "second")]
    assert names[0] == names[1]  # a run's name has the digest of everything that decides it
    assert (tmp_path / "second" / "study.toml").read_text() == file.read_text()


def test_the_command_line_comes_before_the_file(tmp_path, capsys):
    file = tmp_path / "study.toml"
    file.write_text(f'data = "{SMALL}"\nmethods = "local"\nseeds = 3\nrounds = 1\nfolds = 1\njobs = 1\n'
                    f'references = false\nout = "{tmp_path / "out"}"\n')  # fmt: skip
    code, out, _ = call(capsys, "compare", "--config", file, "--seeds", "4", "--json")
    assert code == 0 and json.loads(out)["report"].startswith(str(tmp_path / "out"))
    (run,) = (tmp_path / "out" / "runs").iterdir()
    assert run.name.startswith("local-s4-")


@pytest.mark.parametrize(
    "text, says",
    [
        ("method = 'fedavg'", "no option 'method' (did you mean 'methods'?)"),
        ("seeds = [1, ", "is not TOML"),
        ("[seeds]\na = 1", "seeds is no table"),
        ("methods = 'local'\nrounds = 'many'\nout = 'x'", "rounds"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path, capsys, text, says):
    file = tmp_path / "study.toml"
    file.write_text(text)
    code, _, err = call(capsys, "compare", "--config", file)
    assert code == 2 and says in err and "Traceback" not in err
    code, _, err = call(capsys, "compare", "--config", tmp_path / "none.toml")
    assert code == 2 and "cannot be read" in err


def validate(asked):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(asked, study_commands.schema())


def test_the_schema_that_is_shipped_is_that_of_the_command():
    shipped = json.loads(Path(study_commands.__file__).with_name("study.schema.json").read_text())
    assert shipped == study_commands.schema(), "write it anew: python -m abps.cli.study_commands"
    assert {"methods", "out", "data", "label", "set", "executor", "json"} <= set(shipped["properties"])
    with pytest.raises(pytest.importorskip("jsonschema").ValidationError):
        validate({"rounds": "many"})


def test_a_study_made_in_python_has_a_file_that_says_where_its_data_came_from(tmp_path):
    made = abps.load(SMALL)
    abps.compare(made, ["local"], [3], tmp_path / "s", rounds=1, folds=1, references=False)
    text = (tmp_path / "s" / "study.toml").read_text()
    assert tomllib.loads(text)["data"] == [SMALL] and "given in Python" not in text
    frame = made.features.with_columns(died=made.label, hospital=made.center)
    named = abps.federation(frame, "died", "hospital", name="mine")
    abps.compare(named, ["local"], [3], tmp_path / "t", rounds=1, folds=1, references=False)
    assert "given in Python" in (tmp_path / "t" / "study.toml").read_text()
