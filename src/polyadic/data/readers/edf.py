"""Read EDF, EDF+ and BDF files with edfio: signals, annotations, and the gaps of discontinuous files.

Time-stamped annotations (TALs) are parsed here, because edfio treats files with gaps (EDF+D) as continuous, and takes
the first annotation of a data record for its onset even if that is missing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.packages import import_package
from polyadic.data.channels import as_unit
from polyadic.data.readers.common import Layout, SignalFile, check_file, decode_text
from polyadic.data.recordings import Annotation, clock_time
from polyadic.errors import DataError

_IDENTIFICATION = slice(88, 168)
"""Bytes of the recording identification in the header; copies written by polyadic are marked at its end."""
_START = slice(168, 184)
_MARK = b" polyadic"
_TAL = re.compile(rb"([+-]\d{1,12}(?:\.\d*)?)(?:\x15(\d{1,12}(?:\.\d*)?)?)?\x14(?:(.*)\x14)?", re.DOTALL)
"""Onset, duration, and texts separated by \\x14."""


class EdfFile(SignalFile):
    """An EDF, EDF+ or BDF file; the samples of EDF files stay on disk, those of BDF files are in memory."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        self.name = path.name
        check_file(path)
        self._head = _read_head(path)
        if self._head[:8].rstrip() != b"0" and self._head[:8] != b"\xffBIOSEMI":
            raise DataError(f"{self.name}: must begin with '0' (EDF) or '\\xffBIOSEMI' (BDF), but is another file")
        edfio = import_package("edfio", self.name)
        read = edfio.read_bdf if self._head[0] == 0xFF else edfio.read_edf
        try:
            with warnings.catch_warnings():
                # edfio warns about truncated files, and about records left open (-1) while a file is being written.
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", r"\w+ header indicates -1 ")
                edf: Any = read(path, header_encoding="latin-1")
            self._signals: list[Any] = list(edf.signals)
            self._annotated: list[Any] = list(edf._annotation_signals)
            self.labels = [_text(signal.label) for signal in self._signals]
            self.units = [as_unit(_text(signal.physical_dimension)) for signal in self._signals]
            self.counts = [signal.samples_per_data_record for signal in self._signals]
            rates = [float(signal.sampling_frequency) for signal in self._signals]
            self._records, self._duration = edf.num_data_records, edf.data_record_duration
        except Exception as error:  # edfio raises many types on damaged headers
            raise DataError(f"{self.name}: the file is damaged or incomplete: {str(error).split('. ')[0]}") from error
        if not all(0 < rate < np.inf for rate in rates):
            raise DataError(f"{self.name}: data records of {self._duration:g} s do not give a valid sampling rate")
        self.rates = dict(zip(self.labels, rates, strict=True))

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """The annotations in order of onset, such as those of a hypnogram."""
        if not self._annotated:
            raise DataError(f"{self.name}: must have an annotation signal, but has none")
        return self._times[2]

    @cached_property
    def _times(self) -> tuple[float, list[float | None], tuple[Annotation, ...]]:
        """The onset of the first sample, the onsets of the data records or None, and the annotations.

        The first is in seconds after the start time of the file, the others from the first sample, or from the start
        time if the file has only annotations.
        """
        onsets: list[Decimal | None] = []
        parsed = []
        for number, signal in enumerate(self._annotated):
            for record, raw in enumerate(signal.digital.reshape(self._records, -1)):
                kept = None  # of timekeeping: the first annotation of a record is empty, and has the record's onset
                for place, part in enumerate(filter(None, raw.tobytes().split(b"\x00"))):
                    match = _TAL.fullmatch(part)
                    if match is None:
                        damaged = f"annotations of data record {record + 1} are damaged: {part[:40]!r}"
                        raise DataError(f"{self.name}: {damaged}")
                    onset, duration, texts = (decode_text(group or b"") for group in match.groups())
                    if place == 0 and not duration and texts.split("\x14")[0] == "":
                        kept = Decimal(onset)
                    parsed += [(Decimal(onset), duration, text.strip()) for text in texts.split("\x14")]
                onsets += [kept] if number == 0 else []
        zero = next(iter(onsets), None) or Decimal(0)
        if zero >= 1 and not self._signals:
            zero = Decimal(0)  # start times are whole seconds, so a larger offset is the onset of an annotation
        annotations = [
            Annotation(float(onset - zero), float(duration or 0), text)
            for onset, duration, text in parsed
            if text or duration
        ]
        shifted = [None if onset is None else float(onset - zero) for onset in onsets]
        return float(zero), shifted, tuple(sorted(annotations, key=lambda annotation: annotation.onset))

    def _segments(self, fs: float) -> list[tuple[int, float]]:
        """Return the first record and the onset in seconds of each segment; gaps exceed half a sample at rate `fs`.

        A file that declares itself continuous (EDF+C) has no gaps.
        """
        kind = self._head[193:197]
        onsets = [onset for onset in self._times[1] if onset is not None]
        complete = bool(onsets) and len(onsets) == self._records
        if kind == b"DF+D" and not complete:
            raise DataError(f"{self.name}: data records of a discontinuous file must have onsets, but some do not")
        if kind == b"DF+C" or not complete:
            return [(0, 0.0)]
        gaps = np.diff(onsets) - self._duration
        if (back := np.flatnonzero(gaps < -0.5 / fs)).size:
            record = int(back[0])
            raise DataError(
                f"{self.name}: data record {record + 2} must begin after the previous record ends at "
                f"{onsets[record] + self._duration:g} s, but begins at {onsets[record + 1]:g} s"
            )
        return [(0, onsets[0]), *((int(record), onsets[record]) for record in np.flatnonzero(gaps > 0.5 / fs) + 1)]

    @property
    def _began(self) -> str:
        """When the first sample was recorded; "" if unknown.

        In EDF+, the date 01.01.85 means unknown, and the recording identification has the year in four digits. Without
        a date, midnight also means unknown.
        """
        try:
            start = datetime.strptime(decode_text(self._head[_START]), "%d.%m.%y%H.%M.%S")
        except ValueError:
            return ""
        stated = re.match(rb"Startdate \d\d-[A-Z]{3}-(\d{4}) ", self._head[_IDENTIFICATION])
        year = int(stated[1]) if stated else start.year % 100 + (1900 if start.year % 100 >= 85 else 2000)
        if stated or (start.day, start.month, year) != (1, 1, 1985):
            return clock_time(start.replace(year=year), self._times[0])
        return clock_time(start.time(), self._times[0]) if start.time().isoformat() != "00:00:00" else ""

    def layout(self, numbers: Sequence[int]) -> Layout:
        for number in numbers:
            if not self._scale(number):
                raise DataError(f"{self.name}: the ranges of {self.labels[number]!r} must be numbers and not empty")
        segments = self._segments(max(self._signals[number].sampling_frequency for number in numbers))
        return Layout(numbers, self._records, segments, self._times[2], self._began)

    def read_frames(self, layout: Layout, numbers: Sequence[int], first: int, stop: int) -> Iterator[NDArray[Any]]:
        for number in numbers:
            signal = self._signals[number]
            digits = signal.get_digital_slice(first * self._duration, stop * self._duration)
            yield (digits - float(signal.digital_range[0])) * self._scale(number) + signal.physical_range[0]

    def _scale(self, number: int) -> float:
        """Return the value of one digit of a signal, 0 if its ranges are damaged."""
        try:
            (low, high), (bottom, top) = self._signals[number].digital_range, self._signals[number].physical_range
            return float((top - bottom) / (high - low))
        except (ValueError, ZeroDivisionError):
            return 0.0


