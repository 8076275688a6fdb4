"""The pictures in README and guides: the report's first screen on a desktop and on a phone, the app's pages.

    abps demo && python tools/screenshots.py abps-demo/report.html
    python tools/screenshots.py TABLE.csv

Needs a Chromium (``CHROMIUM`` names it; default /usr/bin/chromium) and the test extra. The network is off.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

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


def take_app(table: Path, folder: Path) -> list[Path]:
    """Write the pictures of the app's pages on a table into a folder."""
    written = [folder / "app-columns.png", folder / "app-check.png"]
    with tempfile.TemporaryDirectory() as home, sync_playwright() as driver:
        words = [sys.executable, "-m", "abps", "app", "--no-open", "--out", home]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page(viewport={"width": 900, "height": 760})
            page.goto(server.stdout.readline().split()[1])
            page.set_input_files("#file", table)
            for path, button in zip(written, ("Read the table", "Check the table"), strict=True):
                page.click(f"button:has-text('{button}')")
                page.wait_for_selector("nav")
                page.screenshot(path=str(path))
            browser.close()
            server.terminate()
    return written


def main() -> None:
    """Take the pictures of the report, or of the app on the table, that is named."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit("usage: python tools/screenshots.py STUDY/report.html|TABLE.csv")
    folder, given = Path(__file__).resolve().parents[1] / "docs" / "images", Path(sys.argv[1])
    for path in (take if given.suffix == ".html" else take_app)(given, folder):
        size = path.stat().st_size
        print(f"{path}: {size:,} bytes")
        if size > MOST:
            sys.exit(f"{path} is larger than {MOST:,} bytes; take a smaller view")


if __name__ == "__main__":
    main()
