"""The built-in federations by name: ``icu-synthetic:heterogeneity=4,centers=60``.

A specification is a name, and after a colon the knobs to set: ``knob=value`` with commas between.
Knobs that are not set keep their defaults; lists are written with plus signs (``group_sizes=40+20``).
"""

from __future__ import annotations

import types
import typing
from dataclasses import fields
from typing import Any

import polars as pl

from abps.core.errors import RequestError, nearest
from abps.data.roles import Roles
from abps.data.synthetic.fedprox_synthetic import FedproxSynthetic
from abps.data.synthetic.icu import IcuSynthetic

#: name -> the dataclass whose fields are its knobs, and the roles of its columns.
_ICU = Roles(label="died", center="center", patient="patient", time="admission_year", group="careunit")
Knobs = IcuSynthetic | FedproxSynthetic
BUILTIN: dict[str, tuple[type[Knobs], Roles]] = {
    "icu-synthetic": (IcuSynthetic, _ICU),
    "fedprox-synthetic": (FedproxSynthetic, Roles(label="y", center="center")),
}


def is_builtin(spec: str) -> bool:
    """Whether a word names a built-in federation (rather than a file)."""
    return spec.partition(":")[0] in BUILTIN


def builtin_table(spec: str) -> tuple[pl.DataFrame, Roles]:
    """The table of a built-in federation and the roles of its columns."""
    knobs, roles = parse_builtin(spec)
    return knobs.generate(), roles


def parse_builtin(spec: str) -> tuple[Knobs, Roles]:
    """The knobs that a specification sets, and the roles of the table's columns."""
    name, _, settings = spec.partition(":")
    if name not in BUILTIN:
        raise RequestError(
            f"no built-in federation is called {name!r}{nearest(name, BUILTIN)}; "
            f"there are {', '.join(BUILTIN)}"
        )
    kind, roles = BUILTIN[name]
    hints = typing.get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    values: dict[str, Any] = {}
    for setting in filter(None, (part.strip() for part in settings.split(","))):
        knob, equals, text = (part.strip() for part in setting.partition("="))
        if knob not in known:
            raise RequestError(
                f"{name} has no knob {knob!r}{nearest(knob, known)}; its knobs are {', '.join(known)}"
            )
        if not equals or not text:
            raise RequestError(f"{name}: the knob {knob!r} has no value; write {knob}=VALUE")
        if knob in values:
            raise RequestError(f"{name}: the knob {knob!r} is set twice; set it once")
        values[knob] = _value(name, knob, text, hints[knob])
    return kind(**values), roles


def _value(name: str, knob: str, text: str, hint: Any) -> Any:
    """The text of a knob's value as the type that the knob has."""
    if isinstance(hint, types.UnionType):  # float | None: there is no way, and no need, to write None
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    try:
        if hint is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                text.lower()
            ]
        if typing.get_origin(hint) is tuple:
            return tuple(int(part) for part in text.split("+"))
        return hint(text)
    except (ValueError, KeyError):
        known = {bool: "true or false", int: "a whole number", float: "a number"}
        wanted = known.get(hint, "whole numbers with + between")
        raise RequestError(f"{name}: {knob}={text!r} is not {wanted}; write {knob}=VALUE") from None
