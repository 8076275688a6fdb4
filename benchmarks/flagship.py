"""abps-plus beside its references on real federations and synthetic worlds: accuracy, calibration, bytes.

    python benchmarks/flagship.py --data FOLDER --out benchmarks/results/flagship_real.csv
    python benchmarks/flagship.py --tables FOLDER --seeds 11 --out benchmarks/results/flagship_fresh.csv
    python benchmarks/flagship.py --worlds 8101 --methods fedavg,abps-plus --out worlds.csv
    python benchmarks/flagship.py --worlds 8101 --methods abps-plus,abps-plus:without=gate --out ablation.csv

Every line of the CSV is one run: the mean AUROC over centers, log-loss and calibration slope over all scored
rows, all bytes in units of FedAvg's. Real federations are cross-fitted in five folds, so that every patient
is scored by models that have not seen them; a world has one split. A method may have settings after a colon;
``without`` switches a part of abps-plus off that has no setting. With ``--keep`` what the CSV has
of other methods and federations stays.

The last lines have means over seeds (or worlds), and by how much the last method leads each of the others,
with a 95 % interval: on a real federation over its patients (the report's own procedure), for worlds over
worlds of one kind, whose spread is taken to be the same for all kinds. ``expected_better`` is the share of
hospitals that the last method expects to have a smaller loss than alone, ``better`` the share of those that
have one (all of them from held-out rows).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression

import abps
from abps.engine.crossvalidation import FOLDS, cross_validate
from abps.engine.result import RunArtifacts
from abps.evaluate.inference import average_gain, fold_inflation
from abps.evaluate.measured import measured as measures_of
from abps.lab.icu_synthetic import (
    UNIT_RISK_SPREAD,
    IcuSynthetic,
    draw_with_risk,
    population_of,
)
from abps.lab.suite import make_federation, suite
from abps.methods import abps_plus, plus_filter, plus_own
from abps.methods.settings import configure
from abps.models import structure

#: File, label and center column of the real federations that are one table.
TABLES = {
    "GUSTO": ("gusto.csv.gz", "died", "hospital"),
    "COVID": ("covid_mx_state_sector.csv.gz", "died", "hospital"),
    "IMPACT": ("impact_tbi.csv.gz", "died", "study"),
    "NASS": ("nass_cds.csv.gz", "died", "region"),
    "dialysis": ("dialysis_rio.csv.gz", "died", "hospital"),
    "TCGA": ("tcga_cdr.csv.gz", "died", "hospital"),
    "Zambia": ("zambia_stunting.csv.gz", "event", "region"),
    "RAND": ("rand_hie.csv.gz", "event", "site"),
}

#: Real federations that are cohorts of the benchmark suite.
COHORTS = {"PhysioNet": "physionet2012", "eICU": "eicu-demo", "Heart": "heart"}

#: Knobs of the synthetic worlds; n: the number of centers.
WORLDS = {
    "severe": "heterogeneity=4",
    "metadata uninformative": "heterogeneity=4,aligned=false",
    "medium": "heterogeneity=2",
    "mild": "heterogeneity=1",
    "none": "heterogeneity=0",
    "own risk each": "heterogeneity=2,groups={n}",
    "one odd center": "heterogeneity=4,group_sizes={n1}+1",
    "many small clusters": "heterogeneity=4,groups={tenth}",
    "continuum": "heterogeneity=4",
    "one sicker center": "",
    "default": "",
}

#: Directions of the continuum, in which every center has a position of its own.
DIRECTIONS = 2

#: Parts of abps-plus: where each is, and what stands there without it.
PARTS: dict[str, tuple[Any, str, Any]] = {
    "test": (abps_plus, "LEVEL", 1.0),
    "gate": (abps_plus, "GATE_Z", -np.inf),
    "choice": (abps_plus, "choose_clusters", lambda state, local, means: state),
    "clusters": (
        structure.HalfScores,
        "clusters",
        lambda halves: (np.zeros(len(halves.first), int), 1),
    ),
    "continuum": (structure.HalfScores, "shared_deviations", lambda halves, count: np.zeros((0, 0))),
    "spare": (abps_plus, "SPARE_CLUSTERS", 0),
    "free-intercept": (plus_own, "ALONE_INTERCEPT_VARIANCE", 1e-9),
    "possible": (plus_filter, "_possible", lambda parts, reported, *_: np.ones(len(reported), dtype=bool)),
    "exclude": (plus_filter, "EXCLUDE", 1e9),
    "copied": (plus_filter, "copied", lambda values: np.zeros(len(values), dtype=bool)),
    "stay-out": (plus_filter, "RETURN", 3.0),
    "shorten": (plus_filter, "SHORTEN", 1e9),
    "opposite": (plus_filter, "FARTHEST_AGAINST", 1e9),
    "aimed": (plus_filter, "FARTHEST_SUM", 1e9),
    "pushed": (plus_filter, "FARTHEST_PUSH", 1e9),
    "half-bound": (plus_filter, "LONGEST_HALF", 1e9),
    "information-bound": (plus_filter, "INFORMATION_FACTOR", 1e9),
    "squares": (plus_filter, "LONGEST_SQUARES", 1e9),
    "pair-bound": (plus_filter, "LONGEST_PAIR", 1e9),
    "place-bound": (plus_filter, "FARTHEST_PLACE", 1e9),
}

MEASURES = ("auroc", "log_loss", "slope", "all_vs_fedavg", "exchanges")
LEAD = ("lead", "lead_low", "lead_high", "expected_better", "better")

#: Results by federation and method, then by seed; and the runs themselves.
Lines = dict[tuple[str, str], dict[str, tuple[float, ...]]]
Runs = dict[tuple[str, str], list[abps.Run]]


def federations(args: argparse.Namespace) -> Iterator[tuple[str, abps.Federation, int]]:
    """Names, federations and seeds."""
    wanted = set(filter(None, args.only.split(",")))
    for name in (*TABLES, *COHORTS) if args.data is not None else ():
        if wanted and name not in wanted:
            continue
        if name in TABLES:
            file, label, center = TABLES[name]
            federation = abps.read_table(args.data / "hospitals" / file, label=label, center=center)
        else:
            federation = make_federation(suite()[COHORTS[name]], args.data, 0)
        for seed in map(int, args.seeds.split(",")):
            yield name, federation, seed
    for file in sorted(args.tables.glob("*.csv")) if args.tables is not None else ():
        if not wanted or file.stem in wanted:
            patient = "patient" if "patient" in pl.scan_csv(file).collect_schema() else None
            federation = abps.read_table(file, label="event", center="center", patient=patient)
            yield from ((file.stem, federation, int(seed)) for seed in args.seeds.split(","))
    for world in filter(None, args.worlds.split(",")):
        for name, knobs in WORLDS.items():
            if wanted and name not in wanted:
                continue
            n = args.centers
            text = knobs.format(n=n, n1=n - 1, tenth=max(n // 10, 2))
            given = ",".join(filter(None, [text, f"centers={n}", f"seed={world}"]))
            drawn = DRAWN.get(name)
            yield name, drawn(n, int(world)) if drawn else abps.load(f"icu-synthetic:{given}"), int(world)


def continuum(n: int, world: int) -> abps.Federation:
    """A severe world in which no two centers have the same risk: it varies along a few directions."""
    people = population_of(IcuSynthetic(heterogeneity=4, case_mix=0.65, centers=n, seed=world))
    random = np.random.default_rng(world)
    ways = random.standard_normal((DIRECTIONS, people.own.shape[1]))
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    places = random.standard_normal((n, DIRECTIONS))
    own = (places - places.mean(axis=0)) @ ways * (4 * UNIT_RISK_SPREAD / np.sqrt(DIRECTIONS))
    rows, _ = draw_with_risk(replace(people, own=own), world)
    rows = rows.drop("careunit", "admission_year")
    return abps.federation(rows, label="died", center="center", patient="patient")


def sicker(n: int, world: int) -> abps.Federation:
    """A world in which all centers are alike, but in one of usual size many more patients die."""
    random = np.random.default_rng(world)
    sizes = random.lognormal(5.0, 1.0, n).astype(int) + 20
    center = np.repeat(np.arange(n), sizes)
    x = random.standard_normal((len(center), 8))
    odds = x @ random.normal(0.0, 0.6, 8) - 2.5 + 4.0 * (center == np.argsort(sizes)[3 * n // 4])
    died = random.random(len(odds)) < 1 / (1 + np.exp(-odds))
    columns = {f"x{k}": each for k, each in enumerate(x.T)} | {
        "died": died.astype(int),
        "center": center.astype(str),
    }
    return abps.federation(pl.DataFrame(columns), label="died", center="center")


#: Worlds that the generator has no knob for.
DRAWN = {"continuum": continuum, "one sicker center": sicker}


def without(part: str | None) -> AbstractContextManager[Any]:
    """abps-plus without one of its parts."""
    return patch.object(*PARTS[part]) if part else nullcontext()


def measured(
    federation: abps.Federation, method: str, seed: int, folds: bool
) -> tuple[tuple[float, ...], abps.Run]:
    """The measures of one run, and the run; method: a name, perhaps with settings after a colon.  folds:
    whether it is cross-fitted."""
    name, _, words = method.partition(":")
    settings = dict(word.split("=") for word in words.split("+")) if words else {}
    model = None if name in ("abps-plus", "local-best", "pooled-best") else "gam"
    with without(settings.pop("without", None)):
        config = configure(name, ({} if model is None else {"model": model}) | settings)
        run = cross_validate(federation, config, seed) if folds else abps.simulate(federation, config, seed)
    rows = run.predictions()
    y, p = rows["y"].to_numpy(), np.clip(rows["probability"].to_numpy().astype(float), 1e-6, 1 - 1e-6)
    z = np.log(p / (1 - p))
    slope = LogisticRegression(C=np.inf).fit(z[:, None], y).coef_[0, 0]
    loss = -np.mean(np.where(y == 1, np.log(p), np.log(1 - p)))
    line = run.auroc.mean, float(loss), float(slope), run.bytes.all_vs_fedavg, float(run.rounds)
    return line, run


def over_patients(runs: Runs, last: str) -> dict[tuple[str, str], list[float]]:
    """By how much the method ``last`` leads every other one on a real federation, with intervals; how many
    hospitals were expected to gain by it, and how many did."""
    found = {}
    for (name, method), own in runs.items():
        if method == last or (name, last) not in runs:
            continue
        with_it = runs[name, last]
        frames = {"last": [run.row_scores for run in with_it], "other": [run.row_scores for run in own]}
        both = measures_of(frames, own[0].data.centers)  # type: ignore[arg-type]
        gain = average_gain(both.cells("last", "other"), fold_inflation(FOLDS))
        saved = both.mean_loss("other") - both.mean_loss("last")
        found[name, method] = [gain.estimate, *gain.interval()]
        if method == "local-best":
            expected = np.mean([run.partners.expected_better for run in with_it])
            found[name, method] += [float(expected), float((saved > 0).mean())]
    return found


def over_worlds(lines: Lines, last: str) -> dict[tuple[str, str], list[float]]:
    """The same for worlds."""
    leads = {
        key: np.array([lines[key[0], last][seed][0] - line[0] for seed, line in own.items()])
        for key, own in lines.items()
        if key[1] != last and own.keys() == lines.get((key[0], last), {}).keys()
    }
    found = {}
    for (name, method), own in leads.items():
        alike = [each for (_, other), each in leads.items() if other == method]
        freedom = sum(len(each) - 1 for each in alike)
        spread = np.sqrt(sum(((each - each.mean()) ** 2).sum() for each in alike) / max(freedom, 1))
        half = student.ppf(0.975, freedom) * spread / np.sqrt(len(own)) if freedom else np.inf
        found[name, method] = [own.mean(), own.mean() - half, own.mean() + half]
    return found


def kept_lines(file: Path) -> tuple[Lines, dict[tuple[str, str], list[float]]]:
    """What a CSV has: lines, and leads."""
    lines, leads = defaultdict[tuple[str, str], dict[str, tuple[float, ...]]](dict), {}
    with file.open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            key = row["federation"], row["method"]
            if row["seed"] == "mean":
                leads[key] = [float(row[name]) for name in LEAD if row[name]]
            else:
                lines[key][row["seed"]] = tuple(float(row[name]) for name in MEASURES)
    return lines, leads


def main() -> None:
    """Run, write the CSV, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the real federations")
    parser.add_argument("--tables", type=Path, help="folder of tables with columns event, center, patient")
    parser.add_argument("--worlds", default="", help="seeds of synthetic worlds, e.g. 8101,8102")
    parser.add_argument("--centers", type=int, default=230, help="centers of a synthetic world")
    parser.add_argument("--seeds", default="11,22", help="repeats of a real federation, each five folds")
    parser.add_argument("--methods", default="local-best,pooled-best,glm-exact,fedavg,abps-plus")
    parser.add_argument("--only", default="", help="federations by name, with commas")
    parser.add_argument("--keep", action="store_true", help="keep what the CSV has of other runs")
    parser.add_argument("--out", type=Path, default=Path("flagship.csv"))
    args = parser.parse_args()
    methods = args.methods.split(",")
    lines, leads = kept_lines(args.out) if args.keep else (defaultdict(dict), {})
    runs: Runs = defaultdict(list)
    again = set[tuple[str, str]]()
    for name, federation, seed in federations(args):
        real = name not in WORLDS
        for method in methods:
            line, run = measured(federation, method, seed, real)
            if (name, method) not in again:
                again.add((name, method))
                lines[name, method].clear()
            lines[name, method][str(seed)] = line
            if real:
                runs[name, method].append(replace(run, artifacts=RunArtifacts(scores=run.row_scores)))
            print(f"{name} {seed} {method}: {line[0]:.4f}", file=sys.stderr)
    leads |= over_patients(runs, methods[-1]) or over_worlds(lines, methods[-1])
    write(args.out, lines, leads)
    print_table(lines, list(dict.fromkeys(method for _, method in lines)))


