"""How features are scored: metrics, probes on features, significance, few labels."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from paper.methods import low_label_rows
from paper.significance import corrected_resampled, holm
from polyadic.evaluate import scores

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


# --------------------------------------------------------------- significance


def test_the_corrected_test_is_the_formula_of_nadeau_and_bengio():
    gaps, trainings, tests = [0.03, -0.01, 0.02, 0.04, 0.01], 800, 200
    mean = sum(gaps) / 5
    variance = sum((gap - mean) ** 2 for gap in gaps) / 4
    t = mean / math.sqrt((1 / 5 + tests / trainings) * variance)
    p = 2 * (1 - stats.t.cdf(t, 4))
    assert corrected_resampled(gaps, tests / (trainings + tests)) == pytest.approx((t, p))


def test_equal_differences_are_certain_or_chance_and_fewer_than_two_say_nothing():
    assert corrected_resampled([0.2, 0.2, 0.1 + 0.1], 0.3) == (math.inf, 0)
    assert corrected_resampled([-0.2, -0.2, -0.2], 0.3) == (-math.inf, 0)
    assert corrected_resampled([1e-16, 0.0, 0.0], 0.3) == (0, 1)
    assert all(math.isnan(value) for value in (*corrected_resampled([], 0.3), *corrected_resampled([0.5], 0.3)))


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
