"""Read WFDB records as published on PhysioNet: a header, its signal files, and annotations in the MIT format.

Headers and annotations are parsed strictly here, because the wfdb package skips what it cannot parse. The package
decodes the samples. Nothing is read from the network, and memory is allocated only after the file sizes were checked.
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
from polyadic.data.readers.compression import check_inflation
from polyadic.data.readers.texts import as_unit, decode_text
from polyadic.data.reading import close_match
from polyadic.data.recordings import Annotation, Recording, Segment, as_values, resample_recording
from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = [
    "WfdbHeader",
    "WfdbSignal",
    "build_recording",
    "check_digits",
    "choose_signals",
    "find_segments",
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
# Formats whose digital values may not fit 16 bits.
_WIDE = ("8", "24", "32", "524")
# Formats compressed with FLAC, for which the file size does not give the number of samples.
_PACKED = ("508", "516", "524")
_ABSENT = "~"
"""File name in a layout header, and segment name that marks a gap."""
_PADDING = 4
_LARGEST_HEADER = 1 << 20

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

    Fields that the header omits have the default of the format, or 0.

    Parameters
    ----------
    file, format, start : file of the samples, its format, and the byte at which the samples begin
    frame : samples per frame
    skew : number of samples by which the signal lags
    gain, baseline, units : calibration
    bits, zero : resolution and midpoint of the analog-to-digital converter
    first, checksum : first digital value, and 16-bit sum of all digital values
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
    resample: str | Mapping[str, str | None] | None = None,
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

    Raises
    ------
    DataError : if a file is missing or damaged, a channel does not exist, or rates differ and `resample` is None
    PolyadicError : if wfdb is not installed, or an argument is invalid
    """
    path = Path(path)
    path = path.parent / path.name.removesuffix(".hea")
    header = read_header(path.with_name(path.name + ".hea"), segments=True)
    if header.segments:
        recording = _read_segments(path, header, channels, resample)
    else:
        recording = _read_single(path, header, channels, resample)
    last = recording.segments[-1]
    duration = last.onset + (recording.signal.shape[1] - last.first) / recording.fs
    name = name or path.name
    return replace(
        recording,
        name=name,
        subject=subject or name,
        annotations=tuple(_read_annotations(path, annotations, header.fs, duration)),
        began=header.began,
    )


def _read_single(path: Path, header: WfdbHeader, channels: Sequence[str] | None, resample: _Resample) -> Recording:
    """Read a record with one segment, without annotations."""
    package = _import_wfdb()
    if "::" in str(path.absolute()):
        # wfdb would interpret it as a chained URL.
        raise PolyadicError(f"path must not contain '::', but is {str(path)!r}")
    file = f"{path.name}.hea"
    if header.samples == 0 or any(signal.file == _ABSENT for signal in header.signals):
        raise DataError(f"{file}: this is the layout header of a multi-segment record, which has no samples")
    picked = choose_signals(header, channels)
    frames = _sample_count(header, picked, path.parent)
    signals = [header.signals[number] for number in picked]
    if any(signal.format in _PACKED for signal in signals) and importlib.util.find_spec("soundfile") is None:
        raise MissingExtraError(f"{file}: FLAC-compressed signals need the package soundfile: pip install soundfile")
    even = all(signal.frame == 1 for signal in signals)
    try:
        record = package.rdrecord(
            str(path.absolute()),
            sampto=header.samples,
            channels=picked,
            physical=False,
            ignore_skew=True,
            smooth_frames=even,
            return_res=32 if any(signal.format in _WIDE for signal in signals) else 16,
        )
        rows = list(record.d_signal.T) if even else list(record.e_d_signal)
    except Exception as error:
        raise DataError(f"{file}: wfdb cannot read the record ({type(error).__name__})") from error
    for signal, row in zip(signals, rows, strict=True):
        if len(row) != frames * signal.frame:
            raise DataError(
                f"{file}: {signal.name} must have {frames * signal.frame} samples, but wfdb reads {len(row)}"
            )
        check_digits(signal, row, file)
    if len({signal.frame for signal in signals}) == 1:
        return build_recording(header, signals, np.ascontiguousarray(np.array(rows)), (), path.name, None)
    return _at_one_rate(header, signals, rows, resample)


