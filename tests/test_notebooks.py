"""Notebooks of the examples: the same code as the scripts, and they run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from notebooks import EXAMPLES, NOTEBOOKS, notebook, text_of  # noqa: E402


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_holds_the_code_of_its_script(name):
    assert (EXAMPLES / f"{name}.ipynb").read_text("utf-8") == text_of(name), "run python docs/notebooks.py"
    code = "\n".join(cell.source for cell in notebook(EXAMPLES / f"{name}.py").cells if cell.cell_type == "code")
    for line in (EXAMPLES / f"{name}.py").read_text("utf-8").split('"""', 2)[2].splitlines():
        assert not line.strip() or line.startswith("#") or line in code


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_beginning_to_end(name, tmp_path, monkeypatch):
    client = pytest.importorskip("nbclient").NotebookClient
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    client(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", []))
    assert "correctly" in printed
