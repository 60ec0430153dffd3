"""Fused GPU kernels in Triton and CUDA; torch's CUDA builds include everything they need.

Every kernel has an equivalent in plain torch, in `augment.Jitter`, `spectral.STFT` and `als.step`. Read those first;
they run wherever `available` returns False.
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
    """Return whether fused kernels support this device and type; always False if POLYADIC_PLAIN=1 is set.

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
    """Start loading the kernel compiler in a background thread, which takes half a second.

    Returns
    -------
    the thread, the same for all calls
    """
    thread = Thread(target=_load, name="polyadic-kernels", daemon=True)
    thread.start()
    return thread


def _load() -> None:
    # Ignore errors: they occur again, and are reported, when the kernels are used.
    with suppress(Exception):
        from triton.runtime import cache, driver

        # Triton's hash of itself, which it needs to look up cached kernels.
        hashing = Thread(target=cache.triton_key, daemon=True)
        hashing.start()
        # Modules that Triton would load at the first kernel launch.
        from triton.experimental.gluon.nvidia import hopper  # noqa: F401

        from polyadic.scale.gpu.kernels import signals, steps  # noqa: F401

        _ = driver.active.utils
        hashing.join()


def power_of_two(count: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least `count` and `least`.

    Examples
    --------
    >>> power_of_two(33), power_of_two(3, least=16)
    (64, 16)
    """
    return max(least, 1 << max(count - 1, 0).bit_length())


def spacing(length: int) -> int:
    """Return the stride between channels that our kernels use, padded for long windows so that frames are aligned.

    Examples
    --------
    >>> spacing(128), spacing(3000)
    (128, 3072)
    """
    return length if length < 512 else -(-length // 128) * 128
