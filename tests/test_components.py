"""Components for a person and `polyadic rank`: they replicate, none are in noise, and bands cover planted profiles."""

from __future__ import annotations

import json
from importlib import import_module

import numpy as np
import pytest
from command_line import polyadic

from paper.components import cover_planted, planted
from polyadic import CPD, load
from polyadic.data import synthetic
from polyadic.errors import PolyadicError
from polyadic.explain import Replicability, components, expression, match
from polyadic.explain.components import _band, distinct_components
from polyadic.scale import Moments

SIZES = (6, 12, 5)
FEWER_RANKS = """
from importlib import import_module
import_module("polyadic.explain.components")._RANKS = (4, 2)
from polyadic.cli import main
main()
"""


def noise(exponent: float, channels: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """480 windows of noise of 12 subjects, with power 1/f to this exponent, also at periods longer than a window."""
    spectra = np.fft.rfft(np.random.default_rng(seed).normal(size=(480, channels, 1024)))
    spectra[..., 1:] /= np.arange(1, spectra.shape[2]) ** (exponent / 2)
    spectra[..., 0] = 0
    return np.fft.irfft(spectra)[..., :256].astype(np.float32), np.repeat(np.arange(12), 40)


@pytest.mark.parametrize("channels", [1, pytest.param(4, marks=pytest.mark.long)])
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


def test_moments_of_a_fit_are_those_of_a_pass_of_their_own_and_do_not_change_the_fit():
    windows = synthetic(60, n_channels=2)
    model = CPD(rank=2)
    kept = model.fit_with_moments(windows, windows.subject)
    alone = CPD(rank=2).fit(windows)
    assert all(np.array_equal(a, b) for a, b in zip(model.factors_, alone.factors_, strict=True))
    again = Moments.collect(windows, groups=windows.subject)
    assert kept.groups == again.groups
    assert kept.n_windows == 60
    for names in (None, kept.groups[:2], [kept.groups[0]] * 2):
        assert kept.of(names).energy == pytest.approx(again.of(names).energy, rel=1e-5)
        traces = [float(moments.of(names).second.trace()) for moments in (kept, again)]
        assert traces[0] == pytest.approx(traces[1], rel=1e-3)


def test_samples_of_subjects_have_the_moments_of_merged_subjects():
    windows = synthetic(60, n_channels=2)
    moments = Moments.collect(windows, groups=windows.subject)
    count = len(moments.groups)
    counts = np.random.default_rng(0).multinomial(count, [1 / count] * count, 3)
    for row, sample in zip(counts, moments.resampled(counts), strict=True):
        merged = moments.of(np.repeat(moments.groups, row).tolist())
        assert sample.energy == pytest.approx(merged.energy)
        np.testing.assert_allclose(sample.second, merged.second, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("noisy", [False, True], ids=["rhythms", "1/f noise"])
def test_the_command_stores_components_beside_the_features(tmp_path, noisy):
    windows = synthetic(120, n_channels=2, length=64)
    X, subject = noise(1.0, 1) if noisy else (windows.X, windows.subject)
    np.savez(tmp_path / "w.npz", X=X, subject=subject, fs=64)
    words = ("-c", FEWER_RANKS, "fit", "w.npz", "--rank", 4, "-o", "m.safetensors", "--components", "--json")
    told = json.loads(polyadic(*words, cwd=tmp_path).stdout)
    model = load(tmp_path / "m.safetensors")
    assert model.rank == 4
    assert told["components"] == model.components_.to_dict()
    shown = 0 if noisy else model.components_.model.rank
    assert (model.components_.rank == 0) == noisy
    assert shown + model.components_.left_out == model.components_.rank
    assert expression(model, X[:5]).shape == (5, shown)
    plain = polyadic("fit", "w.npz", "--rank", 4, "-o", "n.safetensors", "--no-components", cwd=tmp_path)
    assert "components" not in plain.stdout
    same = load(tmp_path / "n.safetensors")
    assert not hasattr(same, "components_")
    assert all(np.array_equal(*both) for both in zip(same.factors_, model.factors_, strict=True))


def test_bands_are_one_sided_where_a_profile_is_zero():
    low, high = _band(np.array([[0.0], [0.5]]), [np.array([[value], [value]]) for value in np.linspace(0, 1, 101)])
    assert low[:, 0] == pytest.approx([0.0, 0.05])
    assert high[:, 0] == pytest.approx([0.9, 0.95])


def test_subjects_that_share_moments_are_called_groups(monkeypatch):
    windows = synthetic(120, n_channels=2)
    monkeypatch.setattr(import_module("polyadic.scale.moments"), "most_groups", lambda width: 12)
    found = components(windows, rank=2, restarts=1, replicates=0)
    assert "in halves of the 12 groups of subjects" in repr(found)
    assert found.to_dict()["grouped"]


def test_windows_in_double_precision_have_the_components_of_single_precision():
    windows = synthetic(60, n_channels=2)
    given = {"rank": 2, "restarts": 2, "refits": 2}
    single, double = (components(windows.X.astype(kind), windows.subject, **given) for kind in ("f4", "f8"))
    assert single.n_subjects == double.n_subjects
    assert single.model.factors_[1] == pytest.approx(double.model.factors_[1], rel=1e-2, abs=1e-3)


def test_subjects_are_needed():
    with pytest.raises(PolyadicError, match="fewer than two are known"):
        components(np.zeros((4, 2, 64)))


@pytest.mark.long
def test_bands_cover_planted_profiles_in_about_90_percent():
    assert 0.85 <= cover_planted(10) <= 0.95


# --------------------------------------------------------------------- polyadic rank


def test_copies_of_a_component_count_once():
    bases = [np.eye(4)[:, [0, 0, 1, 2, 2]], np.eye(5)[:, [0, 0, 1, 2, 3]]]
    checked = Replicability(np.full(5, 0.95), np.array([1.0, 1.0, 1.0, 0.0, 1.0]), refits=4)
    assert len(distinct_components(bases, checked)) == 3


def test_the_command_shows_what_components_finds_in_windows_and_in_sums(tmp_path, monkeypatch):
    windows = synthetic(60, n_channels=2, length=64)
    np.savez(tmp_path / "w.npz", X=windows.X, y=windows.label, subject=windows.subject, fs=windows.fs)
    Moments.collect(windows, groups=windows.subject).save(tmp_path / "w.moments")
    monkeypatch.setattr(import_module("polyadic.explain.components"), "_RANKS", (4, 2))
    found, words = components(windows, restarts=2, replicates=0), ("-c", FEWER_RANKS, "rank", "--restarts", 2)
    shown = json.loads(polyadic(*words, "w.moments", "--json", cwd=tmp_path).stdout)
    assert shown["rank"] == found.rank
    assert shown["tried"] == {str(rank): count for rank, count in found.tried.items()}
    assert repr(found) in polyadic(*words, "w.npz", "--quiet", cwd=tmp_path).stdout


def test_the_command_names_data_without_subjects(tmp_path):
    np.savez(tmp_path / "w.npz", X=synthetic(30, n_channels=2).X)
    assert "fewer than two are known" in polyadic("rank", "w.npz", cwd=tmp_path, code=1).stderr
