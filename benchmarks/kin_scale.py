"""What abps-plus's choosing costs among very many centers: a roll call at the board, and a round of pairs.

    python benchmarks/kin_scale.py --centers 100000

Scores are made up: six kinds, 69 columns, the null draws that a federation of this size tells, and public
vectors of 15 entries. Models are left out, because their means cost what sending them costs. A round of pairs
has all that choosing takes: beliefs from what was measured in the rounds before, orders, proposals, answers
and the audit trail; what a mix brings is drawn at random.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from abps.core import streams
from abps.core.matching import Plan
from abps.core.usefulness import Experience
from abps.lab import kinship, spectrum
from abps.lab.speed_scale import metadata, own_peak_mb
from abps.methods.base import World
from abps.methods.kindred import Kindred, Standing
from abps.methods.peers import agree


def made_up(n: int, columns: int = 69, kinds: int = 6) -> spectrum.Scores:
    """Scores of n centers of some kinds."""
    rng = np.random.default_rng(0)
    information = rng.uniform(5.0, 30.0, n)
    centre = rng.normal(0.0, 0.2, (kinds, columns))
    size = np.sqrt(information)[:, None]
    kind = rng.integers(kinds, size=n)
    score = information[:, None] * centre[kind] + size * rng.standard_normal((n, columns))
    null = size[:, :, None] * rng.standard_normal((n, spectrum.draws(n), columns))
    return spectrum.Scores(score, null, information)


def one_round(method: Kindred, world: World, state: Standing, t: int) -> Plan:
    """Who works with whom, and the trail of it."""
    opinion = method.opine(world, state, lambda: None, t)
    plan = agree(method, world, opinion, t)
    assert opinion.trail is not None
    opinion.trail(plan)
    return plan


def measured(state: Standing, plan: Plan, t: int) -> Standing:
    """The state after what partners measured of each other: mostly little, now and then much harm."""
    center, peer = np.concatenate([plan.pairs, plan.pairs[:, ::-1]]).T
    rng = np.random.default_rng(t)
    gain = rng.normal(0.0, 0.02, len(center)) - np.where(rng.random(len(center)) < 0.01, 0.5, 0.0)
    seen = state.experience.observe(center, peer, t, gain, np.full(len(center), 0.02))
    return replace(state, experience=seen)


def main() -> None:
    """Print seconds and memory."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--centers", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    n = asked.centers
    told = made_up(n)

    def timed(what: str, work: Any) -> Any:
        began = time.perf_counter()
        cpu = time.process_time()
        found = work()
        wall, used = time.perf_counter() - began, time.process_time() - cpu
        print(f"{what}: {wall:.1f} s, {used:.1f} s of a core; at most {own_peak_mb():,.0f} MB", flush=True)
        return found

    seen = timed("test and places in it", lambda: spectrum.spectrum(told))
    public = metadata(n)
    where = timed("kinds", lambda: kinship.whereabouts(seen.position, seen.information, public))
    kin = timed("kin", lambda: kinship.kin(where, seen.information, 175.0))
    timed("shares in the means of kin", lambda: kinship.shares(where, seen.information, 175.0))
    print(f"{seen.dimensions} dimensions, {where.member.shape[1]} kinds, {len(kin.peer) / n:.1f} kin each")
    method = Kindred()
    world = World(
        cast(Any, None),
        cast(Any, SimpleNamespace(size=n)),
        streams.bits(0, "generate", 0, np.arange(n)),
        0,
        50,
    )
    nothing = torch.zeros(0)
    for name, everybody in (("kin", kin.everybody), ("everybody", np.ones(n, dtype=bool))):
        state = Standing(
            nothing,
            everybody,
            kin.start,
            kin.peer,
            np.ones(len(kin.peer)),
            Experience.none(),
            nothing,
            nothing,
            np.zeros((n, 2)),
            np.zeros(4),
            nothing,
            method.pace.start(0, 0, 0),
        )
        for t in range(1, asked.rounds + 1):
            plan = timed(f"a round among {name}", partial(one_round, method, world, state, t))
            state = measured(state, plan, t)
        print(f"{plan.proposals / n:.2f} proposals each, {np.mean(plan.rest != 0):.1%} rest")


if __name__ == "__main__":
    main()
