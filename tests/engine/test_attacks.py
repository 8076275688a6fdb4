"""Members that attack: who they are, what they change, and what never gets in."""

import numpy as np
import pytest

import abps
from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.lab.attacks import NAMES, Attack, Attackers, attackers_of, parse

SMALL = {"hidden": (8, 4)}


@pytest.fixture(scope="module")
def icu():
    return abps.load("icu-synthetic:centers=16,stays=1600")


def ids(count):
    return center_ids([f"h{k}" for k in range(count)])


def test_a_share_of_the_centers_attacks_the_same_ones_whatever_the_order():
    names = [f"h{k}" for k in range(30)]
    who = attackers_of(Attack("sign-flip", share=0.2), 7, center_ids(names)).who
    again = attackers_of(Attack("huge", share=0.2), 7, center_ids(names[::-1])).who
    assert who.sum() == 6
    assert (who == again[::-1]).all()
    assert attackers_of(Attack("nan", share=0.01), 7, ids(4)).who.sum() == 1
    assert attackers_of(Attack("nan", share=0.99), 7, ids(4)).who.sum() == 3


def test_what_is_sent_by_each_attack():
    start, sent, before = (
        np.full(shape, v, dtype=np.float32) for shape, v in ((3, 1.0), ((2, 3), 3.0), ((2, 3), 2.0))
    )
    received, who = np.full((2, 3), 9.0, dtype=np.float32), np.array([True, False])

    def spoiled(name, t=3):
        out = Attack(name).on_sent(sent, before, received, start, who, 5, t, ids(2))
        assert np.array_equal(out[1], sent[1])  # honest ones send what they have
        return out[0].tolist()

    assert spoiled("sign-flip") == spoiled("liar") == spoiled("clique") == [-1.0] * 3
    assert spoiled("scale") == [21.0] * 3
    assert np.isnan(spoiled("nan")).all()
    assert spoiled("free-rider") == [2.0] * 3
    assert spoiled("copy") == [9.0] * 3
    assert np.abs(spoiled("huge")).tolist() == [9e5] * 3
    assert spoiled("huge", t=4) == [3.0] * 3
    assert spoiled("random") != [3.0] * 3
    assert spoiled("label-flip") == [3.0] * 3


def test_only_the_attackers_training_rows_change(ready):
    who = np.arange(ready.size) == 1
    flipped = Attack("label-flip").on_rows(ready, who)
    for i in range(ready.size):
        mine, theirs = ready.train.only(i), flipped.train.only(i)
        assert np.array_equal(theirs.y, 1 - mine.y if i == 1 else mine.y)
        assert np.array_equal(theirs.x, mine.x)
    assert flipped.test is ready.test
    poisoned = Attack("poison").on_rows(ready, who)
    changed = (poisoned.train.x != ready.train.x).any(axis=1)
    start = ready.train.start
    assert changed[start[1] : start[2]].any()
    assert not changed[: start[1]].any()


def test_liars_publish_what_is_not_theirs():
    told = np.arange(8.0).reshape(4, 2)
    who = np.array([True, True, False, False])
    liars = Attackers(Attack("liar"), who).published(told)
    assert np.array_equal(liars[0], told[2:].mean(axis=0))
    clique = Attackers(Attack("clique"), who).published(told)
    assert np.array_equal(clique[0], clique[1])
    assert np.array_equal(clique[2:], told[2:])


@pytest.mark.parametrize("attack", ["nan", "huge"])
@pytest.mark.parametrize("method", ["random-k1", "fedavg", "abps-pq-k1", "gossip", "scaffold"])
def test_what_is_no_model_gets_in_nowhere(icu, method, attack):
    """One such message ruined the models of all: now none of it arrives."""
    run = abps.simulate(icu, method, seed=11, rounds=5, settings=SMALL, attack=attack)
    assert np.isfinite(run.models).all()
    assert np.abs(run.models).max() < 10.0


@pytest.mark.parametrize("attack", NAMES)
def test_every_attack_can_be_played_with_a_coordinator_and_with_a_server(icu, attack):
    for method, rounds in (("abps-plus", 5), ("fedavg", 3)):
        run = abps.simulate(icu, method, seed=11, rounds=rounds, attack=f"{attack}:share=0.25")
        assert np.isfinite(run.models).all() and np.isfinite(run.auroc.honest_mean)


