"""Read WFDB records as published on PhysioNet: a header, its signal files, and annotations in the MIT format.

wfdb reads headers and samples, nothing from the network. Three things are done here, because the package does not:
units beyond ASCII ("µV" would become "V"), sizes of signal files, and annotations, since it hangs on some files and
accepts truncated ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.packages import import_package
from polyadic.data.channels import as_unit
from polyadic.data.readers.common import Layout, SignalFile, check_file, decode_text
from polyadic.data.recordings import Annotation, clock_time
from polyadic.errors import DataError, MissingExtraError

_BYTES = {"8": 1.0, "80": 1.0, "310": 4 / 3, "311": 4 / 3, "212": 1.5, "16": 2.0, "61": 2.0, "160": 2.0, "24": 3.0}
_BYTES |= {"32": 4.0, "508": 0.0, "516": 0.0, "524": 0.0}
"""Bytes of a sample by format; those of the last three, which are compressed, vary."""
_ABSENT = "~"
"""File name in a layout header, and segment name that marks a gap."""
_SIGNAL_LINE = re.compile(r"\S+\s+\S+(?:\s+[^\s/]+(?:/(?P<units>\S+))?(?:\s+-?\d+){0,5}(?:\s+(?P<name>.*))?)?")
_RESOLUTION = re.compile(r"## time resolution: (\d{1,12}(?:\.\d{0,30})?)")
_DEFINITION = re.compile(r"(\d{1,2}) (\S+) .*")
_NOTE, _RHYTHM, _LAST_CODE, _SKIP, _AUX = 22, 28, 49, 59, 63
"""Annotation codes: comment, rhythm change, last code of an annotation type, long interval, auxiliary text."""


class WfdbRecord(SignalFile):
    """A record with one or more segments, with the annotation files beside it that have one of the extensions.

    Times between segments are gaps. Samples of channels that a segment does not have are missing. `path` is that of the
    record, with or without `.hea`.
    """

    def __init__(self, path: str | Path, extensions: Sequence[str] = ("ann", "atr")) -> None:
        path = Path(path)
        self._path = path.with_name(path.name.removesuffix(".hea"))
        self.name = f"{self._path.name}.hea"
        self._header = header = read_header(self._path.with_name(self.name))
        self._signals = header
        if hasattr(header, "seg_name"):  # the first segment has the signals of all
            first = next((segment for segment in header.seg_name if segment != _ABSENT), None)
            if first is None:
                raise DataError(f"{self.name}: all segments are gaps")
            self._signals = read_header(self._path.with_name(f"{first}.hea"))
        self.labels, self.units = list(self._signals.sig_name), list(self._signals.units)
        self.counts = list(self._signals.samps_per_frame)
        self.rates = {name: float(self._signals.fs * n) for name, n in zip(self.labels, self.counts, strict=True)}
        beside = (self._path.with_name(f"{self._path.name}.{extension}") for extension in extensions)
        self._beside = [file for file in beside if file.exists()]
        self._last: tuple[tuple[int, ...], dict[int, NDArray[Any]]] = (), {}

    def layout(self, numbers: Sequence[int]) -> Layout:
        header, fs, spans = self._header, self._signals.fs, self._spans(numbers)
        found = [annotation for file in self._beside for annotation in read_annotations(file, spans[-1][1] / fs)]
        began: Any = header.base_time or ""
        if header.base_time and header.base_date:
            began = datetime.combine(header.base_date, header.base_time)
        onsets = [first / fs for first, _ in spans]
        *firsts, frames = accumulate((end - first for first, end in spans), initial=0)
        annotations = sorted(found, key=lambda annotation: annotation.onset)
        return Layout(numbers, frames, list(zip(firsts, onsets, strict=True)), annotations, clock_time(began))

    def read_frames(self, layout: Layout, numbers: Sequence[int], first: int, stop: int) -> Iterator[NDArray[Any]]:
        pieces = []
        ends = [*(frame for frame, _ in layout.segments[1:]), layout.frames]
        for (begin, onset), end in zip(layout.segments, ends, strict=True):
            if first < end and stop > begin:
                gaps = round(onset * self._signals.fs) - begin
                pieces.append(self._decode(layout.numbers, max(first, begin) + gaps, min(stop, end) + gaps))
        return (np.concatenate([piece[number] for piece in pieces]) for number in numbers)

    def _spans(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Return the first frame and the end of each part without gaps; sizes of signal files are checked."""
        header, folder = self._header, self._path.parent
        if header is self._signals:
            return [(0, _frame_count(header, numbers, folder))]
        spans: list[tuple[int, int]] = []
        end = 0
        for segment, frames in zip(header.seg_name, header.seg_len, strict=True):
            first, end = end, end + frames
            if segment == _ABSENT or not frames:
                continue
            part = read_header(folder / f"{segment}.hea")
            if _frame_count(part, range(part.n_sig), folder) != frames:
                raise DataError(f"{segment}.hea: the segment must have {frames} samples")
            if spans and spans[-1][1] == first:  # windows may cross from one segment to the next without a gap
                first = spans.pop()[0]
            spans.append((first, end))
        if not spans:
            raise DataError(f"{self.name}: all segments are gaps")
        return spans

    def _decode(self, numbers: Sequence[int], first: int, stop: int) -> dict[int, NDArray[Any]]:
        """Decode the samples of signals from one frame of the file to another, NaN where they are missing.

        Signals of several rates are decoded together, and read one rate after the other: the last result is kept.
        """
        wanted = (*numbers, first, stop)
        if self._last[0] == wanted:
            return self._last[1]
        wfdb, signals, unknown = import_package("wfdb", self.name), self._signals, self._header.sig_len is None
        several = {self.counts[number] for number in numbers} != {1}
        # Format 8 holds differences, and wfdb reads records of unknown length as a whole.
        whole = unknown or any(signals.fmt[number] == "8" for number in numbers)
        try:
            record = wfdb.rdrecord(
                str(self._path.absolute()),
                sampfrom=0 if whole else first,
                sampto=None if unknown else stop,
                channels=list(numbers),
                smooth_frames=not several,
            )
        except ImportError as error:
            raise MissingExtraError(f"{self.name}: FLAC needs a package: pip install soundfile") from error
        except Exception as error:  # wfdb raises many types on damaged files
            raise DataError(f"{self.name}: wfdb cannot read the record ({type(error).__name__})") from error
        values = record.e_p_signal if several else record.p_signal.T
        begins = [first * self.counts[number] if whole else 0 for number in numbers]
        self._last = wanted, {n: row[begin:] for n, row, begin in zip(numbers, values, begins, strict=True)}
        return self._last[1]


