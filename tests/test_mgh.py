"""Sleep recordings in the layout of the PhysioNet/CinC Challenge 2018, whole and damaged."""

from __future__ import annotations

import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from polyadic.data.annotations import label_windows
from polyadic.data.readers.mgh import read_mgh
from polyadic.data.readers.wfdb import read_wfdb
from polyadic.data.recordings import Annotation, window_starts
from polyadic.errors import DataError, PolyadicError

NAME = "tr03-0005"
CHANNELS = (
    "F3-M2", "F4-M1", "C3-M2", "C4-M1", "O1-M2", "O2-M1", "E1-M2",
    "Chin1-Chin2", "ABD", "CHEST", "AIRFLOW", "SaO2", "ECG",
)  # fmt: skip
EEG = CHANNELS[:6]
GAINS = {"SaO2": "655.35(-32768)/%", "ECG": "1000/mV"}
STAGES = ("wake", "nonrem1", "nonrem2", "nonrem3", "rem", "undefined")
SAMPLES = 600
NIGHT = np.repeat([0, 1, 2, 5, 2, 3, 4, -1], SAMPLES // 8)
FLIPS = 500


def write_header(folder: Path, digits: np.ndarray) -> None:
    lines = [f"{folder.name} {len(digits)} 200 {digits.shape[1]}"]
    for name, row in zip(CHANNELS, digits, strict=True):
        total = (int(row.sum(dtype=np.int64)) + 32768) % 65536 - 32768
        lines.append(f"{folder.name}.mat 16+24 {GAINS.get(name, '1/uV')} 16 0 {row[0]} {total} 0 {name}")
    (folder / f"{folder.name}.hea").write_text("\n".join([*lines, "#Age: 61  Sex: M", ""]))


def write_labels(folder: Path, night: np.ndarray = NIGHT, **storage: Any) -> Path:
    """MATLAB 7.3 as published: HDF5 behind 512 bytes of text, logical rows, compressed."""
    path = folder / f"{folder.name}-arousal.mat"
    storage = {"compression": "gzip", "compression_opts": 3} | storage
    with h5py.File(path, "w", userblock_size=512) as file:
        for number, stage in enumerate(STAGES):
            flags = (night == number).astype(np.uint8)[None]
            data = file.create_dataset(f"data/sleep_stages/{stage}", data=flags, **storage)
            data.attrs["MATLAB_class"] = np.bytes_("logical")
        file.create_dataset("data/arousals", data=np.zeros((len(night), 1)))
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file".ljust(512))
    return path


def write(root: Path, name: str = NAME, seed: int = 0) -> tuple[Path, np.ndarray]:
    """A recording; its folder and its digits, (13, samples)."""
    folder = root / name
    folder.mkdir()
    digits = np.random.default_rng(seed).integers(-2000, 2000, (13, SAMPLES)).astype(np.int16)
    digits[11, 5:9] = -32768
    savemat(folder / f"{name}.mat", {"val": digits}, format="4")
    write_header(folder, digits)
    write_labels(folder)
    return folder, digits


def write_matlab73(folder: Path, digits: np.ndarray, **storage: Any) -> None:
    path = folder / f"{folder.name}.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("val", data=digits.T, **({"compression": "gzip"} | storage))
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file".ljust(512))


def flips(path: Path) -> Iterator[bytes]:
    """Yield copies of a file with one byte changed, at reproducible random positions."""
    whole = path.read_bytes()
    rng = np.random.default_rng(2018)
    for place, change in zip(rng.integers(0, len(whole), FLIPS), rng.integers(1, 256, FLIPS), strict=True):
        data = bytearray(whole)
        data[place] ^= change
        yield bytes(data)


def test_digits_are_those_of_the_file_and_values_those_of_wfdb(tmp_path: Path) -> None:
    folder, digits = write(tmp_path)
    got = read_mgh(folder)
    assert got.channels == EEG
    assert (got.name, got.subject, got.fs, set(got.units)) == (NAME, NAME, 200.0, {"uV"})
    assert got.signal.dtype == np.int16
    np.testing.assert_array_equal(got.signal, digits[:6])
    whole, expected = read_mgh(folder, channels=None), read_wfdb(folder / NAME)
    np.testing.assert_array_equal(whole.values, expected.values)
    assert whole.missing is not None
    np.testing.assert_array_equal(whole.missing, digits == -32768)
    assert (whole.channels, whole.units) == (expected.channels, expected.units)
    np.testing.assert_allclose(whole.values[11, 0], (int(digits[11, 0]) + 32768) / 655.35)


def test_channels_are_returned_in_the_requested_order_and_unknown_ones_are_named(tmp_path: Path) -> None:
    folder, digits = write(tmp_path)
    got = read_mgh(str(folder / f"{NAME}.hea"), channels=("ECG", "F3-M2"), name="night", subject="p1")
    np.testing.assert_array_equal(got.signal, digits[[12, 0]])
    assert (got.name, got.subject, got.units) == ("night", "p1", ("mV", "uV"))
    with pytest.raises(DataError, match=r"must have the channels 'Fz', but has 'F3-M2', 'F4-M1'"):
        read_mgh(folder, channels=["Fz"])


def test_runs_of_a_stage_become_annotations_and_undefined_or_no_stage_none(tmp_path: Path) -> None:
    folder, _ = write(tmp_path)
    length = SAMPLES / 8 / 200
    texts = ["W", "N1", "N2", None, "N2", "N3", "R", None]
    expected = [Annotation(n * length, length, text) for n, text in enumerate(texts) if text]
    got = read_mgh(folder)
    assert got.annotations == tuple(expected)
    starts = window_starts(got, 1)
    classes = {"W": 0, "N1": 1, "N2": 2, "N3": 3, "R": 4}
    expected_labels = np.where(NIGHT == 5, -1, NIGHT)
    np.testing.assert_array_equal(label_windows(got, starts, 1, classes), expected_labels)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.bool_])
