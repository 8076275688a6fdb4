"""What this package is made with: a bill of materials (CycloneDX 1.5, JSON), checked without network.

    python tools/sbom.py --out sbom.json --licences licences.md

Lists every distribution that ours needs, directly or not, as it is installed, with version, licence and what
needs it. Ends with an error if one is missing, does not fit what is asked for, or has a licence that does not
go together with ours.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = "abps"

#: Licences that one may not link to without taking them over; the lesser ones may be used as libraries.
STRICT = re.compile(r"\b(AGPL|GPL)\b|Affero|(?<!Lesser )General Public License", re.IGNORECASE)
LESSER = re.compile(r"LGPL|Lesser|MPL|Mozilla|exception|MIT|BSD|Apache", re.IGNORECASE)


def name_of(name: str) -> str:
    """A distribution's name in its one spelling."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(dist: metadata.Distribution) -> str:
    """The licence that a distribution states, in a few words."""
    about = dist.metadata
    stated = about.get("License-Expression") or ""
    classes = [
        c.split("::")[-1].strip() for c in about.get_all("Classifier") or [] if c.startswith("License ::")
    ]
    text = (about.get("License") or "").strip().splitlines()
    return stated or ", ".join(classes) or (text[0][:80] if text else "")


def needed(root: str, extras: tuple[str, ...]) -> tuple[dict[str, metadata.Distribution], list[str]]:
    """Every distribution that is needed, by name, and what is wrong with any of them."""
    found: dict[str, metadata.Distribution] = {}
    wrong: list[str] = []
    todo = [(root, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        name, wanted = todo.pop()
        if (name_of(name), wanted) in seen:
            continue
        seen.add((name_of(name), wanted))
        try:
            dist = found[name_of(name)] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is needed and not installed")
            continue
        for line in dist.requires or []:
            need = Requirement(line)
            if need.marker and not any(need.marker.evaluate({"extra": e}) for e in wanted | {""}):
                continue
            todo.append((need.name, frozenset(need.extras)))
            try:
                there = metadata.version(need.name)
            except metadata.PackageNotFoundError:
                continue  # said when its turn comes
            if need.specifier and not need.specifier.contains(there, prereleases=True):
                wrong.append(f"{name} asks for {need.name}{need.specifier}, and {there} is installed")
    return found, wrong


def troubles(found: dict[str, metadata.Distribution]) -> list[str]:
    """Licences that do not go together with ours."""
    said = []
    for name, dist in sorted(found.items()):
        words = licence(dist)
        if STRICT.search(words) and not LESSER.search(words):
            said.append(f"{name} {dist.version} is under {words}")
    return said


def bill(found: dict[str, metadata.Distribution]) -> dict[str, Any]:
    """The bill of materials."""
    parts, depends = [], []
    for name, dist in sorted(found.items()):
        ref = f"pkg:pypi/{name}@{dist.version}"
        part: dict[str, Any] = {
            "type": "library",
            "bom-ref": ref,
            "name": name,
            "version": dist.version,
            "purl": ref,
        }
        if licence(dist):
            part["licenses"] = [{"license": {"name": licence(dist)}}]
        parts.append(part)
        below = {name_of(Requirement(line).name) for line in dist.requires or []} & set(found)
        on = [f"pkg:pypi/{n}@{found[n].version}" for n in sorted(below)]
        depends.append({"ref": ref, "dependsOn": on})
    own = [part for part in parts if part["name"] == ROOT]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own[0] | {"type": "application"}} if own else {},
        "components": [part for part in parts if part["name"] != ROOT],
        "dependencies": depends,
    }


def licences(found: dict[str, metadata.Distribution]) -> str:
    """Everything that is installed beside this package, with its licence, as a table in Markdown."""
    rows = [
        f"| {name} | {dist.version} | {licence(dist) or 'see the licence file of the distribution'} |"
        for name, dist in sorted(found.items())
        if name != ROOT
    ]
    return "\n".join(["| distribution | version | licence |", "|---|---|---|", *rows]) + "\n"


def main() -> None:
    """Write the bill, and say what is wrong."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--out", type=Path)
    words.add_argument("--licences", type=Path, help="write the list of licences, as Markdown")
    words.add_argument("--extras", default="all")
    given = words.parse_args()
    found, wrong = needed(ROOT, tuple(given.extras.split(",")))
    wrong += troubles(found)
    text = json.dumps(bill(found), indent=1)
    if given.licences:
        given.licences.write_text(licences(found), encoding="utf-8")
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    elif not given.licences:
        print(text)
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
