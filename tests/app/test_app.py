"""The analyst's path in a real browser, and everybody who must not get in."""

import re
import tomllib

import numpy as np
import polars as pl
import psutil
import pytest

from dirty_tables import german_table

httpx = pytest.importorskip("httpx")


def form_number(client) -> str:
    return re.search(r'name="session" value="([^"]+)"', client.get("/").text).group(1)


def send(client, name, content, **fields):
    given = {"session": form_number(client), **fields}
    return client.post("/studies", data=given, files={"file": (name, content)})


def clean_table(path, rows=360, seed=2, more=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2 + more)).round(3)
    died = rng.random(rows) < 1 / (1 + np.exp(-(x[:, 0] - 0.6)))
    columns = {"hospital": np.array(list("abc"))[np.arange(rows) % 3], "age": x[:, 0], "lactate": x[:, 1]}
    columns |= {f"x{j}": x[:, 2 + j] for j in range(more)}
    pl.DataFrame({**columns, "died": died.astype(int)}).write_csv(path)
    return path


# --- who may come in ---------------------------------------------------------------------------------------


def test_nobody_comes_in_without_the_token_and_nobody_uses_it_twice(serve):
    server = serve()
    assert httpx.get(server.base).status_code == 403
    assert httpx.get(server.base + "/open?token=guess").status_code == 403
    client = server.client()
    assert client.get("/").status_code == 200
    second = httpx.Client(base_url=server.base)
    assert second.get(server.address).status_code == 403  # the address was used
    assert second.get("/").status_code == 403
    forged = {f"abps-{server.base.rsplit(':', 1)[1]}": "x"}
    assert httpx.get(server.base, cookies=forged).status_code == 403


def test_the_server_listens_on_this_machine_alone(server):
    process = psutil.Process(server.process.pid)
    listening = [c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1.evil.example:1"])
def test_a_foreign_name_of_this_machine_reads_nothing(server, host):
    client = server.client()
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 403 and "Open http://127.0.0.1" in answer.text


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", ""])
def test_a_page_of_another_origin_changes_nothing(server, origin):
    client = server.client()
    number = form_number(client)
    client.headers["origin"] = origin
    files = {"file": ("t.csv", b"a,b\n1,2\n")}
    assert client.post("/studies", data={"session": number}, files=files).status_code == 403
    assert not list(server.home.glob("*"))


def test_a_form_without_the_sessions_number_changes_nothing(server):
    client = server.client()
    answer = client.post("/studies", data={"session": "x"}, files={"file": ("t.csv", b"a,b\n1,2\n")})
    assert answer.status_code == 403 and not list(server.home.glob("*"))


@pytest.mark.parametrize("name", ["../../evil.csv", "..\\..\\evil.csv", "/etc/evil.csv", "a/../b.csv"])
def test_a_path_in_a_file_name_leads_nowhere(server, tmp_path, name):
    client = server.client()
    table = clean_table(tmp_path / "t.csv").read_bytes()
    answer = send(client, name, table)
    assert answer.status_code == 303
    written = list(server.home.parent.rglob("*.csv"))
    assert len(written) == 1 and written[0].parent.parent == server.home
    for path in ("/studies/..%2F..%2Fx/columns", "/static/../guard.py", "/studies/%2e%2e/columns"):
        assert client.get(path).status_code == 404


def test_markup_in_names_and_cells_is_shown_as_text(serve, browser, tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    rows = [f'"{evil}{k % 3}",{k % 7},{k % 2},"<script>alert(2)</script>"' for k in range(120)]
    table = tmp_path / "evil.csv"
    table.write_text("\n".join([f'hospital,"{evil}",died,note', *rows]))
    page = browser.new_page()
    alerts = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    page.goto(serve().address)
    page.set_input_files("#file", table)
    page.click("button:has-text('Read the table')")
    page.wait_for_url("**/columns")
    assert page.locator("th", has_text=evil).count() == 1 and page.locator("main img").count() == 0
    page.click("button:has-text('Check the table')")
    page.wait_for_load_state()
    assert alerts == [] and page.locator("main img, main script").count() == 0
    page.close()


# --- tables that are none, and large ones ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("photo.png", b"\x89PNG\r\n", "photo.png: choose a table"),
        ("photo.csv", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)) * 40, "photo.csv"),
        ("empty.csv", b"", "empty"),
        ("book.xlsx", b"PK\x03\x04 not a workbook", "book.xlsx"),
    ],
)
def test_a_file_that_is_no_table_gets_one_sentence_and_leaves_nothing(server, name, content, words):
    answer = send(server.client(), name, content)
    assert answer.status_code == 422 and words in answer.text and "Traceback" not in answer.text
    assert not list(server.home.glob("*"))


