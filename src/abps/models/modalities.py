"""Several modalities in one model: an encoder for each, and a trunk that all centers share.

Columns say what they belong to by their names:

* ``heart_rate@0`` … ``heart_rate@23``: a *sequence*, here of 24 hours; all sequences are the channels of one
  grid;
* ``scan@0@0`` … ``scan@7@7``: an *image* (or a signal in two dimensions), by row and column;
* all others: a *table*.

Each modality has its own encoder; the trunk takes the sum of what they say. A row without a modality (all of
its columns are gaps, or it is absent at the whole center) leaves that encoder out: it adds nothing to the
sum and learns nothing from the row. So a center without images shares the trunk with those that have them,
and their image encoder comes to it unspoiled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from abps.core.errors import RequestError
from abps.data.outcome import BINARY, Outcome
from abps.models.layout import ModelFactory

_PLACE = re.compile(r"^(?P<name>[^@]+)@(?P<first>\d+)(?:@(?P<second>\d+))?$")


class Sequences(nn.Module):
    """(rows, channels, hours) to (rows, units): a convolution over time, then its mean and its last value."""

    def __init__(self, channels: int, hours: int, units: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(channels, units, kernel_size=min(3, hours), padding="same")
        self.out = nn.Linear(2 * units, units)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, units)."""
        seen = torch.relu(self.convolution(x))
        return self.out(torch.cat([seen.mean(dim=2), seen[:, :, -1]], dim=1))


class Images(nn.Module):
    """(rows, 1, height, width) to (rows, units): two convolutions and what is brightest in each quarter."""

    def __init__(self, height: int, width: int, units: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.second = nn.Conv2d(8, 8, kernel_size=3, padding=1)
        self.out = nn.Linear(8 * 4, units)
        self.middle = (max(1, height // 2), max(1, width // 2))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, units)."""
        seen = torch.relu(self.second(torch.relu(self.first(x))))
        h, w = self.middle
        parts = seen[:, :, :h, :w], seen[:, :, :h, w:], seen[:, :, h:, :w], seen[:, :, h:, w:]
        return self.out(torch.cat([part.amax(dim=(2, 3)) for part in parts if part.numel()], dim=1))


class Encoders(nn.Module):
    """An encoder per modality, their sum, a trunk, and a head."""

    def __init__(
        self, columns: Sequence[str], hidden: tuple[int, ...], dropout: float, outcome: Outcome = BINARY
    ) -> None:
        super().__init__()
        units = hidden[0] if hidden else 32
        found = modalities(columns)
        self.places = {name: torch.tensor(places) for name, (places, _) in found.items()}
        self.shapes = {name: shape for name, (_, shape) in found.items()}
        self.parts = nn.ModuleDict()
        for name, shape in self.shapes.items():
            if name == "table":
                self.parts[name] = nn.Linear(shape[0], units)
            else:
                kind = Sequences if name == "sequences" else Images
                self.parts[name] = kind(shape[0], shape[1], units)
        self.trunk = nn.Linear(units, units)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(units, outcome.outputs)

    def representation(self, x: Tensor) -> Tensor:
        """(rows, units) what the trunk makes of all modalities that a row has."""
        total = x.new_zeros(len(x), self.trunk.in_features)
        x = torch.cat([x, torch.zeros_like(x[:, :1])], dim=1)
        for name, part in self.parts.items():
            mine = x[:, self.places[name].to(x.device)]
            there = (mine != 0).any(dim=1, keepdim=True).to(x.dtype)
            shape = self.shapes[name]
            shaped = mine.unflatten(1, (1, *shape)) if name.startswith("image") else mine.unflatten(1, shape)
            total = total + there * part(shaped)
        return torch.relu(self.trunk(torch.relu(total)))

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) logits, or (rows, outputs) of several."""
        return self.head(self.drop(self.representation(x))).squeeze(-1)


def modalities(columns: Sequence[str]) -> dict[str, tuple[list[int], tuple[int, ...]]]:
    """Of every modality where its columns stand and its shape: (columns,), (channels, hours) or (height,
    width). A place that never varies is no column: it stands at the end, where a zero is put."""
    nowhere = len(columns)
    table: list[int] = []
    lines: dict[str, dict[int, int]] = {}
    images: dict[str, dict[tuple[int, int], int]] = {}
    for k, name in enumerate(columns):
        found = _PLACE.match(name)
        if found is None:
            if "@" not in name:
                table.append(k)
        elif found["second"] is None:
            lines.setdefault(found["name"], {})[int(found["first"])] = k
        else:
            images.setdefault(found["name"], {})[int(found["first"]), int(found["second"])] = k
    made: dict[str, tuple[list[int], tuple[int, ...]]] = {}
    if table:
        made["table"] = table, (len(table),)
    if lines:
        hours = 1 + max(hour for places in lines.values() for hour in places)
        grid = [places.get(hour, nowhere) for places in lines.values() for hour in range(hours)]
        made["sequences"] = grid, (len(lines), hours)
    for name, spots in images.items():
        height, width = (1 + max(spot[j] for spot in spots) for j in (0, 1))
        whole = [spots.get((i, j), nowhere) for i in range(height) for j in range(width)]
        made[f"image {name}".replace(".", " ")] = whole, (height, width)
    return made


def encoders(hidden: tuple[int, ...], dropout: float) -> ModelFactory:
    """Builds the model from the names of encoded columns."""

    def build(width: int, columns: tuple[str, ...] = (), outcome: Outcome = BINARY) -> nn.Module:
        if len(columns) != width:
            raise RequestError(
                "model=encoders reads modalities from the names of columns and runs in simulations; "
                "choose another model here"
            )
        return Encoders(columns, hidden, dropout, outcome)

    return build
