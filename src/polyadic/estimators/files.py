"""Model files of the estimators: what a fitted model is, as arrays and a JSON header, and the model built from them.

`polyadic._util.model_files` has the format of the file, `polyadic.core.persist` that of preprocessing.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from polyadic._util import model_files
from polyadic._util.torch_state import plain_torch
from polyadic._util.version import __version__
from polyadic.core import persist
from polyadic.core.completion import Prior
from polyadic.core.step import Statistics
from polyadic.data.reading import Reading
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.readout import PREFIX, FittedReadout

__all__ = ["MODEL_FILE", "arrays_and_header", "load"]

MODEL_FILE = "model.safetensors"
"""Name of the model file in a repository of the Hugging Face hub."""

_HUB = "hf://"
_RESOLVED = ("solver_", "batch_size_", "nonnegative_", "compression_", "attempt_", "converged_")
"""Values of "auto" parameters and the outcome of the fit, stored for information only."""


# ---------------------------------------------------------------------- writing


def arrays_and_header(model: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what `load` builds a fitted `CPD`, `ATD`, `SALS` or `GRSALS` from."""
    model._check_rank()
    arrays = {f"factors.{mode}": factor for mode, factor in enumerate(model.factors_)}
    if model._memory is not None:
        arrays |= {"memory.Y": model._memory.Y.numpy(), "memory.S": model._memory.S.numpy()}
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise PolyadicError("the model's bases contain NaN or infinity: fit it again")
    readout, replicability = getattr(model, "readout_", None), getattr(model, "replicability_", None)
    components, probe = getattr(model, "components_", None), None
    for part in (readout, getattr(model, "prior_", None), components):
        arrays |= {} if part is None else part.arrays()
    if hasattr(model, "probe_"):
        packed, probe = model.probe_.pack()
        arrays |= packed
    known = {"device": str(model.device), "random_state": int(model.seed_)}
    parameters = {name: persist.encode(known.get(name, value)) for name, value in model.get_params(deep=False).items()}
    header = {
        "version": __version__,
        "estimator": type(model).__name__,
        "parameters": parameters,
        "tensorize": persist.encode(model.tensorize_),
        "sample_shape": [int(size) for size in model._sample_shape],
        "feature_names": [str(name) for name in getattr(model, "feature_names_in_", [])],
        "seed": int(model.seed_),
        "fs": model.fs_,
        "channels": list(model.channel_names_),
        "units": list(model.units_),
        "reading": model.reading_,
        "typical": model.typical_,
        "history": model.history_,
        "n_seen": int(model._n_seen),
        "fit_seconds": float(getattr(model, "fit_seconds_", 0.0)),
        "resolved": {name: getattr(model, name, None) for name in _RESOLVED},
        "readout": None if readout is None else persist.encode(readout.readout),
        "probe": probe,
        "replicability": None if replicability is None else replicability.to_dict(),
        "components": None if components is None else components.to_dict(),
    }
    return arrays, header


# ---------------------------------------------------------------------- reading


@plain_torch()
def load(path: str | os.PathLike[str]) -> Any:
    """Load a model from a file written by `save`: `CPD`, `ATD`, `SALS` or `GRSALS`.

    Parameters
    ----------
    path : the file, or "hf://user/repository" for a model on the Hugging Face hub (needs huggingface_hub)

    Returns
    -------
    the fitted estimator

    Raises
    ------
    ModelFileError : if the file is damaged, of another version, or not a model

    Examples
    --------
    >>> import tempfile
    >>> from polyadic import CPD
    >>> model = CPD(rank=2, tensorize=None, max_sweeps=1).fit(np.random.default_rng(0).normal(size=(20, 3, 4)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/m.safetensors")
    ...     same = load(f"{folder}/m.safetensors")
    >>> np.array_equal(same.factors_[0], model.factors_[0])
    True
    """
    from polyadic import estimators

    arrays, header = model_files.read(_downloaded(path) if str(path).startswith(_HUB) else path)
    if "moments" in header:
        raise ModelFileError(f"{path} holds sums over windows, not a model: polyadic fit --moments fits one to them")
    try:
        kinds = [estimators.CPD]
        for known in kinds:
            kinds += known.__subclasses__()
        kind = {kind.__name__: kind for kind in reversed(kinds)}.get(header["estimator"])
        if kind is None:
            raise ModelFileError(
                f"the file contains a model of unknown type {header['estimator']!r}: import the module that defines it "
                "before loading"
            )
        model = kind(**{name: persist.decode(value) for name, value in header["parameters"].items()})
        model.tensorize_ = persist.decode_tensorizer(header["tensorize"])
        _restore_input(model, header)
        if not all(array.dtype.kind != "f" or np.isfinite(array).all() for array in arrays.values()):
            raise ModelFileError("the file's arrays hold NaN or infinity")
        _restore_bases(model, arrays, header)
        _restore_parts(model, arrays, header)
    except ModelFileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, RuntimeError) as error:
        raise ModelFileError(f"{path} has a damaged header: {error!r}, or arrays that do not fit it") from error
    return model


