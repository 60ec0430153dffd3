"""Checkpoints of a fit: written atomically, checked by checksum, the last two kept; a fit goes on from them to the bit.

    checkpoint-00000007    a line that says what it is, a line with the SHA-256 of the rest, then the rest: a file in
                           safetensors' format with the bases, what the solver remembers, and how far the fit had come

A folder holds the checkpoints of one fit. Nothing of a file is looked at before its checksum fits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes
from scipy import sparse
from torch import Tensor

from polyadic.als import ALONE, TERMS, Progress, State, Statistics, Team
from polyadic.errors import CheckpointError, PolyadicError
from polyadic.files import open_atomically, sync_folder
from polyadic.inputs import Samples
from polyadic.persist import encode

__all__ = ["Checkpoints", "check_alike", "data_fingerprint", "describe", "found", "remove"]

SCHEMA = 1
"""Version of the layout. Readers refuse a newer one."""

_MAGIC = b"polyadic checkpoint\n"
_PREFIX = "checkpoint-"
_KEY = "polyadic"
_KEPT = 2
_SAMPLED = 64
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


# ---------------------------------------------------------------- fingerprints


def describe(value: Any) -> Any:
    """A setting as JSON, for comparing: arrays by shape and checksum, functions by name, all else by what it holds.

    Examples
    --------
    >>> describe(0.5), describe(np.zeros((2, 2)))["shape"]
    (0.5, [2, 2])
    """
    if sparse.issparse(value):
        matrix = sparse.csr_array(value)
        return {"type": "sparse", "parts": [describe(part) for part in (matrix.data, matrix.indices, matrix.indptr)]}
    if isinstance(value, np.ndarray | Tensor):
        return {"type": "array", "shape": list(value.shape), "sha256": _checksum(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__qualname__, **fields}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return encode(value)


def _checksum(*arrays: np.ndarray | Tensor | None) -> str:
    """SHA-256 of the numbers of some arrays."""
    found = hashlib.sha256()
    for array in arrays:
        if isinstance(array, Tensor):
            array = array.detach().cpu().contiguous().view(torch.uint8).numpy()  # some types numpy does not know
        if array is not None:
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def data_fingerprint(samples: Samples) -> dict[str, Any]:
    """What tells samples from others without reading all: shape, type, some of them, and what a store says of itself.

    Examples
    --------
    >>> data_fingerprint(Samples(np.zeros((3, 4, 5))))["shape"]
    [3, 4, 5]
    """
    ids = torch.linspace(0, len(samples) - 1, min(len(samples), _SAMPLED), dtype=torch.float64).long()
    sampled, known = _checksum(*samples.read(ids)), dict(getattr(samples.data, "fingerprint", {}))
    return {"shape": list(samples.shape), "dtype": str(samples.dtype), **known, "sampled windows": sampled}


def _differences(then: Any, now: Any, name: str = "") -> Iterator[str]:
    """A sentence for each entry that differs."""
    if isinstance(then, dict) and isinstance(now, dict) and then.get("type") == now.get("type"):
        for key in sorted(then.keys() | now.keys()):
            yield from _differences(then.get(key), now.get(key), f"{name} {key}".strip())
    elif then != now:
        yield f"{name} was {json.dumps(then)} and is {json.dumps(now)} now"


def check_alike(team: Team, fingerprint: dict[str, Any]) -> None:
    """Refuse processes that were given different settings or data.

    Examples
    --------
    >>> check_alike(ALONE, {"rank": 3})
    """
    plain = json.loads(json.dumps(fingerprint))
    differences = list(_differences(team.once(lambda: plain), plain))
    if team.sum(torch.tensor(float(bool(differences)))) > 0:
        said = f"process {team.rank} has others: {'; '.join(differences)}" if differences else "some process has others"
        raise PolyadicError(f"all processes of a fit must have the same settings and data as the first, but {said}")


# ----------------------------------------------------------------------- files


def _in_memory_order(tensor: Tensor) -> tuple[np.ndarray, list[int]]:
    """A tensor as an array whose axes lie as they do in memory, and which axis each of them is.

    Sums come out another way to the last bit if the same numbers lie otherwise in memory.
    """
    axes = sorted(range(tensor.ndim), key=tensor.stride().__getitem__, reverse=True)
    return tensor.detach().cpu().permute(axes).contiguous().numpy(), axes


def _restored(array: np.ndarray, axes: list[int]) -> Tensor:
    if sorted(axes) != list(range(array.ndim)):
        raise ValueError(f"axes {axes} of an array with {array.ndim}")
    # Copied, for memory that torch has not made may begin at odd addresses, where products round otherwise.
    return torch.from_numpy(array).clone().permute([axes.index(axis) for axis in range(array.ndim)])


def _packed(progress: Progress, state: State, fingerprint: dict[str, Any]) -> tuple[bytes, bytes]:
    """The first lines of a checkpoint file, and the rest."""
    tensors = {f"factors.{mode}": factor for mode, factor in enumerate(state.factors)}
    tensors |= {"total": progress.total}
    if state.memory is not None:
        tensors |= {"memory.Y": state.memory.Y, "memory.S": state.memory.S}
    tensors |= {name: value for name in ("coefficients", "energy") if (value := getattr(state, name)) is not None}
    arrays, axes = {}, {}
    for name, tensor in tensors.items():
        arrays[name], axes[name] = _in_memory_order(tensor)
    where = {name: getattr(progress, name) for name in ("history", "batch", "bases", "seconds")}
    header = {"schema": SCHEMA, "fingerprint": fingerprint, "axes": axes, "progress": where}
    content = to_bytes(arrays, metadata={_KEY: json.dumps(header)})
    return _MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n", content


def _unpacked(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the header of a checkpoint file that fits its checksum.

    Raises
    ------
    CheckpointError : that says what is wrong with it
    """
    head = len(_MAGIC)
    if content[:head] != _MAGIC:
        raise CheckpointError("it is not a checkpoint, or its beginning is damaged")
    checksum, body = content[head : head + 65], content[head + 65 :]
    if hashlib.sha256(body).hexdigest().encode() + b"\n" != checksum:
        raise CheckpointError("its checksum does not fit")
    try:
        size = int.from_bytes(body[:8], "little")
        header = json.loads(json.loads(body[8 : 8 + size])["__metadata__"][_KEY])
        arrays = from_bytes(body)
        schema = header["schema"]
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise CheckpointError(f"its content cannot be read: {error!r}") from error
    if not isinstance(schema, int) or schema < 1:
        raise CheckpointError(f"its schema must be a whole number, but is {schema!r}")
    if schema > SCHEMA:
        raise CheckpointError(f"it has schema {schema}, but this version of polyadic reads up to {SCHEMA}: upgrade")
    return arrays, header


