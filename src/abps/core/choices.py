"""Settings that have a fixed list of values: declared as ``Literal`` types, checked in one place."""

from __future__ import annotations

import typing
from functools import cache
from typing import Any, Literal

from abps.core.errors import RequestError


@cache
def choices(kind: Any) -> dict[str, tuple[Any, ...]]:
    """The values that each field of a dataclass may have (or, for a tuple, each of its entries)."""
    found = {}
    for name, hint in typing.get_type_hints(kind).items():
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        if typing.get_origin(inner) is Literal:
            found[name] = typing.get_args(inner)
    return found


def validate(settings: Any) -> None:
    """Refuse a value that is not one of its field's choices; for ``__post_init__``."""
    for name, known in choices(settings.__class__).items():
        value = getattr(settings, name)
        for each in value if isinstance(value, tuple) else (value,):
            if each not in known:
                raise RequestError(f"{name}={each!r}: choose {listed(known)}")


def listed(words: tuple[Any, ...]) -> str:
    """'a, b or c'."""
    *most, last = (str(word) for word in words)
    return f"{', '.join(most)} or {last}" if most else last
