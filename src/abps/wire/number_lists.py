"""Lists of numbers that are not weights, each in as few bytes as it needs.

A list consists of fields of one kind each: ``single`` (float32), ``half`` (bfloat16), ``share`` (a byte for
0 to 1), ``place`` (a member's index, four bytes), ``small`` (a byte each, and a bfloat16 scale per row) and
``double`` (float64). The bytes begin with a description of the fields: how many (u8), and of each its kind
(u8), rows (u16) and count (u32). The sender continues with the decoded values, as the receivers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from abps.wire.codecs import codec

Floats = NDArray[np.float64]
Kind = Literal["single", "half", "share", "place", "small", "double"]

_KINDS: tuple[Kind, ...] = ("single", "half", "share", "place", "small", "double")
_WIDTHS = {"single": 4, "half": 2, "share": 1, "place": 4, "small": 1, "double": 8}
_PLAIN = {"single": "<f4", "place": "<u4", "double": "<f8"}
_HEAD, _FIELD = struct.Struct("<B"), struct.Struct("<BHI")

MOST = 1 << 22  # the most numbers in one list
_TOP = 127  # the largest code of a number in one byte


class NumberListError(ValueError):
    """The bytes are not a list of numbers."""


@dataclass(frozen=True)
class Field:
    """``rows`` times ``count`` numbers of one kind."""

    kind: Kind
    count: int
    rows: int = 1

    @property
    def total(self) -> int:
        return self.rows * self.count

    @property
    def size(self) -> int:
        return _WIDTHS[self.kind] * self.total + (2 * self.rows if self.kind == "small" else 0)


Form = tuple[Field, ...]


def length(form: Form) -> int:
    return sum(field.total for field in form)


@dataclass(frozen=True)
class Fields:
    """The fields of a list by name, in the order in which they are sent."""

    by_name: Mapping[str, Field]

    @property
    def form(self) -> Form:
        """How they are written: neighbours of one kind in one piece, where each has no scale of its own."""
        found: list[Field] = []
        for field in self.by_name.values():
            if found and field.kind == found[-1].kind != "small":
                found[-1] = Field(field.kind, found[-1].total + field.total)
            else:
                found.append(field)
        return tuple(found)

    @property
    def length(self) -> int:
        return length(tuple(self.by_name.values()))

    def pack(self, values: Mapping[str, Floats | float]) -> Floats:
        """(length,) all fields in a row."""
        parts = [np.ravel(np.asarray(values[name], dtype=np.float64)) for name in self.by_name]
        for (name, field), part in zip(self.by_name.items(), parts, strict=True):
            if len(part) != field.total:
                raise ValueError(f"{name}: {len(part)} numbers, {field.total} expected")
        return np.concatenate(parts)

    def unpack(self, numbers: Floats) -> dict[str, Floats]:
        """The fields of one message (length,), or of several (n, length); further numbers are ignored."""
        found, at = {}, 0
        for name, field in self.by_name.items():
            found[name] = numbers[..., at : at + field.total]
            at += field.total
        if numbers.shape[-1] < at:
            raise ValueError(f"{numbers.shape[-1]} numbers, {at} expected")
        return found


@dataclass(frozen=True, eq=False)
class NumberList:
    """values: (m,) as the receivers decode them.  form: their fields.  data: the encoded bytes."""

    values: Floats
    form: Form
    data: bytes

    @staticmethod
    def of(values: Floats, form: Form) -> NumberList:
        return NumberList.read(encode(values, form))[0]

    @property
    def size(self) -> int:
        return len(self.data)

    @staticmethod
    def read(data: bytes) -> tuple[NumberList, bytes]:
        """The list at the beginning of some bytes, and the remaining bytes."""
        try:
            (fields,) = _HEAD.unpack_from(data)
            at, form = _HEAD.size, []
            for _ in range(fields):
                kind, rows, count = _FIELD.unpack_from(data, at)
                form.append(Field(_KINDS[kind], count, rows))
                at += _FIELD.size
        except (struct.error, IndexError) as error:
            raise NumberListError("not a list of numbers") from error
        if length(tuple(form)) > MOST or at + sum(field.size for field in form) > len(data):
            raise NumberListError(f"{len(data)} bytes are fewer than their form says")
        parts = [np.zeros(0)]
        for field in form:
            parts.append(_decoded(data[at : at + field.size], field))
            at += field.size
        return NumberList(np.concatenate(parts), tuple(form), data[:at]), data[at:]


def encode(values: Floats, form: Form) -> bytes:
    if len(values) != length(form):
        raise ValueError(f"{len(values)} numbers for a form of {length(form)}")
    fields = [_FIELD.pack(_KINDS.index(field.kind), field.rows, field.count) for field in form]
    ends = np.cumsum([field.total for field in form]).tolist()
    parts = [_encoded(values[a:b], field) for a, b, field in zip([0, *ends], ends, form)]
    return b"".join([_HEAD.pack(len(form)), *fields, *parts])


def _encoded(values: Floats, field: Field) -> bytes:
    if field.kind in _PLAIN:
        return values.astype(_PLAIN[field.kind]).tobytes()
    if field.kind == "half":
        return codec("bf16").encode(values.astype(np.float32))
    if field.kind == "share":
        return np.rint(np.clip(values, 0.0, 1.0) * 255.0).astype(np.uint8).tobytes()
    table = values.reshape(field.rows, field.count)
    scale = _scales(np.abs(table).max(axis=1, initial=0.0) / _TOP)
    codes = np.rint(table / np.where(scale > 0, scale, 1.0)[:, None])
    return codec("bf16").encode(scale.astype(np.float32)) + codes.astype(np.int8).tobytes()


def _decoded(data: bytes, field: Field) -> Floats:
    if field.kind in _PLAIN:
        return np.frombuffer(data, _PLAIN[field.kind]).astype(np.float64)
    if field.kind == "half":
        return codec("bf16").decode(data, field.total).astype(np.float64)
    if field.kind == "share":
        return np.frombuffer(data, np.uint8) / 255.0
    scale = codec("bf16").decode(data[: 2 * field.rows], field.rows).astype(np.float64)
    codes = np.frombuffer(data, np.int8, offset=2 * field.rows).reshape(field.rows, field.count)
    return (codes * scale[:, None]).ravel()


def _scales(wanted: Floats) -> Floats:
    """(rows,) scales rounded up to bfloat16, so that every code fits into a byte."""
    bits = wanted.astype(np.float32)
    bits = np.where(bits < wanted, np.nextafter(bits, np.float32(np.inf)), bits)
    upper = bits.view(np.uint32) >> np.uint32(16)
    upper += (bits.view(np.uint32) & np.uint32(0xFFFF)) > 0
    return (upper << np.uint32(16)).view(np.float32).astype(np.float64)
