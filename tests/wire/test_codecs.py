"""Codecs and frames: round trips, oracles, damaged bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from abps.core import streams
from abps.core.errors import RequestError
from abps.wire.codecs import BLOCK, CODECS, HEADER_SIZE, codec, frame_size

vectors = hnp.arrays(np.float32, st.integers(0, 70), elements=st.floats(width=32))


@given(vectors)
def test_bf16_rounds_as_torch_does(weights):
    want = torch.from_numpy(weights).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(codec("bf16").arrive(weights[None])[0], want)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
@given(weights=vectors)
def test_what_arrives_is_what_decoding_gives(name, weights):
    c = codec(name)
    data = c.encode(weights)
    assert len(data) == c.size(len(weights))
    np.testing.assert_array_equal(c.decode(data, len(weights)), c.arrive(weights[None])[0])


@given(hnp.arrays(np.float32, 33, elements=st.floats(-(2.0**60), 2.0**60, width=32)))
def test_bf16_error_is_within_half_a_unit(weights):
    error = np.abs(codec("bf16").arrive(weights[None])[0].astype(np.float64) - weights)
    assert (error <= np.abs(weights.astype(np.float64)) * 2.0**-8 + 2.0**-126).all()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("name", sorted(CODECS.builtin))
def test_what_the_simulation_sees_is_what_receivers_decode(name, count):
    c, rng = codec(name), streams.generator(7, "codec")
    weights = rng.normal(0, 0.1, (3, count)).astype(np.float32)
    keys = streams.bits(7, "codec", 1, np.arange(3, dtype=np.uint64))
    sent = [c.encode(row, int(key)) for row, key in zip(weights, keys)]
    seen = np.array([c.decode(data, count) for data in sent], dtype=np.float32)
    assert {len(data) for data in sent} == {c.size(count)} and np.isfinite(seen).all()
    assert sent == [c.encode(row, int(key)) for row, key in zip(weights, keys)]
    np.testing.assert_array_equal(c.arrive(weights, keys), seen.reshape(3, count))
    assert frame_size(c, count) == HEADER_SIZE + len(sent[0])


def test_an_unknown_codec_is_named():
    with pytest.raises(RequestError, match="did you mean 'bf16'"):
        codec("bf61")


integers = pytest.mark.parametrize("name", ["int8", "int4", "int3"])
finite = hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-(2.0**20), 2.0**20, width=32))


@integers
@given(weights=finite, key=st.integers(0, 2**64 - 1))
def test_integer_codecs_decode_what_arrives_within_their_bound(name, weights, key):
    c = codec(name)
    data = c.encode(weights, key)
    assert len(data) == c.size(len(weights))
    got = c.decode(data, len(weights))
    np.testing.assert_array_equal(got, c.arrive(weights[None], np.array([key], dtype=np.uint64))[0])
    for at in range(0, len(weights), BLOCK):
        block = weights[at : at + BLOCK].astype(np.float64)
        bound = np.abs(block).max() / c.top * 1.01 + 1e-37
        assert (np.abs(got[at : at + BLOCK] - block) <= bound).all()


def plainly_rounded(weights, key, top):
    """An integer codec's work with NumPy, pass by pass."""
    count = len(weights)
    low, odd = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32 | 1)
    words = streams.places(-(-count // 2)) + low
    words = (words ^ words >> np.uint32(15)) * odd
    words ^= words >> np.uint32(16)
    chance = words.view(np.uint16)[:count].astype(np.float32) / np.float32(2**16)
    out = np.zeros(count, dtype=np.float32)
    for at in range(0, count, BLOCK):
        some = slice(at, min(count, at + BLOCK))
        raw = (np.abs(weights[some]).max() / np.float32(top)).reshape(1).view(np.uint32)
        step = (raw + np.uint32(0xFFFF) & np.uint32(0xFFFF0000)).view(np.float32)
        if step > 0 and np.isfinite(step):
            out[some] = np.clip(np.floor(weights[some] / step + chance[some]), -top, top) * step
    return out


@integers
@given(weights=finite, key=st.integers(0, 2**64 - 1))
def test_compiled_rounding_is_the_plain_one(name, weights, key):
    c = codec(name)
    got = c.arrive(weights[None], np.array([key], dtype=np.uint64))[0]
    np.testing.assert_array_equal(got, plainly_rounded(weights, key, c.top))


@integers
def test_rounding_at_random_loses_nothing_on_average(name):
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((1, 256)).astype(np.float32)
    keys = np.arange(4000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    arrived = codec(name).arrive(np.repeat(weights, 4000, axis=0), keys).astype(np.float64)
    step = np.abs(weights.reshape(-1, BLOCK)).max(axis=1).repeat(BLOCK) / codec(name).top
    assert (np.abs(arrived.mean(axis=0) - weights[0]) < 5 * step / 2 / np.sqrt(4000) + step * 2.0**-16).all()


@integers
def test_a_sender_rounds_the_same_alone_as_among_others(name):
    weights = np.random.default_rng(2).standard_normal((5, 100)).astype(np.float32)
    keys = np.arange(5, dtype=np.uint64)
    together = codec(name).arrive(weights, keys)
    for k in range(5):
        np.testing.assert_array_equal(together[k], codec(name).arrive(weights[k : k + 1], keys[k : k + 1])[0])


def test_bits_on_the_wire():
    count = 16832  # the trunk of the default network at 66 features
    for name, width in (("int8", 8), ("int4", 4), ("int3", 3)):
        assert codec(name).size(count) * 8 / count == pytest.approx(width + 16 / BLOCK, abs=0.001)


@integers
def test_blocks_of_zeros_and_of_nonsense(name):
    c = codec(name)
    weights = np.zeros((1, 130), dtype=np.float32)
    weights[0, 70] = np.nan
    weights[0, 129] = np.inf
    arrived = c.arrive(weights, np.zeros(1, dtype=np.uint64))
    assert np.isfinite(arrived).all() and (arrived[0, :64] == 0).all()
