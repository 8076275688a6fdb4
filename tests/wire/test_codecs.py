"""Codecs and frames: round trips, oracles, damaged bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from abps.core.errors import RequestError
from abps.wire.codecs import CODECS, codec
from abps.wire.frames import HEADER_SIZE, FrameError, frame_size, pack, unpack

vectors = hnp.arrays(np.float32, st.integers(0, 70), elements=st.floats(width=32))


@given(vectors)
def test_bf16_rounds_as_torch_does(weights):
    want = torch.from_numpy(weights).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(codec("bf16").arrive(weights), want)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
@given(weights=vectors)
def test_what_arrives_is_what_decoding_gives(name, weights):
    c = codec(name)
    data = c.encode(weights)
    assert len(data) == c.size(len(weights))
    np.testing.assert_array_equal(c.decode(data, len(weights)), c.arrive(weights))


@given(hnp.arrays(np.float32, 33, elements=st.floats(-(2.0**60), 2.0**60, width=32)))
def test_bf16_error_is_within_half_a_unit(weights):
    error = np.abs(codec("bf16").arrive(weights).astype(np.float64) - weights)
    assert (error <= np.abs(weights.astype(np.float64)) * 2.0**-8 + 2.0**-126).all()


@pytest.mark.parametrize("name", sorted(CODECS))
def test_a_frame_survives_the_trip(name):
    weights = np.random.default_rng(0).standard_normal(97).astype(np.float32)
    c = codec(name)
    data = pack(weights, c, round=7, sender=2**63 + 5)
    assert len(data) == frame_size(c, 97) == HEADER_SIZE + c.size(97)
    frame = unpack(data)
    assert (frame.round, frame.sender, frame.codec) == (7, 2**63 + 5, name)


@given(at=st.integers(0, 200), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(at, bit):
    data = bytearray(pack(np.linspace(-1, 1, 42, dtype=np.float32), codec("fp32"), 3, 9))
    data[at % len(data)] ^= 1 << bit
    with pytest.raises(FrameError):
        unpack(bytes(data))


def test_truncated_and_foreign_bytes():
    data = pack(np.ones(5, dtype=np.float32), codec("bf16"), 1, 1)
    for broken in (b"", data[:10], data[:-1], data + b"x", b"PK\x03\x04" + data[4:]):
        with pytest.raises(FrameError):
            unpack(broken)


def test_an_unknown_codec_is_named():
    with pytest.raises(RequestError, match="did you mean 'bf16'"):
        codec("bf61")
