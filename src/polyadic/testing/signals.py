"""Test signals of the contracts."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FLOATS", "example_windows"]

FLOATS = (torch.float32, torch.float64)


def example_windows(shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """Return windows (windows, channels, time), on the CPU: a slow wave, noise and an offset on each channel."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    phase, offset = torch.rand((2, *shape[:2], 1), generator=generator, dtype=torch.float64)
    time = torch.arange(shape[2], dtype=torch.float64)
    X: Tensor = torch.sin(time / 10 + 6 * phase) + 0.5 * noise + offset
    return X.to(dtype)
