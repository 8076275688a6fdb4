"""Any state as bytes and back: a frozen dataclass of arrays, numbers, words and more of the same.

MessagePack with arrays as type, shape and bytes: nothing that could be executed. Types are as declared.
"""

import dataclasses
import re
import typing
from typing import Any

import msgspec
import numpy as np

#: What arrays are made of: numbers, words, dates. NumPy would read more than names in other words.
_KIND = re.compile(r"[<>|][biufcUSmM]\d+(\[\w+\])?")


class StateError(ValueError):
    """The bytes are not a state of this kind."""


def freeze(state: Any, without: tuple[str, ...] = ()) -> bytes:
    """A state as bytes; without: fields that are written elsewhere."""
    kept = {f.name: getattr(state, f.name) for f in dataclasses.fields(state) if f.name not in without}
    return msgspec.msgpack.encode(kept, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and _KIND.fullmatch(value.dtype.str):
        return value.dtype.str, value.shape, value.tobytes()
    raise TypeError(f"{value!r} cannot be written down")


def thaw(kind: type, data: bytes, **given: Any) -> Any:
    """A state of the dataclass ``kind`` from bytes; given: the fields that were written elsewhere."""
    hints = typing.get_type_hints(kind)
    try:
        content = msgspec.msgpack.decode(data)
        kept = {name: msgspec.convert(each, hints[name], dec_hook=_array) for name, each in content.items()}
        return kind(**given, **kept)
    except (ValueError, TypeError, KeyError, AttributeError, msgspec.DecodeError) as error:
        raise StateError(f"no {kind.__name__} can be read ({error!r})") from error


def _array(hint: Any, content: Any) -> Any:
    if typing.get_origin(hint) is not np.ndarray:
        raise NotImplementedError(hint)
    name, shape, raw = content
    if not _KIND.fullmatch(name):
        raise ValueError(f"an array of {name!r}")
    return np.frombuffer(raw, dtype=np.dtype(name)).reshape(shape).copy()
