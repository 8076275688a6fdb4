"""The matching protocol under a network that loses, delays, repeats and reorders, and with crashes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abps.core import matching, protocol
from abps.core.matching import Answer
from abps.core.protocol import Kind, Link, Message, Negotiation, Stage

NAMES = ("ada", "bea", "cyr", "dov", "eva")


def welcome(_: str) -> str:
    return ""


class Center:
    """A center with a disk: what ``records`` gives is kept, everything else is lost in a crash."""

    def __init__(self, name: str, kappa: int) -> None:
        self.name = name
        self.kappa = kappa
        self.round = 1
        self.states: dict[int, Negotiation] = {1: Negotiation(name, 1, kappa)}
        self.disk: dict[int, tuple[protocol.Record, ...]] = {}

    def keep(self, state: Negotiation) -> None:
        self.states[state.round] = state
        self.disk[state.round] = protocol.records(state)

    def state(self, round: int) -> Negotiation:
        if round not in self.states:  # never seen: a round this center slept through
            self.states[round] = protocol.restore(self.name, round, self.kappa, ())
        return self.states[round]

    def crash(self) -> None:
        self.states = {
            round: protocol.restore(self.name, round, self.kappa, kept) for round, kept in self.disk.items()
        }
        self.states.setdefault(self.round, protocol.restore(self.name, self.round, self.kappa, ()))

    def links(self) -> list[tuple[int, str, bool, Link]]:
        return [
            (round, peer, mine, link)
            for round, state in self.states.items()
            for mine, links in ((True, state.mine), (False, state.theirs))
            for peer, link in links.items()
        ]


class HostileNetwork(RuleBasedStateMachine):
    """Any interleaving of proposals, losses, copies, reorderings, give-ups, crashes and rounds."""

    @initialize(kappa=st.integers(1, 3), size=st.integers(2, 5), data=st.data())
    def start(self, kappa: int, size: int, data: st.DataObject) -> None:
        self.centers = {name: Center(name, kappa) for name in NAMES[:size]}
        self.wire: list[tuple[str, str, Message]] = []
        pairs = list(itertools.permutations(self.centers, 2))
        self.disliked = set(data.draw(st.lists(st.sampled_from(pairs), max_size=4)))
        self.matched_ever: set[tuple[int, str, str]] = set()
        self.proposed: set[tuple[int, str, str]] = set()

    def judge_of(self, name: str) -> protocol.Judge:
        return lambda proposer: "declined" if (name, proposer) in self.disliked else ""

    def send(self, sender: str, receiver: str, messages: tuple[Message, ...]) -> None:
        self.wire.extend((sender, receiver, message) for message in messages)

    def deliver(self, position: int) -> None:
        sender, receiver, message = self.wire.pop(position)
        center = self.centers[receiver]
        if message.round > center.round:  # ahead of this center's clock: not taken in
            return
        step = protocol.handle(center.state(message.round), sender, message, self.judge_of(receiver))
        assert step.event != "violation", (sender, receiver, message)
        center.keep(step.state)
        self.send(receiver, sender, step.replies)

    @rule(data=st.data())
    def propose(self, data: st.DataObject) -> None:
        name, peer = data.draw(st.sampled_from(list(itertools.permutations(self.centers, 2))))
        center = self.centers[name]
        state = center.state(center.round)
        others = [peer, *(other for other in self.centers if other not in (name, peer))]
        chosen = protocol.next_candidate(state, others, retries=3)
        if chosen is None:
            return
        state, message = protocol.propose(state, chosen)
        self.proposed.add((state.round, name, chosen))
        center.keep(state)
        self.send(name, chosen, (message,))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self.deliver(data.draw(st.integers(0, len(self.wire) - 1)))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.wire.pop(data.draw(st.integers(0, len(self.wire) - 1)))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        self.wire.append(self.wire[data.draw(st.integers(0, len(self.wire) - 1))])

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.centers)))
        for state in list(self.centers[name].states.values()):
            for peer, message in protocol.overdue(state):
                self.send(name, peer, (message,))

    @rule(data=st.data())
    def lose_patience(self, data: st.DataObject) -> None:
        waiting = [
            (name, peer)
            for name, center in self.centers.items()
            for peer in sorted(center.state(center.round).waiting)
        ]
        if waiting:
            name, peer = data.draw(st.sampled_from(waiting))
            center = self.centers[name]
            state, messages = protocol.give_up(center.state(center.round), peer)
            center.keep(state)
            self.send(name, peer, messages)

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.centers[data.draw(st.sampled_from(sorted(self.centers)))].crash()

    @rule(data=st.data())
    def next_round(self, data: st.DataObject) -> None:
        """A center's clock may run ahead of the others'."""
        center = self.centers[data.draw(st.sampled_from(sorted(self.centers)))]
        self.close(center)
        center.round += 1
        center.keep(Negotiation(center.name, center.round, center.kappa))

    def close(self, center: Center) -> None:
        state, farewells = protocol.seal(center.state(center.round))
        center.keep(state)
        for peer, message in farewells:
            self.send(center.name, peer, (message,))

    @invariant()
    def never_over_capacity(self) -> None:
        for center in getattr(self, "centers", {}).values():
            for state in center.states.values():
                assert state.taken <= state.kappa
                # One slot per pair: no peer sits in two of the three sets.
                assert state.taken == len(state.partners | state.in_doubt | state.waiting)

    @invariant()
    def never_one_sided(self) -> None:
        """If one end of an attempt is matched, the other end is matched or still holds its slot."""
        for name, center in getattr(self, "centers", {}).items():
            for round, peer, mine, link in center.links():
                if link.stage is not Stage.MATCHED:
                    continue
                other = self.centers[peer].state(round)
                end = (other.theirs if mine else other.mine).get(name)
                assert end is not None and end.attempt == link.attempt
                assert end.stage is Stage.MATCHED or (mine and end.stage is Stage.HELD)

    @invariant()
    def a_match_lasts(self) -> None:
        now = {
            (round, name, peer)
            for name, center in getattr(self, "centers", {}).items()
            for round, peer, _, link in center.links()
            if link.stage is Stage.MATCHED
        }
        assert getattr(self, "matched_ever", set()) <= now
        self.matched_ever = now

    @invariant()
    def nobody_is_matched_unasked(self) -> None:
        for round, name, peer in getattr(self, "matched_ever", set()):
            both = {(round, name, peer), (round, peer, name)}
            assert both & self.proposed
            if not both <= self.proposed:  # a lone proposal needs the receiver's consent
                proposer, receiver = next((a, b) for _, a, b in both & self.proposed)
                assert (receiver, proposer) not in self.disliked

    def teardown(self) -> None:
        """Once messages get through again, every pair is settled and both ends agree."""
        if not hasattr(self, "centers"):
            return
        last = max(center.round for center in self.centers.values())
        for center in self.centers.values():
            self.close(center)
            center.round = last  # everybody's clock has passed every round spoken of
        for _ in range(20):
            for _ in range(2000):  # an endless exchange of messages would be a fault of its own
                if not self.wire:
                    break
                self.deliver(0)
            assert not self.wire
            for name, center in self.centers.items():
                for state in list(center.states.values()):
                    for peer, message in protocol.overdue(state):
                        self.send(name, peer, (message,))
            if not self.wire:
                break
        self.never_over_capacity()
        self.never_one_sided()
        self.a_match_lasts()
        for name, center in self.centers.items():
            for round, state in list(center.states.items()):
                assert not state.in_doubt and not state.waiting
                for peer in state.partners:
                    assert name in self.centers[peer].state(round).partners


HostileNetwork.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHostileNetwork = HostileNetwork.TestCase


class TestSerial:
    """Proposers act one after the other: the greedy pass of Algorithm 1, message by message."""

    @staticmethod
    def greedy(order, rankings, kappa, refuses):
        """The oracle: the simulator's pass over plain sets."""
        names = sorted(rankings)
        number = {name: k for k, name in enumerate(names)}
        plan = matching.propose(
            [number[name] for name in order],
            [[number[peer] for peer in rankings[name]] for name in names],
            lambda peer, proposer: Answer[refuses.get((names[peer], names[proposer]), "accepted").upper()],
            kappa,
        )
        partners = {name: {names[p] for p in mine} for name, mine in zip(names, plan.partners())}
        decisions = [
            (names[i], names[j], Answer(answer).name.lower())
            for i, j, answer in zip(plan.center, plan.peer, plan.answer)
        ]
        return partners, decisions

    @staticmethod
    def by_messages(order, rankings, kappa, refuses):
        states = {name: Negotiation(name, 7, kappa) for name in order}
        decisions = []
        for i in order:
            while (j := protocol.next_candidate(states[i], rankings[i])) is not None:
                states[i], message = protocol.propose(states[i], j)
                wire = [(i, j, message)]
                while wire:
                    a, b, message = wire.pop(0)
                    step = protocol.handle(states[b], a, message, lambda p, b=b: refuses.get((b, p), ""))
                    states[b] = step.state
                    wire.extend((b, a, reply) for reply in step.replies)
                link = states[i].mine[j]
                decisions.append((i, j, link.reason or "accepted"))
        return {name: set(state.partners) for name, state in states.items()}, decisions

    @settings(max_examples=200, deadline=None)
    @given(data=st.data())
    def test_equals_the_greedy_pass(self, data):
        size = data.draw(st.integers(2, 9))
        names = [f"c{k}" for k in range(size)]
        kappa = data.draw(st.integers(1, 4))
        order = data.draw(st.permutations(names))
        rankings = {
            name: data.draw(st.permutations([other for other in names if other != name]))[
                : data.draw(st.integers(0, size))
            ]
            for name in names
        }
        pairs = [(a, b) for a in names for b in names if a != b]
        refuses = data.draw(
            st.dictionaries(st.sampled_from(pairs), st.sampled_from(["declined", "filtered"]), max_size=12)
        )
        assert self.by_messages(order, rankings, kappa, refuses) == self.greedy(
            order, rankings, kappa, refuses
        )


