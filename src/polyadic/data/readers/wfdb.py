"""Read WFDB records as published on PhysioNet: a header, its signal files, and annotations in the MIT format.

wfdb reads headers and samples, nothing from the network. Three things are done here, because the package does not:
units beyond ASCII ("µV" would become "V"), sizes and checksums of signal files, and annotations, since it hangs on some
files and accepts truncated ones.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.clock import clock_start
from polyadic.data.readers.common import as_unit, check_inflation, choose_channels, decode_text
from polyadic.data.recordings import Annotation, Recording, Segment, read_later
from polyadic.data.resampling import as_values, at_one_rate, join_masks
from polyadic.errors import DataError, MissingExtraError

__all__ = [
    "find_segments",
    "import_wfdb",
    "is_annotations",
    "read_annotations",
    "read_header",
    "read_rates",
    "read_wfdb",
]

_FORMATS: dict[str, tuple[Fraction, int]] = {
    "8": (Fraction(1), 0),
    "80": (Fraction(1), 8),
    "310": (Fraction(4, 3), 10),
    "311": (Fraction(4, 3), 10),
    "212": (Fraction(3, 2), 12),
    "16": (Fraction(2), 16),
    "61": (Fraction(2), 16),
    "160": (Fraction(2), 16),
    "24": (Fraction(3), 24),
    "32": (Fraction(4), 32),
    "508": (Fraction(0), 8),
    "516": (Fraction(0), 16),
    "524": (Fraction(0), 24),
}
"""Bytes per sample, 0 if compressed with FLAC; bits of a sample, whose lowest value marks a missing one, 0 if none."""
_ABSENT = "~"
"""File name in a layout header, and segment name that marks a gap."""
_PADDING = 4
_BLOCK = 1 << 18
_OPENING = 2
"""Samples that are read to open a record; its checksums are compared when more are read."""

# wfdb reads the start of a line and ignores the rest, so that a damaged rate of 1O0 Hz would become 1 Hz.
_RECORD_LINE = re.compile(r"[-\w]+(?:/\d+)?\s+\d+(?:\s+\d+(?:\.\d*)?(?:/\S+)?(?:\s+\d+(?:\s.*)?)?)?")
_SIGNAL_LINE = re.compile(
    r"(?:\w[-\w]*(?:\.\w+)?|~)\s+\d+(?:x\d+)?(?::\d+)?(?:\+\d+)?"
    r"(?:\s+-?\d+(?:\.\d*)?(?:e[+-]?\d+)?(?:\(-?\d+\))?(?:/(?P<units>\S+))?(?:\s+-?\d+){0,5}(?:\s+(?P<name>[^\W\d].*))?)?"
)
_RESOLUTION = re.compile(r"## time resolution: (\d{1,12}(?:\.\d{0,30})?)")
_DEFINITION = re.compile(r"(\d{1,2}) (\S+) .*")
_NOTE, _RHYTHM, _LAST_CODE, _SKIP, _AUX = 22, 28, 49, 59, 63
"""Annotation codes: comment, rhythm change, last code of an annotation type, long interval, auxiliary text."""

_Resample = str | Mapping[str, str | None] | None


def read_wfdb(
    path: str | Path,
    *,
    channels: Sequence[str] | None = None,
    annotations: str | Sequence[str] = (),
    resample: _Resample = None,
) -> Recording:
    """Open a record with one or more segments; formats of up to 16 bits keep their digital values exactly.

    Times between segments are gaps. Samples of channels that a segment does not have are missing. Samples are read when
    they are needed.

    Parameters
    ----------
    path : path of the record, with or without `.hea`
    channels : names of channels to read, in this order; all if None
    annotations : extensions of annotation files, such as "atr". The text of an annotation is its note, or else its
        symbol ("[42]" for a code without a symbol). A rhythm change lasts until the next one; all other annotations
        have no duration
    resample : as for `polyadic.data.resampling.at_one_rate`

    Raises
    ------
    DataError : if a file is missing or damaged, a channel does not exist, or rates differ and `resample` is None
    MissingExtraError : if wfdb is not installed
    """
    path = Path(path)
    path = path.with_name(path.name.removesuffix(".hea"))
    header = read_header(path.with_name(f"{path.name}.hea"))
    read = _read_segments if hasattr(header, "seg_name") else _read_single
    recording = read(path, header, channels, resample)
    extensions = [annotations] if isinstance(annotations, str) else annotations
    files = [path.with_name(f"{path.name}.{extension}") for extension in extensions]
    found = [annotation for file in files for annotation in read_annotations(file, recording)]
    return replace(
        recording,
        annotations=tuple(sorted(found, key=lambda annotation: annotation.onset)),
        began="" if header.base_time is None else clock_start(header.base_date, header.base_time),
    )


def import_wfdb() -> Any:
    """Import the wfdb package without the deprecation warnings that its import causes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import wfdb
    except ImportError:
        raise MissingExtraError("WFDB records need the package wfdb: pip install 'polyadic[wfdb]'") from None
    return wfdb


