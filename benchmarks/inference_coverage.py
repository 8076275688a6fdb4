"""How often intervals hold the truth, and how often claims are false, in worlds whose truth is known.

    python benchmarks/inference_coverage.py --csv coverage.csv     # all worlds, about half an hour
    python benchmarks/inference_coverage.py --worlds "null;lda null" --draws 300

Every world makes patients, trains or perturbs models in five folds and several repeats, and hands the rows'
scores to the same functions as a study. Three kinds of worlds:

* ``scores``: scores are drawn with a true gain per hospital, training runs that shift all hospitals or one,
  and patients who keep their peculiarity over the repeats.
* ``lda``: class means are estimated from training rows, alone or from all hospitals, so that luck of the
  training data is real. True AUROCs have a closed form, and fresh training sets give the expectation.
* ``logit``: logistic regressions on skewed and binary features, each hospital's own or drawn towards that of
  all; hospitals differ in coefficients, case mix and event rate. Truth by many further patients.

Every world has further hospitals, drawn like those of the study: their gains are what "the next hospital" is
judged by.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.special import expit, ndtr, ndtri

from abps.core import streams
from abps.evaluate.hospitals import hospital_gains
from abps.evaluate.inference import Scope, average_gain, fold_inflation
from abps.evaluate.paired import ScoredRows, auroc_values, paired_cells
from abps.evaluate.verdicts import HospitalVerdict, alpha_at_look, hospital_verdicts

FOLDS = 5

#: Further patients of a hospital that decide its expected AUROC, and that of the models at hand,
#: where the sign of a small gain counts.
FRESH, MANY = 1500, 12000


@dataclass(frozen=True)
class World:
    """One setting. events: median events of a hospital.  gain, spread: of true gains between hospitals.

    run, run_center: standard deviation of what one training run adds at all hospitals, and at one.
    kind: scores, lda or logit; where models are trained ``spread`` is that of the hospitals' coefficients.
    stays: rows per patient.  law: of true gains: normal, heavy (Student's t with 3 degrees of freedom), two
    (hospitals that gain 0.05 more and hospitals that gain 0.05 less), skew (few that lose much).  pooled: the
    method trains one model for all instead of mixing a hospital's own with that of all.
    """

    name: str
    centers: int = 40
    events: float = 25.0
    gain: float = 0.03
    spread: float = 0.03
    run: float = 0.006
    run_center: float = 0.01
    repeats: int = 3
    kind: str = "scores"
    null: bool = False
    features: int = 8
    stays: int = 1
    law: str = "normal"
    pooled: bool = False


WORLDS = [
    World("null", gain=0.0, spread=0.0),
    World("null, one repeat", gain=0.0, spread=0.0, repeats=1),
    World("small gain", gain=0.01),
    World("gain", gain=0.03),
    World("gain, one repeat", gain=0.03, repeats=1),
    World("large gain", gain=0.08),
    World("no gain on average", gain=0.0, spread=0.03),
    World("loss", gain=-0.03),
    World("heavy tails", gain=0.01, spread=0.02, law="heavy"),
    World("two kinds of hospitals", gain=0.01, spread=0.01, law="two"),
    World("few lose much", gain=0.02, spread=0.04, law="skew"),
    World("15 hospitals", centers=15),
    World("6 large hospitals", centers=6, events=120.0),
    World("230 small hospitals", centers=230, events=8.0, gain=0.01),
    World("unstable training", run=0.02),
    World("three stays a patient", stays=3, events=40.0),
    World("lda null", kind="lda", null=True, spread=0.3),
    World("lda, hospitals alike", kind="lda", spread=0.1),
    World("lda, hospitals differ", kind="lda", spread=0.5),
    World("lda, one model for all", kind="lda", spread=0.5, events=60.0, pooled=True),
    World("lda, one repeat", kind="lda", spread=0.3, repeats=1),
    World("lda, 100 small hospitals", kind="lda", spread=0.3, centers=100, events=10.0),
    World("lda, 10 hospitals, many features", kind="lda", spread=0.3, centers=10, features=25),
    World("logit, hospitals differ", kind="logit", spread=0.3, centers=30, features=6),
    World(
        "logit, one model for all", kind="logit", spread=0.5, centers=20, events=60.0, features=6, pooled=True
    ),
]


@dataclass(frozen=True, eq=False)
class Draw:
    """One simulated study. truth: (C,) expected gains.  here: (C,) gains of the models that were trained.
    population: expected gain of the population.  further: (K,) gains of further hospitals."""

    rows: ScoredRows
    a: np.ndarray
    b: np.ndarray
    truth: np.ndarray
    here: np.ndarray
    population: float
    further: np.ndarray


def patients_of(rng, world):
    """Rows of all hospitals: center, y, patient; at least six events and six others a hospital."""
    events = np.maximum(6, np.exp(rng.normal(np.log(world.events), 0.7, world.centers))).astype(int)
    others = np.maximum(6, (events * np.exp(rng.normal(np.log(7.0), 0.4, world.centers))).astype(int))
    center = np.concatenate([np.repeat(np.arange(world.centers), n) for n in (events, others)])
    y = np.repeat([1.0, 0.0], [events.sum(), others.sum()])
    person = np.empty(len(y), np.int64)
    for c in range(world.centers):
        for label in (0.0, 1.0):
            mine = np.flatnonzero((center == c) & (y == label))
            person[mine] = mine[(np.arange(len(mine)) // world.stays) * world.stays]
    return center, y, person


def folds_of(rng, center, y, person, repeats):
    """(repeats, rows) folds: one per patient, dealt out in turn within hospital and class."""
    whom, first, at = np.unique(person, return_index=True, return_inverse=True)
    result = np.empty((repeats, len(y)), np.int64)
    for r in range(repeats):
        order = np.lexsort((rng.random(len(whom)), y[first], center[first]))
        fold = np.empty(len(whom), np.int64)
        fold[order] = np.arange(len(whom)) % FOLDS
        result[r] = fold[at]
    return result


def noise_of(rng, person, stays, width=None):
    """Standard normal noise per row; with several stays half of its variance is the patient's."""
    shape = (len(person),) if width is None else (len(person), width)
    own = rng.normal(size=shape)
    return own if stays == 1 else (own + rng.normal(size=shape)[person]) / np.sqrt(2.0)


def true_gains(rng, world, count):
    """(count,) true gains about their mean."""
    if world.law == "heavy":
        return world.spread * rng.standard_t(3, count)
    if world.law == "skew":
        return world.spread * (1.0 - rng.exponential(size=count))
    apart = rng.choice([-0.05, 0.05], count) if world.law == "two" else 0.0
    return apart + rng.normal(0, world.spread, count)


def draw_scores(rng, world, center, y, person, fold):
    """Scores with a known AUROC per hospital and run, and an intercept of every model's own."""
    C, runs = world.centers, world.repeats * FOLDS
    base = np.clip(rng.normal(0.78, 0.04, C), 0.6, 0.9)
    truth, further = np.split(world.gain + true_gains(rng, world, 2 * C), 2)
    common, local = rng.normal(0, world.run, (2, runs, 1)), rng.normal(0, world.run_center, (2, runs, C))
    area = np.clip(np.stack([base + truth, base])[:, None] + common + local, 0.51, 0.985)
    signal = np.sqrt(2.0) * ndtri(area)  # (2, runs, C)
    shared, own = noise_of(rng, person, world.stays), [noise_of(rng, person, world.stays) for _ in range(2)]
    scores = [[], []]
    for r in range(world.repeats):
        run = r * FOLDS + fold[r]
        for k in range(2):
            luck = rng.normal(size=len(y))
            z = np.sqrt(0.6) * shared + np.sqrt(0.3) * own[k] + np.sqrt(0.1) * luck
            scores[k].append(signal[k][run, center] * y + z + rng.normal(0, 1, runs)[run])
    here = (area[0] - area[1]).mean(axis=0)
    return *(np.concatenate(s) for s in scores), truth, here, world.gain, further


def lda_models(m1, m0, size, noise, world):
    """(…, C, p) coefficients of the method and of its rival: class means of all hospitals mixed with a
    hospital's own (or one for all), against its own alone; in a null world both mix alike and differ by
    their noise."""
    own = m1 - m0
    weight = size / size.sum(axis=-1, keepdims=True)
    pooled = (weight[..., None] * own).sum(axis=-2, keepdims=True)
    share = 0.0 if world.pooled else (size / (size + 40.0))[..., None]
    mixed = share * own + (1.0 - share) * pooled
    return mixed + noise[0], (mixed if world.null else own) + noise[1]


def lda_area(w, theta):
    """(…, C) true AUROC of linear scores where classes are normal with means 0 and theta."""
    return ndtr((w * theta).sum(axis=-1) / np.sqrt(2.0) / np.linalg.norm(w, axis=-1))


def draw_lda(rng, world, center, y, person, fold):
    """Models that are trained on the rows outside the fold, and the truth about them."""
    C, p, seed_noise = world.centers, world.features, 0.03
    middle = rng.normal(size=p)
    middle *= 1.1 / np.linalg.norm(middle)
    theta = middle + rng.normal(0, world.spread / np.sqrt(p) * 1.5, (C, p))
    x = noise_of(rng, person, world.stays, p) + y[:, None] * theta[center]
    scores, here = [[], []], []
    for r in range(world.repeats):
        got = np.empty((2, len(y)))
        for k in range(FOLDS):
            out = fold[r] == k
            n1, n0 = (np.bincount(center[~out & (y == v)], minlength=C) for v in (1, 0))
            m1, m0 = np.zeros((C, p)), np.zeros((C, p))
            np.add.at(m1, center[~out & (y == 1)], x[~out & (y == 1)])
            np.add.at(m0, center[~out & (y == 0)], x[~out & (y == 0)])
            noise = seed_noise * rng.normal(size=(2, 1, p))
            models = lda_models(m1 / n1[:, None], m0 / n0[:, None], n1.astype(float), noise, world)
            here.append(lda_area(models[0], theta) - lda_area(models[1], theta))
            for j in range(2):
                got[j, out] = (x[out] * models[j][center[out]]).sum(axis=1) + rng.normal()
        for j in range(2):
            scores[j].append(got[j])
    n1, n0 = (np.bincount(center[y == v], minlength=C) for v in (1, 0))
    truth = expected_lda(rng, world, theta, n1, n0, seed_noise)
    many = middle + rng.normal(0, world.spread / np.sqrt(p) * 1.5, (50, C, p))
    population = float(np.mean([expected_lda(rng, world, t, n1, n0, seed_noise, 4).mean() for t in many]))
    pick = rng.permutation(C)[: max(C // 4, 2)]
    other = theta.copy()
    other[pick] = many[0, pick]
    further = expected_lda(rng, world, other, n1, n0, seed_noise)[pick]
    return *(np.concatenate(s) for s in scores), truth, np.mean(here, axis=0), population, further


def expected_lda(rng, world, theta, n1, n0, seed_noise, draws=200):
    """(C,) expected gain over fresh training sets of four fifths of the rows: class means are normal.

    Rows of one patient share half of their variance, which leaves fewer independent rows.
    """
    C, p = theta.shape
    fewer = (1.0 + world.stays) / 2.0 if world.stays > 1 else 1.0
    m1 = theta + rng.normal(size=(draws, C, p)) * np.sqrt(fewer / (0.8 * n1))[:, None]
    m0 = rng.normal(size=(draws, C, p)) * np.sqrt(fewer / (0.8 * n0))[:, None]
    noise = seed_noise * rng.normal(size=(2, draws, 1, p))
    models = lda_models(m1, m0, np.broadcast_to(0.8 * n1, (draws, C)), noise, world)
    return (lda_area(models[0], theta) - lda_area(models[1], theta)).mean(axis=0)


def logit_rows(rng, beta, size, p):
    """Rows of hospitals with ``size`` rows each: x (C, n, p) with an intercept, skewed and binary columns and
    another case mix at every hospital; y (C, n)."""
    C, mix = len(beta), 0.5 * np.sin(40.0 * beta[:, 1:])  # a hospital's own, whatever rows are drawn
    z = rng.normal(size=(C, size, p - 1)) + 0.5 * rng.normal(size=(C, size, 1)) + mix[:, None]
    z[..., 0] = np.exp(0.7 * z[..., 0]) - 1.3
    z[..., 1::2] = z[..., 1::2] > 0.5
    x = np.concatenate([np.ones((C, size, 1)), z], axis=2)
    return x, (rng.random((C, size)) < expit((x * beta[:, None]).sum(axis=2))).astype(float)


def ridge_logit(x, y, use, penalty, towards, steps=6):
    """(C, p) penalised logistic fits of the rows in use, drawn towards coefficients."""
    b = np.broadcast_to(towards, (len(x), x.shape[2])).copy()
    for _ in range(steps):
        mean = expit((x * b[:, None]).sum(axis=2))
        pull = penalty * (b - towards)
        gradient = np.einsum("cnp,cn->cp", x, use * (y - mean)) - pull
        information = np.einsum("cnp,cnq,cn->cpq", x, x, use * mean * (1 - mean)) + penalty * np.eye(
            x.shape[2]
        )
        b = b + np.clip(np.linalg.solve(information, gradient[..., None])[..., 0], -2, 2)
    return b


def logit_models(rng, x, y, use, world):
    """(2, C, p) the method and its rival."""
    own = ridge_logit(x, y, use, 1.0, 0.0)
    flat = (1, -1, x.shape[2])
    common = ridge_logit(x.reshape(flat), y.reshape(1, -1), use.reshape(1, -1), 1.0, 0.0)
    mixed = common + 0.0 * own if world.pooled else ridge_logit(x, y, use, 8.0, common)
    return np.stack([mixed, own]) + 0.02 * rng.normal(size=(2, 1, x.shape[2]))


def logit_areas(models, x, y):
    """(…, C) true AUROC by many further patients."""
    score = np.einsum("...cp,cnp->...cn", models, x)
    rank = score.argsort(axis=-1).argsort(axis=-1)
    n1 = y.sum(axis=1)
    return ((rank * y).sum(axis=-1) - n1 * (n1 - 1) / 2) / (n1 * (y.shape[1] - n1))


def expected_logit(rng, world, beta, sizes, draws=10):
    """(C,) expected gains over fresh training sets of four fifths of the rows."""
    x, y = logit_rows(rng, beta, FRESH, world.features)
    gains = []
    for _ in range(draws):
        tx, ty = logit_rows(rng, beta, int(0.8 * sizes.max()), world.features)
        use = (np.arange(tx.shape[1]) < 0.8 * sizes[:, None]).astype(float)
        areas = logit_areas(logit_models(rng, tx, ty, use, world), x, y)
        gains.append(areas[0] - areas[1])
    return np.mean(gains, axis=0)


def draw_logit(rng, world):
    """One study: its rows, scores of both methods, and the truth."""
    C, p = world.centers, world.features
    sizes = np.maximum(60, np.exp(rng.normal(np.log(8 * world.events), 0.7, C))).astype(int).clip(max=1500)

    def coefficients():
        middle = np.array([-2.0, 0.5, 0.6, -0.5, 0.4, 0.3, 0.2])[:p]
        return middle + rng.normal(0, world.spread, (C, p)) * np.array([1.0] + [0.6] * (p - 1))

    beta = coefficients()
    x, y = logit_rows(rng, beta, sizes.max(), p)
    there = np.arange(x.shape[1]) < sizes[:, None]
    center, y_rows = np.nonzero(there)[0], y[there]
    person = np.arange(len(center))
    fold = folds_of(rng, center, y_rows, person, world.repeats)
    wide = np.full((world.repeats, *there.shape), -1)
    wide[:, there] = fold
    far = logit_rows(rng, beta, MANY, p)
    scores, here = [[], []], []
    for r in range(world.repeats):
        got = np.empty((2, *there.shape))
        for k in range(FOLDS):
            models = logit_models(rng, x, y, (there & (wide[r] != k)).astype(float), world)
            areas = logit_areas(models, *far)
            here.append(areas[0] - areas[1])
            out = wide[r] == k
            got[:, out] = np.einsum("jcp,cnp->jcn", models, x)[:, out]
        for j in range(2):
            scores[j].append(got[j][there])
    truth = expected_logit(rng, world, beta, sizes)
    others = [expected_logit(rng, world, coefficients(), sizes, 3) for _ in range(3)]
    pick = rng.permutation(C)[: max(C // 4, 2)]
    mixed = np.where(np.isin(np.arange(C), pick)[:, None], coefficients(), beta)
    further = expected_logit(rng, world, mixed, sizes)[pick]
    made = *(np.concatenate(s) for s in scores), truth, np.mean(here, axis=0), float(np.mean(others)), further
    return center, y_rows, person, fold, made


def draw(rng, world):
    """One study of a world."""
    if world.kind == "logit":
        center, y, person, fold, made = draw_logit(rng, world)
    else:
        center, y, person = patients_of(rng, world)
        fold = folds_of(rng, center, y, person, world.repeats)
        made = (draw_lda if world.kind == "lda" else draw_scores)(rng, world, center, y, person, fold)
    row = np.tile(np.arange(len(y)), world.repeats)
    run = (np.arange(world.repeats)[:, None] * FOLDS + fold).ravel()
    rows = ScoredRows(row, person[row], center[row], run, y[row], world.centers, world.repeats * FOLDS)
    return Draw(rows, *made)


def studied(world, draws, seed):
    """Coverage, false positives and calibration of one world from simulated studies."""
    rng = streams.generator(seed, "generate", center=streams.center_id(world.name))
    names = "these like next called width up gained words right expected shares"
    found = {name: [] for name in names.split()}
    inflation = fold_inflation(FOLDS)
    for _ in range(draws):
        study = draw(rng, world)
        cells = paired_cells(study.rows, auroc_values(study.rows, {"a": study.a, "b": study.b}), "a", "b")
        gain = average_gain(cells, inflation)
        note(found, study, cells, gain, hospital_gains(cells, inflation, gain.runs))
    return summary(world, found)


def note(found, study, cells, gain, each):
    """Add one study to what was found."""
    found["these"].append(abs(gain.estimate - study.truth.mean()) <= gain.half_width())
    half = gain.half_width(scope=Scope.LIKE_THESE)
    found["like"].append(abs(gain.estimate - study.population) <= half)
    low, high = each.further.interval()
    found["next"].append(np.mean((low[0] <= study.further) & (study.further <= high[0])))
    found["called"].append(gain.p() < 0.05)
    found["width"].append(high[0] - low[0])
    found["up"].append(each.model.above(0.0))
    found["gained"].append(study.here > 0)
    words = hospital_verdicts(each, cells)
    found["words"].append(words)
    claims = [k for k, w in enumerate(words) if w in (HospitalVerdict.GAINS, HospitalVerdict.LOSES)]
    sign = np.array([1.0 if words[k] is HospitalVerdict.GAINS else -1.0 for k in claims])
    right = sign * study.here[claims] > 0
    found["right"].extend(right)
    found["expected"].extend(sign * study.truth[claims] > 0)
    found["shares"].append(float((~right).mean()) if claims else 0.0)


def summary(world, found):
    """The figures of one world; calibration is the largest gap in tenths with a hundred hospitals or more."""
    up, gained = np.concatenate(found["up"]), np.concatenate(found["gained"])
    gaps = []
    tenth = np.minimum((10 * up).astype(int), 9)
    for k in range(10):
        part = tenth == k
        if part.sum() >= 100:
            gaps.append(abs(up[part].mean() - gained[part].mean()))
    words = [word for each in found["words"] for word in each]
    return {
        "world": world.name,
        "these": float(np.mean(found["these"])),
        "like": float(np.mean(found["like"])),
        "next": float(np.mean(found["next"])),
        "called": float(np.mean(found["called"])),
        "next_width": float(np.mean(found["width"])),
        "claims": len(found["right"]) / len(words),
        "probably": sum(w.value.startswith("probably") for w in words) / len(words),
        "false_claims": float(1.0 - np.mean(found["right"])) if found["right"] else 0.0,
        "false_on_average": float(1.0 - np.mean(found["expected"])) if found["expected"] else 0.0,
        "false_discovery_rate": float(np.mean(found["shares"])),
        "calibration_gap": float(max(gaps)) if gaps else float("nan"),
        "claimed": len(found["right"]),
        "up": [float(v) for v in np.bincount(tenth, weights=up, minlength=10)],
        "gained": [float(v) for v in np.bincount(tenth, weights=gained, minlength=10)],
        "count": [int(v) for v in np.bincount(tenth, minlength=10)],
    }


#: Sums by tenths of P(gain): what was said, how often it was so, and hospitals.
TENTHS = ("up", "gained", "count")


def looked(draws, seed, counts=(1, 2, 3, 5)):
    """How often a study without a true gain is called a difference at any of several looks."""
    rng = streams.generator(seed, "generate", center=streams.center_id("looks"))
    world = replace(WORLDS[0], repeats=max(counts))
    fixed = spent = 0
    for _ in range(draws):
        study = draw(rng, world)
        p = []
        for repeats in counts:
            part = study.rows.run < repeats * FOLDS
            r = study.rows
            rows = ScoredRows(
                r.row[part],
                r.patient[part],
                r.center[part],
                r.run[part],
                r.y[part],
                r.centers,
                repeats * FOLDS,
            )
            values = auroc_values(rows, {"a": study.a[part], "b": study.b[part]})
            p.append(average_gain(paired_cells(rows, values, "a", "b"), fold_inflation(FOLDS)).p())
        fixed += min(p) < 0.05
        spent += any(value < alpha_at_look(k + 1) for k, value in enumerate(p))
    return {"repeats": " ".join(map(str, counts)), "fixed": fixed / draws, "spent": spent / draws}


#: The numbers of a world that are stored, in this order.
COLUMNS = (
    "these", "like", "next", "next_width", "called", "claims", "probably", "false_claims", "false_on_average",
    "false_discovery_rate", "calibration_gap", "claimed",
)  # fmt: skip


#: Claims to hospitals that are false about the models at hand, and on average over training sets.
FALSE = ("false_claims", "false_on_average")


def stored_rows(path):
    """Stored results, one per world, in the worlds' order."""
    with path.open(newline="") as file:
        stored = {line["world"]: line for line in csv.DictReader(file)}
    return [stored[world.name] for world in WORLDS if world.name in stored]


def table(path):
    """Stored results as Markdown, in per cent."""
    head = "| world | studies | these | like these | next | found | clear | false (on average) | FDR |"
    lines = [head, "|---" * 9 + "|"]
    for line in stored_rows(path):
        cells = [line["world"], line["draws"]]
        cells += [f"{100 * float(line[name]):.0f}" for name in ("these", "like", "next", "called", "claims")]
        cells.append("{:.1f} ({:.1f})".format(*(100 * float(line[name]) for name in FALSE)))
        cells.append(f"{100 * float(line['false_discovery_rate']):.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def said_and_seen(path):
    """P(gain) by tenths over all stored worlds, said and seen, as two lines of Markdown."""
    rows = stored_rows(path)
    sums = {w: [sum(float(line[f"{w}_{k}"]) for line in rows) for k in range(10)] for w in TENTHS}
    shares = {w: [f"{v / max(n, 1):.2f}" for v, n in zip(sums[w], sums["count"])] for w in ("up", "gained")}
    return [f"| {word} | {' | '.join(shares[w])} |" for word, w in (("said", "up"), ("seen", "gained"))]


#: The questions that intervals answer, by their columns.
QUESTIONS = {"these": "these hospitals", "like": "hospitals like these", "next": "the next hospital"}


def overall(path):
    """What all stored worlds say together, as two lines."""
    rows = stored_rows(path)
    studies, claims = ([int(line[name]) for line in rows] for name in ("draws", "claimed"))
    parts = []
    for name, words in QUESTIONS.items():
        cover = [100 * float(line[name]) for line in rows]
        mean = sum(c * n for c, n in zip(cover, studies)) / sum(studies)
        parts.append(f"*{words}* {mean:.0f} % (single worlds {min(cover):.0f} to {max(cover):.0f} %)")
    wrong = sum(n * float(line["false_claims"]) for n, line in zip(claims, rows)) / sum(claims)
    rate = max(float(line["false_discovery_rate"]) for line in rows)
    return [
        f"Covered over these {sum(studies):,} studies: {', '.join(parts)}.",
        f"Of {sum(claims):,} claims to hospitals {100 * wrong:.1f} % are false; the false discovery rate is "
        f"at most {100 * rate:.1f} % in any world.",
    ]


def main() -> None:
    """The tables of docs/statistics.md; ``--csv`` adds a line per world to a file, ``--looks`` writes one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2031)
    parser.add_argument("--worlds", help="names, separated by semicolons; 'looks' for repeated looks")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--looks", type=Path, help="where to write the result of repeated looks")
    parser.add_argument("--table", type=Path, help="print the tables of stored results, and stop")
    options = parser.parse_args()
    if options.table is not None:
        print(*table(options.table), "", *overall(options.table), "", *said_and_seen(options.table), sep="\n")
        return
    wanted = options.worlds.split(";") if options.worlds else [*(w.name for w in WORLDS), "looks"]
    head = ["world", "draws", "seed", *COLUMNS, *(f"{w}_{k}" for w in TENTHS for k in range(10))]
    lines = [] if options.csv is None or options.csv.exists() else [head]
    for world in WORLDS:
        if world.name not in wanted:
            continue
        row = studied(world, options.draws, options.seed)
        numbers = [round(v, 5) for v in [*(row[c] for c in COLUMNS), *(v for w in TENTHS for v in row[w])]]
        lines.append([world.name, options.draws, options.seed, *numbers])
        print(world.name, *(f"{name} {row[name]:.3f}" for name in COLUMNS), flush=True)
        if options.csv is not None:
            with options.csv.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(lines)
            lines = []
    if "looks" in wanted:
        found = {"studies": options.draws, "seed": options.seed} | looked(options.draws, options.seed)
        print(found)
        if options.looks is not None:
            with options.looks.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([found, found.values()])


if __name__ == "__main__":
    main()
