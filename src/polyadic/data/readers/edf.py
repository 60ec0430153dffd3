"""Read EDF, EDF+ and BDF files: signals as digital values, annotations, and the gaps of discontinuous files.

edfio reads the digital values. Onsets of data records and annotations are parsed here, because edfio treats files with
gaps (EDF+D) as continuous and reads truncated files as shorter ones: the header is checked against the file size first.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.clock import clock_start
from polyadic.data.readers.common import as_unit, choose_channels, decode_text
from polyadic.data.recordings import Annotation, Recording, Segment, as_values, at_one_rate
from polyadic.errors import DataError, MissingExtraError

__all__ = [
    "common_ending",
    "is_copy_of",
    "is_marked",
    "mark_copy",
    "read_annotations",
    "read_channels",
    "read_edf",
    "read_start",
]

_WIDTHS = {"label": 16, "transducer": 80, "unit": 8, "bottom": 8, "top": 8, "low": 8, "high": 8, "filters": 80}
_RECORDING = slice(88, 168)
"""Bytes of the recording identification in the header; copies written by polyadic are marked at its end."""
_MARK = b" polyadic"
_COMPARED = 64
"""Number of bytes per signal that are compared to recognise a copy."""
_TAL = re.compile(rb"([+-]\d{1,12}(?:\.\d*)?)(?:\x15(\d{1,12}(?:\.\d*)?)?)?\x14(?:(.*)\x14)?", re.DOTALL)


class _Signal(NamedTuple):
    """A signal as the header describes it; `fields` are checked only if the signal is selected."""

    label: str
    unit: str
    samples: int
    first_byte: int
    fields: dict[str, bytes]


class _Header:
    """The header of a file, checked against the size of the file before any sample is read."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path.name
        check_regular_file(path)
        try:
            with path.open("rb") as stream:
                self.head = stream.read(256)
                count = self._number("number of signals", self.head[252:256], int) if len(self.head) == 256 else 0
                size = os.fstat(stream.fileno()).st_size
                rest = stream.read(min(256 * max(count, 0), size))
        except OSError as error:
            raise DataError(f"{self.file}: cannot be opened: {error.strerror}") from error
        if self.head[:8].rstrip() != b"0" and self.head[:8] != b"\xffBIOSEMI":
            raise DataError(f"{self.file}: must begin with '0' (EDF) or '\\xffBIOSEMI' (BDF), but is another file")
        self.begin = 256 * (count + 1)
        if not rest or len(rest) < 256 * count or self._number("size", self.head[184:192], int) != self.begin:
            raise DataError(f"{self.file}: the header must have {self.begin} bytes (signals: {count}), but does not")
        self.width = 3 if self.head[0] == 0xFF else 2
        self.signals = tuple(self._parse_signals(rest, count))
        self.record_bytes = sum(one.samples for one in self.signals) * self.width
        self.duration = self._number("duration of a data record", self.head[244:252], float)
        kind = "EDF Annotations" if self.width == 2 else "BDF Annotations"
        self.ordinary = [one for one in self.signals if one.label != kind]
        self.annotations = [one for one in self.signals if one.label == kind]
        # Only files that contain nothing but annotations may have records of duration 0.
        if not 0 <= self.duration < math.inf or (self.ordinary and not 0 < self.rate(self.ordinary[0]) < math.inf):
            raise DataError(f"{self.file}: data records of {self.duration:g} s do not give a valid sampling rate")
        self.records = self._number("number of data records", self.head[236:244], int)
        if self.records == -1:  # still being written
            self.records = (size - self.begin) // self.record_bytes
        needed = self.begin + self.records * self.record_bytes
        if self.records < 1 or needed != size:
            raise DataError(
                f"{self.file}: the file must have {needed} bytes (header: {self.begin}, data records: {self.records} x "
                f"{self.record_bytes}), but has {size}"
            )

    def _parse_signals(self, rest: bytes, count: int) -> Iterator[_Signal]:
        columns, start, first_byte = {}, 0, 0
        for name, width in {**_WIDTHS, "samples": 8}.items():
            columns[name] = [rest[start + i * width : start + (i + 1) * width] for i in range(count)]
            start += width * count
        for i in range(count):
            fields = {name: column[i] for name, column in columns.items()}
            label, unit = (decode_text(fields[name]).strip() for name in ("label", "unit"))
            if not (label + unit).isprintable():
                raise DataError(f"{self.file}: label and unit of signal {i + 1} must be text, but are {label + unit!r}")
            samples = self._number(f"number of samples of {label!r} per data record", fields["samples"], int)
            if samples < 1:
                raise DataError(f"{self.file}: {label!r} must have at least one sample per data record, not {samples}")
            yield _Signal(label, as_unit(unit), samples, first_byte, fields)
            first_byte += samples * self.width

    def _number(self, what: str, raw: bytes, kind: Any) -> Any:
        text = decode_text(raw).strip()
        try:
            return kind(text)
        except ValueError:
            raise DataError(f"{self.file}: the {what} must be a number, but is {text!r}") from None

    def rate(self, signal: _Signal) -> float:
        return signal.samples / self.duration if self.duration else math.inf

    def calibration(self, signal: _Signal) -> tuple[float, float, list[int]]:
        """Return scale and offset of a signal, and its digital minimum and maximum."""
        low, high = (self._number(f"digital limit of {signal.label!r}", signal.fields[k], int) for k in ("low", "high"))
        bottom, top = (
            self._number(f"physical limit of {signal.label!r}", signal.fields[k], float) for k in ("bottom", "top")
        )
        most = 1 << 8 * self.width - 1
        if not -most <= low < high < most:
            raise DataError(
                f"{self.file}: the digital values of {signal.label!r} must have a minimum below their maximum, "
                f"both within {-most} … {most - 1}, but have {low} … {high}"
            )
        scale = (top - bottom) / (high - low)
        # Outside this range, float32 would overflow, or all values would be 0.
        if not (abs(scale) > 1e-37 and max(abs(bottom), abs(top), abs(scale) * 2 * most) < 1e37):
            raise DataError(
                f"{self.file}: the physical range of {signal.label!r} must not be empty or too large for float32, "
                f"but is {bottom:g} … {top:g}"
            )
        return scale, bottom - low * scale, [low, high]

    @cached_property
    def times(self) -> tuple[float, list[Decimal | None], tuple[Annotation, ...]]:
        """The onset of the first sample, the onsets of the data records, and the annotations.

        The first is in seconds after the start time of the file. The others are in seconds from the first sample, or
        from the start time if there are no samples. The onset of a record that does not give one is None.
        """
        if not self.annotations:
            return 0.0, [], ()
        content = np.memmap(self.path, np.uint8, "r", self.begin, (self.records, self.record_bytes))
        onsets: list[Decimal | None] = []
        parsed = []
        for number, signal in enumerate(self.annotations):
            stop = signal.first_byte + signal.samples * self.width
            for record, raw in enumerate(np.asarray(content)[:, signal.first_byte : stop]):
                tals = self._parse_tals(record, raw.tobytes())
                if number == 0:
                    # Timekeeping: the first annotation of a record is empty, and its onset is the onset of the record.
                    onsets.append(tals[0][0] if tals and tals[0][1] is None and tals[0][2][0] == "" else None)
                parsed += [(onset, duration, text.strip()) for onset, duration, texts in tals for text in texts]
        zero = onsets[0] or Decimal(0)
        if zero >= 1 and not self.ordinary:
            zero = Decimal(0)  # start times are whole seconds, so a larger offset is the onset of an annotation
        annotations = [
            Annotation(float(onset - zero), float(duration or 0), text)
            for onset, duration, text in parsed
            if text or duration is not None
        ]
        shifted = [None if onset is None else onset - zero for onset in onsets]
        return float(zero), shifted, tuple(sorted(annotations, key=lambda annotation: annotation.onset))

    def _parse_tals(self, record: int, raw: bytes) -> list[tuple[Decimal, Decimal | None, list[str]]]:
        """Parse the time-stamped annotation lists (TALs) of a record into onset, duration or None, and texts."""
        tals = []
        for part in filter(None, raw.split(b"\x00")):
            match = _TAL.fullmatch(part)
            try:
                if match is None:
                    raise ValueError("must have the form onset, duration, texts")
                onset, duration, texts = ((group or b"").decode() for group in match.groups())
            except ValueError as error:
                raise DataError(
                    f"{self.file}: annotations of data record {record + 1}: {error}: {part[:40]!r}"
                ) from error
            tals.append((Decimal(onset), Decimal(duration) if duration else None, texts.split("\x14")))
        return tals

    def segments(self, fs: float) -> list[tuple[int, float]]:
        """Return the first record and the onset in seconds of each segment; gaps exceed half a sample at rate `fs`."""
        continuous = {b"DF+C": True, b"DF+D": False}.get(self.head[193:197])
        known = [float(onset) for onset in self.times[1] if onset is not None]
        complete = bool(known) and len(known) == self.records
        if continuous is False and not complete:
            raise DataError(f"{self.file}: data records of a discontinuous file must have onsets, but some do not")
        if continuous or not complete:
            return [(0, 0.0)]
        gaps = np.diff(known) - self.duration
        if (back := np.flatnonzero(gaps < -0.5 / fs)).size:
            record = int(back[0])
            raise DataError(
                f"{self.file}: data record {record + 2} must begin after the previous record ends at "
                f"{known[record] + self.duration:g} s, but begins at {known[record + 1]:g} s"
            )
        return [(0, known[0]), *((int(record), known[record]) for record in np.flatnonzero(gaps > 0.5 / fs) + 1)]

    @property
    def began(self) -> str:
        """When the first sample was recorded; "" if unknown.

        In EDF+, the date 01.01.85 means unknown, and the recording identification has the year in four digits. Without
        a date, midnight also means unknown.
        """
        stated = re.search(rb"\d\d\.\d\d\.\d\d" * 2, self.head[168:184])
        if stated is None:
            return ""
        day, month, year, hour, minute, second = (int(part) for part in re.findall(rb"\d\d", stated[0]))
        whole = re.match(rb"Startdate \d\d-[A-Z]{3}-(\d{4}) ", self.head[_RECORDING])
        try:
            start: date | None = date(int(whole[1]) if whole else year + (1900 if year >= 85 else 2000), month, day)
            if not whole and (day, month, year) == (1, 1, 85):
                start = None
            at = time(hour, minute, second)
            return "" if start is None and at == time() else clock_start(start, at, self.times[0])
        except ValueError:
            return ""

    def digits(self, places: Sequence[int]) -> Iterator[NDArray[Any]]:
        """Yield the digital values of the signals at these places among the ordinary ones: (samples,) each."""
        try:
            import edfio
        except ImportError as error:
            raise MissingExtraError(
                "EDF files need edfio, which is not installed: pip install 'polyadic[edf]'"
            ) from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if self.width == 2:
                    opened: Any = edfio.read_edf(self.path, lazy_load_data=True, header_encoding="latin-1")
                else:
                    opened = edfio.read_bdf(self.path, header_encoding="latin-1")
            remaining: list[Any] = list(opened.signals)
            for place in places:
                yield np.asarray(remaining[place].digital)
                remaining[place] = None  # a signal keeps its samples in memory until it is freed
        except Exception as error:
            raise DataError(f"{self.file}: edfio cannot read the signals: {error}") from error


