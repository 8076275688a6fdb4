"""What was inferred and spent, as the report of a study shows it; from made-up findings and ledgers."""

import json

import pytest

from abps.engine.result import PRIVACY
from abps.privacy.attack_findings import INFERRED, Finding, PrivacyAudit, kept
from abps.privacy.budget import Account, PrivacyLedger, Release
from abps.report.build import parts_of
from abps.report.privacy import conclusions, inferred, privacy_part, write
from abps.study.compare import load_study
from made_runs import METHODS, stored_study

TWO = {name: METHODS[name] for name in ("local", "random-k1")}
NAME = "<b>=evil</b>"


def finding(protection, rows, area, t=1):
    return Finding(protection, rows, t, 12, area, 0.01, area - 0.02, 0.01, 0.1)


def ledger():
    accounts = {NAME: Account(8.0, 1e-5, (Release(1, "training", 2.0, 0.1, 10),))}
    return PrivacyLedger(accounts, ("choices on validation rows",)).to_json()


@pytest.fixture
def study(tmp_path):
    return stored_study(tmp_path / "s", TWO, (1, 2))


def page_of(root):
    return load_study(root).report().page.read_text()


def part_of(root):
    study = load_study(root)
    return privacy_part(study, parts_of(study)[0])


def test_a_report_says_how_an_audit_is_made_only_where_something_was_sent(study, tmp_path):
    found = part_of(study[0].root)
    assert found.unaudited and found.inferred is None and not found.sentences
    assert "abps audit-privacy" in page_of(study[0].root)
    alone, _ = stored_study(tmp_path / "alone", {"local": METHODS["local"]}, (1,))
    assert "What a partner could infer" not in page_of(alone.root)


def test_what_was_found_stands_in_the_page_and_beside_it(study, browser):
    folder, plan = study
    run = next(run for run in plan.runs if run.label == "random-k1")
    found = (finding("as it ran", 13, 0.91), finding("as it ran", 13, 0.7, 5), finding("ε = 2", 13, 0.53))
    write(folder.root, [PrivacyAudit("random-k1", 1, run.key, found)], ())
    text = page_of(folder.root)
    assert "abps audit-privacy" not in text and "an area of 0.91" in text
    assert "0.55 or less only with ε = 2" in text
    assert text.count('<th scope="row">random-k1</th><td>as it ran</td>') == 2
    assert "0.910" in (folder.root / "tables" / "inferred.csv").read_text()
    assert r"$\varepsilon$ = 2" in (folder.root / "tables" / "inferred.tex").read_text()
    page, complaints = browser.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto((folder.root / "report.html").resolve().as_uri())
    page.locator("summary", has_text="Privacy").click()
    region = page.get_by_role("region", name="Attacks on what is exchanged")
    assert region.get_by_role("row").count() == 4 and complaints == []
    assert region.get_attribute("tabindex") == "0"  # wide tables are reached by the keyboard
    page.close()


def test_an_audit_of_another_run_is_not_shown(study):
    folder, _ = study
    write(
        folder.root, [PrivacyAudit("random-k1", 1, "of another study", (finding("as it ran", 13, 0.91),))], ()
    )
    found = part_of(folder.root)
    assert found.inferred is None and not found.sentences and found.unaudited


def test_an_audit_is_read_as_it_was_written(tmp_path):
    found = (PrivacyAudit(NAME, 7, "k", (finding("as it ran", 13, 0.9),)),)
    write(tmp_path, found, ("spent",))
    assert kept(tmp_path) == found and kept(tmp_path / "elsewhere") == ()
    markdown = (tmp_path / "audit-privacy.md").read_text()
    assert "| &lt;b&gt;=evil&lt;/b&gt; | as it ran | 13 |" in markdown and markdown.endswith("spent\n")
    for broken in ("", "[]", '{"schema": "abps.privacy-audit/1", "runs": [{}]}', '{"schema": 1, "runs": []}'):
        (tmp_path / INFERRED).write_text(broken)
        with pytest.raises(Exception, match="damaged or no audit"):
            kept(tmp_path)


def test_what_less_protection_would_tell_is_said():
    private = (finding("as it ran", 40, 0.53), finding("no noise", 40, 0.7), finding("all digits", 40, 0.54))
    (said,) = conclusions([PrivacyAudit("fedavg", 1, "", private)])
    assert said.endswith("no better than guessing; 0.70 with no noise.")
    (said,) = conclusions([PrivacyAudit("fedavg", 1, "", private[1:2])])
    assert said.endswith("nothing that was tried brings it to 0.55.")
    assert len(inferred([PrivacyAudit("fedavg", 1, "", private)]).rows) == 3


def test_what_was_spent_is_computed_again(study):
    folder, plan = study
    run = next(run for run in plan.runs if run.label == "random-k1")
    path, data = folder.folder(run) / PRIVACY, ledger()
    path.write_text(json.dumps(data))
    found, spent = part_of(folder.root), data["centers"][NAME]["epsilon"]
    said = f"random-k1, seed {run.seed}: ε computed again is {spent:.3f} at most, as it is written."
    assert found.spent == (said, "Not covered: choices on validation rows.") and not found.doubts
    data["centers"][NAME]["epsilon"] = 0.1
    path.write_text(json.dumps(data))
    text = page_of(folder.root)
    assert "differs from what is written at &lt;b&gt;=evil&lt;/b&gt;" in text and "<b>=evil" not in text
    for broken in ("{", json.dumps(data).replace("0.1", "NaN")):
        path.write_text(broken)
        assert len(part_of(folder.root).doubts) == 1
