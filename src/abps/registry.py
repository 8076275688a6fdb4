"""Registries: things that users choose by name, built in or their own.

A name is a built-in's (``fedavg``), an entry point's of the registry's group (``abps.methods`` in an
installed package), or a place in any module that Python can import (``package.module:NAME``).
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoints, entry_points
from typing import Any, Generic, TypeVar

from abps.core.errors import RequestError, nearest

T = TypeVar("T")


class Extended(Mapping[str, T]):
    """A mapping of known entries, and of more that stand at ``package.module:NAME``, which is imported only
    when a name is not among the known ones, or when all are listed."""

    def __init__(self, known: Mapping[str, T], place: str, convert: Callable[[Any], T]) -> None:
        self._known, self._place, self._convert = dict(known), place, convert

    @cached_property
    def _all(self) -> dict[str, T]:
        more = {name: self._convert(each) for name, each in imported(self._place).items()}
        return self._known | more

    def __getitem__(self, name: str) -> T:
        return self._known[name] if name in self._known else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


@dataclass(frozen=True)
class Registry(Generic[T]):
    """All things of one kind that have a name.

    kind: what they are called in a sentence.  group: the entry-point group of other packages.
    accept: converts what was found to a thing of this kind, or returns None.
    wanted: what it should have been.  listing: where a user finds all names.

    >>> shouts = Registry("shout", "abps.shouts", {"hey": "HEY"}, lambda x: x if str(x).isupper() else None,
    ...     "capital letters")
    >>> shouts.find("hey"), shouts.find("string:ascii_uppercase")[:3]
    ('HEY', 'ABC')
    """

    kind: str
    group: str
    builtin: Mapping[str, T]
    accept: Callable[[Any], T | None]
    wanted: str
    listing: str = ""

    def find(self, name: str) -> T:
        if name in self.builtin:
            return self.builtin[name]
        if ":" in name:
            return self._accepted(name, imported(name, self.kind))
        others = self.others()
        if name in others:
            return self._accepted(name, imported(others[name], self.kind))
        hint = f"; {self.listing}" if self.listing else f"; there are {', '.join(self.names())}"
        raise RequestError(f"there is no {self.kind} {name!r}{nearest(name, self.names())}{hint}")

    def others(self) -> dict[str, str]:
        """Names that installed packages add, and where each leads: ``package.module:NAME``."""
        return {point.name: point.value for point in sorted(_entry_points(self.group))}

    def names(self) -> tuple[str, ...]:
        return (*self.builtin, *(name for name in self.others() if name not in self.builtin))

    def _accepted(self, name: str, found: Any) -> T:
        thing = self.accept(found)
        if thing is None:
            is_class = isinstance(found, type)
            what = f"the class {found.__name__}" if is_class else f"of type {type(found).__name__}"
            raise RequestError(f"{name} is not a {self.kind} but {what}; it must be {self.wanted}")
        return thing


@cache
def _entry_points(group: str) -> EntryPoints:
    """Those of a group; reading every package's takes a twentieth of a second, so once per process."""
    return entry_points(group=group)


def imported(place: str, kind: str = "object") -> Any:
    """What stands at ``package.module:NAME``."""
    module, _, attribute = place.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise RequestError(f"{kind} {place!r}: write package.module:NAME")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            why = f"there is no module {error.name!r}; install its package or go to its folder"
            raise RequestError(f"{kind} {place}: {why}") from error
        raise RequestError(f"{kind} {place}: importing {module} failed: {error}") from error
    except Exception as error:  # whatever a foreign module does when it is imported
        why = f"importing {module} failed with {type(error).__name__}: {first_line(error)}"
        raise RequestError(f"{kind} {place}: {why}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [name for name in dir(found) if not name.startswith("_")]
            raise RequestError(f"{kind} {place}: {module} has no {attribute}{nearest(part, public)}")
        found = getattr(found, part)
    return found


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).strip().splitlines()), "no message")
