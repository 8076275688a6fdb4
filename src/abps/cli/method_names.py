"""Names of methods for completion: written down, so that a shell need not wait for the catalog."""

from __future__ import annotations

from typing import Final

#: Every name of the catalog (a test holds the two against each other).
_NAMES = (
    "centralized local local-best pooled-best glm-exact local-stopped centralized-stopped fedavg fedavg-p "
    "fedavg-pq fedavg-x fedprox fedper random-k1 random-k3 group-oracle-k1 abps abps-p abps-q abps-pq-k1 "
    "abps-pq-k1-hom abps-pq-k1-div abps-pq-k1-align abps-x abps-plus feddyn moon bnn fedavgm scaffold fedrep "
    "ditto fedmap clustered odal glmm boosting decefl defta wpfed dpsgd gossip abps-k1-rests "
    "abps-k1-never-rests pfedgraph dac dac-var dac-k1 ifca fedfomo fedfomo-k1 ehrfl dfca dfca-k1 dpfl pens "
    "pens-k1 facade facade-r1 pfedgraph-p ifca-p pens-p"
)
NAMES: Final = _NAMES.split()


def complete_method(incomplete: str) -> list[str]:
    """Names that begin so."""
    return [name for name in NAMES if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """The same for the last of several names with commas between.

    >>> complete_methods("local,fedavg-p")
    ['local,fedavg-p', 'local,fedavg-pq']
    """
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in complete_method(last)]
