"""Arrays and tables are read exactly; damaged files and files that claim too much are refused."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
from people import read_csv

from polyadic.data.readers.arrays import open_windows
from polyadic.data.recordings import Recording
from polyadic.errors import DataError, PolyadicError


def values(shape=(6, 2, 5), dtype=np.float32, seed=0):
    return (np.random.default_rng(seed).normal(size=shape) * 100).astype(dtype)


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("dtype", ["f4", "i2", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_npy_file_is_read_as_it_was_written(dtype, order, tmp_path):
    X = np.asarray(values(dtype=np.float64).astype(np.dtype(dtype)), order=order)
    np.save(tmp_path / "a.npy", X)
    windows = open_windows(tmp_path / "a.npy")
    assert np.array_equal(windows.X, X)
    assert windows.X.dtype == X.dtype.newbyteorder("=")
    assert windows.X.dtype.isnative
    assert (windows.fs, windows.classes, windows.channels, set(windows.label)) == (None, (), (), {-1})


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_every_column_of_an_npz_file_is_read(write, tmp_path):
    columns = {
        "X": values(dtype=np.int16),
        "label": np.array([0, 2, -1, 1, 1, 0]),
        "subject": np.array(["a", "a", "b", "b", "c", "c"]),
        "recording": np.array([1, 1, 2, 2, 3, 4], np.uint8),
        "start": np.arange(6) * 5,
        "fs": 50,
        "channels": ["x", "y"],
        "units": ["g", "g"],
        "classes": ["walk", "sit", "lie"],
        "something": np.zeros(3),
    }
    write(tmp_path / "a.npz", **columns)
    windows = open_windows(str(tmp_path / "a.npz"))
    assert windows.X.dtype == np.int16
    assert windows.label.dtype == np.int32
    assert windows.start.dtype == np.int64
    for key in ("X", "label", "start"):
        assert np.array_equal(getattr(windows, key), columns[key])
    for key in ("subject", "recording"):
        assert np.array_equal(getattr(windows, key), columns[key].astype(str))
    assert set(windows.part) == {""}
    assert windows.fs == 50.0
    assert (windows.channels, windows.units, windows.classes) == (("x", "y"), ("g", "g"), ("walk", "sit", "lie"))


@pytest.mark.parametrize("kind", [str, bytes])
def test_labels_that_are_texts_take_their_place_among_the_classes(kind, tmp_path):
    texts = np.array(["sit", "walk", "", "sit", "lie", "walk"]).astype(np.dtype(kind))
    windows = open_windows(save(tmp_path / "a.npz", X=values(), y=texts))
    assert windows.classes == ("lie", "sit", "walk")
    assert windows.label.tolist() == [1, 2, -1, 1, 0, 2]
    ordered = open_windows(save(tmp_path / "b.npz", X=values(), y=texts, classes=["walk", "sit", "lie"]))
    assert ordered.classes == ("walk", "sit", "lie")
    assert ordered.label.tolist() == [1, 0, -1, 1, 2, 0]


def test_parts_are_joined_with_train_first(tmp_path):
    train, test = values((4, 2, 5), seed=1), values((3, 2, 5), seed=2)
    path = save(
        tmp_path / "a.npz",
        X_train=train,
        X_test=test,
        y_test=np.array([1, 0, 1], np.uint8),
        subject_train=np.array([1, 1, 2, 2]),
        subject_test=np.array([3, 3, 4]),
        exp_pos_train=np.array([[7, 0], [7, 64], [8, 0], [8, 64]]),
        exp_pos_test=np.array([[9, 5], [9, 69], [10, 0]]),
        fs=np.array([50.0]),
    )
    windows = open_windows(path)
    assert np.array_equal(windows.X, np.concatenate([train, test]))
    assert np.array_equal(windows[[5, 0, 4]].X, windows.X[[5, 0, 4]])
    assert windows.part.tolist() == ["train"] * 4 + ["test"] * 3
    assert windows.label.tolist() == [-1, -1, -1, -1, 1, 0, 1]
    assert windows.subject.tolist() == list("1122334")
    assert windows.recording.tolist() == ["7", "7", "8", "8", "9", "9", "10"]
    assert windows.start.tolist() == [0, 64, 0, 64, 5, 69, 0]
    assert windows.fs == 50


X = values()
WRONG = {
    "no X": ({"Y": X}, "must contain X, or X_train and X_test, but contains neither"),
    "one part": ({"X_train": X}, "but contains neither"),
    "flat X": ({"X": X[0]}, r"X must have shape \(N, channels, time\), but has \(2, 5\)"),
    "empty X": ({"X": X[:0]}, r"but has \(0, 2, 5\)"),
    "texts": ({"X": X.astype(str)}, "X must hold real numbers"),
    "complex": ({"X": X + 1j}, "arrays must hold numbers or strings, but hold complex64"),
    "pickle": ({"X": np.array([[[{}]]], dtype=object)}, "hold object"),
    "label length": (
        {"X": X, "y": np.zeros(5)},
        r"label must have shape \(6,\), one entry per window, but has shape \(5,\)",
    ),
    "label twice": ({"X": X, "y": np.zeros(6), "label": np.zeros(6)}, "but the file has both"),
    "subject length": ({"X": X, "subject": np.zeros(7)}, "subject must have shape"),
    "fs two": ({"X": X, "fs": [1, 2]}, "fs must be one positive number"),
    "part shapes": ({"X_train": X, "X_test": X[:, :1]}, "X_train and X_test must have rows of the same shape"),
    "part length": (
        {"X_train": X, "X_test": X, "y_test": np.zeros(5)},
        r"label must have shape \(12,\), one entry per window, but has shape \(11,\)",
    ),
    "position": ({"X_train": X, "X_test": X, "exp_pos_test": np.zeros((6, 3))}, r"exp_pos must have shape \(N, 2\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_arrays_that_do_not_fit_are_named(case, tmp_path):
    arrays, message = WRONG[case]
    with pytest.raises(DataError, match=message) as caught:
        open_windows(save(tmp_path / "a.npz", **arrays))
    assert "a.npz" in str(caught.value)


def npy(header, content=b""):
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2, 3), }\n"
BAD_NPY = {
    "empty": b"",
    "no data": npy(HEADER),
    "cut data": npy(HEADER, bytes(47)),
    "huge": npy(HEADER.replace("(2,", "(999999999999,"), bytes(48)),
    "pickle": npy(HEADER.replace("<f4", "|O"), bytes(48)),
    "not a header": npy("__import__('os')", bytes(48)),
    "version": b"\x93NUMPY\x07\x00" + bytes(60),
}


@pytest.mark.parametrize("case", BAD_NPY)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_headers_are_refused_before_memory_is_taken(case, packed, tmp_path, monkeypatch):
    monkeypatch.setattr(np, "frombuffer", lambda *_, **__: pytest.fail("memory was taken"))
    path = tmp_path / ("a.npz" if packed else "a.npy")
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("X.npy", BAD_NPY[case])
    else:
        path.write_bytes(BAD_NPY[case])
    with pytest.raises(DataError, match=r"^a.np[yz]"):
        open_windows(path)


def test_other_files_are_refused_by_name(tmp_path):
    with pytest.raises(PolyadicError, match=r"path must end in .npz, .npy or .mat, but is a.csv"):
        open_windows(tmp_path / "a.csv")
    with pytest.raises(DataError, match="does not exist"):
        open_windows(tmp_path / "a.npz")
    with pytest.raises(DataError, match="does not exist"):
        read_csv(tmp_path / "a.csv", fs=1)


def table(path, rows, header=("x", "y"), delimiter=",", end="\n"):
    lines = [delimiter.join(header), *(delimiter.join(map(str, row)) for row in rows)]
    path.write_bytes((end.join(lines) + end).encode())
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_table_is_a_recording_with_every_sample(delimiter, end, tmp_path):
    numbers = values((40, 2))
    path = table(tmp_path / "walk.csv", numbers.tolist(), delimiter=delimiter, end=end)
    recording = read_csv(path, fs=25)
    assert isinstance(recording, Recording)
    assert recording.signal.dtype == np.float32
    assert np.array_equal(recording.signal, numbers.T)
    assert (recording.name, recording.subject, recording.fs) == ("walk", "walk", 25.0)
    assert recording.channels == ("x", "y")
    assert recording.units == ("", "")


@pytest.mark.parametrize("header", ["time", "T", " Time "])
@pytest.mark.parametrize("fs", [1, 100, 499.5])
def test_times_give_the_rate(header, fs, tmp_path):
    rows = [[5 + at / fs, at] for at in range(300)]
    recording = read_csv(table(tmp_path / "a.csv", rows, (header, "x")))
    assert recording.fs == fs
    assert recording.channels == ("x",)
    assert np.array_equal(recording.signal[0], np.arange(300))


def test_times_that_are_rounded_coarsely_do_with_a_given_rate(tmp_path):
    path = table(tmp_path / "a.csv", [[round(at / 256, 3), at] for at in range(600)], ("t", "x"))
    with pytest.raises(DataError, match=r"a.csv, line \d+: times must be evenly spaced"):
        read_csv(path)
    assert read_csv(path, fs=256).fs == 256


def test_empty_cells_and_nan_are_missing_values(tmp_path):
    path = table(tmp_path / "a.csv", [[1, ""], ["nan", 4], ["NaN", 6]])
    assert np.array_equal(read_csv(path, fs=1).signal, [[1, np.nan, np.nan], [np.nan, 4, 6]], equal_nan=True)


def test_a_short_row_and_a_blank_row_are_missing_values(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3\n\n4,5\n")
    expected = [[1, 3, np.nan, 4], [2, np.nan, np.nan, 5]]
    assert np.array_equal(read_csv(tmp_path / "a.csv", fs=1).signal, expected, equal_nan=True)


def test_a_single_string_of_units_is_the_unit_of_every_channel(tmp_path):
    windows = open_windows(save(tmp_path / "a.npz", X=X, units="uV", channels=["x", "y"]))
    assert windows.units == ("uV", "uV")


BAD_CSV = {
    "empty": (b"", "line 1: the first row must name"),
    "names only": (b"x,y\n", "at least one sample"),
    "no names": (b"1,2\n3,4\n", "but holds numbers"),
    "empty name": (b"x,\n1,2\n", "an empty name"),
    "same names": (b"x,x\n1,2\n", "channel names must differ"),
    "long row": (b"x,y\n1,2,3\n", "cannot be read as a table"),
    "word": (b"x,y\n1,2\n3,four\n", "line 3: cells must be numbers, but there is 'four'"),
    "infinite": (b"x,y\n1,2\n3,inf\n", "sample 1 must be a number that fits float32"),
    "decimal commas and points": (b"x;y\n1,5;2.5\n", "line 2: .* there is '1,5'; numbers must have decimal points"),
    "decimal commas, commas": (b"x,y\n1,5,2,5\n", "are decimal commas also the separators"),
    "open quote": (b'x,y\n1,"2\n', "cannot be read as a table"),
    "times even": (b"t,x\n0,1\n1,2\n2,3\n4,3\n", "line 5: times must be evenly spaced by 1 s"),
    "times gap": (b"t,x\n" + b"".join(b"%d,1\n" % (at + (at > 300)) for at in range(900)), "line 303: .* is 2 s"),
    "times back": (b"t,x\n2,1\n1,2\n", "times must increase"),
    "times missing": (b"t,x\n1,1\n,2\n", "none missing"),
    "time alone": (b"t,x\n1,1\n", "two or more times"),
    "time only": (b"t\n1\n2\n", "signals must be float32 of shape"),
}


@pytest.mark.parametrize("case", BAD_CSV)
def test_tables_that_are_damaged_are_refused_by_line(case, tmp_path):
    content, message = BAD_CSV[case]
    (tmp_path / "a.csv").write_bytes(content)
    timed = content.startswith(b"t")
    with pytest.raises(DataError, match=message):
        read_csv(tmp_path / "a.csv", fs=None if timed else 10)


def test_a_sampling_rate_must_be_in_the_file_or_given(tmp_path):
    path = table(tmp_path / "a.csv", [[1, 2]])
    with pytest.raises(PolyadicError, match=r"a.csv does not give its sampling rate: add a first column named time"):
        read_csv(path)
    for fs in (0, -1, np.nan, np.inf):
        with pytest.raises(PolyadicError, match="fs must be a positive number"):
            read_csv(path, fs=fs)