# ---------------------------------------------------------------- headers


def read_header(path: Path) -> Any:
    """Read a header with wfdb, as its `Record` or `MultiRecord`; names and units may be in UTF-8 or Latin-1.

    Raises
    ------
    DataError : if a line does not follow the format, or the header is not that of the record it is named after
    """
    lines = _header_lines(path)
    if not lines or not _RECORD_LINE.fullmatch(lines[0]):
        raise DataError(f"{path.name}: the first line must be 'record signals rate samples', but is not")
    try:
        header = import_wfdb().rdheader(str(path.absolute().with_suffix("")))
    except Exception as error:
        raise DataError(f"{path.name}: wfdb cannot read the header: {error}") from error
    if header.record_name != path.stem:
        raise DataError(f"{path.name}: the header must be for {path.stem!r}, but is for {header.record_name!r}")
    segmented = hasattr(header, "seg_name")
    described = header.n_seg if segmented else header.n_sig
    if described != len(lines) - 1 or not described:
        raise DataError(f"{path.name}: the header must describe {described} signals or segments, not {len(lines) - 1}")
    if not header.fs or (header.sig_len == 0 and (segmented or _ABSENT not in header.file_name)):
        raise DataError(f"{path.name}: rate and number of samples must not be 0")
    if not segmented:
        _correct_signals(path.name, header, lines[1:])
    elif header.sig_len not in (None, sum(header.seg_len)):
        raise DataError(f"{path.name}: the segments must have {header.sig_len} samples, not {sum(header.seg_len)}")
    return header


def _header_lines(path: Path) -> list[str]:
    _file_size(path)
    content = (line.strip() for line in path.read_bytes().splitlines())
    return [decode_text(line) for line in content if line and not line.startswith(b"#")]


def _correct_signals(file: str, header: Any, lines: Sequence[str]) -> None:
    """Set names and units of the signals of a header, from which wfdb drops letters beyond ASCII, and check them."""
    for number, line in enumerate(lines):
        match, gain = _SIGNAL_LINE.fullmatch(line), header.adc_gain[number]
        if match is None or not line.replace("\t", " ").isprintable():
            raise DataError(f"{file}: signal {number} must be 'file format gain bits zero …', but is {line[:80]!r}")
        if header.fmt[number] not in _FORMATS and header.file_name[number] != _ABSENT:
            formats = " or ".join(_FORMATS)
            raise DataError(f"{file}: signal {number} has format {header.fmt[number]}, but must have {formats}")
        if not 1e-37 < abs(gain) < 1e37:  # float32 would overflow, or all values would be 0
            raise DataError(
                f"{file}: signal {number} must have a gain between 1e-37 and 1e+37, but has {gain:g}: correct it, or "
                "write 0 if it is unknown"
            )
        header.units[number] = as_unit(match["units"] or "mV")
        header.sig_name[number] = match["name"] or header.sig_name[number] or f"signal {number}"
        header.samps_per_frame[number] = header.samps_per_frame[number] or 1


def find_segments(headers: Iterable[Path]) -> dict[Path, str]:
    """Return the headers that are segments of another given header, with the name of that; ignore damaged headers."""
    every = list(headers)
    segments: dict[Path, str] = {}
    for path in every:
        try:
            first, *lines = _header_lines(path) or [""]
        except (DataError, OSError):
            continue
        if "/" in first.partition(" ")[0]:
            segments |= {path.with_name(f"{line.split()[0]}.hea"): path.name for line in lines}
    return {path: segments[path] for path in every if path in segments}


def read_rates(path: Path) -> dict[str, float]:
    """Read the sampling rate in Hz of every channel of a record, by name."""
    header = read_header(path)
    signals = _layout(path.with_suffix(""), header) if hasattr(header, "seg_name") else header
    return {
        name: float(header.fs * frame) for name, frame in zip(signals.sig_name, signals.samps_per_frame, strict=True)
    }


def _layout(path: Path, header: Any) -> Any:
    """Return the header with the signals of a multi-segment record: that of its first segment."""
    first = next((segment for segment in header.seg_name if segment != _ABSENT), None)
    if first is None:
        raise DataError(f"{path.name}.hea: all segments are gaps")
    return read_header(path.with_name(f"{first}.hea"))