def test_crossing_proposals_are_one_match():
    ada, bea = Negotiation("ada", 1, 1), Negotiation("bea", 1, 1)
    ada, to_bea = protocol.propose(ada, "bea")
    bea, to_ada = protocol.propose(bea, "ada")
    at_ada = protocol.handle(ada, "bea", to_ada, welcome)
    at_bea = protocol.handle(bea, "ada", to_bea, welcome)
    assert at_ada.replies[0].kind is Kind.PROPOSE  # ada's own stands
    assert at_bea.replies[0].kind is Kind.ACCEPT
    done = protocol.handle(at_ada.state, "bea", at_bea.replies[0], welcome)
    assert done.replies[0].kind is Kind.CONFIRM
    bea = protocol.handle(at_bea.state, "ada", done.replies[0], welcome).state
    assert done.state.partners == {"bea"} and bea.partners == {"ada"}
    assert done.state.taken == bea.taken == 1


def test_a_lost_accept_is_released_when_the_proposer_gave_up():
    ada, message = protocol.propose(Negotiation("ada", 1, 1), "bea")
    bea = protocol.handle(Negotiation("bea", 1, 1), "ada", message, welcome).state
    assert bea.in_doubt == {"ada"} and not bea.partners
    ada, _ = protocol.give_up(ada, "bea")  # the accept and the release are both lost
    ((peer, again),) = protocol.overdue(bea)
    assert peer == "ada" and again.kind is Kind.ACCEPT
    answer = protocol.handle(ada, "bea", again, welcome)
    bea = protocol.handle(bea, "ada", answer.replies[0], welcome).state
    assert bea.taken == 0 and answer.state.taken == 0


