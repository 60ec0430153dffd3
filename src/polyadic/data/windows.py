"""Windows with who and when: samples in memory or on disk, and a columnar index that stays with them."""

from __future__ import annotations

import hashlib
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

    def present(self, rows: _Rows | slice = slice(None)) -> NDArray[np.bool_]:
        """Which recordings of the tables some windows are of: (M,)."""
        found: NDArray[np.bool_] = np.bincount(self.recording[rows], minlength=len(self.names)) > 0
        return found

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
        people = _named("subject", subject, count, unknown="-1")
        columns = [
            people if recording is None else _named("recording", recording, count),
            people,
            _named("part", part, count),
        ]
        known = np.full(count, -1) if start is None else np.asarray(start)
        _check_column("start", known, count)
        if known.dtype.kind not in "iu" and count:
            raise PolyadicError(f"start must hold whole numbers of samples, but has type {known.dtype}")
        if (known < -1).any():
            raise PolyadicError(f"start must be a first sample, or -1 where it is unknown, but there is {known.min()}")
        labels = np.full(count, UNLABELLED, np.int32) if label is None else label
        _check_column("label", labels, count)
        shape = tuple(len(names) for names, _ in columns)
        keys, codes = np.unique(np.ravel_multi_index([code for _, code in columns], shape), return_inverse=True)
        places = np.unravel_index(keys, shape)
        tables = [names[place] for (names, _), place in zip(columns, places, strict=True)]
        owners = np.bincount(places[0])
        if recording is not None and (owners > 1).any():
            shared = str(columns[0][0][owners.argmax()])
            raise PolyadicError(f"a recording has one subject and one part, but recording {shared!r} has several")
        return cls(codes.astype(np.int32), known.astype(np.int64), labels.astype(np.int32), *tables)

    @classmethod
    def joined(cls, indices: Sequence[Index]) -> Index:
        """One index after the other; what has the same name, subject and part is one recording."""
        seen: dict[tuple[str, str, str], int] = {}
        moved = []
        for index in indices:
            rows = zip(index.names.tolist(), index.subjects.tolist(), index.parts.tolist(), strict=True)
            codes = np.array([seen.setdefault(row, len(seen)) for row in rows], np.int32)
            moved.append(codes[index.recording])
        tables = [np.array([row[column] for row in seen], np.str_) for column in range(3)]
        start, label = (np.concatenate([getattr(index, name) for index in indices]) for name in ("start", "label"))
        return cls(np.concatenate(moved), start, label, *tables)


def _named(
    what: str, column: ArrayLike | None, count: int, unknown: str = ""
) -> tuple[NDArray[np.str_], NDArray[np.intp]]:
    """The names in a column in alphabetical order, "" for what is unknown, and which of them each entry is."""
    if column is None:
        return np.array([""]), np.zeros(count, np.intp)
    values = np.asarray(column)
    _check_column(what, values, count)
    # A dictionary, since sorting millions of strings takes ten times as long.
    seen: dict[Any, int] = {}
    codes = np.fromiter((seen.setdefault(value, len(seen)) for value in values.tolist()), np.intp, count)
    texts = [_text(value) for value in seen]
    names, places = np.unique(
        np.array(["" if text == unknown else text for text in texts] or [""]), return_inverse=True
    )
    return names, places[codes]