def _state(arrays: dict[str, np.ndarray], header: dict[str, Any], new: State) -> tuple[Progress, State]:
    """What `_packed` was given, checked to be of the shapes of a new fit's state."""
    try:
        tensors = {name: _restored(array, header["axes"][name]) for name, array in arrays.items()}
        factors = [tensors[f"factors.{mode}"] for mode in range(len(new.factors))]
        memory = Statistics(tensors["memory.Y"], tensors["memory.S"]) if "memory.Y" in tensors else None
        progress = Progress(total=tensors["total"], **header["progress"])
        _check_progress(progress)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"its parts do not fit together: {error!r}") from error
    _check_tensors(tensors, new)
    return progress, State(factors, memory, tensors.get("coefficients"), tensors.get("energy"))


def _check_tensors(tensors: dict[str, Tensor], new: State) -> None:
    rank, sizes = new.factors[0].shape[1], [len(factor) for factor in new.factors]
    expected: dict[str, tuple[int, ...]] = {f"factors.{mode}": (size, rank) for mode, size in enumerate(sizes)}
    expected |= {"memory.Y": (rank, *sizes), "memory.S": (rank, rank), "energy": (rank,), "total": (len(TERMS),)}
    for name, tensor in tensors.items():
        shape, wide = tuple(tensor.shape), name in ("memory.S", "energy", "total")
        needed = (*shape[:1], rank) if name == "coefficients" else expected.get(name)
        if shape != needed or tensor.dtype != (torch.float64 if wide else new.factors[0].dtype):
            raise CheckpointError(f"its {name} has shape {shape} and type {tensor.dtype}, which do not fit")


