"""``abps app``: the whole path in the browser."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from abps.core.errors import RequestError


def need_pages() -> None:
    """Say what to install where the pages' server is not."""
    for name in ("starlette", "uvicorn", "python_multipart", "psutil"):
        if importlib.util.find_spec(name) is None:
            raise RequestError(f"the pages need {name}; run: pip install 'abps[app]'")


def app(
    out: Annotated[Path, typer.Option(help="Folder that keeps the studies with their tables.")] = Path(
        "abps-app"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
) -> None:
    """Check a table, compare, read the report and take the model home, in the browser.

    Serves on this machine alone (127.0.0.1), to the one browser that opens the printed address. Nothing
    leaves the machine. Every page shows the command that does the same. Studies stay in the folder OUT;
    closing the browser or the server does not stop a running study.

    Example: abps app
    """
    need_pages()
    from abps.app.analyst import routes
    from abps.app.serve import serve

    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)  # tables of patients: for their owner alone
    serve("abps", routes(), port, show, home=out.resolve())
