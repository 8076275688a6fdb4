"""Methods from the literature that we compare with, by name."""

from dataclasses import replace
from typing import Final

from abps.core.selection import Selection
from abps.lab.rivals.bnn import BNN
from abps.lab.rivals.boosting import HistogramBoosting
from abps.lab.rivals.clusters import DFCA, IFCA, ClusteredFedAvg, Facade
from abps.lab.rivals.corrected import FedAvgM, FedDyn, Scaffold
from abps.lab.rivals.defta import DeFTA
from abps.lab.rivals.ehrfl import EHRFL
from abps.lab.rivals.gossip import DeceFL, Gossip
from abps.lab.rivals.judging import DAC, DPFL, PENS, FedFomo
from abps.lab.rivals.moon import MOON
from abps.lab.rivals.personal import Ditto, FedMAP, FedRep
from abps.lab.rivals.pfedgraph import PFedGraph
from abps.lab.rivals.regressions import ODAL, MixedModel
from abps.lab.rivals.wpfed import WPFed
from abps.methods.abps import ABPS
from abps.methods.base import Wire
from abps.methods.catalog import Entry
from abps.models.training import Training

#: Does rest pay? Without the exploration bonus, which hides low beliefs, centers decline peers that harm.
_RESTS: Final = ABPS(selection=Selection(kappa=1, gamma=0.0), wire=Wire("bf16", private_layers=1))

#: Methods that choose whom to work with, at their authors' communication budget.
_CHOOSERS: Final[dict[str, Entry]] = {
    "pfedgraph": Entry(
        PFedGraph(), "star", "a server mixes each its own model, by cosines", "Ye et al. 2023"
    ),
    "dac": Entry(DAC(), "p2p", "five peers drawn by their loss on own rows", "Zec et al. 2022"),
    "ifca": Entry(IFCA(), "star", "six models, each center in the one that fits", "Ghosh et al. 2020"),
    "fedfomo": Entry(
        FedFomo(), "star", "a server hands on five models that lowered the own loss", "Zhang et al. 2021"
    ),
    "ehrfl": Entry(EHRFL(), "p2p", "pairs among the ten with the most alike mean patient", "Kim et al. 2026"),
    "dfca": Entry(DFCA(), "p2p", "six models gossiped, each center in one", "Kirsch et al. 2025"),
    "dpfl": Entry(DPFL(), "p2p", "the best set of all, by greedy search (a bound)", "Kharrat et al. 2025"),
    "pens": Entry(PENS(), "p2p", "peers that were often the best of ten", "Onoszko et al. 2021"),
}

RIVALS: Final[dict[str, Entry]] = {
    "feddyn": Entry(FedDyn(), "star", "losses bent towards one common optimum", "Acar et al. 2021"),
    "moon": Entry(MOON(), "star", "FedAvg with contrastive representations", "Li, He and Song 2021"),
    "bnn": Entry(BNN(), "star", "FedAvg of Bayesian networks", "no traceable paper; cf. Fischer et al. 2024"),
    "fedavgm": Entry(FedAvgM(), "star", "FedAvg with server momentum", "Hsu et al. 2019"),
    "scaffold": Entry(Scaffold(), "star", "FedAvg with control variates", "Karimireddy et al. 2020"),
    "fedrep": Entry(FedRep(), "star", "private head first, then common trunk", "Collins et al. 2021"),
    "ditto": Entry(Ditto(), "star", "FedAvg and a personal model near it", "Li et al. 2021"),
    "fedmap": Entry(FedMAP(), "star", "own models around a common one, a posteriori", "Zhang et al. 2024"),
    "clustered": Entry(ClusteredFedAvg(), "star", "FedAvg inside clusters of displacements", "control"),
    "odal": Entry(ODAL(), "sums", "a regression in three exchanges, by a surrogate", "Duan et al. 2020"),
    "glmm": Entry(
        MixedModel(), "sums", "a regression with random intercepts, from sums", "Li et al. 2022 (dPQL)"
    ),
    "boosting": Entry(HistogramBoosting(), "sums", "trees from summed histograms", "Chen and Guestrin 2016"),
    "decefl": Entry(DeceFL(), "p2p", "gossip with two neighbours on a ring", "Yuan et al. 2024"),
    "defta": Entry(DeFTA(), "p2p", "peers by trust, corrected for outdegree", "Zhou et al. 2024"),
    "wpfed": Entry(WPFed(), "p2p", "neighbours by likeness and rankings", "Chen et al. 2024"),
    "dpsgd": Entry(
        DeceFL(training=Training(epochs=1)), "p2p", "DeceFL with one local epoch", "Lian et al. 2017"
    ),
    "gossip": Entry(Gossip(), "p2p", "one model to one random peer", "Hegedűs et al. 2021"),
    "abps-k1-rests": Entry(_RESTS, "control", "ABPS by beliefs alone, which may rest", "control"),
    "abps-k1-never-rests": Entry(
        replace(_RESTS, selection=replace(_RESTS.selection, tau_acc=0.0)),
        "control",
        "… and accepts everybody",
        "control",
    ),
    **_CHOOSERS,
    "facade": Entry(Facade(), "p2p", "one trunk, six heads, four random neighbours", "Biswas et al. 2025"),
}
