"""Read EDF, EDF+ and BDF files: signals as digital values, annotations, and the gaps of discontinuous files.

The header is checked against the size of the file before anything is read. edfio reads the digital values. Annotations
and the onsets of data records are parsed here, because edfio treats files with gaps as continuous.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyadic._util.files import check_regular_file
from polyadic.data.clock import clock_start
from polyadic.data.readers.texts import as_unit, decode_text
from polyadic.data.reading import close_match
from polyadic.data.recordings import Annotation, Recording, Segment, repeat_samples, resample_polyphase
from polyadic.errors import DataError, MissingExtraError, PolyadicError

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

_PHYSICAL = ("physical minimum", "physical maximum")
_DIGITAL = ("digital minimum", "digital maximum")
_EIGHT = dict.fromkeys((*_PHYSICAL, *_DIGITAL), 8)
_FIELDS = {"label": 16, "transducer": 80, "unit": 8, **_EIGHT, "filters": 80, "samples": 8}
"""Widths in bytes of the header fields of a signal, in file order, up to the last one needed."""
_SIZE = 256
"""Size in bytes of the part of the header that describes the file, and of the part that describes each signal."""
_RECORDING = slice(88, 168)
"""Bytes of the recording identification in the header; copies written by polyadic are marked at its end."""
_MARK = b" polyadic"
_COMPARED = 64
"""Number of bytes per signal that are compared to recognise a copy."""
_FACTOR = 10_000
"""Maximum upsampling factor: a damaged record duration must not exhaust the memory."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_TAL = re.compile(rb"([+-]\d{1,12}(?:\.\d*)?)(?:\x15(\d{1,12}(?:\.\d*)?)?)?\x14(?:(.*)\x14)?", re.DOTALL)


class _EdfSignal(NamedTuple):
    """A signal as described by the header; `fields` are raw bytes that are checked only if the signal is selected."""

    label: str
    samples: int
    first_byte: int
    fields: dict[str, bytes]


