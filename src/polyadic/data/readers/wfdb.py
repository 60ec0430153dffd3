"""WFDB records as PhysioNet publishes them: a header, its signal files, and annotations in the MIT format.

Headers and annotations are parsed here and strictly, since the library skips what it cannot parse; it decodes the
samples. Nothing is read from the network, and nothing is allocated before the sizes of the files were checked.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.readers.texts import as_unit, decode_text
from polyadic.data.recordings import Annotation, Recording
from polyadic.errors import DataError, MissingExtraError, PolyadicError
from polyadic.files import check_regular_file

__all__ = ["WfdbHeader", "WfdbSignal", "build_recording", "check_digits", "choose_signals", "read_header", "read_wfdb"]

# Of each format: bytes and the samples they hold, and the digit that stands for a missing value.
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
}
# Digits of these formats may not fit 16 bits.
_WIDE = ("8", "24", "32")
_PADDING = 4
_LARGEST_HEADER = 1 << 20

_RECORD_LINE = re.compile(
    r"(?P<name>[-\w]+)(?P<segments>/\d+)?\s+(?P<signals>\d{1,9})\s+(?P<fs>\d{1,12}(?:\.\d{0,30})?)"
    r"(?:/\d+(?:\.\d*)?(?:\(-?\d+(?:\.\d*)?\))?)?(?:\s+(?P<samples>\d{1,15})(?:\s+\S.*)?)?",
    re.ASCII,
)
_SIGNAL_LINE = re.compile(
    r"(?P<file>\w[-\w]*(?:\.\w+)?)\s+(?P<format>\d{1,3})(?:x(?P<frame>\d{1,9}))?(?::(?P<skew>\d{1,15}))?"
    r"(?:\+(?P<start>\d{1,15}))?"
    r"(?:\s+(?P<gain>-?\d{1,30}(?:\.\d{0,30})?(?:e[+-]?\d{1,3})?)(?:\((?P<baseline>-?\d{1,12})\))?"
    r"(?:/(?P<units>(?:[\w^?%/-]|[^\x00-\x7f])+))?"
    r"(?:\s+(?P<bits>\d{1,2})(?:\s+(?P<zero>-?\d{1,12})(?:\s+(?P<first>-?\d{1,12})(?:\s+(?P<checksum>-?\d{1,6})"
    r"(?:\s+\d{1,9}(?:\s+(?P<name>\S.*))?)?)?)?)?)?)?",
    re.ASCII,
)
_RESOLUTION = re.compile(r"## time resolution: (\d{1,12}(?:\.\d{0,30})?)")
_DEFINITION = re.compile(r"(\d{1,2}) (\S+) .*")

_NOTE, _LAST_CODE, _SKIP, _AUX = 22, 49, 59, 63
"""Codes of annotations: a comment, the last that may mean something, a long interval, and a text that follows."""


@dataclass(frozen=True)
class WfdbSignal:
    """One signal of a header: value = (digit - baseline) / gain; 0 stands for what the header leaves out.

    Parameters
    ----------
    file, format, start : the file of its samples, their format, and the byte at which they begin
    skew : samples by which it lags
    gain, baseline, units : how digits become values
    bits, zero : resolution and middle of the device's digits
    first, checksum : its first digit, the 16-bit sum of all its digits
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
        """The digit that stands for a missing value, if the format has one."""
        return _FORMATS[self.format][2]


@dataclass(frozen=True)
class WfdbHeader:
    """The content of a header; `samples` is None where it does not give the length."""

    record: str
    fs: float
    samples: int | None
    signals: tuple[WfdbSignal, ...]


