"""Fused GPU kernels in Triton and CUDA; torch's CUDA builds include everything they need.

Every kernel has an equivalent in plain torch, in `augment.Jitter`, `spectral.STFT` and `core.step`. Read those first;
they run wherever `available` returns False.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch


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