def _text(value: Any) -> str:
    """A value as a name: nothing for None and NaN, and a whole number the same whatever its type."""
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        return value.decode()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


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
        if len(samples.shape) != 3:
            raise PolyadicError(f"X must have shape (N, channels, time), but has shape {tuple(samples.shape)}")
        count, n_channels = samples.shape[:2]
        names = tuple(str(name) for name in classes)
        for what, given in (("classes", names), ("channels", tuple(channels))):
            if len(set(given)) != len(given):
                raise PolyadicError(f"{what} must have different names, but are {', '.join(given)}")
        codes, names = (None, names) if label is None else _coded(np.asarray(label), names, count)
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

    @property
    def fingerprint(self) -> dict[str, str]:
        """What tells the windows, and the order in which a fit sees them, from others; empty for arrays."""
        known: dict[str, str] = getattr(self._samples, "fingerprint", {})
        if self._rows is None:
            return known
        return known | {"rows": hashlib.sha256(np.ascontiguousarray(self._rows, "<i8").tobytes()).hexdigest()}

    def __len__(self) -> int:
        return len(self.index)

    def read(self, rows: _Rows) -> NDArray[Any]:
        """The samples of some windows: (n, channels, time)."""
        return self._samples.read(self.source(rows))

    def source(self, rows: _Rows) -> _Rows:
        """Where some windows lie in the samples that these windows are, or are a selection of: (n,)."""
        return rows if self._rows is None else self._rows[rows]

    def raw(self, rows: _Rows) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
        """The samples as they are stored, and the scale and offset that make values of them; see `WindowStore.raw`."""
        chosen = self.source(rows)
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
        chosen = chosen[chosen >= 0]
        return chosen if len(chosen) == len(self._rows) else None  # some windows are there twice

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
        if isinstance(rows, tuple) and len(rows) == 2 and rows[1] is Ellipsis:
            rows = rows[0]  # as scikit-learn takes rows in cross-validation
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
        index, present = self.index, self.index.present()
        for what, table, wanted in (
            ("subject", index.subjects, subject),
            ("recording", index.names, recording),
            ("part", index.parts, part),
        ):
            if wanted is not None:
                names = [str(item) for item in _listed(wanted)]
                _check_there(what, names, set(table[present].tolist()))
                keep &= np.isin(table, names)[index.recording]
        if label is not None:
            numbers = [self._class(item) for item in _listed(label)]
            _check_there("label", numbers, set(np.flatnonzero(np.bincount(self.label + 1)) - 1))
            keep &= np.isin(self.label, numbers)
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
        people, classes = len(set(self.index.subjects[self.index.present()].tolist()) - {""}), len(self.classes)
        rate = "" if self.fs is None else f", {self.fs:g} Hz"
        counts = f"{people} subject{'s' * (people != 1)}, {classes} class{'es' * (classes != 1)}"
        return f"<Windows {self.shape}{rate}, {counts}>"


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
        self.parts = tuple(parts)
        self.ends = np.cumsum([len(part) for part in parts])
        self.shape = (int(self.ends[-1]), *parts[0].shape[1:])
        self.dtype = np.result_type(*(part.dtype for part in parts))
        self.on_disk = any(part.on_disk for part in parts)

    def read(self, rows: _Rows) -> NDArray[Any]:
        rows = np.asarray(rows, np.intp)
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.shape[0]):
            raise PolyadicError(
                f"rows must lie between 0 and {self.shape[0] - 1}, but reach {rows.min()}, {rows.max()}"
            )
        owner = np.searchsorted(self.ends, rows, side="right")
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number in np.unique(owner):
            mine = owner == number
            before = self.ends[number - 1] if number else 0
            result[mine] = self.parts[number].read(rows[mine] - before)
        return result


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | int | np.integer) else list(value)


def _check_there(what: str, wanted: list[Any], there: set[Any]) -> None:
    for item in wanted:
        if item not in there:
            raise PolyadicError(f"{what} must be among those of the windows, but there is no {item!r}")


def _coded(label: NDArray[Any], classes: tuple[str, ...], count: int) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Labels as numbers from 0 on, and the names of the classes."""
    _check_column("label", label, count)
    if label.dtype.kind == "f":
        if not (np.isfinite(label).all() and np.array_equal(label, np.rint(label))):
            raise PolyadicError("label must hold classes (whole numbers or names), but holds fractions or NaN")
        label = label.astype(np.int64)
    if label.dtype.kind in "iub":
        label = label.astype(np.int64)
        low, high = label.min(initial=0), label.max(initial=0)
        if low < -1 or (classes and high >= len(classes)):
            above = f" and {len(classes) - 1}" if classes else " and the number of classes"
            raise PolyadicError(f"label must lie between -1{above}, but reaches from {low} to {high}")
        if classes:
            return label.astype(np.int32), classes
        known, codes = np.unique(label, return_inverse=True)
        unknown = int((known < 0).sum())
        return (codes - unknown).astype(np.int32), tuple(str(value) for value in known[unknown:])
    names, codes = _named("label", label, count, unknown="-1")
    classes = classes or tuple(name for name in names.tolist() if name)
    numbers = {name: number for number, name in enumerate(classes)} | {"": UNLABELLED}
    strange = [name for name in names.tolist() if name not in numbers]
    if strange:
        raise PolyadicError(f"label must be one of {', '.join(classes)}, but there is {strange[0]!r}")
    return np.array([numbers[name] for name in names.tolist()], np.int32)[codes], classes
