"""The four datasets from their published layouts to stores: windows, values, labels and subjects, sample by sample."""

from __future__ import annotations

import shutil

import edfio
import numpy as np
import pytest
import trees
from problems import paper

from polyadic import SALS
from polyadic.data import WindowStore, datasets, folder, read_recording, split
from polyadic.data.cutting import write_store
from polyadic.data.reading import Reading
from polyadic.errors import DataError, PolyadicError
from polyadic.spectral import STFT

STAGES = dict(zip(["W", "N1", "N2", "N3", "R"], range(5), strict=True))


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
    assert (store.fs, store.header.dtype, store.dataset) == (100, "int16", "sleep_edf")
    assert store.channels == tuple(name for name, _, _ in trees.SLEEP_CHANNELS)
    assert stages_of(store, "SC4001E0") == words("W W W W N1 N1 N2 N2 N2 N3 N3 R R W W W")
    assert stages_of(store, "SC4002E0") == words("W W N2 N2 N2 N2 N2 R R R R")
    assert stages_of(store, "SC4012E0") == words("W W W N3 N3 N3 N3 R R W W")
    assert set(store.windows.subject) == {"SC400", "SC401"}


def test_sleep_edf_keeps_the_digits_and_holds_the_slow_channels(sleep, tmp_path):
    root, digits = sleep
    store = datasets.sleep_edf(root, tmp_path / "s")
    stored = store.digits(np.arange(len(store)))
    values = store.read(np.arange(len(store)))
    for row in range(len(store)):
        name, start = store.windows.recording[row], store.windows.start[row]
        for channel, (label, fs, _) in enumerate(trees.SLEEP_CHANNELS):
            fast = np.repeat(digits[name][label], 100 // fs)[start : start + 3000]
            np.testing.assert_array_equal(stored[row, channel], fast)
            low = -200 + channel
            expected = low + (fast.astype(float) + 2048) * (200 - low) / 4095
            np.testing.assert_allclose(values[row, channel], expected, rtol=2e-6, atol=2e-5)


def test_windows_of_movement_and_unscored_time_keep_their_place_in_the_recording(sleep, tmp_path):
    root, _ = sleep
    windows = datasets.sleep_edf(root, tmp_path / "s").windows
    assert (windows.select(recording="SC4002E0").start // 3000).tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]


def test_wake_at_the_ends_of_a_night_can_be_trimmed(sleep, tmp_path):
    root, _ = sleep
    store = datasets.sleep_edf(root, tmp_path / "s", trim=0.5)
    assert stages_of(store, "SC4001E0") == words("W N1 N1 N2 N2 N2 N3 N3 R R W")
    with pytest.raises(PolyadicError, match="trim must be"):
        datasets.sleep_edf(root, tmp_path / "t", trim=-1)


def test_two_nights_of_one_subject_stay_together_by_subject_and_may_be_separated_under_protocol_paper(sleep, tmp_path):
    root, _ = sleep
    trees.night(root / "sleep-cassette", "SC4021E0", [("Sleep stage W", 4)], 4)
    windows = datasets.sleep_edf(root, tmp_path / "s").windows
    parts = split(windows, "subject", seed=1)
    people = [set(part.subject) for part in parts]
    assert sum(len(group) for group in people) == 3
    assert len(split(windows, "paper", seed=1).hash) == 16


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "SC4011EC-Hypnogram.edf").unlink(), "needs one hypnogram"),
        (lambda f: shutil.copy(f / "SC4011EC-Hypnogram.edf", f / "SC4011EH-Hypnogram.edf"), "needs one hypnogram"),
        (lambda f: swap(f / "SC4001EC-Hypnogram.edf", f / "SC4011EC-Hypnogram.edf"), "not from the same night"),
        (lambda f: swap(f / "SC4011EC-Hypnogram.edf", f / "SC4011E0-PSG.edf"), "SC4011E0-PSG.edf"),
        (lambda f: truncate(f / "SC4011E0-PSG.edf", 5000), "SC4011E0-PSG.edf"),
        (lambda f: (f / "SC4011E0-PSG.edf").write_bytes(b""), "SC4011E0-PSG.edf"),
        (lambda f: rewrite(f, [("Sleep stage 7", 10)]), "labels no window"),
        (lambda f: rewrite(f, [("Lights off", 10)]), "labels no window"),
    ],
    ids=["no hypnogram", "two", "other night", "swapped", "truncated", "empty", "unknown stage", "no stage"],
)
def test_a_damaged_night_is_an_error_or_a_skip_that_is_written_down(sleep, tmp_path, damage, message):
    root, _ = sleep
    damage(root / "sleep-cassette")
    with pytest.raises(DataError, match=message):
        datasets.sleep_edf(root, tmp_path / "raised")
    store = datasets.sleep_edf(root, tmp_path / "skipped", on_error="skip")
    assert {"SC4002E0", "SC4012E0"} <= set(store.windows.recording)
    reasons = {entry["name"]: entry["reason"] for entry in store.skipped}
    assert any(message in reason for reason in reasons.values())
    assert not set(reasons) & set(store.windows.recording)
    assert WindowStore(tmp_path / "skipped").skipped == store.skipped