def _restore_input(model: Any, header: dict[str, Any]) -> None:
    """Set what is known of the windows of the fit."""
    model._sample_shape = tuple(int(size) for size in header["sample_shape"])
    if model.tensorize_ is not None:
        model.tensorize_.check(model._sample_shape)
    model.n_features_in_ = model._sample_shape[0]
    columns, names, units = (tuple(map(str, header[name])) for name in ("feature_names", "channels", "units"))
    if any(len(values) not in (0, model.n_features_in_) for values in (columns, names, units)):
        raise ModelFileError(f"the file's names and units {columns + names + units} do not match its channels")
    if columns:
        model.feature_names_in_ = np.asarray(columns, dtype=object)
    model.fs_ = None if header["fs"] is None else float(header["fs"])
    model.channel_names_, model.units_ = names, units
    model.reading_ = header["reading"] and Reading.from_json(header["reading"]).to_json()
    model.typical_ = dict(header["typical"])
    model.seed_ = int(header["seed"])


def _restore_bases(model: Any, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Set the bases and how they were fitted."""
    model._check_parameters()
    count = sum(name.startswith("factors.") for name in arrays)
    model.factors_ = [arrays[f"factors.{mode}"] for mode in range(count)]
    known = model._sample_shape if model.tensorize_ is None else model.tensorize_.shape(*model._sample_shape)
    expected = [(size, model.rank) for size in known or (len(factor) for factor in model.factors_)]
    shapes = [factor.shape for factor in model.factors_]
    if shapes != expected or not expected:
        raise ModelFileError(f"the file's factors have shapes {shapes}, but its header calls for {expected}")
    model._memory = None
    if "memory.Y" in arrays:
        Y, S = arrays["memory.Y"], arrays["memory.S"]
        if Y.shape != (model.rank, *(size for size, _ in shapes)) or S.shape != (model.rank, model.rank):
            raise ModelFileError(f"the file's solver memory has shapes {Y.shape} and {S.shape}, which do not match")
        model._memory = Statistics(torch.from_numpy(Y), torch.from_numpy(S))
    model.history_ = {str(name): [float(v) for v in values] for name, values in header["history"].items()}
    model._n_seen, model.n_sweeps_ = int(header["n_seen"]), len(model.history_["loss"])
    model.fit_seconds_ = float(header["fit_seconds"])
    for name in _RESOLVED:
        setattr(model, name, header["resolved"][name])


def _restore_parts(model: Any, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Set what was fitted to the coefficients: readout, prior, probe, replicability, components for people."""
    n_statistics = 0
    if header["readout"] is not None:
        count = 0 if model.tensorize_ is None else len(model._statistic_names())
        model.readout_ = FittedReadout.from_arrays(persist.decode(header["readout"]), arrays, model.rank, count)
        n_statistics = model.readout_.n_statistics
    elif any(name.startswith(PREFIX) for name in arrays):
        raise ModelFileError("the file has arrays of a readout, but no description of one")
    elif model.readout is None:
        model.readout_ = None
    frequencies = len(model.factors_[1]) if len(model.factors_) > 1 else 0
    prior = Prior.from_arrays(arrays, model.rank, n_statistics, model._sample_shape[0], frequencies)
    if prior is not None:
        model.prior_ = prior
    if header["probe"] is not None:
        from polyadic.evaluate.probe import Probe

        model.probe_ = Probe.unpack(arrays, header["probe"], model._n_features_out)
    if header["replicability"] is not None:
        from polyadic.explain.replicability import Replicability

        model.replicability_ = Replicability.from_dict(header["replicability"], model.rank)
    if header["components"] is not None:
        from polyadic.explain.components import Components

        model.components_ = Components.restore(model, arrays, header["components"])


def _downloaded(address: Any) -> str:
    """Return the path of a model of the Hugging Face hub, downloaded unless it is in the cache."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise PolyadicError(f"{address} needs huggingface_hub: pip install 'polyadic[hub]'") from error
    repository = str(address).removeprefix(_HUB)
    if repository.count("/") != 1:
        raise PolyadicError(f"a model on the hub is hf://user/repository, but the address is {address}")
    return str(hf_hub_download(repository, MODEL_FILE))
