"""Small folders in the published layouts of the four datasets, written by the real libraries."""

from __future__ import annotations

import csv
import datetime
import warnings
from pathlib import Path

import edfio
import numpy as np
import scipy.io

with warnings.catch_warnings():  # wfdb's own import warns of what pandas will do one day
    warnings.simplefilter("ignore")
    import wfdb

SLEEP_CHANNELS = (
    ("EEG Fpz-Cz", 100, "uV"),
    ("EEG Pz-Oz", 100, "uV"),
    ("EOG horizontal", 100, "uV"),
    ("Resp oro-nasal", 1, ""),
    ("EMG submental", 1, "uV"),
    ("Temp rectal", 1, "DegC"),
    ("Event marker", 1, ""),
)
EEG = ["F3-M2", "F4-M1", "C3-M2", "C4-M1", "O1-M2", "O2-M1"]
MGH_CHANNELS = [*EEG, "E1-M2", "Chin1-Chin2", "ABD", "CHEST", "AIRFLOW", "SaO2", "ECG"]
PTB_LEADS = ["I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6"]
HAR_CHANNELS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
ACTIVITIES = ["WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING"]


def night(
    folder: Path, name: str, stages: list[tuple[str, int]], epochs: int, begin: int = 0, score: str = "C"
) -> dict[str, np.ndarray]:
    """A PSG of that many epochs and its hypnogram, stages with their numbers of epochs; returns the digits."""
    rng = np.random.default_rng(int.from_bytes(name.encode(), "big") % 2**32)
    digits = {label: rng.integers(-2000, 2000, epochs * 30 * fs).astype(np.int16) for label, fs, _ in SLEEP_CHANNELS}
    signals = [
        edfio.EdfSignal.from_digital(
            digits[label],
            sampling_frequency=fs,
            label=label,
            physical_dimension=unit,
            physical_range=(-200 + row, 200),
            digital_range=(-2048, 2047),
        )
        for row, (label, fs, unit) in enumerate(SLEEP_CHANNELS)
    ]
    start = datetime.time(16, begin)
    edfio.Edf(signals, starttime=start, data_record_duration=30).write(folder / f"{name}-PSG.edf")
    onset, notes = 0, []
    for text, count in stages:
        notes.append(edfio.EdfAnnotation(onset * 30, count * 30, text))
        onset += count
    edfio.Edf([], annotations=notes, starttime=start).write(folder / f"{name[:7]}{score}-Hypnogram.edf")
    return digits


def sleep_edf(root: Path) -> dict[str, dict[str, np.ndarray]]:
    """Two subjects with two nights each."""
    folder = root / "sleep-cassette"
    folder.mkdir(parents=True)
    s = "Sleep stage "
    nights = {
        "SC4001E0": [(s + "W", 4), (s + "1", 2), (s + "2", 3), (s + "3", 1), (s + "4", 1), (s + "R", 2), (s + "W", 3)],
        "SC4002E0": [(s + "W", 2), (s + "2", 5), ("Movement time", 1), (s + "R", 4), (s + "?", 50)],
        "SC4011E0": [(s + "W", 1), (s + "1", 6), (s + "3", 2), (s + "W", 1)],
        "SC4012E0": [(s + "?", 2), (s + "W", 3), (s + "4", 4), (s + "R", 2), (s + "W", 2)],
    }
    epochs = {"SC4001E0": 16, "SC4002E0": 14, "SC4011E0": 10, "SC4012E0": 13}
    return {
        name: night(folder, name, stages, epochs[name], begin) for begin, (name, stages) in enumerate(nights.items())
    }


