"""A direct implementation of the paper's Algorithm 2, without optimisation, as a reference for `python -m paper speed`.

It contracts the batch once for each mode and view, builds the full N × N matrix G(γ), loops over all N rows for the
fixed-point rule, and augments windows one by one, channel by channel, with scipy in the workers of a torch DataLoader.
The comparison is fair: contractions use BLAS, filters are designed once, and workers persist over sweeps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import interpolate, signal
from scipy.spatial.transform import Rotation
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from polyadic.augment import Augmentation, Bandpass, Compose, Jitter, Rotate3D
from polyadic.presets import Preset
from polyadic.spectral import STFT

_SHORTEST_NOISE = 100

Array = np.ndarray[Any, Any]


def step(
    T: Tensor, T_augmented: Tensor, bases: list[Tensor], alpha: float, beta: float, learning_rate: float
) -> list[Tensor]:
    """Run one mini-batch of Algorithm 2 with γ = N: both coefficient matrices, then A, B and C in turn.

    Parameters
    ----------
    T, T_augmented : (N, I, J, K)
    bases : A, B, C of shapes (I, R), (J, R), (K, R)

    Returns
    -------
    new bases
    """
    A, B, C = bases
    count, rank = len(T), A.shape[1]
    eye = torch.eye(rank, dtype=T.dtype)
    V3 = torch.linalg.inv((A.T @ A) * (B.T @ B) * (C.T @ C) + alpha * eye)
    V1, V1_augmented = (torch.einsum("nijk,ir,jr,kr->nr", view, A, B, C) for view in (T, T_augmented))
    X, X_augmented = V1 @ V3, V1_augmented @ V3
    G = torch.full((count, count), (count + 1) / (count * (count - 1)), dtype=T.dtype)
    G.fill_diagonal_(-1 / count)
    X = _improve_rows(V1, V3, X, X_augmented, G, beta)
    X_augmented = _improve_rows(V1_augmented, V3, X_augmented, X, G, beta)
    S = X.T @ X + X_augmented.T @ X_augmented
    pairs = ((T, X), (T_augmented, X_augmented))
    M = sum(torch.einsum("nijk,nr,jr,kr->ir", view, x, B, C) for view, x in pairs)
    A = (1 - learning_rate) * A + learning_rate * _solve_ridge(S * (B.T @ B) * (C.T @ C), M, alpha)
    M = sum(torch.einsum("nijk,nr,ir,kr->jr", view, x, A, C) for view, x in pairs)
    B = (1 - learning_rate) * B + learning_rate * _solve_ridge(S * (A.T @ A) * (C.T @ C), M, alpha)
    M = sum(torch.einsum("nijk,nr,ir,jr->kr", view, x, A, B) for view, x in pairs)
    C = (1 - learning_rate) * C + learning_rate * _solve_ridge(S * (A.T @ A) * (B.T @ B), M, alpha)
    return [A, B, C]


def _improve_rows(V1: Tensor, V3: Tensor, X: Tensor, X_other: Tensor, G: Tensor, beta: float) -> Tensor:
    """Solve Eqn. improved_x once for every row."""
    eye = torch.eye(len(V3), dtype=X.dtype)
    D = torch.diag(1 / torch.linalg.vector_norm(X_other, dim=1))
    directions = D @ X_other
    improved = torch.empty_like(X)
    for k in range(len(X)):
        x, v2 = X[k], G[k] @ directions
        norm = x @ x
        projector = eye - torch.outer(x, x) / norm
        improved[k] = (V1[k] - beta / 2 * (v2 @ projector) / norm.sqrt()) @ V3
    return improved


def _solve_ridge(S: Tensor, M: Any, alpha: float) -> Tensor:
    """Return M (S + alpha I)⁻¹."""
    solved: Tensor = torch.linalg.solve(S + alpha * torch.eye(len(S), dtype=S.dtype), M.T)
    return solved.T


class AugmentedPairs(Dataset[tuple[Tensor, Tensor]]):
    """A dataset of windows and their augmentations, computed in the workers of a loader (appendix D.3).

    Parameters
    ----------
    X : (N, channels, time)
    augment : augmentations of a preset: jitter, bandpass and, for three-axis sensors, rotation, in this order
    """

    def __init__(self, X: Array, augment: Augmentation) -> None:
        steps = augment.steps if isinstance(augment, Compose) else (augment,)
        self.X = X
        self.degree = 0.0
        self.filters: list[tuple[Array, Array]] = []
        self.triads: tuple[tuple[int, int, int], ...] = ()
        for step in steps:
            if isinstance(step, Jitter):
                self.degree = step.degree
            if isinstance(step, Bandpass):
                self.filters = [signal.butter(1, band, btype="bandpass", fs=step.fs) for band in step.bands]
            if isinstance(step, Rotate3D):
                self.triads = tuple(step.triads)

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        window = self.X[number].astype(np.float32)
        # A loader sets a different torch seed in every worker.
        rng = np.random.default_rng(int(torch.randint(2**62, ())))
        view = np.stack([self._augment_channel(channel, rng) for channel in window])
        matrix = Rotation.random(random_state=rng).as_matrix()
        for triad in self.triads:
            view[list(triad)] = matrix @ view[list(triad)]
        return torch.from_numpy(window), torch.from_numpy(view.astype(np.float32))

    def _augment_channel(self, channel: Array, rng: np.random.Generator) -> Array:
        """Add noise to one channel and filter it."""
        if self.degree > 0:
            channel = channel + self.degree * np.ptp(channel) / 2 * _sample_noise(len(channel), rng)
        kind = rng.integers(3)
        for number, (b, a) in enumerate(self.filters):
            if kind != 1 - number:
                channel = signal.lfilter(b, a, channel)
        return channel


def _sample_noise(length: int, rng: np.random.Generator) -> Array:
    """Sample fast noise, slow noise, or both, each in [-1, 1]."""
    kind = rng.integers(3)
    noise = np.zeros(length)
    if kind != 1:
        noise += rng.uniform(-1, 1, length)
    if kind != 0:
        size = rng.integers(min(_SHORTEST_NOISE, length), length + 1)
        slow = interpolate.interp1d(np.linspace(0, 1, size), rng.uniform(-1, 1, size))
        noise += slow(np.linspace(0, 1, length))
    return noise


def spectra(X: Tensor, settings: STFT) -> Tensor:
    """Return log|Re| and log|Im| of the short-time spectra of a batch, with plain torch calls.

    Parameters
    ----------
    X : (N, channels, time)
    settings : an STFT with a rectangular window, parts "log_re_im" and a fixed floor, as in the presets

    Returns
    -------
    (N, 2 · channels, n_fft // 2 + 1, frames)
    """
    window = torch.ones(settings.n_fft, dtype=X.dtype)
    rows = X.reshape(-1, X.shape[2])
    Z = torch.stft(rows, settings.n_fft, settings.hop, window=window, center=False, return_complex=True)
    Z = Z.reshape(*X.shape[:2], *Z.shape[1:])
    floor = torch.as_tensor(settings.floor, dtype=X.dtype).expand(X.shape[1])[:, None, None]
    return torch.cat([torch.log(Z.real.abs() + floor), torch.log(Z.imag.abs() + floor)], dim=1)


class TextbookSweeps:
    """Runs sweeps over windows with persistent workers, one per call of `sweep`.

    Parameters
    ----------
    X : (N, channels, time)
    settings, tensorize : a preset, and its STFT with a fixed floor
    bases : initial values
    workers : number of processes that augment; 0 for none
    """

    def __init__(self, X: Array, settings: Preset, tensorize: STFT, bases: list[Tensor], workers: int) -> None:
        self.tensorize, self.bases = tensorize, bases
        self.parameters = {name: settings.parameters[name] for name in ("alpha", "beta", "learning_rate")}
        self.loader = DataLoader(
            AugmentedPairs(X, settings.augment),
            batch_size=settings.parameters["batch_size"],
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def sweep(self) -> None:
        """Run one sweep over all windows."""
        for window, view in self.loader:
            T, T_augmented = spectra(window, self.tensorize), spectra(view, self.tensorize)
            self.bases = step(T, T_augmented, self.bases, **self.parameters)
