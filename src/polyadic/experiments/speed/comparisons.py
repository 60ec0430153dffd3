"""What a sweep is measured against, in the same run on the same windows: the textbook method, and TensorLy's CP-ALS."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from polyadic import SALS, als
from polyadic.experiments.paper import reference
from polyadic.experiments.speed.measure import in_turn, spread
from polyadic.experiments.speed.stages import fitted, model_of, random_windows
from polyadic.experiments.speed.textbook import Sweeper, spectra
from polyadic.presets import preset

__all__ = ["against_tensorly", "against_textbook"]

_ROUNDS = 3
_TENSORLY_WINDOWS = 2048
_CPU = torch.device("cpu")

Row = dict[str, Any]


def against_textbook(quick: bool) -> Row:
    """A sweep of HAR, augmented and transformed on the fly, by the library and by `textbook`, in turn.

    Both have torch's number of threads; the textbook has as many workers besides, as its authors would.
    """
    har = preset("har")
    count = 24 if quick else reference.SIZES["har"][0]
    X = random_windows(har, count, _CPU)
    tensorize = har.tensorize.calibrated(torch.from_numpy(X[:1024]))
    bases = als.initial_factors(tensorize.shape(*har.shape), 32, 0, torch.float32, _CPU)
    workers = 0 if quick else torch.get_num_threads()
    slow = Sweeper(X, har.augment, tensorize, har.parameters, bases, workers)

    def ours() -> dict[str, float]:
        model = fitted(model_of(har, _CPU, max_sweeps=3), X)
        return {"polyadic": float(np.median(model.history_["seconds"]))}

    def textbook() -> dict[str, float]:
        return {"textbook": _seconds(slow.sweep)}

    times = in_turn([ours, textbook], 1 if quick else _ROUNDS)
    return {
        "windows": count,
        "threads": torch.get_num_threads(),
        "workers": workers,
        "polyadic_seconds": spread(times["polyadic"]),
        "textbook_seconds": spread(times["textbook"]),
        "ratio": _ratios(times["textbook"], times["polyadic"]),
    }


def against_tensorly(quick: bool) -> Row | None:
    """A sweep of CP-ALS over many HAR tensors at once, by TensorLy and by `SALS(batch_size=None)`.

    None where there is no TensorLy. Neither augments; the tensors are there already.
    """
    if importlib.util.find_spec("tensorly") is None:
        return None
    from tensorly.decomposition import parafac

    har = preset("har")
    X = torch.from_numpy(random_windows(har, 24 if quick else _TENSORLY_WINDOWS, _CPU))
    T = spectra(X, har.tensorize.calibrated(X[:1024])).numpy()

    def ours() -> dict[str, float]:
        model = SALS(32, batch_size=None, max_sweeps=3, tol=0.0, device="cpu").fit(T)
        return {"polyadic": float(np.median(model.history_["seconds"][1:]))}

    def theirs() -> dict[str, float]:
        def sweeps(number: int) -> None:
            parafac(T, 32, n_iter_max=number, init="random", tol=0, random_state=0)

        # The start is no part of a sweep.
        return {"tensorly": max((_seconds(lambda: sweeps(3)) - _seconds(lambda: sweeps(1))) / 2, 1e-9)}

    times = in_turn([ours, theirs], 1 if quick else _ROUNDS)
    return {
        "windows": len(T),
        "tensor": list(T.shape[1:]),
        "polyadic_seconds": spread(times["polyadic"]),
        "tensorly_seconds": spread(times["tensorly"]),
        "ratio": _ratios(times["tensorly"], times["polyadic"]),
    }


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _ratios(slow: list[float], fast: list[float]) -> dict[str, float]:
    return spread([a / b for a, b in zip(slow, fast, strict=True)])
