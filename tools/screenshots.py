"""The pictures in README and guides: the report on a desktop and on a phone, the app, the console.

    abps demo && python tools/screenshots.py abps-demo/report.html
    python tools/screenshots.py TABLE.csv
    abps site rehearse --out abps-rehearsal && python tools/screenshots.py abps-rehearsal/kits/north

Needs a Chromium (``CHROMIUM`` names it; default /usr/bin/chromium) and the test extra. The network is off.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
#: File, width, height, pixels per point.
VIEWS = (("report-desktop.png", 1180, 940, 1.0), ("report-phone.png", 390, 844, 1.5))
#: Bytes that a picture in the repository may have.
MOST = 300_000


def take(report: Path, folder: Path) -> list[Path]:
    """Write the pictures of a report into a folder."""
    written = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name, width, height, scale in VIEWS:
            context = browser.new_context(
                viewport={"width": width, "height": height}, device_scale_factor=scale, offline=True
            )
            page = context.new_page()
            page.goto(report.resolve().as_uri())
            page.screenshot(path=str(folder / name))
            written.append(folder / name)
            context.close()
        browser.close()
    return written


@contextlib.contextmanager
def served(*words: str) -> Iterator[Page]:
    """A page of a local server that was just started."""
    with sync_playwright() as driver:
        command = [sys.executable, "-m", "abps", *words, "--no-open"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page(viewport={"width": 900, "height": 760})
            page.goto(server.stdout.readline().split()[1])
            yield page
            browser.close()
            server.terminate()


def take_app(table: Path, folder: Path) -> list[Path]:
    """Write the pictures of the app's pages on a table into a folder."""
    written = [folder / "app-columns.png", folder / "app-check.png"]
    with tempfile.TemporaryDirectory() as home, served("app", "--out", home) as page:
        page.set_input_files("#file", table)
        for path, button in zip(written, ("Read the table", "Check the table"), strict=True):
            page.click(f"button:has-text('{button}')")
            page.wait_for_selector("nav")
            page.screenshot(path=str(path))
    return written


def take_console(kit: Path, folder: Path) -> list[Path]:
    """Write the pictures of a hospital's console into a folder: the proposal, and where the study stands."""
    written = [folder / "console-proposal.png", folder / "console-status.png"]
    with served("site", "console", str(kit)) as page:
        page.click("text=Read and decide")
        page.screenshot(path=str(written[0]))
        page.click("text=Where the study stands")
        page.screenshot(path=str(written[1]))
    return written


def main() -> None:
    """Take the pictures of what is named: a report, the app on a table, the console of a kit."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).exists():
        sys.exit("usage: python tools/screenshots.py STUDY/report.html|TABLE.csv|KIT")
    folder, given = Path(__file__).resolve().parents[1] / "docs" / "images", Path(sys.argv[1])
    how = take_console if given.is_dir() else take if given.suffix == ".html" else take_app
    for path in how(given, folder):
        size = path.stat().st_size
        print(f"{path}: {size:,} bytes")
        if size > MOST:
            sys.exit(f"{path} is larger than {MOST:,} bytes; take a smaller view")


if __name__ == "__main__":
    main()