def read_wfdb(
    path: str | Path,
    *,
    channels: Sequence[str] | None = None,
    annotations: str | Sequence[str] | None = None,
    name: str | None = None,
    subject: str | None = None,
) -> Recording:
    """Read a record of one segment and one sampling rate; formats of up to 16 bits keep their digits exactly.

    Parameters
    ----------
    path : of the record, with or without `.hea`
    channels : names, in the order wanted; None for all
    annotations : extensions of annotation files, such as "atr"; texts are their notes, or else their symbols ("[42]"
        for a code without one)
    name, subject : of the recording; by default the name of the record, and `name`

    Raises
    ------
    DataError : if a file is absent or damaged, or the record has several segments or rates
    PolyadicError : if wfdb is not installed, or an argument cannot be used
    """
    package = _import_wfdb()
    path = Path(path)
    path = path.parent / path.name.removesuffix(".hea")
    if "::" in str(path.absolute()):
        # The library would take it for a chain of URLs.
        raise PolyadicError(f"path must not have '::' in it, but is {path.name!r}")
    header = read_header(path.with_name(path.name + ".hea"))
    picked = choose_signals(header, channels)
    samples = _sample_count(header, picked, path.parent)
    file = f"{path.name}.hea"
    try:
        record = package.rdrecord(
            str(path.absolute()),
            sampto=header.samples,
            channels=picked,
            physical=False,
            ignore_skew=True,
            return_res=32 if any(header.signals[number].format in _WIDE for number in picked) else 16,
        )
    except Exception as error:
        raise DataError(f"{file}: wfdb cannot read the record ({type(error).__name__})") from error
    digits = np.ascontiguousarray(record.d_signal.T)
    if digits.shape != (len(picked), samples):
        raise DataError(f"{file}: there must be {samples} samples, but wfdb reads {digits.shape[1]}")
    signals = [header.signals[number] for number in picked]
    for signal, row in zip(signals, digits, strict=True):
        check_digits(signal, row, file)
    found = _read_annotations(path, annotations, header.fs, samples)
    return build_recording(header, signals, digits, found, name or path.name, subject)


def _import_wfdb() -> Any:
    try:
        with warnings.catch_warnings():
            # The import itself uses features that newer versions of pandas warn about.
            warnings.simplefilter("ignore")
            import wfdb
    except ImportError:
        raise MissingExtraError("WFDB records need the package wfdb: pip install 'polyadic[wfdb]'") from None
    return wfdb


# ---------------------------------------------------------------- headers


def read_header(path: Path) -> WfdbHeader:
    """Parse a header, which must be ASCII except for units, channel names and comments, and be named after its record.

    Raises
    ------
    DataError : at the first line that does not follow the format
    """
    lines = _header_lines(path)
    match = _RECORD_LINE.fullmatch(lines[0])
    if match is None:
        raise DataError(f"{path.name}: the first line must be 'record signals rate samples', but is {lines[0][:80]!r}")
    if match["segments"]:
        raise DataError(f"{path.name}: records of several segments are not supported")
    if match["name"] != path.stem:
        raise DataError(f"{path.name}: the header must be of the record {path.stem!r}, but is of {match['name']!r}")
    if int(match["signals"]) != len(lines) - 1 or len(lines) < 2:
        raise DataError(f"{path.name}: {match['signals']} signals are announced, but {len(lines) - 1} are described")
    signals = tuple(_parse_signal(line, number, path.name) for number, line in enumerate(lines[1:]))
    samples = int(match["samples"]) if match["samples"] else None
    if samples == 0 or float(match["fs"]) == 0:
        raise DataError(f"{path.name}: rate and number of samples must not be 0")
    return WfdbHeader(match["name"], float(match["fs"]), samples, signals)


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
            raise DataError(f"{path.name}: a header must be printable text, but has the line {line[:80]!a}")
    if not lines[0].isascii():
        raise DataError(f"{path.name}: the first line must be ASCII, but is {lines[0][:80]!a}")
    return lines


