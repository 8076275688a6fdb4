"""What is too long is refused before it is received: by what it says of itself, and by what comes of it."""

from __future__ import annotations

import logging
import random
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from abps.sites.flare.process import FILLS, Intake

MB = 1 << 20


def piece(length, sender="site-1.job", **headers):
    told = {MessageHeaderKey.ORIGIN: sender, StreamHeaderKey.SIZE: headers.get("size", length)}
    return Message(told, bytes(length))


@pytest.mark.parametrize("size", [5 * MB, 2**70, -1, 1.5, "4", None, True])
def test_a_message_that_says_it_is_too_long_is_dropped_at_its_first_piece(size):
    assert Intake(4 * MB).admit(piece(10, size=size)) is not None


def test_what_a_sender_may_send_fills_with_time():
    clock = [0.0]
    intake = Intake(4 * MB, lambda: clock[0])
    assert [intake.admit(piece(MB)) is None for _ in range(6)] == [True] * 4 + [False] * 2
    assert intake.admit(piece(MB, "site-2.job")) is None  # another's measure is its own
    clock[0] += FILLS / 4
    assert [intake.admit(piece(MB)) is None for _ in range(2)] == [True, False]
    clock[0] -= 1000.0  # a clock that jumps back gives nothing, and takes nothing
    assert intake.admit(piece(MB)) is not None
    clock[0] += 1e9
    assert [intake.admit(piece(MB)) is None for _ in range(5)] == [True] * 4 + [False]


def test_a_length_that_is_a_lie_does_not_help():
    """Pieces of a message that says it is short, one after the other: they end with the measure."""
    intake = Intake(4 * MB, lambda: 0.0)
    passed = sum(intake.admit(piece(MB // 2, size=100)) is None for _ in range(100))
    assert passed == 8


def test_the_engine_calls_it_by_its_name():
    """Through the engine's own way of calling filters, which asks for their name."""
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell

    class Cell:
        logger = logging.getLogger("cell")
        my_info = SimpleNamespace(fqcn="site-2")

    call = CoreCell._try_cb
    assert call(Cell(), piece(10), Intake().admit) is None
    assert call(Cell(), piece(10, size=2**40), Intake().admit) is not None


def test_refusals_do_not_fill_the_log(caplog):
    intake = Intake(MB, lambda: 0.0)
    chance = random.Random(1)
    for _ in range(500):
        intake.admit(piece(10, sender=f"site-{chance.randrange(3)}.job", size=2 * MB))
    assert len([r for r in caplog.records if "dropped" in r.message]) == 3


def test_the_engine_takes_no_longer_frames():
    from nvflare.fuel.f3.drivers import grpc_driver, net_utils

    from abps.sites.flare.process import limit_frames

    before = net_utils.MAX_FRAME_SIZE
    try:
        limit_frames(3 * MB)
        assert {value for _, value in grpc_driver.GRPC_DEFAULT_OPTIONS} == {3 * MB}
    finally:
        limit_frames(before)
