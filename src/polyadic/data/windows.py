"""Windows: samples in memory or on disk, with an index of the subject, recording, start and label of each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.checks import Readable
from polyadic.data.labels import UNLABELLED, as_column, as_text, encode_labels
from polyadic.data.subjects import COLUMN, join_sources
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Index", "Windows"]

_Rows = NDArray[np.intp]
_PLACES = 3
"""Maximum number of recordings that `describe_places` names."""


class Windows:
    """Samples with their index; selections are lazy and read samples on demand.

    Parameters
    ----------
    X : (N, channels, time), an array, a memory map or a `WindowStore`; NaN and masked values are missing samples
    fs : sampling rate in Hz, or None if unknown
    subject, recording : (N,), names or numbers
    start : (N,), first sample of each window, counted from the start of its recording
    label : (N,), classes as names or as numbers
    part : (N,), part of a published split that each window belongs to ("train" or "test")
    classes : names of the classes, in the order of the numbers in `label`
    channels, units : names, one per channel
    dataset : name of a published dataset, which protocol "paper" needs to select the split
    index : all columns of (N,), instead of the arguments above

    For windows of a store, the attribute `reading` describes how they were cut from recordings; see
    `polyadic.data.reading.Reading.to_json`.

    In `subject`, `recording` and `label`, the values "", None, NaN, "nan" and -1 mean "unknown".

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
        index: Index | None = None,
    ) -> None:
        if isinstance(X, np.ma.MaskedArray):
            X = np.ma.filled(X.astype(np.result_type(X.dtype, np.float32)), np.nan)
        if not isinstance(X, Readable | np.ndarray):
            X = np.asarray(X)
        if len(X.shape) != 3:
            raise PolyadicError(f"X must have shape (N, channels, time), but has shape {tuple(X.shape)}")
        count, n_channels = X.shape[:2]
        names = tuple(str(name) for name in classes)
        for what, given in (("classes", names), ("channels", tuple(channels))):
            if len(set(given)) != len(given):
                raise PolyadicError(f"{what} must have different names, but are {', '.join(given)}")
        for what, values in (("channels", channels), ("units", units)):
            if len(values) not in (0, n_channels):
                raise PolyadicError(f"{what} must name {n_channels} channels, but names {len(values)}")
        if fs is not None and not 0 < fs < np.inf:
            raise PolyadicError(f"fs must be a positive sampling rate in Hz, but is {fs!r}")
        if index is not None and (len(index) != count or label is not None):
            raise PolyadicError(f"index must have a row for each of {count} windows, and the numbers of their classes")
        codes, names = (None, names) if label is None else encode_labels(label, names, count)
        self._samples: Any = X
        self._rows: _Rows | None = None
        self._places: _Rows | None = None
        self._gains: NDArray[np.float32] | None = None
        self.index = Index.from_columns(count, subject, recording, start, codes, part) if index is None else index
        self.fs = None if fs is None else float(fs)
        self.classes, self.channels, self.units = names, tuple(channels), tuple(units)
        self.dataset = dataset
        self.reading: dict[str, Any] = {}

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
        seconds, fs : window length in seconds, and sampling rate in Hz, unless there are times: a column named time,
            timestamp or datetime, another one that `time` names, or an index of dates
        label, subject, recording : names of columns; windows never cross from one recording (without that column,
            subject) to the next, and have a label if one class covers all of them
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

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, channels, time)."""
        _, channels, time = self._samples.shape
        return (len(self.index), channels if self._places is None else len(self._places), time)

    @property
    def dtype(self) -> np.dtype[Any]:
        native: np.dtype[Any] = np.dtype(self._samples.dtype).newbyteorder("=")
        exact = self._gains is None and (self._places is None or self._places.min() >= 0)
        return native if exact else np.result_type(native, np.float32)

    @property
    def on_disk(self) -> bool:
        """Whether samples are read from files on demand."""
        return bool(getattr(self._samples, "on_disk", isinstance(self._samples, np.memmap)))

    @property
    def fingerprint(self) -> dict[str, str]:
        """Values that identify the windows and the order in which a fit visits them; empty for arrays."""
        known: dict[str, str] = dict(getattr(self._samples, "fingerprint", {}))
        if known and self._places is not None:
            known["channels"] = ",".join(map(str, self._places.tolist()))
        if known and self._gains is not None:
            known["gains"] = ",".join(map(str, self._gains.ravel().tolist()))
        if self._rows is not None:
            known["rows"] = hashlib.sha256(np.ascontiguousarray(self._rows, "<i8").tobytes()).hexdigest()
        return known

    @property
    def store(self) -> Any:
        """The `WindowStore` that the windows are from, or None."""
        return self._samples if hasattr(self._samples, "recordings") else None

    def __len__(self) -> int:
        return len(self.index)

    def source(self, rows: _Rows) -> _Rows:
        """Return the rows of some windows in the underlying samples, before any selection: (n,)."""
        return rows if self._rows is None else self._rows[rows]

    def read(self, rows: _Rows) -> NDArray[Any]:
        """Read the samples of some windows, NaN where they are missing: (n, channels, time)."""
        stored, rows = self._samples, self.source(rows)
        samples = np.asarray(stored[rows] if isinstance(stored, np.ndarray) else stored.read(rows))
        samples = np.asarray(samples, samples.dtype.newbyteorder("="))
        if self._places is not None:
            samples = np.ascontiguousarray(samples[:, self._places], self.dtype)
            if (self._places < 0).any():
                samples[:, self._places < 0] = np.nan
        return samples if self._gains is None else samples * self._gains

    @property
    def X(self) -> NDArray[Any]:
        """All samples as one array in memory: (N, channels, time)."""
        whole = self._rows is None and self._places is None and self._gains is None
        return self._samples if whole and isinstance(self._samples, np.ndarray) else self.read(np.arange(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.X, dtype=dtype, copy=copy)

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
                rows = np.flatnonzero(as_column(rows, "a mask", len(self)))
            if rows.ndim != 1 or (rows.dtype.kind not in "iu" and len(rows)):
                raise PolyadicError(f"windows are selected by a slice, a mask or a list of numbers, but got {rows!r}")
            rows = rows.astype(np.intp)
        chosen = (np.arange(len(self)) if self._rows is None else self._rows)[rows]
        windows = copy(self)
        windows.index, windows._rows = self.index.take(rows), chosen
        return windows

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("windows cannot be iterated one by one: use read(rows) for a batch, or X for all of them")

    def with_channels(self, channels: Sequence[str], *, missing: bool = False) -> Windows:
        """Return the same windows with these channels, in this order; with `missing`, those that they lack are NaN.

        Examples
        --------
        >>> windows = Windows(np.zeros((1, 2, 4)), channels=["Fz", "Cz"])
        >>> windows.with_channels(["Cz"]).shape, windows.with_channels(["Cz", "Pz"], missing=True).X[0, 1, 0]
        ((1, 1, 4), np.float64(nan))
        """
        wanted = [channels] if isinstance(channels, str) else list(channels)
        there = {name: place for place, name in enumerate(self.channels)}
        if not missing or not there.keys() & set(wanted):
            _check_present("channel", wanted, set(there))
        if not wanted or len(set(wanted)) != len(wanted):
            raise PolyadicError(f"channels must be one or more different names, but are {wanted}")
        places = np.array([there.get(name, -1) for name in wanted], np.intp)
        known = places >= 0
        chosen = copy(self)
        chosen._places = places if self._places is None else np.where(known, self._places[places], -1)
        chosen._gains = None if self._gains is None else np.where(known[:, None], self._gains[places], 1)
        chosen.channels = tuple(wanted)
        chosen.units = tuple(self.units[place] if place >= 0 else "" for place in places) if self.units else ()
        return chosen

    def with_labels(self, label: ArrayLike) -> Windows:
        """Return the same windows with other labels: (N,) names, unknown ones as for `Windows`."""
        chosen = copy(self)
        codes, chosen.classes = encode_labels(label, (), len(self))
        chosen.index = replace(self.index, label=codes)
        return chosen

    def with_gains(self, gains: Sequence[float], units: Sequence[str]) -> Windows:
        """Return the same windows with each channel multiplied by a gain, in other units; read on demand."""
        chosen = copy(self)
        chosen._gains = np.array(gains, np.float32)[:, None] * (1 if self._gains is None else self._gains)
        chosen.units = tuple(units)
        return chosen

    def select(
        self,
        *,
        subject: str | Sequence[str] | None = None,
        recording: str | Sequence[str] | None = None,
        label: int | str | Sequence[int | str] | None = None,
        part: str | Sequence[str] | None = None,
    ) -> Windows:
        """Return the windows of some subjects, recordings, classes (by number or name) and parts, which must occur."""
        keep, index = np.ones(len(self), bool), self.index
        columns = {
            "subject": (index.subjects, subject),
            "recording": (index.names, recording),
            "part": (index.parts, part),
        }
        for what, (names, wanted) in columns.items():
            if wanted is not None:
                chosen = [str(item) for item in _as_list(wanted)]
                _check_present(what, chosen, set(names[index.present()].tolist()))
                keep &= np.isin(names, chosen)[index.recording]
        if label is not None:
            places = {name: number for number, name in enumerate(self.classes)}
            numbers = [places.get(item, item) for item in _as_list(label)]
            _check_present("label", numbers, set(np.flatnonzero(np.bincount(self.label + 1)) - 1))
            keep &= np.isin(self.label, numbers)
        return self[keep]

    def __repr__(self) -> str:
        subjects, classes = self.index.n_subjects, len(self.classes)
        rate = "" if self.fs is None else f", {self.fs:g} Hz"
        counts = f"{subjects} subject{'s' * (subjects != 1)}, {classes} class{'es' * (classes != 1)}"
        return f"<Windows {self.shape}{rate}, {counts}>"


def describe_places(windows: Windows, rows: ArrayLike) -> str:
    """Name the recordings of some windows, those with most of them first, and when they begin if that is later.

    Examples
    --------
    >>> windows = Windows(np.zeros((5, 2, 8)), fs=4, recording=[*"aaabb"], start=[0, 8, 16, 0, 8])
    >>> describe_places(windows, [1, 2, 3]), describe_places(Windows(windows.X), [1, 2, 3])
    ('a from 2 s (2 windows), b (1 window)', '3 of 5 windows')
    """
    code, start, chosen = windows.index.recording, windows.start, np.asarray(rows, np.intp)
    if not ((names := windows.index.names) != "").any():
        return f"{len(chosen):,} of {len(windows):,} windows"
    counts, places = np.bincount(code[chosen], minlength=len(names)), []
    found = [int(place) for place in np.argsort(-counts, kind="stable") if counts[place]]
    for place in found[:_PLACES]:
        first, count = int(start[chosen[code[chosen] == place]].min()), int(counts[place])
        later = windows.fs is not None and first > start[code == place].min()
        since = f" from {first / (windows.fs or 1):,g} s" if later else ""
        places.append(f"{names[place]}{since} ({count:,} window{'s' * (count != 1)})")
    return ", ".join(places) + (f" and {len(found) - _PLACES:,} more" if len(found) > _PLACES else "")


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | int | np.integer) else list(value)


def _check_present(what: str, wanted: list[Any], present: set[Any]) -> None:
    for item in wanted:
        if item not in present:
            raise PolyadicError(f"the windows have no {what} {item!r}")


@dataclass(frozen=True, eq=False, repr=False)
class Index:
    """The recording, the start and the class of each window, and the subject of each recording.

    Parameters
    ----------
    recording : (N,) int32, row of the recording in the tables below
    start : (N,) int64, first sample, counted from the start of the recording including gaps, or -1 if unknown
    label : (N,) int32, class number from 0, or -1 if unknown
    names, subjects, parts, subject_sources : (M,) str, name and subject of each recording, its part of a published
        split ("train", "test" or ""), and where its subject was found; see `polyadic.data.subjects`
    """

    recording: NDArray[np.int32]
    start: NDArray[np.int64]
    label: NDArray[np.int32]
    names: NDArray[Any]
    subjects: NDArray[Any]
    parts: NDArray[Any]
    subject_sources: NDArray[Any]

    def __len__(self) -> int:
        return len(self.recording)

    def take(self, rows: _Rows | slice) -> Index:
        """Return the index of some windows, with the same tables of recordings."""
        return replace(self, recording=self.recording[rows], start=self.start[rows], label=self.label[rows])

    def present(self, rows: _Rows | slice = slice(None)) -> NDArray[np.bool_]:
        """Return which recordings of the tables occur among some windows: (M,)."""
        found: NDArray[np.bool_] = np.bincount(self.recording[rows], minlength=len(self.names)) > 0
        return found

    @property
    def n_subjects(self) -> int:
        """The number of known subjects."""
        return len(set(self.subjects[self.present()].tolist()) - {""})

    @property
    def subjects_from(self) -> str:
        """Where the subjects were found, such as "folder names"; "nothing" if none is known."""
        return join_sources(self.subject_sources[self.present() & (self.subjects != "")].tolist())

    @classmethod
    def from_columns(
        cls,
        count: int,
        subject: ArrayLike | None = None,
        recording: ArrayLike | None = None,
        start: ArrayLike | None = None,
        label: NDArray[np.int32] | None = None,
        part: ArrayLike | None = None,
    ) -> Index:
        """Build an index from columns of `count` entries; without recordings, each subject is one recording."""
        known = np.full(count, -1) if start is None else as_column(np.asarray(start), "start", count)
        if known.dtype.kind not in "iu" and count:
            raise PolyadicError(f"start must hold whole numbers of samples, but has type {known.dtype}")
        if (known < -1).any():
            raise PolyadicError(f"start must be a sample number, or -1 if unknown, but got {known.min()}")
        labels = np.full(count, UNLABELLED, np.int32) if label is None else label
        owner = ("subject", subject) if recording is None else ("recording", recording)
        columns = [
            [""] * count if values is None else as_column(values, name, count).tolist()
            for name, values in (owner, ("subject", subject), ("part", part))
        ]
        seen: dict[Any, int] = {}
        codes = np.fromiter((seen.setdefault(row, len(seen)) for row in zip(*columns, strict=True)), np.int32, count)
        origins = [tuple(map(as_text, row)) for row in seen]
        tables = sorted({*origins}) or [("", "", "")]
        for (name, *_), (following, *_) in pairwise(tables):
            if recording is not None and name == following != "":
                raise PolyadicError(
                    f"a recording must have one subject and one part, but recording {name!r} has several"
                )
        places = {origin: place for place, origin in enumerate(tables)}
        codes = np.array([places[origin] for origin in origins], np.int32)[codes]
        names, people, parts = (np.array(column) for column in zip(*tables, strict=True))
        sources = np.where(people == "", "", COLUMN)
        return cls(codes, known.astype(np.int64), labels, names, people, parts, sources)
