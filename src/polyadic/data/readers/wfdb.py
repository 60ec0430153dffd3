"""WFDB records as PhysioNet publishes them: a header, its signal files, and annotations in the MIT format.

Headers and annotations are parsed here and strictly, since the library skips what it cannot parse; it decodes the
samples. Nothing is read from the network, and nothing is allocated before the sizes of the files bear it out.
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

from polyadic.data.recordings import Annotation, Recording
from polyadic.errors import DataError, PolyadicError

__all__ = ["Header", "Signal", "as_recording", "check_digits", "choose", "read_header", "read_wfdb"]

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
# Digits of these may not fit 16 bits.
_WIDE = ("8", "24", "32")
_PADDING = 4
_LARGEST_HEADER = 1 << 20

_RECORD_LINE = re.compile(
    r"(?P<name>[-\w]+)(?P<segments>/\d+)?\s+(?P<signals>\d{1,9})\s+(?P<fs>\d{1,12}(?:\.\d{0,12})?)"
    r"(?:/\d+(?:\.\d*)?(?:\(-?\d+(?:\.\d*)?\))?)?(?:\s+(?P<samples>\d{1,15})(?:\s+\S.*)?)?"
)
_SIGNAL_LINE = re.compile(
    r"(?P<file>\w[-\w]*(?:\.\w+)?)\s+(?P<format>\d{1,3})(?:x(?P<frame>\d{1,9}))?(?::(?P<skew>\d{1,15}))?"
    r"(?:\+(?P<start>\d{1,15}))?"
    r"(?:\s+(?P<gain>-?\d{1,30}(?:\.\d{0,30})?(?:e[+-]?\d{1,3})?)(?:\((?P<baseline>-?\d{1,12})\))?"
    r"(?:/(?P<units>[\w^?%/-]+))?"
    r"(?:\s+(?P<bits>\d{1,2})(?:\s+(?P<zero>-?\d{1,12})(?:\s+(?P<first>-?\d{1,12})(?:\s+(?P<checksum>-?\d{1,6})"
    r"(?:\s+\d{1,9}(?:\s+(?P<name>\S.*))?)?)?)?)?)?)?"
)
_RESOLUTION = re.compile(r"## time resolution: (\d{1,12}(?:\.\d{0,12})?)")
_DEFINITION = re.compile(r"(\d{1,2}) (\S+) .*")

_NOTE, _SKIP, _NUM, _SUB, _CHN, _AUX = 22, 59, 60, 61, 62, 63


@dataclass(frozen=True)
class Signal:
    """One signal of a header: value = (digit - baseline) / gain; 0 stands for what the header does not give.

    Parameters
    ----------
    file, format, start : where its samples are, in which format, from which byte on
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
        """The digit that stands for no value."""
        return _FORMATS[self.format][2]


@dataclass(frozen=True)
class Header:
    """What a header says; `samples` is None where it does not give the length."""

    record: str
    fs: float
    samples: int | None
    signals: tuple[Signal, ...]


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
    annotations : extensions of annotation files, such as "atr"; texts are their notes, or else their symbols
    name, subject : of the recording; the record's name, and `name`, by default

    Raises
    ------
    DataError : if a file is absent or damaged, or the record has several segments or rates
    PolyadicError : if wfdb is not installed, or an argument cannot be used
    """
    package = _package()
    path = Path(path)
    path = path.parent / path.name.removesuffix(".hea")
    if "::" in str(path.absolute()):
        # The library would take it for a chain of URLs.
        raise PolyadicError(f"path must not have '::' in it, but is {path.name!r}")
    header = read_header(path.with_name(path.name + ".hea"))
    picked = choose(header, channels)
    samples = _length(header, picked, path.parent)
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
    notes = _annotations(path, annotations, header.fs, samples)
    return as_recording(header, signals, digits, notes, name or path.name, subject)


def _package() -> Any:
    try:
        with warnings.catch_warnings():
            # The import itself uses what newer versions of pandas warn of.
            warnings.simplefilter("ignore")
            import wfdb
    except ImportError:
        raise PolyadicError("WFDB records need the package wfdb: pip install polyadic[wfdb]") from None
    return wfdb


# ---------------------------------------------------------------- headers


def read_header(path: Path) -> Header:
    """Parse a header; it must be plain ASCII but for its comments, and name the record as its file is named.

    Raises
    ------
    DataError : at the first line that is not as the format wants it
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
    signals = tuple(_signal(line, number, path.name) for number, line in enumerate(lines[1:]))
    samples = int(match["samples"]) if match["samples"] else None
    if samples == 0 or float(match["fs"]) == 0:
        raise DataError(f"{path.name}: rate and number of samples must not be 0")
    return Header(match["name"], float(match["fs"]), samples, signals)


def _header_lines(path: Path) -> list[str]:
    size = _size(path)
    if size > _LARGEST_HEADER:
        raise DataError(f"{path.name}: a header must be at most {_LARGEST_HEADER} bytes, but has {size}")
    text = path.read_bytes().decode("ascii", errors="surrogateescape")
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise DataError(f"{path.name}: the header is empty")
    for line in lines:
        # The library would drop other bytes: µV would turn into V. As surrogates, they are not printable.
        if not line.replace("\t", " ").isprintable():
            raise DataError(f"{path.name}: a header must be printable ASCII, but has the line {line[:80]!a}")
    return lines


