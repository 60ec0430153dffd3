"""WFDB records and the table of PTB-XL, read from intact and damaged files in their published layouts."""

from __future__ import annotations

import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyadic.data.readers.wfdb import WfdbRecord
from polyadic.data.recordings import Recording, Unread
from polyadic.errors import DataError, PolyadicError

BITS = {"16": 16, "61": 16, "160": 16, "212": 12, "310": 10, "311": 10, "80": 8, "24": 24, "32": 32}


@pytest.fixture(scope="module")
def wfdb() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import wfdb
    return wfdb


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make network access fail with an error that is not a DataError."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was tried")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def read_wfdb(path: str | Path, annotations: tuple[str, ...] = (), **options: Any) -> Recording:
    return WfdbRecord(path, annotations).read(**options).in_memory()


def digits_of(bits: int, samples: int = 50, signals: int = 3) -> np.ndarray:
    """Digits of all sizes, (samples, signals); some are the lowest, which stands for a missing value."""
    rng = np.random.default_rng(bits)
    digits = rng.integers(-(1 << bits - 1) + 1, 1 << bits - 1, (samples, signals))
    digits[1], digits[2] = -(1 << bits - 1) + 1, (1 << bits - 1) - 1
    digits[10, 0] = digits[20:25, 1] = -(1 << bits - 1)
    return digits


