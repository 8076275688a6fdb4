"""Nothing of a peer is used before it passed the checks, and every refusal has its reason."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.core.protocol import REASONS, Kind, Message
from abps.core.streams import center_id
from abps.wire import admission
from abps.wire.admission import Limits, Origin, RateLimit, Reason, Refusal
from abps.wire.codecs import codec
from abps.wire.frames import pack
from abps.wire.messages import (
    HeadMessage,
    MessageError,
    pack_broadcast,
    pack_head,
    pack_message,
    pack_request,
    pack_upload,
    pack_vector,
    unpack_message,
    vector_size,
)

LIMITS = Limits()
ADA, BEA = (Origin(name, (name,), 3) for name in ("ada", "bea"))
NAMES = ("positive rate", "log training rows", "mean year / 2030", "prevalence of cci_dementia")
GOOD = np.array([0.1, 5.2, 1.05, 0.3])


def frame(weights=None, name="bf16", round=3, sender="bea"):
    values = np.linspace(-1, 1, 10, dtype=np.float32) if weights is None else weights
    return pack(np.asarray(values, dtype=np.float32), codec(name), round, center_id(sender))


def admit(data, peer="bea", partners=("bea",), round=3, name="bf16", count=10):
    return admission.admit_weights(data, Origin(peer, partners, round), codec(name), count)


def test_a_partners_frame_is_let_in():
    np.testing.assert_array_equal(
        admit(frame()), codec("bf16").arrive(np.linspace(-1, 1, 10, dtype=np.float32)[None])[0]
    )


@pytest.mark.parametrize(
    ("data", "arguments", "reason"),
    [
        (frame(), {"partners": ("cyr",)}, Reason.NOT_PARTNER),
        (frame(round=2), {}, Reason.ROUND),
        (frame(round=4), {}, Reason.ROUND),
        (frame(sender="eve"), {}, Reason.SENDER),
        (frame(name="fp32"), {}, Reason.SIZE),
        (frame(np.zeros(4), "fp32"), {}, Reason.CODEC),
        (frame(np.zeros(9)), {}, Reason.SHAPE),
        (frame(np.zeros(11)), {}, Reason.SIZE),
        (frame([0] * 9 + [np.nan]), {}, Reason.NOT_FINITE),
        (frame([0] * 9 + [-np.inf]), {}, Reason.NOT_FINITE),
        (frame([0] * 9 + [1e9]), {}, Reason.TOO_LARGE),
        (frame()[:-1], {}, Reason.MALFORMED),
        (b"", {}, Reason.MALFORMED),
        (b"PK" + frame()[2:], {}, Reason.MALFORMED),
        (frame()[:-1] + b"\x01", {}, Reason.MALFORMED),
    ],
)
def test_a_bad_frame_is_refused_for_its_reason(data, arguments, reason):
    with pytest.raises(Refusal) as caught:
        admit(data, **arguments)
    assert caught.value.reason is reason and caught.value.peer == "bea"
    assert caught.value.detail


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=80))
def test_arbitrary_bytes_never_get_further_than_refused(data):
    for check in (
        lambda: admit(data),
        lambda: admission.admit_message(data, BEA),
        lambda: admission.admit_vector(data, BEA, NAMES),
    ):
        with pytest.raises(Refusal):
            check()


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 51), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_taken_for_weights(at, bit):
    data = bytearray(frame())
    data[at] ^= 1 << bit
    with pytest.raises(Refusal):
        admit(bytes(data))


@given(
    kind=st.sampled_from(list(Kind)),
    round=st.integers(0, 2**32 - 1),
    attempt=st.integers(1, 2**16 - 1),
    reason=st.sampled_from(sorted(REASONS)),
)
def test_messages_survive_the_wire(kind, round, attempt, reason):
    message = Message(kind, round, attempt, reason)
    data = pack_message(message, center_id("ada"))
    assert len(data) == 16
    assert unpack_message(data) == (message, center_id("ada"))


@pytest.mark.parametrize("data", [b"", b"\0" * 16, b"\x01\xff" + b"\x01" * 14, b"\x01\0\0\0" + b"\x01" * 12])
def test_a_message_that_is_none(data):
    with pytest.raises(MessageError):
        unpack_message(data)


def test_messages_are_for_members_of_this_round_or_one_to_settle():
    def ask(round, peer="bea", sender="bea"):
        data = pack_message(Message(Kind.PROPOSE, round, 1), center_id(sender))
        return admission.admit_message(data, Origin(peer, ("ada", "bea"), 5))

    assert ask(5).round == 5
    assert ask(2).round == 2  # settled from the record of round 2
    for arguments, reason in (
        ({"round": 6}, Reason.ROUND),
        ({"round": 0}, Reason.ROUND),
        ({"round": 5, "peer": "eve"}, Reason.STRANGER),
        ({"round": 5, "sender": "ada"}, Reason.SENDER),
    ):
        with pytest.raises(Refusal) as caught:
            ask(**arguments)
        assert caught.value.reason is reason


def vector(values, sender="bea"):
    return pack_vector(np.asarray(values, dtype=np.float64), 1, center_id(sender))


def test_a_plausible_vector_is_let_in_and_costs_what_the_ledger_says():
    data = vector(GOOD)
    assert len(data) == vector_size(4) == 16 + 4 * 4
    np.testing.assert_array_equal(
        admission.admit_vector(data, BEA, NAMES), GOOD.astype(np.float32).astype(np.float64)
    )


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, -0.1), (0, 1.1), (0, np.nan), (1, -1.0), (1, 25.0), (1, np.inf), (2, 0.5), (2, 1.2), (3, 7.0)],
)
def test_an_implausible_vector_is_refused(at, value):
    bad = GOOD.copy()
    bad[at] = value
    with pytest.raises(Refusal) as caught:
        admission.admit_vector(vector(bad), BEA, NAMES)
    assert caught.value.reason is Reason.METADATA and NAMES[at] in caught.value.detail


@pytest.mark.parametrize(
    ("data", "members", "reason"),
    [
        (vector(GOOD), ("ada",), Reason.STRANGER),
        (vector(GOOD, "ada"), ("bea",), Reason.SENDER),
        (vector(GOOD[:3]), ("bea",), Reason.SHAPE),
        (vector(GOOD)[:-1], ("bea",), Reason.MALFORMED),
    ],
)
def test_a_vector_of_the_wrong_form_is_refused(data, members, reason):
    with pytest.raises(Refusal) as caught:
        admission.admit_vector(data, Origin("bea", members), NAMES)
    assert caught.value.reason is reason


def test_a_forged_count_does_not_make_room():
    """A header that promises more weights than there are bytes, with a checksum that fits."""
    body = codec("bf16").encode(np.zeros(10, dtype=np.float32))
    head = struct.pack("<4sBBHIIQI", b"ABPS", 1, 2, 0, 3, 2**31, center_id("bea"), len(body))
    with pytest.raises(Refusal) as caught:
        admit(head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body)
    assert caught.value.reason is Reason.MALFORMED


def test_a_flood_is_cut_off_and_forgiven_with_time():
    limits = Limits(burst=3, per_second=2.0)
    level = RateLimit.full(limits, now=10.0)
    for _ in range(3):
        level = level.take("bea", 10.0, limits)
    with pytest.raises(Refusal) as caught:
        level.take("bea", 10.1, limits)
    assert caught.value.reason is Reason.RATE
    level = level.take("bea", 10.6, limits)
    with pytest.raises(Refusal):
        level.take("bea", 10.7, limits)
    assert level.take("bea", 1e6, limits).left == limits.burst - 1  # never more than a burst


@given(st.binary(max_size=40))
def test_only_a_request_of_this_round_passes_as_one(data):
    """Whatever the bytes: the last round that a member knows, or refused with a reason."""
    ada = center_id("ada")
    good, here = pack_request(2, 3, ada), Origin("ada", ("ada",), 3)
    assert admission.admit_request(good, here) == 2
    with pytest.raises(Refusal):
        admission.admit_request(data, here)
    for wrong, origin, reason in (
        (good, Origin("eve", ("ada",), 3), Reason.STRANGER),
        (good, Origin("eve", ("eve",), 3), Reason.SENDER),
        (good, Origin("ada", ("ada",), 4), Reason.ROUND),
        (pack_upload(b"", 3, ada), here, Reason.MALFORMED),
    ):
        with pytest.raises(Refusal) as caught:
            admission.admit_request(wrong, origin)
        assert caught.value.reason is reason


def test_uploads_broadcasts_and_heads_are_read_back_and_bounded():
    ada, here = center_id("ada"), Origin("ada", ("ada",), 3, Limits(said=40))
    assert admission.admit_upload(pack_upload(b"content", 3, ada), here) == b"content"
    assert admission.admit_broadcast(pack_broadcast(b"content", 3, ada), here) == b"content"
    head = HeadMessage(7, bytes(range(32)), b"signature", 3, 2)
    assert admission.admit_head(pack_head(head, ada), here) == head
    for wrong, reason in (
        (lambda: admission.admit_upload(pack_upload(b"x" * 41, 3, ada), here), Reason.SIZE),
        (lambda: admission.admit_upload(pack_broadcast(b"", 3, ada), here), Reason.MALFORMED),
        (lambda: admission.admit_broadcast(pack_broadcast(b"", 2, ada), here), Reason.ROUND),
        (lambda: admission.admit_head(pack_head(head, ada)[:-1], here), Reason.MALFORMED),
        (lambda: admission.admit_head(pack_head(head, ada + 1), here), Reason.SENDER),
    ):
        with pytest.raises(Refusal) as caught:
            wrong()
        assert caught.value.reason is reason
