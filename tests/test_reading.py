"""Recordings as users have them: labels, subjects and windows by one set of reading options, stored in models."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import warnings
from pathlib import Path

import edfio
import numpy as np
import people
import pytest
import trees
from command_line import polyadic
from people import read_csv, wfdb

from paper.datasets import sleep_edf
from polyadic import load
from polyadic.cli.info import describe
from polyadic.data import WindowStore, cutting, folder, loading
from polyadic.data.annotations import infer_durations, label_windows, scored_phase
from polyadic.data.folders import find_recordings
from polyadic.data.readers.edf import EdfFile
from polyadic.data.readers.tables import read_table
from polyadic.data.readers.wfdb import WfdbRecord
from polyadic.data.reading import Reading, parse_classes
from polyadic.data.recordings import Annotation, Recording, window_starts
from polyadic.data.splits import refuse_copies
from polyadic.data.subjects import is_simple_pattern
from polyadic.errors import DataError, PolyadicError

QUICK = ("--rank", 3, "--sweeps", 2)


# -------------------------------------------------------------------------------------------------------- description


def test_a_description_survives_json():
    reading = Reading(
        seconds=30, channels=("a", "b"), classes=parse_classes(["N3=3|4", "W"]), stride=15, subject="(S.)"
    )
    assert Reading.from_json(json.loads(json.dumps(reading.to_json()))) == reading
    assert Reading().to_json() == {"seconds": 10.0}
    assert Reading.from_json({"seconds": 5, "unheard": 1}) == Reading(seconds=5)


@pytest.mark.parametrize(
    "content", [[], {"seconds": -1}, {"classes": 3}, {"label": 4}, {"channels": 5}, {"rename": [["a"]]}]
)
def test_a_damaged_description_is_refused(content):
    with pytest.raises(ValueError, match="the entry"):
        Reading.from_json(content)


# ------------------------------------------------------------------------------------------------------------ windows


def recording(annotations, seconds=100, fs=10.0):
    signal = np.zeros((1, round(seconds * fs)), np.float32)
    found = tuple(Annotation(*one) for one in annotations)
    return Recording("r", "s", fs, ("a",), ("",), signal, found)


def test_windows_begin_at_scored_epochs_of_a_regular_length():
    epochs = recording([(7 + 30 * n, 30 * (1 + n % 2), "W") for n in range(3)])
    assert scored_phase(epochs, 100) == 7
    assert window_starts(epochs, 100, phase=7.0).tolist() == list(range(70, 901, 100))
    uneven = recording([(3, 4.7, "a"), (11, 8.1, "b"), (30, 2.3, "a")])
    assert scored_phase(uneven, 100) is None
    assert scored_phase(recording([(5, 0, "moment")]), 100) is None


def test_an_offset_and_a_stride_place_the_windows():
    assert window_starts(recording([]), 100, 50, offset=25).tolist() == list(range(250, 901, 50))


def test_a_window_has_the_class_that_covers_the_requested_share():
    found = recording([(0, 7, "a"), (7, 3, "b"), (10, 5, "a"), (15, 5, "b")], 20)
    starts, classes = np.array([0, 100]), {"a": 0, "b": 1}
    assert label_windows(found, starts, 100, classes).tolist() == [-1, -1]
    assert label_windows(found, starts, 100, classes, 0.6).tolist() == [0, -1]
    assert label_windows(found, starts, 100, classes, 0.8).tolist() == [-1, -1]
    assert label_windows(found, starts, 100, classes, 0.5).tolist() == [0, -1]  # two halves are no majority


@pytest.mark.parametrize(
    ("onsets", "lasting"),
    [
        ([0, 30, 60, 90], [30, 30, 30, 30]),  # every epoch
        ([7, 67, 97, 127, 247], [60, 30, 30, 120, 30]),  # changes
        ([0, 30, 60, 90, 120, 150, 155, 180, 210, 240, 270], [30] * 6 + [0] + [30] * 4),  # and a moment in between
        ([*range(0, 330, 30), 400 + 20], [30] * 12),  # what is not scored is not guessed
        ([0.7, 1.9, 2.5, 3.9, 4.6], None),
        ([3, 7, 12, 20, 21, 22, 24], None),
        ([10, 40], None),
    ],
)
def test_marks_of_epochs_last_until_the_next(onsets, lasting):
    marked = recording([(onset, 0, "W") for onset in onsets], 500)
    found, epoch = infer_durations(marked, None)
    assert [one.duration for one in found.annotations] == (lasting or [0] * len(onsets))
    assert (epoch is None) == (lasting is None)
    assert infer_durations(marked, {"other"}) == (marked, None)
    mixed = recording([*((onset, 0, "W") for onset in onsets), (1, 5, "N2")], 500)
    assert infer_durations(mixed, None) == (mixed, None)


def test_moments_label_the_windows_they_are_in():
    beats = recording([(0, 0, "N"), (3, 0.1, "V"), (9.9, 0, "N"), (10, 0, "V"), (15, 0, "N"), (20, 0, "V")], 40)
    starts, classes = np.arange(0, 400, 100), {"N": 0, "V": 1}
    assert label_windows(beats, starts, 100, classes, by_moments=True).tolist() == [0, -1, 1, -1]
    assert label_windows(beats, starts, 100, classes, 0.7, by_moments=True).tolist() == [-1, -1, 1, -1]
    assert label_windows(beats, starts, 100, {"V": 3}, by_moments=True).tolist() == [3, 3, 3, -1]


# ------------------------------------------------------------------------------------------------------------- tables


def test_labels_times_and_subjects_of_tables_are_columns(tmp_path):
    people.wearables(tmp_path / "in")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=2, label="activity")
    assert store.classes == ("rest", "run", "walk")
    assert store.channels == ("x", "y", "z")
    assert np.bincount(store.index.label).tolist() == [16, 16, 16]
    assert store.index.n_subjects == 4
    assert store.skipped == [{"name": "participants.csv", "reason": "a table of metadata, by its name"}]
    assert store.reading == {
        "seconds": 2,
        "classes": {"rest": ["rest"], "run": ["run"], "walk": ["walk"]},
        "label": "activity",
    }


def test_a_table_of_many_subjects_becomes_a_recording_for_each(tmp_path):
    parts = []
    for name in ("anna", "ben"):
        people.table(tmp_path / f"{name}.csv", ["walk", "run"], len(name), person=name)
        parts.append((tmp_path / f"{name}.csv").read_text().splitlines())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "all.csv").write_text("\n".join([*parts[0], *parts[1][1:]]) + "\n")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=2, label="activity", subject="person")
    assert set(store.windows.subject) == {"anna", "ben"}
    assert set(store.windows.recording) == {"all/anna", "all/ben"}
    assert len(store) == 8
    assert store.index.subjects_from == "a column"


@pytest.mark.parametrize("kind", ["name", "numbers", "text"])
def test_a_label_that_would_become_a_signal_is_refused_with_the_option(kind, tmp_path):
    head = {"name": "stage", "numbers": "code", "text": "what"}[kind]
    values = {"name": "0.5", "numbers": "1", "text": "walk"}[kind]
    other = {"name": "0.7", "numbers": "2", "text": "run"}[kind]
    rows = [f"{n / 10},{np.sin(n):.4f},{values if n % 40 < 20 else other}" for n in range(200)]
    (tmp_path / "a.csv").write_text(f"time,x,{head}\n" + "\n".join(rows) + "\n")
    with pytest.raises(DataError, match=f"--label {head}"):
        folder(tmp_path / "a.csv", tmp_path / "s", seconds=1)
    assert folder(tmp_path / "a.csv", tmp_path / "t", seconds=1, channels=["x"]).channels == ("x",)
    assert len(folder(tmp_path / "a.csv", tmp_path / "u", seconds=1, label=head).classes) == 2


def test_semicolons_decimal_commas_bom_crlf_and_gzip_are_read(tmp_path):
    lines = ["zeit;x;y", *(f"{n},0;{n},5;-{n},25" for n in range(50))]
    content = b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n"
    (tmp_path / "a.csv").write_bytes(content)
    with gzip.open(tmp_path / "b.csv.gz", "wb") as file:
        file.write(content)
    for name in ("a.csv", "b.csv.gz"):
        found = read_csv(tmp_path / name, time="zeit")
        assert found.fs == 1
        assert found.name == name[0]
        np.testing.assert_array_equal(found.signal[1], -(np.arange(50) + 0.25))


@pytest.mark.parametrize(
    ("head", "time"),
    [
        ("time", lambda n: f"{n / 50:.3f}"),
        ("timestamp", lambda n: f"2024-05-01 10:00:{n / 50:09.6f}"),
        ("timestamp", lambda n: str(1714557600000 + 20 * n)),
        ("time_ms", lambda n: str(20 * n)),
        ("Time (ns)", lambda n: str(20_000_000 * n)),
    ],
)
def test_times_are_seconds_dates_or_counts_of_smaller_units(head, time, tmp_path):
    (tmp_path / "a.csv").write_text(f"{head},x\n" + "".join(f"{time(n)},{n}\n" for n in range(150)))
    assert read_csv(tmp_path / "a.csv", time=head).fs == pytest.approx(50)


def test_uneven_times_are_refused_or_interpolated_on_request(tmp_path):
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.015, 0.025, 500))
    times[300:] += 3
    rows = [f"{t:.5f},{np.sin(t):.6f},{'a' if n < 300 else 'b'}\n" for n, t in enumerate(times)]
    (tmp_path / "a.csv").write_text("time,x,label\n" + "".join(rows))
    with pytest.raises(DataError, match=r"evenly spaced .* interpolate with --resample polyphase"):
        read_csv(tmp_path / "a.csv", label="label")
    found = read_csv(tmp_path / "a.csv", label="label", resample="polyphase")
    assert found.fs == pytest.approx(50, rel=0.05)
    assert len(found.segments) == 2  # the gap is not filled
    at = found.elapsed_samples(np.arange(found.signal.shape[1])) / found.fs + times[0]
    np.testing.assert_allclose(found.signal[0], np.sin(at), atol=0.02)
    assert [one.text for one in found.annotations] == ["a", "b"]


@pytest.mark.parametrize(
    ("time", "began"),
    [
        (lambda n: f"2024-05-01 10:00:{n / 50:09.6f}", "2024-05-01T10:00:00.000"),
        (lambda n: str(1714557600000 + 20 * n), "2024-05-01T10:00:00.000+00:00"),
        (lambda n: f"{1714557600.25 + n / 50:.2f}", "2024-05-01T10:00:00.250+00:00"),
        (lambda n: f"{7 + n / 50:.2f}", ""),
    ],
)
def test_dates_in_a_table_say_when_it_began(time, began, tmp_path):
    (tmp_path / "a.csv").write_text("time,x\n" + "".join(f"{time(n)},{n}\n" for n in range(150)))
    assert read_csv(tmp_path / "a.csv").began == began


@pytest.mark.parametrize(
    ("said", "began"),
    [
        ("23:59:58 01/05/2024", "2024-05-01T23:59:58.000"),
        ("9:59:58.25", "09:59:58.250"),
        ("noon", ""),
        ("", ""),
    ],
)
def test_the_base_time_of_a_wfdb_record_says_when_it_began(said, began, tmp_path):
    people.ecg(tmp_path, 1)
    header = tmp_path / "S01" / "r.hea"
    first, rest = header.read_text().split("\n", 1)
    header.write_text(f"{first} {said}\n{rest}")
    assert WfdbRecord(header).read().began == began


@pytest.mark.parametrize(
    ("date", "time", "began"),
    [
        (b"01.05.24", b"22.30.00", "2024-05-01T22:30:00.000"),
        (b"01.05.89", b"22.30.00", "1989-05-01T22:30:00.000"),
        (b"01.01.85", b"22.30.00", "22:30:00.000"),  # of an unknown date
        (b"01.01.85", b"00.00.00", ""),
        (b"31.02.24", b"22.30.00", ""),
    ],
)
def test_the_header_of_an_edf_file_says_when_it_began(date, time, began, tmp_path):
    people.night_and_hypnogram(tmp_path / "in")
    path = tmp_path / "in" / "SC4001E0-PSG.edf"
    content = path.read_bytes()
    path.write_bytes(content[:168] + date + time + content[184:])
    assert EdfFile(path).read().began == began


def test_predictions_and_features_of_polyadic_do_not_break_a_folder(tmp_path):
    people.wearables(tmp_path / "in", 2)
    for name, head in (("labels.csv", "subject,recording,start,label,p(a)"), ("e.tsv", "onset\tduration\ttrial_type")):
        (tmp_path / "in" / name).write_text(f"{head}\n")
    found = find_recordings(tmp_path / "in")
    assert [path.name for path in found.files] == ["p01.csv", "p02.csv"]
    assert found.left_out["labels.csv"] == "a table written by polyadic"
    assert [path.name for path in find_recordings(tmp_path / "in", pattern="*2.csv").files] == ["p02.csv"]
    with pytest.raises(DataError, match="that match --pattern"):
        find_recordings(tmp_path / "in", pattern="*.edf")


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


def test_slow_channels_are_skipped_with_a_note_unless_they_are_named(tmp_path):
    only = tmp_path / "only"
    only.mkdir()
    trees.night(only, "SC4001E0", [("Sleep stage W", 4)], 4)
    (only / "SC4001EC-Hypnogram.edf").unlink()
    without = folder(only, tmp_path / "s", seconds=30)
    assert without.channels == ("EEG Fpz-Cz", "EEG Pz-Oz", "EOG horizontal")
    assert "left out slow channels: Resp oro-nasal (1 Hz)" in without.notes[0]
    assert "name channels with --channel and resample (--resample)" in without.notes[0]
    kept = folder(only, tmp_path / "v", seconds=30, channels=["EEG Fpz-Cz", "Temp rectal"], resample="hold")
    assert kept.channels == ("EEG Fpz-Cz", "Temp rectal")
    with pytest.raises(DataError, match="--resample hold repeats samples"):
        folder(only, tmp_path / "w", seconds=30, channels=["EEG Fpz-Cz", "Temp rectal"])
    held = folder(only, tmp_path / "t", seconds=30, resample="hold")
    assert held.channels == without.channels
    assert held.notes[0] == without.notes[0]
    filtered = folder(only, tmp_path / "u", seconds=30, fs=50, resample="polyphase")
    assert filtered.shape[1:] == (3, 1500)
    slow = folder(only, tmp_path / "x", seconds=30, fs=2, resample="polyphase")
    assert len(slow.channels) == 7  # 1 Hz is not far below the rate that was asked for


# -------------------------------------------------------------------------------------------------------- annotations


def test_all_texts_that_cover_windows_are_classes_and_windows_begin_with_epochs(tmp_path):
    people.sleep(tmp_path / "in")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=10)
    assert store.classes == tuple(sorted(people.STAGES))
    assert set((store.windows.start / store.fs).tolist()) == {7.0 + 10 * n for n in range(12)}
    assert (store.index.label >= 0).all()
    moved = folder(tmp_path / "in", tmp_path / "t", seconds=18, offset=0)
    assert (moved.index.label < 0).any()


def test_the_error_for_recordings_without_any_sample_says_so(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "p01.csv").write_text("time,x,y\n" + "".join(f"{row / 25},,\n" for row in range(200)))
    with pytest.raises(DataError, match="all samples of 'p01' are missing"):
        folder(tmp_path / "in", tmp_path / "s", seconds=2)


def test_classes_are_renamed_and_merged_and_the_error_for_unknown_ones_lists_the_existing_ones(tmp_path):
    people.sleep(tmp_path / "in", 1)
    classes = ["wake=Sleep stage W", "sleep=Sleep stage N2|Sleep stage R|Sleep stage 9"]
    store = folder(tmp_path / "in", tmp_path / "s", seconds=10, classes=classes)
    assert store.classes == ("wake", "sleep")
    assert np.bincount(store.index.label).tolist() == [4, 8]
    assert any("no recording has 'Sleep stage 9'" in note for note in store.notes)
    with pytest.raises(PolyadicError, match=r"there are .*'Sleep stage W'.*did you mean 'Sleep stage R'"):
        folder(tmp_path / "in", tmp_path / "t", seconds=10, classes=["REM=Sleep stage r"])


def test_hypnograms_in_files_of_their_own_are_paired_by_name(tmp_path):
    trees.sleep_edf(tmp_path / "in")
    store = folder(
        tmp_path / "in", tmp_path / "s", seconds=30, scoring="*-Hypnogram.edf", classes={"W": ["Sleep stage W"]}
    )
    whole = sleep_edf(tmp_path / "in", tmp_path / "t")
    assert (store.index.label == 0).sum() == (whole.index.label == 0).sum()
    assert len(store.recordings) == 4
    assert set(store.windows.recording) == {f"sleep-cassette/SC40{n}E0-PSG" for n in ("01", "02", "11", "12")}


@pytest.mark.parametrize("kind", ["table", "lines"])
def test_scorings_may_be_tables_or_one_stage_per_line(kind, tmp_path):
    people.sleep(tmp_path / "in", 2, lead=0.0)
    stages = ["W", "W", "N2"] * 4
    for number in (1, 2):
        night = tmp_path / "in" / f"S0{number}"
        if kind == "lines":
            (night / "night.txt").write_text("\n".join(stages) + "\n")
        else:
            rows = [f"{10 * n},10,{stage}" for n, stage in enumerate(stages)]
            (night / "night.csv").write_text("onset,duration,label\n" + "\n".join(rows) + "\n")
    pattern = "*.txt" if kind == "lines" else "*.csv"
    store = folder(tmp_path / "in", tmp_path / "s", seconds=10, scoring=pattern)
    assert store.classes == ("N2", "W")
    assert np.bincount(store.index.label).tolist() == [8, 16]


def test_rhythms_of_wfdb_records_label_windows(tmp_path):
    people.ecg(tmp_path / "in", 2)
    store = folder(tmp_path / "in", tmp_path / "s", seconds=5)
    assert store.classes == ("(AFIB", "(N")
    assert np.bincount(store.index.label).tolist() == [12, 12]


def annotated_edf(path, annotations, seconds=120):
    rng = np.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    notes = [edfio.EdfAnnotation(*one) for one in annotations]
    edfio.Edf([edfio.EdfSignal(rng.normal(size=20 * seconds), 20, label="C3")], annotations=notes).write(path)


def test_stages_without_duration_last_until_the_next_with_a_note(tmp_path):
    stages = [(10 * n + 5, None, "W" if n % 3 else "N2") for n in range(11)]
    annotated_edf(tmp_path / "in" / "a.edf", stages)
    store = folder(tmp_path / "in", tmp_path / "s", seconds=5)
    assert store.windows.start[0] == 0  # windows fit into epochs, which begin at 5 s
    assert np.bincount(store.index.label + 1).tolist() == [2, 8, 14]
    assert store.notes[0] == "a.edf: annotations have no duration, but mark epochs of 10 s: each lasts until the next"


def test_a_stage_that_is_no_class_or_fills_no_window_still_ends_the_one_before(tmp_path):
    marks = {0: "W", 60: "N1", 90: "W", 210: "N1", 240: "W", 390: "N1", 420: "W", 600: "N2", 690: "W"}
    annotated_edf(tmp_path / "in" / "a.edf", [(onset, None, text) for onset, text in marks.items()], seconds=840)
    store = folder(tmp_path / "in", tmp_path / "s", seconds=60)
    assert store.classes == ("N2", "W")
    assert store.index.label.tolist() == [1, -1, 1, -1, 1, 1, -1, 1, 1, 1, 0, -1, -1, -1]
    wake = folder(tmp_path / "in", tmp_path / "t", seconds=60, classes=["W"])
    assert (wake.index.label == 0).tolist() == (store.index.label == 1).tolist()


def test_beats_label_windows_by_majority_with_a_note(tmp_path):
    people.ecg(tmp_path / "in", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wfdb.wrann(
            "r",
            "atr",
            np.arange(50, 6000, 83),
            list("NNVNNN" * 6 + "VNVVNV" * 6),
            write_dir=str(tmp_path / "in" / "S01"),
        )
    store = folder(tmp_path / "in", tmp_path / "s", seconds=5)
    assert store.classes == ("N", "V")
    assert store.index.label.tolist() == [0] * 6 + [1] * 6
    assert any(note.startswith("annotations have no duration: a window gets the class of most") for note in store.notes)


def test_annotations_that_occur_once_are_classes_only_by_name(tmp_path):
    annotated_edf(tmp_path / "in" / "a.edf", [(10, None, "lights off"), (95, None, "lights on")])
    store = folder(tmp_path / "in", tmp_path / "s", seconds=10)
    assert store.classes == ()
    assert (
        "occur once per recording label no window: 'lights off', 'lights on'. Use --class to make them classes"
        in store.notes[0]
    )
    named = folder(tmp_path / "in", tmp_path / "t", seconds=10, classes=["lights off", "lights on"])
    assert np.flatnonzero(named.index.label >= 0).tolist() == [1, 9]
    annotated_edf(tmp_path / "in" / "a.edf", [(10, None, "lights off"), *((10 * n, 10, "W") for n in range(12))])
    both = folder(tmp_path / "in", tmp_path / "u", seconds=10, classes=["lights off", "W"])
    assert "if others have a duration: 'lights off'" in both.notes[-1]


# -------------------------------------------------------------------------------------------------------------- paths


def test_labels_and_subjects_are_found_in_paths(tmp_path):
    for activity in ("walk", "rest"):
        for number in (1, 2):
            people.table(tmp_path / "in" / activity / f"p{number:02d}.csv", [activity], number)
    options = {"seconds": 2, "channels": ["x", "y", "z"]}
    store = folder(tmp_path / "in", tmp_path / "s", label_from="folder", **options)
    assert store.classes == ("rest", "walk")
    assert set(store.windows.subject) == {"p01", "p02"}
    found = folder(tmp_path / "in", tmp_path / "t", label_from=r"^(\w+)/", subject=r"p(\d+)", **options)
    assert np.array_equal(found.index.label, store.index.label)
    assert set(found.windows.subject) == {"01", "02"}
    with pytest.raises(PolyadicError, match="--label-from must find the label in every path"):
        folder(tmp_path / "in", tmp_path / "u", label_from="E(.)", **options)
    with pytest.raises(PolyadicError, match="cannot be combined"):
        folder(tmp_path / "in", tmp_path / "u", label_from="folder", label="activity", **options)


# -------------------------------------------------------------------------------------------------------- the command


def test_a_model_remembers_how_its_recordings_were_read(tmp_path):
    people.sleep(tmp_path / "in", 3, epochs=6)
    options = ("--seconds", 5, "--stride", 2.5, "--class", "wake=Sleep stage W", "--class", "other=Sleep stage N2")
    said = polyadic("fit", "in", *options, "--probe", "--subject", r"S(\d+)", *QUICK, cwd=tmp_path)
    assert "left out slow channels: Temp rectal (1 Hz)" in said.stderr
    model = load(tmp_path / "model.safetensors")
    assert model.reading_["classes"] == {"wake": ["Sleep stage W"], "other": ["Sleep stage N2"]}
    assert model.reading_["stride"] == 2.5
    found = json.loads(polyadic("predict", "model.safetensors", "in", "--json", cwd=tmp_path).stdout)
    assert found["windows"] == 3 * (2 * 2 * 6 - 1 + 2)
    scores = json.loads(
        polyadic("evaluate", "model.safetensors", "in", "--folds", "loso", "--json", cwd=tmp_path).stdout
    )
    assert sorted(scores["per_subject"]) == ["01", "02", "03"]
    assert scores["classes"] == ["other", "wake"]
    refused = polyadic("predict", "model.safetensors", "in", "--seconds", 10, "-o", "x.csv", cwd=tmp_path, code=1)
    assert "--seconds is 10 s, but the model has 5 s" in refused.stderr


def test_identical_recordings_under_two_names_are_detected(tmp_path):
    people.wearables(tmp_path / "in", 3)
    shutil.copy(tmp_path / "in" / "p01.csv", tmp_path / "in" / "p09.csv")
    reading = ("--seconds", 2, "--label", "activity")
    said = polyadic("fit", "in", *reading, *QUICK, cwd=tmp_path)
    assert "'p01', 'p09' are the same recording under several names" in said.stderr
    refused = polyadic("evaluate", "model.safetensors", "in", cwd=tmp_path, code=1)
    assert "p01 and p09 are the same recording with two subjects" in refused.stderr
    prepare = ("prepare", "folder", "in", "s.store", *reading)
    polyadic(*prepare, cwd=tmp_path)
    for command in (
        ("tune", "s.store", "-o", "t.safetensors"),
        ("fit", "in", *reading, "--probe", "-o", "t.safetensors"),
        ("report", "model.safetensors", "--data", "s.store", "-o", "r.html"),
    ):
        refused = polyadic(*command, cwd=tmp_path, code=1)
        assert "p01 and p09 are the same recording with two subjects" in refused.stderr
    polyadic(*prepare, "--subject", "(p0)", "--force", cwd=tmp_path)
    refuse_copies(WindowStore(tmp_path / "s.store").windows)  # of one subject


def test_tables_without_the_label_column_are_unlabelled_if_others_have_it(tmp_path):
    people.wearables(tmp_path / "in", 3)
    for name in ("p02", "p03"):
        path = tmp_path / "in" / f"{name}.csv"
        lines = path.read_text().splitlines()
        place = lines[0].split(",").index("activity")
        rows = [line.split(",") for line in lines]
        path.write_text("\n".join(",".join(cell for n, cell in enumerate(row) if n != place) for row in rows) + "\n")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=2, label="activity")
    labelled = store.windows.label >= 0
    assert set(store.windows.subject[labelled].tolist()) == {"p01"}
    assert set(store.windows.subject[~labelled].tolist()) >= {"p02", "p03"}
    note = "p02.csv and 1 other file: read without labels, because there is no column 'activity' (--label)"
    assert note in store.notes
    with pytest.raises(DataError, match=r"p02.csv: there is no column 'activity' \(--label\)"):
        folder(tmp_path / "in", tmp_path / "t", seconds=2, label="activity", pattern="p0[23].csv")


def test_a_label_column_is_no_channel_where_labels_are_not_read(tmp_path):
    people.wearables(tmp_path / "in", 2)
    store = cutting.write_store(tmp_path / "in", tmp_path / "s", Reading(seconds=2, label="activity"), labels=False)
    assert store.channels == folder(tmp_path / "in", tmp_path / "t", seconds=2, label="activity").channels
    assert (store.index.label < 0).all()


# ------------------------------------------------------------------------------------------- labels for a fitted model


@pytest.fixture(scope="module")
def worn(tmp_path_factory):
    """A folder with labelled tables, the same without labels, and a model with a probe."""
    here = tmp_path_factory.mktemp("worn")
    people.wearables(here / "in", 3)
    (here / "new").mkdir()
    for path in sorted((here / "in").glob("p??.csv")):
        rows = [line.split(",") for line in path.read_text().splitlines()]
        place = rows[0].index("activity")
        (here / "new" / path.name).write_text(
            "\n".join(",".join(row[:place] + row[place + 1 :]) for row in rows) + "\n"
        )
    polyadic("fit", "in", "--seconds", 2, "--label", "activity", "--probe", *QUICK, cwd=here)
    return here


def features_table(here, *words):
    done = polyadic("transform", "model.safetensors", *words, "-o", "f.csv", "--force", cwd=here)
    with (here / "f.csv").open(newline="") as file:
        return list(csv.DictReader(file)), done.stderr


def test_transform_writes_the_labels_that_recordings_have(worn):
    store = folder(worn / "in", worn / "s", seconds=2, label="activity")
    expected = ["" if label < 0 else store.classes[label] for label in store.windows.label]
    assert len(set(expected)) > 1
    rows, _ = features_table(worn, "in")
    assert [row["label"] for row in rows] == expected
    unlabelled, said = features_table(worn, "new")
    assert {row["label"] for row in unlabelled} == {""}
    assert said.startswith("read without labels: new: p01.csv: there is no column 'activity' (--label); there are ")
    assert [row["start"] for row in unlabelled] == [row["start"] for row in rows]
    (worn / "new" / "p02.csv").rename(worn / "p02.csv")
    (worn / "new" / "p02.csv").write_text("time\n0\n")
    failed = polyadic("transform", "model.safetensors", "new", "-o", "f.npy", cwd=worn, code=1)
    assert "p02.csv" in failed.stderr
    assert "--label" not in failed.stderr
    (worn / "p02.csv").rename(worn / "new" / "p02.csv")


# ------------------------------------------------------------------------------------- names of channels and subjects


def table(path: Path, heads: str, seed: int = 0, rows: int = 200) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).normal(size=(rows, len(heads.split(","))))
    path.write_text(heads + "\n" + "\n".join(",".join(f"{value:.6f}" for value in row) for row in values) + "\n")


def test_channels_are_matched_by_name_and_renamed(tmp_path: Path) -> None:
    table(tmp_path / "in" / "a.csv", "ax,ay")
    table(tmp_path / "in" / "b.csv", "ay,ax", 1)
    store = folder(tmp_path / "in", tmp_path / "s", seconds=1, fs=50)
    assert any(note.endswith("no times, so 50 Hz is taken as the sampling rate") for note in store.notes)
    assert store.channels == ("ax", "ay")
    swapped = folder(tmp_path / "in" / "b.csv", tmp_path / "b", seconds=1, fs=50)
    np.testing.assert_array_equal(store.windows.select(recording="b").X, swapped.windows.X[:, ::-1])
    table(tmp_path / "in" / "c.csv", "AY,AX", 2)
    with pytest.raises(DataError, match=r"c has the channels 'AY', 'AX', .*--rename AY=ay --rename AX=ax"):
        folder(tmp_path / "in", tmp_path / "t", seconds=1, fs=50)
    for chosen in (None, ["ax"]):
        store = folder(
            tmp_path / "in", tmp_path / "t", seconds=1, fs=50, rename=["AX=ax", "AY=ay"], channels=chosen, force=True
        )
        assert store.channels == ("ax", "ay")[: 2 if chosen is None else 1]
        assert len(store) == 12
    assert Reading.from_json(store.reading).rename == {"AX": "ax", "AY": "ay"}
    with pytest.raises(PolyadicError, match="a renamed channel must be OLD=NEW, but is 'AX'"):
        Reading(rename=["AX"])
    with pytest.raises(DataError, match=r"no recording has the channel 'az'; there are 'ax'"):
        folder(tmp_path / "in", tmp_path / "u", seconds=1, fs=50, rename=["az=z"])


@pytest.mark.parametrize(
    ("pattern", "simple"),
    [
        (r"(S\d+)", True),
        (r"(....)[^/]*$", True),
        (r"(?:^|/)(sub-[A-Za-z0-9]+)_", True),
        (r"([^/_]+)_[^/]*$", True),
        (r"(a|b)\.\w{2}", True),
        (r"((a+)+)$", False),
        (r"(a|b)*c", False),
        (r"(.*)(.*)(.*)(.*)(.*)x", False),
        (r"(a)\1", False),
        (r"(?=(a))", False),
        (r"([", False),
    ],
)
def test_only_simple_patterns_are_run_from_a_model_file(pattern: str, simple: bool) -> None:
    assert is_simple_pattern(pattern) is simple


def test_a_pattern_of_a_model_file_is_run_only_if_it_is_simple(tmp_path: Path) -> None:
    for number, name in enumerate(("a1", "b2")):
        people.table(tmp_path / "in" / f"{name}.csv", ["rest", "walk"], number)
    own = ("--subject", r"((a|b)+\d)")
    fit = ("fit", "in", "--seconds", 2, "--label", "activity", *QUICK)
    polyadic(*fit, *own, cwd=tmp_path)
    failed = polyadic("transform", "model.safetensors", "in", cwd=tmp_path, code=1).stderr
    assert r"fitted with --subject '((a|b)+\d)'" in failed
    assert "give the option again" in failed
    polyadic("transform", "model.safetensors", "in", *own, cwd=tmp_path)
    polyadic(*fit, "--subject", r"([ab]\d)", "--force", cwd=tmp_path)
    polyadic("transform", "model.safetensors", "in", "--force", cwd=tmp_path)


def test_one_bad_file_of_a_folder_is_skipped_on_request(tmp_path):
    people.wearables(tmp_path / "in", 3)
    polyadic("fit", "in", "--seconds", 2, "--label", "activity", "--probe", *QUICK, cwd=tmp_path)
    (tmp_path / "in" / "p02.csv").write_text("time,x,y,z,activity\n0,a,b,c,walk\n")
    for command in ("predict", "evaluate"):
        failed = polyadic(command, "model.safetensors", "in", cwd=tmp_path, code=1)
        assert "p02.csv" in failed.stderr
        assert "--on-error skip" in failed.stderr
        said = polyadic(command, "model.safetensors", "in", "--on-error", "skip", cwd=tmp_path)
        assert "left out p02: line 2: cells must be numbers" in said.stderr
    rows = csv.DictReader((tmp_path / "labels.csv").read_text().splitlines())
    assert {row["recording"] for row in rows} == {"p01", "p03"}


def test_info_takes_a_rate_names_flat_channels_and_gives_one_message_once(tmp_path, monkeypatch):
    for number in range(30):
        table(tmp_path / "in" / f"p{number:02d}.csv", "x,y", number)
    flat = tmp_path / "in" / "p00.csv"
    flat.write_text("x,y\n" + "".join(f"{number % 7},3.5\n" for number in range(100)))
    said = polyadic("info", "in", cwd=tmp_path).stdout
    assert "--fs" in said
    assert "… (30 in all)" in said
    assert len(said.splitlines()) < 15
    facts = json.loads(polyadic("info", "in", "--json", cwd=tmp_path).stdout)
    assert [len(names) for names in facts["unreadable"].values()] == [30]
    flat.rename(tmp_path / "in" / "p29.csv")
    said = polyadic("info", "in", "--fs", 50, cwd=tmp_path).stdout
    assert "50 Hz" in said
    assert not any(word in said for word in ("None", "began", "subject:", "label:"))  # what is not known
    assert "flat channels       y: p29.csv" in said
    facts = json.loads(polyadic("info", "in/p29.csv", "--fs", 50, "--json", cwd=tmp_path).stdout)
    assert (facts["seconds"], facts["flat_channels"]) == (2, ["y"])
    (tmp_path / "in" / "p29.csv").write_text(
        "time,x,activity\n" + "".join(f"{n / 20},{n % 7},walk\n" for n in range(100))
    )
    facts = describe(tmp_path / "in", {})
    assert (facts["rates"], facts["annotated"]) == ({"20 Hz": 1}, {"walk": 1})
    facts = describe(tmp_path / "in", {"fs": 50, "resample": "polyphase"})
    assert facts["lacking"] == {"y": ["p29.csv"]}
    monkeypatch.setattr("polyadic.cli.info._READ_BYTES", 0)
    facts = describe(tmp_path / "in", {"fs": 50})
    assert facts["flat_channels"] == {}
    assert facts["not_checked"].startswith("28 recordings after the first")
