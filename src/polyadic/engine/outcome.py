"""Outcome of a fit: whether the loss converged, warnings, and a one-line summary."""

from __future__ import annotations

import warnings
from typing import Any

from polyadic.core.nonnegative import warn_of_vanished
from polyadic.engine.loop import Fit, has_converged

__all__ = ["MORE_SWEEPS", "describe_fit", "is_converged", "warn_of_outcome"]

_USER = 4
"""Stack level of the line that called `fit`, above this function, `fit` and its decorator."""

MORE_SWEEPS = "Increase max_sweeps, or set tol=0 if exactly this many sweeps are intended."
"""Advice for a loss that has not converged; commands name their own option instead."""


def is_converged(model: Any) -> bool | None:
    """Return whether the fit of a model ended because its loss converged, or None if unknown.

    Examples
    --------
    >>> from polyadic import SALS
    >>> from polyadic.data import synthetic
    >>> is_converged(SALS(rank=2, max_sweeps=500).fit(synthetic(50))), is_converged(SALS(rank=2))
    (True, None)
    """
    if getattr(model, "consensus", False):
        return None  # the history has only the sweep after the consensus
    losses: list[float] = getattr(model, "history_", {}).get("loss", [])
    known = bool(losses) and all(hasattr(model, name) for name in ("max_sweeps", "tol", "patience"))
    return has_converged(losses, model.tol, model.patience) if known else None


def warn_of_outcome(fit: Fit, nonnegative: bool) -> None:
    """Warn about vanished components and, in the first process of a team, about a loss that has not converged."""
    if nonnegative:
        warn_of_vanished(fit.state.factors)
    settings = fit.settings
    if fit.converged or settings.tol == 0 or fit.team.index > 0:  # with tol=0, max_sweeps is the intended number
        return
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(
        f"The fit stopped at max_sweeps={settings.max_sweeps} before the loss converged. {MORE_SWEEPS}",
        ConvergenceWarning,
        stacklevel=_USER,
    )


def describe_fit(model: Any) -> str:
    """Summarise a fitted model in one line: windows, tensor shape, size, sweeps, loss and convergence.

    Examples
    --------
    >>> from polyadic import SALS
    >>> from polyadic.data import synthetic
    >>> describe_fit(SALS(rank=2, max_sweeps=500).fit(synthetic(50)))  # doctest: +ELLIPSIS
    'fitted to 50 windows of 8 × 256, as tensors 8 × 33 × 25; rank 2, ... parameters; ... sweeps, loss ..., converged'
    """
    sizes = " × ".join(str(len(factor)) for factor in model.factors_)
    count, sweeps, losses = model._n_seen, model.n_sweeps_, model.history_["loss"]
    shape = " × ".join(str(size) for size in model._sample_shape)
    tensors = f", as tensors {sizes}" if sizes != shape else ""
    parts = [f"fitted to {count:,} window{'s' * (count != 1)} of {shape}{tensors}"]
    parts.append(f"rank {model.factors_[0].shape[1]}, {model.n_parameters_:,} parameters")
    if losses:
        converged = {True: ", converged", False: ", not converged", None: ""}[is_converged(model)]
        parts.append(f"{sweeps} sweep{'s' * (sweeps != 1)}, loss {losses[-1]:.4g}{converged}")
    return "; ".join(parts)
