"""Runs on disk: whole, ours and unchanged, or not used."""

import json
import shutil
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import abps
from abps.core.errors import RequestError
from abps.engine.simulate import simulate
from abps.study.plan import Request, Source, key_of, make_plan
from abps.study.records import (
    DECISIONS,
    RECEIPT,
    RESULT,
    SCORES,
    Damaged,
    StudyFolder,
    look,
    read_federation,
    write_run,
)

SMALL = Source("icu-synthetic:centers=8,stays=800")


@pytest.fixture(scope="module")
def plan():
    return make_plan(Request((SMALL,), ("local", "abps-pq-k1"), (1,), 1))


@pytest.fixture(scope="module")
def stored(plan, tmp_path_factory):
    """Two finished runs, and their keys."""
    root = tmp_path_factory.mktemp("runs")
    for run in plan.runs:
        result = simulate(plan.federations[run.data], run.method, run.seed, run.rounds)
        write_run(root / run.method, result, run.identity(run.config()))
    return root, {run.method: run.key for run in plan.runs}


@pytest.fixture
def folder(stored, tmp_path):
    """A copy of a finished run that a test may spoil."""
    shutil.copytree(stored[0] / "abps-pq-k1", tmp_path / "run")
    return tmp_path / "run"


def test_a_finished_run_is_found_by_its_key(folder, stored):
    found = look(folder, stored[1]["abps-pq-k1"])
    assert found.result is not None and not found.problem
    assert found.result.to_json() == json.loads((folder / RESULT).read_text())
    receipt = json.loads((folder / RECEIPT).read_text())
    assert receipt["key"] == key_of(receipt["identity"]) == stored[1]["abps-pq-k1"]


def truncated(path):
    path.write_bytes(path.read_bytes()[:-30])


def emptied(path):
    path.write_bytes(b"")


def removed(path):
    path.unlink()


def another_number(path):
    text = path.read_text()
    at = text.index('"mean": 0.') + len('"mean": 0.')
    path.write_text(text[:at] + ("1" if text[at] != "1" else "2") + text[at + 1 :])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (RESULT, truncated), (RESULT, emptied), (RESULT, removed), (RESULT, another_number),
        (DECISIONS, truncated), (DECISIONS, removed), (SCORES, truncated), (SCORES, removed),
        (RECEIPT, truncated), (RECEIPT, emptied), (RECEIPT, removed),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_and_its_run_not_used(folder, stored, name, damage):
    damage(folder / name)
    found = look(folder, stored[1]["abps-pq-k1"])
    assert found.result is None
    assert str(folder / (RESULT if name == RECEIPT and damage is removed else name)) in found.problem


def test_another_runs_files_are_not_used(folder, stored):
    for name in (RESULT, DECISIONS, RECEIPT):
        shutil.copy(stored[0] / "local" / name, folder / name)
    assert "belongs to another run" in look(folder, stored[1]["abps-pq-k1"]).problem
    receipt = json.loads((folder / RECEIPT).read_text())
    (folder / RECEIPT).write_text(json.dumps(receipt | {"key": stored[1]["abps-pq-k1"]}))
    assert "was changed" in look(folder, stored[1]["abps-pq-k1"]).problem


def test_a_mixed_folder_is_not_used(folder, stored):
    shutil.copy(stored[0] / "local" / RESULT, folder / RESULT)
    assert "changed or cut off" in look(folder, stored[1]["abps-pq-k1"]).problem


@given(
    name=st.sampled_from([RESULT, DECISIONS, SCORES, RECEIPT]),
    place=st.floats(0, 1),
    flip=st.integers(1, 255),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_changed_byte_changes_what_is_used(folder, stored, name, place, flip):
    path = folder / name
    content = path.read_bytes()
    original = json.loads((stored[0] / "abps-pq-k1" / RESULT).read_text())
    at = min(int(place * len(content)), len(content) - 1)
    path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
    found = look(folder, stored[1]["abps-pq-k1"])
    path.write_bytes(content)
    assert (found.result is None and found.problem) or found.result == original


def test_an_interrupted_write_leaves_nothing_that_counts(plan, stored, tmp_path, monkeypatch):
    run = plan.runs[0]
    result = simulate(plan.federations[run.data], run.method, run.seed, run.rounds)
    content = replace(run, folds=None).identity(run.config())
    write_run(tmp_path, result, content)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("abps.study.records.save", killed)
    with pytest.raises(KeyboardInterrupt):
        write_run(tmp_path, result, content)
    assert look(tmp_path, run.key).result is None


# ---------------------------------------------------------------- the study's folder


def test_a_study_folder_is_opened_again_by_the_same_request_and_may_grow(plan, tmp_path):
    study = StudyFolder(tmp_path / "s")
    assert study.open(plan) == [] == study.open(plan)
    assert [run.key for run in study.read().runs] == [run.key for run in plan.runs]
    more = make_plan(Request((SMALL,), ("local", "fedavg"), (1, 2), 1))
    assert study.open(more) == [] and len(study.read().runs) == 4


@pytest.mark.parametrize(
    "changes",
    [{"rounds": 2}, {"sources": (Source("icu-synthetic:centers=9,stays=800"),)}, {"settings": {"lr": "0.1"}}],
)
def test_another_study_in_the_folder_is_refused(plan, tmp_path, changes):
    study = StudyFolder(tmp_path / "s")
    study.open(plan)
    given = {"sources": (SMALL,), "methods": ("local",), "seeds": (1,), "rounds": 1} | changes
    with pytest.raises(RequestError, match="holds a study with other "):
        study.open(make_plan(Request(**given)))


def test_a_folder_with_other_things_is_refused(plan, tmp_path):
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(RequestError, match=r"holds other files \(thesis.tex\)"):
        StudyFolder(tmp_path).open(plan)
    with pytest.raises(RequestError, match="is a file"):
        StudyFolder(tmp_path / "thesis.tex").open(plan)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "something/else"}', "null"])
