"""Write the notebooks of `examples/`: `python docs/notebooks.py`. They hold the code of the scripts, without output.

`tests/test_notebooks.py` compares them with the scripts and runs them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
from nbformat import v4

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = {"sleep": "sleep stages (EEG)", "wearables": "activities (wearables)"}
"""Scripts that are also notebooks, and what they are about."""


def notebook(script: Path) -> nbformat.NotebookNode:
    """Return a script with `# %%` sections as a notebook: comments that open a section become text."""
    source = script.read_text("utf-8")
    title, _, body = str(ast.get_docstring(ast.parse(source))).partition("\n")
    first, *sections = re.split(r"^# %%\n", source.split('"""', 2)[2].strip("\n"), flags=re.MULTILINE)
    cells = [v4.new_markdown_cell(f"# {title.rstrip('.')}\n\n{body.strip()}"), v4.new_code_cell(first.strip("\n"))]
    for section in sections:
        comment = re.match(r"(?:#.*\n)*", section)
        assert comment is not None
        text = re.sub(r"^# ?", "", comment[0], flags=re.MULTILINE).strip()
        cells += [v4.new_markdown_cell(text)] if text else []
        cells.append(v4.new_code_cell(section[comment.end() :].strip("\n")))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # the same in every run
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def text_of(name: str) -> str:
    """Return the notebook of an example as it is stored."""
    return str(nbformat.writes(notebook(EXAMPLES / f"{name}.py"))) + "\n"


if __name__ == "__main__":
    for name in NOTEBOOKS:
        path = EXAMPLES / f"{name}.ipynb"
        path.write_text(text_of(name), "utf-8")
        print(path.name)
