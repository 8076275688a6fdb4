"""A method from outside the package: in the simulation, between sites, and at their doors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from abps.core.errors import RequestError
from abps.sites.consent import sitefile
from abps.sites.consent.agreement import Agreement


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "foreign")


def test_a_site_imports_only_what_it_allows(six, tmp_path):
    foreign = six.agreement("stranger:MEAN")
    with pytest.raises(RequestError, match="does not allow the package 'stranger'"):
        foreign.admitted(("federated_mean",))
    assert foreign.admitted(("stranger",)) is foreign
    for settings in ({"codec": "stranger.codecs:BIG"}, {"goals": "none,stranger:older"}):
        with pytest.raises(RequestError, match="does not allow the package 'stranger'"):
            # Nothing of the settings has been looked up yet when a site asks itself this.
            replace(six.agreement("abps-plus"), settings=settings).admitted(())
    assert six.agreement("abps-plus", steps="4").admitted(())
    own = sitefile.SiteFile("a", "table.csv", "died", "store", allow=("stranger",))
    assert sitefile.read(own.write(tmp_path)) == own


def test_another_code_is_another_agreement(six, monkeypatch):
    agreement = six.agreement("federated_mean:MEAN")
    before = agreement.digest()
    assert replace(agreement).digest() == before == Agreement.from_json(agreement.to_json()).digest()
    monkeypatch.setattr("inspect.getsource", lambda kind: "# a newer version")
    assert agreement.digest() != before
