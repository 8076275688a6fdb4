"""Masked sums: exact, in spite of drop-outs, and closed to a relay that lies."""

import contextlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from abps.core.errors import RequestError
from abps.privacy import fixed_point
from abps.privacy.secure_sum import (
    Collector,
    Group,
    Member,
    SumError,
    join_shares,
    split_secret,
)


def group_of(names, context="icu/1/statistics"):
    identities = {name: Ed25519PrivateKey.generate() for name in names}
    public = {name: key.public_key().public_bytes_raw() for name, key in identities.items()}
    group = Group(tuple(names), context, public)
    return group, {name: Member(group, name, identities[name]) for name in names}


def shared(group, members):
    """Steps 1 and 2, everybody there."""
    keys = {name: member.keys() for name, member in members.items()}
    given = {name: member.shares(keys) for name, member in members.items()}
    for sender, parcel in given.items():
        for name, sealed in parcel.items():
            members[name].keep(sender, sealed)
    return keys


def opened(members, present, collector):
    lists = {name: members[name].present(present) for name in present}
    return {name: members[name].open(lists) for name in present}


def run(vectors, gone=()):
    group, members = group_of(list(vectors))
    keys = shared(group, members)
    collector = Collector(group, keys)
    size = len(vectors)
    for name, values in vectors.items():
        masked = members[name].masked(fixed_point.encode(values, size))
        if name not in gone:
            collector.take(name, masked)
    parts = opened(members, list(collector.vectors), collector)
    total = collector.total(parts, list(members))
    checked = [members[name].verified(total) for name in collector.vectors]
    assert all(np.array_equal(each, checked[0]) for each in checked)
    return collector, fixed_point.decode(checked[0])


def hospitals(count, entries=5, seed=3):
    rng = np.random.default_rng(seed)
    return {f"h{k}": rng.normal(size=entries) * 1000 for k in range(count)}


def test_the_sum_is_the_plain_sum_to_the_bit():
    vectors = hospitals(5)
    _, total = run(vectors)
    assert np.array_equal(total, fixed_point.exact_sum(np.stack(list(vectors.values()))))
    assert np.allclose(total, np.sum(list(vectors.values()), axis=0), atol=5 * 2.0**-20)


@pytest.mark.parametrize("entry", range(6))
@pytest.mark.parametrize("by", [1, 1 << 20, (1 << 64) - 1])
def test_a_total_that_was_changed_is_found_by_every_member(entry, by):
    vectors = hospitals(5)
    group, members = group_of(list(vectors))
    collector = Collector(group, shared(group, members))
    for name, values in vectors.items():
        collector.take(name, members[name].masked(fixed_point.encode(values, 5)))
    total = collector.total(opened(members, list(members), collector), list(members))
    more = np.zeros(6, dtype=np.uint64)
    more[entry] = by
    false = total + more
    for member in members.values():
        assert len(member.verified(total)) == 5
        with pytest.raises(SumError, match="changed on its way"):
            member.verified(false)


@pytest.mark.parametrize("gone", [("h0",), ("h2",), ("h5", "h1")])
def test_members_that_fall_away_are_left_out_of_the_sum_exactly(gone):
    vectors = hospitals(7)
    _, total = run(vectors, gone)
    rest = np.stack([v for name, v in vectors.items() if name not in gone])
    ring = fixed_point.encode(rest, 7).sum(axis=0, dtype=np.uint64)
    assert np.array_equal(total, fixed_point.decode(ring))


def test_what_the_relay_sees_of_one_center_is_noise():
    """The same vector masked twice shares no word, and its words are uniform (a chi-square test)."""
    vectors = {f"h{k}": np.zeros(4096) for k in range(3)}
    seen = []
    for _ in range(2):
        collector, _ = run(vectors)
        seen.append(collector.vectors["h0"])
    assert not np.any(seen[0] == seen[1])
    counts = np.bincount((seen[0] >> np.uint64(60)).astype(int), minlength=16)
    chi2 = float(np.sum((counts - 256.0) ** 2 / 256.0))
    assert chi2 < 56.0  # fifteen degrees of freedom: exceeded once in a million


