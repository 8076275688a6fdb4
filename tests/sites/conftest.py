import pytest
import torch

from .network import hospitals


@pytest.fixture(autouse=True)
def one_thread():
    """As in a site's own process: its models are small, and threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def eight(tmp_path_factory):
    """Eight hospitals with 200 stays each."""
    return hospitals(tmp_path_factory.mktemp("eight"), 8)


@pytest.fixture(scope="session")
def six(tmp_path_factory):
    """Six small hospitals, for what has to be repeated often."""
    return hospitals(tmp_path_factory.mktemp("six"), 6, stays=600)


@pytest.fixture(scope="session")
def four(tmp_path_factory):
    """Four small hospitals, for networks of processes."""
    return hospitals(tmp_path_factory.mktemp("four"), 4, stays=400)
