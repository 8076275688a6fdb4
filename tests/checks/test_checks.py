"""The checks see what is wrong, and say it in a sentence; the templates pass them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import abps
from abps.checks import CHECKS, CheckFailure, check_method, quick_check
from abps.cli.main import main
from abps.methods.base import Models
from abps.methods.fedavg import FedAvg
from abps.methods.references import Local

TEMPLATES = Path(__file__).parents[2] / "docs" / "templates"


@pytest.fixture
def templates(monkeypatch):
    monkeypatch.syspath_prepend(TEMPLATES)
    yield
    sys.modules.pop("method", None)


def test_the_templates_pass(templates):
    assert check_method(abps.find("method:TURNING")) == tuple(CHECKS)


@dataclass(frozen=True)
class Noisy(Local):
    def train(self, context, state, t, alone):
        return Models(
            context.learner.train(state.models, t)
            + 1e-3 * np.random.default_rng().normal(size=(context.r, 1)).astype(np.float32)
        )


@dataclass(frozen=True)
class Broken(Local):
    def train(self, context, state, t, alone):
        return Models(state.models * np.nan)


@dataclass(frozen=True)
class Frozen(Local):
    def init(self, context):
        return Models(np.zeros((context.r, context.learner.layout.size), dtype=np.float32))

    def train(self, context, state, t, alone):
        return state


@dataclass(frozen=True)
class Crashing(Local):
    def train(self, context, state, t, alone):
        raise ZeroDivisionError("oh dear\nand more")


@dataclass(frozen=True, eq=False)
class Odd(Models):
    friend: object = None


@dataclass(frozen=True)
class Unwritable(Local):
    def init(self, context):
        return Odd(context.common_start(), print)


@dataclass(frozen=True)
class ByPlace(Local):
    def train(self, context, state, t, alone):
        trained = context.learner.train(state.models, t)
        return replace(state, models=trained * np.linspace(-1, 1, context.r)[:, None])


@pytest.mark.parametrize(
    ("config", "check"),
    [
        (Noisy(), "the same twice"),
        (Broken(), "numbers are numbers"),
        (Frozen(), "seeds matter"),
        (Crashing(), "numbers are numbers"),
        (Unwritable(), "it can be written down"),
        (ByPlace(), "order is nothing"),
    ],
)
def test_what_is_wrong_is_seen(config, check):
    with pytest.raises(CheckFailure) as caught:
        check_method(config)
    assert caught.value.check == check and type(config).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_method_is_looked_at_when_it_enters_a_study(tmp_path):
    federation = abps.load("icu-synthetic:centers=8")
    with pytest.raises(CheckFailure, match="noisy fails the check 'the same twice'"):
        abps.compare(federation, ["local", Noisy()], [11], rounds=1)
    quick_check(FedAvg())


def test_the_command_line_checks_too(templates, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text(
        "import numpy as np\nfrom dataclasses import dataclass\nfrom abps.methods.references import Local\n"
        "from abps.methods.base import Models\n"
        "@dataclass(frozen=True)\nclass Bad(Local):\n"
        "    def train(self, world, state, t, alone):\n        noise = np.random.random(state.models.shape)\n"
        "        return Models(noise.astype(np.float32))\n"
    )

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    code, out, _ = call("methods", "--check", "method:TURNING")
    assert code == 0 and "engines agree" in out
    for words in (["methods", "--check", "bad:Bad"], ["run", "--method", "bad:Bad", "--out", "x"]):
        code, out, err = call(*words)
        assert (code, out) == (2, "") and "bad:Bad fails the check 'the same twice'" in err
        assert len(err.strip().splitlines()) == 1 and not Path("x").exists()
    sys.modules.pop("bad", None)