class _EdfHeader(NamedTuple):
    """The content of the header, checked against the size of the file; `begin` is the first byte of the data."""

    file: str
    begin: int
    sample_bytes: int
    continuous: bool | None
    record_bytes: int
    records: int
    duration: float
    signals: tuple[_EdfSignal, ...]

    def has_annotations(self, signal: _EdfSignal) -> bool:
        """Whether a signal contains annotations instead of samples."""
        return signal.label == ("EDF Annotations" if self.sample_bytes == 2 else "BDF Annotations")

    @property
    def ordinary(self) -> list[_EdfSignal]:
        return [signal for signal in self.signals if not self.has_annotations(signal)]

    @property
    def annotations(self) -> list[_EdfSignal]:
        return [signal for signal in self.signals if self.has_annotations(signal)]

    def rate(self, signal: _EdfSignal) -> float:
        return signal.samples / self.duration


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
    PolyadicError : if an argument is invalid, or edfio is not installed
    """
    _check_arguments(channels, fs, resample)
    path = Path(path)
    header = _read_header(path)
    chosen = _choose(header, channels)
    how = [resample.get(one.label) if isinstance(resample, Mapping) else resample for one in chosen]
    target = _target_rate(header, chosen, fs, how)
    scale, offset, limits = _calibrate(header, chosen)
    zero, onsets, annotations = _read_times(path, header)
    segments = _find_segments(header, onsets, max(header.rate(one) for one in chosen))
    bounds = _segment_bounds(header, segments, target)
    as_values = "polyphase" in how or header.sample_bytes == 3
    kind = np.float32 if as_values else np.int16
    shape = (len(chosen), bounds[-1])
    signal = np.empty(shape, kind) if signals else np.broadcast_to(np.zeros((), kind), shape)
    for row, digits in enumerate(_digits(path, header, chosen) if signals else ()):
        content = digits * scale[row] + offset[row] if as_values else digits
        edges = [record * chosen[row].samples for record, _ in segments[1:]]
        for piece, start, stop in zip(np.split(content, edges), bounds[:-1], bounds[1:], strict=True):
            signal[row, start:stop] = _at_rate(piece, header.rate(chosen[row]), target, how[row])[: stop - start]
    if as_values:
        limits = np.sort(limits * scale[:, None] + offset[:, None], axis=1)
        scale, offset = np.ones(len(chosen)), np.zeros(len(chosen))

    name = path.stem if name is None else name
    rates = tuple(header.rate(one) for one in chosen)
    return Recording(
        name=name,
        subject=name if subject is None else subject,
        fs=target,
        channels=tuple(one.label for one in chosen),
        units=tuple(_unit(header, one) for one in chosen),
        signal=signal,
        scale=scale,
        offset=offset,
        annotations=annotations,
        segments=tuple(Segment(first, onset) for first, (_, onset) in zip(bounds[:-1], segments, strict=True)),
        limits=limits.astype(signal.dtype),
        rates=rates if any(not math.isclose(rate, target, rel_tol=1e-9) for rate in rates) else (),
        began=_read_clock(path, zero),
    )


def read_annotations(path: str | os.PathLike[str]) -> tuple[Annotation, ...]:
    """Read the annotations of an EDF+ or BDF+ file, such as a hypnogram, in order of onset.

    Raises
    ------
    DataError : if the file is damaged or has no annotation signal
    """
    path = Path(path)
    header = _read_header(path)
    if not header.annotations:
        raise DataError(f"{header.file}: must have an annotation signal, but has none")
    return _read_times(path, header)[2]


def read_channels(path: str | os.PathLike[str]) -> dict[str, tuple[float, str]]:
    """Read the sampling rate in Hz and the unit of every channel, by name; empty if the file has only annotations.

    Raises
    ------
    DataError : if the file is damaged
    """
    header = _read_header(Path(path))
    return {one.label: (header.rate(one), _unit(header, one)) for one in header.ordinary}


def read_start(path: str | os.PathLike[str]) -> str:
    """Read the start date and time of a file, in the format of the header: "dd.mm.yy hh.mm.ss".

    Raises
    ------
    DataError : if the file is damaged
    """
    path = Path(path)
    header = _read_header(path)
    with path.open("rb") as file:
        head = file.read(_SIZE)
    return f"{_text(header.file, 'start date', head[168:176])} {_text(header.file, 'start time', head[176:184])}"


def _read_clock(path: Path, seconds: float) -> str:
    """Return when a recording began, `seconds` after the start time of the header; "" if unknown.

    In EDF+, the date 01.01.85 means unknown, and the recording identification has the year in four digits. Without a
    date, midnight also means unknown.
    """
    with path.open("rb") as file:
        head = file.read(_SIZE)
    said = re.search(rb"\d\d\.\d\d\.\d\d" * 2, head[168:184])
    if said is None:
        return ""
    day, month, year, hour, minute, second = (int(part) for part in re.findall(rb"\d\d", said[0]))
    whole = re.match(rb"Startdate \d\d-[A-Z]{3}-(\d{4}) ", head[_RECORDING])
    try:
        start: date | None = date(int(whole[1]) if whole else year + (1900 if year >= 85 else 2000), month, day)
        if not whole and (day, month, year) == (1, 1, 85):
            start = None
        at = time(hour, minute, second)
        return "" if start is None and at == time() else clock_start(start, at, seconds)
    except ValueError:
        return ""


def mark_copy(content: bytes) -> bytes:
    """Mark the content of an EDF+ or BDF+ file as written by polyadic, in the recording identification."""
    said = content[_RECORDING].rstrip() or b"Startdate X X X X"
    room = _RECORDING.stop - _RECORDING.start
    marked = said[: room - len(_MARK)].removesuffix(_MARK) + _MARK
    return content[: _RECORDING.start] + marked.ljust(room) + content[_RECORDING.stop :]


def is_marked(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a copy of a recording that polyadic wrote."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_SIZE)[_RECORDING].rstrip().endswith(_MARK)
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
    header = _read_header(path)
    found: list[object] = [read_start(path), header.records * header.duration]
    with path.open("rb") as file:
        for signal in header.ordinary:
            file.seek(header.begin + signal.first_byte)
            first = file.read(min(signal.samples * header.sample_bytes, _COMPARED))
            found.append((signal.label, header.rate(signal), first))
    return tuple(found)


def _check_arguments(channels: object, fs: object, resample: object) -> None:
    for how in resample.values() if isinstance(resample, Mapping) else [resample]:
        if how not in (None, "hold", "polyphase"):
            raise PolyadicError(f"resample must be 'hold', 'polyphase' or None, but is {how!r}")
    if fs is not None and not (isinstance(fs, int | float | np.integer | np.floating) and 0 < fs < math.inf):
        raise PolyadicError(f"fs must be a positive number in Hz, but is {fs!r}")
    if channels is None:
        return
    names = channels if isinstance(channels, list | tuple) and all(isinstance(one, str) for one in channels) else ()
    if not names or len(set(names)) != len(names):
        raise PolyadicError(f"channels must be a list of distinct names, but is {channels!r}")


# The header


def _read_header(path: Path) -> _EdfHeader:
    check_regular_file(path)
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(_SIZE)
            count = _count_signals(path.name, head)
            return _parse(path.name, head, stream.read(_SIZE * count), count, size)
    except OSError as error:
        raise DataError(f"{path.name}: cannot be opened: {error.strerror}") from error


def _count_signals(file: str, head: bytes) -> int:
    """Return the number of signals, and check that the header has the right size for them."""
    if len(head) < _SIZE:
        raise DataError(f"{file}: must begin with a header of {_SIZE} bytes, but the file has only {len(head)} bytes")
    if head[:8] != b"\xffBIOSEMI" and head[:8].rstrip() != b"0":
        raise DataError(f"{file}: must begin with '0' (EDF) or '\\xffBIOSEMI' (BDF), but begins with {head[:8]!r}")
    count = _integer(file, "number of signals", head[252:256])
    said = _integer(file, "size of the header", head[184:192])
    if count < 1:
        raise DataError(f"{file}: must have at least one signal, but declares {count}")
    if said != _SIZE * (count + 1):
        raise DataError(
            f"{file}: the header must have {_SIZE * (count + 1)} bytes (signals: {count}), but declares {said}"
        )
    return count


def _parse(file: str, head: bytes, rest: bytes, count: int, size: int) -> _EdfHeader:
    """Parse the header from its two parts; `size` is the size of the file in bytes."""
    begin = _SIZE * (count + 1)
    if size < begin or len(rest) < _SIZE * count:
        raise DataError(f"{file}: the header must have {begin} bytes (signals: {count}), but the file has only {size}")
    if head[193:196] == b"DF+" and head[196:197] not in b"CD":
        raise DataError(f"{file}: must be continuous ('+C') or discontinuous ('+D'), but is {head[192:197]!r}")
    sample_bytes = 3 if head[0] == 0xFF else 2
    signals = _parse_signals(file, rest, count, sample_bytes)
    record = sum(signal.samples for signal in signals) * sample_bytes
    header = _EdfHeader(
        file=file,
        begin=begin,
        sample_bytes=sample_bytes,
        continuous={b"DF+C": True, b"DF+D": False}.get(head[193:197]),
        record_bytes=record,
        records=_count_records(file, _integer(file, "number of data records", head[236:244]), begin, record, size),
        duration=_number(file, "duration of a data record", head[244:252]),
        signals=signals,
    )
    # Only files that contain nothing but annotations may have records of duration 0.
    if header.duration < 0 or (header.ordinary and header.duration == 0):
        raise DataError(f"{file}: data records must last more than 0 s, but last {header.duration:g} s")
    return header


def _parse_signals(file: str, rest: bytes, count: int, sample_bytes: int) -> tuple[_EdfSignal, ...]:
    columns, start = {}, 0
    for field, width in _FIELDS.items():
        columns[field] = [rest[start + i * width : start + (i + 1) * width] for i in range(count)]
        start += width * count
    signals, first_byte = [], 0
    for i in range(count):
        label = _name(file, f"label of signal {i + 1}", columns["label"][i])
        samples = _integer(file, f"number of samples of {label!r} per data record", columns["samples"][i])
        if samples < 1:
            raise DataError(f"{file}: {label!r} must have at least one sample per data record, but has {samples}")
        fields = {field: column[i] for field, column in columns.items()}
        signals.append(_EdfSignal(label, samples, first_byte, fields))
        first_byte += samples * sample_bytes
    return tuple(signals)


def _count_records(file: str, said: int, begin: int, record: int, size: int) -> int:
    """Return the number of data records of `record` bytes; computed from the file size if the header has -1."""
    found, over = divmod(size - begin, record)
    if said == -1 and not over:
        said = found
    if said == -1:
        raise DataError(
            f"{file}: must end with a complete data record of {record} bytes, but has {over} bytes left over"
        )
    if said < 1:
        raise DataError(f"{file}: must have at least one data record, but has {said}")
    if begin + said * record != size:
        raise DataError(
            f"{file}: the file must have {begin + said * record} bytes (header: {begin}, data records: {said} x "
            f"{record}), but has {size}"
        )
    return said


def _text(file: str, what: str, raw: bytes) -> str:
    if not (raw.isascii() and raw.decode("ascii").isprintable()):
        raise DataError(f"{file}: the {what} must be printable ASCII, but is {raw!r}")
    return raw.decode("ascii").strip()


def _name(file: str, what: str, raw: bytes) -> str:
    """Decode a label or a unit, which devices may write in any language."""
    text = decode_text(raw)
    if not text.isprintable():
        raise DataError(f"{file}: the {what} must be printable text, but is {raw!r}")
    return text.strip()


def _integer(file: str, what: str, raw: bytes) -> int:
    text = _text(file, what, raw)
    if not re.fullmatch(r"[+-]?\d+", text):
        raise DataError(f"{file}: the {what} must be a whole number, but is {text!r}")
    return int(text)


def _number(file: str, what: str, raw: bytes) -> float:
    text = _text(file, what, raw)
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise DataError(f"{file}: the {what} must be a number, but is {text!r}")
    return float(text)


def _unit(header: _EdfHeader, signal: _EdfSignal) -> str:
    return as_unit(_name(header.file, f"unit of {signal.label!r}", signal.fields["unit"]))


# Channels


def _choose(header: _EdfHeader, channels: Sequence[str] | None) -> list[_EdfSignal]:
    """Return the signals with the requested names, in that order."""
    if not header.ordinary:
        raise DataError(
            f"{header.file}: must have signals, but has only annotations: if it scores another recording, use "
            f"--scoring '*{common_ending(header.file)}'"
        )
    counts = Counter(signal.label for signal in header.ordinary)
    wanted = list(counts) if channels is None else channels
    if missing := [name for name in wanted if name not in counts]:
        raise DataError(
            f"{header.file}: must have the channels {', '.join(map(repr, missing))}, but has "
            f"{', '.join(map(repr, counts))}{close_match(missing[0], counts)}"
        )
    if twice := [name for name in wanted if counts[name] > 1]:
        listed = ", ".join(map(repr, twice))
        raise DataError(f"{header.file}: channel names must be unique, but several channels are named {listed}")
    named = {signal.label: signal for signal in header.ordinary}
    return [named[name] for name in wanted]


def common_ending(file: str) -> str:
    """Return the end of a file name that files of the same kind most likely share.

    Examples
    --------
    >>> common_ending("SC4001EC-Hypnogram.edf"), common_ending("S1_events.csv"), common_ending("S1.csv")
    ('-Hypnogram.edf', '_events.csv', '.csv')
    """
    found = re.search(r"[-_][A-Za-z]+\.\w+$", file) or re.search(r"\.\w+(?:\.gz)?$", file)
    return found[0] if found else file


def _target_rate(
    header: _EdfHeader, chosen: list[_EdfSignal], fs: float | None, resample: Sequence[str | None]
) -> float:
    """Return the target rate, and check that all channels can be resampled to it; `resample` is one per channel."""
    rates = [header.rate(signal) for signal in chosen]
    if not all(0 < rate < math.inf for rate in rates):
        raise DataError(f"{header.file}: data records of {header.duration:g} s do not give a valid sampling rate")
    target = float(max(rates) if fs is None else fs)
    factors = [target / rate for rate in rates]
    listed = ", ".join(f"{signal.label} {rate:g} Hz" for signal, rate in zip(chosen, rates, strict=True))
    refused = [
        factor
        for factor, how in zip(factors, resample, strict=True)
        if how is None and not math.isclose(factor, 1, rel_tol=1e-9)
    ]
    if refused:
        raise DataError(
            f"{header.file}: without resample all channels must have {target:g} Hz, but have {listed}: {_hint(refused)}"
        )
    if max(factors) > _FACTOR:
        raise DataError(f"{header.file}: all sampling rates must be at least {target / _FACTOR:g} Hz, but are {listed}")
    if not all(
        round(factor) >= 1 and math.isclose(factor, round(factor), rel_tol=1e-9)
        for factor, how in zip(factors, resample, strict=True)
        if how == "hold"
    ):
        raise DataError(
            f"{header.file}: resample='hold' needs integer factors to {target:g} Hz, but rates are {listed}: "
            "use --resample polyphase for any rate"
        )
    return target


def _hint(factors: list[float]) -> str:
    """Return the options that resample channels to one rate; "hold" needs integer factors."""
    whole = all(round(factor) >= 1 and math.isclose(factor, round(factor), rel_tol=1e-9) for factor in factors)
    repeated = "--resample hold repeats the samples of slow channels, " if whole else ""
    return f"{repeated}--resample polyphase filters"


def _calibrate(header: _EdfHeader, chosen: list[_EdfSignal]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return scale and offset, (channels,) each, and the digital minimum and maximum, (channels, 2)."""
    lowest, highest = (-(2**15), 2**15 - 1) if header.sample_bytes == 2 else (-(2**23), 2**23 - 1)
    rows = []
    for signal in chosen:
        end = f" of {signal.label!r}"
        low, high = (_integer(header.file, kind + end, signal.fields[kind]) for kind in _DIGITAL)
        bottom, top = (_number(header.file, kind + end, signal.fields[kind]) for kind in _PHYSICAL)
        if not lowest <= low < high <= highest:
            raise DataError(
                f"{header.file}: the digital values{end} must have a minimum below their maximum, "
                f"both within {lowest} … {highest}, but have {low} … {high}"
            )
        scale = (top - bottom) / (high - low)
        # Outside this range, float32 would overflow, or all values would be 0.
        if not (abs(scale) > 1e-37 and max(abs(bottom), abs(top), abs(scale) * 2 * highest) < 1e37):
            raise DataError(
                f"{header.file}: the physical range{end} must not be empty or too large for float32, "
                f"but is {bottom:g} … {top:g}"
            )
        rows.append((scale, bottom - low * scale, low, high))
    table = np.array(rows, np.float64)
    return table[:, 0], table[:, 1], table[:, 2:]


