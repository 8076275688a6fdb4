"""What a hospital tells of its numeric columns in its codebook, and the scales that follow from all of them.

Between hospitals nothing is told by itself: a site writes its summary (:mod:`abps.data.scales`) into its own
codebook, people read it and pass it on, and when codebooks are merged the common scales follow. It is of the
training rows of one seed, which the study must then have. The numbers are those of a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from abps.core.errors import RequestError
from abps.data.scales import GROUP, MOST_GROUPS, Statistics, Summary, agree, scales_size, sketched


@dataclass(frozen=True, eq=False)
class Told:
    """A site's summary of its training rows under a seed."""

    site: str
    seed: int
    summary: Summary

    def to_json(self) -> dict[str, Any]:
        """Plain data for a file that people read: column by column."""
        told, columns = self.summary, {}
        for k, used in enumerate(sketched(told.count, told.group).tolist()):
            if used:
                columns[told.names[k]] = {
                    "values": int(told.count[k]),
                    "mean": float(told.mean[k]),
                    "variance": float(told.variance[k]),
                    "groups": [float(value) for value in told.groups[k, :used]],
                }
        return {"site": self.site, "seed": self.seed, "group": told.group, "columns": columns}

    @staticmethod
    def from_json(data: Any, numbers: Sequence[str]) -> Told:
        """What a codebook with these numeric columns tells; ``ValueError`` says what is wrong with it."""
        names, columns = tuple(numbers), data["columns"]
        unknown = sorted(set(columns) - set(names))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is summarised and is no numeric column")
        summary = _summary(names, int(data["group"]), columns)
        try:
            Summary.from_bytes(summary.to_bytes(), names)  # by the rules for what arrives
        except RequestError as error:
            raise ValueError(str(error)) from error
        return Told(str(data["site"]), int(data["seed"]), summary)

    def of(self, names: tuple[str, ...]) -> Summary:
        """The summary for the columns of a common codebook; nothing of those that the site does not have."""
        return _summary(names, self.summary.group, self.to_json()["columns"])


def _summary(names: tuple[str, ...], group: int, columns: Mapping[str, Any]) -> Summary:
    count = np.zeros(len(names), np.uint32)
    mean, variance = np.zeros((2, len(names)), np.float32)
    groups = np.zeros((len(names), MOST_GROUPS), np.float32)
    for k, name in enumerate(names):
        if name in columns:
            column = columns[name]
            count[k], mean[k], variance[k] = column["values"], column["mean"], column["variance"]
            used = int(sketched(count[k : k + 1], max(group, GROUP))[0])
            if len(column["groups"]) != used:
                raise ValueError(f"{name!r} has {len(column['groups'])} groups, {used} are expected")
            groups[k, :used] = column["groups"]
    return Summary(names, count, mean, variance, groups, group)


@dataclass(frozen=True)
class Summarised:
    """That scales in a codebook follow from what sites told of their training rows under a seed, and the
    bytes that each site sent and received for it."""

    seed: int
    spent: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Plain data for a file."""
        return {"seed": self.seed, "bytes": dict(self.spent)}

    @staticmethod
    def from_json(data: Any) -> Summarised:
        """From a file's content."""
        return Summarised(int(data["seed"]), {str(k): int(v) for k, v in data["bytes"].items()})


def agreed(
    told: Sequence[Told],
    names: tuple[str, ...],
    given: Statistics | None,
    also: tuple[str, ...] = (),
    size: int = 0,
) -> tuple[Statistics | None, Summarised | None]:
    """The scales of the columns ``names`` that follow from what sites told, and what that took.

    also: what was told besides, of the outcome, and in how many bytes (``size``) what follows is told back.
    """
    needed = tuple(name for name in names if given is None or name not in given.scales)
    if not told or not (needed or also):
        return given, None
    if len({each.seed for each in told}) > 1:
        seeds = ", ".join(f"{each.site}: {each.seed}" for each in told)
        raise RequestError(
            f"the codebooks tell of training rows under different seeds ({seeds}); settle on one"
        )
    if len({each.site for each in told}) < len(told):
        raise RequestError("two codebooks tell of the same site's columns; give each once")
    spent = {
        each.site: len(each.of((*needed, *also)).to_bytes()) + scales_size(len(needed)) + size
        for each in told
    }
    statistics = agree({each.site: each.of(names) for each in told}, given) if needed else given
    return statistics, Summarised(told[0].seed, spent)