def _check_progress(progress: Progress) -> None:
    lengths = {len(progress.history[name]) for name in Progress().history}
    numbers = [progress.batch, progress.bases, progress.seconds, *chain(*progress.history.values())]
    if len(lengths) != 1 or progress.batch != int(progress.batch) or progress.batch < 0:
        raise ValueError(f"batch {progress.batch!r}, sweeps {lengths}")
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise TypeError("its history must hold finite numbers")


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, from the oldest to the newest.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("checkpoint-00000010", "checkpoint-00000009", "notes.txt"):
    ...         Path(folder, name).touch()
    ...     [path.name for path in found(Path(folder))]
    ['checkpoint-00000009', 'checkpoint-00000010']
    """
    there = [path for path in folder.iterdir() if path.name.removeprefix(_PREFIX).isdecimal()]
    return sorted(there, key=lambda path: int(path.name.removeprefix(_PREFIX)))


def remove(folder: Path) -> None:
    """Remove the checkpoints in a folder, and the folder unless it holds anything else.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "kept").mkdir()
    ...     remove(Path(folder, "kept"))
    ...     Path(folder, "kept").exists()
    False
    """
    for path in found(folder):
        path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


class Checkpoints:
    """The checkpoints of one fit in a folder: `load` the last, then hand the object to `als.fit` as its `on_step`.

    As a context it holds back Ctrl-C, SIGTERM and SIGHUP until the next step is done, writes a checkpoint, and lets
    them through; a second Ctrl-C is not held back.

    Parameters
    ----------
    folder : made if it is not there
    fingerprint : what JSON can hold, of settings and data; a checkpoint with another one is refused
    every : seconds from one checkpoint to the next; 0 for one after every step. One is always written at the end
    resume : whether to go on from a checkpoint that is there already; without, such a folder is refused
    team, n_views : the processes that fit together, of which the first reads and writes, and the views of a window
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        fingerprint: dict[str, Any],
        every: float = 60.0,
        resume: bool = False,
        team: Team = ALONE,
        n_views: int = 1,
    ) -> None:
        self.folder, self.every, self.team, self.n_views = Path(folder), every, team, n_views
        self.fingerprint = json.loads(json.dumps(fingerprint))
        self._written = time.monotonic()
        self._damaged: list[Path] = []
        self._caught: int | None = None
        self._handlers: dict[int, Any] = {}
        team.once(lambda: self._open(resume))

    def _open(self, resume: bool) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            there = found(self.folder)
            with tempfile.TemporaryFile(dir=self.folder):
                pass  # what cannot be written to is better known now than after the first sweeps
        except OSError as error:
            raise CheckpointError(f"checkpoint must be a folder to write to, but {self.folder}: {error}") from error
        if there and not resume:
            raise CheckpointError(
                f"{self.folder} holds checkpoints of a fit already ({there[-1].name}): resume it (--resume, or "
                "resume=True), remove the folder, or name another"
            )

    # ----------------------------------------------------------------- reading

    def load(self, new: State) -> tuple[Progress, State] | None:
        """Where the fit stood at the last sound checkpoint, or None if there is none at all.

        Parameters
        ----------
        new : the state of a fit that begins, for the shapes, types and device

        Raises
        ------
        CheckpointError : if it is of other settings or other data, or if all are damaged
        """
        loaded = self.team.once(lambda: self._load(new))
        if loaded is None:
            return None
        progress, state = loaded
        device = new.factors[0].device
        progress.total = progress.total.to(device)
        return progress, self.team.parted(_moved(state, device), self.n_views)

    def _load(self, new: State) -> tuple[Progress, State] | None:
        reasons = []
        for path in reversed(found(self.folder)):
            try:
                arrays, header = _unpacked(path.read_bytes())
                self._check(path, header)
                loaded = _state(arrays, header, new)
            except _OtherFitError:
                raise
            except (CheckpointError, OSError) as error:
                self._damaged.append(path)
                reasons.append(f"{path.name}: {error}")
                continue
            if reasons:
                warnings.warn(
                    f"a damaged checkpoint was passed over, the fit goes on from {path.name} ({'; '.join(reasons)})",
                    RuntimeWarning,
                    stacklevel=4,
                )
            return loaded
        if reasons:
            raise CheckpointError(f"none of the checkpoints in {self.folder} can be used: {'; '.join(reasons)}")
        return None

    def _check(self, path: Path, header: dict[str, Any]) -> None:
        differences = list(_differences(header.get("fingerprint"), self.fingerprint))
        if differences:
            raise _OtherFitError(f"{path} is of another fit: {'; '.join(differences)}")

    # ----------------------------------------------------------------- writing

    def __call__(self, progress: Progress, state: State) -> None:
        """Write a checkpoint if it is time for one; let a signal through that was held back."""
        due = progress.done or time.monotonic() - self._written >= self.every
        # One process's clock and signals are those of all, or some would write and others go on.
        flags = torch.tensor([due, *(self._caught == number for number in _SIGNALS)], dtype=torch.float64)
        due, *caught = (bool(flag) for flag in self.team.sum(flags))
        if due or any(caught):
            whole = self.team.whole(state, self.n_views)
            self.team.once(lambda: self.save(progress, whole))
            self._written = time.monotonic()
        if any(caught):
            self._release()
            signal.raise_signal(next(number for number, came in zip(_SIGNALS, caught, strict=True) if came))

    def save(self, progress: Progress, state: State) -> None:
        """Write a checkpoint now, and remove those before the last two.

        Raises
        ------
        CheckpointError : if it cannot be written; those that were there stay
        """
        content = _packed(progress, state, self.fingerprint)
        try:
            there = found(self.folder)
            number = int(there[-1].name.removeprefix(_PREFIX)) + 1 if there else 1
            with open_atomically(self.folder / f"{_PREFIX}{number:08d}") as file:
                file.writelines(content)
            sync_folder(self.folder)
            sound = [path for path in there if path not in self._damaged]
            # What a writer that was killed left behind goes, too.
            for old in [*sound[: 1 - _KEPT], *self._damaged, *self.folder.glob(f".{_PREFIX}*.tmp")]:
                old.unlink(missing_ok=True)
        except OSError as error:
            left = self._left()
            last = f"; {left[-1].name} is as it was" if left else ""
            raise CheckpointError(f"a checkpoint could not be written to {self.folder}: {error}{last}") from error

    def _left(self) -> list[Path]:
        try:
            return found(self.folder)
        except OSError:
            return []

    # ----------------------------------------------------------------- signals

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # What is ignored, as SIGHUP under nohup, stays ignored; a handler that is not Python's cannot be put back.
            heard = [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
            self._handlers = {number: signal.signal(number, self._hold) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        caught = self._caught
        self._release()
        if caught is not None:
            signal.raise_signal(caught)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._caught is not None:
            self._release()
            signal.raise_signal(number)
        self._caught = number

    def _release(self) -> None:
        """Signals as they were before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers, self._caught = {}, None


def _moved(state: State, device: torch.device) -> State:
    """A state on another device."""
    memory = None if state.memory is None else Statistics(state.memory.Y.to(device), state.memory.S.to(device))
    rows, energy = (None if tensor is None else tensor.to(device) for tensor in (state.coefficients, state.energy))
    return State([factor.to(device) for factor in state.factors], memory, rows, energy)


class _OtherFitError(CheckpointError):
    """A sound checkpoint of other settings or other data: there is no falling back from that."""
