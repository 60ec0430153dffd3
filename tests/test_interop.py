"""Conversion to and from TensorLy, xarray and MNE preserves models; flat arrays and pipelines of other tools work."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from problems import paper
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from polyadic import ATD, SALS, load
from polyadic.augment import Jitter
from polyadic.data import synthetic
from polyadic.errors import PolyadicError
from polyadic.export.interop import Unflatten, from_mne, from_tensorly, to_tensorly, to_xarray, topomap
from polyadic.spectral import PARTS, STFT

FS = 50.0


def windows(count=40, channels=3, time=64, seed=0):
    return np.random.default_rng(seed).normal(size=(count, channels, time)).astype(np.float32)


def framed(X=None, **settings):
    """A model behind an STFT."""
    stft = STFT(n_fft=16, hop=8, **settings)
    return paper(SALS, rank=4, tensorize=stft, max_sweeps=2).fit(windows() if X is None else X)


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("tensorly.cp_tensor", "interop", to_tensorly),
        ("xarray", "interop", to_xarray),
        ("mne", "mne", lambda model: topomap(model, None)),
    ],
)
def test_without_the_packages_the_extra_is_named(package, extra, use, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PolyadicError, match=rf"pip install 'polyadic\[{extra}\]'"):
        use(framed())


# ------------------------------------------------------------------------------------------------------- TensorLy


def test_tensorly_reconstructs_the_same_tensor_as_the_model():
    tensorly = pytest.importorskip("tensorly")
    X = np.random.default_rng(0).normal(size=(30, 4, 5, 6))
    model = paper(SALS, rank=3, max_sweeps=3).fit(X)
    cp = to_tensorly(model, X)
    assert np.allclose(tensorly.cp_to_tensor(cp), model.inverse_transform(model.transform(X)))
    bases = to_tensorly(model)
    assert np.allclose(tensorly.cp_to_tensor(bases), model.inverse_transform(np.ones((1, 3)))[0])
    bases.factors[0][:] = 0  # the model's own bases are not handed out
    assert np.any(model.factors_[0])


def test_there_and_back_the_features_are_the_same(tmp_path):
    cp_tensor = pytest.importorskip("tensorly.cp_tensor")
    X = windows()
    model = framed(X)
    for cp in (to_tensorly(model), cp_tensor.cp_normalize(to_tensorly(model))):
        again = from_tensorly(cp, like=model)
        assert np.allclose(again.transform(X), model.transform(X), rtol=1e-3, atol=1e-4)
        assert again.score(X) == pytest.approx(model.score(X), abs=1e-5)
    again.save(tmp_path / "m.safetensors")
    assert np.array_equal(load(tmp_path / "m.safetensors").transform(X), again.transform(X))
    again.partial_fit(X)


def test_a_decomposition_by_tensorly_becomes_a_model():
    decomposition = pytest.importorskip("tensorly.decomposition")
    random = np.random.default_rng(0)
    X = np.einsum("nr,ir,jr->nij", *(random.normal(size=(size, 2)) for size in (30, 5, 6)))
    cp = decomposition.parafac(X, 2, init="random", random_state=0, n_iter_max=200, normalize_factors=True)
    model = from_tensorly(cp, samples=True)
    model.alpha = 0.0
    assert [factor.shape for factor in model.factors_] == [(5, 2), (6, 2)]
    # The weights went into the bases: what is left for the coefficients is TensorLy's first factor.
    assert np.allclose(model.transform(X), cp.factors[0], atol=1e-4)
    assert model.score(X) > 0.999


def test_weights_may_be_missing_or_negative():
    factors = [np.random.default_rng(0).normal(size=(size, 2)) for size in (4, 5)]
    assert np.array_equal(from_tensorly((None, factors)).factors_[1], factors[1])
    model = from_tensorly((np.array([-4.0, 9.0]), factors))
    expected = np.einsum("r,ir,jr->ij", [-4.0, 9.0], *factors)
    assert np.allclose(model.inverse_transform(np.ones((1, 2)))[0], expected)


def test_factors_that_do_not_fit_are_refused():
    factors = [np.ones((4, 2)), np.ones((5, 3))]
    with pytest.raises(PolyadicError, match="factors of one rank"):
        from_tensorly((None, factors))
    with pytest.raises(PolyadicError, match=r"for a tensor \(6, 9, 7\)"):
        from_tensorly((None, [np.ones((4, 2)), np.ones((5, 2))]), like=framed())
    with pytest.raises(PolyadicError, match="in addition to that of the samples"):
        from_tensorly((None, factors[:1]), samples=True)


# --------------------------------------------------------------------------------------------------------- xarray


@pytest.mark.parametrize("parts", PARTS)
def test_labels_are_at_the_right_rows(parts):
    pytest.importorskip("xarray")
    model = framed(parts=parts)
    found = to_xarray(model, fs=FS, channels=["Fz", "Cz", "Pz"])
    for number, part in enumerate(PARTS[parts]):
        row = found.channels.sel(part=part.name, channel="Cz")
        assert np.array_equal(row, model.factors_[0][3 * number + 1])
    assert np.array_equal(found.frequency, np.fft.rfftfreq(16, 1 / FS))
    assert found.frequency.attrs["units"] == "Hz"
    # The first frame is samples 0 to 15, its middle between samples 7 and 8.
    assert found.time.values[:2] == pytest.approx([7.5 / FS, 15.5 / FS])
    assert found.time.attrs["units"] == "s"
    assert np.array_equal(found.frequencies, model.factors_[1])
    assert np.array_equal(found.times, model.factors_[2])


def test_a_pure_tone_is_found_at_its_frequency_and_channel():
    pytest.importorskip("xarray")
    X = 0.01 * windows(60)
    X[:, 2] += np.sin(2 * np.pi * 12.5 * np.arange(64) / FS).astype(np.float32)
    stft = STFT(n_fft=16, hop=8, parts="amplitude")
    model = paper(SALS, rank=1, tensorize=stft, batch_size=None, max_sweeps=5).fit(X)
    found = to_xarray(model, fs=FS, channels=["Fz", "Cz", "Pz"])
    assert float(found.frequencies.isel(component=0).idxmax("frequency")) == 12.5
    assert str(found.channels.isel(component=0, part=0).idxmax("channel").item()) == "Pz"


def test_without_rate_and_names_units_say_so():
    pytest.importorskip("xarray")
    found = to_xarray(framed())
    assert found.frequency.attrs["units"] == "cycles/sample"
    assert float(found.frequency[-1]) == 0.5
    assert found.time.attrs["units"] == "samples"
    assert found.channel.values.tolist() == ["1", "2", "3"]


def test_sampling_rate_and_channels_of_the_model_are_used():
    pytest.importorskip("xarray")
    model = framed()
    model.fs_, model.channel_names_ = FS, ("a", "b", "c")
    found = to_xarray(model)
    assert found.channel.values.tolist() == ["a", "b", "c"]
    assert float(found.frequency[-1]) == FS / 2
    assert to_xarray(model, channels=["x", "y", "z"]).channel.values.tolist() == ["x", "y", "z"]


def test_tensors_have_numbered_modes():
    pytest.importorskip("xarray")
    model = paper(SALS, rank=2, max_sweeps=1).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    found = to_xarray(model)
    assert dict(found.sizes) == {"row1": 3, "row2": 4, "component": 2}
    assert np.array_equal(found.mode2, model.factors_[1])


def test_wrong_names_are_refused():
    pytest.importorskip("xarray")
    with pytest.raises(PolyadicError, match="channels must name 3 channels, but names 1"):
        to_xarray(framed(), channels=["Fz"])


# ------------------------------------------------------------------------------------------------------------ MNE


def montage():
    """Places on a sphere of 9.5 cm, about those of the 10-20 system."""
    import mne

    places = {"Fz": (0, 6, 7), "Cz": (0, 0, 9.5), "Pz": (0, -6, 7), "C3": (-6, 0, 7), "C4": (6, 0, 7), "Oz": (0, -9, 3)}
    places = {name: 0.095 * np.array(place) / np.linalg.norm(place) for name, place in places.items()}
    return mne.channels.make_dig_montage(places, coord_frame="head")


def raw_of(seconds=60):
    mne = pytest.importorskip("mne")
    info = mne.create_info(["Fz", "HEOG", "Cz", "Pz", "C3", "C4"], FS, ["eeg", "eog"] + ["eeg"] * 4, verbose="ERROR")
    info.set_montage(montage(), on_missing="ignore", verbose="ERROR")
    values = np.random.default_rng(0).normal(size=(6, int(seconds * FS))) * 1e-5
    return mne.io.RawArray(values, info, verbose="ERROR"), values


def test_epochs_go_into_a_fit_with_names_and_labels():
    mne = pytest.importorskip("mne")
    raw, values = raw_of()
    events = np.array([[100 * number, 0, 1 + number % 2] for number in range(1, 25)])
    epochs = mne.Epochs(raw, events, {"go": 1, "stop": 2}, tmin=0, tmax=1, baseline=None, preload=True, verbose="ERROR")
    found = from_mne(epochs)
    assert found.shape == (24, 6, 51)
    assert found.channels == tuple(raw.ch_names)
    assert found.classes == ("go", "stop")
    assert np.allclose(found.X[0], values[:, 100:151], rtol=1e-6)
    model = paper(ATD, rank=3, tensorize=STFT(16, 8), augment=Jitter(0.1), max_sweeps=2).fit(found)
    assert np.array_equal(model.transform(found), model.transform(epochs.get_data(verbose="ERROR").astype(np.float32)))
    # Epochs as they are do as well, but say neither names nor rate.
    assert np.allclose(model.transform(epochs), model.transform(found), rtol=1e-3, atol=1e-3)


def test_a_raw_is_cut_into_windows_without_its_bad_stretches():
    mne = pytest.importorskip("mne")
    raw, values = raw_of(10)
    raw.set_annotations(mne.Annotations([4.5], [0.2], ["BAD_movement"]), verbose="ERROR")
    found = from_mne(raw, seconds=2)
    assert found.start.tolist() == [0, 100, 300, 400]
    assert found.fs == FS
    for X, start in zip(found.X, found.start, strict=True):
        assert np.allclose(X, values[:, start : start + 100], rtol=1e-6)
    assert from_mne(raw, seconds=2, step=1).start.tolist() == [0, 50, 100, 250, 300, 350, 400]


def test_a_raw_needs_a_length_and_epochs_have_one():
    raw, _ = raw_of(5)
    with pytest.raises(PolyadicError, match="seconds must be the length"):
        from_mne(raw)
    with pytest.raises(PolyadicError, match="seconds must be a number"):
        from_mne(raw, seconds=0)
    with pytest.raises(PolyadicError, match=r"seconds is for an mne\.io\.Raw"):
        from_mne(np.zeros(3), seconds=1)
    with pytest.raises(PolyadicError, match="but is a ndarray"):
        from_mne(np.zeros(3))


def test_topomaps_are_drawn_for_every_component_and_part_of_channels_with_a_place():
    pytest.importorskip("matplotlib")
    raw, _ = raw_of()
    model = framed(from_mne(raw, seconds=2))
    figure = topomap(model, raw.info, [0, 2])
    assert len(figure.axes) == 4
    assert [axes.get_title() for axes in figure.axes] == ["component 0", "component 2", "", ""]
    for axes in figure.axes:
        assert len(axes.collections) > 0
        assert len(axes.images) == 1
    figure.canvas.draw()
    assert len(topomap(model, raw.info).axes) == 8


def test_the_weights_on_the_scalp_are_those_of_the_channels_by_name(monkeypatch):
    mne = pytest.importorskip("mne")
    pytest.importorskip("matplotlib")
    raw, _ = raw_of()
    model = framed(from_mne(raw, seconds=2))
    seen = []

    def watch(values, pos, **given):
        seen.append((values, pos.ch_names, given["vlim"]))

    monkeypatch.setattr(mne.viz, "plot_topomap", watch)
    # In the montage's info the channels lie in another order, and one more is there.
    order = ["C4", "Pz", "Oz", "Fz", "C3", "Cz"]
    info = mne.create_info(order, FS, "eeg", verbose="ERROR").set_montage(montage(), verbose="ERROR")
    topomap(model, info, [1], channels=raw.ch_names)
    A = np.delete(model.factors_[0].reshape(2, 6, -1), 1, axis=1)
    assert len(seen) == 2
    for part, (values, names, limits) in enumerate(seen):
        assert names == ["Fz", "Cz", "Pz", "C3", "C4"]
        assert np.array_equal(values, A[part, :, 1])
        assert limits == pytest.approx((-np.abs(A[..., 1]).max(), np.abs(A[..., 1]).max()))


def test_topomaps_without_places_or_components_are_refused():
    mne = pytest.importorskip("mne")
    raw, _ = raw_of()
    model = framed(from_mne(raw, seconds=2))
    bare = mne.create_info(raw.ch_names, FS, "eeg", verbose="ERROR")
    with pytest.raises(PolyadicError, match="positions of at least four"):
        topomap(model, bare)
    with pytest.raises(PolyadicError, match="components must be from 0 to 3, but one is 4"):
        topomap(model, raw.info, [4])


# ------------------------------------------------------------------------------------- shapes of other libraries


@pytest.fixture(scope="module")
def labelled():
    signals = synthetic(160, random_state=2)
    return np.asarray(signals.X), signals.label


def features():
    return paper(SALS, rank=6, tensorize=STFT(n_fft=32, hop=16), max_sweeps=3)


def test_windows_and_their_flat_rows_score_equally_in_a_pipeline(labelled):
    X, y = labelled
    straight = make_pipeline(features(), StandardScaler(), LogisticRegression())
    flat = make_pipeline(Unflatten(X.shape[1]), features(), StandardScaler(), LogisticRegression())
    scores = cross_val_score(straight, X, y, cv=3)
    assert np.allclose(scores, cross_val_score(flat, X.reshape(len(X), -1), y, cv=3))
    assert scores.mean() > 0.3  # by chance 0.25


def test_scalers_for_matrices_can_precede_the_estimator(labelled):
    X, y = labelled
    pipeline = make_pipeline(
        FunctionTransformer(lambda X: X.reshape(len(X), -1)),
        StandardScaler(),
        Unflatten(X.shape[1]),
        features(),
        StandardScaler(),
        LogisticRegression(),
    )
    search = GridSearchCV(pipeline, {"sals__rank": [2, 4]}, cv=2).fit(X, y)
    assert search.best_params_["sals__rank"] in (2, 4)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_rows_that_are_not_windows_are_refused():
    with pytest.raises(PolyadicError, match=r"X must have shape \(N, 3·T\), but has shape \(2, 10\)"):
        Unflatten(3).fit_transform(np.zeros((2, 10)))
    with pytest.raises(PolyadicError, match="channels must be"):
        Unflatten(0).fit_transform(np.zeros((2, 10)))


def test_an_aeon_transformer_feeds_us_and_an_aeon_classifier_takes_our_features(labelled):
    collection = pytest.importorskip("aeon.transformations.collection")
    X, y = labelled
    pipeline = make_pipeline(collection.Normalizer(), features(), StandardScaler(), LogisticRegression())
    assert pipeline.fit(X[:120], y[:120]).score(X[120:], y[120:]) > 0.3
    from aeon.classification.sklearn import RotationForestClassifier

    forest = make_pipeline(features(), RotationForestClassifier(n_estimators=5, random_state=0))
    assert forest.fit(X[:120], y[:120]).score(X[120:], y[120:]) > 0.3
