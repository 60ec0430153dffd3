"""The four datasets from their published layouts to stores: windows, values, labels and subjects, sample by sample."""

from __future__ import annotations

import shutil
import zipfile

import numpy as np
import pytest
import trees

from paper import datasets
from paper.datasets.har import read_har

# -------------------------------------------------------------------- Sleep-EDF


@pytest.fixture
def sleep(tmp_path):
    root = tmp_path / "sleep-edfx"
    return root, trees.sleep_edf(root)


def words(text):
    return text.split()


def stages_of(store, recording):
    rows = store.windows.recording == recording
    return [store.classes[label] for label in store.windows.label[rows]]


def test_sleep_edf_has_the_papers_windows_channels_and_stages(sleep, tmp_path):
    root, _ = sleep
    store = datasets.sleep_edf(root, tmp_path / "s")
    assert store.shape[1:] == (7, 3000)
    assert (store.fs, store.dataset) == (100, "sleep_edf")
    assert store.channels == tuple(name for name, _, _ in trees.SLEEP_CHANNELS)
    assert stages_of(store, "SC4001E0") == words("W W W W N1 N1 N2 N2 N2 N3 N3 R R W W W")
    assert stages_of(store, "SC4002E0") == words("W W N2 N2 N2 N2 N2 R R R R")
    assert stages_of(store, "SC4012E0") == words("W W W N3 N3 N3 N3 R R W W")
    assert set(store.windows.subject) == {"SC400", "SC401"}


def test_sleep_edf_keeps_the_values_and_holds_the_slow_channels(sleep, tmp_path):
    root, digits = sleep
    store = datasets.sleep_edf(root, tmp_path / "s")
    values = store.read(np.arange(len(store)))
    for row in range(len(store)):
        name, start = store.windows.recording[row], store.windows.start[row]
        for channel, (label, fs, _) in enumerate(trees.SLEEP_CHANNELS):
            fast = np.repeat(digits[name][label], 100 // fs)[start : start + 3000]
            low = -200 + channel
            expected = low + (fast.astype(float) + 2048) * (200 - low) / 4095
            np.testing.assert_allclose(values[row, channel], expected, rtol=2e-6, atol=2e-5)


# -------------------------------------------------------------------------- MGH


def test_mgh_has_the_papers_windows_channels_and_stages(tmp_path):
    digits = trees.mgh(tmp_path / "mgh")
    store = datasets.mgh(tmp_path / "mgh", tmp_path / "s")
    assert store.shape[1:] == (6, 6000)
    assert store.channels == tuple(trees.MGH_CHANNELS[:6])
    # 45 s of N1 after 60 s of wake: the window from 90 to 120 s is half N1 and half N2, and has no label.
    assert stages_of(store, "tr03-0005") == ["W", "W", "N1", "N2"]
    assert stages_of(store, "tr04-0008") == ["N3", "N3", "R"]
    assert stages_of(store, "tr04-0010") == ["R", "R", "R"]
    assert store.windows.select(recording="te03-0001").label.tolist() == [-1, -1]
    for row in range(len(store)):
        name, start = store.windows.recording[row], store.windows.start[row]
        expected = digits[name][:6, start : start + 6000] / np.arange(10, 16)[:, None]
        np.testing.assert_allclose(store.read(np.array([row]))[0], expected, rtol=1e-6)


# ----------------------------------------------------------------------- PTB-XL


def test_ptb_xl_has_the_papers_windows_leads_and_sex(tmp_path):
    digits = trees.ptb_xl(tmp_path / "ptb")
    store = datasets.ptb_xl(tmp_path / "ptb", tmp_path / "s")
    assert store.shape == (4, 12, 5000)
    assert (store.fs, store.units[0], store.classes) == (500, "mV", ("male", "female"))
    assert store.windows.subject.tolist() == ["15709", "13243", "15709", "20372"]
    assert store.windows.label.tolist() == [1, 1, 1, 0]
    for row, name in enumerate(store.windows.recording):
        np.testing.assert_allclose(store.read(np.array([row]))[0], digits[name].T / 1000, rtol=1e-6)


# -------------------------------------------------------------------------- HAR


def little_har(root, windows=24):
    rng = np.random.default_rng(0)
    X = {part: rng.normal(size=(windows, 9, 128)).astype(np.float32) for part in ("train", "test")}
    y = {part: np.arange(windows) % 6 for part in X}
    subject = {"train": np.repeat([1, 3, 5], windows // 3), "test": np.repeat([2, 4, 9, 10], windows // 4)}
    return trees.har(root, X, y, subject), X, y, subject


def test_har_keeps_subjects_parts_and_values(tmp_path):
    base, X, y, subject = little_har(tmp_path)
    windows = datasets.har(base, tmp_path / "s").windows
    assert windows.shape == (48, 9, 128)
    assert (windows.fs, windows.classes) == (50, tuple(trees.ACTIVITIES))
    for part in ("train", "test"):
        rows = windows.select(part=part)
        order = np.argsort(np.char.zfill(subject[part].astype(str), 2), kind="stable")
        np.testing.assert_allclose(rows.X, X[part][order], rtol=1e-6)
        assert rows.label.tolist() == y[part][order].tolist()
        assert rows.subject.tolist() == subject[part][order].astype(str).tolist()
    assert windows.select(subject="4").start.tolist() == [0, 64, 128, 192, 256, 320]


@pytest.mark.parametrize("nested", [False, True])
def test_har_is_read_from_its_zip_file_and_from_the_published_zip_of_that(nested, tmp_path):
    base, *_ = little_har(tmp_path)
    expected = read_har(base)
    shutil.make_archive(str(tmp_path / "UCI HAR Dataset"), "zip", tmp_path, "UCI HAR Dataset")
    path = tmp_path / "UCI HAR Dataset.zip"
    if nested:
        with zipfile.ZipFile(tmp_path / "published.zip", "w") as archive:
            archive.write(path, path.name)
        path = tmp_path / "published.zip"
    windows = read_har(path)
    np.testing.assert_array_equal(windows.X, expected.X)
    assert windows.subject.tolist() == expected.subject.tolist()
