"""The parts of a model file that only CP models have: bases, solver memory, readout, probe and replicability."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from polyadic.core import persist
from polyadic.core.step import Statistics
from polyadic.errors import ModelFileError, PolyadicError

__all__ = ["MOST_ROUNDS", "arrays_of", "extra_of", "restore"]

MOST_ROUNDS = 10_000
"""Maximum number of fixed-point iterations per step; the paper uses 1, and 100 are more than enough to converge."""
_MOST_WINDOWS = 2**62
_SETTLED = ("solver_", "batch_size_", "nonnegative_", "attempt_")
"""Values of "auto" parameters and the kept restart, stored for information only."""


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a fitted model by name; raise an error for values that `load` would refuse."""
    arrays = {f"factors.{mode}": factor for mode, factor in enumerate(model.factors_)}
    if model._memory is not None:
        arrays |= {"memory.Y": model._memory.Y.numpy(), "memory.S": model._memory.S.numpy()}
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise PolyadicError("the model's bases contain NaN or infinity, so its file could not be loaded: fit it again")
    readout = getattr(model, "readout_", None)
    arrays |= {} if readout is None else readout.arrays()
    return arrays | (_packed_probe(model)[0] if hasattr(model, "probe_") else {})


def extra_of(model: Any) -> dict[str, Any]:
    """Return further state to save, as JSON."""
    return {
        "n_seen": int(model._n_seen),
        "fit_seconds": float(getattr(model, "fit_seconds_", 0.0)),
        "settled": {name: getattr(model, name, None) for name in _SETTLED},
        "readout": persist.encode(model.readout_.readout) if getattr(model, "readout_", None) is not None else None,
        "probe": _packed_probe(model)[1] if hasattr(model, "probe_") else None,
        "replicability": None if getattr(model, "replicability_", None) is None else model.replicability_.to_dict(),
    }


def restore(model: Any, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
    """Restore the output of `arrays_of` and `extra_of`, except bases and readout, and check its consistency."""
    shape = tuple(len(factor) for factor in model.factors_)
    model._memory = None
    if "memory.Y" in arrays:
        Y, S = arrays["memory.Y"], arrays["memory.S"]
        if Y.shape != (model.rank, *shape) or S.shape != (model.rank, model.rank):
            raise ModelFileError(f"the file's solver memory has shapes {Y.shape} and {S.shape}, which do not match")
        model._memory = Statistics(torch.from_numpy(Y), torch.from_numpy(S))
    model.n_sweeps_ = len(model.history_["loss"])
    model._n_seen = int(extra["n_seen"])
    if not 0 <= model._n_seen < _MOST_WINDOWS or getattr(model, "rounds", 1) > MOST_ROUNDS:
        raise ModelFileError(
            f"the file has {model._n_seen} windows seen and {getattr(model, 'rounds', 1)} rounds, which is out of range"
        )
    model.fit_seconds_ = float(extra.get("fit_seconds", sum(model.history_["seconds"])))
    for name, value in dict(extra.get("settled", {})).items():
        if name in _SETTLED and (value is None or isinstance(value, bool | int | str)):
            setattr(model, name, value)
    if hasattr(model, "augment"):
        model.augment_ = model._augmentation()
    from polyadic.evaluate.probe import Probe

    probe = Probe.unpack(arrays, extra.get("probe"), model._n_features_out)
    if probe is not None:
        model.probe_ = probe
    if extra.get("replicability") is not None:
        from polyadic.explain.replication import Replicability

        model.replicability_ = Replicability.from_dict(extra["replicability"], model.rank)


def _packed_probe(model: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    from polyadic.evaluate.probe import Probe

    return Probe.of(model.probe_).pack()
