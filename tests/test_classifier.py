"""Classifiers with features and a probe: labels for windows, and model files that contain both."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import polyadic
from problems import paper
from sklearn.base import clone
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV

from polyadic import CPD, SALS, export, load
from polyadic._util import model_files
from polyadic.baselines import MiniRocket, PCAFeatures, StatisticsFeatures
from polyadic.data import Windows, synthetic
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate import Probe, WindowClassifier, cross_validate, labels_of
from polyadic.evaluate.regression import WEIGHTS
from polyadic.spectral import STFT

SIGNALS = synthetic(240)
FEATURES = paper(SALS, rank=4, tensorize=STFT(n_fft=32, hop=16), max_sweeps=2, device="cpu")


@pytest.fixture(scope="module")
def features() -> SALS:
    return clone(FEATURES).fit(SIGNALS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


class Watching(Probe):
    """A probe that stores the arguments of `fit`."""

    def fit(self, Z, y, groups=None, statistic_columns=None):
        self.told_ = {"y": y, "groups": groups, "statistic_columns": statistic_columns}
        return super().fit(Z, y, groups, statistic_columns)


def test_by_default_it_is_a_probe_chosen_by_leaving_subjects_out(features):
    model = WindowClassifier(features).fit(SIGNALS)
    Z = features.transform(SIGNALS).astype(float)
    expected = Probe().fit(Z, labels_of(SIGNALS), groups=SIGNALS.subject)
    np.testing.assert_array_equal(model.predict_proba(SIGNALS), expected.predict_proba(Z))
    assert model.probe_.reason_ == expected.reason_
    assert f"leaving out {len(np.unique(SIGNALS.subject))} subjects" in model.probe_.reason_


def test_groups_are_the_subjects_of_labelled_windows_unless_given(features):
    y = np.where(np.arange(240) % 3 > 0, SIGNALS.label, -1)
    known = y >= 0

    def told(X, groups=None):
        return WindowClassifier(features, Watching(unlabelled=False)).fit(X, y, groups).probe_.told_

    np.testing.assert_array_equal(told(SIGNALS)["groups"], SIGNALS.subject[known])
    own = np.arange(240) // 7
    np.testing.assert_array_equal(told(SIGNALS, own)["groups"], own[known])
    assert set(told(SIGNALS.X)["groups"]) == {""}
    assert set(told(Windows(SIGNALS.X))["groups"]) == {""}
    with pytest.raises(PolyadicError, match=r"groups must have shape \(240,\)"):
        told(SIGNALS, own[:7])
    without = WindowClassifier(features).fit(SIGNALS.X, SIGNALS.label)
    assert "contiguous blocks" in without.probe_.reason_


def test_unknown_groups_are_one_group(features):
    windows = SIGNALS
    groups = np.where(windows.subject == windows.subject[0], None, windows.subject)
    unknown = WindowClassifier(features).fit(windows, groups=groups)
    named = WindowClassifier(features).fit(windows, groups=np.where(groups == None, "", groups).astype(str))  # noqa: E711
    np.testing.assert_array_equal(unknown.probe_.coef_, named.probe_.coef_)


def test_the_probe_receives_the_statistic_columns():
    features = CPD(4, max_sweeps=2).fit(SIGNALS)
    told = WindowClassifier(features, Watching()).fit(SIGNALS).probe_.told_
    assert told["statistic_columns"].tolist() == list(range(4, len(features.get_feature_names_out())))
    assert WindowClassifier(features).fit(SIGNALS).probe_.statistics_ in WEIGHTS


@pytest.mark.parametrize("kind", ["best", None, Probe, RidgeClassifier()])
def test_other_classifiers_are_refused_with_advice(kind, features):
    with pytest.raises(
        PolyadicError, match=r"one of auto, plain, standardised, or a Probe, .*: other .* make_pipeline"
    ):
        WindowClassifier(features, kind).fit(SIGNALS)


def test_polyadic_load_returns_the_features_with_the_probe_as_an_attribute(features, path, tmp_path):
    model = WindowClassifier(features).fit(SIGNALS)
    model.save(path)
    loaded = load(path)
    np.testing.assert_array_equal(loaded.transform(SIGNALS), features.transform(SIGNALS))
    assert loaded.probe_.classes_.tolist() == list(SIGNALS.classes)
    np.testing.assert_array_equal(loaded.probe_.predict(loaded.transform(SIGNALS)), model.predict(SIGNALS))
    again = WindowClassifier.load(path)
    np.testing.assert_array_equal(again.predict_proba(SIGNALS), model.predict_proba(SIGNALS))
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert not hasattr(loaded.partial_fit(SIGNALS.X[:9]), "probe_")


def test_features_that_are_not_fitted_learn_from_windows_without_labels_too():
    y = np.where(np.arange(240) < 60, SIGNALS.label, -1)
    model = WindowClassifier(FEATURES, "standardised").fit(SIGNALS.X, y)
    assert not hasattr(FEATURES, "factors_")
    alone = clone(FEATURES).fit(SIGNALS.X)
    np.testing.assert_array_equal(model.features_.factors_[0], alone.factors_[0])
    expected = WindowClassifier(alone, "standardised").fit(SIGNALS.X[:60], SIGNALS.label[:60])
    np.testing.assert_array_equal(model.predict_proba(SIGNALS.X), expected.predict_proba(SIGNALS.X))
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
        replaced("probe.intercept", np.full(3, np.nan)),
        replaced("probe.other", np.zeros(4)),
        described([]),
        described({"classes": ["a", "b", "b"]}),
        described({"classes": ["a", "b", "c"]}),
        lambda arrays, header: header["probe"]["parameters"].update(shell="rm"),
        lambda arrays, header: header["probe"].update(class_counts=[1]),
        lambda arrays, header: header["probe"].update(prior="equal"),
        lambda arrays, header: header["probe"].pop("reason"),
    ],
)
def test_a_damaged_probe_is_refused(edit, features, path):
    WindowClassifier(features, "standardised").fit(SIGNALS).save(path)
    change(path, lambda arrays, header: None)
    load(path)
    change(path, edit)
    with pytest.raises(ModelFileError):
        load(path)


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


# ----------------------------------------------------------------------- prior


@pytest.mark.parametrize(
    ("kind", "n_classes"),
    [("auto", 3), ("plain", 2)],
)
def test_a_prior_reweights_probabilities_by_bayes_rule(kind, n_classes, features, path):
    windows = SIGNALS[np.flatnonzero((SIGNALS.label < n_classes) & (np.arange(240) % (SIGNALS.label + 1) == 0))]
    y = np.array(["a", "b", "c"])[windows.label]
    counts = np.unique(y, return_counts=True)[1]
    assert len(set(counts.tolist())) == n_classes
    weights = 1 / counts if kind == "auto" else 1.0
    given = WindowClassifier(features, kind).fit(windows, y).predict_proba(windows)
    for prior, frequencies in (("training", counts), ("balanced", np.ones(n_classes))):
        model = WindowClassifier(features, kind, prior=prior).fit(windows, y)
        expected = given * frequencies / (counts * weights)
        np.testing.assert_allclose(model.predict_proba(windows), expected / expected.sum(axis=1, keepdims=True))
        np.testing.assert_array_equal(model.predict(windows), model.classes_[expected.argmax(axis=1)])
        assert {"training": "class frequencies of the training", "balanced": "equally frequent"}[
            prior
        ] in model.probe_.reason_
        model.save(path)
        loaded = WindowClassifier.load(path)
        assert (loaded.prior, clone(loaded).prior) == (prior, prior)
        np.testing.assert_allclose(loaded.predict_proba(windows), model.predict_proba(windows), atol=1e-12)
        back = loaded.probe_.with_prior("balanced").with_prior(prior)
        np.testing.assert_allclose(back.intercept_, loaded.probe_.intercept_, atol=1e-12)


def test_the_prior_of_a_model_applies_to_the_probes_that_score_it(features):
    rare = SIGNALS[np.flatnonzero((SIGNALS.label == 0) | (np.arange(240) % 8 == 1))]
    model = clone(FEATURES).fit(rare)
    plain = cross_validate(model, rare, 3, transductive=True)
    model.probe_ = WindowClassifier(model, prior="training").fit(rare).probe_
    by_model = cross_validate(model, rare, 3, transductive=True)
    assert "class frequencies of the training labels" in by_model.summary()
    assert by_model.accuracy > plain.accuracy
    assert by_model.balanced_accuracy < plain.balanced_accuracy


def test_a_prior_that_cannot_be_used_is_refused(features):
    with pytest.raises(PolyadicError, match="prior must be None, 'balanced' or 'training', but is 'equal'"):
        WindowClassifier(features, prior="equal").fit(SIGNALS)


def test_the_commands_store_a_prior_or_use_another_one(tmp_path):
    rare = SIGNALS[np.flatnonzero((SIGNALS.label == 0) | (np.arange(240) % 8 == 1))]
    np.savez(tmp_path / "w.npz", X=rare.X, fs=rare.fs, label=rare.label, subject=rare.subject)

    def share(*words):
        polyadic(*words, "--force", "-o", "labels.csv", "--quiet", cwd=tmp_path)
        rows = [line.split(",") for line in (tmp_path / "labels.csv").read_text().splitlines()]
        return np.mean([row[rows[0].index("label")] == "0" for row in rows[1:]])

    fit = ("fit", "w.npz", "--probe", "--rank", 2, "--sweeps", 2, "--device", "cpu", "--no-components")
    assert "probabilities assume equally frequent classes" in polyadic(*fit, "-o", "a.safetensors", cwd=tmp_path).stdout
    told = polyadic(*fit, "--prior", "training", "-o", "b.safetensors", cwd=tmp_path).stdout
    assert "the class frequencies of the training labels" in " ".join(told.split())
    balanced, training = (share("predict", f"{name}.safetensors", "w.npz") for name in "ab")
    assert balanced < training
    assert share("predict", "a.safetensors", "w.npz", "--prior", "training") == training
    assert share("predict", "b.safetensors", "w.npz", "--prior", "balanced") == balanced
    refused = polyadic(*fit[:2], "--prior", "training", "-o", "c.safetensors", cwd=tmp_path, code=1).stderr
    assert "--prior needs --probe" in refused


# ------------------------------------------------------------------- baselines


@pytest.mark.parametrize(
    "baseline", [PCAFeatures(4), StatisticsFeatures(), MiniRocket(84)], ids=lambda b: type(b).__name__
)
def test_baselines_classify_windows_and_are_refused_by_files_with_a_sentence(baseline, path):
    model = WindowClassifier(baseline).fit(SIGNALS)
    assert model.score(SIGNALS, labels_of(SIGNALS)) > 0.5
    assert clone(model).fit(SIGNALS).predict_proba(SIGNALS[:3]).shape == (3, 4)
    for write in (model.save, partial(export.onnx, model), partial(export.c, model)):
        with pytest.raises(PolyadicError, match=f"CPD, ATD, SALS .* {type(baseline).__name__}"):
            write(path)
    assert not path.exists()


def test_a_classifier_is_exported_as_its_features_with_its_probe(features, tmp_path):
    pytest.importorskip("onnx")
    model = WindowClassifier(features).fit(SIGNALS)
    model.save(tmp_path / "model.safetensors")
    export.onnx(model, tmp_path / "a.onnx")
    export.onnx(load(tmp_path / "model.safetensors"), tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


# ----------------------------------------------------------- component weights


@pytest.mark.parametrize(("kind", "n_classes"), [("auto", 4), ("plain", 2), ("standardised", 4)])
def test_component_weights_give_the_logits_from_coefficients_and_statistics(kind, n_classes):
    windows = SIGNALS[SIGNALS.label < n_classes]
    features = SALS(rank=4, tensorize=STFT(n_fft=32, hop=16), max_sweeps=2, device="cpu").fit(windows)
    model = WindowClassifier(features, kind).fit(windows)
    W = model.component_weights()
    assert W.shape == (1 if n_classes == 2 else n_classes, 4)
    Z, x = features.transform(windows), features.coefficients(windows)
    logits = model.probe_.decision_function(Z).reshape(len(windows), -1)
    # What is left of the logits is the same for all windows but for their statistics.
    of_statistics = Z[:, 4:] @ model.probe_.coef_[:, 4:].T
    rest = logits - x @ W.T - of_statistics
    assert np.abs(x @ W.T).max() > 1e-3
    np.testing.assert_allclose(rest, np.broadcast_to(rest[:1], rest.shape), atol=1e-6 * np.abs(logits).max())


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        ([True, False], [False, True]),
        ([b"rest", b"walk"], ["rest", "walk"]),
        ([1.0, 2.0], [1, 2]),
    ],
)
def test_labels_of_any_python_type_give_a_model_that_can_be_saved(values, stored, tmp_path):
    signals = synthetic(40, 2, 64)
    labels = [values[row % 2] for row in range(40)]
    model = WindowClassifier(CPD(rank=2, max_sweeps=1, device="cpu")).fit(signals.X, labels)
    model.save(tmp_path / "m.safetensors")
    loaded = WindowClassifier.load(tmp_path / "m.safetensors")
    assert loaded.classes_.tolist() == stored
    assert loaded.predict(signals.X).tolist() == model.predict(signals.X).tolist()


def test_the_score_is_the_accuracy_on_windows_with_a_label():
    windows = synthetic(200)
    classifier = WindowClassifier(CPD(rank=4, max_sweeps=4).fit(windows)).fit(windows)
    labels = labels_of(windows)
    partly = labels.astype(object)
    partly[50:] = None
    expected = np.mean(classifier.predict(windows[:50]) == labels[:50])
    assert classifier.score(windows, partly) == expected
    assert classifier.score(windows) == np.mean(classifier.predict(windows) == labels)
    with pytest.raises(PolyadicError, match="y must have labels to score"):
        classifier.score(windows.X, [-1] * 200)
