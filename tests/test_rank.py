"""Core consistency is that of the textbook formula, and tensors of known rank are given that rank."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from command_line import polyadic
from typer.testing import CliRunner

from polyadic import match, suggest_rank
from polyadic.cli import app
from polyadic.errors import PolyadicError
from polyadic.explain.rank import _fit_cp, _recommend, core_consistency
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
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_core_consistency_is_that_of_the_whole_kronecker_product(shape, rank, seed):
    random = np.random.default_rng(seed)
    factors = [random.normal(size=(size, rank)) for size in shape]
    letters = "abcd"[: len(shape)]
    exact = np.einsum(",".join(f"{letter}r" for letter in letters) + f"->{letters}", *factors)
    for T in (exact, exact + 0.3 * random.normal(size=shape), random.normal(size=shape)):
        assert core_consistency(T, factors) == pytest.approx(naive(T, factors), rel=1e-8, abs=1e-8)
    assert core_consistency(exact, factors) == pytest.approx(100)


def test_core_consistency_takes_torch_and_float32():
    T, factors = planted(2)
    mixed = core_consistency(torch.tensor(T, dtype=torch.float32), [torch.tensor(factor) for factor in factors])
    assert mixed == pytest.approx(100, abs=1e-3)


def test_core_consistency_is_not_a_number_where_the_core_is_not_unique():
    assert np.isnan(core_consistency(np.ones((5, 2, 4)), [np.ones((5, 3)), np.ones((2, 3)), np.ones((4, 3))]))


def test_factors_that_do_not_fit_are_refused():
    with pytest.raises(PolyadicError, match=r"factors must have shapes \(size, R\) for T's \(5, 2, 4\)"):
        core_consistency(np.ones((5, 2, 4)), [np.ones((5, 1)), np.ones((2, 1)), np.ones((3, 1))])


@pytest.mark.parametrize(("rank", "noise"), [(2, 0.0), (3, 0.1), (4, 0.3)])
def test_tensors_of_known_rank_are_given_that_rank(rank, noise):
    T, _ = planted(rank, noise=noise)
    found = suggest_rank(T, ranks=range(1, 7))
    assert found.rank == found.readable == rank
    place = found.ranks.index(rank)
    assert found.stability[place] > 0.98
    assert found.consistency[place] > 95
    assert found.reason.startswith(f"Rank {rank}: beyond it")
    assert "stable" in found.reason


def test_fitness_is_one_minus_the_relative_error_and_grows_with_the_rank():
    T, _ = planted(4)
    found = suggest_rank(T, ranks=[4, 1, 2, 2])
    assert found.ranks == (1, 2, 4)
    assert found.fitness.shape == (3, 3)
    best = found.fitness.max(axis=1)
    assert (np.diff(best) > 0).all()
    assert best[-1] > 0.99
    singular = np.linalg.svd(T.reshape(len(T), -1), compute_uv=False)
    # No decomposition of rank 1 fits better than the best matrix of rank 1.
    assert best[0] <= 1 - np.sqrt(1 - singular[0] ** 2 / (singular**2).sum()) + 1e-6


def test_core_consistency_and_stability_are_those_of_the_best_restart():
    T, _ = planted(6, seed=0)
    found = suggest_rank(T, ranks=[3], restarts=4)
    # Of these starts the last is the best, and its components are not those of the first.
    assert found.fitness[0].argmax() != 0
    scaled = T / np.sqrt(np.mean(T**2))
    models = [_fit_cp(torch.from_numpy(scaled), 3, 100, seed) for seed in range(4)]
    best = models.pop(int(found.fitness[0].argmax()))
    expected = core_consistency(scaled, [best.transform(scaled), *best.factors_])
    assert found.consistency[0] == pytest.approx(expected, rel=1e-6)
    assert found.stability[0] == pytest.approx(np.mean([match(best, other).score for other in models]))


def test_a_curve_that_still_rises_asks_for_larger_ranks():
    T, _ = planted(6)
    found = suggest_rank(T, ranks=[1, 2, 4], restarts=4)
    assert found.rank == 4
    assert "the largest tried" in found.reason
    assert "try larger ranks" in found.reason


def test_the_largest_rank_is_enough_if_it_fits_everything():
    T, _ = planted(3)
    found = suggest_rank(T, ranks=[1, 3])
    assert found.rank == 3
    assert "fits nearly everything" in found.reason


def test_a_poor_minimum_on_the_way_does_not_end_the_curve():
    fitness = np.array([[0.2], [0.4], [0.38], [0.7], [0.702]])
    noise = np.array([0.01, 0.02, 0.03, 0.04, 0.08])
    rank, _, reason = _recommend([1, 2, 3, 4, 8], fitness, noise, np.full(5, 100.0), np.full(5, 1.0))
    assert rank == 4
    assert "improves by 0.2 points" in reason


def test_what_noise_would_gain_decides_what_is_much():
    fitness = np.array([[0.50], [0.60], [0.61]])
    sound = np.full(3, 100.0), np.full(3, 1.0)
    assert _recommend([1, 2, 4], fitness, np.array([0.1, 0.11, 0.111]), *sound)[0] == 4
    assert _recommend([1, 2, 4], fitness, np.array([0.1, 0.11, 0.15]), *sound)[0] == 2
    assert _recommend([1, 2, 4], fitness, np.array([0.1, 0.4, 0.6]), *sound)[0] == 1


def test_over_noise_compares_shares_of_the_squared_error():
    T, _ = planted(2, noise=0.2)
    found = suggest_rank(T, ranks=[1, 2, 4], restarts=2)
    for step in range(2):
        data, noise = (
            1 - ((1 - curve[step + 1]) / (1 - curve[step])) ** 2 for curve in (found.fitness.max(axis=1), found.noise)
        )
        assert found.over_noise[step] == pytest.approx(data / noise)
    assert found.over_noise[0] > 10
    assert found.over_noise[1] < 1.5


def test_pure_noise_needs_one_component():
    assert suggest_rank(np.random.default_rng(5).normal(size=(60, 6, 7, 8)), ranks=[1, 2, 4, 8]).rank == 1
    X = np.random.default_rng(5).normal(size=(60, 3, 64)) * np.array([1.0, 20.0, 0.1])[:, None]
    assert suggest_rank(X, ranks=[1, 2, 4, 8], tensorize=STFT(n_fft=16, hop=2), max_sweeps=30).rank <= 2


def test_without_structure_components_are_said_not_to_be_readable():
    T = np.random.default_rng(0).normal(size=(60, 6, 7, 8))
    found = suggest_rank(T, ranks=[3, 6], max_sweeps=30)
    assert found.readable is None
    assert "do not read much into single ones" in found.reason


def test_the_scale_of_the_data_does_not_matter():
    T, _ = planted(3, noise=0.2)
    here, there = (suggest_rank(T * scale, ranks=[2, 3], restarts=2) for scale in (1.0, 1e-6))
    assert np.allclose(here.fitness, there.fitness, atol=1e-6)
    assert np.allclose(here.stability, there.stability, atol=1e-3)


def test_the_subset_is_spread_evenly_and_no_larger_than_asked():
    T, _ = planted(2, shape=(101, 5, 6))
    found = suggest_rank(T, ranks=[1, 2], n_windows=5, restarts=1)
    assert found.n_windows == 5
    assert np.isnan(found.stability).all()
    same = suggest_rank(T[[0, 25, 50, 75, 100]], ranks=[1, 2], restarts=1)
    assert np.array_equal(same.fitness, found.fitness)


def test_raw_windows_go_through_the_stft():
    X = np.random.default_rng(0).normal(size=(30, 2, 64)).astype(np.float32)
    stft = STFT(n_fft=16, hop=8)
    calls = []
    found = suggest_rank(X, [1, 2], tensorize=stft, restarts=2, max_sweeps=3, on_fit=lambda *given: calls.append(given))
    assert calls == [(1, 9, 1), (2, 9, 1), (3, 9, 1), (5, 9, 2), (7, 9, 2), (9, 9, 2)]
    T = stft(torch.from_numpy(X))
    assert np.allclose(found.fitness, suggest_rank(T, [1, 2], restarts=2, max_sweeps=3).fitness, atol=1e-5)


def test_a_table_a_dictionary_and_a_plot_come_of_it():
    T, _ = planted(2)
    found = suggest_rank(T, ranks=[1, 2, 3, 8], restarts=2)
    lines = repr(found).splitlines()
    assert len(lines) == 6
    assert lines[2].startswith("→    2")
    assert lines[-1] == found.reason
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["rank"] == 2
    assert [row["rank"] for row in content["tried"]] == [1, 2, 3, 8]
    assert content["tried"][3]["core_consistency"] is None
    pytest.importorskip("matplotlib")
    figure = found.plot()
    assert [axes.get_ylabel().split()[0] for axes in figure.axes] == ["fitness", "better", "core", "stability"]
    assert np.array_equal(figure.axes[0].lines[0].get_ydata(), found.fitness.max(axis=1))
    assert np.array_equal(figure.axes[0].lines[1].get_ydata(), found.noise)
    assert figure.get_suptitle().replace("\n", " ") == found.reason


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"ranks": []}, "ranks must name at least one"),
        ({"ranks": [0]}, "ranks must be a whole number"),
        ({"restarts": 0}, "restarts must be"),
        ({"n_windows": 1}, "n_windows must be"),
    ],
)
def test_wrong_arguments_are_named(arguments, said):
    with pytest.raises(PolyadicError, match=said):
        suggest_rank(np.ones((5, 3, 4)), **arguments)


def test_silence_is_refused():
    with pytest.raises(PolyadicError, match="zero everywhere"):
        suggest_rank(np.zeros((5, 3, 4)))


@pytest.fixture
def file(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 2, 64)).cumsum(axis=2).astype(np.float32)
    np.savez(tmp_path / "windows.npz", X=X, fs=32.0)
    return tmp_path / "windows.npz"


def test_the_command_shows_a_table_and_writes_the_plot(file, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "rank.png"
    result = CliRunner().invoke(
        app, ["rank", str(file), "--ranks", "1,2", "--restarts", "2", "-o", str(plot)], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert "fitness" in result.stdout
    assert "Rank " in result.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_json_and_nothing_else(file):
    result = polyadic("rank", file, "--ranks", "1,2", "--restarts", "1", "--json", cwd=file.parent)
    content = json.loads(result.stdout)
    assert [row["rank"] for row in content["tried"]] == [1, 2]
    assert content["tried"][0]["stability"] is None
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--ranks", "two"], "--ranks must be"), (["-o", "missing/rank.png"], "--out must lie in an existing folder")],
)
def test_the_command_says_what_it_cannot_use(file, words, said):
    assert said in polyadic("rank", file, *words, cwd=file.parent, code=1).stderr
