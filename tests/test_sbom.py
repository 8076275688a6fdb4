"""The bill of materials: complete, what is installed fits together, and licences go together with ours."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("sbom", ROOT / "tools" / "sbom.py")
sbom = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sbom)


def test_everything_that_is_needed_is_there_and_may_be_used():
    found, wrong = sbom.needed("abps", ("all",))
    assert not wrong and not sbom.troubles(found)
    assert {"torch", "polars", "numpy", "nvflare", "dp-accounting"} <= set(found)
    made = sbom.bill(found)
    listed = sbom.licences(found)
    assert all(f"| {name} | {dist.version} |" in listed for name, dist in found.items() if name != "abps")
    assert "| |" not in listed and "duckdb" in listed and "mlflow-skinny" in listed
    assert made["bomFormat"] == "CycloneDX" and len(made["components"]) == len(found) - 1
    refs = {part["bom-ref"] for part in made["components"]} | {made["metadata"]["component"]["bom-ref"]}
    assert all(set(entry["dependsOn"]) <= refs for entry in made["dependencies"])


def test_a_licence_that_does_not_go_together_is_found():
    class Made(metadata.PathDistribution):
        def __init__(self, words):
            self.words = words

        @property
        def metadata(self):
            from email.message import Message

            about = Message()
            about["Version"] = "1"
            about["License-Expression"] = self.words
            return about

    assert sbom.troubles({"a": Made("GPL-3.0-only")}) == ["a 1 is under GPL-3.0-only"]
    assert sbom.troubles({"a": Made("AGPL-3.0-or-later")})
    assert not sbom.troubles({"a": Made("LGPL-2.1"), "b": Made("MIT OR GPL-2.0"), "c": Made("MPL-2.0")})
    assert sbom.needed("no-such-distribution", ())[1] == ["no-such-distribution is needed and not installed"]
