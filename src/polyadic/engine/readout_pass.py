"""Fit a readout in one pass over the windows, in batches and constant memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from polyadic.augment import as_augmentation, split_pairing
from polyadic.core.tensorizer import tensors
from polyadic.data.batches import WindowSource
from polyadic.readout import FittedReadout, Readout
from polyadic.team import Team

__all__ = ["fit_readout"]

Solve = Callable[[Tensor], tuple[Tensor, Tensor]]


def fit_readout(
    readout: Readout, source: WindowSource, solve: Solve, factors: list[Any], rows: int, team: Team
) -> FittedReadout:
    """Fit a readout to the windows of a source.

    Parameters
    ----------
    source : the windows; its augmentation is ignored
    solve : maps tensors (b, I, J, …) to coefficients (b, R) and squared residuals (b,)
    factors : matrices of shapes (I, R), (J, R), …
    rows : number of windows in a batch
    team : the processes that share the work
    """
    raw = source.tensorize is not None
    rank, count = factors[0].shape[1], source.n_windows
    collected = readout.accumulator(rank, count, source.samples.shape[1] if raw else 0)
    views = None if readout.whiten is None else replace(source, augment=as_augmentation(readout.whiten))
    for part in torch.split(torch.arange(count, device="cpu"), rows):
        ids = team.share(part)
        if not len(ids):
            continue
        X = source.samples.take(ids, source.device, source.dtype)
        x, residuals = solve(tensors(source.tensorize, X))
        view, has_view = (None, None) if views is None else _view(views, X, ids)
        if view is not None:
            view = solve(tensors(source.tensorize, view))[0] if len(view) else x[:0]
        collected.add(ids, x, residuals, X if collected.n_channels else None, view, has_view)
    return readout.fitted(collected.summed(team.sum), factors)


def _view(source: WindowSource, X: Tensor, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the views of the windows that have one, and a mask of these windows (None if all have one)."""
    pairing, _ = split_pairing(source.augment)
    view = source.augmented(X, ids, 0)
    if pairing is None:
        return view, None
    has_view = source.partners(ids) >= 0
    return view[has_view.to(view.device)], has_view