def mgh_recording(root: Path, name: str, stages: list[tuple[str | None, int]], seconds: int) -> np.ndarray:
    """Write a recording in a separate folder; stages with their seconds, None for no labels."""
    folder = root / name
    folder.mkdir(parents=True)
    rng = np.random.default_rng(int.from_bytes(name.encode(), "big") % 2**32)
    samples = seconds * 200
    digits = rng.integers(-3000, 3000, (len(MGH_CHANNELS), samples)).astype(np.int16)
    scipy.io.savemat(folder / f"{name}.mat", {"val": digits}, format="4")
    lines = [f"{name} {len(MGH_CHANNELS)} 200 {samples}"]
    for row, channel in enumerate(MGH_CHANNELS):
        checksum = int(digits[row].astype(np.int64).sum()) & 0xFFFF
        checksum -= 65536 * (checksum > 32767)
        lines.append(f"{name}.mat 16+24 {10 + row}(0)/uV 16 0 {digits[row, 0]} {checksum} 0 {channel}")
    (folder / f"{name}.hea").write_text("\n".join(lines) + "\n")
    if stages:
        import h5py

        with h5py.File(folder / f"{name}-arousal.mat", "w") as file:
            group = file.create_group("data/sleep_stages")
            columns = {
                key: np.zeros((1, samples), np.uint8)
                for key in ("undefined", "nonrem1", "nonrem2", "nonrem3", "rem", "wake")
            }
            first = 0
            for stage, length in stages:
                columns[stage or "undefined"][0, first * 200 : (first + length) * 200] = 1
                first += length
            for key, column in columns.items():
                group[key] = column
            file["data/arousals"] = np.zeros((1, samples), np.int32)
    return digits


def mgh(root: Path) -> dict[str, np.ndarray]:
    """Three recordings with labels and one of the test set without."""
    return {
        "tr03-0005": mgh_recording(root, "tr03-0005", [("wake", 60), ("nonrem1", 45), ("nonrem2", 60)], 180),
        "tr04-0008": mgh_recording(root, "tr04-0008", [(None, 30), ("nonrem3", 60), ("rem", 30)], 120),
        "tr04-0010": mgh_recording(root, "tr04-0010", [("rem", 90)], 95),
        "te03-0001": mgh_recording(root, "te03-0001", [], 60),
    }


def ptb_xl(root: Path, patients: tuple[int, ...] = (15709, 13243, 15709, 20372), samples: int = 5000) -> dict:
    """Records at 500 Hz of these patients, with the metadata."""
    folder = root / "records500" / "00000"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(5)
    rows, digits = [], {}
    for number, patient in enumerate(patients, start=1):
        name = f"{number:05d}_hr"
        digits[name] = rng.integers(-3000, 3000, (samples, 12)).astype(np.int16)
        with warnings.catch_warnings():  # of pandas, for what wfdb does
            warnings.simplefilter("ignore")
            wfdb.wrsamp(
                name,
                fs=500,
                units=["mV"] * 12,
                sig_name=PTB_LEADS,
                d_signal=digits[name],
                fmt=["16"] * 12,
                adc_gain=[1000.0] * 12,
                baseline=[0] * 12,
                write_dir=str(folder),
            )
        rows.append(
            {
                "ecg_id": number,
                "patient_id": f"{patient}.0",
                "age": "56.0",
                "sex": patient % 2,
                "strat_fold": number % 10 + 1,
                "filename_lr": f"records100/00000/{number:05d}_lr",
                "filename_hr": f"records500/00000/{name}",
            }
        )
    with (root / "ptbxl_database.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return digits


def har(root: Path, X: dict[str, np.ndarray], y: dict[str, np.ndarray], subject: dict[str, np.ndarray]) -> Path:
    """The folder "UCI HAR Dataset" with these windows (n, 9, 128), labels from 0 on and people, by part."""
    base = root / "UCI HAR Dataset"
    base.mkdir(parents=True)
    legend = "".join(f"{number} {name}\n" for number, name in enumerate(ACTIVITIES, start=1))
    (base / "activity_labels.txt").write_text(legend)
    for part in ("train", "test"):
        folder = base / part / "Inertial Signals"
        folder.mkdir(parents=True)
        for row, channel in enumerate(HAR_CHANNELS):
            lines = (" ".join(f"{value: .7e}" for value in window) for window in X[part][:, row])
            (folder / f"{channel}_{part}.txt").write_text("".join(f" {line}\n" for line in lines))
        (base / part / f"y_{part}.txt").write_text("".join(f"{label + 1}\n" for label in y[part]))
        (base / part / f"subject_{part}.txt").write_text("".join(f"{who}\n" for who in subject[part]))
    return base
