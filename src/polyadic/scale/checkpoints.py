"""Checkpoints of a fit: one file, replaced atomically, from which the fit resumes bit-identically.

A default fit saves the sums of its passes over the data; its sweeps take little time and are repeated. Other fits save
their state after a sweep.

The file has the format of a model file: arrays with a JSON header, verified by checksum. Its header describes settings
and data, and a fit with others is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from polyadic._util import model_files
from polyadic._util.files import check_output
from polyadic.core.passes import Passes
from polyadic.core.solve import Progress
from polyadic.core.step import State, Statistics
from polyadic.data.batches import Samples
from polyadic.errors import CheckpointError, ModelFileError

__all__ = ["Checkpoints", "data_fingerprint", "differences", "where_resumed"]

_SAMPLED = 64
_KINDS = {kind.__name__: kind for kind in (Progress, State, Statistics)}


def data_fingerprint(samples: Samples) -> dict[str, Any]:
    """Describe samples without reading all: shape, type, checksum of some, and the fingerprint of a store."""
    # A window of a Dask array takes as long as its chunk.
    chunked = getattr(getattr(samples.data, "_samples", samples.data), "chunked", False)
    count = min(len(samples), 2 if chunked else _SAMPLED)
    ids = torch.linspace(0, len(samples) - 1, count, dtype=torch.float64).long()
    sampled = samples.read(ids).cpu().contiguous().view(torch.uint8).numpy()  # numpy lacks some types
    known = dict(getattr(samples.data, "fingerprint", {}))
    digest = hashlib.sha256(sampled.tobytes()).hexdigest()
    return {"shape": list(samples.shape), "dtype": str(samples.dtype), **known, "sampled windows": digest}


def differences(then: Any, now: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the name and the two values of each entry that differs.

    Examples
    --------
    >>> list(differences({"rank": 3, "alpha": 1.0}, {"rank": 4, "alpha": 1.0}))
    [('rank', '3', '4')]
    """
    if isinstance(then, dict) and isinstance(now, dict) and then.get("type") == now.get("type"):
        for key in sorted(then.keys() | now.keys()):
            yield from differences(then.get(key), now.get(key), f"{name} {key}".strip())
    elif then != now:
        yield name, json.dumps(then), json.dumps(now)


@dataclass
class Checkpoints:
    """The checkpoint of one fit: call `load` before the fit, and the object itself after every sweep.

    As a context manager it also writes the last complete sweep when the fit ends or is interrupted by Ctrl-C.

    Parameters
    ----------
    path : the file
    fingerprint : JSON description of settings and data; a checkpoint with a different one is refused
    every : seconds between checkpoints; 0 for one after every sweep
    resume : whether to resume from an existing checkpoint; otherwise an existing file is refused
    """

    path: str | os.PathLike[str]
    fingerprint: dict[str, Any]
    every: float = 60.0
    resume: bool = False
    _written: float = field(default_factory=time.monotonic, init=False)
    _unsaved: tuple[str, list[Tensor]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # The process may change its working directory during the fit.
        self.path = Path(self.path).absolute()
        self.fingerprint = json.loads(json.dumps(self.fingerprint))
        check_output(self.path)  # fail now rather than after the first sweeps
        if self.path.exists() and not self.resume:
            raise CheckpointError(
                f"{self.path} already contains the checkpoint of a fit: resume it (--resume, or resume=True), remove "
                "the file, or choose another"
            )

    def load(self, device: torch.device) -> Progress | None:
        """Load the progress of the sweeps; None if there is no checkpoint. Raises CheckpointError as `read`."""
        arrays, header = self.read()
        if not header:
            return None

        def build(value: dict[str, Any]) -> Any:
            if "tensor" in value:
                number = value["tensor"]
                axes = np.argsort(header["axes"][number]).tolist()
                return torch.from_numpy(arrays[str(number)]).permute(axes).to(device)
            return _KINDS[value.pop("type")](**value) if "type" in value else value

        progress: Progress = json.loads(header["progress"], object_hook=build)
        return progress

    def load_passes(self, passes: Passes) -> None:
        """Set the passes of a default fit to those of the checkpoint, if there is one."""
        arrays, header = self.read()
        if header:
            passes.restore(arrays, header["passes"])

    def save_passes(self, passes: Passes, now: bool = False) -> None:
        """Write the sums of the passes of a default fit if a checkpoint is due, or `now`."""
        if now or time.monotonic() - self._written >= self.every:
            arrays, header = passes.arrays()
            self.write(arrays, {"passes": header})

    def read(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Read arrays and header of the checkpoint; both are empty if there is none.

        Raises
        ------
        CheckpointError : if the file is damaged, or belongs to other settings or data
        """
        try:
            arrays, header = model_files.read(self.path)
        except FileNotFoundError:
            return {}, {}
        except ModelFileError as error:
            raise CheckpointError(f"the fit cannot resume: {error}") from error
        if "fingerprint" not in header:
            raise CheckpointError(f"{self.path} is a model file, not the checkpoint of a fit: choose another file")
        changed = differences(header["fingerprint"], self.fingerprint)
        if words := "; ".join(f"{name} was {then} and is {now} now" for name, then, now in changed):
            raise CheckpointError(f"{self.path} belongs to another fit: {words}")
        return arrays, header

    def __call__(self, progress: Progress) -> None:
        """Write a checkpoint if one is due."""
        tensors: list[Tensor] = []

        def describe_part(value: Any) -> dict[str, Any]:
            if not isinstance(value, Tensor):
                return {"type": type(value).__name__, **vars(value)}
            tensors.append(value)
            return {"tensor": len(tensors) - 1}

        # The fit goes on to modify lists and states, but replaces the tensors within them.
        self._unsaved = json.dumps(progress, default=describe_part), tensors
        if time.monotonic() - self._written >= self.every:
            self.save()

    def save(self) -> None:
        """Write the last complete sweep, if it is not written yet."""
        if self._unsaved is None:
            return
        (progress, tensors), self._unsaved = self._unsaved, None
        # In the order of the axes in memory: products round differently in another.
        axes = [np.argsort(np.negative(tensor.stride()), kind="stable").tolist() for tensor in tensors]
        ordered = (tensor.permute(order) for tensor, order in zip(tensors, axes, strict=True))
        arrays = {str(number): tensor.contiguous().cpu().numpy() for number, tensor in enumerate(ordered)}
        self.write(arrays, {"axes": axes, "progress": progress})

    def write(self, arrays: dict[str, np.ndarray], content: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        try:
            model_files.write(self.path, arrays, {"fingerprint": self.fingerprint, **content})
        except OSError as error:
            raise CheckpointError(f"a checkpoint could not be written to {self.path}: {error}") from error
        self._written = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, KeyboardInterrupt):
            self.save()


def where_resumed(path: Path) -> str:
    """Return where a fit resumes from a checkpoint, as one line; "" if the file is no checkpoint."""
    try:
        header = model_files.read(path)[1]
        if "passes" in header:
            return f"resuming from {path.name}: after {header['passes']['done']:,} windows of a pass over the data"
        return f"resuming from {path.name}: after sweep {len(json.loads(header['progress'])['history']['loss'])}"
    except FileNotFoundError:
        return f"no checkpoint {path.name}: starting anew"
    except (ModelFileError, KeyError):  # the fit says what is wrong
        return ""
