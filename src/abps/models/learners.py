"""Which learner trains a model: compiled code where there is some, PyTorch for any other ``nn.Module``.

Learners are imported where they are chosen: a site that fits linear models never loads PyTorch, and one that
waits for a job loads no compiler.
"""

from __future__ import annotations

from abps.core.arrays import Weights
from abps.data.outcome import BINARY, Outcome
from abps.data.prepare import Prepared
from abps.models.base import Learner
from abps.models.layout import Layout, linear_layout, linear_start
from abps.models.training import Training


def learner_for(
    data: Prepared,
    training: Training,
    seed: int,
    *,
    secret: int = 0,
    plain: bool = False,
    device: str = "cpu",
) -> Learner:
    """The learner of a model.

    secret: added to the seed of private noise.  plain: PyTorch and autograd for networks, one center at a
    time: slow, and the oracle of compiled code.  device: where PyTorch computes.
    """
    if training.optimizer == "newton" and training.linear and training.clip is None:
        from abps.models.newton import LinearLearner

        return LinearLearner(data, training, seed, secret=secret)
    compiled = not plain and device == "cpu" and training.clip is None
    if compiled and training.model == "mlp" and data.outcome.binary:
        from abps.models.network_learner import NetworkLearner

        return NetworkLearner(data, training, seed, secret=secret)
    from abps.models.modules import ModuleLearner

    return ModuleLearner(data, training, seed, secret=secret, device=device)


def layout_for(training: Training, width: int, outcome: Outcome = BINARY) -> Layout:
    """Where every parameter of a model sits."""
    if training.linear:
        return linear_layout(width, outcome)
    from abps.models.models import layout_of

    return layout_of(training.factory(width))


def start_for(training: Training, width: int, outcome: Outcome, seed: int) -> Weights:
    """(P,) the common start of all centers."""
    if training.linear:
        return linear_start(width, outcome)
    from abps.models.models import initial_weights

    return initial_weights(training.factory, width, seed)
