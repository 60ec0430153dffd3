"""Parallel fits over several processes: each has its share of every batch, and only sums are exchanged.

Exchanged in a step: the sum of the normalised rows of each view (R numbers, for the random pairs across processes),
XᵀX with the sums of the loss, and either XᵀT (R × I × J × …) or, mode by mode, the MTTKRPs computed from it (I × R).
For the same batches, the bases equal those of a single process up to rounding, for any number of processes.
"""

from __future__ import annotations

import atexit
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from polyadic._util.files import create_temporary, publish, sync_folder
from polyadic.core.alignment import Add
from polyadic.core.step import State, Statistics
from polyadic.engine.messages import decode_message, encode_message
from polyadic.errors import PolyadicError
from polyadic.team import ALONE, Team

__all__ = ["Processes", "join", "write_rows"]

_Result = TypeVar("_Result")
_PATIENCE = 600
_LAUNCH = "start several processes with torchrun, or unset RANK and WORLD_SIZE for one"
_BLOCK_BYTES = 512 * 2**10
"""Maximum size of XᵀT to exchange as a block; beyond, one small message per mode is faster (docs/scale.md)."""


def join(exchange: Literal["auto", "block", "modes"] = "auto") -> Team:
    """Return the team of processes started by torchrun or of an initialised process group; else a team of one.

    Every process calls it, and passes the team to `fit`, `transform` and `score`. Messages use NCCL if every process
    has its own GPU (that of its local rank), and gloo otherwise.

    Parameters
    ----------
    exchange : what to exchange in a step: XᵀT as a "block", the MTTKRPs of its "modes", or "auto" by the size of XᵀT

    Examples
    --------
    >>> join().size
    1
    """
    if exchange not in ("auto", "block", "modes"):
        raise PolyadicError(f"exchange must be 'auto', 'block' or 'modes', but is {exchange!r}")
    if not dist.is_available():
        return ALONE
    if not dist.is_initialized():
        if not _started_together():
            return ALONE
        if torch.cuda.is_available():
            torch.cuda.set_device(_variable("LOCAL_RANK", 0) % torch.cuda.device_count())
        store, rank, size = _rendezvous()
        dist.init_process_group("gloo", store=_met(store, rank, size), rank=rank, world_size=size)
        atexit.register(_leave)
    return Processes(exchange)


def _started_together() -> bool:
    """Return whether this process is one of several, or was started by torchrun, possibly alone."""
    return "RANK" in os.environ and (_variable("WORLD_SIZE", 1) > 1 or dist.is_torchelastic_launched())


