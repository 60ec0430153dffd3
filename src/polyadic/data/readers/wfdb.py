"""Read WFDB records as published on PhysioNet: a header, its signal files, and annotations in the MIT format.

wfdb reads headers and samples, nothing from the network. Three things are done here, because the package does not:
units beyond ASCII ("µV" would become "V"), sizes of signal files, and annotations, since it hangs on some files and
accepts truncated ones.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyadic.data.readers.common import as_unit, check_file, check_inflation, choose_channels, decode_text
from polyadic.data.recordings import Annotation, Recording, Segment, Unread, clock_time, mark_missing
from polyadic.data.resampling import at_one_rate
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

_FLAC = {"508": 8, "516": 16, "524": 24}
_BYTES = {"8": 1.0, "80": 1.0, "310": 4 / 3, "311": 4 / 3, "212": 1.5, "16": 2.0, "61": 2.0, "160": 2.0, "24": 3.0}
_BYTES |= {"32": 4.0, **dict.fromkeys(_FLAC, 0.0)}
_BITS = {"80": 8, "310": 10, "311": 10, "212": 12, "16": 16, "61": 16, "160": 16, "24": 24, "32": 32, **_FLAC}
"""Bits of a sample by format; the lowest value marks a missing sample. Format 8 has differences and no such value."""
_ABSENT = "~"
"""File name in a layout header, and segment name that marks a gap."""
_SIGNAL_LINE = re.compile(r"\S+\s+\S+(?:\s+[^\s/]+(?:/(?P<units>\S+))?(?:\s+-?\d+){0,5}(?:\s+(?P<name>.*))?)?")
_RESOLUTION = re.compile(r"## time resolution: (\d{1,12}(?:\.\d{0,30})?)")
_DEFINITION = re.compile(r"(\d{1,2}) (\S+) .*")
_NOTE, _RHYTHM, _LAST_CODE, _SKIP, _AUX = 22, 28, 49, 59, 63
"""Annotation codes: comment, rhythm change, last code of an annotation type, long interval, auxiliary text."""

_Resample = str | Mapping[str, str | None] | None


def read_wfdb(
    path: str | Path,
    *,
    channels: Sequence[str] | None = None,
    annotations: Sequence[str] = (),
    resample: _Resample = None,
    missing: float | None = None,
) -> Recording:
    """Open a record with one or more segments; samples are read when they are needed.

    Times between segments are gaps. Samples of channels that a segment does not have are missing.

    Parameters
    ----------
    path : path of the record, with or without `.hea`
    channels : names of channels to read, in this order; all if None
    annotations : extensions of annotation files, such as "atr"
    resample : as for `polyadic.data.resampling.at_one_rate`
    missing : value of missing samples, besides the one of the format

    Raises
    ------
    DataError : if a file is missing or damaged, no channel exists, or rates differ and `resample` is None
    MissingExtraError : if wfdb is not installed
    """
    path = Path(path)
    path = path.with_name(path.name.removesuffix(".hea"))
    header = read_header(path.with_name(f"{path.name}.hea"))
    read = _read_segments if hasattr(header, "seg_name") else _read_single
    recording = read(path, header, channels, resample, missing)
    files = [path.with_name(f"{path.name}.{extension}") for extension in annotations]
    found = [annotation for file in files for annotation in read_annotations(file, recording)]
    began: Any = header.base_time or ""
    if header.base_time and header.base_date:
        began = datetime.combine(header.base_date, header.base_time)
    return replace(
        recording,
        annotations=tuple(sorted(found, key=lambda annotation: annotation.onset)),
        began=clock_time(began),
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
    """Read a header with wfdb, as its `Record` or `MultiRecord`; names and units may be in UTF-8 or Latin-1."""
    lines = _header_lines(path)
    try:
        header = import_wfdb().rdheader(str(path.absolute().with_suffix("")))
    except MissingExtraError:
        raise
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
        if not 1e-28 < abs(header.adc_gain[number]) < 1e37:  # float32 would overflow, or all values would be 0
            raise DataError(f"{path.name}: signal {number} has no valid gain: write 0 if it is unknown")
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


def _frame_count(header: Any, picked: Sequence[int], folder: Path) -> int:
    """Return the number of frames, after comparing it with the sizes of the signal files."""
    file, frames = f"{header.record_name}.hea", header.sig_len
    for name in dict.fromkeys(header.file_name[number] for number in picked):
        group = [number for number, other in enumerate(header.file_name) if other == name]
        if name == _ABSENT or header.fmt[group[0]] not in _BYTES:
            raise DataError(f"{file}: signals must be in a file of format {', '.join(_BYTES)}, but {name!r} is not")
        each, width = _BYTES[header.fmt[group[0]]], sum(header.samps_per_frame[number] for number in group)
        size = check_file(folder / name) - (header.byte_offset[group[0]] or 0)
        if not each:
            if frames is None:
                raise DataError(f"{file}: the header must give the number of samples of FLAC-compressed signals")
            check_inflation(name, frames * width * 4, size, "save it in format 16")
            continue
        frames = math.floor(size / (each * width)) if frames is None else frames
        if frames < 1 or size < math.floor(frames * width * each):
            raise DataError(
                f"{name}: the data must have {math.ceil(frames * width * each)} bytes (signals: {len(group)}, samples: "
                f"{frames}), but have {size}"
            )
    return int(frames)


# ---------------------------------------------------------------- signals


def _read_single(
    path: Path, header: Any, channels: Sequence[str] | None, resample: _Resample, missing: float | None
) -> Recording:
    """Return a record with one segment, without annotations; its samples are read when they are needed."""
    file = f"{path.name}.hea"
    picked = choose_channels(file, header.sig_name, channels)
    frames = _frame_count(header, picked, path.parent)
    # Format 8 holds differences, and wfdb reads records of unknown length as a whole.
    even = all(header.samps_per_frame[number] == 1 for number in picked)
    whole = header.sig_len is None or any(header.fmt[number] == "8" for number in picked)

    @lru_cache(maxsize=1)
    def decode(first: int, stop: int) -> list[NDArray[Any]]:
        """Return the digital values of each signal in frames `first` to `stop`."""
        try:
            record = import_wfdb().rdrecord(
                str(path.absolute()),
                sampfrom=first,
                sampto=None if header.sig_len is None else stop,
                channels=picked,
                physical=False,
                smooth_frames=even,
                return_res=32,
            )
        except ImportError as error:
            raise MissingExtraError(f"{file}: FLAC needs a package: pip install soundfile") from error
        except Exception as error:
            raise DataError(f"{file}: wfdb cannot read the record ({type(error).__name__})") from error
        return list(record.d_signal.T) if even else list(record.e_d_signal)

    def row(place: int, number: int) -> Recording:
        frame, bits = header.samps_per_frame[number], _BITS.get(header.fmt[number])

        def values(digits: NDArray[Any]) -> NDArray[np.float32]:
            return np.asarray((digits - float(header.baseline[number])) / header.adc_gain[number], np.float32)

        def read(first: int, stop: int) -> NDArray[np.float32]:
            begin, end = (0, frames) if whole else (first // frame, -(-stop // frame))
            digits = decode(begin, end)[place][None, first - begin * frame : stop - begin * frame]
            signal = values(digits)
            if bits is not None:
                signal[digits == -(1 << bits - 1)] = np.nan
            return signal

        limits = _limits(header, number)
        return Recording(
            name=path.name,
            subject=path.name,
            fs=float(header.fs * frame),
            channels=(header.sig_name[number],),
            units=(header.units[number],),
            signal=Unread((1, frames * frame), read),
            limits=None if limits is None else np.sort(values(limits), axis=1),
        )

    rows = [mark_missing(row(place, number), missing) for place, number in enumerate(picked)]
    return at_one_rate(file, rows, None, resample)


def _limits(header: Any, number: int) -> NDArray[Any] | None:
    """Return the digital minimum and maximum of the converter, (1, 2); None if its resolution is unknown."""
    bits, stored = header.adc_res[number] or 0, _BITS.get(header.fmt[number])
    if stored is None or not 0 < bits <= 32:
        return None
    zero, half = header.adc_zero[number] or 0, 1 << bits - 1
    # The lowest digital value of a format marks missing samples, so the converter never outputs it.
    most = (1 << stored - 1) - 1
    return np.array([[max(zero - half, -most), min(zero + half - 1, most)]])


def _read_segments(
    path: Path, header: Any, channels: Sequence[str] | None, resample: _Resample, missing: float | None
) -> Recording:
    """Return a multi-segment record, without annotations; times without a segment are gaps."""
    names = _layout(path, header).sig_name
    wanted = [names[number] for number in choose_channels(f"{path.name}.hea", names, channels)]
    pieces: list[Recording] = []
    segments: list[Segment] = []
    units: dict[str, str] = {}
    frames = count = 0
    for segment, samples in zip(header.seg_name, header.seg_len, strict=True):
        part = read_header(path.with_name(f"{segment}.hea")) if segment != _ABSENT and samples else None
        there = [] if part is None else [name for name in wanted if name in part.sig_name]
        if there:
            piece = _read_single(path.with_name(segment), part, there, resample, missing)
            if abs(piece.signal.shape[1] / piece.fs - samples / header.fs) > 0.5 / piece.fs:
                raise DataError(f"{segment}.hea: the segment must have {samples} samples at {header.fs:g} Hz")
            for channel, unit in zip(piece.channels, piece.units, strict=True):
                if units.setdefault(channel, unit) != unit:
                    raise DataError(f"{path.name}.hea: {channel} is in {units[channel]}, and in {unit} in {segment}")
            pieces.append(piece)
            # Segments that follow each other without a gap are one, so that windows may cross their border.
            onset = frames / header.fs
            expected = segments[-1].onset + (count - segments[-1].first) / pieces[0].fs if segments else -1.0
            if abs(onset - expected) > 0.5 / pieces[0].fs:
                segments.append(Segment(count, onset))
            count += piece.signal.shape[1]
        frames += samples
    if not pieces:
        raise DataError(f"{path.name}.hea: no segment has any of the channels {', '.join(wanted)}")
    ends = list(accumulate(piece.signal.shape[1] for piece in pieces))

    def read(start: int, stop: int) -> NDArray[np.float32]:
        signal = np.full((len(wanted), stop - start), np.nan, np.float32)
        for piece, end in zip(pieces, ends, strict=True):
            begin = end - piece.signal.shape[1]
            first, last = max(start, begin), min(stop, end)
            if first < last:
                rows = [wanted.index(channel) for channel in piece.channels]
                signal[rows, first - start : last - start] = piece.read(first - begin, last - begin)
        return signal

    return Recording(
        name=path.name,
        subject=path.name,
        fs=pieces[0].fs,
        channels=tuple(wanted),
        units=tuple(units.get(channel, "") for channel in wanted),
        signal=Unread((len(wanted), count), read),
        segments=tuple(segments),
    )


# ---------------------------------------------------------------- annotations


def read_annotations(path: Path, recording: Recording) -> tuple[Annotation, ...]:
    """Read an annotation file in the MIT format; the header of the record must be in the same folder.

    The text of an annotation is its note, or else its symbol ("[42]" for a code without a symbol). A rhythm change
    lasts until the next one; all other annotations have no duration.
    """
    check_file(path)
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
    except DataError:
        return False


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
