"""``abps methods``: everything that can be run."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from abps.cli import options
from abps.methods.catalog import CATALOG, METHODS, find
from abps.methods.settings import describe


def methods(
    check: Annotated[
        str | None,
        typer.Option(help="Check a method (name or package.module:CONFIG) by the tests that ours pass."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List every method with its paper and its defaults (--json for machines)."""
    if check is not None:
        from abps.checks import check_method

        passed = check_method(find(check), name=check)
        print(json.dumps({"method": check, "passed": passed}) if as_json else f"{check}: {', '.join(passed)}")
        return
    if as_json:
        listed = [
            {
                "name": name,
                "family": e.family,
                "summary": e.summary,
                "source": e.source,
                "config": describe(e.config),
            }
            for name, e in CATALOG.items()
        ]
        print(json.dumps(listed))
        return
    table = Table(title="methods (every setting: abps methods --json; change one with --set key=value)")
    for column in ("method", "family", "what it is", "from", "defaults"):
        table.add_column(column, overflow="fold", no_wrap=column == "method")
    for name, e in CATALOG.items():
        table.add_row(name, e.family, e.summary, e.source, defaults(describe(e.config)))
    for name, place in METHODS.others().items():
        table.add_row(name, "installed", place, "", defaults(describe(find(name))))
    options.terminal().print(table)


def defaults(config: dict[str, Any]) -> str:
    """The settings that characterise a method, in one line."""
    wire, stop = config.get("wire"), config["stop"]
    parts = [f"{stop['rounds']} rounds" + (f", patience {stop['patience']}" if stop["patience"] else "")]
    if wire is not None:
        parts.append(
            wire["codec"] + (f", {wire['private_layers']} private" if wire["private_layers"] else "")
        )
    for name, value in config.items():
        if name == "selection":
            parts.append(f"κ={value['kappa']}")
        elif isinstance(value, int | float) and not isinstance(value, bool) and value not in (0, 1):
            parts.append(f"{name}={value:g}")
    return ", ".join(parts)
