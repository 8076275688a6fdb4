"""The linear model: one coefficient per input and an intercept. On smooth terms it is an additive model.

It starts at zero and has two layers, the coefficients and the intercept: with one private layer a center
keeps its own level of risk and shares what the columns mean.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from abps.data.outcome import BINARY, Outcome


class Intercept(nn.Module):
    """A number that is added, one to each answer."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        """The same, shifted."""
        return x + self.value


class Linear(nn.Module):
    """Logits (rows,) = inputs (rows, width) times coefficients, and an intercept; of an outcome with several
    answers the terms (rows, terms) are mixed to answers (rows, outputs), each with an intercept."""

    def __init__(self, width: int, outcome: Outcome = BINARY) -> None:
        super().__init__()
        self.mix = outcome.mix
        self.terms = nn.Linear(width, len(self.mix), bias=False)
        nn.init.zeros_(self.terms.weight)
        self.intercept = Intercept(torch.from_numpy(outcome.start))

    def representation(self, x: Tensor) -> Tensor:
        """(rows, width) what every input adds to the logit; (rows, terms times width) to several."""
        return (x[:, None] * self.terms.weight).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) logits, or (rows, outputs) of several."""
        terms = self.terms(x)
        if self.mix.shape != (1, 1):
            terms = terms @ torch.from_numpy(self.mix).to(terms)
        return self.intercept(terms.squeeze(-1))
