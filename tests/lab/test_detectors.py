"""Detectors by name."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.evaluate import change_detection as detectors


@pytest.mark.parametrize("name", list(detectors.DETECTORS))
def test_every_detector_finds_a_large_change_and_is_deterministic(name: str) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 1, 200), rng.normal(4, 1, 200)]).tolist()
    runs = []
    for _ in range(2):
        watcher = detectors.detector(name, seed=7)
        runs.append([t for t, v in enumerate(values) if watcher.update(v)])
    assert runs[0] == runs[1]
    assert any(200 <= t < 260 for t in runs[0])


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(RequestError, match="did you mean 'adwin'"):
        detectors.detector("adwim")


def test_without_river_its_detectors_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def absent(name: str) -> object:
        if name.startswith("river"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(RequestError, match=r"pip install 'abps\[drift\]'"):
        detectors.detector("adwin")
    assert "welch" in detectors.available()
    assert "adwin" not in detectors.available()
