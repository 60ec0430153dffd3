"""`Probe`: settings chosen for new groups, coefficients of the original features, and its form in model files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from polyadic.data.splits import contiguous_blocks, group_folds
from polyadic.errors import PolyadicError
from polyadic.evaluate import probe as module
from polyadic.evaluate import regression
from polyadic.evaluate.probe import Probe


def example(rows: int = 240, width: int = 6, classes: int = 3, spread: float = 1.0, seed: int = 0):
    """Return features of classes that overlap, from 12 subjects with different offsets."""
    rng = np.random.default_rng(seed)
    y, people = np.arange(rows) % classes, np.arange(rows) * 12 // rows
    centres = rng.normal(size=(classes, width))
    offsets = 0.7 * rng.normal(size=(12, width))
    return centres[y] + offsets[people] + spread * rng.normal(size=(rows, width)), y, people


def leaking(seed: int = 0):
    """Return a weak feature that generalises, and statistics that separate classes only within known subjects."""
    rng = np.random.default_rng(seed)
    y, people = np.arange(400) % 2, np.arange(400) // 40
    codes = 3 * rng.normal(size=(10, 2, 30))
    weak = 1.5 * y[:, None] + rng.normal(size=(400, 2))
    block = codes[people, y] + 0.3 * rng.normal(size=(400, 30))
    return np.hstack([weak, block]), y, people, slice(2, None)


# ---------------------------------------------------------------- the choice


NEWTON = {"solver": "newton-cholesky", "max_iter": 1000}
"""Another solver than the probe's: it reaches the optimum itself in a few steps, however the features are scaled."""


def slow_scores(Z, y, people, statistics, settings):
    """Score settings the obvious way, with one pipeline per setting and fold: balanced accuracies."""
    fold, scores = group_folds(y, people, 5), []
    for C, scale, weight in settings:
        gain = np.where(np.isin(np.arange(Z.shape[1]), statistics), weight, 1.0)
        guess = np.empty_like(y)
        for left_out in range(5):
            train, test = fold != left_out, fold == left_out
            weigh = FunctionTransformer(lambda F, gain=gain: F * gain)
            regression = LogisticRegression(C=C, class_weight="balanced", tol=1e-7, **NEWTON)
            steps = [StandardScaler()] if scale == "standardised" else []
            guess[test] = make_pipeline(*steps, weigh, regression).fit(Z[train], y[train]).predict(Z[test])
        scores.append(balanced_accuracy_score(y, guess))
    return scores


@pytest.mark.parametrize(
    ("parameters", "columns", "scales", "count"),
    [({}, [], ("plain", "standardised"), 12), ({}, [4, 5], ("plain",), 30), ({"scale": "standardised"}, [4], (), 30)],
)
def test_settings_have_the_scores_of_a_slow_search_and_the_best_is_chosen(
    parameters, columns, scales, count, monkeypatch
):
    monkeypatch.setattr(module, "_SEARCH_TOLERANCE", 1e-7)
    Z, y, people = example()
    probe = Probe(**parameters).fit(Z, y, groups=people, statistic_columns=columns)
    tried = [(row["C"], row["scale"], row["statistics"] or 1.0) for row in probe.validation_]
    scores = [row["balanced_accuracy"] for row in probe.validation_]
    assert len(set(tried)) == count
    assert {scale for _, scale, _ in tried} == set(scales or ("standardised",))
    assert scores == pytest.approx(slow_scores(Z, y, people, columns, tried), abs=1e-12)
    best = max(scores)
    assert scores[tried.index((probe.C_, probe.scale_, probe.statistics_ or 1.0))] == pytest.approx(best)
    assert f"balanced accuracy {100 * best:.1f} % (optimistic: " in probe.reason_
    assert "12 subjects in 5 folds" in probe.reason_


def test_features_that_hold_only_within_subjects_get_less_weight_by_groups_than_by_shuffled_folds():
    Z, y, people, block = leaking()
    by_people = Probe().fit(Z, y, groups=people, statistic_columns=block)
    shuffled = Probe().fit(Z, y, groups=np.random.default_rng(0).permutation(400) % 5, statistic_columns=block)
    assert by_people.statistics_ == 0.25
    assert np.abs(by_people.coef_[:, 2:]).mean() < 0.5 * np.abs(shuffled.coef_[:, 2:]).mean()
    new, truth, _, _ = leaking(seed=1)
    assert by_people.score(new, truth) > shuffled.score(new, truth)


