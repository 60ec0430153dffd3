"""All that commands import, for the process that `command_line` forks."""

import gc
import importlib
import pkgutil

import polyadic

ELSEWHERE = ("polyadic.__main__", "polyadic.scale.gpu", "polyadic.testing")  # the second needs Triton
LATE = ("plotly.graph_objects", "rich.progress", "sklearn.linear_model", "typer.rich_utils")
"""Modules that commands import when they need them."""

OWN = [module.name for module in pkgutil.walk_packages(polyadic.__path__, "polyadic.")]
for name in (*LATE, *(name for name in OWN if not name.startswith(ELSEWHERE))):
    importlib.import_module(name)
gc.freeze()  # a collection in a fork would copy the memory of all these modules
