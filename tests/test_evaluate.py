"""How features are scored: metrics, significance, timing, few labels, robustness, and the scorer."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import paper
from scipy import stats
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from torch import Tensor

from paper.robustness import augmented_features, perturbed, score_classifier, score_split
from paper.timing import seconds_per_sweep
from polyadic import SALS
from polyadic._util.random_streams import integer_seed, window_keys
from polyadic.augment import Augmentation, Jitter
from polyadic.data import Split, Windows, split, synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import corrected_resampled, holm, low_label_rows, paired, scores, unpaired
from polyadic.evaluate.probe import PROBES
from polyadic.evaluate.scoring import probe_accuracy, score_features, score_splits

steady = settings(derandomize=True, deadline=None, database=None, max_examples=60)

# --------------------------------------------------------------------- scores


def slow_scores(y: list[Any], predicted: list[Any]) -> dict[str, float]:
    """Compute the scores by their definitions, window by window."""
    pairs = list(zip(y, predicted, strict=True))
    recalls, f1s, chance = [], [], 0.0
    for name in sorted({*y, *predicted}):
        hits = sum(a == b == name for a, b in pairs)
        there, said = sum(a == name for a in y), sum(b == name for b in predicted)
        if there:
            recalls.append(hits / there)
        f1s.append(2 * hits / (there + said))
        chance += there * said / len(y) ** 2
    accuracy = sum(a == b for a, b in pairs) / len(y)
    return {
        "accuracy": accuracy,
        "balanced_accuracy": sum(recalls) / len(recalls),
        "macro_f1": sum(f1s) / len(f1s),
        "kappa": math.nan if chance == 1 else (accuracy - chance) / (1 - chance),
    }


@steady
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30), st.booleans())
def test_scores_follow_their_definitions_even_if_a_class_never_occurs_or_is_never_predicted(pairs, names):
    y, predicted = ([f"c{pair[side]}" if names else pair[side] for pair in pairs] for side in (0, 1))
    assert scores(y, predicted) == pytest.approx(slow_scores(y, predicted), abs=1e-12, nan_ok=True)


def test_each_subject_has_its_accuracy_and_weighs_the_same_in_their_mean():
    found = scores([0, 1, 1, 0, 1], [0, 1, 0, 1, 1], subject=["b", "b", "b", "a", "b"])
    assert found["accuracy"] == 0.6
    assert found["per_subject"] == {"a": 0.0, "b": 0.75}
    assert found["worst_subject"] == 0.0
    assert found["mean_subject"] == 0.375


def test_windows_of_unknown_subjects_are_not_treated_as_one_subject():
    assert scores([0, 1, 1], [0, 0, 1], subject=["", "", "a"])["per_subject"] == {"a": 1.0}
    assert "per_subject" not in scores([0, 1], [0, 0], subject=["", ""])
    assert "per_subject" not in scores([0, 1], [0, 0])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(([], []), "y"), (([[0]], [[0]]), "y"), (([0, 1], [0]), "predicted"), (([0, 1], [0, 1], ["a"]), "subject")],
)
def test_scores_of_columns_that_do_not_fit_are_refused_by_name(arguments, name):
    with pytest.raises(PolyadicError, match=f"^{name} must"):
        scores(*arguments)


# --------------------------------------------------------------- significance

numbers = st.integers(-1000, 1000).map(lambda number: number / 1000)


def several(values: list[float]) -> bool:
    return len(set(values)) > 1


@steady
@given(
    st.lists(numbers, min_size=2, max_size=8).filter(several),
    st.lists(numbers, min_size=2, max_size=8).filter(several),
    st.booleans(),
)
def test_the_unpaired_test_is_scipys(a, b, equal):
    expected = stats.ttest_ind(a, b, equal_var=equal)
    assert unpaired(a, b, equal_variances=equal) == pytest.approx((expected.statistic, expected.pvalue), abs=1e-9)


@steady
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8).filter(lambda p: several([a - b for a, b in p])))
def test_the_paired_test_is_scipys(pairs):
    a, b = (np.array(column) for column in zip(*pairs, strict=True))
    if np.ptp(a - b) < 1e-9:
        return  # scipy takes rounding for scatter
    expected = stats.ttest_rel(a, b)
    assert paired(a, b) == pytest.approx((expected.statistic, expected.pvalue), abs=1e-9)


def test_the_corrected_test_is_the_formula_of_nadeau_and_bengio():
    gaps, trainings, tests = [0.03, -0.01, 0.02, 0.04, 0.01], 800, 200
    mean = sum(gaps) / 5
    variance = sum((gap - mean) ** 2 for gap in gaps) / 4
    t = mean / math.sqrt((1 / 5 + tests / trainings) * variance)
    p = 2 * (1 - stats.t.cdf(t, 4))
    assert corrected_resampled(gaps, tests / (trainings + tests)) == pytest.approx((t, p))


def test_the_corrected_test_without_tests_is_the_paired_one_and_else_more_careful():
    a, b = np.array([0.9, 0.95, 0.93]), np.array([0.88, 0.9, 0.92])
    assert corrected_resampled(a - b, 0) == pytest.approx(paired(a, b))
    assert corrected_resampled(a - b, 0.1)[1] < corrected_resampled(a - b, 0.5)[1]
    assert paired(a, b)[1] < corrected_resampled(a - b, 0.1)[1]


tests_of = {
    "unpaired": unpaired,
    "welch": lambda a, b: unpaired(a, b, equal_variances=False),
    "paired": paired,
    "corrected": lambda a, b: corrected_resampled(np.subtract(a, b), 0.3),
}


@pytest.mark.parametrize("test", tests_of.values(), ids=tests_of)
def test_the_same_gap_in_every_seed_is_certain_and_no_gap_at_all_is_chance(test):
    assert test([0.3, 0.3, 0.3], [0.1, 0.1, 0.1]) == (math.inf, 0)
    assert test([0.1, 0.1, 0.1], [0.3, 0.3, 0.3]) == (-math.inf, 0)
    assert test([0.1, 0.1, 0.1], [0.1, 0.1, 0.1]) == (0, 1)


@pytest.mark.parametrize("test", tests_of.values(), ids=tests_of)
def test_t_has_the_sign_of_the_first_methods_lead_and_p_is_two_sided(test):
    (t, p), (back, q) = test([3.0, 4.0, 5.5], [1.0, 2.5, 1.0]), test([1.0, 2.5, 1.0], [3.0, 4.0, 5.5])
    assert t == -back > 0
    assert p == q < 1


def test_scores_equal_up_to_rounding_are_not_a_difference():
    a = np.array([0.7, 0.7, 0.7])
    assert paired(a + 1e-16, a) == (0, 1)
    assert unpaired(a * (1 + 2e-16), a) == (0, 1)
    # 0.1 + 0.2 is not 0.3 in the last bit: a constant gap all the same.
    assert paired([0.1 + 0.2, 0.3, 0.3], [0.1, 0.1, 0.1]) == (math.inf, 0)


@pytest.mark.parametrize("test", tests_of.values(), ids=tests_of)
@pytest.mark.parametrize("seeds", [[], [0.5]])
def test_fewer_than_two_seeds_say_nothing(test, seeds):
    assert all(math.isnan(value) for value in test(seeds, seeds))


def test_scores_that_cannot_be_compared_are_refused_by_name():
    with pytest.raises(PolyadicError, match=r"^a and b must .* 2 and 3"):
        paired([1, 2], [1, 2, 3])
    with pytest.raises(PolyadicError, match=r"^b must be a list of finite"):
        unpaired([1, 2], [1, math.nan])
    with pytest.raises(PolyadicError, match=r"^a must be a list"):
        unpaired([[1, 2]], [1, 2])
    for share in (1, 1.5, -0.1, math.nan):
        with pytest.raises(PolyadicError, match=r"^test_share must"):
            corrected_resampled([1, 2], share)


def slow_holm(p_values: list[float]) -> list[float]:
    """Closed testing: a hypothesis falls when Bonferroni refuses every set of hypotheses that it is in."""
    places = range(len(p_values))
    sets = [chosen for size in places for chosen in combinations(places, size + 1)]
    return [
        max(min(1.0, len(chosen) * min(p_values[i] for i in chosen)) for chosen in sets if place in chosen)
        for place in places
    ]


@steady
@given(st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.02, 1.0])), min_size=1, max_size=7))
def test_holms_correction_is_closed_testing_by_bonferroni(p_values):
    assert holm(p_values).tolist() == pytest.approx(slow_holm(p_values))


def test_missing_comparisons_do_not_count_in_holms_correction():
    adjusted = holm([math.nan, 0.04, math.nan, 0.01])
    assert adjusted[[1, 3]].tolist() == [0.04, 0.02]
    assert np.isnan(adjusted[[0, 2]]).all()
    assert len(holm([])) == 0


@pytest.mark.parametrize("wrong", [[0.1, 1.1], [-0.1], [[0.1]]])
def test_values_that_are_not_p_values_are_refused(wrong):
    with pytest.raises(PolyadicError, match=r"^p_values must"):
        holm(wrong)


# --------------------------------------------------------------------- timing


def test_seconds_per_sweep_are_the_mean_of_the_fourth_to_the_eighth():
    assert seconds_per_sweep([100, 100, 100, 1, 2, 3, 4, 5]) == 3
    assert seconds_per_sweep([100, 100, 100, 1, 2, 3, 4, 5, 100, 100]) == 3


def test_with_fewer_sweeps_they_are_the_mean_of_those_after_the_first():
    assert seconds_per_sweep([100, 1, 2, 3, 4, 5, 6]) == 3.5
    assert seconds_per_sweep([100, 1]) == 1
    assert seconds_per_sweep(np.array([5.0])) == 5
    with pytest.raises(PolyadicError, match=r"^seconds must"):
        seconds_per_sweep([])


# ----------------------------------------------------------------- few labels


@steady
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 3))
def test_few_labels_are_nested_have_every_class_and_the_classes_shares(labels, seed):
    y = np.array(labels)
    present, sizes = np.unique(y, return_counts=True)
    before: set[int] = set()
    for count in range(1, len(y) + 1):
        rows = low_label_rows(y, count, seed)
        assert rows.tolist() == sorted(set(rows.tolist()))
        assert len(rows) == count
        assert before <= set(rows.tolist())
        before = set(rows.tolist())
        found = np.array([(y[rows] == name).sum() for name in present])
        assert (found > 0).sum() == min(count, len(present))
        # One window given to each class that would have none shifts the others' shares by that much.
        assert (abs(found - count * sizes / len(y)) <= 1 + len(present) / 2).all()


def test_the_most_frequent_classes_come_first_where_there_are_fewer_labels_than_classes():
    y = np.repeat(["rare", "common", "usual"], [1, 30, 10])
    for seed in range(20):
        assert y[low_label_rows(y, 1, seed)].tolist() == ["common"]
        assert set(y[low_label_rows(y, 2, seed)]) == {"common", "usual"}


@pytest.mark.parametrize(("arguments", "name"), [(([0, 1], 3), "count"), (([0, 1], 0), "count"), (([[0, 1]], 1), "y")])
def test_labels_that_cannot_be_chosen_are_refused_by_name(arguments, name):
    with pytest.raises(PolyadicError, match=f"^{name} must"):
        low_label_rows(*arguments)


# ----------------------------------------------------------------- robustness


class Moments:
    """A feature extractor that is not an estimator: mean and mean square of each channel; it records its input."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def transform(self, X: Any) -> np.ndarray:
        self.given.append(X)
        X = np.asarray(X, dtype=np.float64)
        return np.concatenate([X.mean(axis=2), (X**2).mean(axis=2)], axis=1)