@pytest.mark.parametrize("storage", [{}, {"compression": None, "compression_opts": None}, {"chunks": (1, 64)}])
def test_labels_may_be_stored_in_any_of_matlabs_ways(tmp_path: Path, dtype: Any, storage: dict[str, Any]) -> None:
    folder, _ = write(tmp_path)
    expected = read_mgh(folder).annotations
    path = write_labels(folder, **storage)
    with h5py.File(path, "r+") as file:
        stage = file["data/sleep_stages/rem"][()].astype(dtype)
        del file["data/sleep_stages/rem"]
        file["data/sleep_stages/rem"] = stage.reshape(-1, 1) if dtype == np.bool_ else stage
    assert read_mgh(folder).annotations == expected


def test_recordings_without_labels_have_no_annotations_and_need_no_h5py(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, digits = write(tmp_path, "te03-0001")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(PolyadicError, match="need the package h5py"):
        read_mgh(folder)
    (folder / "te03-0001-arousal.mat").unlink()
    got = read_mgh(folder)
    assert got.annotations == ()
    np.testing.assert_array_equal(got.signal, digits[:6])


@pytest.mark.parametrize("length", [SAMPLES, SAMPLES - 1])
def test_chunks_that_were_not_compressed_must_be_whole(tmp_path: Path, length: int) -> None:
    folder, _ = write(tmp_path)
    expected = read_mgh(folder).annotations
    with h5py.File(write_labels(folder, chunks=(1, SAMPLES)), "r+") as file:
        data = file["data/sleep_stages/nonrem1"]
        data.id.write_direct_chunk((0, 0), data[()].tobytes()[:length], filter_mask=1)
    if length == SAMPLES:
        assert read_mgh(folder).annotations == expected
    else:
        with pytest.raises(DataError, match=r"nonrem1 must be stored completely in the file itself"):
            read_mgh(folder)


def test_signals_may_be_in_matlab_7_3(tmp_path: Path) -> None:
    folder, digits = write(tmp_path)
    write_matlab73(folder, digits)
    got = read_mgh(folder)
    np.testing.assert_array_equal(got.signal, digits[:6])
    assert len(got.annotations) == 6


# ---------------------------------------------------------------- damage


def bytes_of(ending: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    def damage(folder: Path) -> None:
        path = folder / f"{NAME}{ending}"
        path.write_bytes(change(path.read_bytes()))

    return damage


def in_header(old: str, new: str) -> Callable[[Path], Any]:
    return bytes_of(".hea", lambda data: data.replace(old.encode(), new.encode()))


def stage(name: str, change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    """Put another array in the place of a stage's."""

    def damage(folder: Path) -> None:
        with h5py.File(folder / f"{NAME}-arousal.mat", "r+") as file:
            data = file[f"data/sleep_stages/{name}"][()]
            del file[f"data/sleep_stages/{name}"]
            changed = change(data)
            if changed is not None:
                file.create_dataset(f"data/sleep_stages/{name}", data=changed)

    return damage


def claimed(folder: Path) -> None:
    """A stage that says it has 10¹² samples and stores none of them."""
    with h5py.File(folder / f"{NAME}-arousal.mat", "r+") as file:
        del file["data/sleep_stages/rem"]
        file.create_dataset("data/sleep_stages/rem", (1, 10**12), "u1", chunks=(1, 10**6), compression="gzip")


def not_stored(folder: Path) -> None:
    """A stage of the right shape of which nothing was ever written."""
    with h5py.File(folder / f"{NAME}-arousal.mat", "r+") as file:
        del file["data/sleep_stages/nonrem2"]
        file.create_dataset("data/sleep_stages/nonrem2", (1, SAMPLES), "u1", chunks=(1, 100))


def elsewhere(folder: Path) -> None:
    """A stage whose digits are in some other file."""
    with h5py.File(folder / f"{NAME}-arousal.mat", "r+") as file:
        del file["data/sleep_stages/nonrem2"]
        outside = [(str(folder / f"{NAME}.mat"), 24, SAMPLES)]
        file.create_dataset("data/sleep_stages/nonrem2", (1, SAMPLES), "u1", external=outside)


def others_labels(folder: Path) -> None:
    write_labels(folder, np.repeat(NIGHT, 2))


def others_signals(folder: Path) -> None:
    other, _ = write(folder.parent, "tr03-0006", seed=6)
    shutil.copy(other / "tr03-0006.mat", folder / f"{NAME}.mat")


def swapped_pair(folder: Path) -> None:
    a, b = folder / f"{NAME}.mat", folder / f"{NAME}-arousal.mat"
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def bomb(folder: Path) -> None:
    """Header and MATLAB 7.3 file agree on 13 x 10¹⁰ digits that the file cannot hold."""
    path = folder / f"{NAME}.mat"
    with h5py.File(path, "w") as file:
        file.create_dataset("val", (10**10, 13), "i2", chunks=(10**6, 13), compression="gzip")
    in_header(f"200 {SAMPLES}", f"200 {10**10}")(folder)


def packed_bomb(folder: Path) -> None:
    """Write a header and a MATLAB 7.3 file that claim to store 52 million bytes in ten."""
    with h5py.File(folder / f"{NAME}.mat", "w") as file:
        data = file.create_dataset("val", (2_000_000, 13), "i2", chunks=(2_000_000, 13), compression="gzip")
        data.id.write_direct_chunk((0, 0), bytes(10))
    in_header(f"200 {SAMPLES}", "200 2000000")(folder)


def version_5(folder: Path) -> None:
    savemat(folder / f"{NAME}.mat", {"val": np.zeros((13, SAMPLES), np.int16)})


def prefix(*fields: int, name: bytes = b"val\0") -> Callable[[Path], Any]:
    return bytes_of(".mat", lambda data: struct.pack("<5i", *fields) + name + data[24:])


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no header": (lambda folder: (folder / f"{NAME}.hea").unlink(), r"^tr03-0005\.hea: there is no such file"),
    "no signals": (lambda folder: (folder / f"{NAME}.mat").unlink(), r"^tr03-0005\.mat: there is no such file"),
    "not a recording": (shutil.rmtree, r"there is no such file"),
    "empty signals": (bytes_of(".mat", lambda _: b""), r"^tr03-0005\.mat: signals must be"),
    "zero bytes": (bytes_of(".mat", lambda data: bytes(len(data))), r"^tr03-0005\.mat: signals must be"),
    "signals cut": (bytes_of(".mat", lambda data: data[:-1]), r"^tr03-0005\.mat: .* 15624 bytes, but .* 15623 bytes"),
    "more signals": (bytes_of(".mat", lambda data: data + b"\0"), r"and 15625 bytes"),
    "MATLAB 5": (version_5, r"^tr03-0005\.mat: signals must be in a MATLAB 4 file"),
    "other matrix": (prefix(30, 13, 600, 0, 4, name=b"vol\0"), r"must be real and named 'val'"),
    "imaginary": (prefix(30, 13, 600, 1, 4), r"must be real and named 'val'"),
    "doubles": (prefix(0, 13, 600, 0, 4), r"^tr03-0005\.mat: signals must be"),
    "turned": (prefix(30, 600, 13, 0, 4), r"declares 13 x 600 values, .* but the file has 600 x 13"),
    "absurd rows": (prefix(30, 2**31 - 1, 2**31 - 1, 0, 4), r"but the file has 2147483647 x 2147483647"),
    "negative rows": (prefix(30, -13, -600, 0, 4), r"but the file has -13 x -600"),
    "too many samples": (in_header("200 600", "200 601"), r"declares 13 x 601 values"),
    "absurd samples": (in_header("200 600", "200 999999999999999"), r"declares 13 x 999999999999999 values"),
    "no samples": (in_header(" 200 600", " 200"), r"the header must give the number of samples"),
    "too few channels": (in_header("5 13 200", "5 12 200"), r"must describe 12 signals or segments, not 13"),
    "two of one name": (in_header(" F4-M1", " F3-M2"), r"channels are named 'F3-M2'|must have the channels 'F4-M1'"),
    "other format": (in_header(" 16+24 1000", " 61+24 1000"), r"ECG must be in tr03-0005\.mat, format 16"),
    "other file": (in_header("tr03-0005.mat 16+24 1000", "x.mat 16+24 1000"), r"ECG must be in tr03-0005\.mat"),
    "not ASCII": (in_header("tr03-0005 13", "trµ3-0005 13"), r"^tr03-0005\.hea: the first line must be"),
    "another's header": (in_header("tr03-0005 13", "tr03-0006 13"), r"must be for the record 'tr03-0005'"),
    "another's signals": (others_signals, r"^tr03-0005\.mat: channel F3-M2 must"),
    "swapped pair": (swapped_pair, r"^tr03-0005\.mat: the dataset val is missing"),
    "bomb": (bomb, r"^tr03-0005\.mat: val must be stored completely"),
    "packed bomb": (packed_bomb, r"^tr03-0005\.mat: 'val' declares 52000000 bytes, more than its file can"),
    "another's labels": (others_labels, r"^tr03-0005-arousal\.mat: .* shape \(1, 600\) .* has \(1, 1200\)"),
    "empty labels": (bytes_of("-arousal.mat", lambda _: b""), r"^tr03-0005-arousal\.mat: HDF5 cannot read"),
    "labels cut": (bytes_of("-arousal.mat", lambda data: data[:-400]), r"^tr03-0005-arousal\.mat: HDF5 cannot read"),
    "zeros as labels": (bytes_of("-arousal.mat", lambda data: bytes(len(data))), r"-arousal\.mat: HDF5 cannot read"),
    "labels are a folder": (
        lambda folder: [(folder / f"{NAME}-arousal.mat").unlink(), (folder / f"{NAME}-arousal.mat").mkdir()],
        r"^tr03-0005-arousal\.mat is (a folder|a link to a file that does not exist)",
    ),
    "link to nowhere": (
        lambda folder: [
            (folder / f"{NAME}-arousal.mat").unlink(),
            (folder / f"{NAME}-arousal.mat").symlink_to(folder / "lost"),
        ],
        r"^tr03-0005-arousal\.mat is (a folder|a link to a file that does not exist)",
    ),
    "stage absent": (stage("nonrem3", lambda _: None), r"dataset data/sleep_stages/nonrem3 is missing"),
    "stage of doubles": (stage("rem", lambda data: data.astype(float)), r"and type uint8, but has .* float64"),
    "stage of two": (stage("rem", lambda data: data * 2), r"data/sleep_stages/rem must contain only 0 and 1"),
    "stage of minus one": (stage("rem", lambda data: -data.astype(np.int8)), r"must contain only 0 and 1"),
    "stage too short": (stage("wake", lambda data: data[:, :-1]), r"must have shape \(1, 600\)"),
    "two stages at once": (stage("rem", lambda data: data + (NIGHT == 1)), r"sample 75 has two stages"),
    "undefined and a stage": (stage("undefined", lambda data: data | 1), r"sample 0 has two stages"),
    "stage claims too much": (claimed, r"must have shape \(1, 600\)"),
    "stage not stored": (not_stored, r"nonrem2 must be stored completely"),
    "stage elsewhere": (elsewhere, r"nonrem2 must be stored completely"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_recordings_are_refused_with_the_reason(tmp_path: Path, kind: str) -> None:
    folder, _ = write(tmp_path)
    damage, message = DAMAGE[kind]
    damage(folder)
    with pytest.raises(DataError, match=message) as caught:
        read_mgh(folder)
    assert str(tmp_path) not in str(caught.value)


def test_any_flipped_byte_of_the_signals_is_found_in_the_channels_read(tmp_path: Path) -> None:
    folder, digits = write(tmp_path)
    found = elsewhere = 0
    for data in flips(folder / f"{NAME}.mat"):
        (folder / f"{NAME}.mat").write_bytes(data)
        with pytest.raises(DataError, match=r"^tr03-0005\.mat: "):
            read_mgh(folder, channels=None)
        found += 1
        try:
            six = read_mgh(folder)
        except DataError:
            continue
        np.testing.assert_array_equal(six.signal, digits[:6])
        elsewhere += 1
    assert found == FLIPS
    assert elsewhere > 0.3 * FLIPS, "a flip in another channel does not matter to those read"


@pytest.mark.parametrize(
    ("ending", "least"),
    [(".hea", 0.8), *(pytest.param(*one, marks=pytest.mark.long) for one in (("-arousal.mat", 0.03), (".mat", 0.5)))],
)
def test_flipped_bytes_are_found_or_change_neither_digits_nor_labels(tmp_path: Path, ending: str, least: float) -> None:
    folder, digits = write(tmp_path)
    if ending == ".mat":
        write_matlab73(folder, digits)
    expected = read_mgh(folder)
    outcomes: Counter[str] = Counter()
    for data in flips(folder / f"{NAME}{ending}"):
        (folder / f"{NAME}{ending}").write_bytes(data)
        try:
            got = read_mgh(folder)
        except DataError:
            outcomes["refused"] += 1
            continue
        np.testing.assert_array_equal(got.signal, expected.signal)
        # A header may be flipped to another rate that is as good: then samples, not seconds, must agree.
        samples = [(round(a.onset * got.fs), round(a.duration * got.fs), a.text) for a in got.annotations]
        assert samples == [(round(a.onset * 200), round(a.duration * 200), a.text) for a in expected.annotations]
        outcomes["as before" if ending != ".hea" else "read"] += 1
    assert outcomes["refused"] > least * FLIPS, outcomes
