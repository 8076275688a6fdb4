"""The notebooks of the documentation run from top to bottom, and keep no outputs in the repository."""

from pathlib import Path

import pytest

PLACE = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(PLACE.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    client(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert shown and not any(out.output_type == "error" for out in shown)


def test_there_are_three():
    assert len(NOTEBOOKS) == 3
