"""Replicability of components, on halves of the subjects, and their matching, against all orders and signs."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from problems import paper

from polyadic import CPD, SALS, load
from polyadic.core.solve import average_components
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.explain import Replicability, match, replicability


def _checked_model():
    X = np.random.default_rng(0).normal(size=(30, 3, 4))
    model = SALS(rank=2, tensorize=None, max_sweeps=2).fit(X)
    model.replicability_ = Replicability(np.array([0.97, 0.5]), np.array([1.0, 0.25]), refits=4)
    return model, X


def test_a_model_file_holds_the_replicability(tmp_path):
    model, X = _checked_model()
    model.save(tmp_path / "m.safetensors")
    same = load(tmp_path / "m.safetensors")
    assert same.replicability_.to_dict() == model.replicability_.to_dict()
    same.partial_fit(X)
    assert not hasattr(same, "replicability_")  # it was of other bases


# ------------------------------------------------------------------ computed


A, B = np.eye(5)[:, :2] + 0.1, np.eye(6)[:, 2:4] + 0.1


def _planted(noise: float = 0.3, people: int = 8, each: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Tensors of two components that all people have, and noise; and the people."""
    random = np.random.default_rng(0)
    x = random.normal(size=(people * each, 2)) * [2.0, 1.5]
    T = np.einsum("nr,ir,jr->nij", x, A, B)
    return T + noise * random.normal(size=T.shape), np.repeat(np.arange(people), each)


def test_planted_components_replicate_and_those_of_noise_do_not():
    X, people = _planted(noise=0.6)
    model = CPD(rank=3, tensorize=None, max_sweeps=40).fit(X)
    found = replicability(model, X, people, refits=6)
    assert found.refits == 6
    planted = match(model, [A, B])
    assert (planted.similarity > 0.98).all()
    assert np.flatnonzero(found.replicates).tolist() == sorted(planted.a)
    assert (found.match[planted.a] > 0.98).all()
    assert (found.returned[planted.a] == 1).all()


def test_each_refit_is_of_one_half_of_the_subjects_and_the_figures_are_those_of_the_matches(monkeypatch):
    X, people = _planted(noise=1.0)
    model = SALS(rank=3, tensorize=None, batch_size=None, max_sweeps=10).fit(X)
    fitted, fit = [], SALS.fit

    def recorded(self, X, *given, **named):
        fitted.append((X, self.random_state, fit(self, X, *given, **named)))
        return fitted[-1][-1]

    monkeypatch.setattr(SALS, "fit", recorded)
    found = replicability(model, X, people, refits=5, random_state=3)
    assert len({seed for _, seed, _ in fitted}) == 5
    whose = [set(people[(X[:, None] == rows[None]).all(axis=(2, 3)).any(axis=1)]) for rows, _, _ in fitted]
    assert [len(members) for members in whose] == [4] * 5
    assert all(whose[k] | whose[k + 1] == set(range(8)) for k in (0, 2))
    assert [len(rows) for rows, _, _ in fitted] == [80] * 5
    similarity = np.array([match(model, refit).similarity for _, _, refit in fitted])
    assert np.allclose(found.match, np.median(similarity, axis=0))
    assert np.allclose(found.returned, (similarity >= 0.9).mean(axis=0))


def test_subjects_come_from_the_windows_and_are_needed():
    X, people = _planted()
    words = {"rank": 2, "tensorize": None, "batch_size": None, "max_sweeps": 5}
    named = Windows(X, fs=10.0, subject=[f"S{person}" for person in people])
    model = SALS(**words).fit(named)
    assert np.allclose(replicability(model, named, refits=2).match, replicability(model, X, people, refits=2).match)
    with pytest.raises(PolyadicError, match="fewer than two are known"):
        replicability(model, X, refits=2)


# ------------------------------------------------------------------- consensus


