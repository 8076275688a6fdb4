"""Every method by name: a table row is a few lines of configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from abps.core.errors import RequestError
from abps.core.selection import Selection
from abps.lab.rivals.bnn import BNN
from abps.lab.rivals.dac import DAC
from abps.lab.rivals.decefl import DeceFL
from abps.lab.rivals.defta import DeFTA
from abps.lab.rivals.dfca import DFCA
from abps.lab.rivals.ditto import Ditto
from abps.lab.rivals.dpfl import DPFL
from abps.lab.rivals.ehrfl import EHRFL
from abps.lab.rivals.facade import Facade
from abps.lab.rivals.fedavgm import FedAvgM
from abps.lab.rivals.feddyn import FedDyn
from abps.lab.rivals.fedfomo import FedFomo
from abps.lab.rivals.fedrep import FedRep
from abps.lab.rivals.gossip import Gossip
from abps.lab.rivals.ifca import IFCA
from abps.lab.rivals.moon import MOON
from abps.lab.rivals.pens import PENS
from abps.lab.rivals.pfedgraph import PFedGraph, PFedGraphPeers
from abps.lab.rivals.scaffold import Scaffold
from abps.lab.rivals.wpfed import WPFed
from abps.methods.abps import ABPS, Filter
from abps.methods.base import Method, Stopping, Wire
from abps.methods.centralized import Centralized
from abps.methods.fedavg import FedAvg
from abps.methods.fedprox import FedProx
from abps.methods.local import Local
from abps.methods.references import (
    CentralizedStopped,
    GlmExact,
    LocalBest,
    LocalStopped,
    PooledBest,
)
from abps.models.training import Training
from abps.registry import Registry, first_line


@dataclass(frozen=True)
class Entry:
    """A method as it is listed: what it is, where it comes from, how it is set."""

    config: Method
    family: str
    summary: str
    source: str


#: X: two private layers, half of the old trunk kept, stop after 10 rounds without a better validation AUROC
#: (counted from round 20: docs/paper-reading.md says why).
_X_WIRE = Wire("bf16", private_layers=2)
_X_STOP = Stopping(rounds=100, patience=10, grace=20)
_PQ = Wire("bf16", private_layers=1)
_ONE = Selection(kappa=1)
_RANDOM_ONE = Selection(kappa=1, policy="random")

_PAPER = "ABPS paper"

#: Others that choose whom to work with, by their authors' budget and by that of one partner.
_CHOOSERS: Final[dict[str, Entry]] = {
    "pfedgraph": Entry(
        PFedGraph(), "star", "a server mixes each its own model, by cosines", "Ye et al. 2023"
    ),
    "pfedgraph-k1": Entry(PFedGraphPeers(), "p2p", "… without a server, one partner", "Ye et al. 2023"),
    "dac": Entry(DAC(), "p2p", "five peers drawn by their loss on own rows", "Zec et al. 2022"),
    "dac-var": Entry(DAC(schedule="rising"), "p2p", "… ever more by it", "Zec et al. 2022"),
    "dac-k1": Entry(
        DAC(peers=1, links="mutual", standardise=True, tau=1.0),
        "p2p",
        "… one partner, scores standardised",
        "Zec et al. 2022",
    ),
    "ifca": Entry(IFCA(), "star", "six models, each center in the one that fits", "Ghosh et al. 2020"),
    "fedfomo": Entry(
        FedFomo(), "star", "a server hands on five models that lowered the own loss", "Zhang et al. 2021"
    ),
    "fedfomo-k1": Entry(FedFomo(peers=1, links="pull"), "p2p", "… one, heard directly", "Zhang et al. 2021"),
    "ehrfl": Entry(EHRFL(), "p2p", "pairs among the ten with the most alike mean patient", "Kim et al. 2026"),
    "dfca": Entry(DFCA(), "p2p", "six models gossiped, each center in one", "Kirsch et al. 2025"),
    "dfca-k1": Entry(DFCA(most=1), "p2p", "… to one peer a round", "Kirsch et al. 2025"),
    "dpfl": Entry(DPFL(), "p2p", "the best set of all, by greedy search (a bound)", "Kharrat et al. 2025"),
    "pens": Entry(PENS(), "p2p", "peers that were often the best of ten", "Onoszko et al. 2021"),
    "pens-k1": Entry(
        PENS(sampled=2, best=1, later=1), "p2p", "… of two, then one a round", "Onoszko et al. 2021"
    ),
}


def _private(entry: Entry) -> Entry:
    """The same with a private last layer."""
    wire = replace(entry.config.line, private_layers=1)
    config = replace(entry.config, wire=wire)  # type: ignore[call-arg]
    return replace(entry, config=config, summary=f"{entry.summary}, private head")


#: Others that choose among models or heads that all share.
_HEADS: Final[dict[str, Entry]] = {
    "ifca-trunk": Entry(IFCA(shared_trunk=True), "star", "… one trunk, six heads", "Ghosh et al. 2020"),
    "facade": Entry(Facade(), "p2p", "one trunk, six heads, four random neighbours", "Biswas et al. 2025"),
    "facade-r1": Entry(Facade(degree=1), "p2p", "… one neighbour", "Biswas et al. 2025"),
}

#: Their forms with a private head, as all our own methods have one.
PRIVATE_FORMS: Final = {f"{name}-p": _private(entry) for name, entry in _CHOOSERS.items()}

CATALOG: Final[dict[str, Entry]] = {
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
    "local-stopped": Entry(
        LocalStopped(), "reference", "local, stopped on own validation rows", "early stopping"
    ),
    "centralized-stopped": Entry(
        CentralizedStopped(),
        "reference",
        "centralized, stopped on validation rows",
        "early stopping",
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
    "feddyn": Entry(FedDyn(), "star", "losses bent towards one common optimum", "Acar et al. 2021"),
    "moon": Entry(MOON(), "star", "FedAvg with contrastive representations", "Li, He and Song 2021"),
    "bnn": Entry(BNN(), "star", "FedAvg of Bayesian networks", "no traceable paper; cf. Fischer et al. 2024"),
    "fedavgm": Entry(FedAvgM(), "star", "FedAvg with server momentum", "Hsu et al. 2019"),
    "scaffold": Entry(Scaffold(), "star", "FedAvg with control variates", "Karimireddy et al. 2020"),
    "fedper": Entry(
        FedAvg(wire=Wire(private_layers=1)), "star", "FedPer, that is fedavg-p", "Arivazhagan et al. 2019"
    ),
    "fedrep": Entry(FedRep(), "star", "private head first, then common trunk", "Collins et al. 2021"),
    "ditto": Entry(Ditto(), "star", "FedAvg and a personal model near it", "Li et al. 2021"),
    "decefl": Entry(DeceFL(), "p2p", "gossip with two neighbours on a ring", "Yuan et al. 2024"),
    "defta": Entry(DeFTA(), "p2p", "peers by trust, corrected for outdegree", "Zhou et al. 2024"),
    "wpfed": Entry(WPFed(), "p2p", "neighbours by likeness and rankings", "Chen et al. 2024"),
    "dpsgd": Entry(
        DeceFL(training=Training(epochs=1)), "p2p", "DeceFL with one local epoch", "Lian et al. 2017"
    ),
    "gossip": Entry(Gossip(), "p2p", "one model to one random peer", "Hegedűs et al. 2021"),
    **_CHOOSERS,
    **_HEADS,
    **PRIVATE_FORMS,
    "random-k1": Entry(
        ABPS(selection=_RANDOM_ONE, wire=_PQ), "control", "ABPS+P+Q, κ=1, partners at random", "control"
    ),
    "random-k3": Entry(
        ABPS(selection=Selection(policy="random")), "control", "ABPS, κ=3, partners at random", "control"
    ),
    "group-oracle-k1": Entry(
        ABPS(selection=_RANDOM_ONE, filter=Filter(candidates="group"), wire=_PQ),
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
        ABPS(selection=_ONE, filter=Filter("homogeneity", metadata="full"), wire=_PQ),
        "abps",
        "… that looks for like peers",
        _PAPER,
    ),
    "abps-pq-k1-div": Entry(
        ABPS(selection=_ONE, filter=Filter("diversity", metadata="full"), wire=_PQ),
        "abps",
        "… that looks for unlike peers",
        _PAPER,
    ),
    "abps-pq-k1-align": Entry(
        ABPS(selection=_ONE, filter=Filter("alignment", metadata="full"), wire=_PQ),
        "abps",
        "… that looks for peers of the same outcome rate",
        _PAPER,
    ),
    "abps-x": Entry(
        ABPS(
            selection=_ONE,
            filter=Filter("homogeneity", metadata="full"),
            wire=_X_WIRE,
            smoothing=0.5,
            stop=_X_STOP,
        ),
        "abps",
        "all extensions: two private layers, EMA, early stopping",
        _PAPER,
    ),
}


def _method(found: Any) -> Method | None:
    """A configuration as it is; a class of them with its defaults."""
    if isinstance(found, type) and issubclass(found, Method):
        try:
            return found()
        except TypeError as error:
            raise RequestError(f"{found.__name__} is not a whole method: {first_line(error)}") from error
    return found if isinstance(found, Method) else None


METHODS: Final = Registry[Method](
    "method",
    "abps.methods",
    {name: entry.config for name, entry in CATALOG.items()},
    _method,
    "a configuration, that is an object of a class derived from abps.Method",
    "`abps methods` lists them all",
)


#: What stands beside every comparison, unless it is left out. The first is what "alone" means.
REFERENCES: Final = ("local-best", "pooled-best", "glm-exact", "local-stopped", "centralized-stopped")


def find(name: str) -> Method:
    """A method's configuration by its name: ours, an entry point's, or ``package.module:NAME``."""
    return METHODS.find(name)
