"""Ctrl-C, SIGTERM and SIGHUP as people, schedulers and closed terminals send them: what is left, and how to resume."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import edfio
import numpy as np
import pytest
from command_line import Piped, polyadic

from polyadic import SALS, load
from polyadic.data import synthetic

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
LONG = shlex.split("fit w.npz --method sals --rank 16 -o m.safetensors")
"""A fit that converges after 40 sweeps, in seconds: a shorter one may end before it is stopped."""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return windows_in(tmp_path)


def windows_in(folder: Path) -> Path:
    signals = synthetic(2000, 6, 256)
    np.savez(folder / "w.npz", X=signals.X, fs=signals.fs, y=signals.label)
    return folder


def stopped(process: subprocess.Popen[str] | Piped, number: int, when: Callable[[], object]) -> str:
    """Send a signal as soon as a condition holds, and return the output of the process."""
    until = time.monotonic() + 120
    while not when():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.005)
    process.send_signal(number)
    said = process.communicate(timeout=120)[1]
    assert "Traceback" not in said
    return said


def swept(process: subprocess.Popen[str] | Piped) -> Callable[[], bool]:
    """Return whether a fit has reported its first sweep."""
    return lambda: "sweep 1" in process.stderr.readline()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def said_command(said: str) -> list[str]:
    """Return the command that a stopped process printed."""
    line = said.rstrip().splitlines()[-1]
    assert line.startswith("  polyadic ")
    return shlex.split(line)[1:]


# --------------------------------------------------------------------------------------------------------- fit


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SALS:
    """Return the model of an uninterrupted fit."""
    folder = windows_in(tmp_path_factory.mktemp("whole"))
    said = polyadic(*LONG, "--sweeps", "12", "--resume", cwd=folder).stderr
    assert "no checkpoint m.safetensors.checkpoint: starting anew\n" in said
    return load(folder / "m.safetensors")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_stopped_fit_resumes_to_the_bit_by_the_command_it_prints(number, code, whole, here):
    (here / "m.safetensors").touch()
    words = [*LONG, "--force"]
    process = Piped([*words, "--sweeps", "100000"], here)
    said = stopped(process, number, swept(process))
    assert process.returncode == code
    assert "polyadic: stopped; progress is saved in m.safetensors.checkpoint. To resume:" in said
    assert (here / "m.safetensors.checkpoint").is_file()
    assert (here / "m.safetensors").read_bytes() == b""
    command = said_command(said)
    assert command == [*words, "--sweeps", "100000", "--resume"]
    if number != signal.SIGINT:  # what is left is the same, whatever the signal
        return
    refused = polyadic(*words, cwd=here, code=1).stderr
    assert "m.safetensors.checkpoint already contains the checkpoint of a fit" in refused
    said = polyadic(*command, "--sweeps", "12", cwd=here).stderr
    assert "resuming from m.safetensors.checkpoint: after sweep " in said
    assert names(here) == ["m.safetensors", "w.npz"]
    ours = load(here / "m.safetensors")
    assert ours.history_["loss"] == whole.history_["loss"]
    for one, other in zip(ours.factors_, whole.factors_, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_fit_of_recordings_resumes_although_they_are_cut_again_and_leaves_no_temporary_folder(tmp_path):
    rng = np.random.default_rng(0)
    for person in ("anna", "bert"):
        signals = [edfio.EdfSignal(rng.normal(size=300_000), 100, label=name) for name in ("C3", "C4", "O1", "O2")]
        (tmp_path / "own" / person).mkdir(parents=True)
        edfio.Edf(signals).write(tmp_path / "own" / person / "one.edf")
    (tmp_path / "temporary").mkdir()
    options = "--method sals --seconds 2 --rank 16 -o 'model of mine.safetensors'"
    words = ["fit", "own", *shlex.split(options)]
    process = Piped([*words, "--sweeps", "100000"], tmp_path, TMPDIR=str(tmp_path / "temporary"))
    said = stopped(process, signal.SIGTERM, swept(process))
    assert process.returncode == 143
    assert names(tmp_path / "temporary") == []
    polyadic(*said_command(said), "--sweeps", "3", cwd=tmp_path)
    assert names(tmp_path) == ["model of mine.safetensors", "own", "temporary"]


# ------------------------------------------------------------------------------------------------ other commands


def test_a_stopped_prepare_leaves_nothing(tmp_path):
    (tmp_path / "own").mkdir()
    for person in range(40):
        signals = [edfio.EdfSignal(np.random.default_rng(person).normal(size=30_000), 500, label="C3")]
        edfio.Edf(signals).write(tmp_path / "own" / f"{person}.edf")
    words = ("prepare", "folder", "own", "s.store", "--seconds", "2")
    process = Piped(words, tmp_path)
    samples = tmp_path / ".s.store.writing" / "samples.npy"
    said = stopped(process, signal.SIGTERM, lambda: samples.exists() and samples.stat().st_size > 1000)
    assert process.returncode == 143, said
    assert said.strip() == "polyadic: stopped; no partial output is left"
    assert names(tmp_path) == ["own"]


def test_a_stopped_tune_ends_with_the_code_of_its_signal_and_writes_nothing(tmp_path):
    signals = synthetic(120, 2, 64)
    np.savez(tmp_path / "w.npz", X=signals.X, fs=signals.fs, y=signals.label, subject=signals.subject)
    process = Piped(["tune", "w.npz", "--tries", "10000", "-o", "t.safetensors"], tmp_path)
    stopped(process, signal.SIGHUP, lambda: "(no label)" in process.stderr.readline())
    assert process.returncode == 129
    assert names(tmp_path) == ["w.npz"]
