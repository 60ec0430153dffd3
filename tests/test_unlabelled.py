"""Unlabelled windows in the probe: label spreading against a dense oracle, honest evaluation, and the temperature."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.metrics import balanced_accuracy_score

from polyadic import CPD
from polyadic.data import Windows, synthetic
from polyadic.data.labels import known_labels
from polyadic.evaluate import Probe, WindowClassifier, cross_validate
from polyadic.evaluate import probe as module
from polyadic.evaluate.probe import _temperature
from polyadic.evaluate.unlabelled import FEWEST, MOST, neighbour_graph, pool_rows, spread, trusted_labels


def blobs(rows: int = 600, apart: float = 2.2, width: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 3
    return apart * rng.normal(size=(3, width))[y] + rng.normal(size=(rows, width)), y


def few_labels(y: np.ndarray, count: int) -> np.ndarray:
    """Return labels with only the first rows of each class known, and -1 elsewhere."""
    marked = np.full(len(y), -1)
    for code in np.unique(y):
        marked[np.flatnonzero(y == code)[:count]] = code
    return marked


# ------------------------------------------------------------------------------- the pool


def test_the_pool_holds_as_many_rows_of_each_group_as_possible():
    groups = np.repeat(["a", "b", "c", "d"], [1000, 300, 40, 5])
    known = np.zeros(len(groups), bool)
    known[::10] = True
    rows = pool_rows(known, groups, most=400)
    assert len(rows) == len(set(rows.tolist())) == 400
    assert (np.diff(rows) > 0).all()
    assert not known[rows].any()
    counts = {name: int((groups[rows] == name).sum()) for name in "abcd"}
    assert (counts["c"], counts["d"]) == (36, 4)  # all of them
    assert abs(counts["a"] - counts["b"]) <= 1
    # Within a group at random, not the first ones.
    assert rows[groups[rows] == "a"].max() > 900


# ------------------------------------------------------------------------------ spreading


def dense_graph(Z: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Join each row to its ten nearest neighbours of other groups, one by one."""
    count = len(Z)
    distance = np.sqrt(((Z[:, None] - Z[None]) ** 2).sum(axis=2))
    order = [[other for other in np.argsort(row) if groups[other] != groups[own]] for own, row in enumerate(distance)]
    scale = np.array([distance[row, order[row][6]] for row in range(count)])
    W = np.zeros((count, count))
    for row in range(count):
        for other in order[row][:10]:
            weight = np.exp(-(distance[row, other] ** 2) / (scale[row] * scale[other]))
            W[row, other] = W[other, row] = max(weight, W[row, other])
    return W


def dense_spread(W: np.ndarray, codes: np.ndarray, proportions: np.ndarray) -> np.ndarray:
    """Spread labels by (I − αS)⁻¹ Y on a dense matrix."""
    degree = W.sum(axis=1)
    S = W / np.sqrt(degree[:, None] * degree)
    Y = np.zeros((len(W), len(proportions)))
    for row in np.flatnonzero(codes >= 0):
        Y[row, codes[row]] = 1 / (codes == codes[row]).sum()
    mass = np.linalg.solve(np.eye(len(W)) - 0.9 * S, 0.1 * Y)
    mass *= proportions / mass.sum(axis=0)
    return mass / mass.sum(axis=1, keepdims=True)


def test_neighbours_of_other_subjects_count_a_quarter():
    Z, _ = blobs(120)
    subject = np.arange(120) // 40
    expected = dense_graph(Z, np.arange(120)) + dense_graph(Z, subject) / 4
    np.testing.assert_allclose(neighbour_graph(Z, np.zeros(8, bool), subject).toarray(), expected, atol=1e-12)


@pytest.mark.parametrize("outside", [0, 3])
def test_subjects_with_few_windows_of_others_have_as_many_neighbours_as_there_are(outside):
    Z, _ = blobs(60)
    subject = (np.arange(60) < outside).astype(int)
    graph = neighbour_graph(Z, np.zeros(8, bool), subject)
    without = neighbour_graph(Z, np.zeros(8, bool))
    assert ((graph - without).toarray() > 0).any() == (outside > 0)


