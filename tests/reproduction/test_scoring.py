"""Scores of splits, on clean and on perturbed windows, and seconds per sweep, as in the paper's tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from paper.scoring import PROBES, augmented, score_classifier, score_split
from polyadic._util.random_streams import integer_seed
from polyadic.augment import Augmentation, Jitter
from polyadic.data import Split, Windows
from polyadic.evaluate import scores


class Moments:
    """A feature extractor that is not an estimator: mean and mean square of each channel; it records its input."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def transform(self, X: Any) -> np.ndarray:
        self.given.append(X)
        X = np.asarray(X, dtype=np.float64)
        return np.concatenate([X.mean(axis=2), (X**2).mean(axis=2)], axis=1)


def windows(count: int = 40, seed: int = 0, length: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Windows (count, 3, length) of three classes that differ in the level of their first channel, not too clearly."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    X = rng.normal(size=(count, 3, length))
    X[:, 0] += 0.25 * y[:, None]
    return X, np.array(["low", "middle", "high"])[y]


def slow_copy(X: np.ndarray, augment: Augmentation, sweep: int, seed: int) -> np.ndarray:
    """Augment every window separately."""
    windows = enumerate(torch.from_numpy(X))
    return np.concatenate(
        [augment(window[None], torch.tensor([row]), seed=seed, sweep=sweep).numpy() for row, window in windows]
    )


def test_every_window_has_its_own_copy_whatever_the_batch(monkeypatch):
    monkeypatch.setattr("paper.scoring._BATCH", 7)
    X, _ = windows(23)
    expected = slow_copy(X, Jitter(0.3), 2, 5)
    np.testing.assert_allclose(augmented(Windows(X), Jitter(0.3), 5, 2), expected, rtol=1e-12)
    assert not np.allclose(augmented(Windows(X), Jitter(0.3), 5, 1), expected)
    assert augmented(Windows(X.astype(np.float32)), Jitter(0.3), 5).dtype == np.float32


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
    Z_rough = Moments().transform(slow_copy(test.X, augment, 0, integer_seed(seed, 0x7E57)))
    copies = [Moments().transform(slow_copy(train.X, augment, view, seed)) for view in range(4)]
    found = score_split(Moments(), part, augment=augment, seed=seed)
    trained = {kind: (kind, Z, train.label) for kind in PROBES}
    trained["augmented"] = ("standardised", np.concatenate([Z, *copies]), np.tile(train.label, 5))
    assert list(found) == [name + test for name in trained for test in ("", " perturbed")]
    for name, training in trained.items():
        assert found[name] == scores(test.label, by_hand(*training, Z_test), test.subject)
        assert found[f"{name} perturbed"] == scores(test.label, by_hand(*training, Z_rough))


class FirstSign:
    """A classifier of windows by the sign of their first sample."""

    def predict(self, X: Any) -> np.ndarray:
        return (np.asarray(X.X if isinstance(X, Windows) else X)[:, 0, 0] > 0).astype(int)


def test_a_classifier_of_windows_has_its_scores_in_the_place_of_every_probes():
    part, augment = labelled_split(), Jitter(0.3)
    _, _, test = part
    clean = scores(test.label, FirstSign().predict(test), test.subject)
    rough = scores(test.label, FirstSign().predict(slow_copy(test.X, augment, 0, integer_seed(3, 0x7E57))))
    expected = {kind + suffix: one for kind in PROBES for suffix, one in (("", clean), (" perturbed", rough))}
    found = score_classifier(FirstSign(), part, augment, seed=3)
    assert found == expected
    assert list(found) == list(expected)
