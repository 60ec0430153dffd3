"""Read WFDB records as published on PhysioNet: a header, its signal files, and annotations in the MIT format.

The wfdb package decodes the samples. Two things are parsed here: headers, because the package drops units that are not
ASCII ("µV" would become "V") and skips lines it cannot parse, and annotations, because it hangs on some files and
accepts truncated ones. Nothing is read from the network, and file sizes are checked before memory is allocated.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.clock import clock_start
from polyadic.data.readers.common import as_unit, check_inflation, choose_channels, decode_text
from polyadic.data.recordings import Annotation, Recording, Segment, as_values, at_one_rate, join_masks
from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = [
    "WfdbHeader",
    "WfdbSignal",
    "build_recording",
    "check_digits",
    "choose_signals",
    "find_segments",
    "is_annotations",
    "read_annotations",
    "read_header",
    "read_rates",
    "read_wfdb",
]

# Bytes and samples per block, and the digital value that marks a missing sample, by format.
_FORMATS: dict[str, tuple[int, int, int | None]] = {
    "8": (1, 1, None),
    "80": (1, 1, -(1 << 7)),
    "310": (4, 3, -(1 << 9)),
    "311": (4, 3, -(1 << 9)),
    "212": (3, 2, -(1 << 11)),
    "16": (2, 1, -(1 << 15)),
    "61": (2, 1, -(1 << 15)),
    "160": (2, 1, -(1 << 15)),
    "24": (3, 1, -(1 << 23)),
    "32": (4, 1, -(1 << 31)),
    "508": (1, 1, -(1 << 7)),
    "516": (2, 1, -(1 << 15)),
    "524": (3, 1, -(1 << 23)),
}
_WIDE = ("8", "24", "32", "524")
"""Formats whose digital values may not fit 16 bits."""
_PACKED = ("508", "516", "524")
"""Formats compressed with FLAC, for which the file size does not give the number of samples."""
_ABSENT = "~"
"""File name in a layout header, and segment name that marks a gap."""
_PADDING = 4

_RECORD_LINE = re.compile(
    r"(?P<name>[-\w]+)(?P<segments>/\d+)?\s+(?P<signals>\d{1,9})\s+(?P<fs>\d{1,12}(?:\.\d{0,30})?)"
    r"(?:/\d+(?:\.\d*)?(?:\(-?\d+(?:\.\d*)?\))?)?(?:\s+(?P<samples>\d{1,15})(?:\s+(?P<base>\S.*))?)?",
    re.ASCII,
)
_BASE = re.compile(r"(?P<time>\d{1,2}:\d\d:\d\d)(?P<part>\.\d{1,9})?(?:\s+(?P<date>\d{1,2}/\d{1,2}/\d{4}))?", re.ASCII)
_SIGNAL_LINE = re.compile(
    r"(?P<file>\w[-\w]*(?:\.\w+)?|~)\s+(?P<format>\d{1,3})(?:x(?P<frame>\d{1,9}))?(?::(?P<skew>\d{1,15}))?"
    r"(?:\+(?P<start>\d{1,15}))?"
    r"(?:\s+(?P<gain>-?\d{1,30}(?:\.\d{0,30})?(?:e[+-]?\d{1,3})?)(?:\((?P<baseline>-?\d{1,12})\))?"
    r"(?:/(?P<units>(?:[\w^?%/-]|[^\x00-\x7f])+))?"
    r"(?:\s+(?P<bits>\d{1,2})(?:\s+(?P<zero>-?\d{1,12})(?:\s+(?P<first>-?\d{1,12})(?:\s+(?P<checksum>-?\d{1,6})"
    r"(?:\s+\d{1,9}(?:\s+(?P<name>\S.*))?)?)?)?)?)?)?",
    re.ASCII,
)
_SEGMENT_LINE = re.compile(r"(?P<name>[-\w]+|~)\s+(?P<samples>\d{1,15})", re.ASCII)
_RESOLUTION = re.compile(r"## time resolution: (\d{1,12}(?:\.\d{0,30})?)")
_DEFINITION = re.compile(r"(\d{1,2}) (\S+) .*")

_Resample = str | Mapping[str, str | None] | None

_NOTE, _RHYTHM, _LAST_CODE, _SKIP, _AUX = 22, 28, 49, 59, 63
"""Annotation codes: comment, rhythm change, last code of an annotation type, long interval, auxiliary text."""


@dataclass(frozen=True)
class WfdbSignal:
    """A signal in a header: physical value = (digital value - baseline) / gain.

    Its samples begin at byte `start` of `file`, `frame` of them per frame, and lag by `skew`. `bits` and `zero` are the
    resolution and midpoint of the converter; `first` is the first digital value, `checksum` the sum of all in 16 bits.
    Fields that the header omits have the default of the format, or 0.
    """

    name: str
    file: str
    format: str
    start: int
    frame: int
    skew: int
    gain: float
    baseline: int
    units: str
    bits: int
    zero: int
    first: int
    checksum: int

    @property
    def missing(self) -> int | None:
        """The digital value that marks a missing sample, if the format has one."""
        return _FORMATS[self.format][2]


@dataclass(frozen=True)
class WfdbHeader:
    """The content of a header; `samples` is None if the header does not give the length.

    `segments` has the names and lengths of the segments of a multi-segment record, whose header has no signals.
    """

    record: str
    fs: float
    samples: int | None
    signals: tuple[WfdbSignal, ...]
    segments: tuple[tuple[str, int], ...] = ()
    began: str = ""


def read_wfdb(
    path: str | Path,
    *,
    channels: Sequence[str] | None = None,
    annotations: str | Sequence[str] | None = None,
    name: str | None = None,
    subject: str | None = None,
    resample: _Resample = None,
    signals: bool = True,
) -> Recording:
    """Read a record with one or more segments; formats of up to 16 bits keep their digital values exactly.

    Times between segments are gaps. Samples of channels that a segment does not have are missing.

    Parameters
    ----------
    path : path of the record, with or without `.hea`
    channels : names of channels to read, in this order; all if None
    annotations : extensions of annotation files, such as "atr". The text of an annotation is its note, or else its
        symbol ("[42]" for a code without a symbol). A rhythm change lasts until the next one; all other annotations
        have no duration
    name : name of the recording; by default the name of the record
    subject : name of the subject; by default `name`
    resample : "hold" or "polyphase": how to resample channels to the highest rate; None raises an error if rates
        differ. A mapping sets it for each channel by name
    signals : if False, only lengths, times and annotations are read, and all samples are 0

    Raises
    ------
    DataError : if a file is missing or damaged, a channel does not exist, or rates differ and `resample` is None
    MissingExtraError : if wfdb is not installed
    """
    path = Path(path)
    path = path.parent / path.name.removesuffix(".hea")
    header = read_header(path.with_name(path.name + ".hea"), segments=True)
    if header.segments:
        recording = _read_segments(path, header, channels, resample, signals)
    else:
        recording = _read_single(path, header, channels, resample, signals)
    name = name or path.name
    extensions = [annotations] if isinstance(annotations, str) else annotations or ()
    found = [
        annotation
        for extension in extensions
        for annotation in _read_annotations(path.with_name(f"{path.name}.{extension}"), header.fs, recording.duration)
    ]
    return replace(
        recording,
        name=name,
        subject=subject or name,
        annotations=tuple(sorted(found, key=lambda annotation: annotation.onset)),
        began=header.began,
    )


def _read_single(
    path: Path, header: WfdbHeader, channels: Sequence[str] | None, resample: _Resample, signals: bool
) -> Recording:
    """Read a record with one segment, without annotations."""
    package = import_wfdb()
    if "::" in str(path.absolute()):
        # wfdb would interpret it as a chained URL.
        raise PolyadicError(f"path must not contain '::', but is {str(path)!r}")
    file = f"{path.name}.hea"
    picked = choose_signals(header, channels)
    frames = _sample_count(header, picked, path.parent)
    chosen = [header.signals[number] for number in picked]
    if not signals:
        rows = [np.broadcast_to(np.zeros((), np.int16), (frames * signal.frame,)) for signal in chosen]
    else:
        if any(signal.format in _PACKED for signal in chosen) and importlib.util.find_spec("soundfile") is None:
            raise MissingExtraError(
                f"{file}: FLAC-compressed signals need the package soundfile: pip install soundfile"
            )
        even = all(signal.frame == 1 for signal in chosen)
        try:
            record = package.rdrecord(
                str(path.absolute()),
                sampto=header.samples,
                channels=picked,
                physical=False,
                ignore_skew=True,
                smooth_frames=even,
                return_res=32 if any(signal.format in _WIDE for signal in chosen) else 16,
            )
            rows = list(record.d_signal.T) if even else list(record.e_d_signal)
        except Exception as error:
            raise DataError(f"{file}: wfdb cannot read the record ({type(error).__name__})") from error
        for signal, row in zip(chosen, rows, strict=True):
            if len(row) != frames * signal.frame:
                raise DataError(
                    f"{file}: {signal.name} must have {frames * signal.frame} samples, but wfdb reads {len(row)}"
                )
            check_digits(signal, row, file)
    each = [
        build_recording(header, [signal], np.ascontiguousarray(row)[None] if signals else row[None], (), path.name)
        for signal, row in zip(chosen, rows, strict=True)
    ]
    return at_one_rate(file, each, None, resample)


def _read_segments(
    path: Path, header: WfdbHeader, channels: Sequence[str] | None, resample: _Resample, signals: bool
) -> Recording:
    """Read a multi-segment record; times without a segment are gaps."""
    layout = _layout(path, header)
    wanted = [layout[number].name for number in choose_signals(replace(header, signals=layout), channels)]
    pieces: list[Recording] = []
    segments: list[Segment] = []
    frames = count = 0
    for segment, samples in header.segments:
        if segment != _ABSENT and samples:
            part = read_header(path.with_name(f"{segment}.hea"))
            if part.fs != header.fs or (part.samples is not None and part.samples != samples):
                raise DataError(
                    f"{segment}.hea: the segment must have {samples} samples at {header.fs:g} Hz, but has "
                    f"{part.samples} at {part.fs:g} Hz"
                )
            names = [signal.name for signal in part.signals]
            there = [name for name in wanted if name in names]
            if there:
                pieces.append(_read_single(path.with_name(segment), part, there, resample, signals))
                # Segments that follow each other without a gap are one, so that windows may cross their border.
                onset = frames / header.fs
                expected = segments[-1].onset + (count - segments[-1].first) / pieces[0].fs if segments else -1.0
                if abs(onset - expected) > 0.5 / pieces[0].fs:
                    segments.append(Segment(count, onset))
                count += pieces[-1].signal.shape[1]
        frames += samples
    if not pieces:
        raise DataError(f"{path.name}.hea: no segment has any of the channels {', '.join(wanted)}")
    return _joined(pieces, wanted, segments, path.name)


def _layout(path: Path, header: WfdbHeader) -> tuple[WfdbSignal, ...]:
    """Return the signals of a multi-segment record."""
    first = next((segment for segment, _ in header.segments if segment != _ABSENT), None)
    if first is None:
        raise DataError(f"{path.name}.hea: all segments are gaps")
    return read_header(path.with_name(f"{first}.hea"), layout=True).signals


def _joined(pieces: list[Recording], wanted: list[str], segments: list[Segment], name: str) -> Recording:
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
    if not alike:
        pieces = [_completed(as_values(piece), wanted) for piece in pieces]
    signals = [piece.signal for piece in pieces]
    return replace(
        pieces[0],
        channels=tuple(wanted),
        units=tuple(units.get(channel, "") for channel in wanted),
        signal=np.concatenate(signals, axis=1),
        missing=join_masks([piece.missing for piece in pieces], signals, axis=1),
        segments=tuple(segments),
        limits=None,
    )


def _completed(recording: Recording, wanted: list[str]) -> Recording:
    """Return values with all channels of the record; NaN for the channels that this segment does not have."""
    signal = np.full((len(wanted), recording.signal.shape[1]), np.nan, np.float32)
    for row, channel in enumerate(recording.channels):
        signal[wanted.index(channel)] = recording.signal[row]
    count = len(wanted)
    return replace(
        recording,
        channels=tuple(wanted),
        units=("",) * count,
        signal=signal,
        scale=np.ones(count),
        offset=np.zeros(count),
        limits=None,
        rates=(),
    )


def find_segments(headers: Iterable[Path]) -> dict[Path, str]:
    """Return the headers that are segments of another given header, with the name of that; ignore damaged headers."""
    every = list(headers)
    segments: dict[Path, str] = {}
    for path in every:
        try:
            header = read_header(path, segments=True)
        except (DataError, OSError):
            continue
        for segment, _ in header.segments:
            segments[path.with_name(f"{segment}.hea")] = path.name
    return {path: segments[path] for path in every if path in segments}


def read_rates(path: Path) -> dict[str, float]:
    """Read the sampling rate in Hz of every channel of a record, by name."""
    header = read_header(path, segments=True)
    signals = _layout(path.with_suffix(""), header) if header.segments else header.signals
    return {signal.name: header.fs * signal.frame for signal in signals}


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


def read_header(path: Path, *, segments: bool = False, layout: bool = False) -> WfdbHeader:
    """Parse a header, which must be named after its record.

    Parameters
    ----------
    path : path of the header
    segments : whether to accept the header of a multi-segment record
    layout : whether to accept a layout header, which describes the signals of such a record and has no samples

    Raises
    ------
    DataError : if a line does not follow the format
    """
    _file_size(path)
    content = [line.strip() for line in path.read_bytes().splitlines()]
    lines = [decode_text(line) for line in content if line and not line.startswith(b"#")]
    match = _RECORD_LINE.fullmatch(lines[0]) if lines else None
    if match is None:
        raise DataError(f"{path.name}: the first line must be 'record signals rate samples', but is not")
    if match["name"] != path.stem:
        raise DataError(f"{path.name}: the header must be for the record {path.stem!r}, but is for {match['name']!r}")
    described = int((match["segments"] or "/0")[1:]) or int(match["signals"])
    if described != len(lines) - 1 or not described:
        raise DataError(f"{path.name}: the header must describe {described} signals or segments, not {len(lines) - 1}")
    samples, fs = int(match["samples"]) if match["samples"] else None, float(match["fs"])
    began = _base_time(match["base"] or "")
    if fs == 0:
        raise DataError(f"{path.name}: rate and number of samples must not be 0")
    if match["segments"]:
        if not segments:
            raise DataError(f"{path.name}: a segment must not have segments of its own")
        return WfdbHeader(match["name"], fs, samples, (), _parse_segments(path, lines[1:], samples), began)
    signals = tuple(_parse_signal(line, number, path.name) for number, line in enumerate(lines[1:]))
    if not layout and any(signal.file == _ABSENT for signal in signals):
        raise DataError(f"{path.name}: this is the layout header of a multi-segment record, which has no samples")
    if samples == 0 and not layout:
        raise DataError(f"{path.name}: rate and number of samples must not be 0")
    return WfdbHeader(match["name"], fs, samples, signals, began=began)


def _base_time(text: str) -> str:
    """Return when a record began, from the base time and date of the header; "" if they are missing or invalid."""
    match = _BASE.fullmatch(text.strip())
    if match is None:
        return ""
    try:
        hour, minute, second = map(int, match["time"].split(":"))
        day, month, year = map(int, match["date"].split("/")) if match["date"] else (0, 0, 0)
        start = date(year, month, day) if match["date"] else None
        return clock_start(start, time(hour, minute, second), float(match["part"] or 0))
    except ValueError:
        return ""


def _parse_segments(path: Path, lines: list[str], samples: int | None) -> tuple[tuple[str, int], ...]:
    segments = []
    for line in lines:
        match = _SEGMENT_LINE.fullmatch(line)
        if match is None or match["name"] == path.stem:
            raise DataError(f"{path.name}: a segment must be 'record samples', but is {line[:80]!r}")
        segments.append((match["name"], int(match["samples"])))
    total = sum(count for _, count in segments)
    if samples not in (None, total):
        raise DataError(f"{path.name}: the segments must have {samples} samples, but have {total}")
    return tuple(segments)


def _parse_signal(line: str, number: int, file: str) -> WfdbSignal:
    match = _SIGNAL_LINE.fullmatch(line)
    if match is None or not line.replace("\t", " ").isprintable():
        raise DataError(f"{file}: signal {number} must be 'file format gain bits zero …', but is {line[:80]!r}")
    if match["format"] not in _FORMATS and match["file"] != _ABSENT:
        raise DataError(f"{file}: signal {number} has format {match['format']}, but must have {' or '.join(_FORMATS)}")
    # The format defines 200 as the gain if the field is missing or 0. With flush-to-zero, a small float would equal 0.
    gain = Decimal(match["gain"] or 0) or Decimal(200)
    # Outside this range, float32 would overflow, or all values would be 0.
    if not 1e-37 < abs(gain) < 1e37:
        raise DataError(
            f"{file}: signal {number} must have a gain between 1e-37 and 1e+37, but has {match['gain']}: correct it, "
            "or write 0 if it is unknown"
        )
    zero = int(match["zero"] or 0)
    return WfdbSignal(
        name=match["name"] or f"signal {number}",
        file=match["file"],
        format=match["format"],
        start=int(match["start"] or 0),
        frame=int(match["frame"] or 1) or 1,
        skew=int(match["skew"] or 0),
        gain=float(gain),
        baseline=zero if match["baseline"] is None else int(match["baseline"]),
        units=as_unit(match["units"] or "mV"),
        bits=int(match["bits"] or 0),
        zero=zero,
        first=int(match["first"] or 0),
        checksum=int(match["checksum"] or 0),
    )


def choose_signals(header: WfdbHeader, channels: Sequence[str] | None) -> list[int]:
    """Return the indices of the signals with these names, in this order; all signals if None."""
    return choose_channels(f"{header.record}.hea", [signal.name for signal in header.signals], channels)


def _file_size(path: Path) -> int:
    check_regular_file(path)
    if not path.is_file():
        raise DataError(f"{path.name}: there is no such file")
    return path.stat().st_size


def _sample_count(header: WfdbHeader, picked: list[int], folder: Path) -> int:
    """Return the number of frames, and check it against the sizes of the signal files."""
    file = f"{header.record}.hea"
    samples = header.samples
    for name in dict.fromkeys(header.signals[number].file for number in picked):
        group = [signal for signal in header.signals if signal.file == name]
        if len({(signal.format, signal.start) for signal in group}) > 1:
            raise DataError(f"{file}: signals of {name} must have the same format and offset")
        count, per, _ = _FORMATS[group[0].format]
        width = sum(signal.frame for signal in group)
        there = max(_file_size(folder / name) - group[0].start, 0)
        if group[0].format in _PACKED:
            if samples is None:
                raise DataError(f"{file}: the header must give the number of samples of FLAC-compressed signals")
            check_inflation(name, samples * width * 4, there, "save it in format 16")
            continue
        if samples is None:
            samples = there * per // (count * width)
        needed = -(-samples * width * count // per)
        # Without checksums, a file that is too long is taken as a sign of a wrong header.
        summed = all(header.signals[number].checksum for number in picked)
        if samples < 1 or there < needed or (there > needed + _PADDING and not summed):
            raise DataError(
                f"{name}: the data must have {needed} bytes (signals: {len(group)}, samples: {samples}), "
                f"but have {there}"
            )
    assert samples is not None
    return samples


# ---------------------------------------------------------------- digits


def check_digits(signal: WfdbSignal, digits: NDArray[Any], file: str) -> None:
    """Check the digital values of a signal, (samples,), against the first value and the checksum in the header.

    A 0 in the header is not compared, since some files have 0 for values that were not computed.

    Raises
    ------
    DataError : if they differ
    """
    # In format 8, the value in the header precedes the first difference. The checksum, if any, is the better test.
    unsure = signal.format != "8" and not signal.checksum
    if signal.first and unsure and digits[0] not in (signal.first, signal.missing):
        raise DataError(f"{file}: channel {signal.name} must begin with {signal.first}, but begins with {digits[0]}")
    total = int(digits.sum(dtype=np.int64)) % 65536
    if signal.checksum and total != signal.checksum % 65536:
        raise DataError(
            f"{file}: channel {signal.name} must have checksum {signal.checksum % 65536}, but has {total}: "
            f"{signal.file} is damaged or belongs to another record"
        )


def build_recording(
    header: WfdbHeader,
    signals: Sequence[WfdbSignal],
    digits: NDArray[Any],
    annotations: Sequence[Annotation],
    name: str,
    subject: str | None = None,
) -> Recording:
    """Build a recording from digital values, (channels, samples): int16 is kept, wider types become physical values."""
    missing = np.zeros(digits.shape, bool)
    for row, invalid, signal in zip(digits, missing, signals, strict=True):
        if signal.missing is not None:
            invalid[:] = row == signal.missing
        if signal.skew and row.flags.writeable:
            lag = min(signal.skew * signal.frame, len(row))
            row[:], invalid[:] = np.roll(row, -lag), np.roll(invalid, -lag)
            row[len(row) - lag :], invalid[len(row) - lag :] = signal.missing or 0, True
    narrow = digits.dtype == np.int16
    recording = Recording(
        name=name,
        subject=subject or name,
        fs=header.fs * signals[0].frame,
        channels=tuple(signal.name for signal in signals),
        units=tuple(signal.units for signal in signals),
        signal=digits if narrow else np.broadcast_to(np.zeros((), np.int16), digits.shape),
        scale=np.array([1 / signal.gain for signal in signals]),
        offset=np.array([-signal.baseline / signal.gain for signal in signals]),
        annotations=tuple(annotations),
        missing=missing if missing.any() else None,
        limits=_device_limits(signals),
    )
    return recording if narrow else as_values(recording, digits)


def _device_limits(signals: Sequence[WfdbSignal]) -> NDArray[Any] | None:
    """Return the digital minimum and maximum of each converter, (channels, 2); None if a resolution is unknown."""
    limits = []
    for signal in signals:
        lowest, bits = signal.missing, signal.bits
        if lowest is None or not 0 < bits <= 32:
            return None
        # The lowest digital value of a format marks missing samples, so the converter never outputs it.
        low, high = signal.zero - (1 << bits - 1), signal.zero + (1 << bits - 1) - 1
        low, high = max(low, lowest + 1), min(high, -lowest - 1)
        if low >= high:
            return None
        limits.append((low, high))
    return np.array(limits, np.int64)


# ---------------------------------------------------------------- annotations


def read_annotations(path: Path, recording: Recording) -> tuple[Annotation, ...]:
    """Read an annotation file in the MIT format; the header of the record must be in the same folder."""
    header = read_header(path.with_suffix(".hea"), segments=True)
    return tuple(sorted(_read_annotations(path, header.fs, recording.duration), key=lambda one: one.onset))


def is_annotations(path: Path) -> bool:
    """Whether a file contains annotations in the MIT format."""
    try:
        return bool(list(_decode_annotations(path.read_bytes(), path.name)))
    except (DataError, OSError):
        return False


def _read_annotations(file: Path, fs: float, duration: float) -> list[Annotation]:
    """Read an annotation file: a rhythm change lasts until the next one, other annotations have duration 0."""
    if not re.fullmatch(r"\.[-\w]+", file.suffix):
        raise PolyadicError(f"annotations must be extensions such as 'atr', but are {file.suffix!r}")
    _file_size(file)
    parsed = list(_parse_annotations(file, fs, duration))
    changes = [onset for onset, code, text in parsed if code == _RHYTHM and text.startswith("(")]
    ends = iter([*changes[1:], duration])
    return [
        Annotation(onset, next(ends) - onset if code == _RHYTHM and text.startswith("(") else 0.0, text)
        for onset, code, text in parsed
    ]


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
            current = (*current[:2], _note(data[at : at + low], low, file))
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


def _note(data: bytes, length: int, file: str) -> str:
    """Decode the text of an annotation, without the trailing whitespace that some programs add."""
    try:
        note = data.decode("utf-8").rstrip("\0 \t\r\n")
    except UnicodeDecodeError:
        note = "\0"
    if len(data) < length or not note.isprintable():
        raise DataError(f"{file}: notes of annotations must be printable UTF-8, but one is {data[:80]!r}")
    return note
