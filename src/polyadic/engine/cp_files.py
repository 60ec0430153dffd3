"""What a model file holds of a CP model alone: bases, solver memory, readout, probe and replicability."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from polyadic import linear_probe, persist
from polyadic.als import Statistics
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.readout import PREFIX, FittedReadout, Readout
from polyadic.replication import Replicability

__all__ = ["MOST_ROUNDS", "arrays_of", "extra_of", "restore"]

MOST_ROUNDS = 10_000
"""Rounds of the fixed-point rule in a step: one is the paper's, a hundred are beyond convergence."""
_MOST_WINDOWS = 2**62
_SETTLED = ("solver_", "batch_size_", "nonnegative_")
"""What "auto" became, for people to read; nothing depends on it."""


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """The numbers of a fitted model, by name; those that `load` would refuse are not written."""
    arrays = {f"factors.{mode}": factor for mode, factor in enumerate(model.factors_)}
    if model._memory is not None:
        arrays |= {"memory.Y": model._memory.Y.numpy(), "memory.S": model._memory.S.numpy()}
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise PolyadicError("the model's bases hold NaN or infinity: a file of them could not be loaded again")
    readout = getattr(model, "readout_", None)
    arrays |= {} if readout is None else readout.arrays()
    return arrays | (linear_probe.pack(model.probe_)[0] if hasattr(model, "probe_") else {})


def extra_of(model: Any) -> dict[str, Any]:
    """What else has to be kept, as JSON."""
    return {
        "n_seen": int(model._n_seen),
        "settled": {name: getattr(model, name, None) for name in _SETTLED},
        "readout": persist.encode(model.readout_.readout) if getattr(model, "readout_", None) is not None else None,
        "probe": linear_probe.pack(model.probe_)[1] if hasattr(model, "probe_") else None,
        "replicability": None if getattr(model, "replicability_", None) is None else model.replicability_.to_dict(),
    }


def restore(model: Any, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
    """Take over what `arrays_of` and `extra_of` gave, after checking that it fits together."""
    names = [f"factors.{mode}" for mode in range(sum(name.startswith("factors.") for name in arrays))]
    model.factors_ = [arrays[name] for name in names]
    shapes = [factor.shape for factor in model.factors_]
    shape = tuple(len(factor) if factor.ndim else 0 for factor in model.factors_)
    known = model._sample_shape if model.tensorize_ is None else model.tensorize_.shape(*model._sample_shape)
    shape = known or shape
    expected = [(size, model.rank) for size in shape]
    if shapes != expected or not expected:
        raise ModelFileError(f"the file's factors have shapes {shapes}, but its header calls for {expected}")
    if not all(array.dtype.kind == "f" and np.isfinite(array).all() for array in arrays.values()):
        raise ModelFileError("the file's arrays hold NaN, infinity or no floating-point numbers")
    model._memory = None
    if "memory.Y" in arrays:
        Y, S = arrays["memory.Y"], arrays["memory.S"]
        if Y.shape != (model.rank, *shape) or S.shape != (model.rank, model.rank):
            raise ModelFileError(f"the file's solver memory has shapes {Y.shape} and {S.shape}, which do not fit")
        model._memory = Statistics(torch.from_numpy(Y), torch.from_numpy(S))
    model.n_sweeps_ = len(model.history_["loss"])
    model._n_seen = int(extra["n_seen"])
    if not 0 <= model._n_seen < _MOST_WINDOWS or getattr(model, "rounds", 1) > MOST_ROUNDS:
        raise ModelFileError(
            f"the file has {model._n_seen} windows seen and {getattr(model, 'rounds', 1)} rounds, which no fit has"
        )
    _restore_readout(model, arrays, extra.get("readout"))
    for name, value in dict(extra.get("settled", {})).items():
        if name in _SETTLED and (value is None or isinstance(value, bool | int | str)):
            setattr(model, name, value)
    if hasattr(model, "augment"):
        model.augment_ = model._augmentation()
    if extra.get("probe") is not None or any(name.startswith(linear_probe.PREFIX) for name in arrays):
        model.probe_ = linear_probe.unpack(arrays, extra.get("probe"), model._n_features_out)
    if extra.get("replicability") is not None:
        model.replicability_ = Replicability.from_dict(extra["replicability"], model.rank)


def _restore_readout(model: Any, arrays: dict[str, np.ndarray], described: Any) -> None:
    if described is None:
        if any(name.startswith(PREFIX) for name in arrays):
            raise ModelFileError("the file has arrays of a readout, but no description of one")
        if model.readout is None:
            model.readout_ = None
        return
    readout = persist.decode(described)
    if not isinstance(readout, Readout):
        raise ModelFileError(f"the file's readout must be an object that describes one, but is {described!r}")
    channels = 0 if model.tensorize_ is None else model._sample_shape[0]
    model.readout_ = FittedReadout.from_arrays(readout, arrays, model.rank, channels)
