"""Fused kernels for a GPU, in Triton and CUDA, for which torch's CUDA builds bring all that is needed.

Nothing here computes anything that plain torch code elsewhere does not compute as well: `augment.Jitter`,
`spectral.STFT` and `als.step` are the plain versions to read first, and what runs wherever `available` says no.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from threading import Thread

import torch

__all__ = ["available", "power_of_two", "prepare", "spacing"]


@lru_cache(maxsize=1)
def _installed() -> bool:
    return find_spec("triton") is not None


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether fused kernels can be used for tensors of this device and type; never with POLYADIC_PLAIN=1 set.

    Examples
    --------
    >>> available(torch.device("cuda"), torch.float64)
    False
    """
    return (
        device.type == "cuda"
        and dtype == torch.float32
        and os.environ.get("POLYADIC_PLAIN") != "1"
        and torch.version.hip is None
        and _installed()
    )


@cache
def prepare() -> Thread:
    """Begin to load the compiler of the kernels, in a thread: half a second in which others have things to do as well.

    Returns
    -------
    the thread, always the same
    """
    thread = Thread(target=_load, name="polyadic-kernels", daemon=True)
    thread.start()
    return thread


def _load() -> None:
    # Whatever goes wrong here goes wrong again, and is told, where the kernels are needed.
    with suppress(Exception):
        from triton.runtime import cache, driver

        # A hash of all of Triton, which it wants to know before it looks for a kernel that it compiled earlier.
        hashing = Thread(target=cache.triton_key, daemon=True)
        hashing.start()
        # What it would load when it launches its first kernel.
        from triton.experimental.gluon.nvidia import hopper  # noqa: F401

        from polyadic.kernels import signals, steps  # noqa: F401

        _ = driver.active.utils
        hashing.join()


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that is not below either number.

    Examples
    --------
    >>> power_of_two(33), power_of_two(3, least=16)
    (64, 16)
    """
    return max(least, 1 << max(count - 1, 0).bit_length())


def spacing(length: int) -> int:
    """How far apart our kernels lay the channels of long windows, so that frames can begin at the same places in all.

    Examples
    --------
    >>> spacing(128), spacing(3000)
    (128, 3072)
    """
    return length if length < 512 else -(-length // 128) * 128