def test_a_damaged_plan_is_refused_by_the_report_and_written_anew_by_the_study(plan, tmp_path, text):
    study = StudyFolder(tmp_path / "s")
    study.open(plan)
    study.path.write_text(text)
    with pytest.raises(RequestError, match="is damaged or not a study"):
        study.read()
    assert "damaged" in study.open(plan)[0]
    assert len(study.read().runs) == 2


def test_a_plan_edited_by_hand_is_noticed(plan, tmp_path):
    study = StudyFolder(tmp_path / "s")
    study.open(plan)
    study.path.write_text(study.path.read_text().replace('"seed": 1', '"seed": 7'))
    with pytest.raises(RequestError, match="is damaged"):
        study.read()


def rewritten(study, **changes):
    """The plan of a study with other content, and a digest that fits."""
    document = json.loads(study.path.read_text())
    del document["digest"]
    document |= changes
    study.path.write_text(json.dumps(document | {"digest": key_of(document)}))


def test_a_study_of_an_older_version_is_read_with_what_it_says_more(plan, tmp_path):
    study = StudyFolder(tmp_path / "s")
    study.open(plan)
    document = json.loads(study.path.read_text())
    older = [run | {"leave_out": 0} for run in document["runs"]]
    rewritten(study, runs=older, request=document["request"] | {"leave_out": 0})
    assert [run.key for run in study.read().runs] == [run.key for run in plan.runs]
    assert study.open(plan) == []


def test_a_study_of_the_version_before_is_read_and_its_runs_are_computed_anew(tmp_path, monkeypatch, capsys):
    def compared():
        return abps.compare(SMALL.load(), ["local"], [1], tmp_path / "s", rounds=1, references=False)

    with monkeypatch.context() as before:
        before.setattr("abps.study.plan.VERSION", "0.1.0")
        compared()
    assert abps.load_study(tmp_path / "s").frame().equals(compared().frame())
    assert "belongs to no run of this study" in capsys.readouterr().err.replace("\n", " ")
    for path in (tmp_path / "s" / "runs").glob("*/scores.parquet"):  # as 0.1.0 left its runs
        receipt = json.loads((path.parent / "run.json").read_text())
        del receipt["files"][path.name]
        (path.parent / "run.json").write_text(json.dumps(receipt))
        path.unlink()
    with pytest.raises(RequestError, match=r"scores.parquet\) are missing; ask for the same comparison"):
        abps.load_study(tmp_path / "s").report()


def test_a_study_of_another_format_is_refused_and_stays_as_it_is(plan, tmp_path):
    study = StudyFolder(tmp_path / "s")
    study.open(plan)
    rewritten(study, schema="abps.study/0")
    before = study.path.read_bytes()
    for ask in (study.read, lambda: study.open(plan)):
        with pytest.raises(RequestError, match=r"another version .* or compare into a new folder"):
            ask()
    assert study.path.read_bytes() == before


def test_left_overs_of_a_killed_process_are_removed_and_strangers_named(plan, tmp_path):
    study = StudyFolder(tmp_path / "s")
    study.open(plan)
    half = study.folder(plan.runs[0]) / ".result.json.abc.part"
    half.parent.mkdir(parents=True)
    half.write_text("{")
    (study.root / "runs" / "holiday-photos").mkdir()
    study.open(plan)
    assert not half.exists()
    assert study.strangers(list(plan.runs)) == ["holiday-photos"]


def test_two_processes_do_not_share_a_study(plan, tmp_path):
    study = StudyFolder(tmp_path / "s")
    with (
        study.alone(),
        pytest.raises(RequestError, match="another process is working"),
        StudyFolder(tmp_path / "s").alone(),
    ):
        pass
    with study.alone():
        pass


# ---------------------------------------------------------------- the data beside it


@pytest.mark.parametrize("data", ["icu-synthetic:centers=8,stays=800", "fedprox-synthetic:centers=6"])
def test_a_stored_federation_is_the_same_federation(tmp_path, data):
    federation, study = Source(data).load(), StudyFolder(tmp_path)
    assert study.keep(federation) == ""
    again = read_federation(study.cache, federation.fingerprint())
    assert again.fingerprint() == federation.fingerprint() and again.outcome == federation.outcome
    assert again.features.equals(federation.features) and again.centers == federation.centers
    assert again.left_out == federation.left_out and again.groups == federation.groups
    assert (study.cache / federation.fingerprint()).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["features.parquet", "rows.parquet", "federation.json"])
def test_damaged_data_are_named_and_written_anew(tmp_path, name):
    federation, study = SMALL.load(), StudyFolder(tmp_path)
    study.keep(federation)
    path = study.cache / federation.fingerprint() / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(Damaged, match=federation.fingerprint()):
        read_federation(study.cache, federation.fingerprint())
    assert "written anew" in study.keep(federation)
    read_federation(study.cache, federation.fingerprint())