def write(wfdb: Any, folder: Path, name: str = "r", fmt: str = "16", **changes: Any) -> np.ndarray:
    """A record of three signals written by the library; its digits, (samples, signals)."""
    digits = digits_of(BITS[fmt])
    fields = {
        "fs": 100,
        "units": ["mV", "uV", "mmHg"],
        "sig_name": ["I", "II", "V1"],
        "d_signal": digits,
        "fmt": [fmt] * 3,
        "adc_gain": [200.0, 100.0, 50.5],
        "baseline": [0, 10, -5],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wfdb.wrsamp(name, write_dir=str(folder), **(fields | changes))
    return digits


def annotate(wfdb: Any, folder: Path, extension: str = "atr", **changes: Any) -> None:
    fields = {
        "sample": np.array([0, 5, 30, 31]),
        "symbol": ["N", "V", "+", "N"],
        "aux_note": ["", "", "(AFIB\0", ""],
        "fs": 100,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wfdb.wrann("r", extension, write_dir=str(folder), **(fields | changes))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def assert_same(got: Recording, record: Any) -> None:
    """A recording equals what the library reads in physical units, sample by sample."""
    np.testing.assert_allclose(got.signal, record.p_signal.T, rtol=1e-6, atol=1e-12)
    assert got.fs == record.fs
    assert got.channels == tuple(record.sig_name)
    assert got.units == tuple(record.units)


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("fmt", ["16", "212", "24"])
def test_values_are_those_of_the_library_sample_by_sample(wfdb: Any, tmp_path: Path, fmt: str) -> None:
    digits = write(wfdb, tmp_path, fmt=fmt)
    got = read_wfdb(tmp_path / "r")
    assert_same(got, wfdb.rdrecord(str(tmp_path / "r"), physical=True))
    np.testing.assert_array_equal(np.isnan(got.signal), (digits == -(1 << BITS[fmt] - 1)).T)


def test_signals_may_be_in_several_files(wfdb: Any, tmp_path: Path) -> None:
    digits = write(wfdb, tmp_path)
    lines = (tmp_path / "r.hea").read_text().replace("r.dat", "a.dat")
    (tmp_path / "r.hea").write_text("b.dat".join(lines.rsplit("a.dat", 1)))
    (tmp_path / "a.dat").write_bytes(digits[:, :2].astype("<i2").tobytes())
    (tmp_path / "b.dat").write_bytes(digits[:, 2:].astype("<i2").tobytes())
    assert_same(read_wfdb(tmp_path / "r"), wfdb.rdrecord(str(tmp_path / "r")))
    (tmp_path / "a.dat").unlink()
    assert read_wfdb(tmp_path / "r", channels=["V1"]).signal.shape == (1, 50)
    with pytest.raises(DataError, match=r"a\.dat does not exist"):
        read_wfdb(tmp_path / "r")


def test_a_length_that_the_header_leaves_out_comes_from_the_file(wfdb: Any, tmp_path: Path) -> None:
    write(wfdb, tmp_path, fmt="212")
    whole = read_wfdb(tmp_path / "r").signal
    edit(tmp_path / "r.hea", "r 3 100 50", "r 3 100")
    np.testing.assert_array_equal(read_wfdb(tmp_path / "r").signal, whole)


def test_without_the_package_the_error_says_what_to_install(
    wfdb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(wfdb, tmp_path)
    monkeypatch.setitem(sys.modules, "wfdb", None)
    with pytest.raises(PolyadicError, match=r"pip install 'polyadic\[wfdb\]'"):
        read_wfdb(tmp_path / "r")


# ---------------------------------------------------------------- annotations


def test_rates_of_many_digits_and_units_beyond_ascii_are_read(wfdb: Any, tmp_path: Path) -> None:
    write(wfdb, tmp_path)
    edit(tmp_path / "r.hea", "r 3 100 50", "r 3 0.0166666666667/125 50")
    edit(tmp_path / "r.hea", "/uV", "/µV")
    edit(tmp_path / "r.hea", "/mmHg", "/°")
    edit(tmp_path / "r.hea", " V1", " Körper")
    for encoding in ("utf-8", "latin-1"):
        text = (tmp_path / "r.hea").read_text("utf-8")
        (tmp_path / "q.hea").write_text(text.replace("r 3", "q 3"), encoding)
        got = read_wfdb(tmp_path / "q")
        assert (got.fs, got.units, got.channels) == (0.0166666666667, ("mV", "uV", "°"), ("I", "II", "Körper"))


REFUSED = {
    "multi-segment/p000878/3269321_layout": "'~' is not",
    "multi-segment/p000878/p000878-2137-10-26-16-57": r"3269321_0003.hea does not exist",
    "multi-segment/s25047/3234460_layout": "'~' is not",
}
"""Genuine records that cannot be read, by wfdb either: the files of two lack samples, and one lacks files."""


@pytest.mark.long
def test_every_genuine_record_is_read_as_the_library_reads_it_or_refused_with_the_reason(
    wfdb: Any, data_folder: Path
) -> None:
    root = data_folder / "wfdb"
    counts = {"read": 0, "mixed": 0, "refused": 0}
    for path in sorted(root.rglob("*.hea")):
        name = path.relative_to(root).with_suffix("").as_posix()
        record = path.with_suffix("")
        if name in REFUSED:
            with pytest.raises(DataError, match=REFUSED[name]):
                read_wfdb(record)
            with pytest.raises((ValueError, FileNotFoundError)):
                wfdb.rdrecord(str(record))
            counts["refused"] += 1
            continue
        rates = set(WfdbRecord(path).rates.values())
        if len(rates) > 1:
            with pytest.raises(DataError, match="--resample hold repeats"):
                read_wfdb(record)
            _compare_held(wfdb, record)
            counts["mixed"] += 1
            continue
        _compare(read_wfdb(record), wfdb.rdrecord(str(record)))
        counts["read"] += 1
    assert counts == {"read": 47, "mixed": 7, "refused": 3}


def _compare(got: Recording, expected: Any) -> None:
    """All values where the record has samples; elsewhere, between segments, the library has NaN."""
    values = np.full(expected.p_signal.shape, np.nan)
    places = got.elapsed_samples(np.arange(got.signal.shape[1]))
    values[places] = got.signal.T
    np.testing.assert_allclose(values, expected.p_signal, rtol=1e-6, atol=1e-9)
    assert got.channels == tuple(expected.sig_name)
    assert got.fs == pytest.approx(expected.fs)


def _compare_held(wfdb: Any, path: Path) -> None:
    """A record of several rates: every channel has the library's samples, repeated up to the highest rate."""
    got = read_wfdb(path, resample="hold")
    expected = wfdb.rdrecord(str(path), smooth_frames=False, m2s=True)
    fastest = max(expected.samps_per_frame)
    for row, frame in enumerate(expected.samps_per_frame):
        own = np.repeat(expected.e_p_signal[row], fastest // frame)
        np.testing.assert_allclose(got.signal[row], own, rtol=1e-6, atol=1e-9)
    assert got.fs == pytest.approx(expected.fs * fastest)


@pytest.mark.parametrize(
    "name", ["binformats", "flacformats", "100skew", "test01_00s_skewframe", "multi-segment/041s/041s"]
)
def test_packed_skewed_mixed_and_segmented_records_are_read(wfdb: Any, data_folder: Path, name: str) -> None:
    path = data_folder / "wfdb" / name
    if len(set(WfdbRecord(path).rates.values())) > 1:
        _compare_held(wfdb, path)
    else:
        _compare(read_wfdb(path), wfdb.rdrecord(str(path)))


@pytest.mark.parametrize("name", ["100", "100skew", "100-no-len", "test01_00s_frame", "multi-segment/041s/041s"])
def test_samples_that_are_read_later_are_the_same(data_folder: Path, name: str) -> None:
    path = data_folder / "wfdb" / name
    whole, later = read_wfdb(path, resample="hold"), WfdbRecord(path).read(resample="hold")
    assert isinstance(later.signal, Unread)
    assert (later.signal.dtype, later.segments) == (whole.signal.dtype, whole.segments)
    count = later.signal.shape[1]
    parts = [later.read(first, min(first + 99_973, count)) for first in range(0, count, 99_973)]
    values = np.concatenate(parts, axis=1)
    np.testing.assert_array_equal(values, whole.signal)


def test_times_between_segments_are_gaps_that_no_window_crosses(data_folder: Path) -> None:
    got = read_wfdb(data_folder / "wfdb" / "multi-segment" / "s25047" / "s25047-2704-05-04-10-44")
    assert got.segments[0].onset == 25740 / 125
    assert got.signal.shape[1] == 543240 - 25740
    assert np.isnan(got.signal[2]).any()  # a channel that most segments lack


@pytest.mark.parametrize(("name", "extension"), [("1003", "atr"), ("12726", "wabp"), ("12726", "anI")])
def test_genuine_annotations_are_those_of_the_library(
    wfdb: Any, data_folder: Path, tmp_path: Path, name: str, extension: str
) -> None:
    """The annotations stand alone: their record is one of a long silence that is made here."""
    file = data_folder / "wfdb" / f"{name}.{extension}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = wfdb.rdann(str(file.with_suffix("")), extension)
    samples = int(expected.sample.max()) + 1
    (tmp_path / f"{name}.hea").write_text(f"{name} 1 250 {samples}\nz.dat 80 200 8 0 0 0 0 I\n")
    (tmp_path / "z.dat").write_bytes(bytes([128]) * samples)
    (tmp_path / f"{name}.{extension}").symlink_to(file)
    got = read_wfdb(tmp_path / name, annotations=(extension,)).annotations
    fs = expected.fs or 250
    assert [round(each.onset * fs) for each in got] == expected.sample.tolist()
    assert all(each.text for each in got)


def test_annotations_know_long_gaps_own_symbols_and_their_own_rate(wfdb: Any, tmp_path: Path) -> None:
    write(wfdb, tmp_path)
    annotate(
        wfdb,
        tmp_path,
        sample=np.array([4, 400_000, 400_001]),
        symbol=["W", "N", "W"],
        aux_note=None,
        fs=1e6,
        custom_labels=[("W", "wake stage")],
    )
    got = read_wfdb(tmp_path / "r", annotations=("atr",)).annotations
    assert [(each.onset, each.text) for each in got] == [(4e-6, "W"), (0.4, "N"), (0.400001, "W")]


def word(code: int, low: int) -> bytes:
    return (code << 10 | low).to_bytes(2, "little")


def test_a_comment_at_the_start_that_hangs_the_library_is_skipped(wfdb: Any, tmp_path: Path) -> None:
    write(wfdb, tmp_path)
    (tmp_path / "r.atr").write_bytes(word(22, 0) + word(63, 6) + b"## hi!" + word(1, 3) + word(0, 0))
    got = read_wfdb(tmp_path / "r", annotations=("atr",)).annotations
    assert [tuple(each) for each in got] == [(0.03, 0.0, "N")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated: the end mark is missing"),
        (word(1, 3), "truncated: the end mark is missing"),
        (word(61, 3) + word(0, 0), "must begin with an annotation"),
        (word(55, 3) + word(0, 0), "known code .* code 55 is at sample 3"),
        (word(1, 51) + word(0, 0), r"within 0.5 s, but code 1 is at sample 51"),
    ],
)
def test_damaged_annotations_are_refused(wfdb: Any, tmp_path: Path, data: bytes, message: str) -> None:
    write(wfdb, tmp_path)
    (tmp_path / "r.atr").write_bytes(data)
    with pytest.raises(DataError, match=rf"^r\.atr: .*{message}"):
        read_wfdb(tmp_path / "r", annotations=("atr",))


# ---------------------------------------------------------------- damage


def in_header(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "r.hea", old, new)


def bytes_of(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], int]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no header": (lambda folder: (folder / "r.hea").unlink(), r"r\.hea does not exist"),
    "no signals": (lambda folder: (folder / "r.dat").unlink(), r"r\.dat does not exist"),
    "empty header": (bytes_of("r.hea", lambda _: b""), r"r\.hea: wfdb cannot read the header"),
    "signals cut": (bytes_of("r.dat", lambda data: data[:-1]), r"r\.dat: .* must have 300 bytes .* but have 299"),
    "too many samples": (in_header("100 50", "100 51"), r"r\.dat: .* 306 bytes \(signals: 3, samples: 51\)"),
    "absurd samples": (in_header("100 50", "100 999999999999999"), r"must have 5999999999999994 bytes"),
    "rate of 0": (in_header("r 3 100", "r 3 0"), r"must give a rate"),
    "unknown format": (in_header(" 16 200", " 17 200"), r"r\.hea: signals must be in a file of format"),
    "several rates": (in_header(" 16 200", " 16x2 200"), r"must have 400 bytes .* but have 300"),
    "file elsewhere": (in_header("r.dat 16 200", "../r.dat 16 200"), r"invalid syntax in signal line"),
    "file on the network": (in_header("r.dat 16 200", "http://x.org/r.dat 16 200"), r"invalid syntax in signal line"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_records_are_refused_with_the_reason(wfdb: Any, tmp_path: Path, kind: str) -> None:
    write(wfdb, tmp_path)
    damage, message = DAMAGE[kind]
    damage(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        read_wfdb(tmp_path / "r")
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("gain", ["", " 0(0)/mV"])
def test_a_missing_gain_or_one_of_0_is_the_default_of_the_format(wfdb: Any, tmp_path: Path, gain: str) -> None:
    digits = write(wfdb, tmp_path)
    text = (tmp_path / "r.hea").read_text().splitlines()
    (tmp_path / "r.hea").write_text("\n".join([text[0], *("r.dat 16" + gain for _ in text[1:])]))
    recording = read_wfdb(tmp_path / "r")
    np.testing.assert_array_equal(recording.signal[1:, 9], (digits[9, 1:] / 200).astype(np.float32))


@pytest.mark.parametrize("path", ["s3://bucket/r", "https://physionet.org/files/mitdb/1.0.0/100"])
def test_addresses_are_never_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"does not exist"):
        read_wfdb(path)
