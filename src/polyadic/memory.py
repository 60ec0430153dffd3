"""Two settings of the whole process that make fits faster. A library must not make them by itself.

Every batch of a fit needs the same memory again, and the system takes as long to clear a fresh page as a filter takes
to fill it. The `polyadic` program calls `reuse_memory` when it starts; in Python it is yours to call.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

__all__ = ["reuse_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_KEPT_BYTES = 2**25 - 2**14


def reuse_memory() -> None:
    """Keep freed memory for the next batch, and take large arrays in pages of 2 MiB; call it before torch is used.

    Sets the environment variable THP_MEM_ALLOC_ENABLE, which torch reads when it first needs memory, unless it is set
    already; and has the C library of Linux keep freed blocks of up to 32 MiB. Elsewhere it does nothing.

    Examples
    --------
    >>> reuse_memory()
    >>> os.environ["THP_MEM_ALLOC_ENABLE"]
    '1'
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    with suppress(OSError, AttributeError):  # another system, or another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, 2 * _KEPT_BYTES)