def _file_size(path: Path) -> int:
    check_regular_file(path)
    if not path.is_file():
        raise DataError(f"{path.name}: there is no such file")
    return path.stat().st_size


def _frame_count(header: Any, picked: Sequence[int], folder: Path) -> int:
    """Return the number of frames, after comparing it with the sizes of the signal files."""
    file, frames = f"{header.record_name}.hea", header.sig_len
    for name in dict.fromkeys(header.file_name[number] for number in picked):
        group = [number for number, other in enumerate(header.file_name) if other == name]
        if len({(header.fmt[number], header.byte_offset[number]) for number in group}) > 1:
            raise DataError(f"{file}: signals of {name} must have the same format and offset")
        each, _ = _FORMATS[header.fmt[group[0]]]
        width = sum(header.samps_per_frame[number] for number in group)
        there = max(_file_size(folder / name) - (header.byte_offset[group[0]] or 0), 0)
        if not each:
            if frames is None:
                raise DataError(f"{file}: the header must give the number of samples of FLAC-compressed signals")
            check_inflation(name, frames * width * 4, there, "save it in format 16")
            continue
        frames = math.floor(there / (each * width)) if frames is None else frames
        needed = math.ceil(frames * width * each)
        # Without checksums, a file that is too long is taken as a sign of a wrong header.
        summed = all(header.checksum[number] for number in picked)
        if frames < 1 or there < needed or (there > needed + _PADDING and not summed):
            raise DataError(
                f"{name}: the data must have {needed} bytes (signals: {len(group)}, samples: {frames}), but have "
                f"{there}"
            )
    return int(frames)


# ---------------------------------------------------------------- signals


def _read_single(path: Path, header: Any, channels: Sequence[str] | None, resample: _Resample) -> Recording:
    """Return a record with one segment, without annotations; its samples are read when they are needed."""
    file = f"{path.name}.hea"
    if _ABSENT in header.file_name:
        raise DataError(f"{file}: this is the layout header of a multi-segment record, which has no samples")
    picked = choose_channels(file, header.sig_name, channels)
    samples = _Samples(path, header, picked)
    rows = []
    for place, number in enumerate(picked):
        row = samples.part(place, 0, header.samps_per_frame[number])

        def read(first: int, stop: int, place: int = place) -> Recording:
            if stop > _OPENING:
                samples.verify()
            return samples.part(place, first, stop)

        rows.append(read_later(row, row, read, samples.frames * header.samps_per_frame[number]))
    recording = at_one_rate(file, rows, None, resample)
    samples.decode.cache_clear()
    return recording


