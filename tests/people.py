"""Folders as users have them, written by the real libraries: sleep in EDF+, wearables in CSV, ECG in WFDB, BIDS."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import edfio
import numpy as np

from polyadic.data.readers.common import stem_of
from polyadic.data.readers.tables import read_table
from polyadic.data.reading import Reading
from polyadic.data.recordings import Recording

with warnings.catch_warnings():  # wfdb's own import warns of what pandas will do one day
    warnings.simplefilter("ignore")
    import wfdb

STAGES = ("Sleep stage W", "Sleep stage N2", "Sleep stage R")
FREQUENCIES = {"Sleep stage W": 10.0, "Sleep stage N2": 2.0, "Sleep stage R": 6.0, "walk": 2.0, "rest": 0.0, "run": 5.0}


def wave(rng: np.random.Generator, frequency: float, count: int, fs: float) -> np.ndarray:
    """A noisy oscillation: (count,)."""
    return np.sin(2 * np.pi * frequency * np.arange(count) / fs + rng.uniform(0, 6)) + 0.3 * rng.normal(size=count)


def sleep(
    root: Path, subjects: int = 4, epochs: int = 12, lead: float = 7.0, fs: int = 50, epoch_seconds: int = 10
) -> None:
    """EDF+ recordings with two fast signals, a slow one, and a text for every epoch; the first begins after 7 s."""
    for number in range(subjects):
        rng = np.random.default_rng(number)
        stages = [STAGES[(epoch // 2) % 3] for epoch in range(epochs)]
        eeg = [
            0.1 * rng.normal(size=int(lead * fs)),
            *(wave(rng, FREQUENCIES[s], epoch_seconds * fs, fs) for s in stages),
        ]
        count = int((lead + epoch_seconds * epochs) // 1)
        signals = [
            edfio.EdfSignal(np.concatenate(eeg)[: count * fs], fs, label="EEG Fpz-Cz", physical_dimension="uV"),
            edfio.EdfSignal(np.concatenate(eeg)[::-1][: count * fs].copy(), fs, label="EEG Pz-Oz"),
            edfio.EdfSignal(36 + 0.1 * rng.normal(size=count), 1, label="Temp rectal", physical_dimension="DegC"),
        ]
        notes = [
            edfio.EdfAnnotation(lead + epoch_seconds * epoch, epoch_seconds, text) for epoch, text in enumerate(stages)
        ]
        notes.append(edfio.EdfAnnotation(1.0, None, "Lights off"))
        folder = root / f"S{number + 1:02d}"
        folder.mkdir(parents=True)
        edfio.Edf(signals, annotations=notes).write(folder / "night.edf")


def table(path: Path, activities: list[str], seed: int, fs: int = 25, each: int = 100, **columns: str) -> None:
    """A CSV table of three axes with times and a label for every row; further columns have one value each."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "x", "y", "z", "activity", *columns])
        row = 0
        for activity in activities:
            axes = [wave(rng, FREQUENCIES[activity], each, fs) for _ in range(3)]
            for values in zip(*axes, strict=True):
                writer.writerow([f"{row / fs:.3f}", *(f"{v:.5f}" for v in values), activity, *columns.values()])
                row += 1


def wearables(root: Path, subjects: int = 4, each: int = 100) -> None:
    """A table for each subject, and one about the subjects."""
    for number in range(subjects):
        table(root / f"p{number + 1:02d}.csv", ["walk", "rest", "run", "walk", "run", "rest"], number, each=each)
    (root / "participants.csv").write_text(
        "id,age,sex\n" + "".join(f"p{n + 1:02d},{30 + n},f\n" for n in range(subjects))
    )


def ecg(root: Path, subjects: int = 4, fs: int = 100, seconds: int = 10) -> None:
    """WFDB records whose rhythm changes every ten seconds, or as many as asked for."""
    for number in range(subjects):
        rng = np.random.default_rng(number)
        rhythms = ["(N", "(AFIB"] * 3
        parts = [np.stack([wave(rng, 3 if r == "(N" else 12, seconds * fs, fs) for _ in range(2)], 1) for r in rhythms]
        folder = root / f"S{number + 1:02d}"
        folder.mkdir(parents=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wfdb.wrsamp(
                "r",
                fs=fs,
                units=["mV", "mV"],
                sig_name=["I", "II"],
                p_signal=np.concatenate(parts),
                fmt=["16", "16"],
                write_dir=str(folder),
            )
            wfdb.wrann(
                "r",
                "atr",
                sample=np.arange(6) * seconds * fs,
                symbol=["+"] * 6,
                aux_note=rhythms,
                write_dir=str(folder),
            )


def bids(root: Path, subjects: int = 4, fs: int = 50, seconds: int = 8) -> None:
    """A BIDS data set of EEG by mne-bids: EDF for some, BrainVision for others, trials of eyes open and closed."""
    import mne
    from mne_bids import BIDSPath, write_raw_bids

    for number in range(subjects):
        rng = np.random.default_rng(number)
        trials = ["open", "closed"] * 3
        parts = [[wave(rng, 3 if t == "open" else 10, seconds * fs, fs) for _ in range(2)] for t in trials]
        data = 1e-5 * np.concatenate(parts, axis=1)
        raw = mne.io.RawArray(data, mne.create_info(["Oz", "Cz"], fs, "eeg"), verbose="ERROR")
        raw.info["line_freq"] = 50
        raw.set_annotations(mne.Annotations(float(seconds) * np.arange(6), [float(seconds)] * 6, trials))
        path = BIDSPath(subject=f"{number + 1:02d}", task="rest", datatype="eeg", root=root)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_raw_bids(
                raw,
                path,
                format="EDF" if number % 2 else "BrainVision",
                allow_preload=True,
                overwrite=True,
                verbose="ERROR",
            )


def night_and_hypnogram(root: Path) -> None:
    """Write a recording in the layout of Sleep-EDF, with stages in a separate file."""
    root.mkdir(parents=True)
    rng = np.random.default_rng(0)
    edfio.Edf([edfio.EdfSignal(rng.normal(size=6000), 50, label="EEG Fpz-Cz")]).write(root / "SC4001E0-PSG.edf")
    notes = [edfio.EdfAnnotation(30 * n, 30, "Sleep stage W") for n in range(4)]
    edfio.Edf([], annotations=notes).write(root / "SC4001EC-Hypnogram.edf")


def read_csv(path: Path, **options: Any) -> Recording:
    """The recording of a table, with the options of `Reading`."""
    ((recording,), _) = read_table(path, Reading(**options), stem_of(path))
    return recording
