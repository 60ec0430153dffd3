"""The default fit: two passes over the data, compression of the modes, and sweeps on second moments."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import assert_same, bases, draw, moments_of

from polyadic import CPD
from polyadic._util.threads import thread_pool
from polyadic.core import compression as compressing
from polyadic.core import moments as second
from polyadic.core.algebra import squared_norms
from polyadic.core.compression import Compression, Sums, centred_scatter, choose_ranks, mean_of, mode_sums
from polyadic.core.passes import Passes, Stage
from polyadic.core.step import Objective, State, feature_extractor, step
from polyadic.data import batches
from polyadic.data.batches import Samples, WindowSource
from polyadic.explain import match
from polyadic.scale.checkpoints import Checkpoints
from polyadic.spectral import recommended_stft

CPU = torch.device("cpu")
SHAPE = (4, 5, 3)


def positive(factors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [factor.abs() for factor in factors]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks and pieces for little data."""
    monkeypatch.setitem(batches._BLOCK_BYTES, "cpu", 2**16)
    monkeypatch.setattr("polyadic.core.passes._PIECE_BYTES", 2**13)


def passes_over(X: np.ndarray) -> Passes:
    source = WindowSource(Samples(X), None, None, 0, CPU, torch.float32)
    return Passes(source, Stage("floor", recommended_stft(X.shape[2], 64.0), n_windows=len(X)))


# --------------------------------------------------------------------- sweeps


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("count", [20, 90], ids=["fewer windows than entries", "more"])
def test_a_sweep_on_moments_is_a_step_on_all_windows(nonnegative, count, monkeypatch):
    monkeypatch.setattr(second, "_COLUMNS", 7)
    monkeypatch.setattr(second, "_ROWS", 16)
    T, objective = draw(count, *SHAPE, scale=3.0) + 2.0, Objective(0.1, nonnegative=nonnegative)
    factors = positive(bases(SHAPE, 3)) if nonnegative else bases(SHAPE, 3)
    moments = moments_of(T, sizes=(9, 5))
    assert moments.keeps_rows == (count == 20)
    assert_same([moments.times(torch.eye(60).double())], [T.flatten(1).T @ T.flatten(1)])
    states = [State(factors), State(factors)]
    for _ in range(3):
        states[1].energy = None
        terms = [moments.sweep(states[0], objective), step(T, states[1], objective)]
        assert_same([terms[0], states[0].energy], [terms[1], states[1].energy])
        assert_same(states[0].factors, states[1].factors)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_sweep_on_compressed_windows_is_a_step_on_their_projections(nonnegative):
    T, objective = draw(80, *SHAPE, scale=3.0), Objective(0.1, nonnegative=nonnegative)
    compression = Compression.from_scatter(
        centred_scatter(mode_sums(T), torch.zeros(SHAPE, dtype=torch.float64)), 60, (3, 2, 3), torch.float64
    )
    assert compression.ranks == (3, 2, 3)
    assert compression.axes[2] is None, "a mode that keeps all axes is not rotated"
    projected = T
    for mode, axes in enumerate(compression.axes[:2]):
        projected = torch.tensordot(projected, axes @ axes.T, dims=([1 + mode], [0])).movedim(-1, 1 + mode)
    factors = positive(bases(SHAPE, 3)) if nonnegative else bases(SHAPE, 3)
    states = [State(factors), State(factors)]
    outside = float((squared_norms(T) - squared_norms(projected)).sum())
    for _ in range(3):
        states[1].energy = None
        terms = [moments_of(T, compression).sweep(states[0], objective), step(projected, states[1], objective)]
        terms[1][0] += outside
        assert_same([terms[0]], [terms[1]])
        assert_same(states[0].factors, states[1].factors)


# ---------------------------------------------------------------- compression


@given(st.data())
def test_chosen_ranks_fit_the_budget_and_lose_little_if_they_can(data):
    spectra = [
        np.sort(np.array(data.draw(st.lists(st.floats(0, 100), min_size=1, max_size=12))))[::-1] for _ in range(3)
    ]
    size = data.draw(st.integers(1, 500))
    ranks = choose_ranks(spectra, size)
    assert all(1 <= rank <= len(values) for rank, values in zip(ranks, spectra, strict=True))
    assert math.prod(ranks) <= size
    full = math.prod(len(values) for values in spectra)
    lost = [values[rank:].sum() / max(values.sum(), 1e-300) for rank, values in zip(ranks, spectra, strict=True)]
    if full <= size:
        assert 2 * lost[0] + lost[1] + lost[2] <= compressing._LOST + 1e-9


def test_mode_sums_are_scatter_matrices_and_centring_is_done_on_them():
    T, centre = draw(30, *SHAPE) + 5.0, draw(*SHAPE, seed=1)
    sums = Sums()
    for part in T.split(7):
        sums.merge(mode_sums(part.transpose(2, 3).contiguous().transpose(2, 3)))
    assert_same([mean_of(sums)], [T.mean(dim=0)])
    apart = T - centre
    for mode, scatter in enumerate(centred_scatter(sums, centre)):
        unfolded = apart.movedim(1 + mode, 0).flatten(1)
        assert_same([scatter], [unfolded @ unfolded.T])


