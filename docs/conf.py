"""Sphinx settings of the documentation."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

from polyadic import __version__

sys.path.insert(0, str(Path(__file__).parent))  # executed.py, pictures.py

project = "polyadic"
author = "The polyadic developers"
copyright = "2026, The polyadic developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "executed"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# All but the first are tables without a title, which other pages include.
exclude_patterns = ["_build", "results/microcontroller/*.md", "results/onnx/*.md"]
html_math_renderer = "mathml"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_title = f"polyadic {__version__}"
gallery = [
    "wearables",
    "sleep",
    "ecg",
    "own_csv",
    "pipeline",
    "from_disk",
    "baselines",
    "components",
    "plots",
]
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # docstrings describe parameters without linking their types
linkcheck_anchors = False
linkcheck_timeout = 20
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
}
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

_NAMED = ("Parameters", "Attributes", "Raises")
_PLAIN = ("Returns", "Yields")


def _as_numpydoc(_app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Convert docstrings to numpydoc: they have `name : meaning`, where numpydoc expects `name : type`."""
    section, result = "", []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if re.fullmatch(r"-{3,}", following):
            section = line
        entry = re.fullmatch(r"(\S.*?) : (.*)", line)
        underline = re.fullmatch(r"-{3,}", line)
        if section in _NAMED and entry:
            result += [entry[1], f"    {entry[2]}"]
        elif section in _PLAIN and line.strip() and line != section and not underline:
            # numpydoc reads the first line as a type and the rest as its description, so add an empty type.
            line = line.replace("*", r"\*")
            result += [f"    {line}"] if result and result[-1].startswith("    ") else ["..", f"    {line}"]
        else:
            result.append(line)
    lines[:] = result


def _skip_member(_app: Sphinx, _what: str, name: str, _obj: object, skip: bool, _options: object) -> bool:
    """Skip the methods that scikit-learn adds to every estimator for metadata routing."""
    return skip or bool(re.fullmatch(r"set_\w+_request", name))


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", _skip_member)
    app.connect("autodoc-process-docstring", _as_numpydoc, priority=400)
