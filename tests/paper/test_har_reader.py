"""The published layout of HAR is read from a folder, a zip file and a zip file within one, or refused by line."""

from __future__ import annotations

import io
import zipfile
from collections import Counter

import numpy as np
import pytest
from polyadic.data.readers.har import CHANNELS, read_har

from polyadic.data.readers import har
from polyadic.errors import DataError

NAMES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
LABELS = {"train": [5, 1, 6, 2, 4], "test": [3, 1, 2]}
SUBJECTS = {"train": [1, 1, 3, 30, 7], "test": [2, 2, 9]}
FOLDER = "UCI HAR Dataset"


def dataset(seed=0):
    """Files by path, and the values they were written from: (windows, 9, 128) by part."""
    rng = np.random.default_rng(seed)
    files = {"activity_labels.txt": "".join(f"{n} {name}\n" for n, name in enumerate(NAMES, 1)), "README.txt": "x"}
    values = {}
    for part, labels in LABELS.items():
        values[part] = rng.normal(size=(len(labels), 9, 128))
        files[f"{part}/y_{part}.txt"] = "".join(f"{label}\n" for label in labels)
        files[f"{part}/subject_{part}.txt"] = "".join(f"{subject}\n" for subject in SUBJECTS[part])
        for number, channel in enumerate(CHANNELS):
            rows = ("  " + " ".join(f"{value: .7e}" for value in row) + "\n" for row in values[part][:, number])
            files[f"{part}/Inertial Signals/{channel}_{part}.txt"] = "".join(rows)
    return files, values


def in_folder(files, root):
    for name, text in files.items():
        path = root / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def in_zip(files, path, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"__MACOSX/{FOLDER}/._activity_labels.txt", b"\x00\x05\x16\x07")
        archive.writestr(f"__MACOSX/{FOLDER}/activity_labels.txt", b"not this one")
        archive.writestr(f"{FOLDER}/train/._y_train.txt", b"\x00")
        for name, text in files.items():
            archive.writestr(f"{FOLDER}/{name}", text)
    return path


def nested(files, path):
    inner = io.BytesIO()
    in_zip(files, inner)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("UCI HAR Dataset.names", b"text")
        archive.writestr("UCI HAR Dataset.zip", inner.getvalue())
    return path


