"""Windows with who and when: samples in memory or on disk, and a columnar index that stays with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.data.recordings import UNLABELLED
from polyadic.errors import PolyadicError
from polyadic.inputs import Readable

__all__ = ["Index", "Windows"]

_Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Index:
    """Whose window it is, out of which recording, where it begins there, and its class.

    Parameters
    ----------
    recording : (N,) int32, row of the recording in the tables below
    start : (N,) int64, first sample within the recording, or -1 where that is not known
    label : (N,) int32, class from 0 on, or -1 where none is known
    names, subjects, parts : (M,) str, for each recording its name, its subject, and which part of the data its
        publisher put it in ("train", "test", or "" where there is no such thing)
    """

    recording: NDArray[np.int32]
    start: NDArray[np.int64]
    label: NDArray[np.int32]
    names: NDArray[np.str_]
    subjects: NDArray[np.str_]
    parts: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.recording)

    def take(self, rows: _Rows | slice) -> Index:
        """Some windows; the tables of recordings stay."""
        return replace(self, recording=self.recording[rows], start=self.start[rows], label=self.label[rows])

    @classmethod
    def of(
        cls,
        count: int,
        subject: ArrayLike | None = None,
        recording: ArrayLike | None = None,
        start: ArrayLike | None = None,
        label: NDArray[np.int32] | None = None,
        part: ArrayLike | None = None,
    ) -> Index:
        """An index from columns of `count` entries, some of which may be missing.

        Without recordings, each subject is taken for one recording.
        """
        columns = [
            np.full(count, "", "U1") if given is None else np.asarray(given).astype(str)
            for given in (subject if recording is None else recording, subject, part)
        ]
        for name, column in zip(("recording", "subject", "part"), columns, strict=True):
            _check_column(name, column, count)
        columns[1][columns[1] == "-1"] = ""
        known = np.full(count, -1) if start is None else np.asarray(start)
        _check_column("start", known, count)
        if known.dtype.kind not in "iu":
            raise PolyadicError(f"start must hold whole numbers of samples, but has type {known.dtype}")
        labels = np.full(count, UNLABELLED, np.int32) if label is None else label
        _check_column("label", labels, count)
        table, codes = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        names, owners = np.unique(table[:, 0], return_counts=True)
        if recording is not None and (owners > 1).any():
            shared = names[owners > 1][0]
            raise PolyadicError(f"a recording has one subject and one part, but recording {shared!r} has several")
        return cls(codes.astype(np.int32).ravel(), known.astype(np.int64), labels.astype(np.int32), *table.T)

    @classmethod
    def joined(cls, parts: Sequence[Index]) -> Index:
        """One index after the other."""
        offsets = np.cumsum([0, *(len(part.names) for part in parts)]).astype(np.int32)
        moved = [part.recording + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
        columns = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("start", "label", "names", "subjects", "parts")
        )
        return cls(np.concatenate(moved), *columns)


def _check_column(name: str, column: NDArray[Any], count: int) -> None:
    if column.shape != (count,):
        raise PolyadicError(f"{name} must have shape ({count},), one entry a window, but has shape {column.shape}")


class Windows:
    """Samples with their index; a selection reads nothing until its samples are asked for.

    Parameters
    ----------
    X : (N, channels, time), an array, a memory map or a `WindowStore`
    fs : sampling rate in Hz, or None where it is not known
    subject, recording : (N,), names or numbers; a subject of -1 or "" is unknown
    start : (N,), first sample of each window within its recording
    label : (N,), classes as names, or as numbers; -1 (or "") where none is known
    part : (N,), which part of the data its publisher put a window in ("train" or "test")
    classes : names of the classes, in the order of the numbers in `label`
    channels, units : names, one a channel
    dataset : name of a published dataset, by which protocol "paper" knows its split

    Examples
    --------
    >>> windows = Windows(np.zeros((4, 2, 8)), fs=100, subject=["a", "a", "b", "b"], label=[0, 1, 1, 0])
    >>> windows.select(subject="b").label
    array([1, 0], dtype=int32)
    """

    def __init__(
        self,
        X: Any,
        fs: float | None = None,
        *,
        subject: ArrayLike | None = None,
        recording: ArrayLike | None = None,
        start: ArrayLike | None = None,
        label: ArrayLike | None = None,
        part: ArrayLike | None = None,
        classes: Sequence[str] = (),
        channels: Sequence[str] = (),
        units: Sequence[str] = (),
        dataset: str = "",
    ) -> None:
        samples = X if isinstance(X, Readable) else _InMemory(X if isinstance(X, np.ndarray) else np.asarray(X))
        count = samples.shape[0]
        codes, names = (None, tuple(classes)) if label is None else _coded(np.asarray(label), tuple(classes))
        n_channels = samples.shape[1] if len(samples.shape) > 1 else 0
        for what, values in (("channels", channels), ("units", units)):
            if len(values) not in (0, n_channels):
                raise PolyadicError(f"{what} must name {n_channels} channels, but names {len(values)}")
        self._samples = samples
        self._rows: _Rows | None = None
        self.index = Index.of(count, subject, recording, start, codes, part)
        self.fs = None if fs is None else float(fs)
        self.classes = names
        self.channels = tuple(channels)
        self.units = tuple(units)
        self.dataset = dataset
        self.split = ""
        if self.fs is not None and not 0 < self.fs < np.inf:
            raise PolyadicError(f"fs must be a positive sampling rate in Hz, but is {fs!r}")

    @classmethod
    def _made(cls, samples: Readable, index: Index, like: Any) -> Windows:
        """Windows of these samples and this index, all else as with `like` (a store or windows)."""
        self = cls.__new__(cls)
        self._samples, self._rows, self.index = samples, None, index
        self.fs, self.classes, self.channels, self.units = like.fs, like.classes, like.channels, like.units
        self.dataset, self.split = like.dataset, getattr(like, "split", "")
        return self

    # ----------------------------------------------------------------- samples

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, channels, time)."""
        return (len(self.index), *self._samples.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._samples.dtype

    @property
    def on_disk(self) -> bool:
        """Whether samples are read from files when they are asked for."""
        return bool(getattr(self._samples, "on_disk", False))

    def __len__(self) -> int:
        return len(self.index)

    def read(self, rows: _Rows) -> NDArray[Any]:
        """The samples of some windows: (n, channels, time)."""
        return self._samples.read(rows if self._rows is None else self._rows[rows])

    def raw(self, rows: _Rows) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
        """The samples as they are stored, and the scale and offset that make values of them; see `WindowStore.raw`."""
        chosen = rows if self._rows is None else self._rows[rows]
        raw = getattr(self._samples, "raw", None)
        return (self._samples.read(chosen), None, None) if raw is None else raw(chosen)

    @property
    def X(self) -> NDArray[Any]:
        """All samples as one array in memory: (N, channels, time)."""
        if isinstance(self._samples, _InMemory) and self._rows is None:
            return self._samples.X
        return self.read(np.arange(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.X, dtype=dtype, copy=copy)

    def order(self, seed: int, sweep: int) -> _Rows | None:
        """The order in which a sweep should visit the windows if the samples care, else None."""
        order = getattr(self._samples, "order", None)
        whole = None if order is None else order(seed, sweep)
        if whole is None or self._rows is None:
            return whole
        place = np.full(self._samples.shape[0], -1)
        place[self._rows] = np.arange(len(self._rows))
        chosen: _Rows = place[whole]
        return chosen[chosen >= 0] if len(np.unique(self._rows)) == len(self._rows) else None

    # ------------------------------------------------------------------- index

    @property
    def subject(self) -> NDArray[np.str_]:
        """Whose window it is: (N,)."""
        return self.index.subjects[self.index.recording]

    @property
    def recording(self) -> NDArray[np.str_]:
        """Out of which recording it is: (N,)."""
        return self.index.names[self.index.recording]

    @property
    def part(self) -> NDArray[np.str_]:
        """The part of the data its publisher put it in: (N,)."""
        return self.index.parts[self.index.recording]

    @property
    def start(self) -> NDArray[np.int64]:
        """First sample within the recording, -1 if unknown: (N,)."""
        return self.index.start

    @property
    def label(self) -> NDArray[np.int32]:
        """Class from 0 on, -1 if unknown: (N,)."""
        return self.index.label

    def __getitem__(self, rows: Any) -> Windows:
        """Some windows, by a slice, numbers or a mask; for one, give a slice of one."""
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.dtype == bool:
                _check_column("a mask", rows, len(self))
                rows = np.flatnonzero(rows)
            if rows.ndim != 1 or (rows.dtype.kind not in "iu" and len(rows)):
                raise PolyadicError(f"windows are chosen by a slice, a mask or a list of numbers, but got {rows!r}")
            rows = rows.astype(np.intp)
        chosen = type(self)._made(self._samples, self.index.take(rows), self)
        chosen._rows = (np.arange(len(self)) if self._rows is None else self._rows)[rows]
        return chosen

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("windows cannot be looped over one by one; read(rows) gives a batch, X all of them")

    def select(
        self,
        *,
        subject: str | Sequence[str] | None = None,
        recording: str | Sequence[str] | None = None,
        label: int | str | Sequence[int | str] | None = None,
        part: str | Sequence[str] | None = None,
    ) -> Windows:
        """The windows of some subjects, recordings, classes (by number or name) and parts.

        Raises
        ------
        PolyadicError : if a name is not there at all
        """
        keep = np.ones(len(self), bool)
        for what, wanted in (("subject", subject), ("recording", recording), ("part", part)):
            if wanted is not None:
                keep &= _among(what, getattr(self, what), _listed(wanted))
        if label is not None:
            numbers = [self._class(item) for item in _listed(label)]
            keep &= _among("label", self.label, numbers)
        return self[keep]

    def _class(self, label: int | str) -> int:
        if not isinstance(label, str):
            return int(label)
        if label not in self.classes:
            raise PolyadicError(f"label must be one of {', '.join(self.classes)}, but is {label!r}")
        return self.classes.index(label)

    @classmethod
    def concatenate(cls, parts: Sequence[Windows]) -> Windows:
        """Windows one after the other, without reading them; all must have one shape, rate, channels and classes."""
        if not parts:
            raise PolyadicError("concatenate needs at least one Windows, but got none")
        first = parts[0]
        for other in parts[1:]:
            for what in ("fs", "channels", "units", "classes", "dataset"):
                if getattr(other, what) != getattr(first, what):
                    raise PolyadicError(
                        f"windows that are concatenated must have the same {what}, but have "
                        f"{getattr(first, what)!r} and {getattr(other, what)!r}"
                    )
            if other.shape[1:] != first.shape[1:]:
                raise PolyadicError(f"windows must have one shape, but have {first.shape[1:]} and {other.shape[1:]}")
        whole = cls._made(_Joined(parts), Index.joined([part.index for part in parts]), first)
        whole.split = first.split if len({part.split for part in parts}) == 1 else ""
        return whole

    def __repr__(self) -> str:
        people = len(np.unique(self.index.subjects[np.unique(self.index.recording)]))
        rate = "" if self.fs is None else f", {self.fs:g} Hz"
        return f"<Windows {self.shape}{rate}, {people} subject{'s' * (people != 1)}, {len(self.classes)} classes>"


@dataclass(frozen=True, eq=False)
class _InMemory:
    X: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.X.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.X.dtype

    @property
    def on_disk(self) -> bool:
        return isinstance(self.X, np.memmap)

    def read(self, rows: _Rows) -> NDArray[Any]:
        return np.asarray(self.X[rows])


class _Joined:
    """Several samples one after the other."""

    def __init__(self, parts: Sequence[Windows]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])
        self.shape = (int(self.ends[-1]), *parts[0].shape[1:])
        self.dtype = np.result_type(*(part.dtype for part in parts))
        self.on_disk = any(part.on_disk for part in parts)

    def read(self, rows: _Rows) -> NDArray[Any]:
        owner = np.searchsorted(self.ends, rows, side="right")
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number in np.unique(owner):
            mine = owner == number
            before = self.ends[number - 1] if number else 0
            result[mine] = self.parts[number].read(rows[mine] - before)
        return result


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | int | np.integer) else list(value)


