"""Robustness to augmentations, scores of splits, and seconds per sweep, as in the paper's tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from problems import paper
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from torch import Tensor

from paper.robustness import augmented_features, perturbed, score_classifier, score_split
from paper.scoring import PROBES
from paper.timing import seconds_per_sweep
from polyadic import SALS
from polyadic._util.random_streams import integer_seed, window_keys
from polyadic.augment import Augmentation, Jitter
from polyadic.data import Split, Windows, split, synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import scores
from polyadic.evaluate.scoring import score_splits


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
    for same in (X, Windows(X)):
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
    assert perturbed(X.astype(np.float32), augment).dtype == np.float32


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
        alone = score_split(model, split(signals, "subject", random_state=seed))
        for kind in PROBES:
            (row,) = [row for row in rows if (row["seed"], row["probe"]) == (seed, kind)]
            # The one has features in float32, the other in float64.
            assert row["accuracy"] == pytest.approx(alone[kind]["accuracy"], abs=0.02)
            assert row["per_subject"].keys() == alone[kind]["per_subject"].keys()


def test_seconds_per_sweep_are_the_mean_of_the_fourth_to_the_eighth():
    assert seconds_per_sweep([100, 100, 100, 1, 2, 3, 4, 5]) == 3
    assert seconds_per_sweep([100, 100, 100, 1, 2, 3, 4, 5, 100, 100]) == 3


def test_with_fewer_sweeps_they_are_the_mean_of_those_after_the_first():
    assert seconds_per_sweep([100, 1, 2, 3, 4, 5, 6]) == 3.5
    assert seconds_per_sweep([100, 1]) == 1
    assert seconds_per_sweep(np.array([5.0])) == 5
    with pytest.raises(PolyadicError, match=r"^seconds must"):
        seconds_per_sweep([])
