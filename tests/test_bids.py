"""Data sets in the BIDS layout: recordings, participants as subjects, events as labels."""

from __future__ import annotations

import csv
import json
import shutil
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


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set written by mne-bids, in `in`, and a model of it."""
    pytest.importorskip("mne_bids")
    pytest.importorskip("pybv")
    here = tmp_path_factory.mktemp("fitted")
    people.bids(here / "in")
    polyadic("fit", "in", "--seconds", 4, "--probe", "--rank", 3, "--sweeps", 3, cwd=here)
    return here


def test_predictions_are_derivatives_that_mne_bids_reads_back(fitted: Path, tmp_path: Path) -> None:
    import mne_bids

    data, model = tmp_path / "in", fitted / "model.safetensors"
    shutil.copytree(fitted / "in", data)
    out = data / "derivatives" / "v0.3"
    for _ in range(2):  # derivatives are updated, and are no recordings of the data set
        polyadic("predict", model, "in", "-o", "in/derivatives/v0.3/", cwd=tmp_path)
    polyadic("predict", model, "in", "-o", "labels.csv", cwd=tmp_path)
    assert mne_bids.get_entity_vals(out, "subject") == ["01", "02", "03", "04"]
    root = mne_bids.BIDSPath(root=out, task="rest", description="polyadic", suffix="events", extension=".tsv")
    found = sorted(root.match(), key=lambda path: str(path.subject))
    assert [path.fpath.parent.relative_to(out).as_posix() for path in found] == [f"sub-0{n}/eeg" for n in range(1, 5)]
    rows = list(csv.DictReader((tmp_path / "labels.csv").read_text().splitlines()))
    for path in found:
        events = list(csv.DictReader(path.fpath.read_text().splitlines(), delimiter="\t"))
        same = [row for row in rows if row["subject"] == f"sub-{path.subject}"]
        assert [(float(row["start"]), row["label"]) for row in same] == [
            (float(event["onset"]), event["trial_type"]) for event in events
        ]
        columns = json.loads(path.copy().update(extension=".json").fpath.read_text())
        assert list(columns) == list(events[0])
        assert list(columns["trial_type"]["Levels"]) == ["closed", "open"]
    description = json.loads((out / "dataset_description.json").read_text())
    assert description["DatasetType"] == "derivative"
    assert description["GeneratedBy"][0]["Name"] == "polyadic"


def test_conflicting_rows_of_one_participant_are_an_error_that_names_them(tmp_path: Path) -> None:
    written(tmp_path / "in")
    table = tmp_path / "in" / "participants.tsv"
    whole = table.read_text()
    table.write_text(whole + "sub-01\tpatient\n")  # the same once more
    assert folder(tmp_path / "in", tmp_path / "s", seconds=5, label="group").classes == ("control", "patient")
    table.write_text(whole + "sub-01\tcontrol\n")
    with pytest.raises(DataError, match=r"participants\.tsv: rows 2 and 4 both describe 'sub-01' .*'group'"):
        folder(tmp_path / "in", tmp_path / "t", seconds=5, label="group")
