"""Configurations as data: every field of a method's configuration by its name.

Names are unique across a method's parts, so ``gamma`` is enough; ``selection.gamma`` works too.
"""

import dataclasses
import types
import typing
import warnings
from collections.abc import Mapping
from typing import Any, Final

from abps.core.errors import RequestError, nearest
from abps.methods.base import Method, Wire
from abps.methods.catalog import find
from abps.models.layout import ModelFactory
from abps.models.training import find_model

#: Old names of settings, for one release.
_RENAMED: Final = {"floor": "min_cell"}


def describe(config: Any) -> Any:
    """A configuration as plain data for JSON: nested by part, with every setting in force."""
    if dataclasses.is_dataclass(config):
        return {f.name: describe(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, tuple | list):
        return [describe(value) for value in config]
    if callable(config):
        return f"{getattr(config, '__module__', '')}.{getattr(config, '__qualname__', repr(config))}"
    return config


def undescribed(config: Any, described: Mapping[str, Any]) -> Any:
    """A configuration with the settings that a result states of it (:func:`describe`)."""
    changed: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        own, stated = getattr(config, f.name), described.get(f.name, {})
        if f.name not in described or describe(own) == stated:
            continue
        changed[f.name] = undescribed(own, stated) if dataclasses.is_dataclass(own) else _frozen(stated)
    return dataclasses.replace(config, **changed)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


def names(config: Any, prefix: str = "") -> dict[str, tuple[str, ...]]:
    """Every setting's name (short and full) and the path to it."""
    found: dict[str, tuple[str, ...]] = {}
    for f in dataclasses.fields(config):
        value, full = getattr(config, f.name), f"{prefix}{f.name}"
        if dataclasses.is_dataclass(value):
            found |= names(value, f"{full}.")
        else:
            found[full] = tuple(full.split("."))
    if not prefix:
        for path in list(found.values()):
            found.setdefault(path[-1], path)
        found = {old: found[new] for old, new in _RENAMED.items() if new in found} | found
    return found


def with_settings(config: Method, settings: Mapping[str, Any]) -> Method:
    """The configuration with some settings replaced; text is read as the setting's type."""
    for given, value in settings.items():
        name = _RENAMED.get(given, given)
        if name != given:
            warnings.warn(f"the setting {given} is now called {name}", DeprecationWarning, stacklevel=2)
        known = names(config)
        if name not in known:
            short = sorted(key for key in known if "." not in key)
            raise RequestError(
                f"{type(config).__name__} has no setting {name!r}{nearest(name, known)}; "
                f"it has {', '.join(short)}"
            )
        config = _put(config, known[name], name, value)
    return config


def configure(
    method: str | Method, settings: Mapping[str, Any] | None = None, rounds: int | None = None
) -> Method:
    """A method's configuration: by name or as it is, with settings replaced."""
    config = find(method) if isinstance(method, str) else method
    given = dict(settings or {})
    if "model" in given:
        # First of all: a model brings the training that suits it, which other settings may change.
        config = with_model(config, given.pop("model"))
    if rounds is not None:
        config = with_settings(config, {"rounds": rounds})
    return with_settings(config, given)


def with_model(config: Method, model: str | ModelFactory) -> Method:
    """The configuration with another model, trained as suits it; at least one of its layers stays shared."""
    config = dataclasses.replace(config, training=config.training.suited(model))
    layers, wire = find_model(model).layers, getattr(config, "wire", None)
    if layers is not None and isinstance(wire, Wire) and wire.private_layers >= layers:
        private = dataclasses.replace(wire, private_layers=layers - 1)
        config = dataclasses.replace(config, wire=private)  # type: ignore[call-arg]
    return config


def _put(config: Any, path: tuple[str, ...], name: str, value: Any) -> Any:
    if len(path) > 1:
        value = _put(getattr(config, path[0]), path[1:], name, value)
    elif isinstance(value, str):
        value = read(value, typing.get_type_hints(type(config))[path[0]], name)
    return dataclasses.replace(config, **{path[0]: value})


def read(text: str, kind: Any, name: str) -> Any:
    """Text from the command line as a value of a type."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in options and text.lower() in ("none", "null", ""):
        return None
    for option in options:
        try:
            return _as(text, option)
        except ValueError:
            continue
    wanted = " or ".join(getattr(o, "__name__", str(o)) for o in options if o is not type(None))
    raise RequestError(f"{name}={text}: a value of type {wanted} is needed here")


_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def _as(text: str, kind: Any) -> Any:
    if kind is bool and text.lower() in (*_YES, *_NO):
        return text.lower() in _YES
    if kind is int or (kind is float and "nan" not in text.lower()):
        return kind(text)
    if kind is str or typing.get_origin(kind) is typing.Literal:
        return text
    if typing.get_origin(kind) is tuple:
        inner, *rest = typing.get_args(kind)
        parts = [part for part in text.replace("+", ",").split(",") if part]
        if rest == [...] or len(parts) == 1 + len(rest):
            return tuple(_as(part, inner) for part in parts)
    raise ValueError(text)
