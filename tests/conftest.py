"""What all tests share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

# One thread for every linear algebra library, here and in every process that a test starts: on small
# matrices threads only wait for each other, by spinning. The libraries read this once, when they are loaded.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
# One kernel on every processor: another one sums in another order, and rounds of training make a thousandth
# of that. Golden runs are frozen with this one; processors without it ignore it.
os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")

# ruff: noqa: E402
import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import settings

from abps.core import streams
from abps.data.federation import Federation
from abps.data.prepare import Prepared, prepare
from abps.engine.rounds import RunState
from abps.methods.base import Context, Method
from abps.models.learners import learner_for
from abps.models.training import Training

#: Open clinical data, beside the project.
DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"

#: A browser that reaches nothing but this machine.
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]  # fmt: skip

#: What takes longest begins first, so that no worker works long after the others. The files of one entry run
#: one after another: networks of processes mostly wait, but many of them at once keep each other waiting.
FIRST = (
    ("sites/test_flare.py",),
    ("sites/test_guide.py", "sites/test_console.py", "sites/test_rehearse.py", "sites/test_proxy.py"),
    ("study/test_kill.py",),
    ("slurm/test_slurm.py",),
    ("app/test_app.py",),
    ("docs/test_notebooks.py",),
    ("cli/test_clinicians_path.py",),
    ("lab/test_benchmark.py",),
    ("sites/test_courier.py",),
    ("docs/test_api_page.py",),
    ("docs/test_blocks.py",),
    ("checks/test_every_method.py",),
    ("models/test_tabular.py",),
    ("methods/test_abps_plus.py",),
    ("methods/test_references.py",),
    ("study/test_own_classes.py",),
    ("report/test_page_size.py",),
    ("statistics/test_regression.py",),
    ("cli/test_compare.py",),
)
TURN = {f"tests/{file}": turn for turn, files in enumerate(FIRST) for file in files}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: TURN.get(item.nodeid.partition("::")[0], len(FIRST)))


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nobody asks
def pytest_xdist_make_scheduler(config, log):
    """``--dist loadfile`` in this order, instead of by the number of tests in a file."""
    from xdist.scheduler import LoadFileScheduling

    class LongestFirst(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return FIRST[TURN[file]][0] if file in TURN else file

    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return LongestFirst(config, log)


# Machines differ and are shared: no test may fail because a single example was slow. The same examples
# every time: a red build must be red again when somebody looks into it.
settings.register_profile("abps", deadline=None, derandomize=True)
settings.load_profile("abps")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Small matrices are faster on one thread, and several test processes share the cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_draws():
    """What draws without a seed of its own draws the same every time."""
    torch.manual_seed(20)


@pytest.fixture(scope="module")
def browser():
    """A real browser for the pages."""
    if not Path(CHROMIUM).exists():
        if os.environ.get("CI"):
            pytest.fail(f"in CI a browser must be there: no {CHROMIUM}")
        pytest.skip(f"no browser at {CHROMIUM}")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="session")
def tiny() -> Federation:
    """Six centers of 40 to 115 stays in two groups: numbers, two binary descriptors, a category, gaps."""
    rng = np.random.default_rng(5)
    sizes = np.array([40, 55, 70, 85, 100, 115])
    center = np.repeat(np.arange(6), sizes).astype(np.int32)
    x = rng.normal(size=(len(center), 4)) + 0.3 * center[:, None]
    score = x[:, 0] - 0.7 * x[:, 1] + 0.5 * rng.normal(size=len(center))
    gappy = np.where(rng.random(len(center)) < 0.1, np.nan, x[:, 3])
    features = pl.DataFrame(
        {
            "a": x[:, 0],
            "b": x[:, 1],
            "c": x[:, 2],
            "d": pl.Series(gappy).fill_nan(None),
            "smoker": (rng.random(len(center)) < 0.3).astype(np.int8),
            "diabetic": (rng.random(len(center)) < 0.1 + 0.1 * center).astype(np.int8),
            "ward": np.array(["north", "south", "west"])[rng.integers(0, 3, len(center))],
        }
    )
    return Federation(
        name="tiny",
        features=features,
        label=(score > np.quantile(score, 0.7)).astype(np.int8),
        center=center,
        centers=tuple(f"center {i}" for i in range(6)),
        time=2010.0 + center + rng.random(len(center)),
        groups=("one", "one", "one", "two", "two", "two"),
        descriptors=("smoker", "diabetic"),
    )


@pytest.fixture(scope="session")
def ready(tiny: Federation) -> Prepared:
    """The tiny federation prepared for seed 11."""
    return prepare(tiny, 11)


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """The folder of one open data set; the test is skipped where it is absent."""

    def folder(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"the open data {name} are not beside the project (shared/data)")
        return path

    return folder


@pytest.fixture
def mimic_copy(data: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the MIMIC-IV demo that a test may spoil."""
    source, target = data("mimic-iv-demo-2.2"), tmp_path / "mimic"
    for part in ("hosp", "icu"):
        (target / part).mkdir(parents=True)
        for file in (source / part).iterdir():
            shutil.copyfile(file, target / part / file.name)
    return target


#: One full-batch step without dropout: local training that can be worked out by hand.
ONE_STEP = Training(epochs=1, batch=1000, lr=0.1, weight_decay=0.0, optimizer="sgd", dropout=0.0)


@pytest.fixture
def one_step() -> Training:
    """One full-batch gradient step of size 0.1 a round."""
    return ONE_STEP


@pytest.fixture
def context(ready: Prepared) -> Callable[..., Context]:
    """A world for a training, by default of all centers and with the stacked learner."""

    def make(training: Training, data: Prepared = ready, loop: bool = False) -> Context:
        learner = learner_for(data, training, 11, plain=loop)
        return Context(learner, data, streams.center_ids(data.centers), 11, 50)

    return make


@pytest.fixture
def play() -> Callable[..., list[Any]]:
    """All states of a run: before the first round and after each."""

    def run(method: Method, context: Context, rounds: int) -> list[Any]:
        course = RunState.start(method, context)
        states = [course.state]
        for t in range(1, rounds + 1):
            course, _ = course.round(t)
            states.append(course.state)
        return states

    return run
