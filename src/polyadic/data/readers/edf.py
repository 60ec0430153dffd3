"""Read EDF, EDF+ and BDF files with edfio: digital values, annotations, and the gaps of discontinuous files.

Time-stamped annotations (TALs) are parsed here, because edfio treats files with gaps (EDF+D) as continuous, and takes
the first annotation of a data record for its onset even if that is missing.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from polyadic._util.files import check_regular_file
from polyadic.data.clock import clock_start
from polyadic.data.readers.common import as_unit, choose_channels, decode_text
from polyadic.data.recordings import Annotation, Recording, Segment, read_later
from polyadic.data.resampling import as_values, at_one_rate
from polyadic.errors import DataError, MissingExtraError

__all__ = [
    "common_ending",
    "is_marked",
    "mark_copy",
    "outline",
    "read_annotations",
    "read_channels",
    "read_edf",
    "read_start",
]

_RECORDING = slice(88, 168)
"""Bytes of the recording identification in the header; copies written by polyadic are marked at its end."""
_MARK = b" polyadic"
_TAL = re.compile(rb"([+-]\d{1,12}(?:\.\d*)?)(?:\x15(\d{1,12}(?:\.\d*)?)?)?\x14(?:(.*)\x14)?", re.DOTALL)


class _File:
    """A file as edfio opens it; the signals of EDF files are still on disk, those of BDF files in memory."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        check_regular_file(path)
        try:
            with path.open("rb") as stream:
                self.head = stream.read(256)
        except OSError as error:
            raise DataError(f"{self.name}: cannot be opened: {error.strerror}") from error
        if self.head[:8].rstrip() != b"0" and self.head[:8] != b"\xffBIOSEMI":
            raise DataError(f"{self.name}: must begin with '0' (EDF) or '\\xffBIOSEMI' (BDF), but is another file")
        try:
            import edfio
        except ImportError as error:
            raise MissingExtraError(
                "EDF files need edfio, which is not installed: pip install 'polyadic[edf]'"
            ) from error
        read = edfio.read_edf if self.head[0] != 0xFF else edfio.read_bdf
        try:
            with warnings.catch_warnings():
                # edfio warns about truncated files, and about records left open (-1) while a file is being written.
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", r"\w+ header indicates -1 ")
                self.edf: Any = read(path, header_encoding="latin-1")
            self.signals: list[Any] = list(self.edf.signals)
            self.annotated: list[Any] = list(self.edf._annotation_signals)
            self.labels = [_text(one.label) for one in self.signals]
            self.records, self.duration = self.edf.num_data_records, self.edf.data_record_duration
            valid = min(one.samples_per_data_record for one in self.edf._signals) > 0
        except Exception as error:  # edfio raises many types on damaged headers
            raise DataError(f"{self.name}: the file is damaged or incomplete: {str(error).split('. ')[0]}") from error
        if (
            not valid
            or not 0 <= self.duration < math.inf
            or not all(0 < one.sampling_frequency < math.inf for one in self.signals)
        ):
            raise DataError(f"{self.name}: data records of {self.duration:g} s do not give a valid sampling rate")

    @cached_property
    def times(self) -> tuple[float, list[Decimal | None], tuple[Annotation, ...]]:
        """The onset of the first sample, the onsets of the data records or None, and the annotations.

        The first is in seconds after the start time of the file, the others from the first sample, or from the start
        time if the file has only annotations.
        """
        onsets: list[Decimal | None] = []
        parsed = []
        for number, signal in enumerate(self.annotated):
            for record, raw in enumerate(signal.digital.reshape(self.records, -1)):
                tals = self._parse_tals(record, raw.tobytes())
                if number == 0:
                    # Timekeeping: the first annotation of a record is empty, and its onset is the onset of the record.
                    onsets.append(tals[0][0] if tals and tals[0][1] is None and tals[0][2][0] == "" else None)
                parsed += [(onset, duration, text.strip()) for onset, duration, texts in tals for text in texts]
        zero = next(iter(onsets), None) or Decimal(0)
        if zero >= 1 and not self.signals:
            zero = Decimal(0)  # start times are whole seconds, so a larger offset is the onset of an annotation
        annotations = [
            Annotation(float(onset - zero), float(duration or 0), text)
            for onset, duration, text in parsed
            if text or duration is not None
        ]
        shifted = [None if onset is None else onset - zero for onset in onsets]
        return float(zero), shifted, tuple(sorted(annotations, key=lambda annotation: annotation.onset))

    def _parse_tals(self, record: int, raw: bytes) -> list[tuple[Decimal, Decimal | None, list[str]]]:
        """Parse the annotations of a data record into onset, duration or None, and texts."""
        tals = []
        for part in filter(None, raw.split(b"\x00")):
            try:
                match = _TAL.fullmatch(part)
                if match is None:
                    raise ValueError("must have the form onset, duration, texts")
                onset, duration, texts = ((group or b"").decode() for group in match.groups())
            except ValueError as error:
                raise DataError(
                    f"{self.name}: annotations of data record {record + 1}: {error}: {part[:40]!r}"
                ) from error
            tals.append((Decimal(onset), Decimal(duration) if duration else None, texts.split("\x14")))
        return tals

    def segments(self, fs: float) -> list[tuple[int, float]]:
        """Return the first record and the onset in seconds of each segment; gaps exceed half a sample at rate `fs`."""
        continuous = {b"DF+C": True, b"DF+D": False}.get(self.head[193:197])
        known = [float(onset) for onset in self.times[1] if onset is not None]
        complete = bool(known) and len(known) == self.records
        if continuous is False and not complete:
            raise DataError(f"{self.name}: data records of a discontinuous file must have onsets, but some do not")
        if continuous or not complete:
            return [(0, 0.0)]
        gaps = np.diff(known) - self.duration
        if (back := np.flatnonzero(gaps < -0.5 / fs)).size:
            record = int(back[0])
            raise DataError(
                f"{self.name}: data record {record + 2} must begin after the previous record ends at "
                f"{known[record] + self.duration:g} s, but begins at {known[record + 1]:g} s"
            )
        return [(0, known[0]), *((int(record), known[record]) for record in np.flatnonzero(gaps > 0.5 / fs) + 1)]

    @property
    def began(self) -> str:
        """When the first sample was recorded; "" if unknown.

        In EDF+, the date 01.01.85 means unknown, and the recording identification has the year in four digits. Without
        a date, midnight also means unknown.
        """
        stated = re.fullmatch(rb"\d\d\.\d\d\.\d\d\d\d\.\d\d\.\d\d", self.head[168:184])
        if stated is None:
            return ""
        day, month, year, hour, minute, second = (int(part) for part in re.findall(rb"\d\d", stated[0]))
        whole = re.match(rb"Startdate \d\d-[A-Z]{3}-(\d{4}) ", self.head[_RECORDING])
        unknown = not whole and (day, month, year) == (1, 1, 85)
        try:
            start = date(int(whole[1]) if whole else year + (1900 if year >= 85 else 2000), month, day)
            at = time(hour, minute, second)
        except ValueError:
            return ""
        return "" if unknown and at == time() else clock_start(None if unknown else start, at, self.times[0])


