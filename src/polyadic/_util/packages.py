"""Optional packages, imported where they are needed."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from polyadic.errors import MissingExtraError

_EXTRAS = {"edfio": "edf", "onnxruntime": "onnx", "plotly": "report", "starlette": "label", "uvicorn": "label"}
"""Extras of polyadic that have another name than the package."""


def import_package(name: str, what: str) -> Any:
    """Import a package that `what` needs, without the warnings of its import, or say how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise MissingExtraError(
            f"{what} needs the package {package}, which is not installed: pip install "
            f"'polyadic[{_EXTRAS.get(package, package)}]'"
        ) from error
