"""``abps check`` and the same check at the head of a run."""

import json

import pytest

from abps.cli.check_command import COMPARE
from abps.cli.main import main


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out = capsys.readouterr()
    return stop.value.code or 0, out.out, out.err


@pytest.fixture
def table(tmp_path):
    """Two hospitals and a tiny one; limits of measurement, a copy of the label, a name with brackets."""
    lines = ["died;hospital;x [mg];outcome;ward"]
    for k in range(240):
        died = int(k % 7 < 2)
        x = "<0,5" if k % 80 == 3 else f"{0.5 + died + (k * 37 % 101) / 50:.1f}".replace(".", ",")
        hospital = "tiny" if k < 4 else "AB"[k % 2]
        lines.append(f"{died};{hospital};{x};{'gone' if died else 'home'};{'NS'[k % 3 > 0]}")
    path = tmp_path / "stays.csv"
    path.write_text("\n".join(lines), encoding="utf-16")
    return path


ROLES = ["--label", "died", "--center", "hospital"]


def test_the_terminal_shows_everything(capsys, table):
    code, out, _ = call(capsys, "check", table, *ROLES)
    assert code == 0
    words = " ".join(out.split())
    assert "separated by semicolon, UTF-16" in words and "x [mg]" in words
    assert "'1' is the event (70 rows" in words
    assert "a detection limit" in words and "'<0,5' → 0.5 (limit)" in words
    assert "tiny: fewer than 50 rows (4)" in words
    assert "'outcome': a copy of the label: AUROC 1.000 by itself; not used (--keep outcome uses it)" in words
    assert out.count("copy of the label") == 1  # said once
    assert out.index("warnings (1)") < out.index("repaired") < out.index("\nleft out\n")
    assert words.endswith(f"next: {COMPARE} --data {table} --label died --center hospital --out results")


def test_machines_get_the_same(capsys, table):
    code, out, _ = call(capsys, "check", table, *ROLES, "--json")
    notes = json.loads(out)
    assert code == 0 and notes["form"] == "text, separated by semicolon, UTF-16"
    assert [o["center"] for o in notes["left_out"]] == ["tiny"]
    assert {c["name"]: c["used"] for c in notes["columns"]} == {
        "died": False, "hospital": False, "x [mg]": True, "outcome": False, "ward": True,
    }  # fmt: skip


def test_strict_makes_warnings_errors_and_nothing_is_written(capsys, table, tmp_path):
    code, _, err = call(capsys, "check", table, *ROLES, "--strict")
    assert code == 2 and err.count("\n") == 1 and "--strict" in err
    for command in (["run", "--method", "fedavg"], ["compare", "--no-references", "--methods", "fedavg"]):
        out = tmp_path / command[0]
        code, _, err = call(capsys, *command, "--data", table, *ROLES, "--strict", "--out", out)
        assert code == 2 and "1 warning(s)" in err and not (out / "study.json").exists()
    code, _, _ = call(capsys, "check", table, *ROLES, "--strict", "--drop", "outcome")
    assert code == 0


def test_a_run_says_what_it_repaired_and_left_out(capsys, table, tmp_path):
    arguments = ["--data", table, *ROLES, "--rounds", 1, "--out"]
    code, _, err = call(capsys, "run", "--method", "fedavg", *arguments, tmp_path / "run")
    assert code == 0, err
    assert "repaired: x [mg]: 3 cell(s)" in err and "left out: tiny: fewer than 50 rows (4)" in err
    assert err.count("'outcome'") == 1 and "warning: 'outcome': a copy of the label" in err
    code, _, err = call(
        capsys,
        "compare",
        "--no-references",
        "--methods",
        "local,fedavg",
        "--seeds",
        1,
        *arguments,
        tmp_path / "s",
    )
    assert code == 0 and "warning: 'outcome'" in err and "left out: tiny" in err
    study = json.loads((tmp_path / "s" / "study.json").read_text())
    assert study["data"][0]["check"]["repairs"][0]["column"] == "x [mg]"


def test_a_built_in_federation_can_be_checked(capsys):
    code, out, _ = call(capsys, "check", "icu-synthetic:centers=12,stays=1500")
    assert code == 0 and "no warnings" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name its columns"),
        (["--label", "died", "--center", "wards"], "did you mean 'ward'"),
        ([*ROLES, "--keep", "outcom"], "no column 'outcom' for keep"),
        ([*ROLES, "--positive", "2"], "has no value '2'"),
    ],
)
def test_wrong_requests(capsys, table, arguments, says):
    code, _, err = call(capsys, "check", table, *arguments)
    assert code == 2 and says in err and err.count("\n") == 1


def hospital(path):
    """A table as a hospital has it: with columns that name people in one way or another."""
    rows = ["mrn,phone,full_name,history,dob,zip,age,sex,ward,referrer,died"]
    who = ("Anna Huber", "Bob Smith", "Clara Maier", "Dr. Chen")
    for i in range(120):
        rows.append(
            f"{70000 + 37 * i},+43 664 {100000 + 91 * i},{who[i % 4]},"
            f"seen in the clinic for the {i}th time for fever and for pain,19{20 + i % 70}-03-1{i % 9},"
            f"{1010 + i % 3},{40 + i % 50},{'FM'[i % 2]},{'ABC'[i % 3]},{who[i // 7 % 4]},{int(i % 5 == 0)}"
        )
    path.write_text("\n".join(rows))
    return path


