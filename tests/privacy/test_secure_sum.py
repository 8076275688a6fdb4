"""Masked sums: exact, noise without any one of the members, and closed to a relay that lies."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abps.core.errors import RequestError
from abps.privacy import fixed_point
from abps.privacy.secure_sum import Group, Member, SumError, _derive, _shared, _stream


def members_of(names, context="icu/job"):
    """Members that know each other's keys, and what checks totals."""
    members = {name: Member(name, context) for name in names}
    keys = {name: member.public for name, member in members.items()}
    sealed = {name: member.meet(keys) for name, member in members.items()}
    for name, member in members.items():
        member.keep({sender: parcels[name] for sender, parcels in sealed.items() if sender != name})
    return members


def masked(members, vectors, number=1):
    group = Group(tuple(sorted(vectors)), f"icu/job/{number}")
    size = len(vectors)
    return group, {n: members[n].masked(group, fixed_point.encode(v, size)) for n, v in vectors.items()}


def added(rings):
    return np.sum(list(rings.values()), axis=0, dtype=np.uint64)


def hospitals(count, entries=5, seed=3):
    rng = np.random.default_rng(seed)
    return {f"h{k}": rng.normal(size=entries) * 1000 for k in range(count)}


@pytest.mark.parametrize("count", [3, 5, 12])
def test_the_sum_is_the_plain_sum_to_the_bit(count):
    vectors = hospitals(count)
    members = members_of(vectors)
    for number in (1, 2):  # the keys of a job serve all its sums
        group, rings = masked(members, vectors, number)
        found = [fixed_point.decode(member.verified(group, added(rings))) for member in members.values()]
        assert all(np.array_equal(each, found[0]) for each in found)
        assert np.array_equal(found[0], fixed_point.exact_sum(np.stack(list(vectors.values()))))
        assert np.allclose(found[0], np.sum(list(vectors.values()), axis=0), atol=count * 2.0**-20)


@pytest.mark.parametrize("entry", range(6))
@pytest.mark.parametrize("by", [1, 1 << 20, (1 << 64) - 1])
def test_a_total_that_was_changed_is_found_by_every_member(entry, by):
    vectors = hospitals(5)
    members = members_of(vectors)
    group, rings = masked(members, vectors)
    more = np.zeros(6, dtype=np.uint64)
    more[entry] = by
    for member in members.values():
        assert len(member.verified(group, added(rings))) == 5
        with pytest.raises(SumError, match="changed on its way"):
            member.verified(group, added(rings) + more)


def test_the_total_of_another_sum_is_found():
    """The relay gives the total of the first sum out as that of the second, or of a smaller group."""
    vectors = hospitals(5)
    members = members_of(vectors)
    _, rings = masked(members, vectors, 1)
    for group in (Group(tuple(vectors), "icu/job/2"), Group(tuple(vectors)[:4], "icu/job/1")):
        with pytest.raises(SumError, match="changed on its way"):
            members["h0"].verified(group, added(rings))


def uniform(words):
    """Whether words are noise: their first four bits, by a chi-square test."""
    counts = np.bincount((words >> np.uint64(60)).astype(int), minlength=16)
    # Fifteen degrees of freedom: exceeded once in a million.
    return float(np.sum((counts - len(words) / 16) ** 2 / (len(words) / 16))) < 56.0


def test_whatever_lacks_one_member_is_noise():
    """Every sum of some of the vectors, but not all, is uniform; the same vector twice shares no word."""
    vectors = {f"h{k}": np.zeros(4096) for k in range(4)}
    members = members_of(vectors)
    rings = masked(members, vectors)[1]
    for size in (1, 2, 3):
        for some in itertools.combinations(vectors, size):
            assert uniform(added({name: rings[name] for name in some}))
    assert not added(rings)[:-1].any()
    again = masked(members, vectors, 2)[1]
    assert not np.any(again["h0"] == rings["h0"]) and uniform(again["h0"] - rings["h0"])


def test_all_but_two_who_put_their_keys_together_do_not_separate_the_two():
    """With the keys of all but two members every mask can be taken off but that of the two: what is left of
    each is noise, and only their sum is known."""
    vectors = {f"h{k}": np.full(4096, float(k)) for k in range(5)}
    members = members_of(vectors)
    group, rings = masked(members, vectors)
    for victim in ("h0", "h1"):
        for traitor in ("h2", "h3", "h4"):  # after the victim in the group, so that the victim adds the mask
            secret = _shared(members[traitor]._key, members[victim].public, victim)
            mask = _derive(secret, group.purpose, f"mask of {victim}\0{traitor}")
            rings[victim] = rings[victim] - _stream(mask, 4097)
        assert uniform(rings[victim])
    assert np.array_equal(fixed_point.decode(rings["h0"] + rings["h1"])[:-1], np.ones(4096))


def test_altered_and_foreign_bytes_are_found():
    members = {name: Member(name, "icu/job") for name in "abc"}
    keys = {name: member.public for name, member in members.items()}
    sealed = {name: member.meet(keys) for name, member in members.items()}
    parcel = sealed["a"]["b"]
    for wrong in ({"a": parcel[:-1] + bytes([parcel[-1] ^ 1])}, {"a": sealed["a"]["c"]}, {"c": parcel}):
        with pytest.raises(SumError, match="altered"):
            members["b"].keep(wrong)
    with pytest.raises(SumError, match="not known"):
        members["b"].keep({"stranger": parcel})
    group = Group(("a", "b", "c"), "icu/job/1")
    with pytest.raises(SumError, match="have not come"):
        members["b"].masked(group, np.zeros(3, dtype=np.uint64))
    with pytest.raises(SumError, match="is none"):
        Member("d", "icu/job").meet({"a": b"short"})


def test_strangers_have_no_part():
    members = members_of("abc")
    for names in (("a", "b", "stranger"), ("b", "c", "d")):
        with pytest.raises(SumError):
            members["a"].masked(Group(names, "icu/job/1"), np.zeros(3, dtype=np.uint64))


def test_too_few_members_make_no_group():
    with pytest.raises(SumError, match="fewer than 3"):
        Group(("a", "b"), "icu")
    with pytest.raises(SumError, match="twice"):
        Group(("a", "b", "a"), "icu")


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
