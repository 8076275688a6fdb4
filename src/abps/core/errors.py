"""The error for wrong requests, and checks of settings that have a fixed list of values."""

import difflib
import math
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal

Limits = Mapping[str, tuple[float, float]]  # lowest and highest values of settings, by name

FROM_0, FROM_1, POSITIVE = (0.0, math.inf), (1.0, math.inf), (math.ulp(0.0), math.inf)
SHARE = (math.ulp(0.0), math.nextafter(1.0, 0.0))
FROM_0_BELOW_1, UP_TO_1 = (0.0, math.nextafter(1.0, 0.0)), (math.ulp(0.0), 1.0)


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
    """Raise unless every ``Literal`` field has one of its values and every number lies within the ``limits``
    of its class; call it in ``__post_init__``."""
    for name, known in choices(settings.__class__).items():
        value = getattr(settings, name)
        for each in value if isinstance(value, tuple) else (value,):
            if each not in known:
                raise RequestError(f"{name}={each!r}: choose {listed(known)}")
    for kind in type(settings).__mro__:
        for name, (low, high) in vars(kind).get("limits", {}).items():
            value = getattr(settings, name)
            if value is not None and not low <= value <= high:
                raise RequestError(f"{name}={value}: choose {_range(low, high)}")


def _range(low: float, high: float) -> str:
    """A range in words; an end that is next to a round number is not part of it."""
    least, most = round(low, 9), round(high, 9)
    words = f"at least {low:g}" if low == least else f"above {least:g}"
    if math.isinf(high):
        return words
    return f"{words}, {'at most' if high == most else 'below'} {most:g}"


def listed(words: tuple[Any, ...]) -> str:
    """'a, b or c'."""
    *most, last = (str(word) for word in words)
    return f"{', '.join(most)} or {last}" if most else last
