"""A request as ``study.toml``: what ``abps compare --config`` reads, under the names of its options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from abps.data.roles import Roles
from abps.data.synthetic.builtin import is_builtin
from abps.study.plan import Plan


def options_of(plan: Plan) -> dict[str, Any]:
    """The options that ask for a plan; where runs are computed is not among them."""
    request = plan.request
    first = request.sources[0]
    usual = vars(Roles("", ""))
    roles = {} if first.roles is None else vars(first.roles)
    asked: dict[str, Any] = {
        "data": [source.data for source in request.sources],
        **{role: value for role, value in roles.items() if value != usual[role]},
        "min_stays": first.min_stays,
        "methods": list(request.methods),
        "seeds": list(request.seeds),
        "rounds": request.rounds,
        "folds": next((run.folds for run in plan.runs), None) or 1,
        "references": bool(request.references),
        "attack": request.attack,
        "tune": bool(request.tune),
        "tune_seeds": list(request.tune),
        "subgroups": list(request.subgroups),
        "set": dict(request.settings),
        "vary": {name: list(values) for name, values in request.vary.items()},
    }
    return {name: value for name, value in asked.items() if value not in (None, "", [], (), {})}


def as_toml(options: Mapping[str, Any]) -> str:
    """Options as TOML; those with a name and a value each are tables, and come last."""
    tables = {name: value for name, value in options.items() if isinstance(value, Mapping)}
    lines = [f"{name} = {_value(value)}" for name, value in options.items() if name not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_value(str(key))} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    plain = value if isinstance(value, bool | int | float | str) else str(value)
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")


def study_toml(plan: Plan) -> str:
    """The file beside a study."""
    head = "# What this study asked for. Again: abps compare --config study.toml --out NEW-FOLDER\n"
    if any(source.roles is None and not is_builtin(source.data) for source in plan.request.sources):
        head += "# The data were given in Python; put the file and its columns in the place of `data`.\n"
    return head + as_toml(options_of(plan))
