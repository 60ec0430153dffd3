"""polyadic: interpretable features from unlabelled multichannel recordings, and classifiers from few labels.

from polyadic import CPD, ATD, SALS, GRSALS, load, tune
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyadic._util.version import __version__

if TYPE_CHECKING:
    from polyadic._util.memory import reuse_memory
    from polyadic.estimators import ATD, CPD, GRSALS, SALS, load
    from polyadic.explain.replicability import match
    from polyadic.tuning import tune

__all__ = ["ATD", "CPD", "GRSALS", "SALS", "__version__", "load", "match", "reuse_memory", "tune"]

_MODULES = {
    "match": "explain.replicability",
    "reuse_memory": "_util.memory",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds: load it only when needed, so that the version and the help are immediate.
    if name in __all__:  # __version__ is imported above
        from importlib import import_module

        return getattr(import_module(f"polyadic.{_MODULES.get(name, 'estimators')}"), name)
    raise AttributeError(f"module 'polyadic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