def test_every_column_that_identifies_people_is_named_with_its_reason(tmp_path, capsys):
    table = hospital(tmp_path / "t.csv")
    code, _, err = call(
        capsys, "site", "init", "--site", "a", "--out", tmp_path, "--table", table, "--label", "died"
    )
    assert code == 0, err
    out = {"mrn", "phone", "history", "full_name", "dob", "zip", "referrer"}
    said = [line for line in err.splitlines() if "is not in the codebook: " in line]
    assert {line.split("'")[1] for line in said} == out and len(said) == len(out)
    assert "the column 'mrn' is not in the codebook: an identifier: 120 values in 120 rows" in said
    assert "the column 'referrer' is not in the codebook: its values look like names of people" in said
    assert not any(f'"{name}' in (tmp_path / "codebook.json").read_text() for name in out)
    code, shown, err = call(capsys, "check", table, "--label", "died", "--center", "ward", "--min-stays", 10)
    warned = {line.split("'")[1] for line in shown.splitlines() if "; not used (" in line}
    assert code == 0 and warned == {"full_name", "dob", "zip", "referrer"}, err


def test_names_of_columns_in_brackets_are_shown_as_they_are(tmp_path, capsys):
    table = hospital(tmp_path / "t.csv")
    table.write_text(table.read_text().replace("age", "age[/red]", 1))
    code, shown, err = call(capsys, "check", table, "--label", "died", "--center", "ward", "--min-stays", 10)
    assert code == 0 and "age[/red]" in shown, err


def test_a_column_may_be_called_as_it_likes(tmp_path, capsys):
    """Also like the columns of our own intermediate tables."""
    table = hospital(tmp_path / "t.csv")
    head, rest = table.read_text().split("\n", 1)
    table.write_text(head.replace("sex", "count").replace("age", "rows") + "\n" + rest)
    code, out, err = call(capsys, "check", table, "--label", "died", "--center", "ward", "--min-stays", 10)
    assert code == 0 and "count " in out, err
    code, _, err = call(
        capsys, "site", "init", "--site", "a", "--out", tmp_path, "--table", table, "--label", "died"
    )
    assert code == 0 and '"count"' in (tmp_path / "codebook.json").read_text(), err


@pytest.mark.parametrize(("yes", "no"), [("ja", "nein"), ("oui", "non"), ("Sim", "Não")])
def test_yes_and_no_in_other_languages(tmp_path, capsys, yes, no):
    table = hospital(tmp_path / "t.csv")
    head, *rows = table.read_text().split("\n")
    table.write_text("\n".join([head, *(f"{r[:-1]}{yes if r[-1] == '1' else no}" for r in rows)]))
    code, out, err = call(capsys, "check", table, "--label", "died", "--center", "ward", "--min-stays", 10)
    assert (
        code == 0 and f"{yes.lower()!r} is the event (24 rows" in out and "is taken as the event" not in out
    ), err


def test_many_small_hospitals_are_one_line_and_the_summary_comes_first(tmp_path, capsys):
    """Two hundred hospitals, of which few can take part."""
    lines = ["hospital,died,age,sodium"]
    for k in range(200):
        rows = 60 if k < 5 else 1 + k % 19
        lines += [f"H{k:03d},{int(j % 4 == 0)},{40 + j},{130 + (j * k) % 17}" for j in range(rows)]
    path = tmp_path / "many.csv"
    path.write_text("\n".join(lines))
    roles = ("--label", "DIED", "--center", "Hospital", "--min-stays", 20)
    code, out, err = call(capsys, "check", path, *roles)
    assert code == 0, err
    assert len(out.splitlines()) < 25
    assert "5 hospitals take part, 195 left out" in out.splitlines()[1]
    assert "195 with fewer than 20 rows (1,940 rows in all): H005, H006" in out and "and 187 more" in out
    assert out.splitlines()[-1] == (
        f"next: {COMPARE} --data {path} --label died --center hospital --min-stays 20 --out results"
    )
    code, out, _ = call(capsys, "check", path, *roles, "--json")
    assert len(json.loads(out)["left_out"]) == 195


def test_the_german_export_is_checked_with_its_corrected_command(tmp_path, capsys):
    from dirty_tables import german_table

    path = german_table(tmp_path / "Export März.csv")
    code, out, err = call(capsys, "check", path, "--label", "verstorben", "--center", "klinik")
    assert code == 0, err
    assert "warnings (5)" in out and "(--time Aufnahmedatum makes it" in out
    assert "--keep Liegedauer uses it" in out and "--patient Patientennummer keeps" in out
    assert out.splitlines()[-1] == (
        f"next: {COMPARE} --data '{path}' --label Verstorben --center Klinik --patient Patientennummer "
        "--out results"
    )
