"""Read sleep recordings of Massachusetts General Hospital, published for the PhysioNet/CinC Challenge 2018.

Each recording is a folder with a WFDB header, a MATLAB file with the digital values, and a MATLAB 7.3 (HDF5) file with
the sleep stage of every sample.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.readers.common import check_inflation
from polyadic.data.readers.wfdb import WfdbHeader, build_recording, check_digits, choose_signals, read_header
from polyadic.data.recordings import Annotation, Recording
from polyadic.errors import DataError, MissingExtraError

__all__ = ["read_mgh"]

_STAGES = {"undefined": "", "wake": "W", "nonrem1": "N1", "nonrem2": "N2", "nonrem3": "N3", "rem": "R"}
# Header of a MATLAB 4 file with one int16 matrix: type, rows, columns, imaginary flag, length of the name, name.
_PREFIX = struct.Struct("<5i4s")
_INT16, _NAME = 30, b"val\0"
# Maximum compression ratio of deflate.
_DEFLATE_LIMIT = 1032
_LARGEST_CHUNK, _MOST_CHUNKS = 1 << 26, 100_000


def read_mgh(
    path: str | Path,
    *,
    channels: Sequence[str] | None = ("F3-M2", "F4-M1", "C3-M2", "C4-M1", "O1-M2", "O2-M1"),
    name: str | None = None,
    subject: str | None = None,
) -> Recording:
    """Read a recording and its sleep stages as annotations "W", "N1", "N2", "N3" and "R", one per run of a stage.

    Parameters
    ----------
    path : folder of the recording, or the header in it
    channels : names of channels to read, in this order; all if None
    name : name of the recording; by default the name of the record
    subject : name of the subject; by default `name`

    Returns
    -------
    the recording, without annotations if there is no label file, as in the test set of the Challenge

    Raises
    ------
    DataError : if a file is missing or damaged, a channel does not exist, or the files belong to different recordings
    PolyadicError : if h5py is needed and not installed, or `channels` is invalid
    """
    path = Path(path)
    if path.is_dir():
        path = path / f"{path.resolve().name}.hea"
    header = read_header(path.with_name(path.name.removesuffix(".hea") + ".hea"))
    picked = choose_signals(header, channels)
    file = path.with_name(f"{header.record}.mat")
    samples = _check_header(header, file.name)
    digits = _read_digits(file, header, samples)[picked]
    signals = [header.signals[number] for number in picked]
    for signal, row in zip(signals, digits, strict=True):
        check_digits(signal, row, file.name)
    labels = path.with_name(f"{header.record}-arousal.mat")
    # A broken link means that labels were lost, not that the recording has none.
    labelled = labels.exists() or labels.is_symlink()
    annotations = _stage_runs(_read_stages(labels, samples), header.fs) if labelled else []
    return build_recording(header, signals, digits, annotations, name or header.record, subject)


def _check_header(header: WfdbHeader, file: str) -> int:
    """Return the number of samples, and check that all signals are in one file of int16 frames."""
    if header.samples is None:
        raise DataError(f"{header.record}.hea: the header must give the number of samples")
    for signal in header.signals:
        if (signal.file, signal.format, signal.frame, signal.skew) != (file, "16", 1, 0):
            raise DataError(
                f"{header.record}.hea: {signal.name} must be in {file}, format 16, one sample per frame, without skew"
            )
    return header.samples


def _read_digits(path: Path, header: WfdbHeader, samples: int) -> NDArray[np.int16]:
    """Read all digital values, (channels, samples), from MATLAB 4 or 7.3, and check their shape against the header."""
    check_regular_file(path)
    if not path.is_file():
        raise DataError(f"{path.name}: there is no such file")
    shape = (len(header.signals), samples)
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(_PREFIX.size)
    if len(start) == _PREFIX.size and start[:4] == struct.pack("<i", _INT16):
        return _matlab4(path, start, size, shape)
    if start.startswith((b"MATLAB 7.3", b"\x89HDF\r\n\x1a\n")):
        return _matlab73(path, shape)
    raise DataError(f"{path.name}: signals must be in a MATLAB 4 file with an int16 matrix, or in a MATLAB 7.3 file")


def _matlab4(path: Path, start: bytes, size: int, shape: tuple[int, int]) -> NDArray[np.int16]:
    from scipy.io import loadmat

    _, rows, columns, imaginary, _, name = fields = _PREFIX.unpack(start)
    if fields[3:] != (0, len(_NAME), _NAME):
        raise DataError(f"{path.name}: the matrix must be real and named 'val', but is named {name!r} ({imaginary=})")
    needed = _PREFIX.size + 2 * shape[0] * shape[1]
    if (rows, columns) != shape or size != needed:
        raise DataError(
            f"{path.name}: the header declares {shape[0]} x {shape[1]} values, {needed} bytes, "
            f"but the file has {rows} x {columns} values and {size} bytes"
        )
    try:
        matrix = loadmat(path, variable_names=["val"])["val"]
    except Exception as error:
        raise DataError(f"{path.name}: scipy cannot read the matrix ({type(error).__name__})") from error
    return np.asarray(matrix, np.int16)


def _import_h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("MATLAB 7.3 files need the package h5py: pip install 'polyadic[mgh]'") from None
    return h5py


def _matlab73(path: Path, shape: tuple[int, int]) -> NDArray[np.int16]:
    package = _import_h5py()
    try:
        with package.File(path, "r") as file:
            # MATLAB stores arrays in column-major order, so its rows are the last axis.
            data = _dataset(file, "val", [shape[::-1]], ("int16",), path.name)
            if data.id.get_storage_size() * _DEFLATE_LIMIT < data.nbytes:
                raise DataError(f"{path.name}: 'val' declares {data.nbytes} bytes, more than its file can hold")
            check_inflation(f"{path.name}: 'val'", data.nbytes, path.stat().st_size, "save it without compression")
            return np.ascontiguousarray(data[()].T).astype(np.int16, copy=False)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path.name}: HDF5 cannot read the signals ({type(error).__name__})") from error


def _read_stages(path: Path, samples: int) -> NDArray[np.int8]:
    """Read the stage of each sample as an index into `_STAGES`, 0 if undefined: (samples,)."""
    package = _import_h5py()
    check_regular_file(path)
    stages = np.zeros(samples, np.int8)
    taken = np.zeros(samples, bool)
    shapes = [(1, samples), (samples, 1), (samples,)]
    try:
        with package.File(path, "r") as file:
            for number, stage in enumerate(_STAGES):
                where = f"data/sleep_stages/{stage}"
                flags = _dataset(file, where, shapes, ("uint8", "int8", "bool"), path.name)[()].reshape(-1)
                if flags.min() < 0 or flags.max() > 1:
                    raise DataError(f"{path.name}: {where} must contain only 0 and 1")
                here = flags.astype(bool)
                if (here & taken).any():
                    raise DataError(f"{path.name}: sample {int((here & taken).argmax())} has two stages")
                taken |= here
                stages[here] = number
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path.name}: HDF5 cannot read the sleep stages ({type(error).__name__})") from error
    return stages


def _dataset(file: Any, where: str, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], name: str) -> Any:
    """Return a dataset of an HDF5 file, and check its shape, type and storage before anything is allocated."""
    found = file.get(where)
    if found is None or not hasattr(found, "shape"):
        raise DataError(f"{name}: the dataset {where} is missing")
    if found.shape not in shapes or found.dtype.name not in dtypes:
        raise DataError(
            f"{name}: {where} must have shape {shapes[0]} and type {dtypes[0]}, "
            f"but has {found.shape} and {found.dtype.name}"
        )
    if found.external is not None or found.is_virtual or not _is_stored(found):
        raise DataError(f"{name}: {where} must be stored completely in the file itself")
    return found


def _is_stored(data: Any) -> bool:
    """Whether a dataset is stored completely; HDF5 silently reads missing parts as zeros."""
    if data.chunks is None:
        return bool(data.id.get_storage_size() >= data.nbytes)
    grid = [range(0, size, step) for size, step in zip(data.shape, data.chunks, strict=True)]
    chunk = math.prod(data.chunks) * data.dtype.itemsize
    if chunk > _LARGEST_CHUNK or math.prod(map(len, grid)) > _MOST_CHUNKS:
        return False
    size, sound = data.file.id.get_filesize(), []
    # Chunks that could not be compressed are stored raw, with a filter mask.
    data.id.chunk_iter(lambda found: sound.append(found.size == chunk if found.filter_mask else found.size <= size))
    if not all(sound):
        return False
    try:
        # A listed chunk may still be missing at its place: look up each one as a read would.
        return all(len(data.id.read_direct_chunk(place)[1]) for place in product(*grid))
    except OSError:
        return False


def _stage_runs(stages: NDArray[np.int8], fs: float) -> list[Annotation]:
    """Return an annotation for every run of a stage."""
    texts = list(_STAGES.values())
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(stages)) + 1, [len(stages)]])
    return [
        Annotation(float(first / fs), float((end - first) / fs), texts[stages[first]])
        for first, end in pairwise(firsts)
        if stages[first]
    ]