def _at_one_rate(
    header: WfdbHeader, signals: Sequence[WfdbSignal], rows: Sequence[NDArray[Any]], resample: _Resample
) -> Recording:
    """Build a recording from channels with different rates, (samples,) each, resampled to the highest rate."""
    listed = ", ".join(f"{signal.name} {header.fs * signal.frame:g} Hz" for signal in signals)
    most = max(signal.frame for signal in signals)
    ways = [resample.get(signal.name) if isinstance(resample, Mapping) else resample for signal in signals]
    if any(how is None and signal.frame != most for how, signal in zip(ways, signals, strict=True)):
        raise DataError(
            f"{header.record}.hea: without resample all channels must have one rate, but have {listed}: --resample "
            "hold repeats the samples of slow channels, --resample polyphase filters"
        )
    each = [
        build_recording(header, [signal], np.ascontiguousarray(row)[None], (), header.record, None)
        for signal, row in zip(signals, rows, strict=True)
    ]
    if "polyphase" in ways or len({one.signal.dtype for one in each}) > 1:
        each = [as_values(one) for one in each]
    each = [resample_recording(one, header.fs * most, how or "hold") for one, how in zip(each, ways, strict=True)]
    missing = [np.zeros(one.signal.shape, bool) if one.missing is None else one.missing for one in each]
    return replace(
        each[0],
        channels=tuple(signal.name for signal in signals),
        units=tuple(signal.units for signal in signals),
        signal=np.concatenate([one.signal for one in each]),
        scale=np.concatenate([one.scale for one in each]),
        offset=np.concatenate([one.offset for one in each]),
        missing=np.concatenate(missing) if any(part.any() for part in missing) else None,
        limits=None,
    )


def _read_segments(path: Path, header: WfdbHeader, channels: Sequence[str] | None, resample: _Resample) -> Recording:
    """Read a multi-segment record; times without a segment are gaps."""
    layout, others = _layout(path, header)
    wanted = [layout[number].name for number in choose_signals(replace(header, signals=layout), channels)]
    pieces, segments, frames, count = [], [], 0, 0
    for segment, samples in others:
        if segment != _ABSENT and samples:
            own = read_header(path.with_name(f"{segment}.hea"))
            if own.fs != header.fs or (own.samples is not None and own.samples != samples):
                raise DataError(
                    f"{segment}.hea: the segment must have {samples} samples at {header.fs:g} Hz, but has "
                    f"{own.samples} at {own.fs:g} Hz"
                )
            there = [name for name in wanted if name in [signal.name for signal in own.signals]]
            if there:
                piece = _read_single(path.with_name(segment), own, there, resample)
                pieces.append(_with_channels(piece, wanted))
                segments.append((count, frames / header.fs))
                count += pieces[-1].signal.shape[1]
        frames += samples
    if not pieces:
        raise DataError(f"{path.name}.hea: no segment has any of the channels {', '.join(wanted)}")
    return _joined(pieces, segments, path.name)


def _layout(path: Path, header: WfdbHeader) -> tuple[tuple[WfdbSignal, ...], list[tuple[str, int]]]:
    """Return the signals of a multi-segment record, and its segments with their numbers of samples."""
    first = next((segment for segment, _ in header.segments if segment != _ABSENT), None)
    if first is None:
        raise DataError(f"{path.name}.hea: all segments are gaps")
    signals = read_header(path.with_name(f"{first}.hea"), layout=True).signals
    return signals, [entry for entry in header.segments if entry[1]]


def _with_channels(recording: Recording, wanted: list[str]) -> Recording:
    """Return a segment with all channels of its record; samples of the added channels are missing."""
    rows = [recording.channels.index(name) if name in recording.channels else -1 for name in wanted]
    if -1 not in rows:
        return recording
    shape = (len(wanted), recording.signal.shape[1])
    signal, missing = np.zeros(shape, recording.signal.dtype), np.ones(shape, bool)
    scale, offset = np.full(len(wanted), np.nan), np.full(len(wanted), np.nan)
    units = [""] * len(wanted)
    for place, row in enumerate(rows):
        if row >= 0:
            signal[place] = recording.signal[row]
            missing[place] = False if recording.missing is None else recording.missing[row]
            scale[place], offset[place], units[place] = (
                recording.scale[row],
                recording.offset[row],
                recording.units[row],
            )
    missing |= ~np.isfinite(signal)
    return replace(
        recording,
        channels=tuple(wanted),
        units=tuple(units),
        signal=signal,
        scale=np.nan_to_num(scale, nan=1.0),
        offset=np.nan_to_num(offset),
        missing=missing,
        limits=None,
    )


