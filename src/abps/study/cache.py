"""Federations on disk, so that every process of a study reads the same data without making it again."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from abps import files
from abps.data.federation import Federation, LeftOut
from abps.data.outcome import Outcome


class Unusable(Exception):
    """The stored federation is missing or not the one that its name says."""


def write_federation(place: Path, federation: Federation) -> None:
    """Store a federation under its fingerprint, readable by its owner only: these are patients' data."""
    folder = files.folder(place / federation.fingerprint())
    folder.chmod(0o700)
    arrays: dict[str, Any] = {"label": federation.label, "center": federation.center}
    arrays |= {
        name: values
        for name, values in (("patient", federation.patient), ("time", federation.time))
        if values is not None
    }
    files.write_with(folder / "features.parquet", lambda part: federation.features.write_parquet(part))
    if federation.aside is not None:
        files.write_with(folder / "aside.parquet", federation.aside.write_parquet)

    def write_arrays(part: Path) -> None:
        with part.open("wb") as stream:
            np.savez(stream, **arrays)

    files.write_with(folder / "arrays.npz", write_arrays)
    files.write_json(
        folder / "federation.json",
        {
            "name": federation.name,
            "centers": list(federation.centers),
            "groups": None if federation.groups is None else list(federation.groups),
            "descriptors": list(federation.descriptors),
            "left_out": [[o.center, o.rows, o.reason] for o in federation.left_out],
            "in_order": federation.in_order,
            "outcome": asdict(federation.outcome),
            "aside": _columns(federation.aside),
        },
    )


def read_federation(place: Path, fingerprint: str) -> Federation:
    """A stored federation; what was read must have the fingerprint it is stored under."""
    folder = place / fingerprint
    try:
        about = json.loads((folder / "federation.json").read_text(encoding="utf-8"))
        arrays = np.load(folder / "arrays.npz", allow_pickle=False)
        federation = Federation(
            name=about["name"],
            features=pl.read_parquet(folder / "features.parquet"),
            label=arrays["label"],
            center=arrays["center"],
            centers=tuple(about["centers"]),
            patient=arrays.get("patient"),
            time=arrays.get("time"),
            groups=None if about["groups"] is None else tuple(about["groups"]),
            descriptors=tuple(about["descriptors"]),
            left_out=tuple(LeftOut(*o) for o in about["left_out"]),
            in_order=about["in_order"],
            outcome=msgspec.convert(about["outcome"], Outcome),
            aside=pl.read_parquet(folder / "aside.parquet") if about.get("aside") else None,
        )
    except Exception as error:  # any library may stumble over a damaged file, each in its own way
        raise Unusable(f"the data in {folder} cannot be read ({type(error).__name__})") from error
    if federation.fingerprint() != fingerprint:
        raise Unusable(f"the data in {folder} were changed after they were written")
    return federation


def ensure(place: Path, federation: Federation) -> str:
    """Make sure that a federation is stored and readable; returns what was wrong with it, if anything."""
    problem = ""
    if (place / federation.fingerprint() / "federation.json").exists():  # it is written last
        try:
            there = read_federation(place, federation.fingerprint())
            if _columns(there.aside) == _columns(federation.aside):
                return ""
        except Unusable as error:
            problem = f"{error}; written anew"
    write_federation(place, federation)
    return problem


def _columns(frame: pl.DataFrame | None) -> list[str]:
    return [] if frame is None else frame.columns


def remove(place: Path) -> None:
    """Remove all stored federations."""
    shutil.rmtree(place, ignore_errors=True)
