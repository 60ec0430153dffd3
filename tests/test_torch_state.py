"""Fits, features and views do not depend on torch's global settings, and do not change them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from problems import paper

from polyadic import ATD, CPD, SALS, export, load
from polyadic.augment import Bandpass, Compose, Jitter, OneOf, Rotate3D
from polyadic.baselines import MiniRocket, PCAFeatures
from polyadic.data import synthetic
from polyadic.spectral import STFT

SIGNALS = synthetic(48, n_channels=3, length=128)
FRAMES = STFT(n_fft=32, hop=16)
VIEWS = Compose([Jitter(0.05), Bandpass([(2, 24), (4, 20)], fs=64), Rotate3D([(0, 1, 2)])])


@contextmanager
def unusual_settings() -> Iterator[None]:
    """Set torch's default device, default type and autocast as no code may expect them."""
    before = torch.get_default_device(), torch.get_default_dtype()
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield
    finally:
        torch.set_default_device(before[0])
        torch.set_default_dtype(before[1])


MODELS = {
    "ATD": lambda: paper(ATD, rank=3, tensorize=FRAMES, augment=VIEWS, max_sweeps=2),
    "PCA": lambda: PCAFeatures(dim=4, tensorize=FRAMES),
    "MiniRocket": lambda: MiniRocket(),
}


def features(make: Any, tmp_path: Any) -> np.ndarray:
    model = make().fit(SIGNALS, SIGNALS.label)
    Z = np.asarray(model.transform(SIGNALS))
    if isinstance(model, CPD):
        model.save(tmp_path / "m.safetensors")
        assert np.array_equal(np.asarray(load(tmp_path / "m.safetensors").transform(SIGNALS)), Z)
    return Z


@pytest.mark.parametrize("name", list(MODELS))
def test_models_do_not_depend_on_torchs_global_settings(name, tmp_path):
    plain = features(MODELS[name], tmp_path)
    with unusual_settings():
        assert np.array_equal(features(MODELS[name], tmp_path), plain)


def test_views_tensors_and_exports_do_not_depend_on_torchs_global_settings(tmp_path):
    def outcome() -> list[Any]:
        X = torch.from_numpy(SIGNALS.X)
        model = paper(SALS, rank=2, tensorize=FRAMES, max_sweeps=2).fit(SIGNALS)
        export.onnx(model, tmp_path / "m.onnx")
        return [
            OneOf([VIEWS, Jitter(0.1)])(X).numpy(),
            FRAMES(X).numpy(),
            model.score(SIGNALS),
            model.inverse_transform(model.transform(SIGNALS)),
            np.frombuffer((tmp_path / "m.onnx").read_bytes(), np.uint8),
        ]

    plain = outcome()
    with unusual_settings():
        assert all(np.array_equal(one, other) for one, other in zip(outcome(), plain, strict=True))