FORMS = {
    "parent": lambda files, folder: in_folder(files, folder),
    "folder": lambda files, folder: in_folder(files, folder) / FOLDER,
    "zip": lambda files, folder: in_zip(files, folder / "har.zip"),
    "nested": lambda files, folder: nested(files, folder / "outer.zip"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_sample_label_and_subject_is_that_of_the_files(form, tmp_path):
    files, values = dataset()
    windows = read_har(FORMS[form](files, tmp_path))
    expected = np.concatenate([values["train"], values["test"]])
    texts = np.vectorize(lambda value: float(f"{value:.7e}"))(expected)
    assert windows.X.dtype == np.float32
    assert np.array_equal(windows.X, texts.astype(np.float32))
    assert windows.label.dtype == np.int32
    assert windows.label.tolist() == [label - 1 for label in LABELS["train"] + LABELS["test"]]
    assert windows.subject.tolist() == [str(who) for who in SUBJECTS["train"] + SUBJECTS["test"]]
    assert windows.part.tolist() == ["train"] * 5 + ["test"] * 3
    assert windows.classes == NAMES
    assert windows.fs == 50
    assert windows.channels[:4] == ("body_acc_x", "body_acc_y", "body_acc_z", "body_gyro_x")
    assert windows.channels[6:] == ("total_acc_x", "total_acc_y", "total_acc_z")
    assert windows.units == ("g",) * 3 + ("rad/s",) * 3 + ("g",) * 3


def test_nothing_is_written_next_to_a_zip_file(tmp_path):
    read_har(nested(dataset()[0], tmp_path / "outer.zip"))
    assert [path.name for path in tmp_path.iterdir()] == ["outer.zip"]


def test_windows_line_ends_and_a_missing_last_line_end_are_read_correctly(tmp_path):
    files, _ = dataset()
    other = {name: text.replace("\n", "\r\n").removesuffix("\r\n") for name, text in files.items()}
    first, second = in_folder(files, tmp_path / "a"), in_folder(other, tmp_path / "b")
    assert np.array_equal(read_har(first).X, read_har(second).X)


GYRO = "test/Inertial Signals/body_gyro_y_test.txt"


def with_word(text, line, word, new):
    rows = [row.split() for row in text.splitlines()]
    rows[line - 1][word] = new
    return "\n".join(map(" ".join, rows)) + "\n"


def without_last_word(text, line):
    rows = text.splitlines()
    rows[line - 1] = rows[line - 1].rsplit(" ", 1)[0]
    return "\n".join(rows) + "\n"


DAMAGE = {
    "short row": (GYRO, lambda text: without_last_word(text, 2), r"body_gyro_y_test.txt, line 2: .* has 127"),
    "long row": (GYRO, lambda text: with_word(text, 3, 5, "1 2"), r"body_gyro_y_test.txt, line 3: .* has 129"),
    "endless row": (GYRO, lambda text: with_word(text, 3, 5, "1 " * 9999), r"body_gyro_y_test.txt, line 3"),
    "nan": (GYRO, lambda text: with_word(text, 2, 7, "NaN"), r"body_gyro_y_test.txt, line 2: .* finite"),
    "inf": (GYRO, lambda text: with_word(text, 1, 7, "-inf"), r"body_gyro_y_test.txt, line 1: .* finite"),
    "too large": (GYRO, lambda text: with_word(text, 3, 0, "1e39"), r"body_gyro_y_test.txt, line 3: .* finite"),
    "far too large": (GYRO, lambda text: with_word(text, 3, 0, "1e999"), r"body_gyro_y_test.txt, line 3: .* finite"),
    "text": (GYRO, lambda text: with_word(text, 2, 7, "abc"), r"body_gyro_y_test.txt, line 2"),
    "sign alone": (GYRO, lambda text: with_word(text, 2, 7, "-"), r"body_gyro_y_test.txt, line 2"),
    "underscore": (GYRO, lambda text: with_word(text, 2, 7, "1_0"), r"body_gyro_y_test.txt, line 2"),
    "bytes": (GYRO, lambda text: with_word(text, 2, 7, "é"), r"body_gyro_y_test.txt, line 2"),
    "blank line": (GYRO, lambda text: text.replace("\n", "\n\n", 1), r"body_gyro_y_test.txt must have 3 lines"),
    "line missing": (GYRO, lambda text: text.split("\n", 1)[1], r"body_gyro_y_test.txt must have 3 lines.* has 2"),
    "empty": (GYRO, lambda _: "", r"body_gyro_y_test.txt must have 3 lines.* has 0"),
    "file missing": (GYRO, lambda _: None, r"body_gyro_y_test.txt is missing"),
    "label 0": ("test/y_test.txt", lambda _: "3\n0\n2\n", r"y_test.txt, line 2: .* 1 … 6"),
    "label 7": ("test/y_test.txt", lambda _: "3\n1\n7\n", r"y_test.txt, line 3: .* 1 … 6"),
    "label 1.5": ("test/y_test.txt", lambda _: "1.5\n1\n6\n", r"y_test.txt, line 1"),
    "label blank": ("test/y_test.txt", lambda _: "1\n\n6\n", r"y_test.txt, line 2"),
    "label more": ("test/y_test.txt", lambda text: text + "1\n", r"subject_test.txt must have 4 lines, but has 3"),
    "no labels": ("train/y_train.txt", lambda _: "\n", r"y_train.txt must have one line per window"),
    "subject 0": ("train/subject_train.txt", lambda text: "0" + text[1:], r"subject_train.txt, line 1"),
    "subject name": ("train/subject_train.txt", lambda text: text.replace("30", "S3"), r"subject_train.txt, line 4"),
    "subject huge": ("train/subject_train.txt", lambda text: "9" * 30 + text, r"subject_train.txt, line 1"),
    "subjects missing": ("train/subject_train.txt", lambda _: None, r"subject_train.txt is missing"),
    "classes missing": ("activity_labels.txt", lambda _: None, r"must contain activity_labels.txt"),
    "class order": ("activity_labels.txt", lambda text: text.replace("2 ", "3 "), r"activity_labels.txt, line 2"),
    "five classes": ("activity_labels.txt", lambda text: text.rsplit("6", 1)[0], r"6 different activities"),
    "class twice": ("activity_labels.txt", lambda text: text.replace("LAYING", "SITTING"), r"6 different activities"),
    "class bytes": ("activity_labels.txt", lambda _: b"1 \xff\xfe\n", r"activity_labels.txt, line 1"),
}


@pytest.mark.parametrize("form", ["folder", "zip"])
@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_files_are_named_with_the_line(case, form, tmp_path):
    name, change, message = DAMAGE[case]
    files, _ = dataset()
    files[name] = change(files[name])
    files = {name: text for name, text in files.items() if text is not None}
    with pytest.raises(DataError, match=message):
        # The parent of the folder: without a legend the folder itself cannot be told.
        read_har(FORMS[form.replace("folder", "parent")](files, tmp_path))


def test_paths_without_the_dataset_are_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_har(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"must contain activity_labels.txt"):
        read_har(tmp_path)
    (tmp_path / "text.zip").write_bytes(b"no zip file")
    with pytest.raises(DataError, match=r"text.zip cannot be read as a zip file"):
        read_har(tmp_path / "text.zip")


def test_a_zip_file_within_one_within_one_is_not_followed(tmp_path):
    inner = nested(dataset()[0], tmp_path / "inner.zip")
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.write(inner, "UCI HAR Dataset.zip")
    with pytest.raises(DataError, match=r"must contain activity_labels.txt"):
        read_har(tmp_path / "outer.zip")


@pytest.mark.parametrize("form", ["folder", "zip", "nested"])
def test_files_that_claim_too_much_are_refused_before_they_are_read(form, tmp_path, monkeypatch):
    path = FORMS[form](dataset()[0], tmp_path)
    monkeypatch.setattr(har, "_LARGEST", 3000)
    monkeypatch.setattr(zipfile.ZipExtFile, "read", read_no_more_than(3000, zipfile.ZipExtFile.read))
    with pytest.raises(DataError, match="must have at most 3000 bytes, but claims"):
        read_har(path)


def read_no_more_than(most, real):
    def read(self, n=-1):
        content = real(self, n)
        assert len(content) <= most
        return content

    return read


def test_a_claim_of_gigabytes_is_refused(tmp_path):
    path = in_zip({**dataset()[0], GYRO: "1"}, tmp_path / "har.zip", zipfile.ZIP_STORED)
    content = bytearray(path.read_bytes())
    entry = content.rindex(GYRO.encode()) - len(FOLDER) - 1 - 46
    content[entry + 24 : entry + 28] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(DataError, match="claims 4294967294"):
        read_har(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_flipped_bytes_of_a_zip_file_never_give_other_values(compression, tmp_path, monkeypatch):
    monkeypatch.setattr(har, "LENGTH", 8)
    files, _ = dataset()
    files = {
        name: "".join(" ".join(row.split()[:8]) + "\n" for row in text.splitlines()) if "Inertial" in name else text
        for name, text in files.items()
    }
    path = in_zip(files, tmp_path / "har.zip", compression)
    right, content = read_har(path), path.read_bytes()
    rng = np.random.default_rng(1)
    outcomes = Counter()
    for at, bit in zip(rng.integers(len(content), size=500), rng.integers(1, 256, size=500), strict=True):
        damaged = bytearray(content)
        damaged[at] ^= int(bit)
        path.write_bytes(damaged)
        try:
            windows = read_har(path)
        except DataError:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
            assert np.array_equal(windows.X, right.X)
            assert np.array_equal(windows.label, right.label)
            assert windows.classes == right.classes
    assert outcomes["refused"] > 300
    assert sum(outcomes.values()) == 500
