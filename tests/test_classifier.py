"""Features and probe in one: labels for windows, and files that hold both or are refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from polyadic import SALS, linear_probe, load
from polyadic.data import Windows, synthetic
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate import WindowClassifier, labels_of
from polyadic.spectral import STFT

SIGNALS = synthetic(240)
FEATURES = SALS(rank=4, tensorize=STFT(n_fft=32, hop=16), max_sweeps=2, device="cpu")


@pytest.fixture(scope="module")
def features() -> SALS:
    return clone(FEATURES).fit(SIGNALS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("kind", ["standardised", "plain"])
@pytest.mark.parametrize("n_classes", [2, 3])
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
    assert again.probe == kind
    np.testing.assert_array_equal(again.predict_proba(SIGNALS), model.predict_proba(SIGNALS))
    np.testing.assert_array_equal(again.predict(SIGNALS), model.predict(SIGNALS))
    assert again.score(chosen.X, labels_of(chosen)) == model.score(chosen.X, labels_of(chosen)) > 1 / n_classes


def test_polyadic_load_gives_the_features_as_before_and_the_probe_beside_them(features, path, tmp_path):
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
    model = WindowClassifier(FEATURES).fit(SIGNALS.X, y)
    assert not hasattr(FEATURES, "factors_")
    alone = clone(FEATURES).fit(SIGNALS.X)
    np.testing.assert_array_equal(model.features_.factors_[0], alone.factors_[0])
    expected = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(
        alone.transform(SIGNALS.X[:60]), SIGNALS.label[:60]
    )
    wanted = expected.predict_proba(alone.transform(SIGNALS.X))
    np.testing.assert_allclose(model.predict_proba(SIGNALS.X), wanted, atol=1e-5)
    assert model.classes_.tolist() == sorted(set(SIGNALS.label.tolist()))


def test_numbers_as_classes_come_back_as_numbers(features, path):
    model = WindowClassifier(features).fit(SIGNALS.X, SIGNALS.label + 5)
    model.save(path)
    assert WindowClassifier.load(path).predict(SIGNALS).dtype.kind == "i"
    assert min(WindowClassifier.load(path).predict(SIGNALS)) >= 5


@pytest.mark.parametrize("y", [None, np.zeros(240, int), np.full(240, -1), np.zeros(7, int)])
def test_labels_that_cannot_be_learned_are_refused(y, features):
    with pytest.raises(PolyadicError, match="y must have"):
        WindowClassifier(features).fit(SIGNALS.X, y)


def test_a_file_without_a_probe_is_refused_with_advice(features, path):
    features.save(path)
    assert not hasattr(load(path), "probe_")
    with pytest.raises(ModelFileError, match=r"model\.safetensors has no probe.*--probe"):
        WindowClassifier.load(path)


@pytest.mark.parametrize(
    "probe",
    [
        RidgeClassifier().fit([[0.0], [1.0]], [0, 1]),
        make_pipeline(StandardScaler(with_std=False), LogisticRegression()).fit([[0.0], [1.0]], [0, 1]),
        LogisticRegression().fit([[0.0], [1.0]], [False, True]),
    ],
)
def test_what_a_model_file_cannot_hold_is_said(probe):
    with pytest.raises(PolyadicError, match="a model file holds"):
        linear_probe.pack(probe)


def change(path: Path, edit: Any) -> None:
    """Change the header or the arrays of a model file."""
    from polyadic import persist

    arrays, header = persist.read(path)
    edit(arrays, header)
    persist.write(path, arrays, header)


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
        dropped("probe.mean"),
        dropped("probe.scale"),
        dropped("probe.coef", "probe.intercept", "probe.mean", "probe.scale"),
        replaced("probe.coef", np.ones((3, 5))),
        replaced("probe.intercept", np.ones(2)),
        replaced("probe.mean", np.full(4, np.nan)),
        replaced("probe.scale", np.zeros(4)),
        replaced("probe.other", np.zeros(4)),
        described(None),
        described([]),
        described({}),
        described({"classes": ["a", "b"]}),
        described({"classes": ["a", "b", "b"]}),
        described({"classes": ["a", "b", 3]}),
        described({"classes": [True, False, 2]}),
        described({"classes": "abc"}),
        lambda arrays, header: header.pop("probe"),
        lambda arrays, header: header.update(fs=-1.0),
        lambda arrays, header: header.update(fs="fast"),
        lambda arrays, header: header.update(channels=["one"]),
        lambda arrays, header: header.update(channels="abc"),
    ],
)
def test_a_damaged_probe_is_refused(edit, features, path):
    WindowClassifier(features).fit(SIGNALS).save(path)
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
    change(path, lambda arrays, header: [header.pop(key) for key in ("fs", "channels", "probe")])
    assert (load(path).fs_, load(path).channel_names_) == (None, ())


def test_columns_of_a_table_are_not_taken_for_rate_and_channels():
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=["fs", "channels", "other"])
    model = SALS(rank=2, max_sweeps=1).fit(table)
    assert (model.fs_, model.channel_names_) == (None, ())


def test_clones_share_fitted_features_and_forget_the_probe(features):
    model = WindowClassifier(features, "plain").fit(SIGNALS)
    copy = clone(model)
    assert copy.features is features
    assert copy.probe == "plain"
    assert not hasattr(copy, "probe_")
    np.testing.assert_array_equal(copy.fit(SIGNALS).predict_proba(SIGNALS), model.predict_proba(SIGNALS))


def test_clones_of_a_classifier_from_a_file_keep_its_features(features, path):
    WindowClassifier(features).fit(SIGNALS).save(path)
    copy = clone(WindowClassifier.load(path))
    np.testing.assert_array_equal(copy.features.factors_[0], features.factors_[0])


def test_clones_of_a_classifier_learn_features_that_were_not_fitted_by_themselves():
    model = WindowClassifier(clone(FEATURES)).fit(SIGNALS)
    copy = clone(model)
    assert copy.features is not model.features
    assert not hasattr(copy.features, "factors_")
    assert copy.features.get_params() == model.features.get_params()


def test_a_search_over_the_probe_leaves_fitted_features_as_they_are(features):
    before = [factor.copy() for factor in features.factors_]
    search = GridSearchCV(WindowClassifier(features), {"probe": ["plain", "standardised"]}, cv=3, error_score="raise")
    search.fit(SIGNALS.X, SIGNALS.label)
    assert search.best_estimator_.features_ is features
    for old, new in zip(before, features.factors_, strict=True):
        np.testing.assert_array_equal(old, new)
    with pytest.raises(PolyadicError, match="features__rank cannot be set: features is fitted already"):
        GridSearchCV(WindowClassifier(features), {"features__rank": [2, 3]}, cv=2, error_score="raise").fit(
            SIGNALS.X, SIGNALS.label
        )
    assert features.rank == 4


def test_a_search_over_features_that_are_not_fitted_learns_them_in_every_fold():
    search = GridSearchCV(WindowClassifier(FEATURES), {"features__rank": [2, 3]}, cv=2, error_score="raise")
    search.fit(SIGNALS.X, SIGNALS.label)
    assert search.best_estimator_.features_.rank == search.best_params_["features__rank"]
    assert not hasattr(FEATURES, "factors_")
