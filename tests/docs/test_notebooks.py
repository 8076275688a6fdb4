"""The notebooks of the documentation run from top to bottom, and keep no outputs in the repository."""

import ast
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
TABLES = ROOT.parent / "shared" / "data" / "hospitals"


@pytest.mark.parametrize("tables", ["real", "made"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tables, tmp_path, monkeypatch):
    if tables == "real" and not TABLES.is_dir():
        pytest.skip("the open data hospitals are not beside the project (shared/data)")
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    monkeypatch.setenv("ABPS_TABLES", str(TABLES if tables == "real" else tmp_path))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    began = time.process_time()
    client(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert time.process_time() - began < 60
    shown = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert shown and not any(out.output_type == "error" for out in shown)


def test_three_tell_a_story_without_private_names():
    assert [path.stem for path in NOTEBOOKS] == ["own-method", "own-table", "reading-a-report"]
    nbformat = pytest.importorskip("nbformat")
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                names = [n.attr for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.Attribute)]
                assert not [name for name in names if name.startswith("_")]


def test_from_pandas_to_a_plot_takes_twenty_lines():
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.read(ROOT / "docs/notebooks/own-table.ipynb", as_version=4)
    (cell,) = [c for c in book.cells if c.cell_type == "code" and "plt.scatter" in c.source]
    lines = [line for line in cell.source.splitlines() if line.strip()]
    assert len(lines) <= 20 and "predict_proba" in cell.source