def _parse_signal(line: str, number: int, file: str) -> WfdbSignal:
    match = _SIGNAL_LINE.fullmatch(line)
    if match is None:
        raise DataError(f"{file}: signal {number} must be 'file format gain bits zero …', but is {line[:80]!r}")
    if match["format"] not in _FORMATS:
        raise DataError(f"{file}: signal {number} has format {match['format']}; supported are {', '.join(_FORMATS)}")
    zero = int(match["zero"] or 0)
    return WfdbSignal(
        name=match["name"] or f"signal {number}",
        file=match["file"],
        format=match["format"],
        start=int(match["start"] or 0),
        frame=int(match["frame"] or 1),
        skew=int(match["skew"] or 0),
        # Both absent and 0 stand for 200, by the format's definition.
        gain=float(match["gain"] or 0) or 200.0,
        baseline=zero if match["baseline"] is None else int(match["baseline"]),
        units=as_unit(match["units"] or "mV"),
        bits=int(match["bits"] or 0),
        zero=zero,
        first=int(match["first"] or 0),
        checksum=int(match["checksum"] or 0),
    )


def choose_signals(header: WfdbHeader, channels: Sequence[str] | None) -> list[int]:
    """The numbers of the signals with these names, in this order; all of them for None."""
    names = [signal.name for signal in header.signals]
    if isinstance(channels, str):
        raise PolyadicError(f"channels must be a sequence of names, but is the text {channels!r}")
    wanted = names if channels is None else list(channels)
    if not wanted:
        raise PolyadicError("channels must name at least one channel, but is empty")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise DataError(f"{header.record}.hea: there is no channel {unknown[0]!r}; there are {', '.join(names)}")
    twice = sorted({name for name in wanted if names.count(name) > 1})
    if twice:
        raise DataError(f"{header.record}.hea: several channels are named {', '.join(twice)}")
    if len(set(wanted)) != len(wanted):
        raise PolyadicError(f"{header.record}: channels must differ, but are {wanted}")
    return [names.index(name) for name in wanted]


def _file_size(path: Path) -> int:
    check_regular_file(path)
    if not path.is_file():
        raise DataError(f"{path.name}: there is no such file")
    return path.stat().st_size


