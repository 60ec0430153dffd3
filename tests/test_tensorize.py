"""The Tensorizer interface: a wavelet and a small network as well as the STFT, and faults found by the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from problems import paper
from torch import Tensor

from polyadic import SALS, load, plot, report
from polyadic.core.tensorizer import (
    Axis,
    Tensorizer,
    channel_axis,
    tensors,
    time_axis,
)
from polyadic.data import Windows, synthetic
from polyadic.spectral import STFT
from polyadic.testing import TensorizerContract


@dataclass(frozen=True)
class Haar(Tensorizer):
    """Log magnitudes of Haar wavelet coefficients: (channels, levels, blocks of the coarsest level)."""

    levels: int = 3
    scale: float | None = None

    def transform(self, X: Tensor) -> Tensor:
        T = torch.einsum("bcks,lds->bclkd", self._blocks(X), torch.as_tensor(self._wavelets()).to(X))
        magnitude = T.square().mean(dim=-1).sqrt() / (self.scale or 1.0)
        return torch.log(magnitude + 0.01)

    def _blocks(self, X: Tensor) -> Tensor:
        size = 2**self.levels
        return X[..., : X.shape[-1] // size * size].unfold(2, size, size)

    def _wavelets(self) -> np.ndarray:
        """Of each level, shifted through a block; short levels are repeated: (levels, shifts, samples)."""
        size = 2**self.levels
        rows = np.zeros((self.levels, size // 2, size))
        for level in range(self.levels):
            length = 2 ** (level + 1)
            mother = np.repeat([1.0, -1.0], length // 2) / np.sqrt(length)
            for shift in range(size // 2):
                begin = shift % (size // length) * length
                rows[level, shift, begin : begin + length] = mother
        return rows

    @property
    def is_calibrated(self) -> bool:
        return self.scale is not None

    def calibrated(self, X: Tensor, units: Sequence[str] = ()) -> Haar:
        return self if self.is_calibrated else self.with_params(scale=float(X.std()) or 1.0)

    def shape(self, *sample_shape: int) -> tuple[int, ...]:
        return sample_shape[0], self.levels, sample_shape[1] // 2**self.levels

    def axes(self, sample_shape: Any, labels: Any, fs: float | None) -> list[Axis]:
        _, levels, blocks = self.shape(*sample_shape)
        size = 2**self.levels
        centres = np.arange(blocks) * size + (size - 1) / 2
        scales = Axis("other", "wavelet level", np.arange(1.0, levels + 1))
        return [channel_axis(labels), scales, time_axis(centres, fs)]


class TestSTFT(TensorizerContract):
    tensorizer = STFT(n_fft=32, hop=8)


class TestHaar(TensorizerContract):
    tensorizer = Haar()


# ------------------------------------------------------------------- the contract


@dataclass(frozen=True)
class Broken(Tensorizer):
    """A tensorizer with one fault."""

    fault: str = ""

    def transform(self, X: Tensor) -> Tensor:
        T = X.unfold(2, 16, 16).abs()
        faults = {
            "batch": lambda: T - T.mean(dim=0),
            "infinite": lambda: T.log(),
            "flat": lambda: T.flatten(),
            "changes": lambda: X.neg_().unfold(2, 16, 16).abs(),
            "type": lambda: T.float(),
        }
        return faults.get(self.fault, lambda: T)()

    def shape(self, *sample_shape: int) -> tuple[int, ...] | None:
        return (1, 2) if self.fault == "shape" else None

    def axes(self, sample_shape: Any, labels: Any, fs: float | None) -> list[Axis] | None:
        return [channel_axis(labels)] if self.fault == "axes" else None

    def into(self, X: Tensor, T: Tensor) -> Tensor | None:
        T.copy_(tensors(self, X) + (self.fault == "into"))
        return None

    def calibrated(self, X: Tensor, units: Sequence[str] = ()) -> Broken:
        return self.with_params(fault="louder") if self.fault == "recalibrates" and float(X.std()) > 100 else self

    @property
    def is_calibrated(self) -> bool:
        return self.fault != "never calibrated"


@pytest.mark.parametrize(
    ("test", "fault"),
    [
        ("test_a_window_becomes_the_same_tensor_whatever_its_batch", "batch"),
        ("test_every_window_becomes_a_finite_real_tensor", "infinite"),
        ("test_every_window_becomes_a_finite_real_tensor", "flat"),
        ("test_every_window_becomes_a_finite_real_tensor", "type"),
        ("test_input_is_not_changed", "changes"),
        ("test_into_fills_what_transform_returns", "into"),
        ("test_shape_and_axes_fit_the_tensors", "shape"),
        ("test_shape_and_axes_fit_the_tensors", "axes"),
        ("test_it_is_calibrated_once", "never calibrated"),
    ],
)
def test_the_contract_detects_broken_implementations(test: str, fault: str) -> None:
    class Contract(TensorizerContract):
        tensorizer = Broken(fault)

    with pytest.raises(AssertionError):
        getattr(Contract(), test)()
    Contract.tensorizer = Broken()
    getattr(Contract(), test)()


# --------------------------------------------------------- a wavelet from end to end


@pytest.fixture(scope="module")
def signals() -> Windows:
    return synthetic(60, n_channels=3, length=160)


def test_a_wavelet_model_is_fitted_saved_loaded_plotted_and_reported(signals, tmp_path):
    model = paper(SALS, rank=3, tensorize=Haar(), max_sweeps=3).fit(signals)
    assert model.tensorize_.scale is not None
    assert [factor.shape for factor in model.factors_] == [(3, 3), (3, 3), (20, 3)]
    assert [axis.title for axis in model.axes()] == ["channel", "wavelet level", "time (s)"]
    Z = model.transform(signals)
    model.save(tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert again.tensorize_ == model.tensorize_
    assert np.array_equal(again.transform(signals), Z)
    assert plot.components(model, signals).data
    report.write(tmp_path / "report.html", model, signals)
    assert "wavelet level" in (tmp_path / "report.html").read_text()
