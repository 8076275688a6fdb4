"""The error for wrong requests, and checks of settings that have a fixed list of values."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal


class DataWarning(UserWarning):
    """Something in the data looks wrong: which column, and at which center."""


class RequestError(ValueError):
    """The request was wrong: one sentence that says what, where, and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' if a known name is close to ``word``, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


@cache
def choices(kind: Any) -> dict[str, tuple[Any, ...]]:
    """The values that each ``Literal`` field of a dataclass (or each entry of a tuple) may have."""
    found = {}
    for name, hint in typing.get_type_hints(kind).items():
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        if typing.get_origin(inner) is Literal:
            found[name] = typing.get_args(inner)
    return found


def validate(settings: Any) -> None:
    """Raise unless every ``Literal`` field has one of its values; call it in ``__post_init__``."""
    for name, known in choices(settings.__class__).items():
        value = getattr(settings, name)
        for each in value if isinstance(value, tuple) else (value,):
            if each not in known:
                raise RequestError(f"{name}={each!r}: choose {listed(known)}")


def listed(words: tuple[Any, ...]) -> str:
    """'a, b or c'."""
    *most, last = (str(word) for word in words)
    return f"{', '.join(most)} or {last}" if most else last