def _variable(name: str, default: int) -> int:
    """Return the value of an integer environment variable set by a launcher."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise PolyadicError(f"the environment variable {name} must be a whole number, but is {text!r}: {_LAUNCH}")
    return int(text)


def _rendezvous() -> tuple[Any, int, int]:
    """Return the store for the rendezvous, the rank of this process, and the number of processes."""
    rank, size, _ = _variable("RANK", 0), _variable("WORLD_SIZE", 1), _variable("MASTER_PORT", 0)
    if rank >= size:
        raise PolyadicError(f"RANK must be below WORLD_SIZE, but they are {rank} and {size}: {_LAUNCH}")
    try:
        return next(dist.rendezvous("env://"))  # type: ignore[attr-defined,no-any-return]
    except (ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise PolyadicError(
            f"RANK and WORLD_SIZE say that this is process {rank} of {size}, but it cannot find the others ({reason}): "
            f"{_LAUNCH}"
        ) from error


def _has_own_gpu() -> bool:
    """Return whether this machine has a GPU for each of its processes: NCCL, unlike gloo, refuses two on one GPU."""
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return torch.cuda.is_available() and dist.is_nccl_available() and local_size <= torch.cuda.device_count()


def _met(store: Any, rank: int, size: int) -> Any:
    """Return a namespace of the store that is unique to this launch of the processes.

    When torchrun restarts processes, its store still contains the addresses of the previous ones. So each process
    publishes a unique token, the first one publishes the tokens it has read together with its own, and a process that
    finds its token there knows that the first one's token belongs to this launch, too.
    """
    mine, deadline = uuid.uuid4().hex, time.monotonic() + _PATIENCE
    word = mine

    def heard(key: str) -> str:
        return str(store.get(key), "ascii") if store.check([key]) else ""

    def wait_until(met: Callable[[], bool]) -> None:
        while not met():
            if time.monotonic() > deadline:
                raise PolyadicError(f"process {rank} of {size} found no other processes within {_PATIENCE} s")
            time.sleep(0.02)

    def all_answered() -> bool:
        store.set("polyadic/first", " ".join([mine, *(heard(f"polyadic/said/{other}") for other in range(1, size))]))
        return all(heard(f"polyadic/answer/{other}") == mine for other in range(1, size))

    if rank == 0:
        wait_until(all_answered)
    else:
        store.set(f"polyadic/said/{rank}", mine)
        wait_until(lambda: mine in heard("polyadic/first").split())
        word = heard("polyadic/first").split()[0]
        store.set(f"polyadic/answer/{rank}", word)
    return dist.PrefixStore(word, store)  # type: ignore[attr-defined]


def _leave() -> None:
    with suppress(Exception):  # the process is exiting anyway
        dist.destroy_process_group()


class Processes(Team):
    """A team of several processes, with torch.distributed; created by `join`.

    Attributes
    ----------
    index, size : index of this process, and number of processes
    waited : seconds that this process spent on communication, including waiting for others (not with CUDA)
    """

    def __init__(self, exchange: str = "auto") -> None:
        self.index, self.size = dist.get_rank(), dist.get_world_size()
        self.waited = 0.0
        self._exchange = exchange
        # Our own groups: the program's may not support CPU tensors, and its messages must not mix with ours.
        self._group = dist.new_group(backend="gloo")
        if self.sum(torch.tensor(float(_has_own_gpu()))) == self.size:
            self._group = dist.new_group(backend="cpu:gloo,cuda:nccl")

    @contextmanager
    def _talking(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise PolyadicError(
                f"process {self.index} of {self.size} lost the connection to the others; one may have ended: {reason}"
            ) from error
        finally:
            self.waited += time.perf_counter() - begun

    def share(self, ids: Tensor) -> Tensor:
        """Return an equal share (up to one window), sorted, so that each process rereads its own part of a store."""
        return ids if self.size == 1 else torch.sort(ids).values.tensor_split(self.size)[self.index]

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum in float64, and return the result in the tensor's type."""
        total = tensor.to(torch.float64, copy=True).contiguous()
        with self._talking():
            dist.all_reduce(total, group=self._group)
        return total.to(tensor.dtype)

    def broadcast(self, tensor: Tensor) -> Tensor:
        first = tensor.clone().contiguous()
        with self._talking():
            dist.broadcast(first, 0, group=self._group)
        return first

    def once(self, work: Callable[[], _Result]) -> _Result:
        content = b""
        if self.index == 0:
            try:
                content = encode_message(work())
            except Exception as error:  # raised in all processes
                content = encode_message(None, error)
        size = int(self.broadcast(torch.tensor(len(content), device="cpu")))
        message = torch.zeros(size, dtype=torch.uint8, device="cpu")
        if self.index == 0:
            message = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        result: _Result = decode_message(self.broadcast(message).numpy().tobytes())
        return result

    # ------------------------------------------------------------------- steps

    def _by_modes(self, Y: Tensor) -> bool:
        return self._exchange == "modes" or (self._exchange == "auto" and Y.nbytes > _BLOCK_BYTES)

    def start_sum(self, statistics: Statistics) -> Callable[[Tensor], tuple[Statistics, Tensor]]:
        # Messages must be contiguous, and components are last in memory.
        block, travelling = statistics.Y.movedim(0, -1).contiguous(), None
        if not self._by_modes(statistics.Y):
            with self._talking():
                travelling = dist.all_reduce(block, group=self._group, async_op=True)

        def arrived(sums: Tensor) -> tuple[Statistics, Tensor]:
            small = self.sum(torch.cat([statistics.S.flatten(), sums]))
            if travelling is not None:
                with self._talking():
                    travelling.wait()
            S = small[: -len(sums)].reshape(statistics.S.shape)
            return Statistics(block.movedim(-1, 0), S), small[-len(sums) :]

        return arrived

    def sum_by_mode(self, Y: Tensor) -> Add | None:
        return self.sum if self._by_modes(Y) else None

    # ------------------------------------------------------------------- states

    def gather(self, state: State, n_views: int) -> State:
        memory, coefficients = state.memory, state.coefficients
        if memory is not None and self._by_modes(memory.Y):
            block = memory.Y.movedim(0, -1).clone(memory_format=torch.contiguous_format)
            with self._talking():
                dist.all_reduce(block, group=self._group)
            memory = Statistics(block.movedim(-1, 0), memory.S)
        if coefficients is not None:
            coefficients = torch.cat([self._gathered(view) for view in coefficients.chunk(n_views)])
        return State(state.factors, memory, coefficients, state.energy)

    def _gathered(self, rows: Tensor) -> Tensor:
        """Return the concatenated rows of all processes in the first process, and this process's rows in the others.

        They are for a file, so they go to CPU memory, which is larger than GPU memory.
        """
        rows = rows.cpu()
        counts = torch.zeros(self.size, dtype=torch.float64)
        counts[self.index] = len(rows)
        sizes = [int(size) for size in self.sum(counts)]
        with self._talking():
            if self.index > 0:
                dist.send(rows.contiguous(), 0, group=self._group)
                return rows
            parts = [rows, *(rows.new_empty(size, rows.shape[1]) for size in sizes[1:])]
            for other in range(1, self.size):
                dist.recv(parts[other], other, group=self._group)
        return torch.cat(parts)

    def scatter(self, state: State, n_views: int) -> State:
        memory, coefficients = state.memory, state.coefficients
        if memory is not None and self._by_modes(memory.Y) and self.index > 0:
            memory = Statistics(torch.zeros_like(memory.Y), memory.S)
        if coefficients is not None:
            mine = self.share(torch.arange(len(coefficients) // n_views)).to(coefficients.device)
            coefficients = torch.cat([view[mine] for view in coefficients.chunk(n_views)])
        return State(state.factors, memory, coefficients, state.energy)


# ----------------------------------------------------------------------- files


def write_rows(
    team: Team,
    path: str | os.PathLike[str],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    first: int,
    parts: Iterable[np.ndarray],
) -> None:
    """Write a `.npy` file atomically; each process writes its own rows.

    Parameters
    ----------
    path : the file, on a disk shared by all processes
    shape : shape of the whole array
    first : index of this process's first row
    parts : arrays with consecutive rows of this process

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_rows(join(), f"{folder}/a.npy", (2, 3), np.dtype("<f4"), 0, [np.ones((2, 3))])
    ...     np.load(f"{folder}/a.npy").sum()
    np.float32(6.0)
    """
    temporary, target, mode, offset = team.once(lambda: _allocate(path, shape, dtype))
    row = int(np.prod(shape[1:])) * dtype.itemsize
    failure: Exception | None = None
    try:
        with Path(temporary).open("r+b") as file:
            file.seek(offset + first * row)
            for part in parts:
                file.write(np.ascontiguousarray(part, dtype).data.cast("B"))
            file.flush()
            os.fsync(file.fileno())
    except Exception as error:  # on any error, the others must not wait for this process
        failure = error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if team.sum(torch.tensor(float(failure is not None))) > 0:
        team.once(lambda: Path(temporary).unlink(missing_ok=True))
        name = Path(path).name
        raise failure or PolyadicError(f"{name} was not written: another process could not write its rows")
    team.once(lambda: _publish(temporary, target, mode))


def _allocate(path: str | os.PathLike[str], shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[str, str, int, int]:
    """Create a temporary file of full size; return its path, target, mode, and the offset of the rows."""
    descriptor, temporary, target, mode = create_temporary(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            offset = file.tell()
            size = offset + int(np.prod(shape)) * dtype.itemsize
            file.flush()
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)  # fail now if the disk is full
            file.truncate(size)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return str(temporary), str(target), mode, offset


def _publish(temporary: str, target: str, mode: int) -> None:
    publish(temporary, target, mode)
    sync_folder(Path(target).parent)
