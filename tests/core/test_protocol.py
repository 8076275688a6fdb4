"""The matching protocol under a network that loses, delays, repeats and reorders, and with crashes."""

from __future__ import annotations

import itertools
import random

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


class Network:
    """Centers and the messages between them; nothing arrives unless the schedule says so."""

    def __init__(self, size: int, kappa: int, disliked: set[tuple[str, str]]) -> None:
        self.centers = {name: Center(name, kappa) for name in NAMES[:size]}
        self.wire: list[tuple[str, str, Message]] = []
        self.disliked = disliked
        self.matched: set[tuple[int, str, str]] = set()
        self.proposed: set[tuple[int, str, str]] = set()

    def send(self, sender: str, receiver: str, messages: tuple[Message, ...]) -> None:
        self.wire.extend((sender, receiver, message) for message in messages)

    def deliver(self, position: int) -> None:
        sender, receiver, message = self.wire.pop(position)
        center = self.centers[receiver]
        if message.round > center.round:  # ahead of this center's clock: not taken in
            return
        step = protocol.handle(
            center.state(message.round),
            sender,
            message,
            lambda proposer: "declined" if (receiver, proposer) in self.disliked else "",
        )
        assert step.event != "violation", (sender, receiver, message)
        center.keep(step.state)
        self.send(receiver, sender, step.replies)

    def lose(self, position: int) -> None:
        self.wire.pop(position)

    def copy(self, position: int) -> None:
        self.wire.append(self.wire[position])

    def propose(self, name: str, peer: str) -> None:
        center = self.centers[name]
        state = center.state(center.round)
        others = [peer, *(other for other in self.centers if other not in (name, peer))]
        chosen = protocol.next_candidate(state, others, retries=3)
        if chosen is not None:
            state, message = protocol.propose(state, chosen)
            self.proposed.add((state.round, name, chosen))
            center.keep(state)
            self.send(name, chosen, (message,))

    def repeat(self, name: str) -> None:
        for state in list(self.centers[name].states.values()):
            for peer, message in protocol.overdue(state):
                self.send(name, peer, (message,))

    def lose_patience(self, name: str, peer: str) -> None:
        center = self.centers[name]
        state, messages = protocol.give_up(center.state(center.round), peer)
        center.keep(state)
        self.send(name, peer, messages)

    def crash(self, name: str) -> None:
        self.centers[name].crash()

    def close(self, name: str) -> None:
        center = self.centers[name]
        state, farewells = protocol.seal(center.state(center.round))
        center.keep(state)
        for peer, message in farewells:
            self.send(name, peer, (message,))

    def next_round(self, name: str) -> None:
        """A center's clock may run ahead of the others'."""
        self.close(name)
        center = self.centers[name]
        center.round += 1
        center.keep(Negotiation(name, center.round, center.kappa))

    def heal(self) -> None:
        """Messages get through again, and every center has heard of every round."""
        last = max(center.round for center in self.centers.values())
        for name, center in self.centers.items():
            self.close(name)
            center.round = last
        for _ in range(20):
            for _ in range(5000):  # an endless exchange of messages would be a fault of its own
                if not self.wire:
                    break
                self.deliver(0)
            assert not self.wire
            for name in self.centers:
                self.repeat(name)
            if not self.wire:
                break

    def check(self) -> None:
        """What holds at every moment, whatever was lost so far."""
        matched = set()
        for name, center in self.centers.items():
            for round, state in list(center.states.items()):
                assert state.taken <= state.kappa
                # One slot per pair: no peer sits in two of the three sets.
                assert state.taken == len(state.partners | state.in_doubt | state.waiting)
                for mine, links in ((True, state.mine), (False, state.theirs)):
                    for peer, link in links.items():
                        if link.stage is Stage.MATCHED:
                            matched.add((round, name, peer))
                            self.check_other_end(round, name, peer, mine, link)
        assert self.matched <= matched  # a match lasts
        self.matched = matched
        for round, name, peer in matched:
            asked = {(round, name, peer), (round, peer, name)} & self.proposed
            assert asked
            if len(asked) == 1:  # a lone proposal needs the receiver's consent
                ((_, proposer, receiver),) = asked
                assert (receiver, proposer) not in self.disliked

    def check_other_end(self, round: int, name: str, peer: str, mine: bool, link: Link) -> None:
        """If one end of an attempt is matched, the other is matched too, or holds its slot for it."""
        other = self.centers[peer].state(round)
        end = (other.theirs if mine else other.mine).get(name)
        assert end is not None and end.attempt == link.attempt
        assert end.stage is Stage.MATCHED or (mine and end.stage is Stage.HELD)

    def check_settled(self) -> None:
        """Both ends agree about every pair, and nobody waits for anything."""
        for name, center in self.centers.items():
            for round, state in list(center.states.items()):
                assert not state.in_doubt and not state.waiting
                for peer in state.partners:
                    assert name in self.centers[peer].state(round).partners