def _digits(path: Path, header: _EdfHeader, chosen: list[_EdfSignal]) -> Iterator[NDArray[Any]]:
    """Yield the digital values of one channel after another: (samples,) each."""
    try:
        import edfio
    except ImportError as error:
        raise MissingExtraError("EDF files need edfio, which is not installed: pip install 'polyadic[edf]'") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the header has been checked already
            opened = edfio.read_edf(path) if header.sample_bytes == 2 else edfio.read_bdf(path)
        named: dict[str, Any] = dict(zip((one.label for one in header.ordinary), opened.signals, strict=True))
        del opened
        for signal in chosen:
            # Popped, because a signal of edfio keeps its samples in memory until it is freed.
            digits = np.asarray(named.pop(signal.label).digital)
            if len(digits) != header.records * signal.samples:
                raise DataError(
                    f"{header.file}: {signal.label!r} has {len(digits)} samples, but the header declares "
                    f"{header.records * signal.samples}"
                )
            yield digits
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{header.file}: edfio cannot read the signals: {error}") from error


def _at_rate(content: NDArray[Any], rate: float, target: float, resample: str | None) -> NDArray[Any]:
    if resample == "polyphase":
        return resample_polyphase(content, rate, target)
    return repeat_samples(content, round(target / rate))


# Times


