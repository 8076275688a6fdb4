"""FedRep and FedPer."""

from __future__ import annotations

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.lab.rivals.personal import FedRep
from abps.methods.base import Wire
from abps.methods.catalog import CATALOG
from abps.models.training import Training


def test_head_first_on_the_received_trunk_then_the_trunk(context, play, one_step) -> None:
    """Both phases by hand: the trunk's gradient is taken at the head that was just fitted."""
    here = context(one_step)
    method = FedRep(training=one_step)
    cut = method.wire.shared(here)
    start = here.common_start()
    fitted = start.copy()
    fitted[:, cut:] -= 0.1 * here.learner.gradient(start, here.data.train)[:, cut:]
    trunk = fitted[:, :cut] - 0.1 * here.learner.gradient(fitted, here.data.train)[:, :cut]
    size = here.sizes()
    after = play(method, here, 1)[-1].models
    np.testing.assert_allclose(after[:, cut:], fitted[:, cut:], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after[0, :cut], (size / size.sum()) @ trunk, rtol=1e-4, atol=1e-6)
    assert np.array_equal(after[0, :cut], after[1, :cut])
    assert not np.array_equal(after[0, cut:], after[1, cut:])


def test_what_is_held_still_does_not_decay(context) -> None:
    here = context(Training(weight_decay=0.5))
    start = here.common_start()
    cut = here.learner.layout.shared(1)
    head = here.learner.train(start, 1, columns=slice(cut, None))
    assert np.array_equal(head[:, :cut], start[:, :cut])
    assert not np.array_equal(head[:, cut:], start[:, cut:])
    trunk = here.learner.train(start, 1, columns=slice(0, cut))
    assert np.array_equal(trunk[:, cut:], start[:, cut:])


def test_epochs_of_both_phases_count(context, play) -> None:
    here = context(Training())
    one, ten = (play(FedRep(head_epochs=h), here, 1)[-1].models for h in (1, 10))
    cut = here.learner.layout.shared(1)
    start = here.learner.start[cut:]
    assert np.linalg.norm(ten[:, cut:] - start) > 2 * np.linalg.norm(one[:, cut:] - start)


def test_a_private_head_is_needed() -> None:
    with pytest.raises(RequestError, match="private head"):
        FedRep(wire=Wire())


def test_fedper_is_fedavg_with_a_private_head() -> None:
    assert CATALOG["fedper"].config == CATALOG["fedavg-p"].config
