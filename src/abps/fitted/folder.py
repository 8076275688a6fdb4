"""A fitted model on disk: a folder that people can read and machines can check.

``weights.safetensors`` the numbers of the network; ``codebook.json`` the columns, their levels and scales;
``model.json`` everything else: recalibration, thresholds, ranges, where it comes from. Nothing in it is code.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from abps import files
from abps.core.errors import RequestError, nearest
from abps.data.codebook import Codebook
from abps.evaluate.calibration import Recalibration
from abps.fitted.model import FittedModel, LayeredNetwork, Range

SCHEMA = "abps.model/2"
MODEL, WEIGHTS, BOOK = "model.json", "weights.safetensors", "codebook.json"

#: Beside the folders of all hospitals: which folder is whose.
INDEX = "models.json"


def folder_names(centers: Iterable[str]) -> dict[str, str]:
    """By center, the name of its folder: letters that any keyboard has, unique also where case is ignored.

    >>> list(folder_names(["north", "St. Mary's, Ward #3", "Žilina", "zilina", "../x", "北"]).values())
    ['north', 'St-Marys-Ward-3', 'Zilina', 'zilina-2', 'x', 'hospital']
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for center in centers:
        plain = unicodedata.normalize("NFKD", center).encode("ascii", "ignore").decode().replace("'", "")
        if not re.fullmatch(r"\w[\w.-]*", plain):
            plain = re.sub(r"[^\w]+", "-", plain)
        plain = plain[:60].strip("-.") or "hospital"
        name, count = plain, 1
        while name.lower() in taken:
            count += 1
            name = f"{plain}-{count}"
        taken.add(name.lower())
        names[center] = name
    return names


def find_folder(path: str | Path) -> Path:
    """The model's folder that a path means: the folder itself, or ``DIR/NAME`` with a hospital's own name as
    in ``models.json`` of DIR; case does not count."""
    folder = Path(path)
    if (folder / MODEL).is_file():
        return folder
    for parent in folder.parents:
        if not (parent / INDEX).is_file():
            continue
        try:
            centers = json.loads((parent / INDEX).read_text(encoding="utf-8"))["centers"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RequestError(f"{parent / INDEX} is damaged ({error!r}); fit again") from error
        wanted = str(path).rstrip("/").removeprefix(str(parent)).lstrip("/")
        for center, name in centers.items():
            if wanted.casefold() in (center.casefold(), name.casefold()):
                return parent / name
        names = ", ".join(list(centers)[:5]) + (", …" if len(centers) > 5 else "")
        raise RequestError(f"{parent} has no model of {wanted!r}{nearest(wanted, centers)}; it has {names}")
    inside = sorted(p.parent.name for p in folder.glob(f"*/{MODEL}"))[:3] if folder.is_dir() else []
    hint = f"name a hospital in it, such as {folder / inside[0]}" if inside else "`abps fit` makes one"
    what = f"holds no model ({MODEL} is missing)" if folder.is_dir() else "does not exist"
    raise RequestError(f"{folder} {what}; {hint}")


def save_model(model: FittedModel, folder: Path) -> None:
    """Write a model into a folder; ``model.json`` last, so that its presence means completeness."""
    files.folder(folder)
    weights = save(model.network.tensors())
    files.write_bytes(folder / WEIGHTS, weights)
    files.write_json(folder / BOOK, model.book.to_json())
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "center": model.center,
        "label": model.label,
        "positive": model.positive,
        "needs": list(model.needs),
        "network": model.network.shape(),
        "splines": model.splines,
        "recalibration": asdict(model.recalibration),
        "thresholds": dict(model.thresholds),
        "ranges": {name: asdict(span) for name, span in model.ranges.items()},
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        **dict(model.about),
    }
    files.write_json(folder / MODEL, content)


_OWN = {
    "schema", "center", "label", "positive", "needs", "network", "splines", "recalibration", "thresholds",
    "ranges", "weights_sha256",
}  # fmt: skip


def load_model(path: str | Path) -> FittedModel:
    """The model that ``abps fit`` has written: its folder, or ``DIR/NAME`` with the hospital's own name."""
    folder = find_folder(path)
    try:
        content = json.loads((folder / MODEL).read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise RequestError(
                f"{folder} is a model of another version ({content['schema']}, not {SCHEMA}); fit again"
            )
        weights = (folder / WEIGHTS).read_bytes()
        if hashlib.sha256(weights).hexdigest() != content["weights_sha256"]:
            raise RequestError(f"{folder / WEIGHTS} is not the file that {MODEL} describes; fit again")
        tensors = {name: np.asarray(value) for name, value in load(weights).items()}
        return FittedModel(
            center=content["center"],
            label=content["label"],
            positive=content["positive"],
            book=Codebook.from_json(json.loads((folder / BOOK).read_text(encoding="utf-8"))),
            network=LayeredNetwork.of(tensors, content["network"]),
            splines=bool(content["splines"]),
            recalibration=Recalibration(**content["recalibration"]),
            thresholds=content["thresholds"],
            ranges={name: Range(**span) for name, span in content["ranges"].items()},
            about={key: value for key, value in content.items() if key not in _OWN},
        )
    except RequestError:
        raise
    except OSError as error:
        raise RequestError(f"{folder} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, IndexError, SafetensorError) as error:
        raise RequestError(f"{folder} is damaged ({error!r}); fit again") from error