def _sample_count(header: WfdbHeader, picked: list[int], folder: Path) -> int:
    """The number of samples of every channel, after comparing it with the sizes of the files."""
    file = f"{header.record}.hea"
    samples = header.samples
    for name in dict.fromkeys(header.signals[number].file for number in picked):
        numbers = [number for number, signal in enumerate(header.signals) if signal.file == name]
        group = [header.signals[number] for number in numbers]
        if any(signal.frame != 1 for signal in group):
            raise DataError(f"{file}: records of several rates (samples per frame other than 1) are not supported")
        layouts = {(signal.format, signal.start) for signal in group}
        if len(layouts) > 1 or numbers != list(range(numbers[0], numbers[-1] + 1)):
            raise DataError(f"{file}: signals of {name} must follow each other, in one format and from one byte on")
        count, per, _ = _FORMATS[group[0].format]
        there = max(_file_size(folder / name) - group[0].start, 0)
        if samples is None:
            samples = there * per // (count * len(group))
        needed = -(-samples * len(group) * count // per)
        # Without checksums of all digits, a file that is too long means that the header is wrong.
        summed = all(header.signals[number].checksum for number in picked)
        if samples < 1 or there < needed or (there > needed + _PADDING and not summed):
            raise DataError(
                f"{name}: {len(group)} signals of {samples} samples need {needed} bytes, but there are {there}"
            )
    assert samples is not None
    return samples


# ---------------------------------------------------------------- digits


def check_digits(signal: WfdbSignal, digits: NDArray[Any], file: str) -> None:
    """Compare a signal's digits, (samples,), with the first digit and the checksum of its header.

    Some publishers write 0 for what they did not compute, so 0 is not compared.

    Raises
    ------
    DataError : if they differ
    """
    # In format 8 the header's value comes before the first difference.
    if signal.first and signal.format != "8" and digits[0] not in (signal.first, signal.missing):
        raise DataError(f"{file}: channel {signal.name} must begin with {signal.first}, but begins with {digits[0]}")
    total = int(digits.sum(dtype=np.int64)) % 65536
    if signal.checksum and total != signal.checksum % 65536:
        raise DataError(
            f"{file}: channel {signal.name} must have checksum {signal.checksum % 65536}, but has {total}: "
            f"{signal.file} is damaged or of another record"
        )


def build_recording(
    header: WfdbHeader,
    signals: Sequence[WfdbSignal],
    digits: NDArray[Any],
    annotations: Sequence[Annotation],
    name: str,
    subject: str | None,
) -> Recording:
    """A recording of these digits, (channels, samples): int16 kept as they are, wider ones converted to values."""
    missing = np.zeros(digits.shape, bool)
    for row, invalid, signal in zip(digits, missing, signals, strict=True):
        if signal.missing is not None:
            invalid[:] = row == signal.missing
        if signal.skew:
            lag = min(signal.skew, len(row))
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
            raise DataError(f"{header.record}.hea: values exceed what 32-bit floating point can hold")
        digits[missing] = np.nan
        missing, scale, offset = missing[:0], np.ones(len(signals)), np.zeros(len(signals))
    return Recording(
        name=name,
        subject=subject or name,
        fs=header.fs,
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
    """Lowest and highest digit of each device, (channels, 2); None if the resolution of one is not known."""
    found = []
    for signal in signals:
        lowest, bits = signal.missing, signal.bits
        if lowest is None or not 0 < bits <= 32:
            return None
        # The lowest digit of a format stands for a missing value, so it is never a value of the device.
        low, high = signal.zero - (1 << bits - 1), signal.zero + (1 << bits - 1) - 1
        low, high = max(low, lowest + 1), min(high, -lowest - 1)
        if low >= high:
            return None
        found.append((low, high))
    return np.array(found, np.int64)


# ---------------------------------------------------------------- annotations


def _read_annotations(path: Path, extensions: str | Sequence[str] | None, fs: float, samples: int) -> list[Annotation]:
    found: list[Annotation] = []
    for extension in [extensions] if isinstance(extensions, str) else extensions or ():
        if not re.fullmatch(r"[-\w]+", extension):
            raise PolyadicError(f"annotations must be extensions such as 'atr', but are {extensions!r}")
        file = path.with_name(f"{path.name}.{extension}")
        _file_size(file)
        found += _parse_annotations(file, fs, samples / fs)
    return sorted(found, key=lambda annotation: annotation.onset)


def _parse_annotations(path: Path, fs: float, duration: float) -> Iterator[Annotation]:
    """Annotations of one file in seconds; comments at its start may define its rate and its symbols.

    Such comments begin with ##, or stand between two that do. Older files define symbols without them.
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
        # Codes up to 49 may have any meaning; without a symbol, the WFDB library writes them in brackets.
        yield Annotation(sample / fs, 0.0, note or symbols.get(code, f"[{code}]"))


def _decode_annotations(data: bytes, file: str) -> Iterator[tuple[int, int, str]]:
    """Sample, code and note of each annotation in the MIT format.

    The decoder of the library is not used: on some files it never ends, and files that are cut short go unnoticed.
    """
    at, sample = 0, 0
    current: tuple[int, int, str] | None = None
    while True:
        if at + 2 > len(data):
            raise DataError(f"{file}: the annotations break off before their end mark")
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
            raise DataError(f"{file}: annotations must begin with one, but begin with the code {code}")
    if data[at:].strip(b"\0"):
        raise DataError(f"{file}: there are bytes after the end mark of the annotations")


def _note(data: bytes, length: int, file: str) -> str:
    """The text of an annotation; a newline or blanks at its end, which some programs add, are left out."""
    try:
        note = data.decode("utf-8").rstrip("\0 \t\r\n")
    except UnicodeDecodeError:
        note = "\0"
    if len(data) < length or not note.isprintable():
        raise DataError(f"{file}: notes of annotations must be printable UTF-8, but one is {data[:80]!r}")
    return note
