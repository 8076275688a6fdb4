"""Every method by name, with the configuration that the name stands for.

The competitors from the literature are listed in ``abps.lab.rivals``.
"""

from dataclasses import dataclass
from typing import Any, Final

from abps.core.errors import RequestError
from abps.core.selection import Selection
from abps.methods.abps import ABPS, Filter, RandomPairs
from abps.methods.abps_plus import ABPSPlus
from abps.methods.base import Method, Stopping, Wire
from abps.methods.fedavg import FedAvg, FedProx
from abps.methods.references import Centralized, GlmExact, Local, LocalBest, PooledBest
from abps.methods.regression import Regression
from abps.methods.sum_study import EvaluationStudy, TableOneStudy
from abps.registry import Extended, Registry, first_line


@dataclass(frozen=True)
class Entry:
    """A method in the catalog: its configuration, family, one line about it, and where it comes from."""

    config: Method
    family: str
    summary: str
    source: str


#: X: two private layers, half of the old trunk kept, stop after 10 rounds without a better validation AUROC
#: (counted from round 20: docs/paper.md says why).
_X_WIRE = Wire("bf16", private_layers=2)
_X_STOP = Stopping(rounds=100, patience=10, grace=20)
_PQ = Wire("bf16", private_layers=1)
_ONE = Selection(kappa=1)
_HOM, _DIV, _ALIGN = (Filter(goal, metadata="full") for goal in ("homogeneity", "diversity", "alignment"))

_PAPER = "ABPS paper"

_ENTRIES: Final[dict[str, Entry]] = {
    "centralized": Entry(Centralized(), "reference", "one model on all rows pooled (not federated)", _PAPER),
    "local": Entry(Local(), "reference", "every center alone", _PAPER),
    "local-best": Entry(
        LocalBest(), "reference", "every center alone: best of ridge, gam, boosting", "clinical practice"
    ),
    "pooled-best": Entry(
        PooledBest(), "reference", "the same on all rows pooled (no federation)", "data lake"
    ),
    "glm-exact": Entry(
        GlmExact(), "reference", "pooled ridge regression from sums", "DataSHIELD, vantage6 and others"
    ),
    "fedavg": Entry(FedAvg(), "star", "average everybody's model every round", "McMahan et al. 2017"),
    "fedavg-p": Entry(
        FedAvg(wire=Wire(private_layers=1)), "star", "FedAvg with a private head", "Arivazhagan et al. 2019"
    ),
    "fedavg-pq": Entry(FedAvg(wire=_PQ), "star", "FedAvg, private head, bfloat16", _PAPER),
    "fedavg-x": Entry(
        FedAvg(wire=_X_WIRE, smoothing=0.5, stop=_X_STOP),
        "star",
        "FedAvg with all extensions of ABPS-X",
        _PAPER,
    ),
    "fedprox": Entry(FedProx(), "star", "FedAvg held near the received model", "Li et al. 2020"),
    "fedper": Entry(
        FedAvg(wire=Wire(private_layers=1)), "star", "FedPer, that is fedavg-p", "Arivazhagan et al. 2019"
    ),
    "random-k1": Entry(
        RandomPairs(kappa=1, wire=_PQ), "control", "ABPS+P+Q, κ=1, partners at random", "control"
    ),
    "random-k3": Entry(RandomPairs(), "control", "ABPS, κ=3, partners at random", "control"),
    "group-oracle-k1": Entry(
        RandomPairs(kappa=1, candidates="group", wire=_PQ),
        "control",
        "random-k1 inside the declared group only",
        "control",
    ),
    "abps": Entry(ABPS(), "abps", "the paper's base method, κ=3", _PAPER),
    "abps-p": Entry(ABPS(wire=Wire(private_layers=1)), "abps", "ABPS with a private head", _PAPER),
    "abps-q": Entry(ABPS(wire=Wire("bf16")), "abps", "ABPS in bfloat16", _PAPER),
    "abps-pq-k1": Entry(
        ABPS(selection=_ONE, wire=_PQ), "abps", "ABPS, private head, bfloat16, one partner", _PAPER
    ),
    "abps-pq-k1-hom": Entry(
        ABPS(selection=_ONE, filter=_HOM, wire=_PQ), "abps", "… that looks for like peers", _PAPER
    ),
    "abps-pq-k1-div": Entry(
        ABPS(selection=_ONE, filter=_DIV, wire=_PQ), "abps", "… that looks for unlike peers", _PAPER
    ),
    "abps-pq-k1-align": Entry(
        ABPS(selection=_ONE, filter=_ALIGN, wire=_PQ),
        "abps",
        "… that looks for peers of the same outcome rate",
        _PAPER,
    ),
    "abps-x": Entry(
        ABPS(selection=_ONE, filter=_HOM, wire=_X_WIRE, smoothing=0.5, stop=_X_STOP),
        "abps",
        "all extensions: two private layers, EMA, early stopping",
        _PAPER,
    ),
    "abps-plus": Entry(
        ABPSPlus(), "abps", "a hierarchical Bayesian model fitted by exchanging scores", "beyond the paper"
    ),
}


#: Published competitors, which only the laboratory needs.
_RIVALS: Final = "abps.lab.rivals:RIVALS"

#: Every method by its name; competitors come last, and are imported when one of them is asked for.
CATALOG: Final = Extended(_ENTRIES, _RIVALS, lambda entry: entry)


def _method(found: Any) -> Method | None:
    if isinstance(found, type) and issubclass(found, Method):
        try:
            return found()
        except TypeError as error:
            raise RequestError(f"{found.__name__} is not a whole method: {first_line(error)}") from error
    return found if isinstance(found, Method) else None


#: Statistics between sites: made of sums, and nothing that is trained.
_SUMS: Final[dict[str, Method]] = {
    "regression": Regression(), "table-one": TableOneStudy(), "evaluation": EvaluationStudy(),
}  # fmt: skip

METHODS: Final = Registry[Method](
    "method",
    "abps.methods",
    Extended(
        {name: entry.config for name, entry in _ENTRIES.items()} | _SUMS,
        _RIVALS,
        lambda entry: entry.config,
    ),
    _method,
    "a configuration, that is an object of a class derived from abps.Method",
    "`abps methods` lists them all",
)


#: References that every comparison includes by default; the first is the baseline "alone".
REFERENCES: Final = ("local-best", "pooled-best", "glm-exact")


def name_of(config: Method) -> str:
    """The catalog's name of a configuration; that of its class if the catalog has another or none."""
    listed = CATALOG if type(config).__module__.startswith("abps.lab.") else _ENTRIES
    return next((name for name in listed if listed[name].config == config), type(config).__name__.lower())


def find(name: str) -> Method:
    """A method's configuration by its name: ours, an entry point's, or ``package.module:NAME``."""
    return METHODS.find(name)
