"""The report of a folder of EEG with planted rhythms: its first components name band, channel and stage of each."""

from __future__ import annotations

import re
from pathlib import Path

import edfio
import numpy as np
import pytest
from command_line import polyadic

# A folder of synthetic nights in EDF, with alpha at O1 in W, spindles at Cz in N2 and slow waves at Fz in N3.

STAGES = ("W", "N2", "N3", "R")
CHANNELS = ("EEG Fz", "EEG Cz", "EEG Pz", "EEG O1", "EMG chin")
PLANTED = {
    "alpha": ("EEG O1", "W", (8.0, 12.0)),
    "sigma": ("EEG Cz", "N2", (12.0, 16.0)),
    "delta": ("EEG Fz", "N3", (0.0, 4.0)),
}
"""The rhythms by the name of their band: channel, stage, and the limits of the band in Hz."""
FS, SECONDS = 64, 10


def write_nights(folder: Path, count: int = 6, rounds: int = 3, seed: int = 0) -> Path:
    """Write EDF files with annotations, one for each subject."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    hypnogram = [stage for _ in range(rounds) for stage in ("W", "W", "N2", "N2", "N3", "N3", "N2", "R", "R")]
    for person in range(count):
        gain = rng.lognormal(0.0, 0.15, (len(CHANNELS), 1))
        signal = gain * np.concatenate([_epoch(rng, stage) for stage in hypnogram], axis=1)
        signals = [
            edfio.EdfSignal(row.clip(-500, 500), FS, label=name, physical_dimension="uV", physical_range=(-500, 500))
            for row, name in zip(signal, CHANNELS, strict=True)
        ]
        notes = [edfio.EdfAnnotation(SECONDS * number, SECONDS, stage) for number, stage in enumerate(hypnogram)]
        edfio.Edf(signals, annotations=notes).write(folder / f"person{person + 1}.edf")
    return folder


def _epoch(rng: np.random.Generator, stage: str) -> np.ndarray:
    """One window: a background that falls with frequency in all channels, and the rhythm of the stage."""
    time = np.arange(SECONDS * FS) / FS
    signal = _background(rng, len(CHANNELS), len(time))
    wave = {"W": _alpha, "N2": _spindles, "N3": _slow_waves}.get(stage)
    if wave is not None:
        name = {"W": "alpha", "N2": "sigma", "N3": "delta"}[stage]
        place = CHANNELS.index(PLANTED[name][0])
        near = np.exp(-np.abs(np.arange(len(CHANNELS) - 1) - place) / 0.6)
        signal[:-1] += near[:, None] * rng.lognormal(0.0, 0.2) * wave(rng, time)
    return signal


def _background(rng: np.random.Generator, channels: int, length: int) -> np.ndarray:
    spectrum = np.fft.rfft(rng.normal(size=(channels, length)))
    frequency = np.fft.rfftfreq(length, 1 / FS)
    return 14 * np.fft.irfft(spectrum / np.maximum(frequency, 0.5) ** 0.5, length)


def _alpha(rng: np.random.Generator, time: np.ndarray) -> np.ndarray:
    return 35 * np.sin(2 * np.pi * rng.normal(10, 0.3) * time + rng.uniform(0, 6))


def _slow_waves(rng: np.random.Generator, time: np.ndarray) -> np.ndarray:
    return 90 * np.sin(2 * np.pi * rng.normal(1.2, 0.1) * time + rng.uniform(0, 6))


def _spindles(rng: np.random.Generator, time: np.ndarray) -> np.ndarray:
    """Bursts of a second, one every few seconds."""
    middles = np.arange(1.5, SECONDS, 2.5) + rng.uniform(-0.5, 0.5, 4)
    bursts = np.exp(-0.5 * ((time[:, None] - middles) / 0.4) ** 2).sum(axis=1)
    return 45 * bursts * np.sin(2 * np.pi * rng.normal(13.5, 0.2) * time + rng.uniform(0, 6))


def write_report(folder, fit=()) -> str:
    """What a new user would do: a folder, a fit, a report."""
    write_nights(folder / "nights")
    stages = [word for stage in STAGES for word in ("--class", stage)]
    cut = ("--seconds", str(SECONDS), *stages)
    polyadic("prepare", "folder", "nights", "my.store", *cut, cwd=folder)
    polyadic("fit", "my.store", *fit, "-o", "m.safetensors", cwd=folder)
    quick = ("--transductive", "--probe", "plain")
    polyadic("report", "m.safetensors", "--data", "my.store", *quick, cwd=folder)
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return write_report(tmp_path_factory.mktemp("nights"), fit=("--rank", "6"))


SENTENCE = re.compile(r'data-sentence="([^;]+); (\w+), (\d+) Hz .*? Highest in (\w+) \(\+[\d.]+ dB, d \+([\d.]+)\)')


def assert_first_three_are_planted(page: str, least_effect: float) -> None:
    rows = re.findall(r"<tr data-component=.*?</tr>", page, re.DOTALL)[:3]
    assert len(rows) == 3
    found = {}
    for row in rows:
        assert "folded" not in row.partition(">")[0]
        channel, name, peak, stage, effect = SENTENCE.search(row).groups()
        found[name] = (channel, stage)
        low, high = PLANTED[name][2]
        assert low <= float(peak) <= high
        assert float(effect) > least_effect
    assert found == {name: (channel, stage) for name, (channel, stage, _) in PLANTED.items()}


def test_the_first_components_name_the_planted_rhythms(page):
    assert_first_three_are_planted(page, 1.5)


def test_each_subject_has_a_timeline(page):
    assert re.findall(r"<option value=\"timeline-\d\">(person\d)</option>", page) == [f"person{n}" for n in range(1, 7)]
