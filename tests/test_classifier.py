"""Classifiers with features and a probe: labels for windows, and model files that contain both."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from problems import paper
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from polyadic import SALS, load
from polyadic._util import model_files
from polyadic.data import Windows, synthetic
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate import Probe, WindowClassifier, labels_of
from polyadic.evaluate.classifier import means_by_group, recentred
from polyadic.evaluate.probe import make_probe
from polyadic.spectral import STFT

SIGNALS = synthetic(240)
FEATURES = paper(SALS, rank=4, tensorize=STFT(n_fft=32, hop=16), max_sweeps=2, device="cpu")


@pytest.fixture(scope="module")
def features() -> SALS:
    return clone(FEATURES).fit(SIGNALS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(("kind", "n_classes"), [("standardised", 2), ("plain", 3)])
def test_it_is_a_probe_on_the_features_and_the_file_predicts_the_same(kind, n_classes, features, path):
    chosen = SIGNALS[np.flatnonzero(SIGNALS.label < n_classes)]
    model = WindowClassifier(features, kind).fit(chosen)
    regression = LogisticRegression(max_iter=1000)
    slow = regression if kind == "plain" else make_pipeline(StandardScaler(), regression)
    slow.fit(features.transform(chosen).astype(float), np.array(chosen.classes)[chosen.label])
    expected = slow.predict_proba(features.transform(SIGNALS).astype(float))
    np.testing.assert_allclose(model.predict_proba(SIGNALS), expected, atol=1e-6)
    assert model.features_ is features
    assert not hasattr(features, "probe_")
    model.save(path)
    again = WindowClassifier.load(path)
    assert (again.probe.C, again.probe.scale, again.probe.class_weight) == (1.0, kind, None)
    np.testing.assert_allclose(again.predict_proba(SIGNALS), model.predict_proba(SIGNALS), atol=1e-12)
    np.testing.assert_array_equal(again.predict(SIGNALS), model.predict(SIGNALS))
    assert again.score(chosen.X, labels_of(chosen)) == model.score(chosen.X, labels_of(chosen)) > 1 / n_classes


class Watching(BaseEstimator, ClassifierMixin):
    """A classifier that stores the arguments of `fit`."""

    def fit(self, Z, y, groups=None, level_columns=None):
        self.told_ = {"Z": Z, "y": y, "groups": groups, "level_columns": level_columns}
        self.classes_ = np.unique(y)
        return self

    def predict(self, Z):
        return np.repeat(self.classes_[:1], len(Z))


class Levelled(SALS):
    """Features whose last two columns are called levels."""

    def get_feature_names_out(self, input_features=None):
        return np.array(["z1", "z2", "level x", "level y"])


def test_by_default_it_is_a_probe_chosen_by_leaving_subjects_out_and_the_file_predicts_the_same(features, path):
    model = WindowClassifier(features).fit(SIGNALS)
    Z = features.transform(SIGNALS).astype(float)
    expected = Probe().fit(Z, labels_of(SIGNALS), groups=SIGNALS.subject)
    np.testing.assert_array_equal(model.predict_proba(SIGNALS), expected.predict_proba(Z))
    assert model.probe_.reason_ == expected.reason_
    assert f"leaving out {len(np.unique(SIGNALS.subject))} subjects" in model.probe_.reason_
    model.save(path)
    again = WindowClassifier.load(path)
    assert again.probe == "auto"
    for name in ("C_", "scale_", "levels_", "reason_", "validation_"):
        assert getattr(again.probe_, name) == getattr(model.probe_, name)
    np.testing.assert_array_equal(again.predict_proba(SIGNALS), model.predict_proba(SIGNALS))
    np.testing.assert_array_equal(again.predict(SIGNALS), model.predict(SIGNALS))


def test_a_probe_with_custom_settings_is_restored_with_them(features, path):
    WindowClassifier(features, Probe(C=0.5, class_weight=None)).fit(SIGNALS).save(path)
    again = WindowClassifier.load(path)
    assert (again.probe.C, again.probe.class_weight) == (0.5, None)
    assert not hasattr(again.probe, "coef_")


def test_groups_are_the_subjects_of_labelled_windows_unless_given(features):
    y = np.where(np.arange(240) % 3 > 0, SIGNALS.label, -1)
    known = y >= 0

    def told(X, groups=None):
        return WindowClassifier(features, Watching()).fit(X, y, groups).probe_.told_

    np.testing.assert_array_equal(told(SIGNALS)["groups"], SIGNALS.subject[known])
    own = np.arange(240) // 7
    np.testing.assert_array_equal(told(SIGNALS, own)["groups"], own[known])
    assert told(SIGNALS.X)["groups"] is None
    assert told(Windows(SIGNALS.X))["groups"] is None
    with pytest.raises(PolyadicError, match=r"groups must have shape \(240,\)"):
        told(SIGNALS, own[:7])
    without = WindowClassifier(features).fit(SIGNALS.X, SIGNALS.label)
    assert "contiguous blocks" in without.probe_.reason_


def test_groups_reach_it_in_a_pipeline_by_name_and_by_routing(features):
    def pipeline(model):
        return Pipeline([("same", FunctionTransformer()), ("model", model)])

    own = np.arange(240) // 7
    fitted = pipeline(WindowClassifier(features, Watching())).fit(SIGNALS.X, SIGNALS.label, model__groups=own)
    np.testing.assert_array_equal(fitted[-1].probe_.told_["groups"], own)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = WindowClassifier(features, Watching()).set_fit_request(groups=True)
        fitted = pipeline(routed).fit(SIGNALS.X, SIGNALS.label, groups=own)
    np.testing.assert_array_equal(fitted[-1].probe_.told_["groups"], own)


def test_the_probe_receives_the_level_columns():
    features = Levelled(rank=4, tensorize=STFT(n_fft=32, hop=16), max_sweeps=2, device="cpu").fit(SIGNALS)
    told = WindowClassifier(features, Watching()).fit(SIGNALS).probe_.told_
    assert told["level_columns"].tolist() == [2, 3]
    assert WindowClassifier(features).fit(SIGNALS).probe_.levels_ in (True, False)


def test_a_custom_classifier_is_accepted_and_save_refuses_one_that_cannot_be_stored(features, path):
    model = WindowClassifier(features, RidgeClassifier()).fit(SIGNALS)
    Z = features.transform(SIGNALS).astype(float)
    np.testing.assert_array_equal(model.predict(SIGNALS), RidgeClassifier().fit(Z, labels_of(SIGNALS)).predict(Z))
    assert not hasattr(model, "predict_proba")
    assert hasattr(WindowClassifier(features, LogisticRegression()), "predict_proba")
    with pytest.raises(PolyadicError, match="the probe must be a Probe, a LogisticRegression"):
        model.save(path)
    assert not path.exists()


@pytest.mark.parametrize("kind", ["best", None, LogisticRegression])
def test_an_invalid_probe_is_refused(kind, features):
    with pytest.raises(PolyadicError, match="probe must be one of auto, plain, standardised, or a"):
        WindowClassifier(features, kind).fit(SIGNALS)


def test_polyadic_load_returns_the_features_with_the_probe_as_an_attribute(features, path, tmp_path):
    model = WindowClassifier(features).fit(SIGNALS)
    model.save(path)
    loaded = load(path)
    np.testing.assert_array_equal(loaded.transform(SIGNALS), features.transform(SIGNALS))
    assert loaded.probe_.classes_.tolist() == list(SIGNALS.classes)
    np.testing.assert_array_equal(loaded.probe_.predict(loaded.transform(SIGNALS)), model.predict(SIGNALS))
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert not hasattr(loaded.partial_fit(SIGNALS.X[:9]), "probe_")


def test_features_that_are_not_fitted_learn_from_windows_without_labels_too():
    y = np.where(np.arange(240) < 60, SIGNALS.label, -1)
    model = WindowClassifier(FEATURES, "standardised").fit(SIGNALS.X, y)
    assert not hasattr(FEATURES, "factors_")
    alone = clone(FEATURES).fit(SIGNALS.X)
    np.testing.assert_array_equal(model.features_.factors_[0], alone.factors_[0])
    expected = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(
        alone.transform(SIGNALS.X[:60]), SIGNALS.label[:60]
    )
    wanted = expected.predict_proba(alone.transform(SIGNALS.X))
    np.testing.assert_allclose(model.predict_proba(SIGNALS.X), wanted, atol=1e-5)
    assert model.classes_.tolist() == sorted(set(SIGNALS.label.tolist()))


@pytest.mark.parametrize("y", [None, np.zeros(240, int), np.full(240, -1), np.zeros(7, int)])
def test_labels_that_cannot_be_learned_are_refused(y, features):
    with pytest.raises(PolyadicError, match="y must have"):
        WindowClassifier(features).fit(SIGNALS.X, y)


def test_a_file_without_a_probe_is_refused_with_advice(features, path):
    features.save(path)
    assert not hasattr(load(path), "probe_")
    with pytest.raises(ModelFileError, match=r"model\.safetensors has no probe.*--probe"):
        WindowClassifier.load(path)


def change(path: Path, edit: Any) -> None:
    """Change the header or the arrays of a model file."""
    arrays, header = model_files.read(path)
    edit(arrays, header)
    model_files.write(path, arrays, header)


def dropped(*names: str) -> Any:
    return lambda arrays, header: [arrays.pop(name) for name in names]


def replaced(name: str, value: Any) -> Any:
    return lambda arrays, header: arrays.update({name: value})


def described(value: Any) -> Any:
    return lambda arrays, header: header.update(probe=value)


@pytest.mark.parametrize(
    "edit",
    [
        dropped("probe.coef"),
        replaced("probe.coef", np.ones((3, 5))),
        replaced("probe.intercept", np.full(3, np.nan)),
        replaced("probe.other", np.zeros(4)),
        described([]),
        described({"classes": ["a", "b", "b"]}),
        described({"classes": [True, False, 2]}),
        described({"classes": ["a", "b", "c"]}),
        lambda arrays, header: header["probe"].update(parameters={"C": 1.0}),
    ],
)
def test_a_damaged_probe_is_refused(edit, features, path):
    WindowClassifier(features, "standardised").fit(SIGNALS).save(path)
    change(path, lambda arrays, header: None)
    load(path)
    change(path, edit)
    with pytest.raises(ModelFileError):
        load(path)


def test_a_file_that_is_cut_short_or_has_flipped_bytes_never_does_anything_else(features, path):
    WindowClassifier(features).fit(SIGNALS).save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for size in rng.integers(0, len(whole), 30):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError):
            load(path)
    length = struct.unpack("<Q", whole[:8])[0]
    refused = 0
    for place in rng.integers(8, 8 + length, 200):
        content = bytearray(whole)
        content[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            model = load(path)
        except ModelFileError:
            refused += 1
            continue
        assert model.transform(SIGNALS.X[:2]).shape == (2, 4)
    assert refused > 190


def test_rate_and_channels_are_kept_where_the_windows_know_them(path):
    windows = Windows(SIGNALS.X[:, :2], 64.0, channels=("C3", "C4"))
    model = clone(FEATURES).fit(windows)
    model.save(path)
    assert (load(path).fs_, load(path).channel_names_) == (64.0, ("C3", "C4"))
    clone(FEATURES).fit(SIGNALS.X).save(path)
    assert (load(path).fs_, load(path).channel_names_) == (None, ())


def test_clones_share_fitted_features_and_forget_the_probe(features):
    model = WindowClassifier(features, "plain").fit(SIGNALS)
    copy = clone(model)
    assert copy.features is features
    assert copy.probe == "plain"
    assert not hasattr(copy, "probe_")
    np.testing.assert_array_equal(copy.fit(SIGNALS).predict_proba(SIGNALS), model.predict_proba(SIGNALS))


def test_a_search_over_the_probe_leaves_fitted_features_unchanged(features):
    before = [factor.copy() for factor in features.factors_]
    search = GridSearchCV(WindowClassifier(features), {"probe": ["plain", "standardised"]}, cv=3, error_score="raise")
    search.fit(SIGNALS.X, SIGNALS.label)
    assert search.best_estimator_.features_ is features
    for old, new in zip(before, features.factors_, strict=True):
        np.testing.assert_array_equal(old, new)
    with pytest.raises(PolyadicError, match="features__rank cannot be set: features is already fitted"):
        GridSearchCV(WindowClassifier(features), {"features__rank": [2, 3]}, cv=2, error_score="raise").fit(
            SIGNALS.X, SIGNALS.label
        )
    assert features.rank == 4


# ------------------------------------------------------------------ recentring


def moved(windows: Windows, seed: int = 0) -> Windows:
    """Return the same windows from six subjects with different channel gains."""
    gains = np.exp(np.random.default_rng(seed).normal(size=(6, windows.shape[1], 1)))
    people = np.arange(len(windows)) % 6
    X = (windows.X * gains[people]).astype(np.float32)
    return Windows(X, windows.fs, subject=[f"p{person}" for person in people], label=labels_of(windows))


@pytest.mark.parametrize("kind", ["auto", "plain", "standardised"])
def test_recentring_subtracts_each_subjects_own_mean_at_training_and_prediction(kind, features, path):
    windows = moved(SIGNALS)
    y = np.where(np.arange(240) % 5 > 0, labels_of(windows), "")
    model = WindowClassifier(features, kind, recenter=True).fit(windows, y)
    Z = features.transform(windows).astype(float)
    centred = Z - np.stack([Z[windows.subject == person].mean(axis=0) for person in windows.subject])
    known, again = y != "", make_probe(kind)
    words = {"groups": windows.subject[known]} if kind == "auto" else {}
    again.fit(centred[known], y[known], **words)
    np.testing.assert_allclose(model.predict_proba(windows), again.predict_proba(centred), atol=1e-7)
    np.testing.assert_array_equal(model.predict(windows.X, groups=windows.subject), model.predict(windows))
    # Only the windows of a subject matter to it, and new subjects have means of their own.
    mine = windows.subject == "p3"
    renamed = model.predict_proba(windows.X[mine], groups=["new"] * int(mine.sum()))
    np.testing.assert_allclose(renamed, model.predict_proba(windows)[mine], atol=1e-6)
    model.save(path)
    loaded = WindowClassifier.load(path)
    assert loaded.recenter is True
    np.testing.assert_allclose(loaded.predict_proba(windows), model.predict_proba(windows), atol=1e-12)
    assert WindowClassifier(features, kind).fit(windows).recenter is False


def test_a_shift_of_a_subjects_features_changes_nothing_with_recentring():
    rng = np.random.default_rng(0)
    names = np.array([f"p{number % 6}" for number in range(240)])
    Z, shift = rng.normal(size=(240, 5)), 10 * rng.normal(size=(6, 5))[np.arange(240) % 6]
    plain, moved_too = (recentred(F, names) for F in (Z, Z + shift))
    np.testing.assert_allclose(plain, moved_too, atol=1e-12)
    # Parts of the windows, one after another, have the means of all.
    parts = [(Z[rows], names[rows]) for rows in np.array_split(np.arange(240), 7)]
    for name, mean in means_by_group(parts).items():
        np.testing.assert_allclose(mean, Z[names == name].mean(axis=0), atol=1e-12)


def test_windows_that_come_a_few_at_a_time_are_recentred_by_means_of_earlier_ones(features):
    windows = moved(SIGNALS)
    model = WindowClassifier(features, recenter=True).fit(windows)
    means = model.subject_means(windows)
    assert set(means) == set(windows.subject.tolist())
    few = model.predict_proba(windows[:3], means=means)
    np.testing.assert_allclose(few, model.predict_proba(windows)[:3], atol=1e-6)
    with pytest.raises(PolyadicError, match="none for 'new'"):
        model.predict(windows.X[:2], groups=["new", "new"], means=means)


def test_recentring_refuses_small_groups_by_name_and_windows_of_unknown_subjects(features):
    windows = moved(SIGNALS)
    model = WindowClassifier(features, recenter=True).fit(windows)
    with pytest.raises(PolyadicError, match=r"at least 20 windows of every subject, but 'p0' has 5, 'p1' has 5, 'p2'"):
        model.predict(windows[:30])
    with pytest.raises(PolyadicError, match="'anna' has 19"):
        WindowClassifier(features, recenter=True).fit(windows, groups=["bert"] * 221 + ["anna"] * 19)
    # A subject without labels trains nothing, however few windows there are.
    y = np.where(np.arange(240) < 221, labels_of(windows), "")
    WindowClassifier(features, recenter=True).fit(windows, y, groups=["bert"] * 221 + ["anna"] * 19)
    with pytest.raises(PolyadicError, match="the subject of every window"):
        model.predict(windows.X)
    with pytest.raises(PolyadicError, match="1 of 240 have none"):
        model.predict(windows.X, groups=["a"] * 239 + [""])


def test_recentring_has_no_onnx_form(features, path, tmp_path):
    pytest.importorskip("onnx")
    from polyadic import export

    WindowClassifier(features, recenter=True).fit(moved(SIGNALS)).save(path)
    with pytest.raises(PolyadicError, match="has no ONNX or C form"):
        export.onnx(load(path), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


# ----------------------------------------------------------- component weights


@pytest.mark.parametrize(("kind", "n_classes"), [("auto", 4), ("plain", 2), ("standardised", 4)])
def test_component_weights_give_the_logits_from_coefficients_and_levels(kind, n_classes):
    windows = SIGNALS[SIGNALS.label < n_classes]
    features = SALS(rank=4, tensorize=STFT(n_fft=32, hop=16), max_sweeps=2, device="cpu").fit(windows)
    model = WindowClassifier(features, kind).fit(windows)
    W = model.component_weights()
    assert W.shape == (1 if n_classes == 2 else n_classes, 4)
    Z, x = features.transform(windows), features.coefficients(windows)
    logits = model.probe_.decision_function(Z).reshape(len(windows), -1)
    # What is left of the logits is the same for all windows but for their levels.
    regression = model.probe_[-1] if kind == "standardised" else model.probe_
    scale = model.probe_[0].scale_ if kind == "standardised" else 1.0
    of_levels = Z[:, 4:] @ (regression.coef_ / scale)[:, 4:].T
    rest = logits - x @ W.T - of_levels
    assert np.abs(x @ W.T).max() > 1e-3
    np.testing.assert_allclose(rest, np.broadcast_to(rest[:1], rest.shape), atol=1e-6 * np.abs(logits).max())


def test_component_weights_without_a_readout_are_the_probes_own(features):
    model = WindowClassifier(features, "plain").fit(SIGNALS)
    np.testing.assert_array_equal(model.component_weights(), model.probe_.coef_)
    recentred_model = WindowClassifier(features, recenter=True).fit(moved(SIGNALS))
    np.testing.assert_array_equal(recentred_model.component_weights(), recentred_model.probe_.coef_)
    with pytest.raises(PolyadicError, match="the probe must be a Probe, a LogisticRegression"):
        WindowClassifier(features, RidgeClassifier()).fit(SIGNALS).component_weights()
