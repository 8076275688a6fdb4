"""Lists of numbers that are not weights, each in as few bytes as it needs.

A list is cut into stretches of one kind: ``single`` (four bytes), ``half`` (the upper two of them), ``share``
(a byte for 0 to 1), ``place`` (a member's place, four bytes) and ``small`` (a byte each, and two for the
scale of a row). The bytes begin with the stretches themselves, so that a receiver needs to know nothing:

    0  stretches  u8
    1  of each    kind u8, rows u16, count u32

Nothing else travels: the numbers that a sender goes on with are those that the receivers read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from abps.wire.codecs import codec

Floats = NDArray[np.float64]
Kind = Literal["single", "half", "share", "place", "small"]

_KINDS: tuple[Kind, ...] = ("single", "half", "share", "place", "small")
_WIDTHS = {"single": 4, "half": 2, "share": 1, "place": 4, "small": 1}
_HEAD, _STRETCH = struct.Struct("<B"), struct.Struct("<BHI")

#: The most numbers in one list.
MOST = 1 << 22

#: The largest code of a number in one byte.
_TOP = 127


class NumeralError(ValueError):
    """The bytes are no list of numbers."""


@dataclass(frozen=True)
class Stretch:
    """``rows`` times ``count`` numbers of one kind."""

    kind: Kind
    count: int
    rows: int = 1

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return self.rows * self.count

    @property
    def size(self) -> int:
        """The bytes that they take."""
        return _WIDTHS[self.kind] * self.total + (2 * self.rows if self.kind == "small" else 0)


Form = tuple[Stretch, ...]


def length(form: Form) -> int:
    """How many numbers a list of this form has."""
    return sum(stretch.total for stretch in form)


def size(form: Form) -> int:
    """The bytes that a list of this form takes, its form included."""
    return _HEAD.size + sum(_STRETCH.size + stretch.size for stretch in form)


@dataclass(frozen=True, eq=False)
class Numerals:
    """values: (m,) as the receivers read them.  form: how they are written.  data: as they are sent."""

    values: Floats
    form: Form
    data: bytes

    @staticmethod
    def of(values: Floats, form: Form) -> Numerals:
        """Numbers as they arrive when they are written in this form."""
        return Numerals.read(written(values, form))[0]

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    @staticmethod
    def read(data: bytes) -> tuple[Numerals, bytes]:
        """A list of numbers from the beginning of some bytes, and the rest of them."""
        try:
            (stretches,) = _HEAD.unpack_from(data)
            at, form = _HEAD.size, []
            for _ in range(stretches):
                kind, rows, count = _STRETCH.unpack_from(data, at)
                form.append(Stretch(_KINDS[kind], count, rows))
                at += _STRETCH.size
        except (struct.error, IndexError) as error:
            raise NumeralError("no list of numbers") from error
        if length(tuple(form)) > MOST or at + sum(stretch.size for stretch in form) > len(data):
            raise NumeralError(f"{len(data)} bytes are fewer than their form says")
        parts = [np.zeros(0)]
        for stretch in form:
            parts.append(_decoded(data[at : at + stretch.size], stretch))
            at += stretch.size
        return Numerals(np.concatenate(parts), tuple(form), data[:at]), data[at:]


def written(values: Floats, form: Form) -> bytes:
    """(m,) numbers as bytes."""
    if len(values) != length(form):
        raise ValueError(f"{len(values)} numbers for a form of {length(form)}")
    head = _HEAD.pack(len(form)) + b"".join(
        _STRETCH.pack(_KINDS.index(stretch.kind), stretch.rows, stretch.count) for stretch in form
    )
    ends = np.cumsum([stretch.total for stretch in form]).tolist()
    parts = [_encoded(values[a:b], stretch) for a, b, stretch in zip([0, *ends], ends, form)]
    return head + b"".join(parts)


def _encoded(values: Floats, stretch: Stretch) -> bytes:
    if stretch.kind == "single":
        return values.astype("<f4").tobytes()
    if stretch.kind == "half":
        return codec("bf16").encode(values.astype(np.float32))
    if stretch.kind == "share":
        return np.rint(np.clip(values, 0.0, 1.0) * 255.0).astype(np.uint8).tobytes()
    if stretch.kind == "place":
        return values.astype("<u4").tobytes()
    table = values.reshape(stretch.rows, stretch.count)
    scale = _scales(np.abs(table).max(axis=1, initial=0.0) / _TOP)
    codes = np.rint(table / np.where(scale > 0, scale, 1.0)[:, None])
    return codec("bf16").encode(scale.astype(np.float32)) + codes.astype(np.int8).tobytes()


def _decoded(data: bytes, stretch: Stretch) -> Floats:
    if stretch.kind == "single":
        return np.frombuffer(data, "<f4").astype(np.float64)
    if stretch.kind == "half":
        return codec("bf16").decode(data, stretch.total).astype(np.float64)
    if stretch.kind == "share":
        return np.frombuffer(data, np.uint8) / 255.0
    if stretch.kind == "place":
        return np.frombuffer(data, "<u4").astype(np.float64)
    scale = codec("bf16").decode(data[: 2 * stretch.rows], stretch.rows).astype(np.float64)
    codes = np.frombuffer(data, np.int8, offset=2 * stretch.rows).reshape(stretch.rows, stretch.count)
    return (codes * scale[:, None]).ravel()


def _scales(wanted: Floats) -> Floats:
    """(rows,) scales in two bytes, none below what is wanted: no code may leave its byte."""
    bits = wanted.astype(np.float32)
    bits = np.where(bits < wanted, np.nextafter(bits, np.float32(np.inf)), bits)
    upper = bits.view(np.uint32) >> np.uint32(16)
    upper += (bits.view(np.uint32) & np.uint32(0xFFFF)) > 0
    return (upper << np.uint32(16)).view(np.float32).astype(np.float64)