def read_edf(
    path: str | os.PathLike[str],
    *,
    channels: Sequence[str] | None = None,
    fs: float | None = None,
    resample: Literal["hold", "polyphase"] | Mapping[str, str | None] | None = None,
    name: str | None = None,
    subject: str | None = None,
    signals: bool = True,
) -> Recording:
    """Read an EDF, EDF+ or BDF file; a file that declares itself continuous (EDF+C) is read without gaps.

    Parameters
    ----------
    path : path to the file
    channels : names of channels to read, in this order; all signals except annotations if None
    fs : sampling rate in Hz; the highest rate of the selected channels if None
    resample : how to resample channels whose rate is not `fs`. "hold" repeats samples by integer factors, "polyphase"
        filters each segment and returns float32 values, None raises an error. A mapping sets it for each channel by
        name
    name : name of the recording; by default the file name without its extension
    subject : name of the subject; by default the name of the recording
    signals : if False, only lengths, times and annotations are read, and all samples are 0

    Returns
    -------
    Recording with signals of shape (channels, samples): int16 digital values, or float32 physical values for 24-bit BDF
    and after "polyphase"

    Raises
    ------
    DataError : if the file is damaged, or does not have the requested channels or rates
    MissingExtraError : if edfio is not installed
    """
    path = Path(path)
    header = _Header(path)
    if not header.ordinary:
        raise DataError(
            f"{header.file}: must have signals, but has only annotations: if it scores another recording, use "
            f"--scoring '*{common_ending(header.file)}'"
        )
    places = choose_channels(header.file, [one.label for one in header.ordinary], channels)
    chosen = [header.ordinary[place] for place in places]
    segments = header.segments(max(header.rate(one) for one in chosen))
    name = path.stem if name is None else name
    calibrations = [header.calibration(one) for one in chosen]
    zero = np.zeros((), np.int16 if header.width == 2 else np.int32)
    silence = (np.broadcast_to(zero, (header.records * one.samples,)) for one in chosen)
    rows = []
    for signal, (scale, offset, limits), digits in zip(
        chosen, calibrations, header.digits(places) if signals else silence, strict=True
    ):
        row = Recording(
            name=name,
            subject=name if subject is None else subject,
            fs=header.rate(signal),
            channels=(signal.label,),
            units=(signal.unit,),
            signal=digits[None] if header.width == 2 else np.broadcast_to(np.zeros((), np.int16), (1, len(digits))),
            scale=np.array([scale]),
            offset=np.array([offset]),
            annotations=header.times[2],
            segments=tuple(Segment(record * signal.samples, onset) for record, onset in segments),
            limits=np.array([limits]),
            began=header.began,
        )
        rows.append(row if header.width == 2 else as_values(row, digits[None]))
    return at_one_rate(header.file, rows, fs, resample)


