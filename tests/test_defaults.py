"""The default settings from raw windows to features: front end, second moments, readout, and what each promises."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from sklearn.base import clone

from polyadic import ATD, CPD, GRSALS, SALS, estimators
from polyadic.augment import Augmentation, Jitter
from polyadic.core import passes
from polyadic.data import Windows, synthetic
from polyadic.errors import CheckpointError, PolyadicError
from polyadic.presets import preset
from polyadic.spectral import STFT, recommended_stft
from polyadic.statistics import statistic_names

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(90, 3, 96)).cumsum(axis=2)
SHORT = {"max_sweeps": 3, "tol": 0.0, "device": "cpu"}


def continuous(count: int = 90, length: int = 64, channels: int = 2) -> Windows:
    """Windows of two recordings, one after the other, half overlapping."""
    signals = np.random.default_rng(1).normal(size=(2, channels, (count + 1) * length // 2)).cumsum(axis=2)
    starts = np.arange(count // 2) * length // 2
    pieces = [signal[:, start : start + length] for signal in signals for start in starts]
    names = [name for name in "ab" for _ in starts]
    return Windows(np.stack(pieces), fs=50.0, recording=names, start=np.tile(starts, 2), channels=["x", "y"][:channels])


@pytest.fixture(scope="module")
def model() -> CPD:
    return CPD(4, **SHORT).fit(X)


# -------------------------------------------------------------------- what "auto" becomes


def test_raw_windows_become_centred_log_amplitudes_and_all_else_is_a_tensor(model: CPD) -> None:
    front = model.tensorize_
    assert (front.n_fft, front.hop, front.parts) == (32, 4, "log_amplitude")
    np.testing.assert_allclose(front(torch.from_numpy(X)).mean(dim=(0, 3)), 0, atol=1e-10)
    tensors = np.random.default_rng(0).normal(size=(30, 3, 4, 5))
    assert SALS(2, **SHORT).fit(tensors).tensorize_ is None
    with pytest.raises(PolyadicError, match="at least 32 samples, but they have 20: cut longer ones"):
        CPD(2).fit(X[:, :, :20])
    assert GRSALS(2, **SHORT).fit(X).tensorize_.parts == "log_amplitude"


# ------------------------------------------------------------------- which method it is


def test_constructors_have_the_parameters_of_the_design_and_no_more() -> None:
    cpd = {"rank", "tensorize", "readout", "nonnegative", "restarts", "consensus", "alpha", "max_sweeps", "tol"}
    cpd |= {"compression", "patience", "device", "random_state", "verbose"}
    assert set(CPD().get_params(deep=False)) == cpd
    assert len(cpd) <= 14
    sals = (cpd - {"compression"}) | {"solver", "learning_rate", "batch_size"}
    assert set(SALS().get_params(deep=False)) == sals
    assert set(ATD().get_params(deep=False)) == sals | {"augment", "beta", "gamma", "rounds"}
    assert set(GRSALS().get_params(deep=False)) == sals | {"graph_weight"}


def test_each_estimator_is_another_method() -> None:
    fits = {kind: kind(4, **SHORT).fit(X) for kind in (CPD, ATD, SALS, GRSALS)}
    terms = {kind: [n for n, values in fit.history_.items() if np.any(values)][:-1] for kind, fit in fits.items()}
    assert terms == {
        CPD: ["loss", "fit", "tikhonov"],
        ATD: ["loss", "fit", "fit_augmented", "tikhonov", "self_supervised"],
        SALS: ["loss", "fit", "tikhonov"],
        GRSALS: ["loss", "fit", "tikhonov", "graph"],
    }
    used = {kind: (fit.solver_, fit.batch_size_) for kind, fit in fits.items()}
    assert used == {CPD: ("moments", None), ATD: ("blend", None), SALS: ("blend", 128), GRSALS: ("blend", 128)}
    assert len({fit.factors_[0].tobytes() for fit in fits.values()}) == 4
    without = ATD(4, beta=0, **SHORT).fit(X)  # the paper's ATD_ss-: two views, no self-supervised loss
    assert not np.any(without.history_["self_supervised"])
    assert min(without.history_["fit_augmented"]) > 0
    assert not np.array_equal(without.factors_[0], fits[ATD].factors_[0])
    assert (ATD().augment, ATD().beta) == (Jitter(0.05), 2.0)


@dataclass(frozen=True)
class Counted(Augmentation):
    """Counts how often it is applied, and with how many different keys."""

    calls: list[int] = field(default_factory=list)
    keys: set[int] = field(default_factory=set)

    def apply(self, X: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(X))
        self.keys.update(keys.tolist())
        return 0.9 * X


def test_atd_is_algorithm_1_if_tensors_and_views_fit_into_memory_and_algorithm_2_otherwise(monkeypatch) -> None:
    front = recommended_stft(96).calibrated(torch.from_numpy(X))
    needed = 2 * len(X) * 8 * math.prod(front.shape(3, 96))  # windows and views in float64
    for limit, size, views in ((needed, None, 90), (needed - 1, 128, 3 * 90)):
        monkeypatch.setattr(estimators.paper, "KEPT_BYTES", limit)
        augment = Counted()
        model = ATD(4, augment=augment, beta=0.05, **SHORT).fit(X)
        assert model.batch_size_ == size
        # Algorithm 1 has one view of each window, Algorithm 2 a new one in each of three sweeps.
        assert len(augment.keys) == views
    monkeypatch.setattr(estimators.paper, "KEPT_BYTES", 2**30)
    assert ATD(4, batch_size=40, **SHORT).fit(X).batch_size_ == 40


def test_presets_are_algorithm_2_with_their_batch_size_and_new_views_in_every_sweep() -> None:
    settings, augment = preset("har"), Counted()
    windows = np.random.default_rng(0).normal(size=(3, *settings.shape)).astype(np.float32)
    model = ATD(**settings.parameters, tensorize=settings.tensorize, augment=augment)
    model.set_params(device="cpu", max_sweeps=2, tol=0).fit(windows)
    assert (model.solver_, model.batch_size_) == ("blend", settings.parameters["batch_size"])
    assert (model.beta, model.readout, model.nonnegative_) == (settings.parameters["beta"], None, False)
    assert len(augment.keys) == 2 * 3


# ---------------------------------------------------------------------------------- readout


def test_transform_is_the_readout_of_coefficients_and_statistics(model: CPD) -> None:
    x, Z = model.coefficients(X), model.transform(X)
    expected = model.readout_.features(torch.from_numpy(x), torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(Z, expected, atol=1e-12)
    assert x.shape == (90, 4)
    assert Z.shape == (90, 4 + 48)
    assert Z[:, :4].var(axis=0).sum() == pytest.approx(4, rel=1e-4)  # from compressed windows
    assert list(model.get_feature_names_out()) == ["z1", "z2", "z3", "z4", *statistic_names("123", X.shape[2])]


def test_features_and_coefficients_lead_back_to_the_same_tensors_with_their_mean(model: CPD) -> None:
    T = model.reconstruct(model.coefficients(X))
    np.testing.assert_allclose(model.inverse_transform(model.transform(X)), T, atol=1e-9)
    log_spectra = STFT(32, 4, parts="log_amplitude", floor=model.tensorize_.floor)(torch.from_numpy(X)).numpy()
    assert np.abs(log_spectra.mean(axis=(0, 3)) - T.mean(axis=(0, 3))).max() < 0.5 * log_spectra.std()
    centred = model.tensorize_(torch.from_numpy(X)).numpy()
    error = np.linalg.norm(log_spectra - T) / np.linalg.norm(centred)
    assert 1 - error == pytest.approx(model.score(X), abs=1e-9)
    with pytest.raises(PolyadicError, match=r"Z must have shape \(N, 52\), but has shape \(90, 4\)"):
        model.inverse_transform(model.coefficients(X))
    with pytest.raises(PolyadicError, match=r"x must have shape \(N, 4\), but has shape \(90, 52\)"):
        model.reconstruct(model.transform(X))


def test_components_that_moved_have_no_readout_until_it_is_fitted(model: CPD) -> None:
    model = clone(model).fit(X).partial_fit(X)
    assert model.coefficients(X[:5]).shape == (5, 4)
    with pytest.raises(PolyadicError, match=r"call fit_readout\(X\) with unlabelled windows, or coefficients\(X\)"):
        model.transform(X)
    assert model.fit_readout(X).transform(X).shape == (90, 52)


# ------------------------------------------------------------------------------------ files


def test_a_fit_stopped_after_its_passes_resumes_without_reading_the_data(tmp_path, monkeypatch) -> None:
    expected = CPD(4, **SHORT).fit(X)

    def stop(*_) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CPD, "_fit_readout", stop)
        with pytest.raises(KeyboardInterrupt):
            CPD(4, **SHORT).fit(X, checkpoint=tmp_path / "c")
    monkeypatch.setattr(passes, "add_windows", lambda *_, **__: iter(()))
    resumed = CPD(4, **SHORT).fit(X, checkpoint=tmp_path / "c", resume=True)
    np.testing.assert_array_equal(resumed.transform(X), expected.transform(X))
    with pytest.raises(CheckpointError, match="belongs to another fit"):
        CPD(4, nonnegative=False, **SHORT).fit(X, checkpoint=tmp_path / "c", resume=True)


# ------------------------------------------------------------------ more features than components


def test_defaults_give_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CPD(4, device="cpu").fit(synthetic(200, n_channels=2, length=128))
    assert recommended_stft(128, 64.0).mean == "auto"