# ---------------------------------------------------------------- headers


def read_header(path: Path) -> Any:
    """Read a header with wfdb, as its `Record` or `MultiRecord`; names and units may be in UTF-8 or Latin-1."""
    lines, wfdb = _header_lines(path), import_package("wfdb", path.name)
    try:
        header = wfdb.rdheader(str(path.absolute().with_suffix("")))
    except Exception as error:
        raise DataError(f"{path.name}: wfdb cannot read the header: {error}") from error
    segmented = hasattr(header, "seg_name")
    described = header.n_seg if segmented else header.n_sig
    if described != len(lines) - 1 or not described or not header.fs:
        raise DataError(
            f"{path.name}: the header must give a rate and describe {described} signals or segments, but has "
            f"{len(lines) - 1}"
        )
    for number, line in enumerate(() if segmented else lines[1:]):
        # wfdb drops letters beyond ASCII from names and units.
        match = _SIGNAL_LINE.fullmatch(line)
        units, name = (match["units"], match["name"]) if match else (None, None)
        header.units[number] = as_unit(units or "mV")
        header.sig_name[number] = name or header.sig_name[number] or f"signal {number}"
        header.samps_per_frame[number] = header.samps_per_frame[number] or 1
    return header


def _header_lines(path: Path) -> list[str]:
    check_file(path)
    content = (line.strip() for line in path.read_bytes().splitlines())
    return [decode_text(line) for line in content if line and not line.startswith(b"#")]


def find_segments(headers: Iterable[Path]) -> dict[Path, str]:
    """Return the headers that are segments of another given header, with the name of that."""
    every = list(headers)
    segments: dict[Path, str] = {}
    for path in every:
        first, *lines = (_header_lines(path) if path.is_file() else []) or [""]
        if "/" in first.partition(" ")[0]:
            segments |= {path.with_name(f"{line.split()[0]}.hea"): path.name for line in lines}
    return {path: segments[path] for path in every if path in segments}


