"""Fused GPU kernels in Triton and CUDA; torch's CUDA builds include everything they need.

Every kernel has an equivalent in plain torch, in `augment.Jitter`, `spectral.STFT` and `core.step`. Read those first;
they run wherever `available` returns False.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch

__all__ = ["available", "power_of_two"]


@cache
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


def power_of_two(count: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least `count` and `least`.

    Examples
    --------
    >>> power_of_two(33), power_of_two(3, least=16)
    (64, 16)
    """
    return max(least, 1 << max(count - 1, 0).bit_length())