class _Samples:
    """The samples of some signals of a record, read in blocks of frames."""

    def __init__(self, path: Path, header: Any, picked: Sequence[int]) -> None:
        self.path, self.header, self.picked = path, header, list(picked)
        self.frames = _frame_count(header, picked, path.parent)
        self.wide = any(_FORMATS[header.fmt[number]][1] in (0, 24, 32) for number in picked)
        # Format 8 holds differences, and wfdb reads records of unknown length as a whole.
        self.whole = header.sig_len is None or any(header.fmt[number] == "8" for number in picked)
        self.verify = cache(self._verify)
        self.decode = lru_cache(maxsize=1)(self._decode)

    def part(self, place: int, first: int, stop: int) -> Recording:
        """Return the samples of one signal; int16 digital values are kept, wider ones become physical values."""
        header, number = self.header, self.picked[place]
        frame, gain = header.samps_per_frame[number], header.adc_gain[number]
        start, end = (0, self.frames) if self.whole else (first // frame, -(-stop // frame))
        digits = self.decode(start, end)[place][None, first - start * frame : stop - start * frame]
        bits = _FORMATS[header.fmt[number]][1]
        missing = digits == -(1 << bits - 1) if bits else np.zeros(digits.shape, bool)
        part = Recording(
            name=self.path.name,
            subject=self.path.name,
            fs=float(header.fs * frame),
            channels=(header.sig_name[number],),
            units=(header.units[number],),
            signal=np.zeros(digits.shape, np.int16) if self.wide else digits,
            scale=np.array([1 / gain]),
            offset=np.array([-header.baseline[number] / gain]),
            missing=missing if missing.any() else None,
            limits=self._limits(number),
        )
        return as_values(part, digits) if self.wide else part

    def _decode(self, first: int, stop: int, skewed: bool = True) -> list[NDArray[Any]]:
        """Return the digital values of each signal in frames `first` to `stop`."""
        even = all(self.header.samps_per_frame[number] == 1 for number in self.picked)
        try:
            record = import_wfdb().rdrecord(
                str(self.path.absolute()),
                sampfrom=first,
                sampto=None if self.header.sig_len is None else stop,
                channels=self.picked,
                physical=False,
                smooth_frames=even,
                ignore_skew=not skewed,
                return_res=32 if self.wide else 16,
            )
        except ImportError as error:
            raise MissingExtraError(f"{self.path.name}.hea: FLAC needs a package: pip install soundfile") from error
        except Exception as error:
            raise DataError(f"{self.path.name}.hea: wfdb cannot read the record ({type(error).__name__})") from error
        rows = list(record.d_signal.T) if even else record.e_d_signal
        for number, row in zip(self.picked, rows, strict=True):
            if len(row) != (stop - first) * self.header.samps_per_frame[number]:
                raise DataError(f"{self.path.name}.hea: {self.header.sig_name[number]} has too few samples")
        return rows

    def _verify(self) -> None:
        """Compare all samples with the checksums in the header; 0 means that there is none."""
        header, totals = self.header, [0] * len(self.picked)
        size = self.frames if self.whole else _BLOCK
        for first in range(0, self.frames, size):
            for place, row in enumerate(self._decode(first, min(first + size, self.frames), skewed=False)):
                totals[place] += int(row.sum(dtype=np.int64))
        for number, total in zip(self.picked, totals, strict=True):
            stated = header.checksum[number]
            if stated and (total - stated) % 65536:
                raise DataError(
                    f"{self.path.name}.hea: channel {header.sig_name[number]} must have checksum {stated % 65536}, but "
                    f"has {total % 65536}: {header.file_name[number]} is damaged or belongs to another record"
                )

    def _limits(self, number: int) -> NDArray[Any] | None:
        """Return the digital minimum and maximum of the converter, (1, 2); None if its resolution is unknown."""
        bits, stored = self.header.adc_res[number] or 0, _FORMATS[self.header.fmt[number]][1]
        if not stored or not 0 < bits <= 32:
            return None
        zero, half = self.header.adc_zero[number] or 0, 1 << bits - 1
        # The lowest digital value of a format marks missing samples, so the converter never outputs it.
        most = (1 << stored - 1) - 1
        low, high = max(zero - half, -most), min(zero + half - 1, most)
        return np.array([[low, high]], np.int64) if low < high else None


def _read_segments(path: Path, header: Any, channels: Sequence[str] | None, resample: _Resample) -> Recording:
    """Return a multi-segment record, without annotations; times without a segment are gaps."""
    names = _layout(path, header).sig_name
    wanted = [names[number] for number in choose_channels(f"{path.name}.hea", names, channels)]
    pieces: list[Recording] = []
    segments: list[Segment] = []
    frames = count = 0
    for segment, samples in zip(header.seg_name, header.seg_len, strict=True):
        if segment != _ABSENT and samples:
            part = read_header(path.with_name(f"{segment}.hea"))
            if part.fs != header.fs or (part.sig_len is not None and part.sig_len != samples):
                raise DataError(
                    f"{segment}.hea: the segment must have {samples} samples at {header.fs:g} Hz, but has "
                    f"{part.sig_len} at {part.fs:g} Hz"
                )
            there = [name for name in wanted if name in part.sig_name]
            if there:
                pieces.append(_read_single(path.with_name(segment), part, there, resample))
                # Segments that follow each other without a gap are one, so that windows may cross their border.
                onset = frames / header.fs
                expected = segments[-1].onset + (count - segments[-1].first) / pieces[0].fs if segments else -1.0
                if abs(onset - expected) > 0.5 / pieces[0].fs:
                    segments.append(Segment(count, onset))
                count += pieces[-1].signal.shape[1]
        frames += samples
    if not pieces:
        raise DataError(f"{path.name}.hea: no segment has any of the channels {', '.join(wanted)}")
    return _joined(pieces, wanted, tuple(segments), path.name)


def _joined(pieces: list[Recording], wanted: list[str], segments: tuple[Segment, ...], name: str) -> Recording:
    """Concatenate segments; digital values are kept if all segments have the same channels and calibration."""
    units: dict[str, str] = {}
    for piece in pieces:
        for channel, unit in zip(piece.channels, piece.units, strict=True):
            if units.setdefault(channel, unit) != unit:
                raise DataError(
                    f"{name}.hea: {channel} is in {units[channel]} in one segment, and in {unit} in another"
                )
    first = pieces[0]
    alike = all(
        piece.channels == tuple(wanted)
        and piece.signal.dtype == first.signal.dtype
        and np.array_equal([piece.scale, piece.offset], [first.scale, first.offset])
        for piece in pieces
    )
    ends = list(accumulate(piece.signal.shape[1] for piece in pieces))

    def read(start: int, stop: int) -> Recording:
        parts = []
        for piece, end in zip(pieces, ends, strict=True):
            begin = end - piece.signal.shape[1]
            if begin < stop and start < end:
                part = piece.part(max(start - begin, 0), min(stop, end) - begin)
                parts.append(part if alike else _completed(as_values(part), wanted, units))
        signals = [part.signal for part in parts]
        joined = np.concatenate(signals, axis=1)
        return replace(parts[0], signal=joined, missing=join_masks([part.missing for part in parts], signals, axis=1))

    return replace(read_later(first, read(0, 1), read, ends[-1], segments), name=name, subject=name, limits=None)


def _completed(recording: Recording, wanted: list[str], units: Mapping[str, str]) -> Recording:
    """Return values with all channels of the record; NaN for the channels that this segment does not have."""
    signal = np.full((len(wanted), recording.signal.shape[1]), np.nan, np.float32)
    for row, channel in enumerate(recording.channels):
        signal[wanted.index(channel)] = recording.signal[row]
    return replace(
        recording,
        channels=tuple(wanted),
        units=tuple(units.get(channel, "") for channel in wanted),
        signal=signal,
        scale=np.ones(len(wanted)),
        offset=np.zeros(len(wanted)),
        limits=None,
        rates=(),
    )


# ---------------------------------------------------------------- annotations


def read_annotations(path: Path, recording: Recording) -> tuple[Annotation, ...]:
    """Read an annotation file in the MIT format; the header of the record must be in the same folder.

    A rhythm change lasts until the next one, other annotations have duration 0.
    """
    _file_size(path)
    parsed = list(_parse_annotations(path, read_header(path.with_suffix(".hea")).fs, recording.duration))
    changes = [onset for onset, code, text in parsed if code == _RHYTHM and text.startswith("(")]
    ends = iter([*changes[1:], recording.duration])
    return tuple(
        Annotation(onset, next(ends) - onset if code == _RHYTHM and text.startswith("(") else 0.0, text)
        for onset, code, text in parsed
    )


def is_annotations(path: Path) -> bool:
    """Whether a file contains annotations in the MIT format."""
    try:
        return bool(list(_decode_annotations(path.read_bytes(), path.name)))
    except (DataError, OSError):
        return False


def _parse_annotations(path: Path, fs: float, duration: float) -> Iterator[tuple[float, int, str]]:
    """Yield onset in seconds, code and text of the annotations in a file.

    Comments at the start of the file may define the sampling rate and symbols. They begin with ##, or are between two
    comments that do. Older files define symbols without ## comments.
    """
    from wfdb.io.annotation import ann_labels

    symbols = {label.label_store: label.symbol for label in ann_labels}
    at_start, defining, last = True, False, 0
    for sample, code, note in _decode_annotations(path.read_bytes(), path.name):
        definition = _DEFINITION.fullmatch(note)
        at_start = at_start and sample == 0 and code == _NOTE
        if at_start and (defining or definition or note.startswith("## ")):
            if resolution := _RESOLUTION.fullmatch(note):
                fs = float(resolution[1])
            elif definition:
                symbols[int(definition[1])] = definition[2]
            defining = note == "## annotation type definitions" or (defining and note != "## end of definitions")
            continue
        if code not in symbols and code > _LAST_CODE:
            raise DataError(f"{path.name}: the annotation at sample {sample} has the unknown code {code}")
        if fs == 0 or not last <= sample <= duration * fs:
            raise DataError(
                f"{path.name}: annotations must be in order and within {duration:g} s, but one is at sample {sample}"
            )
        last = sample
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
            if at + low > len(data) or not note.isprintable():
                raise DataError(f"{file}: notes of annotations must be printable, but one is {data[at : at + 80]!r}")
            current = (*current[:2], note)
            at += low + low % 2
        elif code < _SKIP:
            if current is not None and current[1]:
                yield current
            if word == 0:
                break
            sample += low
            current = (sample, code, "")
        elif current is None:
            raise DataError(f"{file}: the file must begin with an annotation, but begins with the code {code}")
    if data[at:].strip(b"\0"):
        raise DataError(f"{file}: the file has data after the end mark of the annotations")