def _among(what: str, column: NDArray[Any], wanted: list[Any]) -> NDArray[np.bool_]:
    values = [str(item) for item in wanted] if column.dtype.kind == "U" else wanted
    absent = [item for item in values if not (column == item).any()]
    if absent:
        raise PolyadicError(f"{what} must be among those of the windows, but there is no {absent[0]!r}")
    return np.isin(column, values)


def _coded(label: NDArray[Any], classes: tuple[str, ...]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Labels as numbers from 0 on, and the names of the classes."""
    if label.dtype.kind == "f":
        if not np.array_equal(label, np.rint(label)):
            raise PolyadicError("label must hold classes (whole numbers or names), but holds fractions")
        label = label.astype(np.int64)
    if label.dtype.kind == "b":
        label = label.astype(np.int64)
    if label.dtype.kind in "iu":
        if classes:
            if len(label) and not (label.min() >= -1 and label.max() < len(classes)):
                span = f"{label.min()} to {label.max()}"
                raise PolyadicError(f"label must lie between -1 and {len(classes) - 1}, but reaches from {span}")
            return label.astype(np.int32), classes
        known, codes = np.unique(label, return_inverse=True)
        unknown = int((known < 0).sum())
        return np.maximum(codes - unknown, UNLABELLED).astype(np.int32), tuple(str(value) for value in known[unknown:])
    names = label.astype(str)
    classes = classes or tuple(str(name) for name in np.unique(names) if name)
    strange = set(np.unique(names).tolist()) - {"", *classes}
    if strange:
        raise PolyadicError(f"label must be one of {', '.join(classes)}, but there is {sorted(strange)[0]!r}")
    numbers = {name: number for number, name in enumerate(classes)} | {"": UNLABELLED}
    known, codes = np.unique(names, return_inverse=True)
    return np.array([numbers[name] for name in known.tolist()], np.int32)[codes], classes
