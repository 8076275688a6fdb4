"""``abps app``: the whole path in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abps.core.errors import RequestError


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
    try:
        from abps.app.analyst import routes
        from abps.app.serve import private_folder, serve
    except ModuleNotFoundError as error:
        raise RequestError(f"the pages need {error.name}: pip install 'abps[app]'") from error
    serve("abps", routes(), port, show, home=private_folder(out).resolve())
