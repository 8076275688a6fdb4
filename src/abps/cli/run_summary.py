"""A run in a few numbers, on the terminal and for machines."""

from __future__ import annotations

from rich.table import Table

from abps.engine.result import Run


def summary(result: Run) -> dict[str, object]:
    """The numbers of a run that people ask for first."""
    content = result.to_json()
    return {
        "method": result.method,
        "seed": result.seed,
        "rounds": result.rounds,
        "centers": result.data.centers,
        "auroc": content["auroc"]["mean"],
        **{name: content[name] for name in ("outcome", "score", "measures") if name in content},
        "scored_centers": result.main.scored_centers,
        "at_best_validation": content["auroc" if result.score is None else "score"]["at_best_validation"],
        "auprc": content["auprc"]["mean"],
        "brier": content["brier"]["mean"],
        "bytes": content["bytes"],
        "cost_usd": result.cost_usd,
        "partners_mean": result.partners_mean,
        "rest": content["rest"],
        "seconds": result.seconds,
    }


def summary_table(result: Run) -> Table:
    """A run as a table for the terminal."""
    table = Table(title=f"{result.method} on {result.data.name}, seed {result.seed}", show_header=False)
    more = {name: each.mean for name, each in result.measures.items() if name != result.measure}
    more = more or {"AUPRC": result.auprc.mean, "Brier": result.brier.mean}
    all_bytes = result.bytes.all
    rows = [
        (
            "centers",
            f"{result.data.centers} ({result.main.scored_centers} scored), {result.data.rows:,} stays",
        ),
        ("rounds", str(result.rounds)),
        (f"{result.measure}, mean over centers", f"{result.main.mean:.3f}"),
        ("… at the best validation round", f"{result.main.at_best_validation:.3f}"),
        (", ".join(more), ", ".join(f"{value:.3f}" for value in more.values())),
        ("bytes, all in both directions", f"{all_bytes:,} = {result.bytes.all_vs_fedavg:.3g} × FedAvg"),
        ("… per center", f"{all_bytes / result.data.centers / 1000:.3g} kB"),
        ("egress cost", f"${result.cost_usd:.4f}"),
        ("partners per center and round", f"{result.partners_mean:.2f}"),
    ]
    if result.rest.share:
        causes = (
            f"{100 * result.rest.no_candidates:.1f} no candidates, "
            f"{100 * result.rest.all_full:.1f} all full, "
            f"{100 * result.rest.declined:.1f} declined, {100 * result.rest.budget:.1f} budget"
        )
        rows.append(("rest, % of center-rounds", f"{100 * result.rest.share:.1f} ({causes})"))
    rows.append(("seconds", f"{result.seconds:.1f}"))
    for name, value in rows:
        table.add_row(name, value)
    return table