def test_uploads_that_are_no_numbers_do_not_reach_the_common_model():
    icu = abps.load("icu-synthetic:centers=24,stays=4800")
    clean, attacked = (
        abps.simulate(icu, "abps-plus", seed=11, attack=attack) for attack in (None, "nan:share=0.25")
    )
    honest = ~attackers_of("nan:share=0.25", 11, center_ids(icu.centers)).who
    alike = np.array(list(clean.auroc.per_center.values()))[honest]
    assert np.isfinite(attacked.models).all()
    assert attacked.auroc.honest_mean > np.nanmean(alike) - 0.05


def test_who_sends_the_start_makes_nobody_forget():
    """Mixed with a model of nothing, half of one's own is gone, round after round; it points no other way."""
    icu = abps.load("icu-synthetic:centers=24,stays=4800")
    clean, hurt = (
        abps.simulate(icu, "abps-plus", seed=11, rounds=14, attack=attack)
        for attack in (None, "scale:share=0.25,strength=0")
    )
    who = attackers_of("scale:share=0.25", 11, center_ids(icu.centers)).who
    length = np.linalg.norm(clean.models, axis=1)[~who].mean()
    assert np.linalg.norm(hurt.models, axis=1)[~who].mean() > 0.9 * length


def test_who_does_not_train_sends_a_server_what_it_got(icu):
    """A free rider and a copier: the average is that of the others and of the average before."""
    settings = SMALL | {"codec": "fp32", "aggregate": "mean"}
    lazy, copies = (
        abps.simulate(icu, "fedavg", seed=11, rounds=3, settings=settings, attack=f"{name}:share=0.25")
        for name in ("free-rider", "copy")
    )
    plain = abps.simulate(icu, "fedavg", seed=11, rounds=3, settings=settings)
    assert np.array_equal(lazy.models, copies.models) and not np.array_equal(lazy.models, plain.models)
    # They slow the others down; they do not pull them back to the start.
    assert np.linalg.norm(lazy.models - plain.models) < 0.5 * np.linalg.norm(plain.models)


def test_refusals_are_in_the_audit_trail(icu):
    run = abps.simulate(icu, "random-k1", seed=11, rounds=4, settings=SMALL, attack="nan:share=0.25")
    rows = run.decisions.filter(run.decisions["decision"] == "refused")
    assert rows.height > 0
    assert set(rows["reason"]) == {"not finite"}
    assert np.isfinite(run.auroc.honest_mean)


def test_without_an_attack_nothing_is_refused_and_nobody_is_called_honest(icu):
    run = abps.simulate(icu, "random-k1", seed=11, rounds=3, settings=SMALL)
    assert run.decisions.filter(run.decisions["decision"] == "refused").height == 0
    assert run.to_json()["auroc"]["honest_mean"] is None


def test_attacks_by_their_words():
    assert parse("sign-flip:share=0.3,strength=2") == Attack("sign-flip", 0.3, 2.0)
    assert parse("huge:round=7").round == 7
    assert {parse(name).name for name in NAMES} == set(NAMES)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("sign-flop", "did you mean"),
        ("scale:by=3", "no setting"),
        ("scale:share=x", "not a number"),
        ("scale:share=1", "between 0 and 1"),
    ],
)
def test_what_is_no_attack_is_said_in_a_sentence(words, why):
    with pytest.raises(RequestError, match=why):
        parse(words)


def test_an_attack_from_the_command_line_is_in_the_result_and_in_a_study(tmp_path):
    from typer.testing import CliRunner

    from abps.cli.main import app

    data = "icu-synthetic:centers=8,stays=800"
    ask = ["run", "--method", "random-k1", "--data", data, "--rounds", "2", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app(), [*ask, "--attack", "nan:share=0.25"])
    assert done.exit_code == 0, done.output
    found = abps.load_run(tmp_path / "run")
    assert found.attack.startswith("nan:share=0.25")
    assert np.isfinite(found.auroc.honest_mean)
    study = ["compare", "--methods", "random-k1", "--data", data, "--rounds", "2", "--seeds", "11"]
    more = ["--no-references", "--jobs", "1", "--out", str(tmp_path / "study"), "--attack", "nan:share=0.25"]
    done = CliRunner().invoke(app(), [*study, *more])
    assert done.exit_code == 0, done.output
    ((_, run),) = abps.load_study(tmp_path / "study").runs
    assert run.auroc.honest_mean == found.auroc.honest_mean
