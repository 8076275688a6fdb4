"""Nothing of a peer is used before it passed the checks, and every refusal has its reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.core.streams import center_id
from abps.wire import admission
from abps.wire.admission import Limits, Origin, Reason, Refusal
from abps.wire.messages import Head, pack_broadcast, pack_head, pack_request, pack_upload

BEA = Origin("bea", ("bea",), 3)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=80))
def test_arbitrary_bytes_never_get_further_than_refused(data):
    for check in (admission.admit_upload, admission.admit_broadcast, admission.admit_head):
        with pytest.raises(Refusal):
            check(data, BEA)


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
    head = Head("ada", 7, 3, bytes(range(32)), b"signature", 2)
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
