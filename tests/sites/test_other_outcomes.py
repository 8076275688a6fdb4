"""Survival, classes and numbers between sites: the same as in a simulation, from each site's own files."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from abps.core.errors import RequestError
from abps.data.codebook import Codebook, merged
from abps.data.outcome import grid_hazards, parse_outcome
from abps.data.prepare import codebook, prepare
from abps.data.roles import Roles
from abps.data.table import federate
from abps.engine.simulate import simulate
from abps.methods.settings import configure
from abps.privacy.small_counts import MIN_CELL
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.preview import preview
from abps.sites.consent.proposal import Proposal
from abps.sites.consent.sitefile import SiteFile, read
from abps.sites.coordinator.scheduler import Scheduler, measure
from abps.sites.node import measuring
from abps.sites.node.context import may_score
from abps.sites.node.site import Site
from abps.sites.node.status import summary
from abps.sites.protocol.commands import Timeouts
from abps.sites.store.store import Store

from .loopback import LoopbackNetwork
from .network import close

NAMES = ("east", "north", "south", "west")


def frame_of(kind: str, rows: int = 400, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    eta = x[:, 0] - 0.7 * x[:, 1]
    columns = {"center": [NAMES[k % 4] for k in range(rows)], "patient": [f"p{k}" for k in range(rows)]}
    columns |= {f"x{j}": x[:, j] for j in range(3)}
    if kind == "survival":
        time, watched = np.ceil(9 * rng.exponential(np.exp(-eta))), np.ceil(rng.exponential(15, rows))
        columns |= {"y": time <= watched, "t": np.minimum(time, watched)}
    elif kind == "classes":
        utilities = np.stack([eta, -eta, 0 * eta], axis=1) + rng.gumbel(size=(rows, 3))
        columns |= {"y": np.array(["a", "b", "c"])[utilities.argmax(axis=1)]}
    else:
        columns |= {"y": 4 + 3 * eta + rng.normal(size=rows)}
    return pl.DataFrame(columns)


def site_files(folder, frame: pl.DataFrame, spec: str) -> dict[str, SiteFile]:
    found = {}
    for name in NAMES:
        table = folder / f"{name}.parquet"
        frame.filter(pl.col("center") == name).drop("center").write_parquet(table)
        duration = "t" if "t" in frame.columns else None
        file = SiteFile(name, str(table), "y", str(folder), "patient", outcome=spec, duration=duration)
        found[name] = read(file.write(folder / name))
    return found


def book_of(files: dict[str, SiteFile]) -> Codebook:
    """What the operator makes of the sites' own codebooks, which travel as files."""
    books = []
    for file in files.values():
        label, rows = file.labelled(), file.read_table()
        book = replace(
            codebook(rows, 0, min_cell=MIN_CELL), events=label.event_words, others=label.other_words
        )
        books.append(Codebook.from_json(json.loads(json.dumps(book.to_json()))))
    found = merged(books)
    assert Codebook.from_json(json.loads(json.dumps(found.to_json()))) == found
    return found


def counted(files: dict[str, SiteFile], agreement: Agreement, folder) -> Agreement:
    """The study with scales, grid or level that the sites count under masks."""
    network = LoopbackNetwork()
    for name, file in files.items():
        store = Store.open(folder / f"{name}-scales.sqlite", name, agreement.digest(), agreement.notes())
        table = file.read_table(agreement.book)
        network.sites[name] = measuring.ScaleCounting(name, agreement, table, store)
    scales = measure(network, agreement, NAMES, Timeouts(poll=0.0))
    close(network)
    return measuring.with_scales(agreement, scales)


@pytest.mark.parametrize(
    ("spec", "method", "settings"),
    [
        ("survival", "abps-plus", {}),
        ("survival", "fedavg", {"model": "linear", "secure": "yes"}),
        ("classes", "abps-plus", {}),
        ("continuous", "abps-plus", {}),
        ("continuous", "fedavg", {"model": "gam", "secure": "yes"}),
    ],
)
def test_sites_do_what_the_simulation_does(tmp_path, spec, method, settings):
    kind = parse_outcome(spec).kind
    frame = frame_of(kind, 1600)  # a tail that one patient of a site has would be left out there
    files = site_files(tmp_path, frame, spec)
    plain = Agreement.from_json(Agreement("test", method, book_of(files), 11, 4, settings).to_json())
    assert plain.book.outcome.kind == spec and plain.uncounted
    agreement = counted(files, plain, tmp_path)
    book = agreement.book
    assert book.outcome.agreed
    terms = Proposal(agreement).terms()
    assert terms["predicts"] == spec
    network = LoopbackNetwork()
    for name, file in files.items():
        data = agreement.prepare(file.read_table(agreement.book))
        store = Store.open(tmp_path / f"{name}.sqlite", name, agreement.digest(), agreement.notes())
        network.sites[name] = Site(name, agreement, data, store, network.sender(name))
    report = Scheduler(network, agreement, 4, Timeouts(poll=0.0)).run(NAMES)

    duration = "t" if kind == "survival" else None
    roles = Roles("y", "center", "patient", outcome=spec, duration=duration)
    together = replace(federate(frame, roles, "together", 10), outcome=book.outcome)
    config = configure(method, settings, 4)
    training = config.training
    run = simulate(
        prepare(together, 11, agreement.book, standardise=training.standardise, splines=training.splines),
        config,
        11,
        name=method,
    )
    models = np.stack([network.sites[name].models[0] for name in NAMES])
    np.testing.assert_allclose(models, run.models, atol=2e-5)
    assert np.abs(models).max() > 0.01
    sites = [network.sites[name] for name in NAMES]
    kept = np.array([[r.validation for r in site.store.rounds()] for site in sites], dtype=float)
    np.testing.assert_allclose(np.nanmean(kept, axis=0), run.history.validation_auroc, atol=1e-4)
    rows = [site.context.data.validation for site in sites]
    judged = [may_score(part.y, part.patient, book.outcome, MIN_CELL) for part in rows]
    received = [r.validation for r in report.rounds]  # of those alone that have enough patients
    if any(judged):
        np.testing.assert_allclose(received, np.nanmean(kept[judged], axis=0), atol=1e-9)
    else:
        assert received == [None] * 4
    assert summary(network.sites["east"].store)["measure"] == book.outcome.measure
    assert run.main.mean > (0.2 if kind == "continuous" else 0.6)
    close(network)


