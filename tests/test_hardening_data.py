"""Difficult input: names that collide, gaps, folders of all kinds, FIFOs, small resource limits."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import pandas as pd
import pytest
from command_line import python
from problems import paper
from typer.testing import CliRunner

from paper.baselines import STL, UMLDA
from polyadic import SALS, load
from polyadic.cli import app
from polyadic.cli.info import describe
from polyadic.data import Windows, WindowStore, folder, read_recording, synthetic
from polyadic.data.channels import match_signals
from polyadic.data.readers.arrays import open_windows
from polyadic.data.store import write_windows
from polyadic.errors import DataError, PolyadicError
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.spectral import STFT

FS = 20.0
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits and FIFOs as Linux has them")


def table(path: Path, seed: int = 0, rows: int = 120, channels: str = "abc") -> Path:
    """A CSV recording of 20 Hz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).normal(size=(rows, len(channels)))
    lines = [",".join(["time", *channels])]
    lines += [",".join([f"{row / FS:.3f}", *(f"{value:.5f}" for value in each)]) for row, each in enumerate(values)]
    path.write_text("\n".join(lines) + "\n")
    return path


def command(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


# ------------------------------------------------------------------------------------------------ A3: times after a gap


def with_gap(path: Path, gap: float = 3600.0, records: int = 8) -> Path:
    """An EDF+D file of one-second records, the later half of which begins `gap` seconds late."""
    rng = np.random.default_rng(0)
    signals = [
        edfio.EdfSignal(rng.normal(size=int(FS) * records), sampling_frequency=FS, label=name, physical_range=(-9, 9))
        for name in ("C3", "C4")
    ]
    notes = [edfio.EdfAnnotation(0, None, "recording starts, a text that leaves room for onsets")]
    edfio.Edf(signals, annotations=notes, data_record_duration=1).write(path)
    raw = bytearray(path.read_bytes())
    count = int(raw[252:256])
    at = 256 + count * 216
    sizes = [2 * int(raw[at + 8 * number : at + 8 * number + 8]) for number in range(count)]
    raw[196:197] = b"D"
    for record in range(records):
        onset = record + (gap if record >= records // 2 else 0)
        first = 256 * (count + 1) + record * sum(sizes) + sum(sizes[:-1])
        raw[first : first + sizes[-1]] = f"+{onset:g}\x14\x14".encode().ljust(sizes[-1], b"\0")
    path.write_bytes(raw)
    return path


def test_tables_of_features_and_labels_have_the_times_of_the_recording(tmp_path: Path) -> None:
    with_gap(tmp_path / "night.edf")
    windows = folder(tmp_path / "night.edf", tmp_path / "s", seconds=2).windows
    model = paper(SALS, 2, max_sweeps=1, device="cpu").fit(windows)
    WindowClassifier(model).fit(windows, np.array(["x", "y", "x", "y"])).save(tmp_path / "m.safetensors")
    for name in ("transform", "predict"):
        out = tmp_path / f"{name}.csv"
        command(name, tmp_path / "m.safetensors", tmp_path / "night.edf", "-o", out, "--quiet")
        with out.open(newline="") as file:
            assert [float(row["start"]) for row in csv.DictReader(file)] == [0, 2, 3604, 3606]


# -------------------------------------------------------------------------------------------------- A5: unknown labels


NAMES = ["a", "b"] * 10
UNKNOWN: dict[str, Callable[[], Any]] = {
    "bytes": lambda: np.array([*NAMES, "", ""], "S"),
    "objects": lambda: np.array([*NAMES, "", None], object),
    "NaN among texts": lambda: np.array([*NAMES, float("nan"), None], object),
    "NaN as text": lambda: np.array([*NAMES, "", float("nan")], object).astype(str),
    "series of strings": lambda: pd.Series([*NAMES, "", pd.NA], dtype="string"),
    "categories": lambda: pd.Series(pd.Categorical([*NAMES, None, None])),
    "floats": lambda: np.array([0.0, 1.0] * 10 + [np.nan, -1.0]),
    "nullable integers": lambda: pd.Series([0, 1] * 10 + [pd.NA, -1], dtype="Int64"),
    "masked": lambda: np.ma.array([0, 1] * 10 + [5, 7], mask=[False] * 20 + [True] * 2),
    "integers as objects": lambda: np.array([0, 1] * 10 + [None, float("nan")], object),
}
SOME = ("objects", "floats")
SIGNALS = synthetic(22, 3, 32)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_windows_without_a_label_are_not_a_class_whatever_marks_them(kind: str) -> None:
    windows = Windows(SIGNALS.X, label=UNKNOWN[kind]())
    assert windows.label.tolist() == [0, 1] * 10 + [-1, -1]
    assert len(windows.classes) == 2


@pytest.mark.parametrize("kind", SOME)
def test_a_classifier_learns_no_class_from_windows_without_a_label(kind: str) -> None:
    features = paper(SALS, 2, max_sweeps=1, device="cpu").fit(SIGNALS.X)
    reference = WindowClassifier(features).fit(SIGNALS.X[:20], np.array([0, 1] * 10))
    model = WindowClassifier(features).fit(SIGNALS.X, UNKNOWN[kind]())
    assert len(model.classes_) == 2
    np.testing.assert_array_equal(model.predict_proba(SIGNALS.X), reference.predict_proba(SIGNALS.X))


@pytest.mark.parametrize("baseline", [UMLDA(1, max_iter=2), STL(max_iter=500)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_supervised_baselines_learn_no_class_from_windows_without_a_label(baseline: Any) -> None:
    from sklearn.base import clone

    X = SIGNALS.X[:, :, :8]
    model = clone(baseline).set_params(device="cpu").fit(X, UNKNOWN["objects"]())
    reference = clone(baseline).set_params(device="cpu").fit(X[:20], np.array([0, 1] * 10))
    assert len(model.classes_) == 2
    np.testing.assert_array_equal(model.transform(X), reference.transform(X))


@pytest.mark.parametrize("kind", SOME)
def test_a_validated_probe_learns_no_class_from_rows_without_a_label(kind: str) -> None:
    Z = SIGNALS.X.reshape(22, -1)[:, :5].astype(float)
    reference = Probe().fit(Z[:20], np.array([0, 1] * 10))
    model = Probe().fit(Z, UNKNOWN[kind]())
    assert len(model.classes_) == 2
    np.testing.assert_array_equal(model.predict_proba(Z), reference.predict_proba(Z))


# ------------------------------------------------------------------------------------------- A6: channels and rates


NAMED = Windows(SIGNALS.X, FS, label=["x", "y"] * 11, channels=["Fz", "Cz", "Oz"], units=["uV", "mV", "V"])
ORDER = [2, 0, 1]


def reordered() -> Windows:
    names, units = np.array(NAMED.channels)[ORDER], np.array(NAMED.units)[ORDER]
    return Windows(
        NAMED.X[:, ORDER], FS, label=NAMED.label, classes=NAMED.classes, channels=names.tolist(), units=units.tolist()
    )


@pytest.fixture(scope="module")
def named_model() -> SALS:
    return paper(SALS, 3, tensorize=STFT(16, 8), max_sweeps=2, device="cpu").fit(NAMED)


@pytest.mark.parametrize("kind", ["windows", "store"])
def test_channels_in_another_order_are_matched_by_name(named_model: SALS, kind: str, tmp_path: Path) -> None:
    given: Any = reordered()
    expected = named_model.transform(NAMED)
    if kind == "store":
        given = write_windows(given, tmp_path / "s")
    np.testing.assert_array_equal(named_model.transform(given), expected)
    assert named_model.score(given) == pytest.approx(named_model.score(given))


def test_channels_that_the_model_was_fitted_to_are_missing_by_name() -> None:
    renamed = Windows(NAMED.X, FS, channels=["Fz", "CZ", "Pz"])
    with pytest.warns(UserWarning, match=r"lacks 'Cz', 'Oz'.*missing in all windows.*did you mean 'CZ'"):
        matched = match_signals(renamed, FS, ["Cz", "Fz", "Oz"])
    assert np.isnan(matched.X).all(axis=(0, 2)).tolist() == [True, False, True]
    np.testing.assert_array_equal(matched.X[:, 1], NAMED.X[:, 0])
    with pytest.raises(PolyadicError, match="lacks 'C3', 'C4', which the model was fitted to; it has Fz, CZ, Pz"):
        match_signals(renamed, FS, ["C3", "C4"])


def test_other_rates_are_refused(named_model: SALS) -> None:
    with pytest.raises(PolyadicError, match=r"at 25 Hz.*fitted to 20 Hz"):
        named_model.transform(Windows(NAMED.X, 25, channels=NAMED.channels))
    with pytest.raises(PolyadicError, match=r"at 25 Hz.*fitted to 20 Hz"):
        named_model.score(Windows(NAMED.X, 25))


# ------------------------------------------------------------------------------------- A7: which files a folder has


def test_hidden_files_and_folders_are_left_out_and_named(tmp_path: Path) -> None:
    table(tmp_path / "in" / "S01" / "a.csv")
    for hidden in (".Trash-1000/files/b.csv", "S01/.ipynb_checkpoints/a-checkpoint.csv", "S01/._a.csv"):
        table(tmp_path / "in" / hidden)
    store = folder(tmp_path / "in", tmp_path / "s", seconds=1)
    assert [entry["name"] for entry in store.recordings] == ["S01/a"]
    assert {entry["name"]: entry["reason"] for entry in store.skipped} == {
        ".Trash-1000": "hidden folder",
        "S01/.ipynb_checkpoints": "hidden folder",
        "S01/._a.csv": "hidden file",
    }
    said = command("prepare", "folder", tmp_path / "in", tmp_path / "t", "--seconds", 1)
    assert "left out hidden folder: .Trash-1000, S01/.ipynb_checkpoints hidden file: S01/._a.csv" in " ".join(
        said.split()
    )
    facts = json.loads(command("info", tmp_path / "in", "--json"))
    assert (facts["recordings"], sum(map(len, facts["left_out"].values()))) == (1, 3)


def test_folders_behind_links_are_read_once(tmp_path: Path) -> None:
    table(tmp_path / "elsewhere" / "S02" / "b.csv", 2)
    table(tmp_path / "in" / "S01" / "a.csv", 1)
    (tmp_path / "in" / "S02").symlink_to(tmp_path / "elsewhere" / "S02")
    (tmp_path / "in" / "S01" / "up").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "S09").symlink_to(tmp_path / "in" / "S01")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=1)
    assert [entry["name"] for entry in store.recordings] == ["S01/a", "S02/b"]
    assert {entry["name"] for entry in store.skipped} == {"S01/up", "S09"}
    assert all("already read" in entry["reason"] for entry in store.skipped)


@pytest.mark.parametrize(("kind", "reason"), [("link", "does not exist"), ("pipe", "is not a regular file")])
def test_files_that_only_look_like_recordings_are_errors_or_skipped_by_name(
    tmp_path: Path, kind: str, reason: str
) -> None:
    table(tmp_path / "in" / "S01" / "a.csv")
    bad = tmp_path / "in" / "S01" / "b.csv"
    if kind == "link":
        bad.symlink_to("nowhere.csv")
    else:
        os.mkfifo(bad)
    with pytest.raises(DataError, match=f"b.csv {reason}"):
        folder(tmp_path / "in", tmp_path / "s", seconds=1)
    store = folder(tmp_path / "in", tmp_path / "t", seconds=1, on_error="skip")
    assert [entry["name"] for entry in store.skipped] == ["S01/b"]


# ------------------------------------------------------------------------------------------------------- A8: subjects


@pytest.mark.parametrize(
    ("paths", "subjects", "source"),
    [
        (["ses-1/sub-01_task-rest_eeg.csv", "ses-2/sub-01_task-rest_eeg.csv"], 1, "sub- names in paths"),
        (["S01/a.csv", "S02/a.csv"], 2, "folder names"),
        (["a.csv", "b.csv", "c.csv"], 3, "file names"),
        (["sub-01/a.csv", "sub-01/b.csv", "S02/a.csv"], 2, "sub- names in paths and folder names"),
    ],
)
def test_subjects_are_found_and_reported_with_their_origin(
    tmp_path: Path, paths: list[str], subjects: int, source: str
) -> None:
    for seed, path in enumerate(paths):
        table(tmp_path / "in" / path, seed)
    said = command("prepare", "folder", tmp_path / "in", tmp_path / "s", "--seconds", 1)
    assert f"subjects {subjects} subjects from {source} " in " ".join(said.split())
    assert WindowStore(tmp_path / "s").windows.index.n_subjects == subjects
    facts = json.loads(command("info", tmp_path / "s", "--json"))
    assert facts["subjects"] == subjects
    assert facts["subjects_from"] == source
    facts = json.loads(command("info", tmp_path / "in", "--json"))
    assert (facts["subjects"], facts["subjects_from"]) == (subjects, source)


# ------------------------------------------------------------------------------------------------ A13: masked arrays


def test_masked_values_of_windows_are_missing() -> None:
    X = np.ma.array(np.arange(24).reshape(2, 3, 4), mask=np.zeros((2, 3, 4), bool))
    assert Windows(X).X.dtype == np.float64
    X[1, 2, 3] = np.ma.masked
    assert np.argwhere(np.isnan(Windows(X).X)).tolist() == [[1, 2, 3]]


# --------------------------------------------------------------------------------------- B2: inputs that are no files


FIFOS = {
    "m.safetensors": lambda: load("m.safetensors"),
    **{name: partial(read_recording, name) for name in ("a.edf", "a.hea", "a.csv")},
    "a.npz": partial(open_windows, "a.npz"),
    "c": lambda: SALS(2, tensorize=None, max_sweeps=1).fit(np.eye(9), checkpoint="c"),
    "a.json": lambda: describe(Path("a.json"), {}),
}


@LINUX
@pytest.mark.parametrize("name", FIFOS)
def test_a_fifo_is_refused_at_once_wherever_a_file_is_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / name)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(20)  # ends a hang
    with pytest.raises(PolyadicError, match=r"regular file|named pipe|a writable folder"):
        FIFOS[name]()
    signal.alarm(0)


# --------------------------------------------------------------------------------------------- B8: memory for arrays


def deflated(path: Path, size: int) -> Path:
    """An archive of `size` bytes of zeros in X."""
    head = np.lib.format.header_data_from_array_1_0(np.zeros(1, np.float32)) | {"shape": (size // 4096, 4, 256)}
    packed = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packed as archive, archive.open("X.npy", "w", force_zip64=True) as x:
        np.lib.format.write_array_header_1_0(x, head)
        for _ in range(size // 2**20):
            x.write(bytes(2**20))
    return path


def test_an_archive_that_inflates_a_thousandfold_is_refused_by_its_declared_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyadic.data.readers.common._HARMLESS_BYTES", 2**20)
    path = deflated(tmp_path / "w.npz", 8 * 2**20)
    with pytest.raises(DataError, match=r"w\.npz: X would take 8 MB.*np\.savez"):
        open_windows(path)


PEAK = """
import sys, threading, time
from pathlib import Path
from polyadic.cli import app
from typer.testing import CliRunner
import numpy, torch, polyadic.data.store, polyadic.data.readers.arrays
def anonymous():  # without mapped files, which the system can reclaim
    return int([line for line in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in line][0].split()[1])
before, seen, going = anonymous(), [0], [True]
def watch():
    while going:
        seen.append(anonymous())
        time.sleep(0.001)
threading.Thread(target=watch).start()
done = CliRunner().invoke(app, ["prepare", "arrays", sys.argv[1], "out.store", "--fs", "100", "--quiet"])
going.clear()
assert done.exit_code == 0, done.output
print((max(seen) - before) * 1024)
"""


@LINUX
def test_preparing_a_file_of_arrays_takes_a_fraction_of_its_size(tmp_path: Path) -> None:
    X = np.random.default_rng(0).integers(-99, 99, (3600, 4, 4096), np.int16)
    np.savez(tmp_path / "w.npz", X=X)
    assert int(python(PEAK, "w.npz", cwd=tmp_path).stdout) < 0.7 * X.nbytes
    store = WindowStore(tmp_path / "out.store")
    np.testing.assert_array_equal(store.read(np.arange(100)), X[:100])
