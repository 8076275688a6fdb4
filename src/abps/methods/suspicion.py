"""Models that point another way: what honest centers never send, and who is left out for it.

All centers start together, so honest models have gone a common way from the start, and the cosine of the ways
of two honest ones is well above nothing, while a turned model has gone back and a random one across; and they
have gone about equally far. What points another way or has gone much farther is not mixed, nor, once models
have settled, what has hardly left the start; who sent such then is not called again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from abps.methods.base import Ints
from abps.methods.peers import Heard
from abps.tensors import Tensor, torch

Floats = NDArray[np.float64]

#: What a message that points another way counts as, among the effects that a center has measured: nats a row,
#: and their standard error. One is enough not to call again.
STRIKE, ERROR = -0.3, 0.05

#: How many times as far as one's own model another may have gone. Of two honest ones the ratio was at most
#: 2.3 on PhysioNet 2012 after three rounds, and 2 later.
LONGEST = 5.0


def cosines(own: Floats, theirs: Floats) -> Floats:
    """(k,) cosines between ways (k, columns); 1 where one has not gone anywhere."""
    sizes = np.linalg.norm(own, axis=1) * np.linalg.norm(theirs, axis=1)
    along = (own * theirs).sum(axis=1)
    return np.where(sizes > 1e-12, along / np.maximum(sizes, 1e-12), 1.0)


def let_in(
    models: Tensor, heard: Heard, start: Tensor, least: float, settled: bool = False
) -> tuple[Heard, Ints, Ints]:
    """What was heard without models that point another way than one's own or have gone much farther, and
    (receivers, senders) of those.

    models: (r, P) one's own.  start: (P,).  least: the smallest cosine that is let in; -1: anything is.
    settled: models have gone some way; then one that has hardly left the start is not let in, either: mixed
    with it, one's own would be half forgotten.
    """
    shared = heard.arrived.shape[1]
    begun = start[:shared].numpy()
    to, by = torch.from_numpy(heard.to), torch.from_numpy(heard.by)
    own = (models[to, :shared].numpy() - begun).astype(np.float64)
    theirs = (heard.arrived[by].numpy() - begun).astype(np.float64)
    same = cosines(own, theirs) >= least
    if least > -1.0:
        far, length = np.linalg.norm(theirs, axis=1), np.linalg.norm(own, axis=1)
        same &= (far <= LONGEST * length) | (length < 1e-12)
        if settled:
            same &= length <= LONGEST * far
    return replace(heard, to=heard.to[same], by=heard.by[same]), heard.to[~same], heard.by[~same]