@pytest.mark.slow
def test_a_table_of_200_mb_does_not_stay_in_memory(serve, tmp_path):
    server = serve()
    client = server.client()
    send(client, "small.csv", clean_table(tmp_path / "s.csv").read_bytes())  # everything is imported
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    path = tmp_path / "large.csv"
    row = "north,61,1.25," + ",".join(["0.123456789"] * 80)
    with path.open("w") as stream:
        stream.write("hospital,age,died," + ",".join(f"x{j}" for j in range(80)) + "\n")
        block = "\n".join([row, row.replace("north,61,1.25", "south,70,0")] * 500) + "\n"
        while stream.tell() < 200e6:
            stream.write(block)
    with path.open("rb") as stream:
        answer = send(client, "large.csv", stream)
    assert answer.status_code == 303
    assert process.memory_info().rss - before < 60e6
    path.unlink()


@pytest.mark.slow
def test_the_first_page_and_a_check_of_100_000_rows_are_quick(serve, tmp_path):
    """In processor seconds, because machines are shared; the bars are 1 and 10 seconds of an idle one."""
    server = serve()
    process = psutil.Process(server.process.pid)
    started = sum(process.cpu_times()[:2])
    client = server.client()
    assert client.get("/").status_code == 200
    assert sum(process.cpu_times()[:2]) - started < 1.0
    table = clean_table(tmp_path / "large.csv", 100_000, more=25)
    study = send(client, "large.csv", table.read_bytes()).headers["location"].rsplit("/", 1)[0]
    before = sum(process.cpu_times()[2:4])
    columns = {"session": form_number(client), "label": "died", "center": "hospital"}
    assert client.post(f"{study}/columns", data=columns).headers["location"].endswith("/check")
    assert sum(process.cpu_times()[2:4]) - before < 10.0


# --- the path ----------------------------------------------------------------------------------------------


def by_keyboard(page, words: str) -> None:
    """Press a button or link that Tab alone reaches, where the focus can be seen."""
    for _ in range(120):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "[document.activeElement.innerText, getComputedStyle(document.activeElement).outlineStyle]"
        )
        if words in (found[0] or "") and page.evaluate(
            "document.activeElement.matches('button, a, summary')"
        ):
            assert found[1] != "none", f"{words}: the focus cannot be seen"
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"Tab does not reach {words!r} on {page.url}")


def accessible(page, axe) -> None:
    """Nothing serious, nothing wider than the window, on a desktop and on a phone."""
    page.wait_for_load_state("load")
    for width in (1200, 390):
        page.set_viewport_size({"width": width, "height": 850})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (page.url, width)
        serious = [v for v in axe.run(page).response["violations"] if v["impact"] in ("serious", "critical")]
        assert not serious, (page.url, [(v["id"], v["nodes"][0]["html"][:200]) for v in serious])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["dark"])