def swap(a, b):
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)


def truncate(path, count):
    path.write_bytes(path.read_bytes()[:count])


def rewrite(folder, stages):
    trees.night(folder, "SC4011E0", stages, 10, begin=2)


def test_stages_past_the_end_of_the_signals_label_nothing_else(sleep, tmp_path):
    root, _ = sleep
    rewrite(root / "sleep-cassette", [("Sleep stage W", 3), ("Sleep stage R", 500)])
    store = datasets.sleep_edf(root, tmp_path / "s")
    assert stages_of(store, "SC4011E0") == ["W"] * 3 + ["R"] * 7


def test_a_folder_without_recordings_says_so(tmp_path):
    with pytest.raises(DataError, match="No recordings found"):
        datasets.sleep_edf(tmp_path, tmp_path / "s")
    with pytest.raises(DataError, match="does not exist"):
        datasets.mgh(tmp_path / "absent", tmp_path / "s")


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
        np.testing.assert_array_equal(store.digits(np.array([row]))[0], digits[name][:6, start : start + 6000])
        expected = digits[name][:6, start : start + 6000] / np.arange(10, 16)[:, None]
        np.testing.assert_allclose(store.read(np.array([row]))[0], expected, rtol=1e-6)


def test_an_mgh_recording_that_lost_its_labels_is_an_error_or_a_skip(tmp_path):
    trees.mgh(tmp_path / "mgh")
    (tmp_path / "mgh" / "tr04-0008" / "tr04-0008-arousal.mat").unlink()
    with pytest.raises(DataError, match=r"tr04-0008-arousal\.mat"):
        datasets.mgh(tmp_path / "mgh", tmp_path / "s")
    store = datasets.mgh(tmp_path / "mgh", tmp_path / "t", on_error="skip")
    assert [entry["name"] for entry in store.skipped] == ["tr04-0008"]


# ----------------------------------------------------------------------- PTB-XL


def test_ptb_xl_has_the_papers_windows_leads_and_sex(tmp_path):
    digits = trees.ptb_xl(tmp_path / "ptb")
    store = datasets.ptb_xl(tmp_path / "ptb", tmp_path / "s")
    assert store.shape == (4, 12, 5000)
    assert (store.fs, store.units[0], store.classes) == (500, "mV", ("male", "female"))
    assert store.windows.subject.tolist() == ["15709", "13243", "15709", "20372"]
    assert store.windows.label.tolist() == [1, 1, 1, 0]
    for row, name in enumerate(store.windows.recording):
        np.testing.assert_array_equal(store.digits(np.array([row]))[0], digits[name].T)
    np.testing.assert_allclose(store.read(np.array([2]))[0], digits["00003_hr"].T / 1000, rtol=1e-6)


def test_a_ptb_xl_record_of_the_wrong_length_is_an_error_or_a_skip(tmp_path):
    trees.ptb_xl(tmp_path / "ptb")
    trees.ptb_xl(tmp_path / "short", patients=(1,), samples=4000)
    for ending in ("hea", "dat"):
        shutil.copy(*(tmp_path / root / f"records500/00000/00001_hr.{ending}" for root in ("short", "ptb")))
    with pytest.raises(DataError, match="5000 samples"):
        datasets.ptb_xl(tmp_path / "ptb", tmp_path / "s")
    store = datasets.ptb_xl(tmp_path / "ptb", tmp_path / "t", on_error="skip")
    assert [entry["name"] for entry in store.skipped] == ["00001_hr"]
    assert len(store) == 3


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


def test_har_is_split_as_published_under_both_protocols(tmp_path):
    base, *_ = little_har(tmp_path)
    windows = datasets.har(base, tmp_path / "s").windows
    for protocol in ("subject", "paper"):
        parts = split(windows, protocol)
        assert set(windows.part[parts.unlabelled]) == {"train"}
        assert len(parts.train) == len(parts.test) == 12
    by_person = split(windows, "subject")
    assert not set(windows.subject[by_person.train]) & set(windows.subject[by_person.test])


# -------------------------------------------------------------------------- own


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
    with pytest.raises(DataError, match="--resample hold repeats the samples of slow channels"):
        folder(only, tmp_path / "w", seconds=30, channels=["EEG Fpz-Cz", "Temp rectal"])
    held = folder(only, tmp_path / "t", seconds=30, resample="hold")
    assert held.header.dtype == "int16"
    assert held.channels == without.channels
    assert held.notes[0] == without.notes[0]
    filtered = folder(only, tmp_path / "u", seconds=30, fs=50, resample="polyphase")
    assert (filtered.header.dtype, filtered.shape[1:]) == ("float32", (3, 1500))
    slow = folder(only, tmp_path / "x", seconds=30, fs=2, resample="polyphase")
    assert len(slow.channels) == 7  # 1 Hz is not far below the rate that was asked for


