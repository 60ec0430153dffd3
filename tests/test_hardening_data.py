"""Difficult input: names that collide, gaps, folders of all kinds, FIFOs, small resource limits."""

from __future__ import annotations

import csv
import json
import os
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import pandas as pd
import pytest
import torch
from command_line import python
from problems import paper
from typer.testing import CliRunner

from paper.baselines import STL, UMLDA, ReferenceCNN
from polyadic import ATD, SALS, load
from polyadic.augment import Jitter
from polyadic.baselines import HandFeatures
from polyadic.cli import app
from polyadic.cli.info import describe
from polyadic.data import Header, Recording, StoreWriter, Windows, WindowStore, folder, synthetic
from polyadic.data.prepare import write_windows
from polyadic.data.readers.arrays import open_windows, read_arrays
from polyadic.data.readers.edf import read_edf
from polyadic.data.readers.tables import read_csv
from polyadic.data.readers.wfdb import read_wfdb
from polyadic.data.samples import Samples
from polyadic.errors import DataError, MissingExtraError, ModelFileError, PolyadicError
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


def refused(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code not in (0, 130), done.output
    return done.output + str(done.exception or "")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


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


def test_windows_after_a_gap_start_when_they_were_recorded(tmp_path: Path) -> None:
    with_gap(tmp_path / "night.edf")
    store = folder(tmp_path / "night.edf", tmp_path / "s", seconds=2)
    assert (store.windows.start / FS).tolist() == [0, 2, 3604, 3606]


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
    "empty texts": lambda: [*NAMES, "", ""],
    "bytes": lambda: np.array([*NAMES, "", ""], "S"),
    "objects": lambda: np.array([*NAMES, "", None], object),
    "NaN among texts": lambda: np.array([*NAMES, float("nan"), None], object),
    "series of objects": lambda: pd.Series([*NAMES, "", None], dtype=object),
    "series of strings": lambda: pd.Series([*NAMES, "", pd.NA], dtype="string"),
    "series of str": lambda: pd.Series([*NAMES, "", None], dtype="str"),
    "categories": lambda: pd.Series(pd.Categorical([*NAMES, None, None])),
    "floats": lambda: np.array([0.0, 1.0] * 10 + [np.nan, -1.0]),
    "integers": lambda: [0, 1] * 10 + [-1, -1],
    "nullable integers": lambda: pd.Series([0, 1] * 10 + [pd.NA, -1], dtype="Int64"),
    "masked": lambda: np.ma.array([0, 1] * 10 + [5, 7], mask=[False] * 20 + [True] * 2),
    "integers as objects": lambda: np.array([0, 1] * 10 + [None, float("nan")], object),
}
SIGNALS = synthetic(22, 3, 32)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_windows_without_a_label_are_not_a_class_whatever_marks_them(kind: str) -> None:
    windows = Windows(SIGNALS.X, label=UNKNOWN[kind]())
    assert windows.label.tolist() == [0, 1] * 10 + [-1, -1]
    assert len(windows.classes) == 2


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_classifier_learns_no_class_from_windows_without_a_label(kind: str) -> None:
    features = paper(SALS, 2, max_sweeps=1, device="cpu").fit(SIGNALS.X)
    reference = WindowClassifier(features).fit(SIGNALS.X[:20], np.array([0, 1] * 10))
    model = WindowClassifier(features).fit(SIGNALS.X, UNKNOWN[kind]())
    assert len(model.classes_) == 2
    np.testing.assert_array_equal(model.predict_proba(SIGNALS.X), reference.predict_proba(SIGNALS.X))


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("baseline", [UMLDA(1, max_iter=2), STL(max_iter=500), ReferenceCNN(max_epochs=1)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_supervised_baselines_learn_no_class_from_windows_without_a_label(kind: str, baseline: Any) -> None:
    from sklearn.base import clone

    X = SIGNALS.X[:, :, :8]
    model = clone(baseline).set_params(device="cpu").fit(X, UNKNOWN[kind]())
    reference = clone(baseline).set_params(device="cpu").fit(X[:20], np.array([0, 1] * 10))
    assert len(model.classes_) == 2
    np.testing.assert_array_equal(model.transform(X), reference.transform(X))


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_validated_probe_learns_no_class_from_rows_without_a_label(kind: str) -> None:
    Z = SIGNALS.X.reshape(22, -1)[:, :5].astype(float)
    reference = Probe().fit(Z[:20], np.array([0, 1] * 10))
    model = Probe().fit(Z, UNKNOWN[kind]())
    assert len(model.classes_) == 2
    np.testing.assert_array_equal(model.predict_proba(Z), reference.predict_proba(Z))


def test_rows_of_an_unknown_subject_are_one_group_however_they_are_marked() -> None:
    rng = np.random.default_rng(0)
    Z, y = rng.normal(size=(120, 4)), np.arange(120) % 2
    one = Probe().fit(Z, y, groups=np.repeat(["a", "b", "", ""], 30))
    two = Probe().fit(Z, y, groups=np.repeat(np.array(["a", "b", None, float("nan")], object), 30))
    assert one.reason_ == two.reason_
    assert "3 subjects" in two.reason_


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_classifier_takes_labels_with_a_store(kind: str, tmp_path: Path) -> None:
    store = write_windows(Windows(SIGNALS.X, FS), tmp_path / "s")
    features = paper(SALS, 2, max_sweeps=1, device="cpu").fit(store)
    assert len(WindowClassifier(features).fit(store, UNKNOWN[kind]()).classes_) == 2


def test_labels_that_are_all_unknown_or_one_class_are_refused_with_the_rule(tmp_path: Path) -> None:
    features = paper(SALS, 2, max_sweeps=1, device="cpu").fit(SIGNALS.X)
    for y in (["a"] * 21 + [""], [-1, 1] * 11, [None] * 22):
        with pytest.raises(PolyadicError, match=r"at least two classes.*(''|\"\"), None, NaN or -1"):
            WindowClassifier(features).fit(SIGNALS.X, np.array(y, object))
        with pytest.raises(PolyadicError, match=r"at least two classes.*(''|\"\"), None, NaN or -1"):
            Probe().fit(SIGNALS.X[:, 0], np.array(y, object))


@pytest.mark.parametrize("label", [np.array([0.0, 1.0, np.nan, -1.0]), np.array(["x", "y", "", ""])])
def test_files_of_arrays_mark_unknown_labels_in_the_same_ways(tmp_path: Path, label: Any) -> None:
    np.savez(tmp_path / "w.npz", X=np.zeros((4, 1, 4)), y=label)
    assert read_arrays(tmp_path / "w.npz").label.tolist() == [0, 1, -1, -1]


def test_unknown_subjects_and_recordings_follow_the_same_rule() -> None:
    who = np.array(["s", None, float("nan"), "", -1, "-1", "t"], object)
    windows = Windows(np.zeros((7, 1, 4)), subject=who, recording=who)
    assert windows.subject.tolist() == windows.recording.tolist() == ["s", "", "", "", "", "", "t"]


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


@pytest.mark.parametrize("kind", ["windows", "store", "int16 store", "selection", "concatenated"])
def test_channels_in_another_order_are_matched_by_name(named_model: SALS, kind: str, tmp_path: Path) -> None:
    given: Any = reordered()
    expected = named_model.transform(NAMED)
    if kind == "store":
        given = write_windows(given, tmp_path / "s")
    if kind == "int16 store":
        signal = (1000 * given.X).astype(np.int16)
        header = Header(FS, given.channels, given.units, 32, "int16")
        scale, offset = np.array([1e-3, 2e-3, 3e-3]), np.array([0.1, 0.2, 0.3])
        with StoreWriter(tmp_path / "s", header) as writer:
            for number, window in enumerate(signal):
                one = Recording(f"r{number:02d}", "s", FS, given.channels, given.units, window, scale, offset)
                writer.add(one, np.array([0]), np.array([-1]))
        given = WindowStore(tmp_path / "s")
        back = np.argsort(ORDER)
        plain = Windows(given.windows.X[:, back], FS, channels=NAMED.channels)
        expected = named_model.transform(plain)
    if kind == "selection":
        given, expected = given[5:15], expected[5:15]
    if kind == "concatenated":
        given = Windows.concatenate([given[:10], given[10:]])
    np.testing.assert_array_equal(named_model.transform(given), expected)
    assert named_model.score(given) == pytest.approx(named_model.score(given))


def test_every_estimator_matches_channels_by_name(named_model: SALS, tmp_path: Path) -> None:
    model = WindowClassifier(named_model).fit(NAMED)
    np.testing.assert_array_equal(model.predict_proba(reordered()), model.predict_proba(NAMED))
    hand = HandFeatures(device="cpu").fit(NAMED)
    hand.save(tmp_path / "b.safetensors")
    for fitted in (hand, load(tmp_path / "b.safetensors")):
        np.testing.assert_array_equal(fitted.transform(reordered()), hand.transform(NAMED))
        with pytest.raises(PolyadicError, match=r"at 25 Hz.*fitted to 20 Hz"):
            fitted.transform(Windows(NAMED.X, 25, channels=NAMED.channels))
    named_model.save(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(load(tmp_path / "m.safetensors").transform(reordered()), named_model.transform(NAMED))


def test_other_channels_and_other_rates_are_refused(named_model: SALS) -> None:
    renamed = Windows(NAMED.X, FS, channels=["Fz", "CZ", "Pz"])
    with pytest.raises(PolyadicError, match=r"lacks 'Cz' and 'Oz'.*did you mean 'CZ'"):
        named_model.transform(renamed)
    with pytest.raises(PolyadicError, match=r"at 25 Hz.*fitted to 20 Hz"):
        named_model.transform(Windows(NAMED.X, 25, channels=NAMED.channels))
    with pytest.raises(PolyadicError, match=r"at 25 Hz.*fitted to 20 Hz"):
        named_model.score(Windows(NAMED.X, 25))
    with pytest.raises(PolyadicError, match="lacks"):
        WindowClassifier(named_model).fit(renamed, np.array(["x", "y"] * 11))


def test_nothing_is_checked_without_names_or_rates(named_model: SALS, tmp_path: Path) -> None:
    expected = named_model.transform(NAMED)
    unnamed = write_windows(Windows(NAMED.X, FS), tmp_path / "s")  # a store numbers channels that have no names
    for given in (NAMED.X, torch.from_numpy(NAMED.X), Windows(NAMED.X), Windows(NAMED.X, FS), unnamed):
        np.testing.assert_array_equal(np.asarray(named_model.transform(given)), expected)
    model = paper(SALS, 3, tensorize=STFT(16, 8), max_sweeps=2, device="cpu").fit(unnamed)
    np.testing.assert_array_equal(model.transform(reordered()), model.transform(reordered().X))


def test_the_command_line_matches_channels_by_name_and_refuses_others(named_model: SALS, tmp_path: Path) -> None:
    named_model.save(tmp_path / "m.safetensors")
    write_windows(reordered(), tmp_path / "s")
    command("transform", tmp_path / "m.safetensors", tmp_path / "s", "-o", tmp_path / "z.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), named_model.transform(NAMED))
    write_windows(Windows(NAMED.X, FS, channels=["Fz", "Cz", "Pz"]), tmp_path / "other")
    said = refused("transform", tmp_path / "m.safetensors", tmp_path / "other", "-o", tmp_path / "z2.npy")
    assert "lacks 'Oz'" in said
    assert not (tmp_path / "z2.npy").exists()
    write_windows(Windows(NAMED.X, 25, channels=NAMED.channels), tmp_path / "fast")
    assert "20 Hz" in refused("transform", tmp_path / "m.safetensors", tmp_path / "fast", "-o", tmp_path / "z2.npy")


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
    assert "left out 3 files or folders" in said
    assert ".Trash-1000, S01/.ipynb_checkpoints: hidden folder" in said
    facts = json.loads(command("info", tmp_path / "in", "--json"))
    assert (facts["recordings"], len(facts["left_out"])) == (1, 3)


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


@pytest.mark.parametrize("kind", ["dangling link", "fifo", "socket", "link to itself"])
def test_files_that_only_look_like_recordings_are_errors_or_skipped_by_name(tmp_path: Path, kind: str) -> None:
    table(tmp_path / "in" / "S01" / "a.csv")
    bad = tmp_path / "in" / "S01" / "b.csv"
    if kind == "dangling link":
        bad.symlink_to("nowhere.csv")
    elif kind == "fifo":
        os.mkfifo(bad)
    elif kind == "link to itself":
        bad.symlink_to(bad.name)
    else:
        import socket

        if len(str(bad)) > 100:
            pytest.skip("the folder's name is too long for a socket")
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(bad))
        server.close()
    reason = {"dangling link": "link to a file that does not exist", "fifo": "a named pipe", "socket": "a socket"}
    with pytest.raises(DataError, match=f"b.csv.*{reason.get(kind, 'link')}"):
        folder(tmp_path / "in", tmp_path / "s", seconds=1)
    store = folder(tmp_path / "in", tmp_path / "t", seconds=1, on_error="skip")
    assert [entry["name"] for entry in store.skipped] == ["S01/b"]


def test_a_folder_without_recordings_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "empty" / ".hidden").mkdir(parents=True)
    with pytest.raises(DataError, match=r"No recordings found in \S+empty \(looked for \.edf, \.bdf, \.hea, \.csv, "):
        folder(tmp_path / "empty", tmp_path / "s", seconds=1)


# ------------------------------------------------------------------------------------------------------- A8: subjects


@pytest.mark.parametrize(
    ("paths", "subjects", "source"),
    [
        (["sub-01/ses-1/eeg/x.csv", "sub-01/ses-2/eeg/x.csv", "sub-02/ses-1/eeg/x.csv"], 2, "sub- names in paths"),
        (["ses-1/sub-01_task-rest_eeg.csv", "ses-2/sub-01_task-rest_eeg.csv"], 1, "sub- names in paths"),
        (["sub-01_a.csv", "sub-02_a.csv"], 2, "sub- names in paths"),
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
    plural = "s" * (subjects != 1)
    assert f"{subjects} subject{plural} (from {source})" in said
    assert WindowStore(tmp_path / "s").windows.index.n_subjects == subjects
    facts = json.loads(command("info", tmp_path / "s", "--json"))
    assert facts["subjects"] == subjects
    assert facts["subjects_from"] == source
    out = tmp_path / "m.safetensors"
    words = ("fit", tmp_path / "in", "--seconds", 1, "--method", "SALS", "--rank", 2, "--sweeps", 1, "--n-fft", 8)
    assert f"{subjects} subject{plural} (from {source})" in command(*words, "--hop", 4, "-o", out, "--quiet")
    facts = json.loads(command("info", tmp_path / "in", "--json"))
    assert (facts["subjects"], facts["subjects_from"]) == (subjects, source)


def test_a_path_with_two_subjects_is_refused(tmp_path: Path) -> None:
    table(tmp_path / "in" / "sub-01" / "sub-02_eeg.csv")
    with pytest.raises(DataError, match=r"names two subjects, sub-01 and sub-02.*subject="):
        folder(tmp_path / "in", tmp_path / "s", seconds=1)
    store = folder(tmp_path / "in", tmp_path / "s", seconds=1, subject="^sub-([0-9]+)")
    assert store.windows.index.subjects_from == "the pattern"


def test_the_origin_of_subjects_of_arrays_and_published_datasets_is_reported(tmp_path: Path) -> None:
    X = np.zeros((4, 1, 4))
    for subject, count, source in ((None, 0, "nothing"), (["a", "a", "b", ""], 2, "a column")):
        windows = Windows(X, FS, subject=subject)
        for index in (windows.index, windows[1:].index, write_windows(windows, tmp_path / f"{count}").index):
            assert (index.n_subjects, index.subjects_from) == (count, source)
    said = command("info", tmp_path / "0")
    assert "no known subjects" in command(
        "prepare", "arrays", _saved(tmp_path / "w.npz", X=X), tmp_path / "t", "--fs", 4
    )
    assert "subjects" in said


def _saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# ---------------------------------------------------------------------------------- A12: one conversion to values


@pytest.mark.parametrize("kind", ["SALS", "ATD"])
def test_a_fit_from_digits_with_an_offset_is_the_fit_of_the_values_to_the_bit(tmp_path: Path, kind: str) -> None:

    header, rng = Header(FS, ("a", "b", "c"), ("",) * 3, 48, "int16"), np.random.default_rng(0)
    with StoreWriter(tmp_path / "s", header) as writer:
        for number in range(5):
            digits = rng.integers(-(2**15), 2**15, (3, 480)).astype(np.int16)
            scale, offset = rng.uniform(1e-4, 1, 3), 100 * rng.normal(size=3)
            one = Recording(f"r{number}", "s", FS, header.channels, header.units, digits, scale, offset)
            writer.add(one, np.arange(0, 480, 48), np.full(10, -1))
    store = WindowStore(tmp_path / "s")
    X = store.read(np.arange(len(store)))
    taken = Samples(store).take(slice(None), torch.device("cpu"), torch.float32)
    np.testing.assert_array_equal(taken.numpy(), X)
    np.testing.assert_array_equal(store.windows.X, X)
    settings: dict[str, Any] = {"tensorize": STFT(16, 8), "max_sweeps": 3, "batch_size": 8, "device": "cpu"}
    extra = {"augment": Jitter(0.1)} if kind == "ATD" else {}
    models = [{"SALS": SALS, "ATD": ATD}[kind](3, **settings, **extra).fit(given) for given in (X, store)]
    for one, other in zip(models[0].factors_, models[1].factors_, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(models[0].transform(X), models[1].transform(store))


# ------------------------------------------------------------------------------------------------ A13: masked arrays


def test_masked_values_are_refused_and_a_mask_without_any_is_not(tmp_path: Path) -> None:
    X = np.ma.array(np.random.default_rng(0).normal(size=(20, 3, 16)), mask=np.zeros((20, 3, 16), bool))
    model = paper(SALS, 2, max_sweeps=1, device="cpu").fit(X)
    np.testing.assert_array_equal(model.transform(X), model.transform(X.data))
    X.mask[4, 1, 2] = X.mask[4, 1, 3] = True
    for refusing in (model.transform, paper(SALS, 2).fit, Windows, lambda given: model.transform(list(given))):
        with pytest.raises(PolyadicError, match=r"2 masked values.*filled"):
            refusing(X)
    model.transform(X.filled(0.0))


# --------------------------------------------------------------------------------------- B2: inputs that are no files


HANG = """
import sys
from pathlib import Path
from polyadic.errors import PolyadicError
try:
    {code}
except PolyadicError as error:
    assert "regular file" in str(error) or "named pipe" in str(error) or "a writable folder" in str(error), error
    sys.exit(0)
sys.exit("it was read")
"""
READERS = {
    "model": ("m.safetensors", "from polyadic import load; load('m.safetensors')"),
    "baseline": ("m.safetensors", "from polyadic import load; load('m.safetensors')"),
    "edf": ("a.edf", "from polyadic.data import read_recording; read_recording('a.edf')"),
    "bdf": ("a.bdf", "from polyadic.data import read_recording; read_recording('a.bdf')"),
    "wfdb header": ("a.hea", "from polyadic.data import read_recording; read_recording('a.hea')"),
    "csv": ("a.csv", "from polyadic.data import read_recording; read_recording('a.csv')"),
    "npz": ("a.npz", "from polyadic.data.readers.arrays import open_windows; open_windows('a.npz')"),
    "npy": ("a.npy", "from polyadic.data.readers.arrays import open_windows; open_windows('a.npy')"),
    "description of a store": ("s/store.json", "from polyadic.data import WindowStore; WindowStore('s')"),
    "samples of a store": ("s/samples.npy", "from polyadic.data import WindowStore; WindowStore('s')"),
    "index of a store": ("s/index.npz", "from polyadic.data import WindowStore; WindowStore('s')"),
    "checkpoint": (
        "c/checkpoint-00000001",
        "import numpy as np; from polyadic import SALS; "
        "SALS(2, max_sweeps=1).fit(np.eye(9), checkpoint='c', resume=True)",
    ),
    "folder of checkpoints": (
        "c",
        "import numpy as np; from polyadic import SALS; SALS(2, max_sweeps=1).fit(np.eye(9), checkpoint='c')",
    ),
    "results": ("a.json", "from polyadic.cli.info import describe; describe(Path('a.json'))"),
    "info of arrays": ("a.npy", "from polyadic.cli.info import describe; describe(Path('a.npy'))"),
    "info of a table": ("a.csv", "from polyadic.cli.info import describe; describe(Path('a.csv'))"),
    "info of a model": ("a.safetensors", "from polyadic.cli.info import describe; describe(Path('a.safetensors'))"),
}


@LINUX
@pytest.mark.parametrize("kind", READERS)
def test_a_fifo_is_refused_at_once_wherever_a_file_is_read(tmp_path: Path, kind: str) -> None:
    name, code = READERS[kind]
    if name.startswith("s/"):
        write_windows(Windows(np.zeros((3, 1, 4)), 10), tmp_path / "s")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    python(HANG.format(code=code), cwd=tmp_path)


@LINUX
def test_other_files_of_a_record_that_are_fifos_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.hea").write_text("r 1 100 10\nr.dat 16 200 16 0 0 0 0 I\n")
    os.mkfifo(tmp_path / "r.dat")
    with pytest.raises(DataError, match=r"r\.dat is a named pipe"):
        read_wfdb(tmp_path / "r")
    (tmp_path / "r.dat").unlink()
    (tmp_path / "r.dat").write_bytes(bytes(20))
    os.mkfifo(tmp_path / "r.atr")
    with pytest.raises(DataError, match=r"r\.atr is a named pipe"):
        read_wfdb(tmp_path / "r", annotations="atr")


# --------------------------------------------------------------------------------------------- B8: memory for arrays


def deflated(path: Path, size: int) -> Path:
    """An archive of `size` bytes of zeros in X."""
    head = np.lib.format.header_data_from_array_1_0(np.zeros(1, np.float32)) | {"shape": (size // 4096, 4, 256)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("X.npy", "w", force_zip64=True) as x:
        np.lib.format.write_array_header_1_0(x, head)
        for _ in range(size // 2**20):
            x.write(bytes(2**20))
    return path


def test_an_archive_that_inflates_a_thousandfold_is_refused_by_its_declared_size(tmp_path: Path) -> None:
    path = deflated(tmp_path / "w.npz", 512 * 2**20)
    assert path.stat().st_size < 2**20
    with pytest.raises(DataError, match=r"w\.npz: X would take 537 MB.*np\.savez"):
        read_arrays(path)


def test_arrays_that_inflate_much_but_are_small_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "w.npz", X=np.zeros((1000, 4, 256), np.float32))
    assert read_arrays(tmp_path / "w.npz").shape == (1000, 4, 256)


PEAK = """
import sys, threading, time
from pathlib import Path
from polyadic.cli import app
from typer.testing import CliRunner
import numpy, torch, polyadic.data.prepare, polyadic.data.readers.arrays
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
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("w.npy", "float32"),
        pytest.param("w.npy", "int16", marks=pytest.mark.long),
        pytest.param("w.npz", "float32", marks=pytest.mark.long),
        ("w.npz", "int16"),
    ],
)
def test_preparing_a_file_of_arrays_takes_a_fraction_of_its_size(tmp_path: Path, name: str, dtype: str) -> None:
    X = np.random.default_rng(0).integers(-99, 99, (4000, 4, 4096 if dtype == "int16" else 2048)).astype(dtype)
    np.save(tmp_path / "w.npy", X) if name == "w.npy" else np.savez(tmp_path / "w.npz", X=X)
    assert X.nbytes > 100 * 2**20
    python(PEAK, name, cwd=tmp_path)
    store = WindowStore(tmp_path / "out.store")
    np.testing.assert_array_equal(store.read(np.arange(100)), X[:100])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">i2"])
@pytest.mark.parametrize("kind", ["npy", "npz", "compressed"])
def test_large_files_of_arrays_are_read_as_small_ones(
    tmp_path: Path, kind: str, dtype: str, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyadic.data.readers.arrays._IN_MEMORY", 0)
    X = np.asarray(np.random.default_rng(0).integers(0, 99, (30, 3, 8)), dtype, order=order)
    path = tmp_path / ("w.npy" if kind == "npy" else "w.npz")
    if kind == "npy":
        np.save(path, X)
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(path, X=X, y=np.arange(30) % 3)
    windows = open_windows(path)
    assert windows.on_disk == (kind != "compressed" and order == "C" and dtype == "<f4")
    assert windows.dtype == np.dtype(dtype).newbyteorder("=")
    path.unlink()  # an open file is read on
    np.testing.assert_array_equal(windows.X, X)
    rows = np.random.default_rng(1).permutation(30)
    np.testing.assert_array_equal(windows[rows[:7]].X, X[rows[:7]])


def test_two_parts_on_disk_are_joined_without_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyadic.data.readers.arrays._IN_MEMORY", 0)
    rng = np.random.default_rng(0)
    parts = {name: rng.normal(size=(count, 2, 6)).astype(np.float32) for name, count in (("train", 5), ("test", 3))}
    np.savez(tmp_path / "w.npz", X_train=parts["train"], X_test=parts["test"], y_train=np.arange(5) % 2)
    windows = read_arrays(tmp_path / "w.npz")
    assert windows.on_disk
    np.testing.assert_array_equal(windows.X, np.concatenate(list(parts.values())))
    assert windows.label.tolist() == [0, 1, 0, 1, 0, -1, -1, -1]


def test_damage_in_a_large_archive_is_noticed_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyadic.data.readers.arrays._IN_MEMORY", 0)
    path = _saved(tmp_path / "w.npz", X=np.zeros((30, 3, 8)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"w\.npz cannot be read: Bad CRC"):
        read_arrays(path)


# -------------------------------------------------------------------------------------------------- C1: skipping


def test_every_error_of_a_reader_can_be_skipped(tmp_path: Path) -> None:
    table(tmp_path / "in" / "a.csv")
    (tmp_path / "in" / "b.csv").write_text("x,y,z\n1,2,3\n4,5,6\n")  # no time column
    (tmp_path / "in" / "c.csv").write_text("time,a,b,c\n0,1,2,3\n0.3,4,5,6\n0.6,4,5,6\n0.9,4,5,6\n")  # 3.33 Hz
    (tmp_path / "in" / "d.edf").write_bytes(b"0")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=1, on_error="skip")
    assert [entry["name"] for entry in store.recordings] == ["a"]
    assert {entry["name"] for entry in store.skipped} == {"b", "c", "d"}
    (tmp_path / "in" / "r.hea").write_text("r 1 100 10\nr.dat 16 200 16 0 0 0 0 I\n")
    (tmp_path / "in" / "r.dat").write_bytes(bytes(20))
    store = folder(tmp_path / "in", tmp_path / "t", seconds=1, on_error="skip", fs=FS)
    assert {entry["name"] for entry in store.skipped} == {"b", "c", "d", "r"}


def test_a_package_that_is_not_installed_is_never_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tmp_path / "in" / "a.csv")
    with_gap(tmp_path / "in" / "b.edf")
    monkeypatch.setitem(sys.modules, "edfio", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'polyadic\[edf\]'"):
        folder(tmp_path / "in", tmp_path / "s", seconds=1, on_error="skip")


# --------------------------------------------------------------------------------------------- C3: words and paths


def test_large_and_small_numbers_in_float32_find_their_floor() -> None:
    X = np.random.default_rng(0).normal(size=(30, 2, 64)).astype(np.float32)
    reference = paper(SALS, 2, tensorize=STFT(16, 8), max_sweeps=2, device="cpu").fit(X)
    for scale in (1e30, 1e-30):
        model = paper(SALS, 2, tensorize=STFT(16, 8), max_sweeps=2, device="cpu").fit(np.float32(scale) * X)
        np.testing.assert_allclose(model.tensorize_.floor, scale * np.array(reference.tensorize_.floor), rtol=1e-5)


def test_the_error_for_numbers_too_large_for_float32_names_x() -> None:
    X = 1e38 * np.random.default_rng(0).uniform(0.5, 1, size=(30, 2, 64)).astype(np.float32)
    with pytest.raises(PolyadicError, match=r"the values in X are too large.*float64"):
        paper(SALS, 2, tensorize=STFT(16, 8), device="cpu").fit(X)


def test_a_store_opened_by_a_relative_path_is_read_after_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_windows(Windows(NAMED.X, FS), "s")
    store, writer = WindowStore("s"), StoreWriter("t", Header(FS, ("a",), ("",), 4, "float32"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    np.testing.assert_array_equal(store.read(np.arange(len(store))), NAMED.X)
    store.verify()
    with writer:
        writer.add_windows(Windows(np.ones((2, 1, 4), np.float32), FS))
    assert len(WindowStore(tmp_path / "t")) == 2
    assert not list((tmp_path / "other").iterdir())


def test_a_checkpoint_at_a_relative_path_survives_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    model = paper(SALS, 2, max_sweeps=3, tol=0.0, device="cpu")
    model.fit(NAMED.X, checkpoint="c", checkpoint_every=0, after_sweep=lambda _: os.chdir(tmp_path / "other"))
    assert not list((tmp_path / "other").iterdir())
    assert (tmp_path / "c").is_file()


@pytest.mark.parametrize("row", [1, 50, 300, 598])
def test_a_gap_in_a_table_is_reported_at_its_line(tmp_path: Path, row: int) -> None:
    times = np.arange(600) / FS
    times[row:] += 60.0
    lines = ["time,a", *(f"{time:.4f},1" for time in times)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=rf"a\.csv, line {row + 2}: "):
        read_csv(tmp_path / "a.csv")


def test_open_files_are_closed_with_their_windows(tmp_path: Path) -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("needs /proc to look at open files")
    before = len(list(folder.iterdir()))
    np.save(tmp_path / "w.npy", np.zeros((3, 2, 4)))
    store = write_windows(Windows(NAMED.X, FS), tmp_path / "s")
    store.read(np.arange(3))
    windows = read_arrays(tmp_path / "w.npy")
    windows.read(np.arange(3))
    del store, windows
    assert len(list(folder.iterdir())) == before


def test_units_and_names_beyond_ascii_are_read(tmp_path: Path) -> None:
    (tmp_path / "r.dat").write_bytes(np.arange(20, dtype="<i2").tobytes())
    for encoding in ("utf-8", "latin-1"):
        text = "r 2 0.0166666666667/125 10\nr.dat 16 10/°C 16 0 0 0 0 Körper\nr.dat 16 1/µV 16 0 0 0 0 II\n"
        (tmp_path / "r.hea").write_bytes(text.encode(encoding))
        got = read_wfdb(tmp_path / "r")
        assert (got.units, got.channels, got.fs) == (("°C", "uV"), ("Körper", "II"), 0.0166666666667)
    signal = edfio.EdfSignal(np.zeros(40), sampling_frequency=FS, label="Temp xxxx", physical_dimension="xx")
    edfio.Edf([signal], data_record_duration=1).write(tmp_path / "a.edf")
    raw = (tmp_path / "a.edf").read_bytes()
    (tmp_path / "a.edf").write_bytes(
        raw.replace(b"xxxx", "Ölx".encode()).replace(b"xx      ", "°C".encode() + b"     ")
    )
    with suppress(UnicodeError):
        assert read_edf(tmp_path / "a.edf").units == ("°C",)
        assert read_edf(tmp_path / "a.edf").channels == ("Temp Ölx",)
    (tmp_path / "a.edf").write_bytes(raw.replace(b"xx      ", b"\xb0C      "))
    assert read_edf(tmp_path / "a.edf").units == ("°C",)


def test_a_model_file_that_is_a_folder_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a folder"):
        load(tmp_path)


def test_info_of_a_folder_names_the_files_that_cannot_be_read(tmp_path: Path) -> None:
    rows = "\n".join(f"{n / 50},{n % 7}" for n in range(100))
    (tmp_path / "b.csv").write_text(f"time,left\n{rows}\n")
    (tmp_path / "a.csv").symlink_to("nowhere.csv")
    (tmp_path / "0.edf").write_bytes(b"nothing")
    found = describe(tmp_path)
    assert (found["kind"], found["first"], found["channels"]) == ("folder of recordings", "b.csv", ["left"])
    assert list(found["unreadable"]) == ["0.edf", "a.csv"]
    assert "does not exist" in found["unreadable"]["a.csv"]
    (tmp_path / "b.csv").unlink()
    assert list(describe(tmp_path)["unreadable"]) == ["0.edf", "a.csv"]