class HostileNetwork(RuleBasedStateMachine):
    """Any interleaving of proposals, losses, copies, reorderings, give-ups, crashes and rounds."""

    @initialize(kappa=st.integers(1, 3), size=st.integers(2, 5), data=st.data())
    def start(self, kappa: int, size: int, data: st.DataObject) -> None:
        self.pairs = list(itertools.permutations(NAMES[:size], 2))
        self.net = Network(size, kappa, set(data.draw(st.lists(st.sampled_from(self.pairs), max_size=4))))

    @rule(data=st.data(), act=st.sampled_from(["propose", "propose", "lose_patience"]))
    def between_two(self, data: st.DataObject, act: str) -> None:
        getattr(self.net, act)(*data.draw(st.sampled_from(self.pairs)))

    @precondition(lambda self: self.net.wire)
    @rule(data=st.data(), act=st.sampled_from(["deliver", "deliver", "deliver", "lose", "copy"]))
    def on_the_wire(self, data: st.DataObject, act: str) -> None:
        getattr(self.net, act)(data.draw(st.integers(0, len(self.net.wire) - 1)))

    @rule(data=st.data(), act=st.sampled_from(["repeat", "repeat", "crash", "next_round"]))
    def at_one(self, data: st.DataObject, act: str) -> None:
        getattr(self.net, act)(data.draw(st.sampled_from(sorted(self.net.centers))))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "net"):
            self.net.check()

    def teardown(self) -> None:
        if hasattr(self, "net"):
            self.net.heal()
            self.net.check()
            self.net.check_settled()


HostileNetwork.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHostileNetwork = HostileNetwork.TestCase

#: What happens next, and how often: enough gets through for rounds to come to something.
ACTS = {
    "deliver": 50,
    "propose": 25,
    "repeat": 6,
    "lose": 6,
    "copy": 6,
    "lose_patience": 4,
    "crash": 2,
    "next_round": 1,
}


@pytest.mark.parametrize("block", range(8))
def test_long_random_schedules(block):
    """The same network under many long schedules; here most messages arrive, so that much happens."""
    matches = settled = 0
    for seed in range(block * 60, block * 60 + 60):
        rng = random.Random(seed)
        size = rng.randint(2, 5)
        pairs = list(itertools.permutations(NAMES[:size], 2))
        net = Network(size, rng.randint(1, 3), set(rng.sample(pairs, rng.randint(0, 2))))
        for act in rng.choices(list(ACTS), list(ACTS.values()), k=120):
            if act in ("deliver", "lose", "copy"):
                if net.wire:
                    getattr(net, act)(rng.randrange(len(net.wire)))
            elif act in ("propose", "lose_patience"):
                getattr(net, act)(*rng.choice(pairs))
            else:
                getattr(net, act)(rng.choice(NAMES[:size]))
            net.check()
        net.heal()
        net.check()
        net.check_settled()
        matches += len(net.matched)
        settled += 1
    assert settled == 60 and matches > 60  # the schedules are not so hostile that nothing is ever agreed


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


def test_a_match_cannot_be_released():
    bea = protocol.handle(Negotiation("bea", 1, 1), "ada", Message(Kind.PROPOSE, 1, 1), welcome).state
    bea = protocol.handle(bea, "ada", Message(Kind.CONFIRM, 1, 1), welcome).state
    step = protocol.handle(bea, "ada", Message(Kind.RELEASE, 1, 1), welcome)
    assert step.event == "violation" and step.state.partners == {"ada"}


def test_the_refusal_of_an_earlier_attempt_does_not_end_the_present_one():
    ada, _ = protocol.propose(Negotiation("ada", 1, 1), "bea")
    ada, _ = protocol.give_up(ada, "bea")
    ada, again = protocol.propose(ada, "bea")
    assert again.attempt == 2
    step = protocol.handle(ada, "bea", Message(Kind.REFUSE, 1, 1, "busy"), welcome)
    assert step.event == "stale" and step.state.waiting == {"bea"}