def _joined(pieces: list[Recording], segments: list[tuple[int, float]], name: str) -> Recording:
    """Concatenate segments; digital values are kept if all segments have the same calibration."""
    there = [_present(piece) for piece in pieces]
    first = pieces[0]
    scale, offset, units = first.scale.copy(), first.offset.copy(), list(first.units)
    alike = len({piece.signal.dtype for piece in pieces}) == 1
    seen = there[0].copy()
    for piece, present in zip(pieces[1:], there[1:], strict=True):
        both = seen & present
        alike &= bool((scale[both] == piece.scale[both]).all() and (offset[both] == piece.offset[both]).all())
        new = present & ~seen
        scale[new], offset[new] = piece.scale[new], piece.offset[new]
        for place in np.flatnonzero(present).tolist():
            if seen[place] and units[place] != piece.units[place]:
                raise DataError(
                    f"{name}.hea: {piece.channels[place]} is in {units[place]} in one segment, and in "
                    f"{piece.units[place]} in another"
                )
            units[place] = piece.units[place]
        seen |= present
    if not alike:
        pieces = [as_values(piece) for piece in pieces]
        scale, offset = np.ones(len(scale)), np.zeros(len(scale))
    masks = [np.zeros(piece.signal.shape, bool) if piece.missing is None else piece.missing for piece in pieces]
    return replace(
        first,
        units=tuple(units),
        signal=np.concatenate([piece.signal for piece in pieces], axis=1),
        scale=scale,
        offset=offset,
        missing=np.concatenate(masks, axis=1) if any(mask.any() for mask in masks) else None,
        segments=_without_seams(segments, first.fs),
        limits=None,
    )


def _present(recording: Recording) -> NDArray[np.bool_]:
    """Return which channels have samples: (channels,)."""
    if recording.missing is None:
        return np.ones(len(recording.channels), bool)
    return np.asarray(~recording.missing.all(axis=1))


def _without_seams(segments: list[tuple[int, float]], fs: float) -> tuple[Segment, ...]:
    """Merge segments that follow each other without a gap, so that windows may cross their border."""
    found = [Segment(*segments[0])]
    for first, onset in segments[1:]:
        expected = found[-1].onset + (first - found[-1].first) / fs
        if abs(onset - expected) > 0.5 / fs:
            found.append(Segment(first, onset))
    return tuple(found)


def find_segments(headers: Iterable[Path]) -> dict[Path, str]:
    """Return the headers that are segments of another given header, with the name of that; ignore damaged headers."""
    every = list(headers)
    found: dict[Path, str] = {}
    for path in every:
        try:
            header = read_header(path, segments=True)
        except (DataError, OSError):
            continue
        for segment, _ in header.segments:
            found[path.with_name(f"{segment}.hea")] = path.name
    return {path: found[path] for path in every if path in found}


def read_rates(path: Path) -> dict[str, float]:
    """Read the sampling rate in Hz of every channel of a record, by name."""
    header = read_header(path, segments=True)
    signals = _layout(path.with_suffix(""), header)[0] if header.segments else header.signals
    return {signal.name: header.fs * signal.frame for signal in signals}


def read_annotations(path: Path, recording: Recording) -> tuple[Annotation, ...]:
    """Read an annotation file in the MIT format; the header of the record must be in the same folder."""
    header = read_header(path.with_suffix(".hea"), segments=True)
    last = recording.segments[-1]
    duration = last.onset + (recording.signal.shape[1] - last.first) / recording.fs
    return tuple(_read_annotations(path.with_suffix(""), path.suffix[1:], header.fs, duration))


def is_annotations(path: Path) -> bool:
    """Whether a file contains annotations in the MIT format."""
    try:
        return bool(list(_decode_annotations(path.read_bytes(), path.name)))
    except (DataError, OSError):
        return False


def _import_wfdb() -> Any:
    try:
        with warnings.catch_warnings():
            # Importing wfdb causes deprecation warnings with recent versions of pandas.
            warnings.simplefilter("ignore")
            import wfdb
    except ImportError:
        raise MissingExtraError("WFDB records need the package wfdb: pip install 'polyadic[wfdb]'") from None
    return wfdb


# ---------------------------------------------------------------- headers


