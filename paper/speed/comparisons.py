"""Comparison of a step and a sweep with the textbook method and TensorLy, in the same run on the same windows."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorly
import torch
from tensorly.decomposition import parafac
from tensorly.tenalg import unfolding_dot_khatri_rao
from torch import Tensor

from paper import reference
from paper.speed.measure import median_and_range, repeat_in_turn, seconds_per_sweep
from paper.speed.sweeps import build_model, fit_quietly, random_windows
from paper.speed.textbook import TextbookSweeps, spectra
from polyadic import SALS
from polyadic._util.threads import thread_pool
from polyadic.core import step as als
from polyadic.core.algebra import collect, contract, project
from polyadic.presets import preset

_ROUNDS = 2
_TENSORLY_WINDOWS = 2048
_CPU = torch.device("cpu")
_RANK = 32

_STEP_DATASETS = ("har", "sleep_edf")
_STEP_BATCH = 128
_STEP_ROUNDS, _STEP_WARM_UP, _STEP_REPEATS = 3, 2, 5
_STEP_PAUSE = 0.5
_LARGEST_DIFFERENCE = 1e-5

Row = dict[str, Any]


def against_textbook(quick: bool) -> Row:
    """Time a sweep of HAR, augmented and transformed on the fly, by the library and by `textbook`, alternately.

    Both use torch's number of threads; the textbook code uses as many loader workers in addition.
    """
    har = preset("har")
    count = 24 if quick else reference.SIZES["har"][0]
    X = random_windows(har, count, _CPU)
    tensorize = har.tensorize.calibrated(torch.from_numpy(X[:1024]))
    bases = als.initial_factors(tensorize.shape(*har.shape), _RANK, 0, torch.float32, _CPU)
    workers = 0 if quick else torch.get_num_threads()
    slow = TextbookSweeps(X, har, tensorize, bases, workers)

    def ours() -> dict[str, float]:
        model = fit_quietly(build_model(har, _CPU, 3, har.parameters["batch_size"]), X)
        return {"polyadic": seconds_per_sweep(model.history_["seconds"])}

    def textbook() -> dict[str, float]:
        return {"textbook": _seconds_of(slow.sweep)}

    times = repeat_in_turn([ours, textbook], 1 if quick else _ROUNDS)
    return {
        "windows": count,
        "threads": torch.get_num_threads(),
        "workers": workers,
        "polyadic_seconds": median_and_range(times["polyadic"]),
        "textbook_seconds": median_and_range(times["textbook"]),
        "ratio": _ratios(times["textbook"], times["polyadic"]),
    }


def against_tensorly(quick: bool) -> Row:
    """Time a sweep of CP-ALS over many HAR tensors at once, by TensorLy and by `SALS(batch_size=None)`.

    Neither augments, and the tensors are computed in advance.
    """
    har = preset("har")
    X = torch.from_numpy(random_windows(har, 24 if quick else _TENSORLY_WINDOWS, _CPU))
    T = spectra(X, har.tensorize.calibrated(X[:1024])).numpy()

    def ours() -> dict[str, float]:
        model = SALS(_RANK, tensorize=None, readout=None, solver="blend", batch_size=None, max_sweeps=3, tol=0.0)
        model.set_params(device="cpu").fit(T)
        return {"polyadic": seconds_per_sweep(model.history_["seconds"])}

    def theirs() -> dict[str, float]:
        def sweeps(number: int) -> None:
            parafac(T, _RANK, n_iter_max=number, init="random", tol=0, random_state=0)

        # The initialisation is not part of a sweep.
        return {"tensorly": max((_seconds_of(lambda: sweeps(3)) - _seconds_of(lambda: sweeps(1))) / 2, 1e-9)}

    times = repeat_in_turn([ours, theirs], 1 if quick else _ROUNDS)
    return {
        "windows": len(T),
        "tensor": list(T.shape[1:]),
        "polyadic_seconds": median_and_range(times["polyadic"]),
        "tensorly_seconds": median_and_range(times["tensorly"]),
        "ratio": _ratios(times["tensorly"], times["polyadic"]),
    }


def against_mttkrp(quick: bool) -> list[Row]:
    """Time one mini-batch step of ATD against TensorLy's MTTKRP of every mode of the same tensors.

    The matricised tensor times Khatri-Rao product (MTTKRP) is the core of a step of alternating least squares. TensorLy
    is timed on its numpy backend, the default, and on torch. The library is timed for the same products, and for the
    whole step with alignment, all solves and loss terms.
    """
    return [_compare_step(name, quick) for name in (_STEP_DATASETS[:1] if quick else _STEP_DATASETS)]


def _compare_step(dataset: str, quick: bool) -> Row:
    """Return the seconds of a step, of its products and of TensorLy's, for one dataset's shape, and the ratios."""
    settings = preset(dataset)
    dims = settings.tensorize.shape(*settings.shape)
    batch = 4 if quick else _STEP_BATCH
    generator = torch.Generator().manual_seed(0)
    T = torch.randn(2 * batch, *dims, generator=generator)
    factors = als.initial_factors(dims, _RANK, 0, T.dtype, T.device)
    X = torch.randn(2 * batch, _RANK, generator=generator)
    on_numpy, on_torch = (_tensorly_products(backend, T, X, factors) for backend in ("numpy", "pytorch"))
    pairs = zip(_products(T, X, factors), on_torch(), strict=True)
    difference = max(float(torch.linalg.norm(a - b) / torch.linalg.norm(b)) for a, b in pairs)
    assert difference < _LARGEST_DIFFERENCE, "the results differ, so the times cannot be compared"
    objective = als.Objective(alpha=1e-3, beta=2.0)

    def step() -> None:
        als.step(T, als.State(list(factors)), objective, n_views=2, learning_rate=0.05)

    # The speed of a shared machine varies, so take ratios within each of several rounds.
    times = repeat_in_turn(
        [
            lambda: {"step": _median_of_calls(step, thread_pool(), quick)},
            lambda: {"products": _median_of_calls(lambda: _products(T, X, factors), thread_pool(), quick)},
            lambda: {"numpy": _median_of_calls(on_numpy, nullcontext(), quick)},
            lambda: {"torch": _median_of_calls(on_torch, nullcontext(), quick)},
        ],
        1 if quick else _STEP_ROUNDS,
        warm_up=0,
    )
    row: Row = {"dataset": dataset, "tensor": [2 * batch, *dims], "rank": _RANK}
    row |= {f"{name}_seconds": median_and_range(values) for name, values in times.items()}
    for ours in ("step", "products"):
        for backend in ("numpy", "torch"):
            row[f"{ours}_ratio_to_{backend}"] = _ratios(times[backend], times[ours])
    return row | {"largest_relative_difference": difference}


def _products(T: Tensor, X: Tensor, factors: list[Tensor]) -> list[Tensor]:
    """Return the MTTKRP of every mode at the same factors, as the library computes them."""
    A, B, C = factors
    Y = collect(X, T)
    left = contract(Y, 2, C)
    return [project(T, factors), contract(left, 1, B).T, contract(left, 0, A).T, contract(contract(Y, 0, A), 0, B).T]


def _tensorly_products(backend: str, T: Tensor, X: Tensor, factors: list[Tensor]) -> Callable[[], list[Any]]:
    """Return a function that computes the same products with TensorLy, on one of its backends."""
    tensor, *matrices = (array.numpy() if backend == "numpy" else array for array in (T, X, *factors))

    def compute() -> list[Any]:
        with tensorly.backend_context(backend, local_threadsafe=True):
            return [unfolding_dot_khatri_rao(tensor, (None, matrices), mode) for mode in range(4)]

    return compute


def _median_of_calls(function: Callable[[], object], threads: AbstractContextManager[object], quick: bool) -> float:
    """Return the median seconds of one call among many, within a context that sets up threads as in a fit."""
    # The threads of each library keep spinning for a while after a call: wait until they are idle.
    time.sleep(0 if quick else _STEP_PAUSE)
    warm_up, repeats = (0, 1) if quick else (_STEP_WARM_UP, _STEP_REPEATS)
    with threads:
        times = [_seconds_of(function) for _ in range(warm_up + repeats)]
    return float(np.median(times[warm_up:]))


def _seconds_of(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def _ratios(slow: list[float], fast: list[float]) -> dict[str, float]:
    """Return the ratios of two measurements, round by round."""
    return median_and_range([a / b for a, b in zip(slow, fast, strict=True)])
