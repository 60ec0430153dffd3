"""Checkpoints of a fit: written atomically, verified by checksum, the last two kept. Fits resume bit-identically.

    checkpoint-00000007    a line that identifies the format, a line with the SHA-256 of the rest, then a safetensors
                           file with the bases, the solver's memory, the progress of the fit, and the results of
                           earlier restarts that it needs

A folder contains the checkpoints of one fit. A file is parsed only after its checksum has been verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import signal
import tempfile
import threading
import time
import warnings
from itertools import chain
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes
from torch import Tensor

from polyadic._util.files import LOCKED, check_regular_file, lock_folder, open_atomically, sync_folder
from polyadic.core.step import State, Statistics
from polyadic.core.terms import Term
from polyadic.engine.loop import FitProgress
from polyadic.engine.messages import in_memory_order, restore_layout
from polyadic.errors import CheckpointError
from polyadic.scale.fingerprints import differences
from polyadic.team import ALONE, Team

__all__ = ["Checkpoints", "list_checkpoints", "remove_checkpoints"]

SCHEMA = 3
"""Version of the format. Other versions are refused, because the state needed to resume has changed."""

_MAGIC = b"polyadic checkpoint\n"
_PREFIX = "checkpoint-"
_KEY = "polyadic"
_BEST = "best."
_OF_AN_ATTEMPT = re.compile(r"^(best|attempt\.\d+)\.")
_PROGRESS = ("history", "batch", "bases", "seconds", "finished", "best_history", "spent")
_KEPT = 2
_NAME = re.compile(rf"{_PREFIX}\d{{8,}}")
_UNFINISHED = re.compile(rf"\.{_PREFIX}\d{{8,}}\..*\.tmp")
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


# ----------------------------------------------------------------------- files


def _to_bytes(progress: FitProgress, state: State, fingerprint: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the first two lines of a checkpoint file, and the remaining content."""
    tensors = {"total": progress.total, **_tensors_of(state)}
    if progress.best is not None:
        tensors |= {_BEST + name: tensor for name, tensor in _tensors_of(progress.best).items()}
    for number, bases in enumerate(progress.bases_of):
        tensors |= {f"attempt.{number}.factors.{mode}": basis for mode, basis in enumerate(bases)}
    arrays, axes = {}, {}
    for name, tensor in tensors.items():
        arrays[name], axes[name] = in_memory_order(tensor)
    where = {name: getattr(progress, name) for name in _PROGRESS}
    header = {"schema": SCHEMA, "fingerprint": fingerprint, "axes": axes, "progress": where}
    content = to_bytes(arrays, metadata={_KEY: json.dumps(header)})
    return _MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n", content


def _tensors_of(state: State) -> dict[str, Tensor]:
    tensors = {f"factors.{mode}": factor for mode, factor in enumerate(state.factors)}
    if state.memory is not None:
        tensors |= {"memory.Y": state.memory.Y, "memory.S": state.memory.S}
    return tensors | {name: value for name in ("coefficients", "energy") if (value := getattr(state, name)) is not None}


def _state_of(tensors: dict[str, Tensor], modes: int) -> State:
    """Build the state from the output of `_tensors_of`."""
    factors = [tensors[f"factors.{mode}"] for mode in range(modes)]
    memory = Statistics(tensors["memory.Y"], tensors["memory.S"]) if "memory.Y" in tensors else None
    return State(factors, memory, tensors.get("coefficients"), tensors.get("energy"))


