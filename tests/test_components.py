"""Components for a person: the rank at which they replicate, none in noise, and bands that cover planted profiles."""

from __future__ import annotations

import numpy as np
import pytest

from polyadic import load
from polyadic.data import synthetic
from polyadic.errors import PolyadicError
from polyadic.explain import components, expression, match
from polyadic.explain.components import _band
from polyadic.explain.expression import profiles
from polyadic.scale import Moments

SIZES = (6, 12, 5)


def noise(exponent: float, channels: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """480 windows of noise of 12 subjects, with power 1/f to this exponent, also at periods longer than a window."""
    spectra = np.fft.rfft(np.random.default_rng(seed).normal(size=(480, channels, 1024)))
    spectra[..., 1:] /= np.arange(1, spectra.shape[2]) ** (exponent / 2)
    spectra[..., 0] = 0
    return np.fft.irfft(spectra)[..., :256].astype(np.float32), np.repeat(np.arange(12), 40)


def planted(seed: int, subjects: int = 40) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Three non-negative components, tensors of 30 windows of each subject that express them, and the subjects."""
    random = np.random.default_rng(seed)
    true = [np.exp(random.normal(size=(size, 3))) * (random.random((size, 3)) < 0.7) for size in SIZES]
    true = [factor + 0.01 * (factor.sum(axis=0) == 0) for factor in true]
    subject = np.repeat(np.arange(subjects), 30)
    x = random.normal(size=(subjects, 3))[subject] + random.normal(size=(len(subject), 3))
    T = np.einsum("nr,ir,jr,kr->nijk", x, *true)
    return true, T + 0.5 * T.std() * random.normal(size=T.shape), subject


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("exponent", [0.0, 1.0], ids=["white", "1/f"])
def test_noise_has_no_components(exponent, channels):
    X, subject = noise(exponent, channels)
    found = components(X, subject, restarts=2, refits=2)
    assert found.rank == 0
    assert found.model is None
    assert repr(found) == "Components: none replicate in halves of the 12 subjects"


def test_planted_components_are_found_and_others_are_counted():
    true, T, subject = planted(0)
    moments = Moments.collect(T, tensorize=None, groups=subject)
    found = components(moments, rank=3, restarts=3, replicates=20)
    assert match(true, found.model).similarity.min() > 0.98
    assert (found.rank, found.left_out, found.n_subjects) == (3, 0, 40)
    assert [band.shape for band in found.bands] == [(2, size, 3) for size in SIZES]
    assert all((low <= high).all() and (low >= 0).all() for low, high in found.bands)
    more = components(moments, rank=6, restarts=3, replicates=0)
    assert more.rank == 6
    assert more.model.rank + more.left_out == 6
    assert more.left_out > 0


def test_components_are_a_model_with_expression_that_is_saved(tmp_path):
    windows = synthetic(120, n_channels=2)
    found = components(windows, rank=2, restarts=2, replicates=2)
    assert (found.bands is None) == (found.n_subjects < 10)
    found.model.save(tmp_path / "components.safetensors")
    again = load(tmp_path / "components.safetensors")
    assert np.array_equal(expression(again, windows), expression(found.model, windows))
    assert again.replicability_.replicates.all()


def test_bands_are_one_sided_where_a_profile_is_zero():
    low, high = _band(np.array([[0.0], [0.5]]), [np.array([[value], [value]]) for value in np.linspace(0, 1, 101)])
    assert low[:, 0] == pytest.approx([0.0, 0.05])
    assert high[:, 0] == pytest.approx([0.9, 0.95])


def test_subjects_are_needed():
    with pytest.raises(PolyadicError, match="fewer than two are known"):
        components(np.zeros((4, 2, 64)))


@pytest.mark.long
def test_bands_cover_planted_profiles_in_about_90_percent():
    covered = []
    for seed in range(10):
        true, T, subject = planted(seed)
        found = components(Moments.collect(T, tensorize=None, groups=subject), rank=3, restarts=3, replicates=100)
        pairs = match(found.model, true)
        for factor, (low, high) in zip(true, found.bands, strict=True):
            own = profiles(factor[:, pairs.b])
            large = own > 0.1 * own.max(axis=0)
            covered.append(((low <= own) & (own <= high))[:, pairs.a][large])
    assert 0.85 <= np.concatenate(covered).mean() <= 0.95