def read_edf(
    path: str | os.PathLike[str],
    *,
    channels: Sequence[str] | None = None,
    fs: float | None = None,
    resample: str | Mapping[str, str | None] | None = None,
) -> Recording:
    """Open an EDF, EDF+ or BDF file; a file that declares itself continuous (EDF+C) is read without gaps.

    Parameters
    ----------
    channels : names of channels to read, in this order; all signals except annotations if None
    fs, resample : as for `polyadic.data.resampling.at_one_rate`

    Returns
    -------
    recording named after the file, whose samples are read when they are needed: int16 digital values, or float32
    physical values for 24-bit BDF and after "polyphase"

    Raises
    ------
    DataError : if the file is damaged, or does not have the requested channels or rates
    MissingExtraError : if edfio is not installed
    """
    file = _File(Path(path))
    if not file.signals:
        raise DataError(
            f"{file.name}: must have signals, but has only annotations: if it scores another recording, use "
            f"--scoring '*{common_ending(file.name)}'"
        )
    chosen = [file.signals[place] for place in choose_channels(file.name, file.labels, channels)]
    segments = file.segments(max(one.sampling_frequency for one in chosen))
    return at_one_rate(file.name, [_row(file, one, segments) for one in chosen], fs, resample)


def _row(file: _File, signal: Any, segments: Sequence[tuple[int, float]]) -> Recording:
    """Return a signal as a recording of one channel, whose samples are read when they are needed."""
    scale, offset, limits = _calibration(file.name, signal)
    fs, began, name = signal.sampling_frequency, file.began, Path(file.name).stem

    def read(first: int, stop: int) -> Recording:
        digits = signal.get_digital_slice(first / fs, stop / fs)[None]
        narrow = digits.dtype == np.int16
        part = Recording(
            name=name,
            subject=name,
            fs=fs,
            channels=(_text(signal.label),),
            units=(as_unit(_text(signal.physical_dimension)),),
            signal=digits if narrow else np.zeros((1, 1), np.int16),
            scale=np.array([scale]),
            offset=np.array([offset]),
            limits=np.array([limits]),
            began=began,
        )
        return part if narrow else as_values(part, digits)

    sample, count = read(0, 1), signal.samples_per_data_record
    gaps = tuple(Segment(record * count, onset) for record, onset in segments)
    return read_later(replace(sample, annotations=file.times[2]), sample, read, file.records * count, gaps)