def test_slow_channels_are_kept_as_keep_slow_says_and_others_as_resample_does(tmp_path):
    rng = np.random.default_rng(0)
    noise = {fs: rng.integers(-9, 9, 20 * fs).astype(float) for fs in (40, 20, 4)}
    signals = [edfio.EdfSignal(values, fs, label=f"at {fs}") for fs, values in noise.items()]
    edfio.Edf(signals).write(tmp_path / "a.edf")
    store = folder(tmp_path / "a.edf", tmp_path / "s", seconds=20, resample="polyphase", keep_slow="hold")
    fast, middle, slow = store.windows.X[0]
    np.testing.assert_allclose(fast, noise[40], atol=1e-2)
    np.testing.assert_allclose(slow, np.repeat(noise[4], 10), atol=1e-2)
    assert not np.allclose(middle, np.repeat(noise[20], 2), atol=1)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": 0}, "seconds must be"),
        ({"seconds": 0.001}, "whole number of samples"),
        ({"seconds": 1, "subject": "("}, "subject must be a regular expression"),
        ({"seconds": 1, "subject": "nothing"}, "--subject 'nothing' is a table column"),
        ({"seconds": 1, "on_error": "ignore"}, "on_error must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, arguments, message):
    trees.ptb_xl(tmp_path / "ptb")
    with pytest.raises(PolyadicError, match=message):
        folder(tmp_path / "ptb" / "records500", tmp_path / "s", **arguments)
    assert not (tmp_path / "s" / "manifest.json").exists()


def test_an_interrupted_dataset_resumes_and_appending_adds_only_new_recordings(sleep, tmp_path):
    root, _ = sleep
    calls = []

    def stop(name, *_):
        calls.append(name)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        datasets.sleep_edf(root, tmp_path / "s", progress=stop)
    with pytest.raises(DataError, match="unfinished"):
        WindowStore(tmp_path / "s")
    store = datasets.sleep_edf(root, tmp_path / "s")
    whole = datasets.sleep_edf(root, tmp_path / "t")
    assert store.checksum == whole.checksum
    trees.night(root / "sleep-cassette", "SC4021E0", [("Sleep stage W", 4)], 4)
    with pytest.raises(PolyadicError, match="complete"):
        datasets.sleep_edf(root, tmp_path / "s")
    longer = datasets.sleep_edf(root, tmp_path / "s", append=True)
    assert len(longer) == len(whole) + 4
    assert longer.windows[: len(whole)].recording.tolist() == whole.windows.recording.tolist()


def test_a_model_learns_from_a_store_and_gives_features(sleep, tmp_path):
    root, _ = sleep
    store = datasets.sleep_edf(root, tmp_path / "s")
    model = paper(SALS, 4, tensorize=STFT(256, 128), max_sweeps=2).fit(store)
    assert model.transform(store).shape == (len(store), 4)
    np.testing.assert_allclose(model.transform(store), model.transform(store.windows.X), rtol=1e-3, atol=1e-3)


def test_one_file_is_a_folder_of_one_and_channels_of_a_table_are_chosen_by_name(tmp_path):
    table = np.random.default_rng(0).normal(size=(100, 3))
    rows = "\n".join(",".join(map(str, row)) for row in table.tolist())
    path = tmp_path / "walk.csv"
    path.write_text(f"left,middle,right\n{rows}\n")
    store = folder(path, tmp_path / "s", seconds=1, fs=50, channels=["right", "left"])
    assert (store.channels, store.windows.recording.tolist()) == (("right", "left"), ["walk", "walk"])
    np.testing.assert_allclose(store.windows.X.swapaxes(1, 2).reshape(100, 2), table[:, [2, 0]], rtol=1e-6)
    with pytest.raises(DataError, match=r"walk.csv: must have the channels 'up'"):
        read_recording(path, fs=50, channels=["up"])
    assert read_recording(path, fs=50, resample="hold").fs == 50
    (tmp_path / "walk.txt").write_text("left")
    with pytest.raises(PolyadicError, match=r"its extension must be one of \.edf"):
        read_recording(tmp_path / "walk.txt")


def test_a_store_of_sleep_edf_says_how_to_read_its_recordings(sleep, tmp_path):
    root, _ = sleep
    store = datasets.sleep_edf(root, tmp_path / "s")
    reading = Reading.from_json(store.reading)
    read = write_store(root, tmp_path / "t", reading)
    labelled = read.windows[read.windows.label >= 0]
    assert read.classes == store.classes
    assert labelled.label.tolist() == store.windows.label.tolist()
    assert labelled.subject.tolist() == store.windows.subject.tolist()
    np.testing.assert_array_equal(labelled.X, store.windows.X)