def _noisy(bases: list[np.ndarray], size: float, seed: int) -> list[np.ndarray]:
    """The same components in another order, with other signs and noise on them."""
    random = np.random.default_rng(seed)
    order, signs = random.permutation(bases[0].shape[1]), random.choice([-1.0, 1.0], (len(bases), bases[0].shape[1]))
    return [
        ((basis + size * random.normal(size=basis.shape)) * sign)[:, order]
        for basis, sign in zip(bases, signs, strict=True)
    ]


def test_the_average_of_fits_is_closer_to_their_common_components_than_any_of_them():
    random = np.random.default_rng(0)
    truth = [np.linalg.qr(random.normal(size=(size, 3)))[0] for size in (6, 7, 8)]
    fits = [_noisy(truth, 0.1, seed) for seed in range(12)]
    average = average_components(fits, list(range(12)))
    assert match(truth, average).score > max(match(truth, bases).score for bases in fits) + 0.02
    assert match(truth, average).similarity.min() > 0.97


def test_components_that_no_other_fit_has_stay_unchanged():
    random = np.random.default_rng(1)
    fits = [[np.abs(random.normal(size=(size, 2))) * [1.0, -1.0] for size in (30, 40, 50)] for _ in range(5)]
    average = average_components(fits, [3.0, 1.0, 2.0, 4.0, 5.0])
    assert match(average, fits[1]).score == pytest.approx(1.0)


# ------------------------------------------------------------------- matching


def bases(rank, seed=0, shape=(4, 5, 3)):
    random = np.random.default_rng(seed)
    return [random.normal(size=(size, rank)) for size in shape]


def exhaustive(first, second):
    """The best mean over pairs of the product over modes of signed cosines, over all orders and all signs."""
    rank, n = first[0].shape[1], second[0].shape[1]
    best = -np.inf
    for order in permutations(range(n), rank):
        total = 0.0
        for r, s in enumerate(order):
            cosines = [
                a[:, r] @ b[:, s] / np.linalg.norm(a[:, r]) / np.linalg.norm(b[:, s])
                for a, b in zip(first, second, strict=True)
            ]
            total += max(
                np.prod([sign * c for sign, c in zip(signs, cosines, strict=True)])
                for signs in product((1, -1), repeat=len(first))
            )
        best = max(best, total / rank)
    return best


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rank", "other"), [(4, 4), (3, 5), (1, 3)])
def test_no_order_and_no_signs_are_better(seed, rank, other):
    first, second = bases(rank, seed), bases(other, seed + 100)
    assert match(first, second).score == pytest.approx(exhaustive(first, second), rel=1e-12)
    assert match(second, first).score == pytest.approx(match(first, second).score, rel=1e-12)


def test_a_shuffled_flipped_and_scaled_copy_is_found_again():
    random = np.random.default_rng(1)
    first = bases(6, shape=(7, 8, 9))
    order = random.permutation(6)
    signs = random.choice([-1.0, 1.0], size=(3, 6))
    sizes = random.uniform(0.1, 10, size=(3, 6))
    second = [(factor * sign * size)[:, order] for factor, sign, size in zip(first, signs, sizes, strict=True)]
    pairs = match(first, second)
    assert pairs.a.tolist() == list(range(6))
    assert order[pairs.b].tolist() == list(range(6))
    assert np.array_equal(pairs.feature_signs, signs.prod(axis=0))
    assert np.allclose(pairs.congruence, signs)
    assert np.allclose(pairs.similarity, 1)
    for factor, size, aligned in zip(first, sizes, pairs.aligned, strict=True):
        assert np.allclose(aligned, factor * size)


def test_aligned_bases_and_features_make_the_same_tensors():
    X = np.random.default_rng(0).normal(size=(40, 5, 6))
    first, second = (paper(SALS, rank=3, max_sweeps=5, random_state=seed).fit(X) for seed in (0, 1))
    pairs = match(first, second)
    Z = second.transform(X)[:, pairs.b] * pairs.feature_signs
    assert np.allclose(np.einsum("nr,ir,jr->nij", Z, *pairs.aligned), second.inverse_transform(second.transform(X)))
    for factor, aligned in zip(first.factors_, pairs.aligned, strict=True):
        assert (np.einsum("ir,ir->r", factor, aligned) >= 0).all()
