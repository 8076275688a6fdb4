"""The ledger: one definition of a byte, used by every method. ``edge`` counts a payload once per undirected
edge and round (the paper's column); ``directed`` counts every one-way transfer; ``control`` is everything
that is not model weights. Payloads are the encoded frames, header included."""

from __future__ import annotations

from dataclasses import dataclass

EGRESS_USD_PER_GB = 0.09  # dollars per gigabyte that leaves a center (the paper's figure)
CONTROL_MESSAGE = 16  # a proposal, an answer or a small report: kind, round, center, value


@dataclass(frozen=True)
class Traffic:
    """Bytes of something: a round, or a whole run."""

    edge: int = 0
    directed: int = 0
    control: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.edge + other.edge, self.directed + other.directed, self.control + other.control)

    @property
    def usd(self) -> float:
        """Dollars for every byte that left a center."""
        return (self.directed + self.control) / 1e9 * EGRESS_USD_PER_GB


def pairs(edges: int, payload: int, proposals: int = 0) -> Traffic:
    """Partners swap payloads: one edge, two transfers. Each proposal is one message and one answer; each
    match is confirmed by one message more."""
    control = (2 * proposals + edges) * CONTROL_MESSAGE
    return Traffic(edge=edges * payload, directed=2 * edges * payload, control=control)


def directory(centers: int, entries: int) -> Traffic:
    """Every center sends its vector of 4-byte numbers once to each of the others."""
    return Traffic(control=centers * (centers - 1) * (CONTROL_MESSAGE + 4 * entries))


def exchange_bytes(members: int, up: int, down: int) -> Traffic:
    """``members`` send the coordinator, one of the centers, ``up`` bytes and receive ``down``, all together,
    in a message each way."""
    return Traffic(control=2 * CONTROL_MESSAGE * members + up + down)


@dataclass(frozen=True)
class Ledger:
    """What has been spent, round by round, against a budget of edge bytes. When a round's weights would
    overdraw it, communication ends for good."""

    budget: float | None = None
    spent: Traffic = Traffic()
    rounds: tuple[Traffic, ...] = ()
    closed: bool = False

    def affords(self, planned: Traffic) -> bool:
        return not self.closed and (self.budget is None or self.spent.edge + planned.edge <= self.budget)

    def book(self, round: Traffic) -> Ledger:
        return Ledger(self.budget, self.spent + round, (*self.rounds, round), self.closed)

    def close(self) -> Ledger:
        return Ledger(self.budget, self.spent, self.rounds, True)
