"""polyadic: small, fast features that can be looked into, from many unlabelled multichannel recordings.

from polyadic import ATD, SALS, GRSALS, load
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyadic.estimators import ATD, GRSALS, SALS, load

__version__ = "0.1.0"
__all__ = ["ATD", "GRSALS", "SALS", "load"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; whoever only asks for the version or for help should not wait for it.
    if name in __all__:
        from polyadic import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'polyadic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
