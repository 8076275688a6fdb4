"""Any state as bytes and back: a frozen dataclass of arrays, numbers, words and more of the same.

What is written is a list of names and numbers (JSON), then the arrays as they are in memory: nothing that
could be executed. Reading follows the types that the dataclasses declare.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import types
import typing
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTH = struct.Struct("<I")

#: What arrays are made of: numbers, words, dates.
_KIND = re.compile(r"[<>|][biufcUSmM]\d+(\[\w+\])?")


class StateError(ValueError):
    """The bytes are not a state of this kind."""


def freeze(state: Any, without: tuple[str, ...] = ()) -> bytes:
    """A state as bytes; without: fields that are written elsewhere."""
    arrays: list[NDArray[Any]] = []

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.ndarray):
            if not _KIND.fullmatch(value.dtype.str):
                raise TypeError(f"an array of {value.dtype} cannot be written down")
            arrays.append(np.ascontiguousarray(value))
            return [value.dtype.str, list(value.shape)]
        if dataclasses.is_dataclass(value):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, tuple | list):
            return [plain(each) for each in value]
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"a {type(value).__name__} cannot be written down")

    kept = {f.name: getattr(state, f.name) for f in dataclasses.fields(state) if f.name not in without}
    head = json.dumps({name: plain(value) for name, value in kept.items()}).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *(array.tobytes() for array in arrays)])


def thaw(kind: type, data: bytes, **given: Any) -> Any:
    """A state of the dataclass ``kind`` from bytes; given: the fields that were written elsewhere.

    ``StateError`` if the bytes are none.
    """
    try:
        return _thawed(kind, data, given)
    except StateError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        OverflowError,
        struct.error,
    ) as error:
        raise StateError(f"no {kind.__name__} can be read ({error!r})") from error


def _thawed(kind: type, data: bytes, given: dict[str, Any]) -> Any:
    (length,) = _LENGTH.unpack_from(data)
    at = _LENGTH.size + length

    def array(head: Any) -> NDArray[Any]:
        nonlocal at
        if not _KIND.fullmatch(head[0]):  # NumPy would read more than names in such words
            raise StateError(f"an array of {head[0]!r}")
        dtype, shape = np.dtype(head[0]), tuple(head[1])
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if at + size > len(data):
            raise StateError("an array is cut off")
        found = np.frombuffer(data[at : at + size], dtype=dtype).reshape(shape).copy()
        at += size
        return found

    def read(content: Any, hint: Any) -> Any:
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            (some,) = (each for each in inner if each is not type(None))
            return None if content is None else read(content, some)
        if origin is np.ndarray:
            return array(content)
        if origin is tuple:
            each = [inner[0]] * len(content) if inner[1:] == (...,) else inner
            return tuple(read(value, one) for value, one in zip(content, each, strict=True))
        if dataclasses.is_dataclass(hint):
            hints, make = typing.get_type_hints(hint), typing.cast(Any, hint)
            return make(**{name: read(value, hints[name]) for name, value in content.items()})
        if isinstance(hint, type) and issubclass(hint, tuple):  # a named one
            hints = typing.get_type_hints(hint)
            return hint(*(read(value, one) for value, one in zip(content, hints.values(), strict=True)))
        return content

    hints = typing.get_type_hints(kind)
    content = json.loads(data[_LENGTH.size : _LENGTH.size + length])
    return kind(**given, **{name: read(value, hints[name]) for name, value in content.items()})
