"""Members that attack: what the honest centers of abps-plus lose.

    python benchmarks/attacks.py --data FOLDER --only GUSTO,NASS,dialysis --out attacks.csv
    python benchmarks/attacks.py --worlds 9401,9402 --only severe,continuum --add --out attacks.csv

A fifth of the centers attacks, in every repeat or world another one. Real federations are cross-fitted in
five folds, worlds have one split. Every line of the CSV is one federation and attack: the mean AUROC of the
honest centers, by how much it lies above that of the same centers without attackers, and the standard error
of that difference over repeats or worlds. Who sends no numbers (``nan``) is as good as absent: that line
shows what the others lose for want of the attackers' patients. ``late:`` is an attack that begins when
structure is fitted, ``made:`` one in which all attackers make up one kind of sum and say the truth otherwise.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from flagship import WORLDS, federations, without
from numpy.typing import NDArray
from scipy.stats import rankdata

import abps
from abps.core.streams import center_ids
from abps.data.prepare import Prepared
from abps.engine.crossvalidation import FOLDS
from abps.engine.simulate import shared_rows
from abps.lab.attacks import NAMES, attackers_of
from abps.methods import abps_plus
from abps.methods.settings import configure

#: The exchange in which structure begins to be fitted.
STRUCTURE = 9

#: Pairs of rows that a center needs for an AUROC of its own.
FEWEST_PAIRS = 20

#: Attacks on what is sent that may also begin late.
LATE = ("sign-flip", "scale", "random", "coefficient", "free-rider", "copy")


def together(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same noise for all attackers, of the size of their values."""
    noise = np.random.default_rng(0).standard_normal(values.shape[1:])
    return np.asarray(np.abs(values).mean() * np.broadcast_to(noise, values.shape))


def pushed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same push for all attackers, hidden in as much noise of each one's own."""
    noise = np.random.default_rng(1).standard_normal(values.shape)
    return np.asarray((together(values) + np.abs(values).mean() * noise) / np.sqrt(2.0))


def opposite(halves: NDArray[np.float64]) -> NDArray[np.float64]:
    """Second half scores that contradict the first."""
    first = halves.reshape(len(halves), 2, -1)[:, :1]
    return np.concatenate([first, -first], axis=1).reshape(halves.shape)


#: Sums that attackers may make up, and how.
MADE: dict[str, tuple[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    "made:scores": ("score", together),
    "made:push": ("score", pushed),
    "made:squares": ("squares", lambda values: 1e4 * values),
    "made:pairs": ("pair_scores", lambda values: 30 * values),
    "made:halves": ("halves", together),
    "made:alike": ("halves", pushed),
    "made:opposite": ("halves", opposite),
    "made:information": ("information", lambda values: 1e4 * values),
    "made:pull": ("pull", lambda values: 1e4 * values),
}


def making_up(attack: str, attackers: NDArray[np.bool_]) -> Any:
    """abps-plus with members that make up one kind of sum."""
    field, made = MADE[attack]
    honest = abps_plus.upload_values

    def upload_values(*args: Any) -> dict[str, NDArray[np.float64]]:
        values = dict(honest(*args))
        if field in values:
            values[field] = np.array(values[field], dtype=np.float64)
            values[field][attackers] = made(values[field][attackers])
        return values

    return patch.object(abps_plus, "upload_values", upload_values)


def honest_mean(
    parts: list[abps.Federation | Prepared], seed: int, settings: dict[str, str], attack: str, share: float
) -> float:
    """The mean AUROC of the centers that do not attack, over all parts (folds); the same ones in each."""
    names = parts[0].centers
    attackers = attackers_of(f"nan:share={share}", seed, center_ids(names)).who
    late, kind = attack.startswith("late:"), attack.removeprefix("late:")
    made = making_up(attack, attackers) if attack in MADE else nullcontext()
    how = f"{kind}:share={share},start={STRUCTURE if late else 1}" if attack and attack not in MADE else None
    counts = np.zeros((len(names), 2))
    for part in parts:
        with made:
            run = abps.simulate(part, configure("abps-plus", settings), seed, attack=how)
        rows = run.predictions().select("center", "y", "probability")
        for (name,), each in rows.partition_by("center", as_dict=True).items():
            counts[names.index(name)] += right_pairs(
                each["y"].to_numpy() == 1, each["probability"].to_numpy()
            )
    right, pairs = counts[~attackers & (counts[:, 1] >= FEWEST_PAIRS)].T
    return float(np.mean(right / pairs))


def right_pairs(event: NDArray[np.bool_], probability: NDArray[np.float64]) -> tuple[float, float]:
    """How many pairs of a row with an event and one without are in the right order, and how many pairs."""
    ranks, events = rankdata(probability), event.sum()
    return float(ranks[event].sum() - events * (events + 1) / 2), float(events * (~event).sum())


def main() -> None:
    """Run, write the CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the real federations")
    parser.add_argument("--tables", type=Path, help="folder of tables with columns event, center, patient")
    parser.add_argument("--worlds", default="", help="seeds of synthetic worlds, e.g. 9401,9402")
    parser.add_argument("--centers", type=int, default=60, help="centers of a synthetic world")
    parser.add_argument("--seeds", default="11", help="repeats of a real federation, each five folds")
    parser.add_argument("--only", default="", help="federations by name, with commas")
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--attacks", default=",".join((*NAMES, *(f"late:{name}" for name in LATE), *MADE)))
    parser.add_argument("--settings", default="robust=yes", help="e.g. robust=yes,robust=no,without=squares")
    parser.add_argument("--add", action="store_true", help="add to what the CSV has")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    attacks = args.attacks.split(",")
    means: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for name, federation, seed in federations(args):
        for setting in args.settings.split(","):
            words = dict([setting.split("=")])
            part = words.pop("without", None)
            parts: list[abps.Federation | Prepared] = [federation]
            if name not in WORLDS:
                parts = list(shared_rows(federation, seed, configure("abps-plus", words), FOLDS))
            with without(part):
                found = [honest_mean(parts, seed, words, attack, args.share) for attack in ("", *attacks)]
            means[name, setting].append(found)
            print(name, seed, setting, *(f"{each - found[0]:.3f}" for each in found), file=sys.stderr)
    with args.out.open("a" if args.add else "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if not args.add:
            writer.writerow(("federation", "settings", "attack", "honest", "gain", "standard_error"))
        for (name, setting), lines in means.items():
            table = np.array(lines)
            gain = table - table[:, :1]
            error = gain.std(axis=0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else gain[0] * np.nan
            columns = zip(("none", *attacks), table.mean(axis=0), gain.mean(axis=0), error, strict=True)
            writer.writerows((name, setting, a, *(f"{v:.4f}" for v in values)) for a, *values in columns)


if __name__ == "__main__":
    main()
