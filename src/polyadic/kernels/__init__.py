"""Fused kernels for a GPU, in Triton and CUDA, for which torch's CUDA builds bring all that is needed.

Nothing here computes anything that plain torch code elsewhere does not compute as well: `augment.Jitter`,
`spectral.STFT` and `als.step` are the plain versions to read first, and what runs wherever `available` says no.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec

import torch

__all__ = ["available", "power_of_two", "spacing"]


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
