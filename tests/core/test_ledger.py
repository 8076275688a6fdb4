"""The ledger: the paper's bandwidth column from counting."""

import pytest

from abps.core import ledger
from abps.core.ledger import Ledger, Traffic

D = 66
WEIGHTS = 128 * D + 8449
HEAD, TWO = 65, 65 + 8256


def ratio(edges_per_center, weights, bytes_each, rounds=50):
    spent = ledger.pairs(round(230 * edges_per_center), weights * bytes_each)
    return spent.edge * rounds / (230 * WEIGHTS * 4 * 50)


@pytest.mark.parametrize(
    ("edges", "weights", "width", "table"),
    [
        (1.5, WEIGHTS, 4, 1.50),
        (1.5, WEIGHTS - HEAD, 4, 1.49),
        (1.5, WEIGHTS, 2, 0.75),
        (0.5, WEIGHTS - HEAD, 2, 0.25),
        (1.0, WEIGHTS - HEAD, 2, 0.50),
    ],
)
def test_the_papers_column(edges, weights, width, table):
    assert ratio(edges, weights, width) == pytest.approx(table, abs=0.005)


def test_abps_x_at_35_rounds():
    assert ratio(0.5, WEIGHTS - TWO, 2, rounds=35) == pytest.approx(0.09, abs=0.005)


def test_edges_and_directions():
    assert ledger.pairs(3, 7, proposals=5) == Traffic(21, 42, (2 * 5 + 3) * ledger.CONTROL_MESSAGE)
    assert ledger.directory(4, 15) == Traffic(control=4 * 3 * (ledger.CONTROL_MESSAGE + 60))
    assert (Traffic(1, 2, 3) + Traffic(10, 20, 30)) == Traffic(11, 22, 33)
    assert Traffic(0, 10**9, 0).usd == pytest.approx(0.09)


def test_a_budget_ends_communication_for_good():
    books = Ledger(budget=100)
    round = Traffic(edge=40)
    assert books.affords(round)
    books = books.book(round).book(round)
    assert not books.affords(round) and books.affords(Traffic(edge=20))
    assert not books.close().affords(Traffic(edge=1))
    assert books.spent.edge == 80 and len(books.rounds) == 2