def outcome_of(folder, frame, spec):
    files = site_files(folder, frame, spec)
    return counted(files, Agreement("test", "abps-plus", book_of(files), 11, 4, {}), folder).book.outcome


def test_a_common_scale_and_grid_follow_from_masked_counts(tmp_path):
    frame = frame_of("continuous")
    outcome = outcome_of(tmp_path, frame, "continuous")
    y = frame["y"].to_numpy()
    assert outcome.level == pytest.approx(y.mean(), abs=0.3) and outcome.scale == pytest.approx(
        y.std(), rel=0.1
    )
    frame = frame_of("survival")
    (tmp_path / "survival").mkdir()
    outcome = outcome_of(tmp_path / "survival", frame, "survival")
    signed = np.where(frame["y"], frame["t"], -frame["t"]).astype(np.float32)
    died = frame.filter(pl.col("y"))["t"].to_numpy()
    share = [float((died <= end).mean()) for end in outcome.grid]
    assert len(outcome.grid) >= 5 and share == sorted(share) and share[0] < 0.3
    exact = grid_hazards(signed, outcome.grid)  # of all rows; what sites told is of training rows
    alive, exactly = (np.cumprod(1 - np.array(h)) for h in (outcome.hazards, exact))
    # Groups blur single times (whole days here), not the course.
    assert np.abs(alive - exactly).mean() < 0.08 and alive[-1] == pytest.approx(exactly[-1], abs=0.05)


def test_what_leaves_is_shown_before(tmp_path):
    files = site_files(tmp_path, frame_of("survival"), "survival")
    agreement = Agreement("test", "abps-plus", book_of(files), 11, 4, {})
    shown = preview(files["east"], Proposal(agreement))
    assert any("times of events" in v.name for v in shown)
    assert any(v.name == "validation C-index of the model" for v in shown)


def test_other_outcomes_are_not_mixed_up(tmp_path):
    survival, classes = (site_files(tmp_path / k, frame_of(k), k) for k in _folders(tmp_path))
    one, two = book_of(survival), book_of(classes)
    with pytest.raises(RequestError, match="an outcome of classes and another of survival"):
        merged([one, two])
    with pytest.raises(RequestError, match="the study predicts an outcome of classes"):
        survival["east"].read_table(two)


def _folders(tmp_path):
    for kind in ("survival", "classes"):
        (tmp_path / kind).mkdir()
        yield kind


def test_a_class_that_the_study_does_not_know(tmp_path):
    frame = frame_of("classes")
    files = site_files(tmp_path, frame, "classes")
    book = book_of(files)
    rare = frame.with_columns(y=pl.when(pl.col("x0") > 1.5).then(pl.lit("z")).otherwise(pl.col("y")))
    others = site_files(tmp_path, rare, "classes")
    # Too few patients to be named in a codebook, and so unknown to the study.
    assert "z" not in codebook(others["east"].read_table(), 0, min_cell=MIN_CELL).outcome.names
    with pytest.raises(RequestError, match="the class 'z', which is none of the study's"):
        others["east"].read_table(book)


def test_a_site_may_leave_the_outcome_to_the_study(tmp_path):
    files = site_files(tmp_path, frame_of("classes"), "classes")
    book = book_of(files)
    silent = replace(files["east"], outcome=None)
    assert silent.read_table(book).outcome == book.outcome


def test_a_class_absent_at_a_site_is_no_obstacle(tmp_path):
    frame = frame_of("classes").filter((pl.col("center") != "east") | (pl.col("y") != "b"))
    files = site_files(tmp_path, frame, "classes")
    book = book_of(files)
    assert book.outcome.names == ("a", "b", "c")
    table = files["east"].read_table(book)
    assert set(np.unique(table.label)) == {0.0, 2.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": [3, 2]}, "rises"),
        ({"grid": [1, 2], "hazards": [0.1]}, "one hazard"),
        ({"predicts": "nonsense"}, "no outcome"),
        ({"predicts": "classes"}, "names each"),
        ({"predicts": "continuous", "scale": -1}, "positive"),
        ({"predicts": "continuous", "grid": [1]}, "no grid or scale"),
    ],
)
def test_a_codebook_with_a_nonsensical_outcome(change, words):
    plain = {"schema": "abps.codebook/3", "time": False, "descriptors": [],
             "columns": [{"source": "x", "kind": "number"}]}  # fmt: skip
    with pytest.raises(RequestError, match=words):
        Codebook.from_json({**plain, "outcome": {"predicts": "survival", **change}})
