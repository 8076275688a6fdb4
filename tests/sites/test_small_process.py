"""A site's process with linear models loads neither PyTorch nor a compiler, and learns the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from abps.methods.settings import configure

from . import small_process

ROOT = Path(__file__).parents[2]


def python(*words: str) -> str:
    """What a fresh interpreter prints."""
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory, given) -> Path:
    """What a process that does without PyTorch made of all runs."""
    folder = tmp_path_factory.mktemp("small")
    for key in small_process.RUNS:
        (folder / f"{key}.agreement").write_text(json.dumps(small_process.agreement(given, key).to_json()))
    loaded = json.loads(python("-m", "tests.sites.small_process", str(folder)).splitlines()[-1])
    assert loaded == []
    return folder


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return small_process.four(tmp_path_factory.mktemp("large"))


@pytest.mark.parametrize("key", small_process.RUNS)
def test_a_site_without_pytorch_learns_the_same(small, given, tmp_path, key):
    models, told = small_process.run(given, small_process.agreement(given, key), tmp_path / key)
    np.testing.assert_allclose(np.load(small / f"{key}.npy"), models, rtol=0, atol=1e-5)
    found = json.loads((small / f"{key}.json").read_text())
    assert set(found) == set(told)
    for name, mine in told.items():
        assert found[name]["partners"] == mine["partners"]
        assert found[name]["sent"] == mine["sent"]
        assert set(found[name]["beliefs"]) == set(mine["beliefs"])
        for peer, evidence in mine["beliefs"].items():
            np.testing.assert_allclose(found[name]["beliefs"][peer], evidence, atol=1e-4)
        np.testing.assert_allclose(found[name]["test"], mine["test"], atol=1e-4)
    kind = small_process.agreement(given, key).config().kind
    met = any(any(mine["partners"].values()) for mine in told.values())
    assert met == (kind not in ("alone", "star"))
    if kind == "star":
        assert all(sum(mine["sent"].values()) > 4 * models.shape[1] for mine in told.values())


def test_every_run_here_is_one_that_a_site_would_do_so(given):
    for method, settings in small_process.RUNS.values():
        assert configure(method, settings, 4).by_arithmetic(given.together.outcome), method


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("abps-pq-k1", {}),  # the paper's network
        ("moon", {"model": "linear"}),  # contrasts what layers show
        ("abps-pq-k1", {"model": "gam+mlp"}),
        ("abps-pq-k1", {"model": "linear", "clip": "1.0"}),
        ("abps-pq-k1", {"model": "linear", "cooling": "0", "optimizer": "adam"}),
    ],
)
def test_what_needs_more_is_not_done_so(given, method, settings):
    assert not configure(method, settings, 4).by_arithmetic(given.together.outcome)


def test_a_process_of_a_job_loads_little():
    script = (
        "import importlib, json, sys\n"
        "from abps.sites.flare import job_process as p\n"
        "for m in (p.SITE, 'abps.sites.node.site', 'abps.sites.flare.app', 'abps.data.table'):\n"
        "    importlib.import_module(m)\n"
        "heavy = 'torch', 'numba', 'scipy', 'sklearn', 'pandas'\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))\n"
    )
    assert json.loads(python("-c", script).splitlines()[-1]) == []