def test_labels_of_one_subject_spread_to_others_that_are_shifted():
    rng, y, subject = np.random.default_rng(0), np.arange(600) % 2, np.arange(600) // 100
    Z = 1.5 * np.eye(8)[y] + 1.5 * rng.normal(size=(6, 8))[subject] + 0.3 * rng.normal(size=(600, 8))
    codes = np.where(np.arange(600) < 2, y, -1)
    right = []
    for groups in (None, subject):
        found = spread(neighbour_graph(Z, np.zeros(8, bool), groups), codes, np.array([0.5, 0.5]))
        right.append((found.argmax(axis=1) == y)[100:].mean())
    assert right[1] > right[0] + 0.1


def test_spreading_solves_the_linear_system_of_the_dense_graph():
    Z, y = blobs(200)
    codes, proportions = few_labels(y, 4), np.array([0.5, 0.2, 0.3])
    expected = dense_spread(dense_graph(Z, np.arange(200)), codes, proportions)
    found = spread(neighbour_graph(Z, np.zeros(Z.shape[1], bool)), codes, proportions)
    np.testing.assert_allclose(found, expected, atol=5e-3)  # after 60 steps
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.99


@pytest.mark.parametrize("few", [3, 4])
def test_spread_labels_weigh_three_times_as_much_as_the_true_ones_of_their_class(few):
    Z, y = blobs(600)
    codes = few_labels(y, few)
    codes[np.flatnonzero(codes == 2)[1:]] = -1  # unequal numbers
    probabilities = np.full((600, 3), 0.1)
    probabilities[np.arange(600), y] = 0.8
    probabilities[300:] = [0.8, 0.1, 0.1]  # the probe is wrong there
    best, weight = trusted_labels(neighbour_graph(Z, np.zeros(Z.shape[1], bool)), codes, probabilities)
    unlabelled = codes < 0
    np.testing.assert_array_equal(best[~unlabelled], codes[~unlabelled])
    np.testing.assert_array_equal(weight[~unlabelled], 1.0)
    for code in range(3):
        assert weight[unlabelled & (best == code)].sum() == pytest.approx(3 * (codes == code).sum())
    # With more than three labels of a class, only labels on which graph and probe agree count.
    differs = unlabelled & (best != probabilities.argmax(axis=1))
    assert weight[differs].any() == (few == 3)
    assert (best == y)[weight > 0].mean() > 0.9


