"""Files appear whole or not at all: write beside the target, then rename."""

import contextlib
import json
import math
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from abps.core.errors import RequestError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the target's folder that takes the target's name if the block succeeds."""
    path = Path(path)
    folder(path.parent)
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        # Made with the rights that the user's umask leaves, as any other program would.
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except OSError as error:
        why = f"cannot write in {path.parent}: {error.strerror}"
        raise RequestError(f"{why}; choose another place") from error
    os.close(handle)
    try:
        yield part
        part.replace(path)
    except OSError as error:  # a full disk, a quota, a file system that went away
        why = error.strerror or str(error)
        raise RequestError(f"cannot write {path}: {why}; make room or choose another place") from error
    finally:
        part.unlink(missing_ok=True)


def folder(path: Path) -> Path:
    """Make a folder (and its parents), or say in one sentence why not."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot make the folder {path}: {error.strerror}"
        raise RequestError(f"{why}; choose another place") from error
    return Path(path)


def check_writable(path: Path) -> None:
    """Find out before the work, not after it, whether a folder can be written to."""
    folder(path)
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise RequestError(f"cannot write in {path}: {error.strerror}; choose another place") from error


def write_text(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as part:
        part.write_bytes(content)


def write_secret(path: Path, text: str) -> None:
    """Write a text file whole that nobody but its owner can read, at no moment."""
    with replacing(path) as part:
        part.chmod(0o600)
        part.write_text(text, encoding="utf-8")


def as_json(value: Any) -> str:
    """JSON as it is written to files: keys in the order given, no NaN (JSON has none)."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Plain data for JSON: tuples as lists, and null for what is no finite number."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    write_text(path, as_json(value))


def as_toml(values: Mapping[str, Any]) -> str:
    """Values as TOML: those with a name and a value each are tables, and come last."""
    tables = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in values.items() if name not in tables]
    for name, table in tables.items():
        lines += [*([""] if lines else []), f"[{_key(name)}]"]
        lines += [f"{_key(key)} = {_value(value)}" for key, value in table.items()]
    return "\n".join([*lines, ""])


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    plain = value if isinstance(value, bool | int | float | str) else str(value)
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_with(path: Path, writer: Callable[[Path], object]) -> None:
    """Write a file whole with a library's own writer."""
    with replacing(path) as part:
        try:
            writer(part)
        except Exception as error:
            # Libraries in Rust report the operating system's errors in errors of their own.
            _, found, code = str(error).partition("(os error ")
            if not found:
                raise
            number = int(code.partition(")")[0])
            raise OSError(number, os.strerror(number)) from error
