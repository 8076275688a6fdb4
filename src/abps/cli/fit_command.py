"""``abps fit``: the final models, one folder per center."""

from __future__ import annotations

import json

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from abps.cli import options
from abps.cli.check_command import announce
from abps.fitted.card import area_words, decimal, estimate_words
from abps.fitted.fit import fit as fit_models
from abps.fitted.handover import check_new, write_models
from abps.methods.settings import configure


def fit(
    method: options.Method,
    out: options.Out,
    columns: options.DataOptions,
    data: options.Data = "icu-synthetic",
    seed: options.Seed = 11,
    rounds: options.Rounds = None,
    model: options.Model = None,
    set_: options.Settings = None,
    subgroups: options.Subgroups = "",
    leave_centers_out: options.LeaveCentersOut = 0,
    as_json: options.Json = False,
) -> None:
    """Train each hospital's final model on all rows and write it with its model card.

    Every hospital gets a folder: weights, codebook, recalibration, thresholds, model.onnx (with abps[onnx]),
    card.html and card.md. How good they are is measured first, on rows that they had not seen.

    Example: abps fit --method abps-plus --data stays.csv --label died --center hospital --out models
    """
    config = configure(method, options.settings(set_, model), rounds)
    check_new(out)
    federation = columns.federation(data)
    announce(federation.notes, columns.strict)
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task(method, total=config.stop.rounds)
        fitted = fit_models(
            federation,
            config,
            seed,
            parts=options.split(subgroups),
            leave_out=leave_centers_out,
            progress=lambda t, _most, _value: bar.update(task, completed=t),
            name=method,
        )
    folders = write_models(fitted, out)
    overall, found = fitted.overall, fitted.overall.measures
    if as_json:
        print(
            json.dumps(
                {
                    "method": method,
                    "seed": seed,
                    "folders": {center: str(path) for center, path in folders.items()},
                    "auroc": overall.area.value if overall.area.told else None,
                    "events": overall.events,
                    "slope": overall.calibration.slope.value if overall.calibration.slope else None,
                    **({"measures": {name: m.value for name, m in found.items()}} if found else {}),
                }
            )
        )
        return
    told = Console(highlight=False, markup=False, soft_wrap=True)
    told.print(f"{len(folders)} models in {out}, a folder for each center")
    told.print(f"test rows of all centers: {overall.rows:,}, events {overall.events:,}")
    if found:
        told.print("; ".join(f"{name} {decimal(m.value)}" for name, m in found.items()))
    else:
        told.print(f"AUROC {area_words(overall.area)}; slope {estimate_words(overall.calibration.slope)}")
    first = next(iter(folders.values()))
    told.print(f"read {first}/card.html, then: abps predict --model {first} --data new.csv --out p.parquet")
