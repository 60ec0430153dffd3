"""polyadic: small, fast features that can be looked into, from many unlabelled multichannel recordings.

from polyadic import ATD, SALS, GRSALS, load
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyadic.version import __version__

if TYPE_CHECKING:
    from polyadic.estimators import ATD, GRSALS, SALS, load

__all__ = ["ATD", "GRSALS", "SALS", "__version__", "load"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; whoever only asks for the version or for help should not wait for it.
    if name in __all__:  # the version is there already
        from polyadic import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'polyadic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
