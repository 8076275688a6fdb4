"""What a codec must do: sizes as declared, and a simulation that sees what hospitals would receive."""

from __future__ import annotations

import numpy as np

from abps.core import streams
from abps.core.errors import RequestError
from abps.registry import first_line
from abps.wire.codecs import Codec
from abps.wire.frames import FrameError, pack, unpack

#: Numbers of weights that are tried: none, one, around a block of 64, and many.
COUNTS = (0, 1, 63, 64, 65, 1000)


class CheckFailure(RequestError):
    """A method or codec breaks a rule that everything else relies on: which check, and what happened."""

    def __init__(self, what: str, check: str, why: str) -> None:
        super().__init__(f"{what} fails the check {check!r}: {why}")
        self.check = check
        self.why = why


def check_codec(codec: Codec) -> tuple[str, ...]:
    """The checks that a codec passes; raises :class:`CheckFailure` at the first that fails."""
    rng = streams.generator(7, "codec")
    for count in COUNTS:
        weights = rng.normal(0, 0.1, (3, count)).astype(np.float32)
        keys = streams.bits(7, "codec", 1, np.arange(3, dtype=np.uint64))
        common = rng.normal(0, 0.1, count).astype(np.float32)
        try:
            sent = [codec.encode(row, int(key)) for row, key in zip(weights, keys)]
            seen = [codec.decode(data, count) for data in sent]
            arrived = codec.arrive(weights, keys)
            shifted = codec.arrive(weights + common, keys, common)
        except Exception as error:  # whatever a foreign codec does wrong is its failure
            raise CheckFailure(
                codec.name, "it runs", f"{type(error).__name__}: {first_line(error)}"
            ) from error
        for check, right, why in (
            ("size", {len(data) for data in sent} == {codec.size(count)},
             "size() says another number of bytes"),
            ("shape", {(s.shape, s.dtype) for s in seen} == {((count,), np.dtype(np.float32))},
             "decode() does not give (count,) float32"),
            ("finite", all(np.isfinite(s).all() for s in seen), "what arrives is not finite"),
            ("the same twice", all(codec.encode(r, int(k)) == d for r, k, d in zip(weights, keys, sent)),
             "one message encoded twice with one key gives different bytes"),
            ("arrive is decode of encode", np.array_equal(arrived, np.array(seen).reshape(arrived.shape)),
             "simulation (arrive) does not see what hospitals see (decode of encode)"),
            ("differences", np.allclose(shifted, arrived + common, atol=1e-2),
             "with a common base, arrive() does not give what travels as a difference"),
        ):  # fmt: skip
            if not right:
                raise CheckFailure(codec.name, check, f"{why} ({count} weights)")
        if count:
            try:
                framed = unpack(pack(weights[0], codec, 1, 2, int(keys[0])), codec)
            except FrameError as error:
                raise CheckFailure(codec.name, "frames", first_line(error)) from error
            if not np.array_equal(framed.weights, seen[0]):
                raise CheckFailure(codec.name, "frames", "a frame does not carry the same weights")
    return (
        "it runs",
        "size",
        "shape",
        "finite",
        "the same twice",
        "arrive is decode of encode",
        "differences",
        "frames",
    )
