"""``abps compare --config study.toml``: every option of the command, from a file.

The options are those of the command itself; ``study.schema.json`` describes the file for editors and is made
from the same list: ``python -m abps.cli.study_config``.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

from abps.core.errors import RequestError, nearest

#: JSON's words for the types of options; all others are text.
_TYPES = {int: "integer", float: "number", bool: "boolean"}


@dataclass(frozen=True)
class _Option:
    """One option of the command.  name: of its parameter.  several: it may be given several times."""

    name: str
    kind: type
    several: bool
    help: str


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a file for those that the command line does not give."""
    if path is None:
        return None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(f"{path} is not TOML: {error}") from error
    known = _options()
    given = {}
    for name, value in content.items():
        option = known.get(name.replace("-", "_"))
        if option is None:
            raise RequestError(f"{path}: there is no option {name!r}{nearest(name, known)}")
        given[option.name] = _as_words(path, name, value, option.several)
    context.default_map = {**(context.default_map or {}), **given}
    return path


def _options() -> dict[str, _Option]:
    """The options of ``abps compare`` by the name of their flag, without the file itself."""
    from abps.cli.options import flatten
    from abps.cli.study_commands import compare

    found = {}
    for parameter in inspect.signature(flatten(compare)).parameters.values():
        kind, info = get_args(parameter.annotation)[:2]
        some = [each for each in get_args(kind) if each is not type(None)] or [kind]
        several = get_origin(some[0]) is list
        said = (info.default, *(info.param_decls or ()))  # the first flag stands where a default would
        flags = [flag for flag in said if isinstance(flag, str) and flag.startswith("--")]
        name = (flags or [parameter.name])[0].lstrip("-").replace("-", "_")
        one = get_args(some[0])[0] if several else some[0]
        found[name] = _Option(parameter.name, one, several, info.help or "")
    del found["config"]
    return found


def _as_words(path: Path, name: str, value: Any, several: bool) -> Any:
    """A value of TOML as the command line would have it."""

    def word(inner: Any) -> str:
        if isinstance(inner, dict):
            raise RequestError(f"{path}: {name} is no table of its own; write {name} = VALUE")
        return ",".join(word(each) for each in inner) if isinstance(inner, list) else str(inner)

    if several and isinstance(value, dict):
        return [f"{key}={word(inner)}" for key, inner in value.items()]
    if several:
        return [word(each) for each in value] if isinstance(value, list) else [word(value)]
    return value if isinstance(value, bool) else word(value)


def schema() -> dict[str, Any]:
    """The JSON schema of a study's file, from the options of ``abps compare``."""
    properties = {}
    for name, option in _options().items():
        one: dict[str, Any] = {"type": _TYPES.get(option.kind, "string")}
        if option.several or "omma-separated" in option.help:
            some = [{"type": "array", "items": {"type": ["string", "integer"]}}, one]
            one = {"anyOf": [{"type": "object"}, *some] if "setting" in option.help else some}
        properties[name] = {"description": option.help, **one}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "abps study",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


if __name__ == "__main__":
    place = Path(__file__).with_name("study.schema.json")
    place.write_text(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