def test_blobs_are_classified_better_with_unlabelled_rows_and_the_reason_states_the_gain():
    scores = []
    for seed in range(3):
        Z, y = blobs(900, 0.7, width=20, seed=seed)
        marked = few_labels(y, 12)
        probes = [Probe(unlabelled=value).fit(Z, marked, np.arange(900) // 3 % 6) for value in (False, "auto")]
        scores.append([balanced_accuracy_score(y, probe.predict(Z)) for probe in probes])
        assert "864 unlabelled windows used, " in probes[1].reason_
        assert " points of balanced accuracy on " in probes[1].reason_
    assert np.diff(scores, axis=1).mean() > 0.02


def test_unlabelled_rows_are_dropped_where_they_lower_the_accuracy_on_left_out_subjects(monkeypatch):
    Z, y = blobs(900)
    groups, marked = np.arange(900) // 3 % 6, few_labels(y, 50)

    def mislead(graph: Any, codes: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(codes < 0, (probabilities.argmax(axis=1) + 1) % 3, codes), np.ones(len(codes))

    monkeypatch.setattr(module, "trusted_labels", mislead)
    probe = Probe(C=1.0, scale="plain").fit(Z, marked, groups)
    assert probe.unlabelled_ == 0
    assert "unlabelled windows not used, because they would bring -" in probe.reason_
    without = Probe(C=1.0, scale="plain", unlabelled=False).fit(Z, marked, groups)
    np.testing.assert_array_equal(probe.coef_, without.coef_)


def test_fewer_unlabelled_rows_than_250_change_nothing():
    Z, y = blobs(FEWEST + 29)
    marked = few_labels(y, 10)
    assert (marked < 0).sum() == FEWEST - 1
    few = Probe().fit(Z, marked)
    assert few.unlabelled_ == 0
    np.testing.assert_array_equal(few.coef_, Probe().fit(Z[marked >= 0], marked[marked >= 0]).coef_)


# ----------------------------------------------------------------------------- temperature


@pytest.mark.parametrize("planted", [0.3, 3.0])
def test_a_planted_temperature_is_recovered_from_many_predictions_and_shrunk_with_few(planted):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(4000, 3))
    y = np.array([rng.choice(3, p=row) for row in softmax(logits, axis=1)])
    found = [_temperature(planted * logits[:count], y[:count], None) for count in (4000, 40, 29)]
    assert found[0] == pytest.approx(planted, rel=0.1)
    low, high = sorted((planted, 1.0))
    assert low * 0.6 <= found[1] <= high * 1.6
    assert found[2] == 1


def test_probabilities_of_a_planted_logistic_model_are_calibrated_however_strong_the_penalty():
    rng = np.random.default_rng(0)
    Z, new = rng.normal(size=(1500, 6)), rng.normal(size=(6000, 6))
    direction = rng.normal(size=(6, 3))
    draw = [np.array([rng.choice(3, p=row) for row in softmax(F @ direction, axis=1)]) for F in (Z, new)]
    probe = Probe(C=1e-3, scale="plain", class_weight=None).fit(Z, draw[0], np.arange(1500) % 10)
    probabilities = probe.predict_proba(new)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == draw[1]
    bins = np.clip((10 * confidence).astype(int), 0, 9)
    error = sum(abs((right - confidence)[bins == number].sum()) for number in range(10)) / len(new)
    assert error < 0.05


# --------------------------------------------------------------------------- evaluation


class Plain(TransformerMixin, BaseEstimator):
    """Features that are the samples of the first channel: no fit sees a window."""

    def fit(self, X: Any, y: Any = None) -> Plain:
        self.fitted_ = True
        return self

    def transform(self, X: Any) -> np.ndarray:
        return np.asarray(X.X[:, 0], np.float64)


class Given(Probe):
    """A probe that notes the subjects of labelled and of unlabelled rows it was given, fold by fold."""

    subjects: ClassVar[list[tuple[set[str], set[str]]]] = []

    def fit(self, Z: Any, y: Any, groups: Any = None, statistic_columns: Any = None) -> Given:
        known = known_labels(y, len(y))[0]
        Given.subjects.append((set(groups[known]), set(groups[~known])))
        super().fit(Z, y, groups, statistic_columns)
        assert (self.unlabelled_ > FEWEST) == (self.unlabelled == "auto")
        return self


def people(label: np.ndarray, Z: np.ndarray, subject: np.ndarray) -> Windows:
    return Windows(Z[:, None], label=label, subject=subject)


@pytest.mark.parametrize("transductive", [False, True])
def test_unlabelled_windows_of_left_out_subjects_never_enter_unless_transductive(transductive):
    Z, y = blobs(900)
    subject, marked = np.char.add("p", (np.arange(900) // 3 % 4).astype(str)), few_labels(y, 20)
    clean = people(marked, Z, subject)
    results = []
    for poisoned in (None, "p3"):
        X = Z.copy()
        if poisoned is not None:
            X[(subject == poisoned) & (marked < 0)] += 40.0  # far from everything
        windows, given = people(marked, X, subject), Given()
        model = Plain().fit(windows)
        if not transductive:
            model = Plain()
        Given.subjects.clear()
        results.append(cross_validate(model, windows, probe=given, transductive=transductive))
        assert len(Given.subjects) == 4
        for labelled, unlabelled in Given.subjects:
            assert (set(subject) - labelled <= unlabelled) == transductive
    own = clean.subject[results[0].rows] == "p3"
    same = results[0].confidence[0, own] == results[1].confidence[0, own]
    assert same.all() == (not transductive)
    assert results[0].transductive == transductive


# ------------------------------------------------------------------------------- classifiers


def test_a_classifier_uses_unlabelled_windows():
    windows = synthetic(600, n_channels=2)
    windows = Windows(windows.X, fs=windows.fs, label=windows.label, subject=np.arange(600) % 5)
    y = np.where(np.arange(600) < 60, windows.label, -1)
    features = CPD(4).fit(windows)
    model = WindowClassifier(features).fit(windows, y)
    assert model.probe_.unlabelled_ == 540
    ignoring = WindowClassifier(features, Probe(unlabelled=False)).fit(windows, y)
    assert ignoring.probe_.unlabelled_ == 0


@pytest.mark.parametrize("groups", [None, np.zeros(9000)])
def test_the_pool_is_bounded_whatever_the_groups(groups):
    assert len(pool_rows(np.zeros(9000, bool), groups)) == MOST
    assert len(pool_rows(np.ones(9000, bool), groups)) == 0


def test_the_graph_is_symmetric_without_loops_and_stands_equal_windows():
    Z, y = blobs(120)
    Z[:40] = Z[0]  # forty silent windows, say
    graph = neighbour_graph(Z, np.zeros(Z.shape[1], bool))
    assert np.isfinite(graph.data).all()
    assert abs(graph - graph.T).max() == 0
    assert not graph.diagonal().any()
    found = spread(graph, few_labels(y, 2), np.ones(3))
    assert np.isfinite(found).all()
    assert neighbour_graph(np.zeros((30, 2)), np.zeros(2, bool)).shape == (30, 30)


def test_components_and_statistics_have_a_graph_each():
    Z, _ = blobs(80)
    is_statistic = np.arange(8) % 2 > 0
    both = neighbour_graph(Z, is_statistic)
    parts = [neighbour_graph(Z[:, columns], np.zeros(4, bool)) for columns in (~is_statistic, is_statistic)]
    assert abs(both - parts[0] - parts[1]).max() < 1e-12
    scaled = neighbour_graph(Z * np.where(is_statistic, 7.0, 1.0), is_statistic)
    np.testing.assert_allclose(scaled.toarray(), both.toarray(), atol=1e-12)


@pytest.mark.parametrize("marks", [-1, "", None, np.nan])
def test_all_marks_of_a_missing_label_are_the_same(marks):
    Z, y = blobs(400)
    codes = few_labels(y, 5)
    text = isinstance(marks, str) or marks is None
    column = np.array([marks if code < 0 else (f"c{code}" if text else float(code)) for code in codes], object)
    probe = Probe().fit(Z, column.tolist())
    assert probe.unlabelled_ == 385
    assert "385 unlabelled windows used, too few labels or subjects to tell" in probe.reason_
    np.testing.assert_array_equal(probe.coef_, Probe().fit(Z, codes).coef_)
    assert probe.classes_.tolist() == (["c0", "c1", "c2"] if text else [0, 1, 2])


def test_a_class_of_one_subject_does_not_spoil_the_temperature():
    Z, y = blobs(600)
    groups = np.arange(600) // 3 % 6
    groups[y == 2] = 0  # in its fold, no probe knows the third class
    alone, shared = Probe(C=1.0).fit(Z, y, groups), Probe(C=1.0).fit(Z, y, np.arange(600) // 3 % 6)
    assert alone.temperature_ == pytest.approx(shared.temperature_, rel=0.5)
    only = Probe(C=1.0).fit(Z[y < 2], y[y < 2], np.where(y[y < 2] == 0, np.arange(400) % 2, 2))
    assert np.isfinite(only.coef_).all()
    assert 0.1 < only.temperature_ < 3


def test_few_labels_or_subjects_get_the_fixed_temperature():
    Z, y = blobs(300)
    for rows, groups in ((29, 5), (300, 2)):
        assert Probe().fit(Z[:rows], y[:rows], np.arange(rows) % groups).temperature_ == 1


def test_random_labels_give_chance_in_cross_validation_with_unlabelled_windows():
    Z, _ = blobs(1600)
    rng = np.random.default_rng(0)
    label = np.where(np.arange(1600) % 4 == 0, rng.integers(0, 3, 1600), -1)
    subject = np.char.add("p", (np.arange(1600) // 400).astype(str))
    result = cross_validate(Plain(), people(label, Z, subject))
    assert result.balanced_accuracy == pytest.approx(1 / 3, abs=0.08)
    assert np.isfinite(result.confidence).all()
    assert not result.transductive


def test_a_probe_that_ignores_unlabelled_windows_is_given_none():
    Z, y = blobs(900)
    windows = people(few_labels(y, 60), Z, np.char.add("p", (np.arange(900) // 3 % 6).astype(str)))
    Given.subjects.clear()
    cross_validate(Plain(), windows, probe=Given(unlabelled=False))
    assert {len(unlabelled) for _, unlabelled in Given.subjects} == {0}