def _text(field: str) -> str:
    return decode_text(field.encode("latin-1")).strip()


def _calibration(file: str, signal: Any) -> tuple[float, float, tuple[int, int]]:
    """Return scale and offset of a signal, and its digital minimum and maximum."""
    try:
        (low, high), (bottom, top) = signal.digital_range, signal.physical_range
    except ValueError as error:
        raise DataError(f"{file}: the limits of {signal.label!r} must be numbers: {error}") from error
    most = 1 << (15 if type(signal).__name__ == "EdfSignal" else 23)
    if not -most <= low < high < most:
        raise DataError(
            f"{file}: the digital values of {signal.label!r} must have a minimum below their maximum, both within "
            f"{-most} … {most - 1}, but have {low} … {high}"
        )
    scale = (top - bottom) / (high - low)
    # Outside this range, float32 would overflow, or all values would be 0.
    if not (abs(scale) > 1e-37 and max(abs(bottom), abs(top), abs(scale) * 2 * most) < 1e37):
        raise DataError(
            f"{file}: the physical range of {signal.label!r} must not be empty or too large for float32, but is "
            f"{bottom:g} … {top:g}"
        )
    return scale, bottom - low * scale, (low, high)


def read_annotations(path: str | os.PathLike[str]) -> tuple[Annotation, ...]:
    """Read the annotations of an EDF+ or BDF+ file, such as a hypnogram, in order of onset.

    Raises
    ------
    DataError : if the file is damaged or has no annotation signal
    """
    file = _File(Path(path))
    if not file.annotated:
        raise DataError(f"{file.name}: must have an annotation signal, but has none")
    return file.times[2]


def read_channels(path: str | os.PathLike[str]) -> dict[str, tuple[float, str]]:
    """Read the sampling rate in Hz and the unit of every channel, by name; empty if the file has only annotations."""
    file = _File(Path(path))
    return {
        label: (one.sampling_frequency, as_unit(_text(one.physical_dimension)))
        for label, one in zip(file.labels, file.signals, strict=True)
    }


def read_start(path: str | os.PathLike[str]) -> str:
    """Read the start date and time of a file, in the format of the header: "dd.mm.yyhh.mm.ss"."""
    return decode_text(_File(Path(path)).head[168:184])


def common_ending(file: str) -> str:
    """Return the end of a file name that files of the same kind most likely share.

    Examples
    --------
    >>> common_ending("SC4001EC-Hypnogram.edf"), common_ending("S1_events.csv"), common_ending("S1.csv")
    ('-Hypnogram.edf', '_events.csv', '.csv')
    """
    match = re.search(r"[-_][A-Za-z]+\.\w+$", file) or re.search(r"\.\w+(?:\.gz)?$", file)
    return match[0] if match else file


# ------------------------------------------------------------------------------------------ copies written by polyadic


def mark_copy(content: bytes) -> bytes:
    """Mark the content of an EDF+ or BDF+ file as written by polyadic, in the recording identification."""
    stated = content[_RECORDING].rstrip() or b"Startdate X X X X"
    room = _RECORDING.stop - _RECORDING.start
    marked = stated[: room - len(_MARK)].removesuffix(_MARK) + _MARK
    return content[: _RECORDING.start] + marked.ljust(room) + content[_RECORDING.stop :]


def is_marked(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a copy of a recording that polyadic wrote."""
    try:
        with Path(path).open("rb") as file:
            return file.read(256)[_RECORDING].rstrip().endswith(_MARK)
    except OSError:  # reported when the file is read
        return False


def outline(path: Path) -> tuple[Any, ...] | None:
    """Return what copies of a file have in common: start, length, signals, first data record; None if it is damaged."""
    try:
        file = _File(path)
    except DataError:
        return None
    first = tuple(signal.get_digital_slice(0, file.duration).tobytes() for signal in file.signals)
    return file.head[168:184], file.records * file.duration, tuple(file.labels), first
