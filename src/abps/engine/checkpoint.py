"""A run between two rounds as one file, so that it can go on where it was interrupted, to the same result."""

import hashlib
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps import files
from abps.core.errors import RequestError
from abps.core.ledger import Ledger
from abps.data.federation import About
from abps.engine.rounds import RunState
from abps.engine.track import Track, TrackRecord
from abps.methods.settings import describe
from abps.methods.star import StarMethod
from abps.methods.state_bytes import StateError, freeze, thaw
from abps.release import VERSION

Raw = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """run: what decides it.  state, best: of the method, now and in the best round.  server, memory: what a
    star's server sent last, and its memory.  decisions: as Parquet."""

    run: str
    state: Raw
    best: Raw
    ledger: Ledger
    unpaid: bool
    server: tuple[NDArray[Any], ...]
    memory: Raw | None
    track: TrackRecord
    decisions: Raw


def identity(state: RunState, data: About, name: str) -> str:
    """What decides a run, as text: version, method, data, seed, and the models it starts from."""
    start = getattr(state.state, "models", np.zeros(0))
    digest = hashlib.blake2b(np.ascontiguousarray(start).tobytes(), digest_size=16).hexdigest()
    about = [VERSION, name, describe(state.method), data.fingerprint, data.name, state.context.seed, digest]
    return json.dumps(about, sort_keys=True, default=str)


def write(path: Path, run: str, state: RunState, best: Any, track: Track) -> None:
    table = io.BytesIO()
    track.decisions().write_parquet(table)
    memory = state.server.memory
    content = Checkpoint(
        run,
        _raw(freeze(state.state)),
        _raw(freeze(best)),
        state.ledger,
        state.unpaid,
        state.server.last,
        None if memory is None else _raw(freeze(memory)),
        track.record,
        _raw(table.getvalue()),
    )
    files.write_with(path, lambda part: part.write_bytes(freeze(content)))


def read(path: Path, run: str, state: RunState, track: Track) -> tuple[RunState, Any, int]:
    """The run as it was written (state and track: before the first round; the track is brought up to date),
    the state of its best round, and how many rounds are done."""
    if state.attackers is not None or state.spending is not None:
        raise RequestError("checkpoint: attacks and privacy noise cannot be resumed; leave checkpoint out")
    if not path.exists():
        return state, state.state, 0
    try:
        there = thaw(Checkpoint, path.read_bytes())
        if there.run != run:
            raise RequestError(f"{path} is of another run; choose another file or delete it")
        kind = type(state.state)
        now, best = (thaw(kind, raw.tobytes()) for raw in (there.state, there.best))
        memory = None
        if there.memory is not None and isinstance(state.method, StarMethod):
            assert state.method.keeps is not None
            memory = thaw(state.method.keeps, there.memory.tobytes())
        track.record = there.track
        track.decided = [pl.read_parquet(io.BytesIO(there.decisions.tobytes()))]
    except (OSError, StateError, pl.exceptions.PolarsError) as error:
        raise RequestError(f"{path} cannot be read ({error}); delete it to begin again") from error
    server = replace(state.server, last=there.server, memory=memory)
    state = replace(state, state=now, ledger=there.ledger, unpaid=there.unpaid, server=server)
    return state, best, track.rounds


def _raw(data: bytes) -> Raw:
    return np.frombuffer(data, dtype=np.uint8)
