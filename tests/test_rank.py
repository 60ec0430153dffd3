"""Core consistency equals the textbook formula; the recommended rank is the one at which components replicate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from polyadic import CPD, suggest_rank
from polyadic.cli import app
from polyadic.data import synthetic
from polyadic.evaluate import cross_validate
from polyadic.explain import Replicability, replicability
from polyadic.explain.rank import _recommend, core_consistency, distinct_components
from polyadic.spectral import STFT


def planted(rank, shape=(80, 7, 8, 9), noise=0.0, seed=0):
    """A tensor of a known rank, made by TensorLy."""
    tensorly_random = pytest.importorskip("tensorly.random")
    cp = tensorly_random.random_cp(shape, rank, normalise_factors=False, random_state=seed)
    cp.factors = [factor - factor.mean() for factor in cp.factors]
    T = cp.to_tensor()
    return T + noise * T.std() * np.random.default_rng(seed).normal(size=shape), cp.factors


def naive(T, factors):
    """The core by the pseudo-inverse of the whole Kronecker product."""
    whole = np.ones((1, 1))
    for factor in factors:
        whole = np.kron(whole, factor)
    rank = factors[0].shape[1]
    core = (np.linalg.pinv(whole) @ T.ravel()).reshape((rank,) * len(factors))
    ideal = np.zeros_like(core)
    ideal[(np.arange(rank),) * len(factors)] = 1
    return 100 * (1 - ((core - ideal) ** 2).sum() / rank)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (4, 3, 5, 3)])
@pytest.mark.parametrize("rank", [1, 3])
def test_core_consistency_is_that_of_the_whole_kronecker_product(shape, rank):
    random = np.random.default_rng(0)
    factors = [random.normal(size=(size, rank)) for size in shape]
    letters = "abcd"[: len(shape)]
    exact = np.einsum(",".join(f"{letter}r" for letter in letters) + f"->{letters}", *factors)
    for T in (exact, exact + 0.3 * random.normal(size=shape), random.normal(size=shape)):
        assert core_consistency(T, factors) == pytest.approx(naive(T, factors), rel=1e-8, abs=1e-8)
    assert core_consistency(exact, factors) == pytest.approx(100)


# ------------------------------------------------------------- the recommendation


UNKNOWN = np.full(4, np.nan)


@pytest.mark.parametrize(
    ("back", "rank"),
    [
        ([1, 2, 3, 3], 4),
        ([1, 1, 1, 1], 1),  # half of the components are not most of them
        ([1, 0, 0, 5], 8),  # the largest, whatever lies between
        ([0, 1, 1, 1], 2),  # none: the largest share
    ],
)
def test_the_largest_rank_at_which_most_components_replicate_is_recommended(back, rank):
    chosen, reason = _recommend([1, 2, 4, 8], back, UNKNOWN, "subjects")
    count = back[[1, 2, 4, 8].index(rank)]
    assert chosen == rank
    assert f"Rank {rank} " in reason
    assert f"{count} of {rank}" in reason
    assert ("At no rank tried" in reason) == (count / rank <= 0.5)
    assert ("larger ranks may, too" in reason) == (rank == 8)
    assert "accura" not in reason


def test_the_gain_of_a_larger_rank_is_reported_with_the_figures_of_the_table():
    ranks, back = [1, 2, 4, 8], [1, 2, 1, 1]
    gains = _recommend(ranks, back, np.array([0.5, 0.7004, 0.8116, 0.8]), "subjects")[1]
    assert gains.endswith("Rank 4 gains 11.2 points of balanced accuracy (81.2 against 70.0 %).")
    level = _recommend(ranks, back, np.array([0.5, 0.7, 0.7004, 0.6]), "subjects")[1]
    assert level.endswith("No larger rank is more accurate than its 70.0 % (balanced accuracy).")
    assert "accura" not in _recommend([1, 2], [1, 2], np.array([0.5, 0.6]), "subjects")[1]


def test_copies_of_a_component_count_once():
    bases = [np.eye(4)[:, [0, 0, 1, 2, 2]], np.eye(5)[:, [0, 0, 1, 2, 3]]]
    checked = Replicability(np.full(5, 0.95), np.array([1.0, 1.0, 1.0, 0.0, 1.0]), refits=4)
    assert len(distinct_components(bases, checked)) == 3


def test_tensors_of_known_rank_are_given_that_rank():
    T, _ = planted(3, shape=(60, 5, 6, 7), noise=0.3)
    suggestion = suggest_rank(T, ranks=[9, 3, 3], groups=np.repeat(np.arange(6), 10), restarts=2)
    assert suggestion.rank == 3
    assert suggestion.ranks == (3, 9)
    assert suggestion.replicating[0] == 3
    assert suggestion.match[0] > 0.95
    assert suggestion.share[1] <= 0.5
    assert suggestion.fitness[0] < suggestion.fitness[1]
    assert "3 of 3 replicate in halves of the subjects." in suggestion.reason
    assert np.isnan(suggestion.accuracy).all()


def test_windows_with_labels_are_scored_on_left_out_subjects():
    windows = synthetic(60, n_channels=2)
    suggestion = suggest_rank(windows, [3], refits=2, max_sweeps=2)
    model = CPD(3, max_sweeps=2).fit(windows)
    scores = cross_validate(model, windows, 5, transductive=True)
    assert suggestion.accuracy[0] == pytest.approx(scores.balanced_accuracy)
    assert suggestion.fitness[0] == pytest.approx(model.score(windows))
    assert suggestion.replicability[0].to_dict() == replicability(model, windows, refits=2).to_dict()
    assert suggestion.replicability[0].halves


def test_raw_windows_go_through_the_default_front_end():
    X = np.random.default_rng(0).normal(size=(30, 2, 64)).astype(np.float32)
    calls = []
    suggestion = suggest_rank(X, [1, 2], refits=2, max_sweeps=3, on_fit=lambda *given: calls.append(given))
    assert calls == [(1, 9, 1), (2, 9, 1), (3, 9, 1), (5, 9, 2), (7, 9, 2), (9, 9, 2)]
    assert suggestion.fitness[1] == pytest.approx(CPD(2, max_sweeps=3, readout=None).fit(X).score(X))
    other = suggest_rank(torch.from_numpy(X), [2], tensorize=STFT(n_fft=16, hop=8), refits=1, max_sweeps=3)
    assert other.fitness[0] != suggestion.fitness[1]


@pytest.fixture
def file(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 2, 64)).cumsum(axis=2).astype(np.float32)
    np.savez(tmp_path / "windows.npz", X=X, fs=32.0)
    return tmp_path / "windows.npz"


def test_the_command_shows_a_table_and_writes_the_plot(file, tmp_path):
    pytest.importorskip("plotly")
    file_of_plot = tmp_path / "rank.html"
    result = CliRunner().invoke(
        app, ["rank", str(file), "--ranks", "1,2", "--refits", "2", "-o", str(file_of_plot)], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert "fitness" in result.stdout
    assert "Rank " in result.stdout
    assert "Replicability is from 2 refits per rank; a report has 10 (use --refits 10)." in result.stdout
    assert "replicate (%)" in file_of_plot.read_text()
