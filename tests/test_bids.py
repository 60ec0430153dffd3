"""Data sets in the BIDS layout: recordings, participants as subjects, events as labels."""

from __future__ import annotations

from pathlib import Path

import edfio
import numpy as np
import people
import pytest
from command_line import polyadic

from polyadic.data import folder
from polyadic.errors import DataError


def written(root: Path, subjects: int = 2) -> None:
    """A data set of EDF files with tables as BIDS has them."""
    (root / "derivatives" / "sub-01" / "eeg").mkdir(parents=True)
    (root / "dataset_description.json").write_text('{"Name": "test", "BIDSVersion": "1.9.0"}')
    rows = [f"sub-{number + 1:02d}\t{'control' if number else 'patient'}" for number in range(subjects)]
    (root / "participants.tsv").write_text("participant_id\tgroup\n" + "\n".join(rows) + "\n")
    for number in range(subjects):
        folder = root / f"sub-{number + 1:02d}" / "eeg"
        folder.mkdir(parents=True)
        rng = np.random.default_rng(number)
        name = f"sub-{number + 1:02d}_task-rest"
        signals = [edfio.EdfSignal(rng.normal(size=2000), 50, label=label) for label in ("Oz", "Cz")]
        edfio.Edf(signals).write(folder / f"{name}_eeg.edf")
        events = [f"{10 * n}\t10\t{'open' if n % 2 else 'closed'}" for n in range(4)]
        (folder / f"{name}_events.tsv").write_text("onset\tduration\ttrial_type\n" + "\n".join(events) + "\n")
        (folder / f"{name}_channels.tsv").write_text("name\ttype\tunits\nOz\tEEG\tuV\nCz\tEEG\tuV\n")
    edf = root / "sub-01" / "eeg" / "sub-01_task-rest_eeg.edf"
    (root / "derivatives" / "sub-01" / "eeg" / edf.name).write_bytes(edf.read_bytes())


def test_a_data_set_has_its_participants_as_subjects_and_its_events_as_labels(tmp_path: Path) -> None:
    written(tmp_path / "in")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=5)
    assert store.classes == ("closed", "open")
    assert np.bincount(store.index.label).tolist() == [8, 8]
    assert set(store.windows.subject) == {"sub-01", "sub-02"}
    assert store.index.subjects_from == "participants.tsv"
    assert len(store.recordings) == 2  # derivatives are no recordings


def test_a_column_of_the_participants_may_be_the_label(tmp_path: Path) -> None:
    written(tmp_path / "in")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=5, label="group")
    assert store.classes == ("control", "patient")
    assert store.windows.select(subject="sub-01").label.tolist() == [1] * 8
    message = r"no column 'Group' .*participants\.tsv has 'participant_id', 'group', .*_events\.tsv has .*mean 'group'"
    with pytest.raises(DataError, match=message):
        folder(tmp_path / "in", tmp_path / "t", seconds=5, label="Group")


def test_participants_match_with_and_without_the_prefix_and_are_counted(tmp_path: Path) -> None:
    written(tmp_path / "in")
    table = tmp_path / "in" / "participants.tsv"
    table.write_text("participant_id\tgroup\n01\tpatient\n")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=5, label="group")
    assert store.windows.select(subject="sub-01").label.tolist() == [0] * 8
    assert store.windows.select(subject="sub-02").label.tolist() == [-1] * 8
    assert "participants.tsv has a 'group' for 1 of 2 subjects (--label)" in store.notes
    table.write_text("participant_id\tgroup\nA\tpatient\n")
    with pytest.raises(DataError, match="for none of the subjects: it describes 'A', the recordings are of '01', '02'"):
        folder(tmp_path / "in", tmp_path / "t", seconds=5, label="group")


def test_a_bad_channel_is_missing_in_its_recording_alone(tmp_path: Path) -> None:
    written(tmp_path / "in")
    bad = tmp_path / "in" / "sub-02" / "eeg" / "sub-02_task-rest_channels.tsv"
    bad.write_text("name\ttype\tstatus\nOz\tEEG\tgood\nCz\tEEG\tbad\n")
    store = folder(tmp_path / "in", tmp_path / "s", seconds=5)
    missing = np.isnan(store.windows.X).all(axis=2)
    assert missing[store.windows.subject == "sub-02"].tolist() == [[False, True]] * 8
    assert not missing[store.windows.subject == "sub-01"].any()
    assert "sub-02_task-rest_eeg.edf: bad in channels.tsv, so missing: 'Cz'" in store.notes
    assert not store.skipped


def test_a_data_set_written_by_mne_bids_is_fitted_and_evaluated(tmp_path: Path) -> None:
    pytest.importorskip("mne_bids")
    pytest.importorskip("pybv")
    people.bids(tmp_path / "in")
    options = ("--probe", "plain", "--rank", 3, "--sweeps", 3)
    said = polyadic("fit", "in", "--seconds", 4, *options, cwd=tmp_path)
    assert "4 subjects (from participants.tsv)" in said.stdout
    assert "closed, open" in said.stdout
    polyadic("evaluate", "model.safetensors", "in", "--transductive", "--probe", "plain", cwd=tmp_path)
    polyadic("predict", "model.safetensors", "in", "-o", "labels.csv", cwd=tmp_path)


def test_conflicting_rows_of_one_participant_are_an_error_that_names_them(tmp_path: Path) -> None:
    written(tmp_path / "in")
    table = tmp_path / "in" / "participants.tsv"
    whole = table.read_text()
    table.write_text(whole + "sub-01\tpatient\n")  # the same once more
    assert folder(tmp_path / "in", tmp_path / "s", seconds=5, label="group").classes == ("control", "patient")
    table.write_text(whole + "sub-01\tcontrol\n")
    with pytest.raises(DataError, match=r"participants\.tsv: rows 2 and 4 both describe 'sub-01' .*'group'"):
        folder(tmp_path / "in", tmp_path / "t", seconds=5, label="group")
