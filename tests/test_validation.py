"""Subject-wise cross-validation: no test subject is ever seen, and every score is scikit-learn's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    confusion_matrix,
    f1_score,
    precision_score,
    recall_score,
)

from polyadic import CPD
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe, cross_validate
from polyadic.evaluate.classifier import make_probe

SEEN: list[set[int]] = []


class Means(TransformerMixin, BaseEstimator):
    """Mean and spread of each channel; remembers which windows each fit saw by the number in their last sample."""

    def fit(self, X: Any, y: Any = None) -> Means:
        SEEN.append(set(X.X[:, 0, -1].astype(int).tolist()))
        self.fitted_ = True
        return self

    def transform(self, X: Any) -> np.ndarray:
        samples = X.X[:, :, :-1]
        return np.hstack([samples.mean(axis=2), samples.std(axis=2)])


@pytest.fixture(autouse=True)
def forget():
    SEEN.clear()


def signals(rows: int = 240, classes: int = 3, unlabelled: int = 3, signal: float = 0.6, seed: int = 0) -> Windows:
    """Windows of eight people; each carries its own number, and every third may be without a label."""
    rng = np.random.default_rng(seed)
    y, people = np.arange(rows) % classes, np.arange(rows) * 8 // rows
    X = rng.normal(size=(rows, classes, 16)) + signal * (np.arange(classes) == y[:, None])[:, :, None]
    X += 0.2 * rng.normal(size=(8, classes, 1))[people]
    X[:, 0, -1] = np.arange(rows)
    labels = np.array(["rest", "run", "walk", "fall"])[y]
    labels[np.arange(rows) // classes % unlabelled == 0] = ""
    return Windows(X, 50.0, subject=[f"p{person}" for person in people], label=labels)


PROBE = "standardised"


# ------------------------------------------------------------------- leakage


@pytest.mark.parametrize("folds", ["loso", 3])
def test_features_are_refitted_without_the_test_subjects_and_with_all_windows_of_the_others(folds):
    windows = signals()
    model = Means() if folds == "loso" else Means().fit(windows[:10])
    SEEN.clear()
    result = cross_validate(model, windows, folds=folds, probe=PROBE)
    assert not result.transductive
    assert result.folds == len(SEEN) == (8 if folds == "loso" else 3)
    people, left_out = windows.subject, []
    for seen in SEEN:
        seen_people = set(people[sorted(seen)])
        assert seen == set(np.flatnonzero(np.isin(people, sorted(seen_people))))  # labelled or not
        left_out += sorted(set(people) - seen_people)
    assert sorted(left_out) == sorted(set(people))


def test_transductive_keeps_the_features_and_says_so():
    windows = signals()
    model = Means().fit(windows)
    SEEN.clear()
    result = cross_validate(model, windows, folds=2, probe=PROBE, transductive=True)
    assert not SEEN
    assert result.transductive
    assert "Transductive" in result.summary()
    with pytest.raises(NotFittedError):
        cross_validate(Means(), windows, transductive=True)


def test_random_labels_are_at_chance_even_if_subjects_are_easy_to_separate():
    rng = np.random.default_rng(0)
    people = np.arange(400) // 20
    X = 5 * rng.normal(size=(20, 24, 1))[people] + rng.normal(size=(400, 24, 16))
    habit = rng.integers(2, size=20)[people]  # most windows of a person have one label
    y = np.where(rng.random(400) < 0.9, habit, 1 - habit)
    windows = Windows(X, 50.0, subject=people, label=y)
    result = cross_validate(Means(), windows, folds=5)
    assert abs(result.balanced_accuracy - result.chance) < 0.15
    # Shuffled "subjects", each with windows of everyone, would promise far more.
    leaky = Windows(X, 50.0, subject=rng.permutation(400) % 20, label=y)
    assert cross_validate(Means(), leaky, folds=5).balanced_accuracy > 0.8


def test_windows_of_unknown_subjects_are_not_used_at_all():
    windows = signals()
    people = windows.subject.copy()
    people[people == "p3"] = ""
    labels = np.array([*windows.classes, ""])[windows.label]
    known = Windows(windows.X, 50.0, subject=people, label=labels)
    result = cross_validate(Means(), known, probe=PROBE)
    nobody = set(np.flatnonzero(people == "").tolist())
    assert all(seen.isdisjoint(nobody) for seen in SEEN)
    assert nobody.isdisjoint(result.rows.tolist())
    assert result.left_out == int((known.label[people == ""] >= 0).sum()) > 0
    assert f"{result.left_out} labelled windows of unknown subjects" in result.summary()


def test_the_probe_is_given_the_training_subjects_as_groups():
    given = []

    class Spy(Probe):
        def fit(self, Z: Any, y: Any, groups: Any = None, statistic_columns: Any = None) -> Spy:
            given.append((set(groups), len(statistic_columns)))
            return super().fit(Z, y, groups, statistic_columns)

    cross_validate(Means(), signals(), folds=4, probe=Spy())
    everyone = {f"p{person}" for person in range(8)}
    assert len(given) == 4
    assert sum(len(everyone - groups) for groups, _ in given) == 8
    assert {levels for _, levels in given} == {0}


# -------------------------------------------------------------------- scores


@pytest.fixture(scope="module")
def result():
    return cross_validate(Means(), signals(signal=0.3), folds=3, repeats=2, probe=PROBE, random_state=5)


def test_scores_are_those_of_scikit_learn(result):
    windows = signals(signal=0.3)
    y = np.array(windows.classes)[windows.label[result.rows]]
    assert result.windows == len(y) == (windows.label >= 0).sum()
    assert not np.array_equal(*result.predicted)
    for name, formula in (
        ("balanced_accuracy", balanced_accuracy_score),
        ("accuracy", accuracy_score),
        ("kappa", cohen_kappa_score),
        ("macro_f1", lambda truth, guess: f1_score(truth, guess, average="macro")),
    ):
        expected = [formula(y, guess) for guess in result.predicted]
        assert getattr(result, name) == pytest.approx(np.mean(expected))
    twice, guesses = np.tile(y, 2), result.predicted.ravel()
    np.testing.assert_array_equal(2 * result.confusion, confusion_matrix(twice, guesses, labels=result.classes))
    for name, formula in (("recall", recall_score), ("precision", precision_score), ("f1", f1_score)):
        values = formula(twice, guesses, labels=result.classes, average=None)
        assert [result.per_class[label][name] for label in result.classes] == pytest.approx(values)
    assert [result.per_class[label]["windows"] for label in result.classes] == [
        int((y == c).sum()) for c in result.classes
    ]
    assert result.chance == pytest.approx(1 / 3)
    assert result.majority == pytest.approx(max(np.unique(y, return_counts=True)[1]) / len(y))


def test_scores_of_subjects_and_their_spread(result):
    windows = signals(signal=0.3)
    y, people = np.array(windows.classes)[windows.label[result.rows]], windows.subject[result.rows]
    assert list(result.per_subject) == [f"p{person}" for person in range(8)]
    for person, found in result.per_subject.items():
        own = people == person
        expected = np.mean([balanced_accuracy_score(y[own], guess[own]) for guess in result.predicted])
        assert found["balanced_accuracy"] == pytest.approx(expected)
        assert found["accuracy"] == pytest.approx(np.mean([(y == guess)[own].mean() for guess in result.predicted]))
        assert found["windows"] == own.sum()
    values = [found["balanced_accuracy"] for found in result.per_subject.values()]
    assert result.over_subjects["mean"] == pytest.approx(np.mean(values))
    assert result.over_subjects["std"] == pytest.approx(np.std(values, ddof=1))
    assert (result.over_subjects["min"], result.over_subjects["max"]) == (min(values), max(values))


def test_predictions_are_those_of_a_plain_loop():
    windows = signals()
    result = cross_validate(Means(), windows, folds="loso", probe=PROBE)
    Z, labelled = Means().transform(windows), windows.label >= 0
    y = np.array([*windows.classes, ""])[windows.label]
    for person in np.unique(windows.subject):
        train, test = labelled & (windows.subject != person), labelled & (windows.subject == person)
        expected = make_probe(PROBE).fit(Z[train], y[train], windows.subject[train]).predict(Z[test])
        np.testing.assert_array_equal(result.predicted[0][test[result.rows]], expected)


# -------------------------------------------------------------------- errors


def relabelled(windows: Windows, label: Any = None, subject: Any = None) -> Windows:
    names = np.array([*windows.classes, ""])[windows.label]
    return Windows(
        windows.X,
        50.0,
        label=names if label is None else label,
        subject=windows.subject if subject is None else subject,
    )


@pytest.mark.parametrize(
    ("windows", "options", "said"),
    [
        (lambda w: relabelled(w, label=np.full(240, "")), {}, "must have labels"),
        (lambda w: relabelled(w, subject=np.full(240, "")), {}, "must have subjects"),
        (lambda w: relabelled(w, subject=np.full(240, "anna")), {}, "only 'anna' has any"),
        (lambda w: relabelled(w, label=np.full(240, "rest")), {}, "all are 'rest'"),
        (lambda w: w.X, {}, "windows must be Windows"),
        (lambda w: w, {"folds": 9}, "at most the number of labelled subjects, 8"),
        (lambda w: w, {"folds": "kfold"}, "folds must be a whole number >= 2"),
        (lambda w: w, {"model": LogisticRegression()}, "model must be a feature extractor"),
    ],
)
def test_impossible_validation_is_refused_with_a_clear_error(windows, options, said):
    with pytest.raises(PolyadicError, match=said):
        cross_validate(**({"model": Means(), "windows": windows(signals())} | options))
    assert not SEEN


def test_a_fold_that_leaves_one_class_to_train_on_is_refused_before_anything_is_fitted():
    windows = signals(classes=2)
    people = np.array(["anna" if label == 0 else "ben" for label in windows.label])
    with pytest.raises(PolyadicError, match="without anna only one class is left"):
        cross_validate(Means(), relabelled(windows, subject=people))
    assert not SEEN


def test_the_result_is_reported_as_text_and_as_json(result):
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["confusion"] == result.confusion.tolist()
    assert content["transductive"] is False
    assert "predicted" not in content
    assert content["reasons"] == list(result.reasons)
    text = result.summary()
    assert str(result) == text
    for part in (
        f"{100 * result.balanced_accuracy:.1f} %",
        "chance 33.3 %",
        "8 subjects",
        "3 subject-wise folds",
        "2 repeats",
        "refitted",
        f"Probe in the first of 6 folds: {result.reasons[0]}.",
    ):
        assert part in text


def test_every_fold_is_told_and_probabilities_are_those_of_the_first_repeat():
    folds: list[tuple[int, int]] = []
    result = cross_validate(Means(), signals(), 2, repeats=2, probe=PROBE, on_fold=lambda fold: folds.append(fold[:2]))
    assert folds == [(1, 4), (2, 4), (3, 4), (4, 4)]
    np.testing.assert_array_equal(result.probability.max(axis=1), result.confidence[0])
    np.testing.assert_array_equal(np.array(result.classes)[result.probability.argmax(axis=1)], result.predicted[0])


def test_probabilities_are_those_of_predict_also_where_a_channel_is_missing():
    whole, done = synthetic(120, n_channels=2), []
    X = whole.X.copy()
    X[::3, 0] = np.nan
    windows = Windows(X, whole.fs, subject=whole.subject, label=whole.label)
    model = CPD(rank=2, max_sweeps=3).fit(windows)
    result = cross_validate(model, windows, folds=2, transductive=True, on_fold=done.append)
    for fold in done:
        expected = fold.classifier.predict_proba(windows[fold.rows])
        np.testing.assert_allclose(result.probability[np.isin(result.rows, fold.rows)], expected, atol=1e-6)
        plain = fold.classifier.probe_.predict_proba(fold.classifier.features_.transform(windows[fold.rows]))
        assert np.abs(plain - expected).max() > 1e-3  # averaged over what the channel might have been


@pytest.mark.parametrize(("people", "repeats", "expected"), [(20, None, (20, 1)), (21, None, (5, 2)), (8, 3, (5, 3))])
def test_by_default_up_to_20_subjects_are_left_out_one_by_one(people, repeats, expected):
    windows = relabelled(signals(), subject=np.arange(240) % people)
    result = cross_validate(Means(), windows, repeats=repeats, probe=PROBE)
    assert (result.folds, result.repeats) == expected