def read_header(path: Path, *, segments: bool = False, layout: bool = False) -> WfdbHeader:
    """Parse a header, which must be named after its record, and be ASCII except for units, channel names and comments.

    Parameters
    ----------
    path : path of the header
    segments : whether to accept the header of a multi-segment record
    layout : whether to accept a layout header, which describes the signals of such a record and has no samples

    Raises
    ------
    DataError : if a line does not follow the format
    """
    lines = _header_lines(path)
    match = _RECORD_LINE.fullmatch(lines[0])
    if match is None:
        raise DataError(f"{path.name}: the first line must be 'record signals rate samples', but is {lines[0][:80]!r}")
    if match["name"] != path.stem:
        raise DataError(f"{path.name}: the header must be for the record {path.stem!r}, but is for {match['name']!r}")
    if match["segments"]:
        if not segments:
            raise DataError(f"{path.name}: a segment must not have segments of its own")
        return _parse_segments(path, match, lines[1:])
    if int(match["signals"]) != len(lines) - 1 or len(lines) < 2:
        raise DataError(
            f"{path.name}: the declared number of signals is {match['signals']}, but the header "
            f"describes {len(lines) - 1}"
        )
    signals = tuple(_parse_signal(line, number, path.name) for number, line in enumerate(lines[1:]))
    samples = int(match["samples"]) if match["samples"] else None
    absent = any(signal.file == _ABSENT for signal in signals)
    if absent and not layout:
        raise DataError(f"{path.name}: this is the layout header of a multi-segment record, which has no samples")
    if (samples == 0 and not layout) or float(match["fs"]) == 0:
        raise DataError(f"{path.name}: rate and number of samples must not be 0")
    return WfdbHeader(match["name"], float(match["fs"]), samples, signals, began=_base_time(match["base"] or ""))


def _base_time(text: str) -> str:
    """Return when a record began, from the base time and date of the header; "" if they are missing or invalid."""
    found = _BASE.fullmatch(text.strip())
    if found is None:
        return ""
    try:
        hour, minute, second = map(int, found["time"].split(":"))
        day, month, year = map(int, found["date"].split("/")) if found["date"] else (0, 0, 0)
        return clock_start(
            date(year, month, day) if found["date"] else None, time(hour, minute, second), float(found["part"] or 0)
        )
    except ValueError:
        return ""


def _parse_segments(path: Path, match: re.Match[str], lines: list[str]) -> WfdbHeader:
    """Parse the header of a multi-segment record from its first line and the lines after it."""
    if int(match["segments"][1:]) != len(lines) or not lines:
        raise DataError(
            f"{path.name}: the declared number of segments is {match['segments'][1:]}, but the header "
            f"describes {len(lines)}"
        )
    found = []
    for line in lines:
        segment = _SEGMENT_LINE.fullmatch(line)
        if segment is None or segment["name"] == path.stem:
            raise DataError(f"{path.name}: a segment must be 'record samples', but is {line[:80]!r}")
        found.append((segment["name"], int(segment["samples"])))
    if float(match["fs"]) == 0:
        raise DataError(f"{path.name}: the rate must not be 0")
    samples = int(match["samples"]) if match["samples"] else None
    if samples is not None and samples != sum(count for _, count in found):
        raise DataError(
            f"{path.name}: the segments must have {samples} samples, but have {sum(count for _, count in found)}"
        )
    return WfdbHeader(match["name"], float(match["fs"]), samples, (), tuple(found), _base_time(match["base"] or ""))


def _header_lines(path: Path) -> list[str]:
    size = _file_size(path)
    if size > _LARGEST_HEADER:
        raise DataError(f"{path.name}: a header must be at most {_LARGEST_HEADER} bytes, but has {size}")
    content = [line.strip() for line in path.read_bytes().splitlines()]
    lines = [decode_text(line) for line in content if line and not line.startswith(b"#")]
    if not lines:
        raise DataError(f"{path.name}: the header is empty")
    for line in lines:
        if not line.replace("\t", " ").isprintable():
            raise DataError(f"{path.name}: a header must be printable text, but contains the line {line[:80]!a}")
    if not lines[0].isascii():
        raise DataError(f"{path.name}: the first line must be ASCII, but is {lines[0][:80]!a}")
    return lines