def noisy(batch: Tensor) -> Tensor:
    """An augmentation that is a plain function."""
    return batch + 0.3 * torch.randn_like(batch)


AUGMENTS: dict[str, Any] = {"augmentation": Jitter(0.3), "function": noisy}
either = pytest.mark.parametrize("augment", AUGMENTS.values(), ids=AUGMENTS)


def windows(count: int = 40, seed: int = 0, length: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Windows (count, 3, length) of three classes that differ in the level of their first channel, not too clearly."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    X = rng.normal(size=(count, 3, length))
    X[:, 0] += 0.25 * y[:, None]
    return X, np.array(["low", "middle", "high"])[y]


def slow_copy(X: np.ndarray, augment: Any, sweep: int, seed: int) -> np.ndarray:
    """Augment every window separately."""
    copies = []
    for number, window in enumerate(torch.from_numpy(X)):
        if isinstance(augment, Augmentation):
            copies.append(augment(window[None], torch.tensor([number]), seed=seed, sweep=sweep))
        else:
            with torch.random.fork_rng():
                key = window_keys(seed, sweep, torch.tensor([number]))[0]
                torch.manual_seed(integer_seed(int(key)))
                copies.append(augment(window[None]))
    return torch.cat(copies).numpy()


@either
def test_augmented_features_are_those_of_each_windows_own_copy_whatever_the_batch(augment, monkeypatch):
    monkeypatch.setattr("paper.robustness._BATCH", 7)
    X, _ = windows(23)
    expected = Moments().transform(slow_copy(X, augment, 2, 5))
    for same in (X, torch.from_numpy(X), Windows(X)):
        np.testing.assert_allclose(augmented_features(Moments(), same, augment, 2, 5), expected, rtol=1e-12)
    assert not np.allclose(augmented_features(Moments(), X, augment, 1, 5), expected)
    assert not np.allclose(augmented_features(Moments(), X, augment, 2, 6), expected)


@either
def test_perturbed_windows_are_augmented_by_draws_of_their_own(augment):
    X, _ = windows(23)
    found = perturbed(X, augment, 5)
    assert found.dtype == X.dtype
    assert not any(np.array_equal(found, slow_copy(X, augment, sweep, 5)) for sweep in range(8))
    np.testing.assert_allclose(found, slow_copy(X, augment, 0, integer_seed(5, 0x7E57)), rtol=1e-12)
    assert not np.allclose(found, perturbed(X, augment, 6))
    assert perturbed(torch.from_numpy(X).float(), augment).dtype == np.float32


# --------------------------------------------------------------------- scorer


def by_hand(kind: str, Z: np.ndarray, y: np.ndarray, Z_test: np.ndarray) -> np.ndarray:
    """What a probe predicts, without scikit-learn's pipelines."""
    mean, spread = (Z.mean(axis=0), Z.std(axis=0)) if kind == "standardised" else (0.0, 1.0)
    fitted = LogisticRegression(max_iter=1000).fit((Z - mean) / spread, y)
    predicted: np.ndarray = fitted.predict((Z_test - mean) / spread)
    return predicted


def labelled_split() -> Split:
    """Windows of three classes and ten people, without an unlabelled part."""
    X, _ = windows(120)
    person = np.arange(120) // 12
    data = Windows(X, subject=person, label=np.arange(120) % 3)
    return Split(data, np.empty(0, np.intp), np.flatnonzero(person < 5), np.flatnonzero(person >= 5))


def test_scores_of_features_are_those_of_a_probe_fitted_by_hand():
    (X, y), (X_test, y_test) = windows(60), windows(90, seed=1)
    Z, Z_test = Moments().transform(X), Moments().transform(X_test)
    subject = np.arange(90) % 4
    found = score_features(dict(zip(PROBES, PROBES, strict=True)), Z, y, Z_test, y_test, subject)
    assert list(found) == list(PROBES)
    for kind in PROBES:
        assert found[kind] == scores(y_test, by_hand(kind, Z, y, Z_test), subject)
        assert probe_accuracy(kind, Z, y, Z_test, y_test) == found[kind]["accuracy"] < 1


def test_a_split_is_scored_on_windows_as_they_are_and_perturbed_by_every_probe_and_the_augmented_one():
    part, augment, seed = labelled_split(), Jitter(0.3), 7
    _, train, test = part
    Z, Z_test = Moments().transform(train.X), Moments().transform(test.X)
    Z_rough = Moments().transform(perturbed(test.X, augment, seed))
    copies = [Moments().transform(slow_copy(train.X, augment, view, seed)) for view in range(4)]
    found = score_split(Moments(), part, augment=augment, seed=seed)
    trained = {kind: (kind, Z, train.label) for kind in PROBES}
    trained["augmented"] = ("standardised", np.concatenate([Z, *copies]), np.tile(train.label, 5))
    assert list(found) == [name + test for name in trained for test in ("", " perturbed")]
    for name, training in trained.items():
        assert found[name] == scores(test.label, by_hand(*training, Z_test), test.subject)
        assert found[f"{name} perturbed"] == scores(test.label, by_hand(*training, Z_rough))
    assert score_split(Moments(), part) == {kind: found[kind] for kind in PROBES}


def test_probes_may_be_chosen_by_the_features_of_the_training_windows():
    part = labelled_split()
    seen = []

    def choose(Z: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        seen.append((Z, y))
        return {"ridge": RidgeClassifier()}

    found = score_split(Moments(), part, choose)
    _, train, test = part
    assert np.array_equal(seen[0][0], Moments().transform(train.X))
    assert np.array_equal(seen[0][1], train.label)
    ridge = RidgeClassifier().fit(*seen[0])
    assert found == {"ridge": scores(test.label, ridge.predict(Moments().transform(test.X)), test.subject)}


class FirstSign:
    """A classifier of windows by the sign of their first sample."""

    def predict(self, X: Any) -> np.ndarray:
        return (np.asarray(X.X if isinstance(X, Windows) else X)[:, 0, 0] > 0).astype(int)


def test_a_classifier_of_windows_has_its_scores_in_the_place_of_every_probes():
    part, augment = labelled_split(), Jitter(0.3)
    _, _, test = part
    clean = scores(test.label, FirstSign().predict(test), test.subject)
    rough = scores(test.label, FirstSign().predict(perturbed(test.X, augment, 3)))
    expected = {kind + suffix: one for kind in PROBES for suffix, one in (("", clean), (" perturbed", rough))}
    found = score_classifier(FirstSign(), part, augment, seed=3)
    assert found == expected
    assert list(found) == list(expected)


def test_one_split_has_the_same_scores_alone_and_among_several():
    signals = synthetic(240)
    model = paper(SALS, rank=4, max_sweeps=2, device="cpu").fit(signals)
    rows = score_splits(model, signals, "subject", [0, 3])
    for seed in (0, 3):
        alone = score_split(model, split(signals, "subject", seed=seed))
        for kind in PROBES:
            (row,) = [row for row in rows if (row["seed"], row["probe"]) == (seed, kind)]
            # The one has features in float32, the other in float64.
            assert row["accuracy"] == pytest.approx(alone[kind]["accuracy"], abs=0.02)
            assert row["per_subject"].keys() == alone[kind]["per_subject"].keys()
