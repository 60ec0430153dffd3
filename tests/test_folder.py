"""Folders of your own recordings become stores of windows."""

from __future__ import annotations

import shutil

import numpy as np
import people
import pytest
import trees

from polyadic.data import cutting, folder, loading
from polyadic.data.readers.tables import read_table
from polyadic.errors import DataError


@pytest.fixture
def sleep(tmp_path):
    root = tmp_path / "sleep-edfx"
    return root, trees.sleep_edf(root)


def test_a_folder_of_your_own_files_is_read_as_windows_with_subjects_and_labels(sleep, tmp_path):
    root, _ = sleep
    store = folder(
        root,
        tmp_path / "s",
        seconds=2,
        channels=("EEG Pz-Oz", "EEG Fpz-Cz"),
        subject="(SC4..)[^/]*$",
        on_error="skip",
    )
    assert store.shape == (15 * (16 + 14 + 10 + 13), 2, 200)
    assert store.channels == ("EEG Pz-Oz", "EEG Fpz-Cz")
    assert set(store.windows.subject) == {"SC400", "SC401"}
    assert len(store.skipped) == 4
    assert set(store.windows.label) == {-1}


def test_slow_channels_are_skipped_with_a_note_unless_an_option_keeps_them(sleep, tmp_path):
    root, _digits = sleep
    only = tmp_path / "only"
    only.mkdir()
    shutil.copy(root / "sleep-cassette" / "SC4001E0-PSG.edf", only)
    without = folder(only, tmp_path / "s", seconds=30)
    assert without.channels == ("EEG Fpz-Cz", "EEG Pz-Oz", "EOG horizontal")
    assert "left out slow channels: Resp oro-nasal (1 Hz)" in without.notes[0]
    assert "--keep-slow hold" in without.notes[0]
    kept = folder(only, tmp_path / "v", seconds=30, keep_slow="hold")
    assert len(kept.channels) == 7
    with pytest.raises(DataError, match="--resample hold repeats samples"):
        folder(only, tmp_path / "w", seconds=30, channels=["EEG Fpz-Cz", "Temp rectal"])
    held = folder(only, tmp_path / "t", seconds=30, resample="hold")
    assert held.channels == without.channels
    assert held.notes[0] == without.notes[0]
    filtered = folder(only, tmp_path / "u", seconds=30, fs=50, resample="polyphase")
    assert filtered.shape[1:] == (3, 1500)
    slow = folder(only, tmp_path / "x", seconds=30, fs=2, resample="polyphase")
    assert len(slow.channels) == 7  # 1 Hz is not far below the rate that was asked for


def test_csv_files_and_wfdb_records_are_recordings_too(tmp_path):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(500, 2))
    (tmp_path / "own" / "anna").mkdir(parents=True)
    rows = "\n".join(f"{n / 50},{a},{b}" for n, (a, b) in enumerate(table.tolist()))
    (tmp_path / "own" / "anna" / "walk.csv").write_text(f"time,left,right\n{rows}\n")
    store = folder(tmp_path / "own", tmp_path / "s", seconds=1)
    assert store.shape == (10, 2, 50)
    assert set(store.windows.subject) == {"anna"}
    np.testing.assert_allclose(store.read(np.arange(10)).transpose(0, 2, 1).reshape(500, 2), table, rtol=1e-6)
    trees.ptb_xl(tmp_path / "ptb")
    assert folder(tmp_path / "ptb" / "records500", tmp_path / "t", seconds=1).shape == (40, 12, 500)


@pytest.mark.parametrize("room", [2**20, 0])
def test_tables_that_fit_into_memory_are_parsed_once_with_the_same_windows(tmp_path, monkeypatch, room):
    people.wearables(tmp_path / "in", 2)
    parsed = []
    monkeypatch.setattr(cutting, "_KEPT_BYTES", room)
    monkeypatch.setattr(
        loading, "read_table", lambda path, *rest: (parsed.append(path.name), read_table(path, *rest))[1]
    )
    store = folder(tmp_path / "in", tmp_path / "s", seconds=2, label="activity")
    assert parsed == ["p01.csv", "p02.csv"] * (1 if room else 2)
    assert np.bincount(store.index.label).tolist() == [8, 8, 8]