def test_a_crashed_proposer_still_confirms_what_it_wrote_down():
    ada, message = protocol.propose(Negotiation("ada", 4, 1), "bea")
    at_bea = protocol.handle(Negotiation("bea", 4, 1), "ada", message, welcome)
    ada = protocol.handle(ada, "bea", at_bea.replies[0], welcome).state
    back = protocol.restore("ada", 4, 1, protocol.records(ada))  # its confirm never left
    assert back.partners == {"bea"} and back.sealed
    ((_, again),) = protocol.overdue(at_bea.state)
    answer = protocol.handle(back, "bea", again, welcome)
    assert answer.replies[0].kind is Kind.CONFIRM


def test_a_full_receiver_says_full_and_one_with_a_reservation_says_busy():
    bea = Negotiation("bea", 1, 1)
    held = protocol.handle(bea, "ada", Message(Kind.PROPOSE, 1, 1), welcome).state
    busy = protocol.handle(held, "cyr", Message(Kind.PROPOSE, 1, 1), welcome)
    assert busy.replies[0].reason == "busy"
    matched = protocol.handle(held, "ada", Message(Kind.CONFIRM, 1, 1), welcome).state
    full = protocol.handle(matched, "cyr", Message(Kind.PROPOSE, 1, 1), welcome)
    assert full.replies[0].reason == "full"


def test_a_stranger_cannot_confirm_itself_into_the_list():
    bea = Negotiation("bea", 1, 1)
    step = protocol.handle(bea, "eve", Message(Kind.CONFIRM, 1, 1), welcome)
    assert step.event == "violation" and step.state == bea
    step = protocol.handle(bea, "eve", Message(Kind.ACCEPT, 1, 1), welcome)
    assert step.state == bea and step.replies[0].kind is Kind.RELEASE


def test_a_release_that_overtakes_its_proposal_wins():
    bea = protocol.handle(Negotiation("bea", 1, 1), "ada", Message(Kind.RELEASE, 1, 1), welcome).state
    late = protocol.handle(bea, "ada", Message(Kind.PROPOSE, 1, 1), welcome)
    assert late.replies[0].kind is Kind.REFUSE and late.state.taken == 0


def test_nothing_new_after_the_round_is_sealed():
    sealed, _ = protocol.seal(Negotiation("ada", 1, 2))
    with pytest.raises(ValueError, match="no slot"):
        protocol.propose(sealed, "bea")
    step = protocol.handle(sealed, "bea", Message(Kind.PROPOSE, 1, 1), welcome)
    assert step.replies[0].reason == "sealed"


def test_a_message_of_another_round_is_the_callers_mistake():
    with pytest.raises(ValueError, match="round 2"):
        protocol.handle(Negotiation("ada", 1, 1), "bea", Message(Kind.ACCEPT, 2, 1), welcome)