# --------------------------------------------------------------------- passes


@pytest.mark.usefixtures("small_blocks")
def test_floors_mean_and_energy_come_from_all_windows():
    X = np.random.default_rng(3).normal(size=(300, 4, 256)).astype(np.float32).cumsum(axis=2)
    passes = passes_over(X)
    moments = passes.run()
    expected = recommended_stft(X.shape[2], 64.0).calibrated(torch.from_numpy(X))
    np.testing.assert_allclose(passes.stage.tensorize.floor, expected.floor, rtol=1e-6)
    np.testing.assert_allclose(passes.stage.tensorize.mean, expected.mean, atol=1e-5)
    T = passes.stage.tensorize(torch.from_numpy(X)).double()
    assert moments.energy == pytest.approx(float(T.square().sum()), rel=1e-6)
    assert moments.count == 300


@pytest.mark.usefixtures("small_blocks")
def test_sums_do_not_depend_on_the_number_of_threads_or_on_kept_tensors(monkeypatch):
    X = np.random.default_rng(0).normal(size=(200, 3, 128)).astype(np.float32).cumsum(axis=2)
    results = []
    for threads, kept in ((1, 2**28), (3, 2**28), (2, 0)):
        monkeypatch.setattr("polyadic.core.passes._KEPT_BYTES", kept)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with thread_pool():
                results.append(passes_over(X).run().arrays())
        finally:
            torch.set_num_threads(before)
    for other in results[1:]:
        assert all(np.array_equal(results[0][name], other[name]) for name in results[0])


@pytest.mark.usefixtures("small_blocks")
def test_a_fit_reads_every_window_once_before_and_once_in_each_of_its_two_passes():
    X = np.random.default_rng(0).normal(size=(200, 3, 128)).astype(np.float32)
    passes, seen = passes_over(X), []
    passes.source.on_batch = lambda count, size: seen.append(count)
    passes.run()
    assert sum(seen) == 3 * 200


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("stop", [0, 5])
def test_an_interrupted_pass_resumes_to_the_bit(stop, tmp_path, monkeypatch):
    # On a GPU, blocks are larger, and there are fewer of them.
    X = np.random.default_rng(0).normal(size=(200, 3, 128)).astype(np.float32).cumsum(axis=2)
    whole, save, calls = CPD(3, device="cpu").fit(X), Checkpoints.save_passes, []

    def interrupt(self, passes, now=False):
        save(self, passes, now)
        calls.append(passes.done)
        if len(calls) > stop:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save_passes", interrupt)
        with pytest.raises(KeyboardInterrupt):
            CPD(3, device="cpu").fit(X, checkpoint=tmp_path / "fit", checkpoint_every=0)
    resumed = CPD(3, device="cpu").fit(X, checkpoint=tmp_path / "fit", resume=True)
    assert all(np.array_equal(a, b) for a, b in zip(whole.factors_, resumed.factors_, strict=True))
    np.testing.assert_array_equal(whole.transform(X), resumed.transform(X))


# ---------------------------------------------------------------- whole fits


def test_the_reported_loss_is_that_of_all_data_and_bases_are_exactly_nonnegative():
    X = np.random.default_rng(1).normal(size=(400, 6, 256)).astype(np.float32).cumsum(axis=2)
    model = CPD(6, max_sweeps=400, tol=1e-6).fit(X)
    assert model.compression_["energy"] < 1
    T = model.tensorize_(torch.from_numpy(X))
    _, residuals = feature_extractor([torch.from_numpy(factor) for factor in model.factors_], model.alpha)(T)
    energy = float(squared_norms(T).sum())
    assert abs(model.history_["fit"][-1] - float(residuals.sum())) < 1e-4 * energy
    assert min(float(factor.min()) for factor in model.factors_) >= 0


def test_planted_components_are_found_in_compressed_windows():
    random = np.random.default_rng(0)
    planted = [np.abs(random.normal(size=(size, 3))) ** 2 for size in (8, 40, 30)]
    planted = [basis / np.linalg.norm(basis, axis=0) for basis in planted]
    # The weakest has 1 % of the energy of the strongest.
    X = np.einsum("nr,ir,jr,kr->nijk", random.normal(size=(700, 3)) * [1.0, 0.5, 0.1], *planted)
    X += 0.001 * random.normal(size=X.shape)
    model = CPD(3, tensorize=None, readout=None, nonnegative=True, restarts=3, max_sweeps=500, tol=1e-6)
    model.fit(X.astype(np.float32))
    assert math.prod(model.compression_["ranks"]) <= 512 < 8 * 40 * 30
    assert match(model.factors_, planted).similarity.min() > 0.99


@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_the_readout_from_moments_is_that_of_a_pass_over_the_windows(offset):
    X = np.random.default_rng(2).normal(size=(3000, 3, 64)).astype(np.float32).cumsum(axis=2) + np.float32(offset)
    model = CPD(4, compression=None).fit(X)
    features = model.transform(X)
    again = model.fit_readout(X)
    np.testing.assert_allclose(features, again.transform(X), atol=2e-3)