def test_a_relay_cannot_take_all_masks_but_one_off():
    """Without the member's own seed the vector stays masked even if all pairs are known."""
    group, members = group_of(["a", "b", "c", "d"])
    keys = shared(group, members)
    vector = fixed_point.encode(np.arange(6.0), 4)
    collector = Collector(group, keys)
    for name, member in members.items():
        collector.take(name, member.masked(vector))
    lists = {name: member.present(list("abcd")) for name, member in members.items()}
    two = {name: members[name].open(lists) for name in ("a", "b")}
    with pytest.raises(SumError, match="2 members opened"):
        collector.total(two, list(members))


def test_two_lists_of_who_is_present_are_not_both_signed():
    group, members = group_of(list("abcdefg"))
    shared(group, members)
    members["a"].present(list("abcdef"))
    with pytest.raises(SumError, match="two lists"):
        members["a"].present(list("abcdefg"))


def test_shares_are_not_given_for_a_list_that_others_did_not_sign():
    group, members = group_of(list("abcdefg"))
    shared(group, members)
    lists = {name: members[name].present(list("abcdef")) for name in "abcde"}
    lists["f"] = members["f"].present(list("abcdefg"))
    with pytest.raises(SumError, match="not signed by it"):
        members["a"].open(lists)


def test_a_forged_signature_on_the_list_is_found():
    group, members = group_of(list("abcdefg"))
    shared(group, members)
    lists = {name: members[name].present(list("abcdefg")) for name in "abcdef"}
    lists["g"] = lists["a"]
    with pytest.raises(SumError, match="not signed by it"):
        members["a"].open(lists)


def test_keys_that_the_relay_put_in_the_place_of_a_members_are_found():
    group, members = group_of(list("abcd"))
    keys = {name: member.keys() for name, member in members.items()}
    stranger = Member(group, "b", Ed25519PrivateKey.generate())
    keys["b"] = stranger.keys()
    with pytest.raises(SumError, match="not signed by it"):
        members["a"].shares(keys)


def test_keys_of_another_sum_do_not_fit():
    group, members = group_of(list("abcd"))
    later = Group(group.members, "icu/2/statistics", group.identities)
    keys = {name: member.keys() for name, member in members.items()}
    again = Member(later, "a", members["a"].identity)
    with pytest.raises(SumError, match="not signed by it"):
        again.shares({**keys, "a": again.keys()})


def test_altered_shares_are_found():
    _, members = group_of(list("abcd"))
    keys = {name: member.keys() for name, member in members.items()}
    sealed = members["a"].shares(keys)["b"]
    members["b"].shares(keys)
    with pytest.raises(SumError, match="altered"):
        members["b"].keep("a", sealed[:-1] + bytes([sealed[-1] ^ 1]))


def test_nothing_is_opened_twice():
    group, members = group_of(list("abc"))
    shared(group, members)
    lists = {name: member.present(list("abc")) for name, member in members.items()}
    members["a"].open(lists)
    with pytest.raises(SumError, match="twice"):
        members["a"].open(lists)


def test_too_few_members_make_no_group():
    with pytest.raises(SumError, match="fewer than 3"):
        group_of(["a", "b"])


def test_a_number_without_room_is_refused():
    with pytest.raises(RequestError, match="beyond"):
        fixed_point.encode(np.array([1e13]), 4)
    with pytest.raises(RequestError, match="not finite"):
        fixed_point.encode(np.array([np.nan]), 4)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_exact_sums_do_not_depend_on_order(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    one, other = (fixed_point.exact_sum(np.array(each)[:, None]) for each in (values, shuffled))
    assert one == other
    assert abs(one[0] - sum(values)) <= len(values) * 2.0**-20


@given(st.binary(min_size=32, max_size=32), st.integers(1, 7), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret, threshold, data):
    places = data.draw(st.integers(threshold, 9))
    shares = split_secret(secret, places, threshold)
    some = data.draw(st.permutations(list(shares)))[:threshold]
    assert join_shares({x: shares[x] for x in some}) == secret


def test_one_share_too_few_gives_something_else():
    shares = split_secret(bytes(range(32)), 5, 3)
    few = {x: shares[x] for x in (1, 2)}
    with contextlib.suppress(ValueError):
        assert join_shares(few) != bytes(range(32))