def _read_times(path: Path, header: _EdfHeader) -> tuple[float, list[Decimal | None], tuple[Annotation, ...]]:
    """Return the onset of the first sample, the onsets of the data records, and the annotations.

    The first is in seconds after the start time of the file. The others are in seconds from the first sample, or from
    the start time if there are no samples. The onset of a record that does not give one is None.
    """
    if not header.annotations:
        return 0.0, [], ()
    content = np.memmap(path, np.uint8, "r", header.begin, (header.records, header.record_bytes))
    onsets: list[Decimal | None] = []
    found = []
    for number, signal in enumerate(header.annotations):
        stop = signal.first_byte + signal.samples * header.sample_bytes
        for record, raw in enumerate(np.asarray(content)[:, signal.first_byte : stop]):
            tals = _parse_tals(header.file, record, raw.tobytes())
            if number == 0:
                # Timekeeping: the first annotation of a record is empty, and its onset is the onset of the record.
                onsets.append(tals[0][0] if tals and tals[0][1] is None and tals[0][2][0] == "" else None)
            found += [(onset, duration, text.strip()) for onset, duration, texts in tals for text in texts]
    zero = onsets[0] or Decimal(0)
    if zero >= 1 and not header.ordinary:
        zero = Decimal(0)  # start times are whole seconds, so a larger offset is the onset of an annotation
    annotations = [
        Annotation(float(onset - zero), float(duration or 0), text)
        for onset, duration, text in found
        if text or duration is not None
    ]
    shifted = [None if onset is None else onset - zero for onset in onsets]
    return float(zero), shifted, tuple(sorted(annotations, key=lambda annotation: annotation.onset))