def _frame_count(header: Any, picked: Sequence[int], folder: Path) -> int:
    """Return the number of frames, after comparing it with the sizes of the signal files."""
    file, frames = f"{header.record_name}.hea", header.sig_len
    for name in dict.fromkeys(header.file_name[number] for number in picked):
        group = [number for number, other in enumerate(header.file_name) if other == name]
        if name == _ABSENT or header.fmt[group[0]] not in _BYTES:
            raise DataError(f"{file}: signals must be in a file of format {', '.join(_BYTES)}, but {name!r} is not")
        each, width = _BYTES[header.fmt[group[0]]], sum(header.samps_per_frame[number] for number in group)
        size = check_file(folder / name) - (header.byte_offset[group[0]] or 0)
        if frames is None and not each:
            raise DataError(f"{file}: the header must give the number of samples of FLAC-compressed signals")
        frames = math.floor(size / (each * width)) if frames is None else frames
        if frames < 1 or size < math.floor(frames * width * each):
            raise DataError(
                f"{name}: the data must have {math.ceil(frames * width * each)} bytes (signals: {len(group)}, samples: "
                f"{frames}), but have {size}"
            )
    return int(frames)


# ---------------------------------------------------------------- annotations


def read_annotations(path: Path, duration: float) -> tuple[Annotation, ...]:
    """Read an annotation file in the MIT format, of a record of this duration whose header is in the same folder.

    The text of an annotation is its note, or else its symbol ("[42]" for a code without a symbol). A rhythm change
    lasts until the next one; all other annotations have no duration.
    """
    check_file(path)
    parsed = list(_parse_annotations(path, read_header(path.with_suffix(".hea")).fs, duration))
    changes = [onset for onset, code, text in parsed if code == _RHYTHM and text.startswith("(")]
    ends = iter([*changes[1:], duration])
    return tuple(
        Annotation(onset, next(ends) - onset if code == _RHYTHM and text.startswith("(") else 0.0, text)
        for onset, code, text in parsed
    )


def _parse_annotations(path: Path, fs: float, duration: float) -> Iterator[tuple[float, int, str]]:
    """Yield onset in seconds, code and text of the annotations in a file.

    Comments at the start of the file may define the sampling rate and symbols. They begin with ##, or are between two
    comments that do. Older files define symbols without ## comments.
    """
    from wfdb.io.annotation import ann_labels

    symbols = {label.label_store: label.symbol for label in ann_labels}
    at_start, defining = True, False
    for sample, code, note in _decode_annotations(path.read_bytes(), path.name):
        definition = _DEFINITION.fullmatch(note)
        at_start = at_start and sample == 0 and code == _NOTE
        if at_start and (defining or definition or note.startswith("## ")):
            if resolution := _RESOLUTION.fullmatch(note):
                fs = float(resolution[1]) or fs
            elif definition:
                symbols[int(definition[1])] = definition[2]
            defining = note == "## annotation type definitions" or (defining and note != "## end of definitions")
            continue
        if not 0 <= sample <= duration * fs or (code not in symbols and code > _LAST_CODE):
            raise DataError(
                f"{path.name}: annotations must have a known code and lie within {duration:g} s, but code {code} is at "
                f"sample {sample}"
            )
        # Codes up to 49 may be user-defined; the WFDB library shows codes without a symbol in brackets.
        yield sample / fs, code, note or symbols.get(code, f"[{code}]")


def _decode_annotations(data: bytes, file: str) -> Iterator[tuple[int, int, str]]:
    """Yield sample, code and note of each annotation in the MIT format.

    The decoder of the wfdb package is not used: it never returns on some files, and accepts truncated files.
    """
    at, sample = 0, 0
    current: tuple[int, int, str] | None = None
    while True:
        if at + 2 > len(data):
            raise DataError(f"{file}: the annotations are truncated: the end mark is missing")
        word = int.from_bytes(data[at : at + 2], "little")
        code, low, at = word >> 10, word & 1023, at + 2
        if code == _SKIP:
            # A 32-bit interval, its upper half first.
            sample += int.from_bytes(data[at + 2 : at + 4] + data[at : at + 2], "little", signed=True)
            at += 4
        elif code == _AUX and current is not None:
            note = decode_text(data[at : at + low]).rstrip("\0 \t\r\n")  # some programs add whitespace
            current = (*current[:2], note)
            at += low + low % 2
        elif code < _SKIP:
            if current is not None and current[1]:
                yield current
            if word == 0:
                return
            sample += low
            current = (sample, code, "")
        elif current is None:
            raise DataError(f"{file}: the file must begin with an annotation, but begins with the code {code}")