def _from_bytes_checked(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Verify the checksum of a checkpoint file, and return its arrays and header.

    Raises
    ------
    CheckpointError : if the file is damaged or of another version
    """
    head = len(_MAGIC)
    if content[:head] != _MAGIC:
        raise CheckpointError("it is not a checkpoint, or its beginning is damaged")
    checksum, body = content[head : head + 65], content[head + 65 :]
    if hashlib.sha256(body).hexdigest().encode() + b"\n" != checksum:
        raise CheckpointError("its checksum does not match")
    try:
        size = int.from_bytes(body[:8], "little")
        header = json.loads(json.loads(body[8 : 8 + size])["__metadata__"][_KEY])
        arrays = from_bytes(body)
        schema = header["schema"]
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise CheckpointError(f"its content cannot be read: {error!r}") from error
    if not isinstance(schema, int) or schema < 1:
        raise CheckpointError(f"its schema must be a whole number, but is {schema!r}")
    if schema != SCHEMA:
        advice = "upgrade" if schema > SCHEMA else "finish the fit with the version that started it, or start again"
        raise CheckpointError(f"it has schema {schema}, but this version of polyadic only reads {SCHEMA}: {advice}")
    return arrays, header


def _state(arrays: dict[str, np.ndarray], header: dict[str, Any], new: State) -> tuple[FitProgress, State]:
    """Restore progress and state, and check their shapes against the state of a new fit."""
    try:
        tensors = {name: restore_layout(array, header["axes"][name]) for name, array in arrays.items()}
        state = _state_of(tensors, len(new.factors))
        progress = FitProgress(total=tensors["total"], **header["progress"])
        _check_progress(progress)
        best = {name.removeprefix(_BEST): tensor for name, tensor in tensors.items() if name.startswith(_BEST)}
        if bool(best) != bool(progress.finished):
            raise ValueError(f"{len(progress.finished)} attempts before this one, {len(best)} arrays of the best")
        progress.best = _state_of(best, len(new.factors)) if best else None
        kept = sum(name.startswith("attempt.") for name in tensors) // len(new.factors)
        if kept not in (0, progress.attempt):
            raise ValueError(f"{progress.attempt} attempts before this one, but bases of {kept}")
        progress.bases_of = [
            [tensors[f"attempt.{number}.factors.{mode}"] for mode in range(len(new.factors))] for number in range(kept)
        ]
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"its parts are inconsistent: {error!r}") from error
    _check_tensors(tensors, new)
    return progress, state


def _check_tensors(tensors: dict[str, Tensor], new: State) -> None:
    rank, sizes = new.factors[0].shape[1], [len(factor) for factor in new.factors]
    expected: dict[str, tuple[int, ...]] = {f"factors.{mode}": (size, rank) for mode, size in enumerate(sizes)}
    expected |= {"memory.Y": (rank, *sizes), "memory.S": (rank, rank), "energy": (rank,), "total": (len(Term),)}
    for whole, tensor in tensors.items():
        name = _OF_AN_ATTEMPT.sub("", whole)
        shape, wide = tuple(tensor.shape), name in ("memory.S", "energy", "total")
        needed = (*shape[:1], rank) if name == "coefficients" else expected.get(name)
        if shape != needed or tensor.dtype != (torch.float64 if wide else new.factors[0].dtype):
            raise CheckpointError(f"its {whole} has shape {shape} and type {tensor.dtype}, which do not match")


def _check_progress(progress: FitProgress) -> None:
    lengths = {len(progress.history[name]) for name in FitProgress().history}
    histories = (progress.history, progress.best_history)
    numbers = [progress.batch, progress.bases, progress.seconds, progress.spent, *progress.finished]
    numbers += chain(*(values for history in histories for values in history.values()))
    if len(lengths) != 1 or progress.batch != int(progress.batch) or progress.batch < 0:
        raise ValueError(f"batch {progress.batch!r}, sweeps {lengths}")
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise TypeError("its history must hold finite numbers")
    # The term of the bases is part of the loss, so it is never much larger than a loss.
    largest = max([*progress.history["loss"], float(progress.total.abs().sum()), 1.0])
    past = {len(progress.best_history[name]) for name in FitProgress().history}
    if len(past) != 1 or bool(progress.finished) == (past == {0}):
        raise ValueError(f"attempts {progress.finished!r}, sweeps of the best {past}")
    times = progress.seconds, progress.spent
    if not 0 <= progress.bases <= 1e6 * largest or not 0 <= min(times) <= max(times) <= 1e9 or progress.batch > 2**53:
        raise ValueError(f"bases {progress.bases!r}, seconds {times!r}, batch {progress.batch!r}")


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, from the oldest to the newest.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("checkpoint-00000010", "checkpoint-00000009", "notes.txt", "20261101"):
    ...         Path(folder, name).touch()
    ...     [path.name for path in list_checkpoints(Path(folder))]
    ['checkpoint-00000009', 'checkpoint-00000010']
    """
    there = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(there, key=lambda path: int(path.name.removeprefix(_PREFIX)))


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints in a folder, and the folder itself if it is then empty.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "kept").mkdir()
    ...     remove_checkpoints(Path(folder, "kept"))
    ...     Path(folder, "kept").exists()
    False
    """
    for path in list_checkpoints(folder):
        if path.is_file():
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


class Checkpoints:
    """The checkpoints of one fit in a folder: `load` the last one, then use this as the `on_step` of `engine.loop.Fit`.

    As a context manager it locks the folder, and defers Ctrl-C, SIGTERM and SIGHUP until the current step is done and a
    checkpoint is written. A second Ctrl-C interrupts at once; a second SIGTERM or SIGHUP is ignored.

    Parameters
    ----------
    folder : created if it does not exist
    fingerprint : JSON description of settings and data; a checkpoint with a different one is refused
    every : seconds between checkpoints; 0 for one after every step. One is always written at the end
    resume : whether to resume from an existing checkpoint; otherwise a folder with checkpoints is refused
    team, n_views : the processes of the fit (only the first one reads and writes), and the number of views of a window
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
        # The process may change its working directory during the fit.
        self.folder, self.every, self.team, self.n_views = Path(folder).absolute(), every, team, n_views
        self.fingerprint = json.loads(json.dumps(fingerprint))
        self._written = time.monotonic()
        self._damaged: list[Path] = []
        self._caught: int | None = None
        self._handlers: dict[int, Any] = {}
        self._lock: int | None = None
        team.once(lambda: self._open(resume))

    def _open(self, resume: bool) -> None:
        """Create and lock the folder; release the lock if the fit is refused."""
        try:
            self._prepare(resume)
        except BaseException:
            self._unlock()
            raise

    def _prepare(self, resume: bool) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.folder)
            there = list_checkpoints(self.folder)
            with tempfile.TemporaryFile(dir=self.folder):
                pass  # fail now rather than after the first sweeps if the folder is not writable
        except OSError as error:
            raise CheckpointError(f"checkpoint must be a writable folder, but {self.folder} is not: {error}") from error
        if self._lock == LOCKED:
            raise CheckpointError(
                f"{self.folder} is in use by another fit: wait until it is done, or choose another folder"
            )
        if there and not resume:
            raise CheckpointError(
                f"{self.folder} already contains checkpoints of a fit ({there[-1].name}): resume it (--resume, or "
                "resume=True), remove the folder, or choose another"
            )

    def _unlock(self) -> None:
        if self._lock not in (None, LOCKED):
            os.close(self._lock)
        self._lock = None

    # ----------------------------------------------------------------- reading

    def load(self, new: State) -> tuple[FitProgress, State] | None:
        """Load progress and state from the last intact checkpoint; None if there are no checkpoints.

        Parameters
        ----------
        new : the initial state of the fit, for shapes, types and device

        Raises
        ------
        CheckpointError : if the checkpoint belongs to other settings or data, or if all are damaged
        """
        loaded = self.team.once(lambda: self._load(new))
        if loaded is None:
            return None
        progress, state = loaded
        device = new.factors[0].device
        progress.total = progress.total.to(device)
        progress.best = None if progress.best is None else _to_device(progress.best, device)
        progress.bases_of = [[basis.to(device) for basis in bases] for bases in progress.bases_of]
        return progress, self.team.scatter(_to_device(state, device), self.n_views)

    def _load(self, new: State) -> tuple[FitProgress, State] | None:
        reasons = []
        for path in reversed(list_checkpoints(self.folder)):
            try:
                check_regular_file(path, CheckpointError)
                arrays, header = _from_bytes_checked(path.read_bytes())
                self._check(path, header)
                loaded = _state(arrays, header, new)
            except _OtherFitError:
                raise
            except (CheckpointError, OSError) as error:
                self._damaged += [path] if path.is_file() else []  # never delete what polyadic cannot have written
                reasons.append(f"{path.name}: {error}")
                continue
            if reasons:
                warnings.warn(
                    f"skipped a damaged checkpoint; the fit resumes from {path.name} ({'; '.join(reasons)})",
                    RuntimeWarning,
                    stacklevel=4,
                )
            return loaded
        if reasons:
            raise CheckpointError(f"none of the checkpoints in {self.folder} can be used: {'; '.join(reasons)}")
        return None

    def _check(self, path: Path, header: dict[str, Any]) -> None:
        found = list(differences(header.get("fingerprint"), self.fingerprint))
        if found:
            raise _OtherFitError(f"{path} belongs to another fit: {'; '.join(found)}")

    # ----------------------------------------------------------------- writing

    def __call__(self, progress: FitProgress, state: State) -> None:
        """Write a checkpoint if one is due or a signal was deferred; then raise that signal."""
        self._write_if(progress.done or time.monotonic() - self._written >= self.every, progress, state)

    def when_stopped(self, progress: FitProgress, state: State) -> None:
        """Write a checkpoint and raise the signal if one was deferred; otherwise do nothing.

        For work that is repeated on resume, so that regular checkpoints in the middle of it are useless.
        """
        self._write_if(False, progress, state)

    def _write_if(self, due: bool, progress: FitProgress, state: State) -> None:
        # All processes must agree: a checkpoint or signal in one applies to all.
        flags = torch.tensor([due, *(self._caught == number for number in _SIGNALS)], dtype=torch.float64)
        due, *caught = (bool(flag) for flag in self.team.sum(flags))
        if due or any(caught):
            whole = self.team.gather(state, self.n_views)
            self.team.once(lambda: self.save(progress, whole))
            self._written = time.monotonic()
        if any(caught):
            self._restore_handlers()
            signal.raise_signal(next(number for number, pending in zip(_SIGNALS, caught, strict=True) if pending))

    def save(self, progress: FitProgress, state: State) -> None:
        """Write a checkpoint now, and remove all but the last two.

        Raises
        ------
        CheckpointError : if it cannot be written; existing checkpoints stay
        """
        content = _to_bytes(progress, state, self.fingerprint)
        try:
            there = list_checkpoints(self.folder)
            number = int(there[-1].name.removeprefix(_PREFIX)) + 1 if there else 1
            with open_atomically(self.folder / f"{_PREFIX}{number:08d}") as file:
                file.writelines(content)
            sync_folder(self.folder)
            sound = [path for path in there if path not in self._damaged and path.is_file()]
            # Also remove temporary files of killed writers, but no other files.
            unfinished = [path for path in self.folder.iterdir() if _UNFINISHED.fullmatch(path.name)]
            for old in [*sound[: 1 - _KEPT], *self._damaged, *unfinished]:
                old.unlink(missing_ok=True)
        except OSError as error:
            left = self._remaining()
            last = f"; {left[-1].name} is intact" if left else ""
            raise CheckpointError(f"a checkpoint could not be written to {self.folder}: {error}{last}") from error

    def _remaining(self) -> list[Path]:
        try:
            return list_checkpoints(self.folder)
        except OSError:
            return []

    # ----------------------------------------------------------------- signals

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # Ignored signals, such as SIGHUP under nohup, stay ignored; non-Python handlers could not be restored.
            heard = [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
            self._handlers = {number: signal.signal(number, self._hold_signal) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        caught = self._caught
        self._restore_handlers()
        self._unlock()
        if caught is not None:
            signal.raise_signal(caught)

    def _hold_signal(self, number: int, frame: FrameType | None) -> None:
        if self._caught is None:
            self._caught = number
        elif number == signal.SIGINT:
            self._restore_handlers()
            signal.raise_signal(number)

    def _restore_handlers(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers, self._caught = {}, None


def _to_device(state: State, device: torch.device) -> State:
    """Move a state to another device."""
    memory = None if state.memory is None else Statistics(state.memory.Y.to(device), state.memory.S.to(device))
    rows, energy = (None if tensor is None else tensor.to(device) for tensor in (state.coefficients, state.energy))
    return State([factor.to(device) for factor in state.factors], memory, rows, energy)


class _OtherFitError(CheckpointError):
    """An intact checkpoint of other settings or data; earlier checkpoints are not tried."""
