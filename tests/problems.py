"""Small random tensor problems, and how results are compared with the oracles'."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from polyadic import ATD
from polyadic.augment import Augmentation
from polyadic.core.algebra import squared_norms
from polyadic.core.compression import Compression
from polyadic.core.moments import Block, Moments
from polyadic.core.tensorizer import Tensorizer


@dataclass(frozen=True)
class OwnTensors(Tensorizer):
    """A tensorizer of one's own, any function of a batch."""

    function: Callable[[torch.Tensor], Any]

    def transform(self, X: torch.Tensor) -> Any:
        return self.function(X)


@dataclass(frozen=True)
class OwnView(Augmentation):
    """An augmentation of one's own for tensors of any shape, any function of a batch."""

    function: Callable[[torch.Tensor], Any]

    def check(self, X: torch.Tensor) -> None:
        pass

    def apply(self, X: torch.Tensor, keys: torch.Tensor) -> Any:
        return self.function(X)


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.from_numpy(scale * np.random.default_rng(seed).normal(size=shape))


def two_views(count: int, shape: tuple[int, ...], seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Windows and slightly perturbed copies of them, stacked: (2 · count, I, J, …)."""
    T = draw(count, *shape, seed=seed, scale=scale)
    return torch.cat([T, T + draw(count, *shape, seed=seed + 1000, scale=0.2 * scale)])


def bases(shape: tuple[int, ...], rank: int, seed: int = 0) -> list[torch.Tensor]:
    return [draw(size, rank, seed=100 * seed + mode) for mode, size in enumerate(shape)]


def moments_of(T: torch.Tensor, compression: Compression | None = None, sizes: tuple[int, ...] = (9,)) -> Moments:
    """Return the moments of tensors (N, I, J, …), added in blocks of these sizes in turn."""
    compression = compression or Compression.none(T.shape[1:])
    moments, first = Moments(compression, len(T), dtype=T.dtype), 0
    while first < len(T):
        for size in sizes:
            part = T[first : first + size]
            if len(part):
                ids = torch.arange(first, first + len(part))
                c, none = compression.compress(part), part.new_zeros(len(part), 0)
                moments.add(Block(ids, c, squared_norms(part), none))
            first += size
    moments.finish()
    return moments


def classes_of_tensors(
    shape: tuple[int, ...] = (3, 4, 5), n_classes: int = 3, count: int = 90, seed: int = 0, strength: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Noisy tensors whose means differ by class: (count, I, J, …), and their classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % n_classes
    means = rng.normal(size=(n_classes, *shape))
    return rng.normal(size=(count, *shape)) + strength * means[y], y


def decaying(count: int = 60, shape: tuple[int, ...] = (4, 5, 6)) -> np.ndarray:
    """Tensors (count, I, J, …) whose singular values fall quickly."""
    rng = np.random.default_rng(0)
    size = int(np.prod(shape))
    spread = 0.8 ** np.arange(min(count, size))
    left = np.linalg.qr(rng.normal(size=(count, len(spread)))).Q
    right = np.linalg.qr(rng.normal(size=(size, len(spread)))).Q
    return ((left * spread) @ right.T + 2.0).reshape(count, *shape)


def arrays(tensors: Iterable[torch.Tensor]) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in tensors]


def assert_same(found: Iterable[Any], expected: Iterable[Any], rtol: float = 1e-9, atol: float = 1e-10) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def paper(kind: Any, rank: int = 32, **parameters: Any) -> Any:
    """Return an estimator as in the paper except for these parameters: tensors in, coefficients out, mini-batches."""
    settings = {"tensorize": None, "readout": None, "nonnegative": False, "solver": "blend", "batch_size": 128}
    if issubclass(kind, ATD):
        settings |= {"augment": None, "beta": 2.0}
    return kind(rank, **{**settings, **parameters})