def _parse_tals(file: str, record: int, raw: bytes) -> list[tuple[Decimal, Decimal | None, list[str]]]:
    """Parse the time-stamped annotation lists (TALs) of a record into onset, duration or None, and texts."""
    tals = []
    for part in filter(None, raw.split(b"\x00")):
        match = _TAL.fullmatch(part)
        try:
            if match is None:
                raise ValueError("must have the form onset, duration, texts")
            onset, duration, texts = (None if group is None else group.decode() for group in match.groups())
        except ValueError as error:
            raise DataError(f"{file}: annotations of data record {record + 1}: {error}: {part[:40]!r}") from error
        assert onset is not None
        tals.append((Decimal(onset), Decimal(duration) if duration else None, (texts or "").split("\x14")))
    return tals


def _find_segments(header: _EdfHeader, onsets: list[Decimal | None], fs: float) -> list[tuple[int, float]]:
    """Return the first record and the onset in seconds of each segment; gaps exceed half a sample at rate `fs`."""
    known = [float(onset) for onset in onsets if onset is not None]
    complete = bool(known) and len(known) == header.records
    if header.continuous is False and not complete:
        raise DataError(f"{header.file}: data records of a discontinuous file must have onsets, but some do not")
    if header.continuous or not complete:
        return [(0, 0.0)]
    gaps = np.diff(known) - header.duration
    if (back := np.flatnonzero(gaps < -0.5 / fs)).size:
        record = int(back[0])
        raise DataError(
            f"{header.file}: data record {record + 2} must begin after the previous record ends at "
            f"{known[record] + header.duration:g} s, but begins at {known[record + 1]:g} s"
        )
    return [(0, known[0]), *((int(record), known[record]) for record in np.flatnonzero(gaps > 0.5 / fs) + 1)]


def _segment_bounds(header: _EdfHeader, segments: list[tuple[int, float]], fs: float) -> list[int]:
    """Return the first sample of each segment at rate `fs`, followed by the total number of samples."""
    per_record = header.duration * fs
    if math.isclose(per_record, round(per_record), rel_tol=1e-9):
        per_record = round(per_record)
    records = np.diff([*(record for record, _ in segments), header.records])
    return [0, *np.cumsum([math.floor(int(count) * per_record) for count in records]).tolist()]
