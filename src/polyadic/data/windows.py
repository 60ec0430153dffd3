"""Windows: samples in memory or on disk, with the subject, recording, start and label of each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.checks import Readable
from polyadic.data.index import Index, check_column
from polyadic.data.labels import encode_labels
from polyadic.data.readables import ArraySamples, ChosenChannels, Concatenated, as_readable, read_raw
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Windows"]

_Rows = NDArray[np.intp]


class Windows:
    """Samples with their index; selections are lazy and read samples on demand.

    Parameters
    ----------
    X : (N, channels, time), an array, a memory map or a `WindowStore`
    fs : sampling rate in Hz, or None if unknown
    subject, recording : (N,), names or numbers
    start : (N,), first sample of each window, counted from the start of its recording
    label : (N,), classes as names or as numbers
    part : (N,), part of a published split that each window belongs to ("train" or "test")
    classes : names of the classes, in the order of the numbers in `label`
    channels, units : names, one per channel
    dataset : name of a published dataset, which protocol "paper" needs to select the split

    For windows of a store, the attribute `reading` describes how they were cut from recordings; see
    `polyadic.data.reading.Reading.to_json`.

    In `subject`, `recording` and `label`, the values "", None, NaN and -1 mean "unknown".

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
        samples = as_readable(X)
        if len(samples.shape) != 3:
            raise PolyadicError(f"X must have shape (N, channels, time), but has shape {tuple(samples.shape)}")
        count, n_channels = samples.shape[:2]
        names = tuple(str(name) for name in classes)
        for what, given in (("classes", names), ("channels", tuple(channels))):
            if len(set(given)) != len(given):
                raise PolyadicError(f"{what} must have different names, but are {', '.join(given)}")
        codes, names = (None, names) if label is None else encode_labels(label, names, count)
        for what, values in (("channels", channels), ("units", units)):
            if len(values) not in (0, n_channels):
                raise PolyadicError(f"{what} must name {n_channels} channels, but names {len(values)}")
        self._samples = samples
        self._rows: _Rows | None = None
        self.index = Index.from_columns(count, subject, recording, start, codes, part)
        self.fs = None if fs is None else float(fs)
        self.classes = names
        self.channels = tuple(channels)
        self.units = tuple(units)
        self.dataset = dataset
        self.split = ""
        self.reading: dict[str, Any] = {}
        if self.fs is not None and not 0 < self.fs < np.inf:
            raise PolyadicError(f"fs must be a positive sampling rate in Hz, but is {fs!r}")

    @classmethod
    def from_index(cls, samples: Readable, index: Index, like: Any) -> Windows:
        """Build windows from samples and an index; all other attributes are those of `like`, a store or windows."""
        self = cls.__new__(cls)
        self._samples, self._rows, self.index = samples, None, index
        self.fs, self.classes, self.channels, self.units = like.fs, like.classes, like.channels, like.units
        self.dataset, self.split = like.dataset, getattr(like, "split", "")
        self.reading = getattr(like, "reading", {})
        return self

    @classmethod
    def from_dataframe(
        cls,
        frame: pd.DataFrame,
        *,
        seconds: float,
        fs: float | None = None,
        label: str | None = None,
        subject: str | None = None,
        recording: str | None = None,
        **options: Any,
    ) -> Windows:
        """Cut windows from a pandas data frame with one row per sample and one column per channel.

        Parameters
        ----------
        frame : the samples; rows of one recording in order of time
        seconds : window length in seconds
        fs : sampling rate in Hz; not needed if `time` names a column of times
        label, subject, recording : columns with the label, the subject and the recording; windows never cross from one
            recording (without that column, subject) to the next, and have a label if one class covers all of them
        options : `channels`, `stride`, `offset`, `min_share`, `time` and `resample`, as for `polyadic.data.folder`

        Examples
        --------
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"x": range(8), "y": range(8), "who": list("aaaabbbb"), "move": ["walk"] * 8})
        >>> Windows.from_dataframe(frame, seconds=1, fs=2, subject="who", label="move")
        <Windows (4, 2, 2), 2 Hz, 2 subjects, 1 class>
        """
        from polyadic.data.cutting import windows_of_frame
        from polyadic.data.reading import Reading

        return windows_of_frame(frame, Reading(seconds=seconds, fs=fs, **options), label, subject, recording)

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
        """Whether samples are read from files on demand."""
        return bool(getattr(self._samples, "on_disk", False))

    @property
    def fingerprint(self) -> dict[str, str]:
        """Values that identify the windows and the order in which a fit visits them; empty for arrays."""
        known: dict[str, str] = getattr(self._samples, "fingerprint", {})
        if self._rows is None:
            return known
        return known | {"rows": hashlib.sha256(np.ascontiguousarray(self._rows, "<i8").tobytes()).hexdigest()}

    @property
    def store(self) -> Any:
        """The `WindowStore` that the windows are from, or None."""
        samples = self._samples.samples if isinstance(self._samples, ChosenChannels) else self._samples
        return samples if hasattr(samples, "recordings") else None

    def __len__(self) -> int:
        return len(self.index)

    def read(self, rows: _Rows) -> NDArray[Any]:
        """Read the samples of some windows: (n, channels, time)."""
        return self._samples.read(self.source(rows))

    def source(self, rows: _Rows) -> _Rows:
        """Return the rows of some windows in the underlying samples, before any selection: (n,)."""
        return rows if self._rows is None else self._rows[rows]

    def raw(self, rows: _Rows) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
        """Read samples as stored, with the scale and offset that convert them to values; see `WindowStore.raw`."""
        return read_raw(self._samples, self.source(rows))

    @property
    def X(self) -> NDArray[Any]:
        """All samples as one array in memory: (N, channels, time)."""
        if isinstance(self._samples, ArraySamples) and self._rows is None:
            return self._samples.X
        return self.read(np.arange(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.X, dtype=dtype, copy=copy)

    def order(self, seed: int, sweep: int) -> _Rows | None:
        """Return the order in which a sweep should visit the windows if reading depends on it, else None."""
        order = getattr(self._samples, "order", None)
        everything = None if order is None else order(seed, sweep)
        if everything is None or self._rows is None:
            return everything
        place = np.full(self._samples.shape[0], -1)
        place[self._rows] = np.arange(len(self._rows))
        chosen: _Rows = place[everything]
        chosen = chosen[chosen >= 0]
        return chosen if len(chosen) == len(self._rows) else None  # some windows were selected twice

    # ------------------------------------------------------------------- index

    @property
    def subject(self) -> NDArray[np.str_]:
        """The subject of each window, "" if unknown: (N,)."""
        return self.index.subjects[self.index.recording]

    @property
    def recording(self) -> NDArray[np.str_]:
        """The recording each window was cut from, "" if unknown: (N,)."""
        return self.index.names[self.index.recording]

    @property
    def part(self) -> NDArray[np.str_]:
        """The part of a published split that each window belongs to, "" if there is none: (N,)."""
        return self.index.parts[self.index.recording]

    @property
    def start(self) -> NDArray[np.int64]:
        """The first sample of each window, counted from the start of its recording, -1 if unknown: (N,)."""
        return self.index.start

    @property
    def label(self) -> NDArray[np.int32]:
        """The class number of each window from 0, -1 if unknown: (N,)."""
        return self.index.label

    def __getitem__(self, rows: Any) -> Windows:
        """Select windows by a slice, row numbers or a mask; use a slice of length one to select a single window."""
        if isinstance(rows, tuple) and len(rows) == 2 and rows[1] is Ellipsis:
            rows = rows[0]  # scikit-learn indexes X[rows, ...] in cross-validation
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.dtype == bool:
                check_column("a mask", rows, len(self))
                rows = np.flatnonzero(rows)
            if rows.ndim != 1 or (rows.dtype.kind not in "iu" and len(rows)):
                raise PolyadicError(f"windows are selected by a slice, a mask or a list of numbers, but got {rows!r}")
            rows = rows.astype(np.intp)
        chosen = type(self).from_index(self._samples, self.index.take(rows), self)
        chosen._rows = (np.arange(len(self)) if self._rows is None else self._rows)[rows]
        return chosen

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("windows cannot be iterated one by one: use read(rows) for a batch, or X for all of them")

    def with_channels(self, channels: Sequence[str]) -> Windows:
        """Return the same windows with these channels, in this order; samples are read on demand.

        Examples
        --------
        >>> Windows(np.zeros((1, 2, 4)), channels=["Fz", "Cz"]).with_channels(["Cz"]).shape
        (1, 1, 4)
        """
        wanted = [channels] if isinstance(channels, str) else list(channels)
        _check_present("channel", wanted, set(self.channels))
        if not wanted or len(set(wanted)) != len(wanted):
            raise PolyadicError(f"channels must be one or more different names, but are {wanted}")
        places = np.array([self.channels.index(name) for name in wanted], np.intp)
        chosen = type(self).from_index(ChosenChannels(self._samples, places), self.index, self)
        chosen._rows, chosen.channels = self._rows, tuple(wanted)
        chosen.units = tuple(self.units[place] for place in places) if self.units else ()
        return chosen

    def select(
        self,
        *,
        subject: str | Sequence[str] | None = None,
        recording: str | Sequence[str] | None = None,
        label: int | str | Sequence[int | str] | None = None,
        part: str | Sequence[str] | None = None,
    ) -> Windows:
        """Return the windows of some subjects, recordings, classes (by number or name) and parts.

        Raises
        ------
        PolyadicError : if a given name does not occur in the windows
        """
        keep = np.ones(len(self), bool)
        index, present = self.index, self.index.present()
        for what, names, wanted in (
            ("subject", index.subjects, subject),
            ("recording", index.names, recording),
            ("part", index.parts, part),
        ):
            if wanted is not None:
                chosen = [str(item) for item in _as_list(wanted)]
                _check_present(what, chosen, set(names[present].tolist()))
                keep &= np.isin(names, chosen)[index.recording]
        if label is not None:
            numbers = [self._class_number(item) for item in _as_list(label)]
            _check_present("label", numbers, set(np.flatnonzero(np.bincount(self.label + 1)) - 1))
            keep &= np.isin(self.label, numbers)
        return self[keep]

    def _class_number(self, label: int | str) -> int:
        if not isinstance(label, str):
            return int(label)
        if label not in self.classes:
            raise PolyadicError(f"label must be one of {', '.join(self.classes)}, but is {label!r}")
        return self.classes.index(label)

    @classmethod
    def concatenate(cls, parts: Sequence[Windows]) -> Windows:
        """Concatenate windows without reading them; shape, rate, channels, units, classes and dataset must agree."""
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
        joined = cls.from_index(Concatenated(parts), Index.concatenate([part.index for part in parts]), first)
        joined.split = first.split if len({part.split for part in parts}) == 1 else ""
        return joined

    def __repr__(self) -> str:
        subjects, classes = self.index.n_subjects, len(self.classes)
        rate = "" if self.fs is None else f", {self.fs:g} Hz"
        counts = f"{subjects} subject{'s' * (subjects != 1)}, {classes} class{'es' * (classes != 1)}"
        return f"<Windows {self.shape}{rate}, {counts}>"


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | int | np.integer) else list(value)


def _check_present(what: str, wanted: list[Any], present: set[Any]) -> None:
    for item in wanted:
        if item not in present:
            raise PolyadicError(f"the windows have no {what} {item!r}")