def test_ties_go_to_the_fixed_choice():
    y = np.arange(200) % 2
    Z = 100.0 * y[:, None] + np.random.default_rng(0).normal(size=(200, 2))
    probe = Probe().fit(Z, y, np.arange(200) // 20)
    assert sum(row["balanced_accuracy"] == 1 for row in probe.validation_) > 5
    assert probe.scale_ == "plain"
    assert probe.C_ * Z.var(axis=0).mean() == pytest.approx(regression.FIXED_C)


def test_few_labels_or_one_group_get_the_fixed_choice():
    Z, y, people = example()
    few = np.arange(module.FEWEST_LABELS - 1)
    for rows, groups, why in (
        (few, people[few] % 2, f"{len(few)} labels are too few"),
        (np.arange(len(y)), np.full(len(y), "anna"), "all labels are from one subject"),
        (np.arange(3), None, "3 labels are too few"),
    ):
        probe = Probe().fit(Z[rows], y[rows], groups=groups, statistic_columns=[5])
        assert (probe.scale_, probe.statistics_, probe.validation_) == ("plain", 0.7, [])
        variance = (Z[rows] * [1, 1, 1, 1, 1, 0.7]).var(axis=0).sum() / 5
        assert probe.C_ * variance == pytest.approx(1)
        assert "fixed settings" in probe.reason_
        assert ("confidence not calibrated" in probe.reason_) == (probe.temperature_ == 1)
        assert why in probe.reason_
    enough = np.arange(module.FEWEST_LABELS)
    assert Probe().fit(Z[enough], y[enough], groups=people[enough]).validation_


@pytest.mark.parametrize("helps", [True, False])
def test_few_labels_of_three_groups_choose_the_weight_by_likelihood(helps):
    rng = np.random.default_rng(0)
    y, people = np.arange(60) % 3, np.arange(60) // 15
    Z = rng.normal(size=(60, 12))
    Z[:, 6:] += 2 * np.eye(3, 6)[y] if helps else 3 * rng.normal(size=(4, 6))[people]
    statistics = slice(6, 12)
    probe = Probe().fit(Z, y, groups=people, statistic_columns=statistics)

    def loss(weight):
        scores = np.zeros((60, 3))
        for fold in np.unique(people):  # four groups: each is a fold of its own
            test = people == fold
            fixed = Probe(C=fixed_c(Z, weight), scale="plain", statistics=weight, unlabelled=False)
            fixed.fit(Z[~test], y[~test], groups=people[~test], statistic_columns=statistics)
            logits = fixed.decision_function(Z[test]) * fixed.temperature_
            scores[test] = logits - logits.max(axis=1, keepdims=True)
        likelihood = scores[np.arange(60), y] - np.log(np.exp(scores).sum(axis=1))
        return -likelihood.sum() + np.log(weight / 0.7) ** 2 / (2 * 0.7**2)

    best = min(regression.WEIGHTS, key=loss)
    assert probe.statistics_ == best
    assert (best > 0.7) == helps
    assert "the weight by likelihood on 4 left-out subjects, because 60 labels are too few" in probe.reason_


def fixed_c(Z, weight):
    """Return the fixed C for features whose last six columns of twelve are statistics."""
    return 6 / (Z * np.repeat([1, weight], 6)).var(axis=0).sum()


# ------------------------------------------------------------ the regression


@pytest.mark.parametrize(
    ("classes", "scale", "weight"),
    [(2, "plain", "balanced"), (3, "standardised", None)],
)
def test_coefficients_are_those_of_scikit_learn_with_the_scaling_folded_in(classes, scale, weight, monkeypatch):
    monkeypatch.setattr(module, "_TOLERANCE", 1e-9)
    Z, y, _ = example(classes=classes)
    Z, y = Z[y * np.arange(len(y)) % 5 != 1] * [1, 2, 3, 4, 5, 600] + 50, y[y * np.arange(len(y)) % 5 != 1]
    probe = Probe(C=0.02, scale=scale, class_weight=weight).fit(Z, y)
    # Centred, which changes nothing but the intercept, scikit-learn's solver reaches its optimum, too.
    centred = StandardScaler(with_std=scale == "standardised")
    direct = LogisticRegression(C=0.02, class_weight=weight, tol=1e-10, **NEWTON)
    direct = make_pipeline(centred, direct).fit(Z, y)
    logits = probe.temperature_ * probe.decision_function(Z)
    np.testing.assert_allclose(logits, direct.decision_function(Z), atol=1e-4)
    np.testing.assert_array_equal(probe.predict(Z), direct.predict(Z))
    assert probe.coef_.shape == (1 if classes == 2 else classes, 6)
    np.testing.assert_allclose(probe.predict_proba(Z).sum(axis=1), 1)
    assert probe.score(Z, y) == direct.score(Z, y)


@pytest.mark.parametrize(("scale", "classes"), [("plain", 2), ("standardised", 3)])
def test_features_wider_than_the_rows_give_the_result_of_the_direct_fit(scale, classes):
    Z, y, _ = example(rows=30, width=200, classes=classes)
    Z[:, 7] = 1.0
    (wide,) = regression.regressions(Z, y, scale, [0.5], "balanced", 1e-9)
    steps = [StandardScaler()] if scale == "standardised" else [StandardScaler(with_std=False)]
    direct = LogisticRegression(C=0.5, class_weight="balanced", tol=1e-9, max_iter=100_000)
    direct = make_pipeline(*steps, direct).fit(Z, y)
    spread = direct[0].scale_ if scale == "standardised" else 1.0
    np.testing.assert_allclose(wide[0], direct[-1].coef_ / spread, atol=1e-6)
    new = np.random.default_rng(1).normal(size=(50, 200))
    logits = new @ wide[0].T + wide[1]
    np.testing.assert_allclose(logits.squeeze(), direct.decision_function(new), atol=1e-5)


@pytest.mark.parametrize(("classes", "weight"), [(2, None), (4, "balanced")])
def test_each_regression_of_a_path_is_that_of_scikit_learn(classes, weight):
    Z, y, _ = example(classes=classes)
    rows = np.random.default_rng(2).uniform(0.1, 3, len(y))
    fits = regression.regressions(Z, y, "plain", [0.01, 1.0], weight, 1e-10, sample_weight=rows)
    if weight == "balanced":  # of the weighted rows
        rows, weight = rows / np.bincount(y, rows)[y] * rows.sum() / classes, None
    for C, (coef, intercept) in zip([0.01, 1.0], fits, strict=True):
        direct = LogisticRegression(C=C, class_weight=weight, tol=1e-10, **NEWTON).fit(Z, y, rows)
        np.testing.assert_allclose(coef, direct.coef_, atol=1e-5)
        np.testing.assert_allclose(intercept, direct.intercept_, atol=1e-5)


@pytest.mark.parametrize("scale", ["plain", "standardised"])
def test_statistics_are_multiplied_by_their_weight_and_left_out_with_weight_0(scale):
    Z, y, people = example()
    parameters = {"C": 0.1, "scale": scale}
    twice = Probe(**parameters, statistics=2.0).fit(Z, y, people, [4, 5])
    # As if the scaled features had been given twice as large.
    F = StandardScaler().fit_transform(Z) if scale == "standardised" else Z
    by_hand = Probe(C=0.1, scale="plain").fit(F * [1, 1, 1, 1, 2, 2], y, people)
    logits, expected = twice.decision_function(Z), by_hand.decision_function(F * [1, 1, 1, 1, 2, 2])
    np.testing.assert_allclose(twice.temperature_ * logits, by_hand.temperature_ * expected, atol=1e-2)
    without, changed = Probe(**parameters, statistics=0).fit(Z, y, people, [4, 5]), Z.copy()
    changed[:, 4:] = 1e9
    assert not without.coef_[:, 4:].any()
    np.testing.assert_array_equal(without.predict_proba(Z), without.predict_proba(changed))


# -------------------------------------------------------------- scikit-learn


@parametrize_with_checks(
    [Probe()],
    expected_failed_checks=lambda _: {
        "check_classifiers_classes": "its classes are -1 and 1, but -1 is unknown here",
        "check_class_weight_classifiers": "it gives classes their own weights",
    },
)
def test_every_common_check_of_scikit_learn_passes(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


# --------------------------------------------------------------------- files


@pytest.mark.parametrize("names", [["rest", "run", "walk"], [3, 5, 9], ["no", "yes"]])
def test_a_packed_probe_is_restored_to_the_bit(names):
    Z, y, people = example(classes=len(names))
    probe = Probe(class_weight=None).fit(Z, np.array(names)[y], people, [5])
    again = Probe.unpack(*probe.pack(), features=6)
    assert type(again) is Probe
    assert again.get_params() == probe.get_params()
    for name in (*(f"{name}_" for name in module._STORED), "n_features_in_"):
        assert getattr(again, name) == getattr(probe, name)
    assert again.classes_.tolist() == names
    np.testing.assert_array_equal(again.predict_proba(Z), probe.predict_proba(Z))
    np.testing.assert_array_equal(again.predict(Z), probe.predict(Z))


# --------------------------------------------------------------------- folds


def test_folds_keep_groups_together_and_classes_even():
    _, y, people = example(rows=1200)
    for seed in (None, 0, 1):
        fold = group_folds(y, people, 5, seed)
        assert [len(set(fold[people == person])) for person in np.unique(people)] == [1] * 12
        assert set(fold) == set(range(5))
        counts = np.array([np.bincount(y[fold == number], minlength=3) for number in range(5)])
        assert counts.min() > 0
        assert counts.sum(axis=1).max() <= 1.5 * counts.sum(axis=1).min()
    assert not np.array_equal(group_folds(y, people, 5, 0), group_folds(y, people, 5, 1))


def test_blocks_are_contiguous_within_each_class_and_have_all_classes():
    y = np.random.default_rng(0).integers(3, size=100)
    block = contiguous_blocks(y, 5)
    for label in range(3):
        assert (np.diff(block[y == label]) >= 0).all()
        assert set(block[y == label]) == set(range(5))
        sizes = np.bincount(block[y == label])
        assert sizes.max() - sizes.min() <= 1


def test_without_groups_neighbouring_rows_are_left_out_together():
    rng = np.random.default_rng(0)
    y = np.arange(600) // 60 % 2  # long runs of one class
    shared = np.repeat(3 * rng.normal(size=(60, 40)), 10, axis=0)  # ten neighbours overlap
    Z = np.hstack([1.5 * y[:, None] + rng.normal(size=(600, 2)), shared + 0.3 * rng.normal(size=shared.shape)])
    blocks = Probe().fit(Z, y, statistic_columns=slice(2, None))
    shuffled = Probe().fit(Z, y, groups=rng.permutation(600) % 5, statistic_columns=slice(2, None))
    scores = [max(row["balanced_accuracy"] for row in probe.validation_) for probe in (blocks, shuffled)]
    assert scores[0] < scores[1] - 0.05
    assert "5 contiguous blocks" in blocks.reason_


def test_given_settings_are_kept_and_the_others_are_chosen():
    Z, y, people = example()
    given = Probe(C=0.3, scale="standardised", statistics=2).fit(Z, y, people, [5])
    assert (given.C_, given.scale_, given.statistics_, given.validation_) == (0.3, "standardised", 2.0, [])
    said = "weight 2: as given; confidence calibrated on 12 left-out subjects; probabilities assume equally"
    assert said in given.reason_
    half = Probe(C=0.3).fit(Z, y, people)
    assert [(row["C"], row["scale"], row["statistics"]) for row in half.validation_] == [
        (0.3, "plain", None),
        (0.3, "standardised", None),
    ]
    assert half.statistics_ is None


def test_the_unit_of_the_features_changes_nothing():
    Z, y, people = example()
    metres, micrometres = Probe().fit(Z, y, people), Probe().fit(1e6 * Z, y, people)
    assert metres.scale_ == micrometres.scale_
    np.testing.assert_array_equal(metres.predict(Z), micrometres.predict(1e6 * Z))
    first, last = (
        [row["C"] for row in probe.validation_ if row["scale"] == "plain"] for probe in (metres, micrometres)
    )
    np.testing.assert_allclose(np.multiply(last, 1e12), first)


def test_the_number_of_threads_changes_nothing():
    Z, y, people = example()
    alone = Probe().fit(Z, y, people, [5])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        together = Probe().fit(Z, y, people, [5])
    finally:
        torch.set_num_threads(threads)
    assert together.validation_ == alone.validation_
    np.testing.assert_array_equal(together.coef_, alone.coef_)


def test_features_that_are_all_statistics_have_no_weight():
    Z, y, people = example()
    every = Probe().fit(Z, y, people, slice(None))
    assert every.statistics_ is None
    np.testing.assert_array_equal(every.coef_, Probe().fit(Z, y, people).coef_)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y": np.full(240, -1)}, "no labelled row"),
        ({"y": np.ones(240, int)}, "1 class, 1"),
        ({"y": np.ones(7, int)}, r"shape \(240,\)"),
        ({"y": None}, "requires y"),
        ({"groups": np.ones(7)}, "groups must have shape"),
        ({"Z": np.full((240, 6), np.nan)}, "NaN"),
    ],
)
def test_input_that_cannot_be_used_is_refused_with_a_sentence(change, said):
    Z, y, people = example()
    with pytest.raises(ValueError, match=said):
        Probe().fit(**({"Z": Z, "y": y, "groups": people} | change))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"C": 0}, "C must be"),
        ({"scale": "none"}, "scale must be"),
        ({"statistics": -1.0}, "statistics must be"),
        ({"unlabelled": True}, "unlabelled must be"),
        ({"class_weight": "even"}, "class_weight must be"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused_with_a_sentence(parameters, said):
    Z, y, people = example()
    with pytest.raises(PolyadicError, match=said):
        Probe(**parameters).fit(Z, y, people)


def test_groups_reach_the_probe_in_a_pipeline():
    Z, y, people, block = leaking()
    pipeline = Pipeline([("same", FunctionTransformer()), ("probe", Probe())])
    pipeline.fit(Z, y, probe__groups=people, probe__statistic_columns=block)
    assert pipeline[-1].reason_ == Probe().fit(Z, y, people, block).reason_
    with sklearn.config_context(enable_metadata_routing=True):
        routed = make_pipeline(FunctionTransformer(), Probe().set_fit_request(groups=True)).fit(Z, y, groups=people)
    assert routed[-1].reason_ == Probe().fit(Z, y, people).reason_
