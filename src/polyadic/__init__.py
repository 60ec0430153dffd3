"""polyadic: small, fast features that can be looked into, from many unlabelled multichannel recordings.

from polyadic import ATD, SALS, GRSALS, load, match, suggest_rank
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from polyadic.version import __version__

if TYPE_CHECKING:
    from polyadic.estimators import ATD, GRSALS, SALS, load
    from polyadic.explain.matching import match
    from polyadic.explain.rank import suggest_rank

__all__ = ["ATD", "GRSALS", "SALS", "__version__", "load", "match", "suggest_rank"]

# torch asks for it when it first needs memory: large arrays in pages of 2 MiB where the system has them, as numpy has.
# Every batch of a fit has some, and they take less time to be had. Whoever sets it to 0 before, keeps that.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

_MODULES = {"match": "explain.matching", "suggest_rank": "explain.rank"}


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; whoever only asks for the version or for help should not wait for it.
    if name in __all__:  # the version is there already
        from importlib import import_module

        return getattr(import_module(f"polyadic.{_MODULES.get(name, 'estimators')}"), name)
    raise AttributeError(f"module 'polyadic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
