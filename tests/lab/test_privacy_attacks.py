"""Inference attacks: they find members where rows are few, and nothing where noise hides them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

import abps
from abps.cli.main import main
from abps.core.errors import RequestError
from abps.engine.result import PRIVACY, save
from abps.lab.privacy_attacks import (
    Protection,
    RatioTest,
    area,
    audit,
    cut,
    exposed,
    fitting,
    protections,
)
from abps.methods.settings import configure
from abps.privacy.attack_findings import INFERRED, PrivacyAudit
from abps.report.privacy import conclusions
from federations import tiny

SMALL = {"model": "linear", "standardise": "own"}


@pytest.fixture(scope="module")
def data():
    return tiny(sizes=(80,) * 24, width=30, seed=2)


def test_areas_are_those_of_all_pairs():
    rng = np.random.default_rng(0)
    scores, member = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.4
    pairs = [np.sign(a - b) / 2 + 0.5 for a in scores[member] for b in scores[~member]]
    assert area(scores, member) == pytest.approx(np.mean(pairs))
    assert area(scores, np.zeros(40, bool)) == 0.5


def test_a_cut_center_learns_from_so_many_rows_and_the_others_are_strangers(data):
    smaller, others = cut(data, 13, 5)
    assert set(smaller.train.sizes.tolist()) == {13}
    assert (others.sizes == data.test.sizes + 80 - 13).all()
    for i in range(3):
        mine = {row.tobytes() for row in smaller.train.only(i).x}
        assert mine <= {row.tobytes() for row in data.train.only(i).x}
        assert not mine & {row.tobytes() for row in others.only(i).x}
    with pytest.raises(RequestError, match="smaller size"):
        cut(data, 81, 5)


def test_members_of_small_centers_are_found_and_noise_hides_them(data):
    method = configure("random-k1", SMALL, 4)
    noise = Protection("private", {"clip": 1.0, "dp_epsilon": 1.0})
    found = audit(method, data, 3, (10, 60), (1,), (Protection("none", {}), noise))
    few, many, few_hidden, _ = found
    assert [f.rows for f in found] == [10, 60, 10, 60]
    assert few.alignment > 0.75 and few.shadow > 0.75  # the finding: ten rows give themselves away
    assert few.alignment > many.alignment + 0.05  # and many hide each other
    assert abs(few_hidden.alignment - 0.5) < 0.08 and abs(few_hidden.shadow - 0.5) < 0.08
    said = conclusions([PrivacyAudit("random-k1", 3, "", tuple(found))])
    assert "10 training rows" in said[0] and "0.55 or less only with private" in said[0] and len(said) == 2


def test_under_masks_a_server_has_nothing_of_one_center(data):
    method = configure("fedavg", SMALL, 2)
    masked = Protection("masked sums", {"secure": True})
    plain, hidden = audit(method, data, 3, (10,), (1,), (Protection("none", {}), masked))
    assert plain.alignment > 0.65  # ten rows do not hide each other, though a penalty by evidence hides some
    assert hidden.alignment < min(0.62, plain.alignment - 0.1)  # 240 rows do
    (seen,) = exposed(configure("fedavg", SMALL | {"secure": True}, 2), cut(data, 10, 3)[0], 3, (1,))
    steps = seen.after - seen.before
    assert np.abs(steps - steps[0]).max() < 1e-6 and np.abs(steps).max() > 0


def test_a_coordinator_finds_members_in_sums_and_masks_hide_them(data):
    method = configure("abps-plus", {"model": "linear"})
    found = audit(method, data, 3, (13, 60), (5,), protections(method, ()))
    few, few_masked, _, many_masked = found
    assert [(f.protection, f.rows) for f in found] == [
        ("as it ran", 13), ("masked sums", 13), ("as it ran", 60), ("masked sums", 60),
    ]  # fmt: skip
    assert few.shadow > 0.68 and few.shadow > 0.5 + 5 * few.shadow_se  # thirteen rows give themselves away
    for masked in (few_masked, many_masked):  # a total over 24 centers does not
        assert abs(masked.shadow - 0.5) < 0.1 and abs(masked.alignment - 0.5) < 0.1
    said = conclusions([PrivacyAudit("abps-plus", 3, "", tuple(found))])
    assert "abps-plus as it ran, 13 training rows" in said[0]
    secure = configure("abps-plus", {"model": "linear", "secure": True})
    assert [p.name for p in protections(secure, ())] == ["as it ran", "without masks"]


def test_a_likelihood_ratio_is_that_of_two_normal_laws():
    rng = np.random.default_rng(4)
    reference, count = rng.normal(0.3, 1.0, (200, 3)) @ rng.normal(size=(3, 3)), 12
    seen, rows = reference[:count].sum(axis=0), reference[:5]
    mean, covariance = reference.mean(axis=0), np.cov(reference, rowvar=False)
    shrunk = count * (0.5 * covariance + 0.5 * np.diag(np.diag(covariance)))
    without = stats.multivariate_normal(count * mean, shrunk).logpdf(seen)
    wanted = [stats.multivariate_normal(r + (count - 1) * mean, shrunk).logpdf(seen) - without for r in rows]
    assert RatioTest(reference, seen, count)(rows) == pytest.approx(wanted)


def test_sizes_that_nobody_has_are_left_out_unless_asked_for(data):
    assert fitting(data, (13, 40, 200)) == [13, 40] and fitting(data, (100, 200)) == [100]


def status(words):
    with pytest.raises(SystemExit) as stop:
        main(words)
    return stop.value.code


def test_epsilon_is_computed_again_from_exported_ledgers(tmp_path, capsys):
    fed = abps.load("icu-synthetic:centers=6,stays=900")
    run = abps.simulate(fed, "random-k1", seed=3, rounds=2, settings=SMALL | {"dp_epsilon": 4.0, "clip": 1.0})
    save(run, tmp_path)
    words = ["audit-privacy", str(tmp_path)]
    assert status(words) == 0
    assert "as it is written" in capsys.readouterr().out
    path = tmp_path / PRIVACY
    ledger = json.loads(path.read_text())
    for forged in (0.5, float("nan")):
        next(iter(ledger["centers"].values()))["epsilon"] = forged
        path.write_text(json.dumps(ledger))
        assert status(words) == 2 and "does not follow" in capsys.readouterr().err
    path.unlink()
    assert status(words) == 2 and "no study and no ledger" in capsys.readouterr().err


def test_an_audit_becomes_a_part_of_the_study_s_report(tmp_path, capsys):
    root = tmp_path / "study"
    fed = abps.load("icu-synthetic:centers=6,stays=900")
    private = SMALL | {"dp_epsilon": 4.0, "clip": 1.0}
    abps.compare(
        fed, ["random-k1"], (3,), rounds=2, settings=private, out=root, references=False, folds=1
    ).report()
    page = root / "report.html"
    assert "abps audit-privacy" in page.read_text() and "ε computed again" in page.read_text()
    assert status(["audit-privacy", str(root), "--rounds", "3"]) == 2
    assert "ran for 2 rounds" in capsys.readouterr().err and not (root / INFERRED).exists()
    assert status(["audit-privacy", str(root), "--method", "local"]) == 2
    assert "choose from random-k1" in capsys.readouterr().err
    assert status(["audit-privacy", str(root)]) == 0
    said = capsys.readouterr().out
    assert "random-k1 as it ran, 13 training rows" in said and str(page) in said.replace("\n", "")
    text = page.read_text()
    assert "Attacks on what is exchanged (seed 3)" in text and "no noise" in text
    assert "abps audit-privacy" not in text
    (root / INFERRED).write_text("{}")
    assert status(["report", str(root)]) == 2 and "make the audit again" in capsys.readouterr().err
    (ledger,) = root.rglob(PRIVACY)
    ledger.write_text(ledger.read_text().replace('"training"', '"metadata"'))  # ε follows from it as before
    assert "was changed" in abps.load_study(root).absent[0]