def _text(field: str) -> str:
    return decode_text(field.encode("latin-1")).strip()


def _read_head(path: str | Path) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(256)


def begin_together(path: str | Path, other: str | Path) -> bool:
    """Whether two files have the same start date and time in their headers."""
    return _read_head(path)[_START] == _read_head(other)[_START]


def mark_copy(content: bytes) -> bytes:
    """Mark the content of an EDF+ or BDF+ file as written by polyadic, in the recording identification."""
    stated = content[_IDENTIFICATION].rstrip() or b"Startdate X X X X"
    room = _IDENTIFICATION.stop - _IDENTIFICATION.start
    marked = stated[: room - len(_MARK)].removesuffix(_MARK) + _MARK
    return content[: _IDENTIFICATION.start] + marked.ljust(room) + content[_IDENTIFICATION.stop :]


def find_copies(paths: Iterable[Path]) -> list[Path]:
    """Return the copies that polyadic wrote of recordings in the same folder."""
    files = [path for path in paths if path.suffix.lower() in (".edf", ".bdf") and path.is_file()]
    copies = [path for path in files if _read_head(path)[_IDENTIFICATION].rstrip().endswith(_MARK)]
    originals = {path.parent for path in files if path not in copies}
    return [path for path in copies if path.parent in originals]
