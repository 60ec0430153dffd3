"""Process-wide memory settings that make fits faster.

Every batch of a fit allocates the same amount of memory, and clearing a new page takes the system as long as a filter
takes to fill it. The `polyadic` command calls `reuse_memory`; a library must not change global settings by itself.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_KEPT_BYTES = 2**25 - 2**14


def reuse_memory() -> None:
    """Keep freed memory for the next batch, and use 2 MiB pages for large arrays; call it before using torch.

    Sets the environment variable THP_MEM_ALLOC_ENABLE, unless it is already set; torch reads it at its first
    allocation. On Linux, also makes the C library keep freed blocks of up to 32 MiB.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    with suppress(OSError, AttributeError):  # another system, or another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, 2 * _KEPT_BYTES)
