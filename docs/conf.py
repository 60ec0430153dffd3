"""Sphinx settings of the documentation."""

from polyadic import __version__

project = "polyadic"
author = "The polyadic developers"
copyright = "2026, The polyadic developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "deflist"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"polyadic {__version__}"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = False
nitpicky = False
