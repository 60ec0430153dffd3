"""Objects of MNE give recordings and windows with the same values, times and gaps."""

from __future__ import annotations

import numpy as np
import pytest

from polyadic.data.readers.mne import from_epochs, from_raw
from polyadic.data.recordings import Annotation, window_starts

FS = 50.0


def raw_of(samples=1000, first_samp=0, meas_date=None):
    mne = pytest.importorskip("mne")
    info = mne.create_info(["Fpz", "Pz", "HEOG", "STI"], FS, ["eeg", "eeg", "eog", "stim"], verbose="ERROR")
    values = np.random.default_rng(0).normal(size=(4, samples)) * 1e-5
    raw = mne.io.RawArray(values, info, first_samp=first_samp, verbose="ERROR")
    if meas_date:
        raw.set_meas_date(meas_date)
    return raw, values


def annotate(raw, onsets, durations, texts, **arguments):
    import mne

    raw.set_annotations(mne.Annotations(onsets, durations, texts, **arguments), verbose="ERROR")


def test_values_names_and_units_are_those_of_the_raw():
    raw, values = raw_of()
    recording = from_raw(raw)
    assert recording.signal.dtype == np.float32
    assert np.array_equal(recording.signal, values.astype(np.float32))
    assert (recording.name, recording.subject, recording.fs) == ("raw", "raw", FS)
    assert recording.channels == ("Fpz", "Pz", "HEOG", "STI")
    assert recording.units == ("V", "V", "V", "")
    assert not np.isnan(recording.signal).any()
    assert recording.annotations == ()


def test_names_come_from_the_file_and_its_header(tmp_path):
    raw, values = raw_of()
    raw.info["subject_info"] = {"his_id": "S07"}
    raw.save(tmp_path / "sitting_raw.fif", verbose="ERROR")
    import mne

    again = mne.io.read_raw_fif(tmp_path / "sitting_raw.fif", verbose="ERROR")
    recording = from_raw(again)
    again.close()
    assert (recording.name, recording.subject) == ("sitting_raw", "S07")
    assert np.allclose(recording.signal, values, rtol=1e-6, atol=0)
    assert from_raw(raw_of()[0]).subject == from_raw(raw_of()[0]).name == "raw"


@pytest.mark.parametrize("first_samp", [0, 333])
@pytest.mark.parametrize("dated", [False, True])
def test_annotations_count_from_the_first_sample(first_samp, dated):
    from datetime import UTC, datetime

    raw, _ = raw_of(first_samp=first_samp, meas_date=datetime(2020, 1, 1, tzinfo=UTC) if dated else None)
    annotate(raw, [12.0, 4.0], [2.0, 6.0], ["Sleep stage 2", "Sleep stage W"])
    onsets, texts = [4.0, 12.0], ["Sleep stage W", "Sleep stage 2"]
    found = from_raw(raw).annotations
    assert all(isinstance(one, Annotation) for one in found)
    assert [one.text for one in found] == texts
    assert [one.onset for one in found] == pytest.approx(onsets)
    assert [one.duration for one in found] == [6.0, 2.0]
    cropped = from_raw(raw.copy().crop(2.0, 15.0, verbose="ERROR"))
    assert [one.onset for one in cropped.annotations] == pytest.approx([2.0, 10.0])


@pytest.mark.parametrize(("text", "first_samp"), [("BAD_movement", 0), ("bad blink", 77)])
def test_samples_marked_as_bad_are_missing_and_no_others(text, first_samp):
    raw, _ = raw_of(first_samp=first_samp)
    annotate(raw, [2.0, 10.0], [1.5, 3.0], [text, "arousal"])
    expected = np.zeros((4, 1000), bool)
    expected[:, 100:175] = True
    recording = from_raw(raw)
    assert np.array_equal(np.isnan(recording.signal), expected)


def test_an_annotation_of_some_channels_marks_only_those():
    raw, _ = raw_of()
    annotate(raw, [0.0], [1.0], ["BAD_loose"], ch_names=[["Pz"]])
    expected = np.zeros((4, 1000), bool)
    expected[1, :50] = True
    assert np.array_equal(np.isnan(from_raw(raw).signal), expected)


def test_no_window_crosses_the_edge_of_joined_raws():
    import_mne = pytest.importorskip("mne")
    joined = import_mne.concatenate_raws([raw_of(430)[0], raw_of(570)[0]], verbose="ERROR")
    recording = from_raw(joined)
    assert {one.text for one in recording.annotations} == {"BAD boundary", "EDGE boundary"}
    assert window_starts(recording, 100).tolist() == [0, 100, 200, 300, 430, 530, 630, 730, 830]


def epochs_of(**arguments):
    mne = pytest.importorskip("mne")
    raw, values = raw_of()
    events = np.array([[100, 0, 7], [300, 0, 2], [500, 0, 7], [995, 0, 2]])
    settings = {"tmin": -0.2, "tmax": 0.5, "baseline": None, "preload": True, "verbose": "ERROR", **arguments}
    return mne.Epochs(raw, events, {"go": 7, "stop": 2}, **settings), values


@pytest.mark.parametrize("preload", [True, False])
def test_epochs_are_windows_with_the_names_of_their_events(preload):
    epochs, values = epochs_of(preload=preload)
    epochs.drop_bad(verbose="ERROR")
    windows = from_epochs(epochs)
    # The last event is too near the end: MNE drops it.
    expected = [values[:, at - 10 : at + 26] for at in (100, 300, 500)]
    assert windows.X.dtype == np.float32
    assert np.array_equal(windows.X, np.array(expected, np.float32)[:, : windows.X.shape[1]])
    assert windows.classes == ("stop", "go")
    assert windows.label.tolist() == [1, 0, 1]
    assert windows.fs == FS
    assert windows.channels == ("Fpz", "Pz", "HEOG", "STI")
    assert windows.units == ("V", "V", "V", "")
    assert set(windows.subject) == {""}


def test_metadata_of_epochs_give_subjects():
    pandas = pytest.importorskip("pandas")
    epochs, _ = epochs_of(tmax=0.0)
    epochs.drop_bad(verbose="ERROR")
    epochs.metadata = pandas.DataFrame({"subject": ["s1", "s1", "s2", "s2"]})
    assert from_epochs(epochs).subject.tolist() == ["s1", "s1", "s2", "s2"]
