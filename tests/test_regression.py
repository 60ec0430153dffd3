"""Results of fits in 0.1.0, on signals that are the same on every machine: changes of the code must not change them."""

from __future__ import annotations

import numpy as np
import pytest
from problems import paper

from polyadic import ATD, GRSALS, SALS
from polyadic.augment import Bandpass, Compose, Jitter
from polyadic.data import synthetic
from polyadic.spectral import STFT

SETTINGS = {
    "rank": 4,
    "tensorize": STFT(n_fft=32, hop=8, floor="channel"),
    "max_sweeps": 6,
    "tol": 0.0,
    "device": "cpu",
}
VIEWS = {"augment": Compose([Jitter(0.05), Bandpass([(2, 24), (4, 20)], fs=64)])}
MODELS = {
    "ATD": lambda: paper(ATD, **SETTINGS, **VIEWS),
    "ATD, memory": lambda: paper(ATD, **SETTINGS, **VIEWS, solver="memory"),
    "ATD, full batch": lambda: paper(ATD, **SETTINGS, **VIEWS, batch_size=None),
    "SALS": lambda: paper(SALS, **SETTINGS),
    "GR-SALS": lambda: paper(GRSALS, **SETTINGS),
}
KNOWN = {
    "ATD": (1.70995e06, 1.43521e06, 321.012, 0.085944),
    "ATD, memory": (1.52317e06, 823736, 68.5307, 0.309284),
    "ATD, full batch": (1.71104e06, 821671, 68.1775, 0.310280),
    "SALS": (892171, 730729, 371.19, 0.116042),
    "GR-SALS": (892170, 730687, 371.161, 0.116075),
}
"""First and last loss, the norm of all coefficients, and the fit."""


@pytest.mark.parametrize("name", list(MODELS))
def test_fits_reproduce_earlier_results(name):
    signals = synthetic(240, n_channels=4, length=128)
    model = MODELS[name]().fit(signals)
    norm = np.linalg.norm(np.asarray(model.transform(signals), np.float64))
    found = (model.history_["loss"][0], model.history_["loss"][-1], norm, model.score(signals))
    assert found == pytest.approx(KNOWN[name], rel=1e-3)
