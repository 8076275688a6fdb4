"""Generated federations by name: ``icu-synthetic:heterogeneity=4,centers=60``, ``fedprox-synthetic``.

After a colon the knobs to set: ``knob=value`` with commas between; lists have plus signs
(``group_sizes=40+20``).

``fedprox-synthetic`` is Synthetic(alpha, beta) of Li et al. (MLSys 2020) with two classes instead of ten:
center k draws u_k ~ N(0, alpha) and B_k ~ N(0, beta); x ~ N(v_k, S) with v_k ~ N(B_k, 1) per feature and S_jj
= j^-1.2; the weights and the bias of its linear model are ~ N(u_k, 1). Two departures: with two classes u_k
would cancel in the difference of their weights, so the score's own weights are drawn around u_k; and so that
centers are not one-sided, the score is w.(x - v_k), and the bias sets the share of positives,
logistic(logit(0.3) + bias / 2), kept between 0.1 and 0.9. The samples with the highest scores of their center
are positive: labels have no noise.
"""

import math
import types
import typing
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl

from abps.core import streams
from abps.core.errors import RequestError, nearest
from abps.data.roles import Roles
from abps.lab.icu_synthetic import IcuSynthetic, check_ranges

RANGES = {
    "alpha": (0, 1_000), "beta": (0, 1_000), "centers": (1, 100_000), "features": (1, 10_000),
    "smallest": (40, 1_000_000), "largest": (40, 10_000_000), "seed": (0, 2**63 - 1),
}  # fmt: skip


#: The share of positives in a center whose bias is zero.
POSITIVE = 0.3


@dataclass(frozen=True)
class FedproxSynthetic:
    """The knobs of ``fedprox-synthetic``.

    alpha: variance of u_k, how much the centers' models differ.
    beta: variance of B_k, how much the centers' data differ.
    iid: one model and one feature distribution for all centers (alpha and beta then say nothing).
    centers, features: how many of each.
    smallest, largest: sizes are smallest + exp(N(4, 2²)), heavy-tailed, and at most the largest.
    seed: which federation of this kind.
    """

    alpha: float = 1.0
    beta: float = 1.0
    iid: bool = False
    centers: int = 30
    features: int = 60
    smallest: int = 50
    largest: int = 5_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges("fedprox-synthetic", self, RANGES)
        if self.largest < self.smallest:
            raise RequestError(
                f"fedprox-synthetic: largest={self.largest} is below smallest={self.smallest}; "
                "raise the one or lower the other"
            )

    def generate(self) -> pl.DataFrame:
        """One row per sample: y, center, then the features."""
        d = self.features
        scale = np.arange(1, d + 1) ** -0.6  # square root of the diagonal of S
        digits = len(str(self.centers - 1))
        names = [f"center-{k:0{digits}d}" for k in range(self.centers)]
        xs, ys, sizes = [], [], []
        for name in names:
            # The center's own stream: adding centers leaves those that exist as they are.
            rng = streams.generator(self.seed, "generate", 0, streams.center_id(name))
            size = min(self.smallest + int(np.exp(rng.normal(4.0, 2.0))), self.largest)
            if self.iid:
                model, u, v = streams.generator(self.seed, "generate", 1), 0.0, np.zeros(d)
            else:
                model, u = rng, rng.normal(0.0, math.sqrt(self.alpha))
                v = rng.normal(rng.normal(0.0, math.sqrt(self.beta)), 1.0, d)
            weights, bias = model.normal(u, 1.0, d), model.normal(u, 1.0)
            odds = math.log(POSITIVE / (1.0 - POSITIVE)) + bias / 2.0
            share = min(max(1.0 / (1.0 + math.exp(-odds)), 0.1), 0.9)
            x = v + scale * rng.standard_normal((size, d))
            rank = np.argsort(np.argsort((v - x) @ weights, kind="stable"), kind="stable")
            xs.append(x)
            ys.append(rank < round(share * size))
            sizes.append(size)
        x = np.concatenate(xs)
        return pl.DataFrame(
            {
                "y": np.concatenate(ys).astype(np.int8),
                "center": pl.Series(names).gather(np.repeat(np.arange(self.centers), sizes)),
                **{f"x{j + 1:0{len(str(d))}d}": x[:, j] for j in range(d)},
            }
        )


#: name -> the dataclass whose fields are its knobs, and the roles of its columns.
_ICU = Roles(label="died", center="center", patient="patient", time="admission_year", group="careunit")
Knobs = IcuSynthetic | FedproxSynthetic
GENERATORS: dict[str, tuple[type[Knobs], Roles]] = {
    "icu-synthetic": (IcuSynthetic, _ICU),
    "fedprox-synthetic": (FedproxSynthetic, Roles(label="y", center="center")),
}


def builtin_table(spec: str) -> tuple[pl.DataFrame, Roles]:
    knobs, roles = parse_builtin(spec)
    return knobs.generate(), roles


def parse_builtin(spec: str) -> tuple[Knobs, Roles]:
    """The knobs that a specification sets, and the roles of the table's columns."""
    name, _, settings = spec.partition(":")
    if name not in GENERATORS:
        raise RequestError(
            f"no built-in federation is called {name!r}{nearest(name, GENERATORS)}; "
            f"there are {', '.join(GENERATORS)}"
        )
    kind, roles = GENERATORS[name]
    hints = typing.get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    values: dict[str, Any] = {}
    for setting in filter(None, (part.strip() for part in settings.split(","))):
        knob, equals, text = (part.strip() for part in setting.partition("="))
        if knob not in known:
            raise RequestError(
                f"{name} has no knob {knob!r}{nearest(knob, known)}; its knobs are {', '.join(known)}"
            )
        if not equals or not text:
            raise RequestError(f"{name}: the knob {knob!r} has no value; write {knob}=VALUE")
        if knob in values:
            raise RequestError(f"{name}: the knob {knob!r} is set twice; set it once")
        values[knob] = _value(name, knob, text, hints[knob])
    return kind(**values), roles


def _value(name: str, knob: str, text: str, hint: Any) -> Any:
    if isinstance(hint, types.UnionType):  # float | None: there is no way, and no need, to write None
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    try:
        if hint is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                text.lower()
            ]
        if typing.get_origin(hint) is tuple:
            return tuple(int(part) for part in text.split("+"))
        return hint(text)
    except (ValueError, KeyError):
        known = {bool: "true or false", int: "a whole number", float: "a number"}
        wanted = known.get(hint, "whole numbers with + between")
        raise RequestError(f"{name}: {knob}={text!r} is not {wanted}; write {knob}=VALUE") from None