def read_annotations(path: str | os.PathLike[str]) -> tuple[Annotation, ...]:
    """Read the annotations of an EDF+ or BDF+ file, such as a hypnogram, in order of onset.

    Raises
    ------
    DataError : if the file is damaged or has no annotation signal
    """
    header = _Header(Path(path))
    if not header.annotations:
        raise DataError(f"{header.file}: must have an annotation signal, but has none")
    return header.times[2]


def read_channels(path: str | os.PathLike[str]) -> dict[str, tuple[float, str]]:
    """Read the sampling rate in Hz and the unit of every channel, by name; empty if the file has only annotations."""
    header = _Header(Path(path))
    return {one.label: (header.rate(one), one.unit) for one in header.ordinary}


def read_start(path: str | os.PathLike[str]) -> str:
    """Read the start date and time of a file, in the format of the header: "dd.mm.yyhh.mm.ss"."""
    return decode_text(_Header(Path(path)).head[168:184])


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


def is_copy_of(path: Path, other: Path) -> bool:
    """Whether two files have the same signals, judged by their headers and the first samples of each signal."""
    try:
        return _outline(path) == _outline(other)
    except DataError:
        return False


def _outline(path: Path) -> tuple[object, ...]:
    """Return the start time and the duration of a file, and name, rate and first samples of each signal."""
    header = _Header(path)
    outline: list[object] = [header.head[168:184], header.records * header.duration]
    with path.open("rb") as file:
        for signal in header.ordinary:
            file.seek(header.begin + signal.first_byte)
            first = file.read(min(signal.samples * header.width, _COMPARED))
            outline.append((signal.label, header.rate(signal), first))
    return tuple(outline)
