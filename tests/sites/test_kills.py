"""Sites that are killed in the middle of what they do, and come back."""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Timeouts
from abps.sites.store.store import Store

from .hub import Hub, RelayGone

QUICK = Timeouts(poll=0.0)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "foreign")


def test_kills_at_random_moments(four, tmp_path):
    """SIGKILL of a site's process: nothing is lost or doubled, and all have the same results of exchanges.

    The moment is a random payload on its way to or from the victim: while it uploads, coordinates, or (with
    the last payloads of a round) computes and writes down.
    """
    rng = random.Random(2)
    agreement = four.agreement("federated_mean:ENDLESS", rounds=100)
    hub = Hub(four, agreement, tmp_path)
    first = 1
    try:
        hub.start(*four.names)
        for _ in range(5):
            victim = rng.choice(four.names)
            hub.passing = Killer(hub, victim, rng.randrange(1, 10), rng.uniform(0.0, 0.02))
            report = Scheduler(hub, agreement, 3, QUICK).run(four.names)
            others = [name for name in four.names if name != victim]
            hub.passing.wait()
            assert not hub.alive(victim) and all(hub.alive(name) for name in others)
            assert report.first == first and len(report.rounds) == 3
            with stores(hub) as kept:
                assert all(kept[name].round == first + 2 for name in others), report
                alike(kept)
                before = {name: (store.broadcasts(), store.rounds()) for name, store in kept.items()}
            hub.passing = lambda sender, receiver: None
            hub.start(victim)
            again = Scheduler(hub, agreement, 1, QUICK).run(four.names)
            assert again.first == first + 3
            assert set(again.rounds[0].present) == set(four.names) and not again.rounds[0].missing
            first = again.first + 1
            with stores(hub) as kept:
                alike(kept)
                one_round_more(kept, before)
    finally:
        hub.stop()


def test_the_relay_is_killed_inside_a_round(four, tmp_path):
    """With it goes the scheduler, and every line at once. Sites end by themselves; the next job goes on."""
    rng = random.Random(3)
    agreement = four.agreement("federated_mean:ENDLESS", rounds=100)
    hub = Hub(four, agreement, tmp_path)
    try:
        hub.start(*four.names)
        hub.passing = Killer(hub, None, rng.randrange(5, 50), rng.uniform(0.0, 0.05))
        with pytest.raises(RelayGone):
            Scheduler(hub, agreement, 5, QUICK).run(four.names)
        hub.passing.wait()
        hub.passing = lambda sender, receiver: None
        hub.ended()
        with stores(hub) as kept:
            alike(kept)
            before = {name: (store.broadcasts(), store.rounds()) for name, store in kept.items()}
            reached = max(store.round for store in kept.values())
        hub.start(*four.names)
        again = Scheduler(hub, agreement, 1, QUICK).run(four.names)
        assert again.first == reached + 1
        assert set(again.rounds[0].present) == set(four.names) and not again.rounds[0].missing
        with stores(hub) as kept:
            alike(kept)
            one_round_more(kept, before)
    finally:
        hub.stop()


def one_round_more(kept, before):
    """Nothing of what the stores held ``before`` is lost or counted twice, and one round was added."""
    for name, store in kept.items():
        broadcasts, rounds = before[name]
        assert broadcasts.items() <= store.broadcasts().items()
        assert store.rounds()[:-1] == rounds and max(store.broadcasts()) == store.round


def alike(kept):
    """No two sites hold different results of an exchange."""
    found: dict[int, bytes] = {}
    for store in kept.values():
        for number, content in store.broadcasts().items():
            assert found.setdefault(number, content) == content


class Killer:
    """Kills a site, or the relay, when enough payloads have gone by, after a short while of its own."""

    def __init__(self, hub: Hub, victim: str | None, payloads: int, delay: float) -> None:
        self.hub, self.victim, self.left, self.delay = hub, victim, payloads, delay
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def __call__(self, sender: str, receiver: str) -> None:
        with self._lock:
            self.left -= self.victim in (sender, receiver, None)
            if self.left <= 0 and self._timer is None:
                kill = self.hub.cut if self.victim is None else partial(self.hub.kill, self.victim)
                self._timer = threading.Timer(self.delay, kill)
                self._timer.start()

    def wait(self) -> None:
        assert self._timer is not None, f"the job was over {self.left} payloads before the kill"
        self._timer.join()


@contextmanager
def stores(hub: Hub):
    """The stores of all sites, to read."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(closing(Store.look(hub.path(name)))) for name in hub.given.names}