def _signal(line: str, number: int, file: str) -> Signal:
    match = _SIGNAL_LINE.fullmatch(line)
    if match is None:
        raise DataError(f"{file}: signal {number} must be 'file format gain bits zero …', but is {line[:80]!r}")
    if match["format"] not in _FORMATS:
        raise DataError(f"{file}: signal {number} has format {match['format']}; supported are {', '.join(_FORMATS)}")
    zero = int(match["zero"] or 0)
    return Signal(
        name=match["name"] or f"signal {number}",
        file=match["file"],
        format=match["format"],
        start=int(match["start"] or 0),
        frame=int(match["frame"] or 1),
        skew=int(match["skew"] or 0),
        # Both absent and 0 stand for 200, by the format's definition.
        gain=float(match["gain"] or 0) or 200.0,
        baseline=zero if match["baseline"] is None else int(match["baseline"]),
        units=match["units"] or "mV",
        bits=int(match["bits"] or 0),
        zero=zero,
        first=int(match["first"] or 0),
        checksum=int(match["checksum"] or 0),
    )


def choose(header: Header, channels: Sequence[str] | None) -> list[int]:
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


def _size(path: Path) -> int:
    if not path.is_file():
        raise DataError(f"{path.name}: there is no such file")
    return path.stat().st_size


def _length(header: Header, picked: list[int], folder: Path) -> int:
    """Samples of every channel, borne out by the sizes of the files."""
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
        there = max(_size(folder / name) - group[0].start, 0)
        if samples is None:
            samples = there * per // (count * len(group))
        needed = -(-samples * len(group) * count // per)
        # Without sums of all digits to tell, a longer file is one whose header is wrong.
        summed = all(header.signals[number].checksum for number in picked)
        if samples < 1 or there < needed or (there > needed + _PADDING and not summed):
            raise DataError(
                f"{name}: {len(group)} signals of {samples} samples need {needed} bytes, but there are {there}"
            )
    assert samples is not None
    return samples


# ---------------------------------------------------------------- digits


def check_digits(signal: Signal, digits: NDArray[Any], file: str) -> None:
    """Compare a signal's digits, (samples,), with the first digit and the checksum of its header.

    Some publishers write 0 for what they did not work out, so 0 is not compared.

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


def as_recording(
    header: Header,
    signals: Sequence[Signal],
    digits: NDArray[Any],
    annotations: Sequence[Annotation],
    name: str,
    subject: str | None,
) -> Recording:
    """A recording of these digits, (channels, samples): int16 kept as they are, wider ones turned into values."""
    missing = np.zeros(digits.shape, bool)
    for row, gone, signal in zip(digits, missing, signals, strict=True):
        if signal.missing is not None:
            gone[:] = row == signal.missing
        if signal.skew:
            lag = min(signal.skew, len(row))
            row[:], gone[:] = np.roll(row, -lag), np.roll(gone, -lag)
            row[len(row) - lag :], gone[len(row) - lag :] = signal.missing or 0, True
    scale = np.array([1 / signal.gain for signal in signals])
    offset = np.array([-signal.baseline / signal.gain for signal in signals])
    limits = _limits(signals)
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


def _limits(signals: Sequence[Signal]) -> NDArray[Any] | None:
    """Lowest and highest digit of each device, (channels, 2); None if the resolution of one is not known."""
    found = []
    for signal in signals:
        lowest, bits = signal.missing, signal.bits
        if lowest is None or not 0 < bits <= 32:
            return None
        # The lowest digit of a format stands for a missing value, so no device's value has it.
        low, high = signal.zero - (1 << bits - 1), signal.zero + (1 << bits - 1) - 1
        low, high = max(low, lowest + 1), min(high, -lowest - 1)
        if low >= high:
            return None
        found.append((low, high))
    return np.array(found, np.int64)


# ---------------------------------------------------------------- annotations


def _annotations(path: Path, extensions: str | Sequence[str] | None, fs: float, samples: int) -> list[Annotation]:
    found: list[Annotation] = []
    for extension in [extensions] if isinstance(extensions, str) else extensions or ():
        if not re.fullmatch(r"[-\w]+", extension):
            raise PolyadicError(f"annotations must be extensions such as 'atr', but are {extensions!r}")
        file = path.with_name(f"{path.name}.{extension}")
        _size(file)
        found += _annotations_of(file, fs, samples / fs)
    return sorted(found, key=lambda annotation: annotation.onset)


def _annotations_of(path: Path, fs: float, duration: float) -> Iterator[Annotation]:
    """Annotations of one file in seconds; notes at its start that begin with ## define its rate and its symbols."""
    from wfdb.io.annotation import ann_labels

    symbols = {label.label_store: label.symbol for label in ann_labels}
    defining, last = False, 0
    for sample, code, note in _decoded(path.read_bytes(), path.name):
        if sample == 0 and code == _NOTE and (defining or note.startswith("## ")):
            if resolution := _RESOLUTION.fullmatch(note):
                fs = float(resolution[1])
            elif defining and (definition := _DEFINITION.fullmatch(note)):
                symbols[int(definition[1])] = definition[2]
            defining = note == "## annotation type definitions" or (defining and note != "## end of definitions")
            continue
        if code not in symbols:
            raise DataError(f"{path.name}: the annotation at sample {sample} has the unknown code {code}")
        if fs == 0 or not last <= sample <= duration * fs:
            raise DataError(
                f"{path.name}: annotations must be in order and within {duration:g} s, but one is at sample {sample}"
            )
        last = sample
        yield Annotation(sample / fs, 0.0, note or symbols[code])


def _decoded(data: bytes, file: str) -> Iterator[tuple[int, int, str]]:
    """Sample, code and note of each annotation in the MIT format.

    The library's own decoder is not used: it does not end on some files, and overlooks it if a file is cut short.
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
    try:
        note = data.decode("utf-8").rstrip("\0")
    except UnicodeDecodeError:
        note = "\0"
    if len(data) < length or not note.isprintable():
        raise DataError(f"{file}: notes of annotations must be printable UTF-8, but one is {data[:80]!r}")
    return note