def _parse_signal(line: str, number: int, file: str) -> WfdbSignal:
    match = _SIGNAL_LINE.fullmatch(line)
    if match is None:
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
    names = [signal.name for signal in header.signals]
    if isinstance(channels, str):
        raise PolyadicError(f"channels must be a sequence of names, but is the string {channels!r}")
    wanted = names if channels is None else list(channels)
    if not wanted:
        raise PolyadicError("channels must name at least one channel, but is empty")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise DataError(
            f"{header.record}.hea: has no channel {unknown[0]!r}; it has {', '.join(names)}"
            f"{close_match(unknown[0], names)}"
        )
    twice = sorted({name for name in wanted if names.count(name) > 1})
    if twice:
        raise DataError(f"{header.record}.hea: several channels are named {', '.join(twice)}")
    if len(set(wanted)) != len(wanted):
        raise PolyadicError(f"{header.record}: channels must be distinct, but are {wanted}")
    return [names.index(name) for name in wanted]


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
        numbers = [number for number, signal in enumerate(header.signals) if signal.file == name]
        group = [header.signals[number] for number in numbers]
        layouts = {(signal.format, signal.start) for signal in group}
        if len(layouts) > 1 or numbers != list(range(numbers[0], numbers[-1] + 1)):
            raise DataError(f"{file}: signals of {name} must be contiguous, with the same format and offset")
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
    subject: str | None,
) -> Recording:
    """Build a recording from digital values, (channels, samples): int16 is kept, wider types become physical values."""
    missing = np.zeros(digits.shape, bool)
    for row, invalid, signal in zip(digits, missing, signals, strict=True):
        if signal.missing is not None:
            invalid[:] = row == signal.missing
        if signal.skew:
            lag = min(signal.skew * signal.frame, len(row))
            row[:], invalid[:] = np.roll(row, -lag), np.roll(invalid, -lag)
            row[len(row) - lag :], invalid[len(row) - lag :] = signal.missing or 0, True
    scale = np.array([1 / signal.gain for signal in signals])
    offset = np.array([-signal.baseline / signal.gain for signal in signals])
    limits = _device_limits(signals)
    if digits.dtype != np.int16:
        with np.errstate(over="ignore", invalid="ignore"):
            digits = (digits * scale[:, None] + offset[:, None]).astype(np.float32)
            if limits is not None:
                limits = np.sort(limits * scale[:, None] + offset[:, None]).astype(np.float32)
        if not np.isfinite(digits).all():
            raise DataError(f"{header.record}.hea: values exceed the range of float32")
        digits[missing] = np.nan
        missing, scale, offset = missing[:0], np.ones(len(signals)), np.zeros(len(signals))
    return Recording(
        name=name,
        subject=subject or name,
        fs=header.fs * signals[0].frame,
        channels=tuple(signal.name for signal in signals),
        units=tuple(signal.units for signal in signals),
        signal=digits,
        scale=scale,
        offset=offset,
        annotations=tuple(annotations),
        missing=missing if missing.any() else None,
        limits=limits,
    )


def _device_limits(signals: Sequence[WfdbSignal]) -> NDArray[Any] | None:
    """Return the digital minimum and maximum of each converter, (channels, 2); None if a resolution is unknown."""
    found = []
    for signal in signals:
        lowest, bits = signal.missing, signal.bits
        if lowest is None or not 0 < bits <= 32:
            return None
        # The lowest digital value of a format marks missing samples, so the converter never outputs it.
        low, high = signal.zero - (1 << bits - 1), signal.zero + (1 << bits - 1) - 1
        low, high = max(low, lowest + 1), min(high, -lowest - 1)
        if low >= high:
            return None
        found.append((low, high))
    return np.array(found, np.int64)


# ---------------------------------------------------------------- annotations


def _read_annotations(
    path: Path, extensions: str | Sequence[str] | None, fs: float, duration: float
) -> list[Annotation]:
    """Read the annotation files with these extensions in the folder of the header; sort by onset in seconds."""
    found: list[Annotation] = []
    for extension in [extensions] if isinstance(extensions, str) else extensions or ():
        if not re.fullmatch(r"[-\w]+", extension):
            raise PolyadicError(f"annotations must be extensions such as 'atr', but are {extensions!r}")
        file = path.with_name(f"{path.name}.{extension}")
        _file_size(file)
        found += _with_durations(list(_parse_annotations(file, fs, duration)), duration)
    return sorted(found, key=lambda annotation: annotation.onset)


def _with_durations(parsed: list[tuple[float, int, str]], duration: float) -> list[Annotation]:
    """Build annotations from onset, code and text: a rhythm change lasts until the next one, others have duration 0."""
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