def write(out: Path, lines: Lines, leads: dict[tuple[str, str], list[float]]) -> None:
    """The CSV."""
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("federation", "seed", "method", *MEASURES, *LEAD))
        for (name, method), own in lines.items():
            for seed, line in own.items():
                writer.writerow((name, seed, method, *(f"{v:.5g}" for v in line), *[""] * len(LEAD)))
        for (name, method), own in lines.items():
            mean, lead = np.mean(list(own.values()), axis=0), leads.get((name, method), [])
            numbers = [*(f"{v:.5g}" for v in mean), *(f"{v:.4f}" for v in lead)]
            writer.writerow((name, "mean", method, *numbers, *[""] * (len(LEAD) - len(lead))))


def print_table(lines: Lines, methods: list[str]) -> None:
    """Means over seeds: AUROC, log-loss and slope; all bytes of the last method."""
    print("| federation | " + " | ".join(methods) + " | bytes of the last |")
    print("|---" * (len(methods) + 2) + "|")
    for name in dict.fromkeys(key for key, _ in lines):
        found = [list(lines[name, method].values()) if (name, method) in lines else [] for method in methods]
        means = [np.mean(each, axis=0) if each else None for each in found]
        cells = ("–" if each is None else f"{each[0]:.3f} {each[1]:.3f} {each[2]:.2f}" for each in means)
        bytes_of_last = "–" if means[-1] is None else f"{means[-1][3]:.4f}×"
        print(f"| {name} | " + " | ".join(cells) + f" | {bytes_of_last} |")


if __name__ == "__main__":
    main()