def test_from_a_dirty_german_table_to_probabilities(serve, browser, tmp_path, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    table = german_table(tmp_path / "Aufnahmen März.csv", 700)
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # axe is a script of its own
    page = context.new_page()
    server = serve()
    page.goto(server.address)
    accessible(page, axe)
    page.set_input_files("#file", table)
    by_keyboard(page, "Read the table")
    page.wait_for_url("**/columns")
    roles = {"label": "Verstorben", "center": "Klinik", "patient": "Patientennummer", "time": "Aufnahmedatum"}
    assert {role: page.eval_on_selector(f"#{role}", "e => e.value") for role in roles} == roles
    assert "not used unless you say so: Liegedauer." in page.inner_text("main")
    accessible(page, axe)
    by_keyboard(page, "Check the table")
    page.wait_for_url("**/check")
    text = page.inner_text("main")
    assert (
        "'Liegedauer': by its name the length of stay" in text and "'Graz' seem to have another unit" in text
    )
    assert "--" not in page.inner_text(".fixes")  # what the buttons do is not said again as an option
    accessible(page, axe)
    page.focus("button[aria-label='Leave the column out: Gesamtcholesterin']")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "Graz" not in page.inner_text(".fixes")
    page.click("summary:has-text('The same as a command (A quick look)')")
    said = page.inner_text("details.command[open]")
    assert "--drop Gesamtcholesterin" in said
    asked = tomllib.loads(said[said.index("data = ") :])
    by_keyboard(page, "Start")
    page.wait_for_url("**/run")
    accessible(page, axe)
    page.wait_for_selector("text=Read the report", timeout=300_000)
    with context.expect_page() as opened:
        page.click("text=Read the report")
    report = opened.value
    report.wait_for_load_state()
    assert "AUROC" in report.inner_text("main, body") and report.locator("h1").count() == 1
    page.click("summary:has-text('The whole path as commands')")
    with page.expect_download() as registered:
        page.click("a:has-text('study.toml')")
    ran = tomllib.loads(registered.value.path().read_text())
    assert asked == {name: ran[name] for name in asked} and asked["label"] == "Verstorben"
    by_keyboard(page, "Train the models")
    page.wait_for_selector("text=Models by hospital", timeout=300_000)
    accessible(page, axe)
    by_keyboard(page, "Köln")
    page.wait_for_selector("text=The model of Köln")
    accessible(page, axe)
    with page.expect_download() as portable:
        page.click("a:has-text('model.onnx')")
    onnx = pytest.importorskip("onnx")
    onnx.checker.check_model(onnx.load(portable.value.path()))
    with context.expect_page() as opened:
        page.click("text=Read the card")
    assert "Köln" in opened.value.inner_text("h1")
    page.set_input_files("#file", table)
    with page.expect_download() as saved:
        page.click("button:has-text('Download probabilities')")
    lines = saved.value.path().read_text().splitlines()
    assert lines[0] == "row,probability" and len(lines) == 701
    assert all(0 <= float(line.split(",")[1]) <= 1 for line in lines[1:])
    context.close()


@pytest.mark.slow
def test_a_study_is_cancelled_resumed_and_survives_a_killed_server(serve, browser, tmp_path):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    table = clean_table(tmp_path / "stays.csv")
    server = serve()
    page = browser.new_context(color_scheme="light", bypass_csp=True).new_page()
    page.goto(server.address)
    page.set_input_files("#file", table)
    page.click("button:has-text('Read the table')")
    page.wait_for_url("**/columns")
    page.click("button:has-text('Check the table')")
    page.wait_for_url("**/check")
    assert "Nothing looks wrong" in page.inner_text("main")
    page.click("button:has-text('Start')")
    page.wait_for_url("**/run")
    while not (begun := list(server.home.glob("*/compare.log"))):
        page.wait_for_timeout(100)
    page.click("button:has-text('Stop')")
    page.wait_for_selector("text=It is stopped")
    accessible(page, axe)
    (study,) = begun
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(study.parent) in " ".join(p.info["cmdline"] or [])
    ]
    page.click("button:has-text('Go on')")
    page.wait_for_selector("text=It runs")
    server.process.kill()
    server.process.wait()
    again = serve()
    page.goto(again.address)
    accessible(page, axe)
    page.click("a:has-text('stays.csv')")
    page.wait_for_selector("text=The report is ready", timeout=300_000)
    assert study.read_text().count("$ abps compare") == 2  # the second went on by itself after the kill
    with page.context.expect_page() as opened:
        page.click("text=Read the report")
    assert "AUROC" in opened.value.inner_text("body")
    page.goto(again.base)
    page.click("summary:has-text('Delete')")
    assert list(again.home.glob("*"))  # asked once more
    page.click("button:has-text('Yes, delete')")
    page.wait_for_selector("text=No study yet")
    assert not list(again.home.glob("*"))
    page.context.close()


def test_a_page_of_yesterday_cannot_start_a_command_of_its_own(server, tmp_path):
    client = server.client()
    answer = send(client, "stays.csv", clean_table(tmp_path / "s.csv").read_bytes())
    study = answer.headers["location"].rsplit("/", 1)[0]
    number = form_number(client)
    wrong = client.post(f"{study}/fix", data={"session": number, "option": "label;rm", "column": "age"})
    assert wrong.status_code == 422 and "not a correction" in wrong.text
    none = client.post(f"{study}/fix", data={"session": number, "option": "drop", "column": "--out"})
    assert none.status_code == 422 and "no such column" in none.text
    columns = {"session": number, "label": "died", "center": "nowhere"}
    refused = client.post(f"{study}/columns", data=columns)
    assert refused.status_code == 422 and "--center" in refused.text
    assert client.get(f"{study}/run").headers["location"].endswith("/check")
