"""Ctrl-C, SIGTERM and SIGHUP as people, schedulers and closed terminals send them: what is left, and how to resume."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import edfio
import numpy as np
import pytest
from command_line import FRESH, Piped, polyadic

from polyadic import ATD, load
from polyadic.data import synthetic

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
LONG = (
    "fit",
    "w.npz",
    "--method",
    "atd",
    "--rank",
    "4",
    "--batch-size",
    "8",
    "--checkpoint-every",
    "3600",
    "-o",
    "m.safetensors",
)
"""A fit of which a step takes little and all of it long."""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return windows_in(tmp_path)


def windows_in(folder: Path) -> Path:
    signals = synthetic(400, 4, 128)
    np.savez(folder / "w.npz", X=signals.X, fs=signals.fs, y=signals.label)
    return folder


def started(words: list[str], cwd: Path, **variables: str) -> subprocess.Popen[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(words, cwd=cwd, text=True, env=ENVIRONMENT | variables, **streams)


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
def whole(tmp_path_factory: pytest.TempPathFactory) -> ATD:
    """Return the model of an uninterrupted fit."""
    folder = windows_in(tmp_path_factory.mktemp("whole"))
    polyadic(*LONG, "--sweeps", "12", cwd=folder)
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
    refused = polyadic(*words, cwd=here, code=1).stderr
    assert "m.safetensors.checkpoint already contains the checkpoint of a fit" in refused
    polyadic(*command, "--sweeps", "12", cwd=here)
    assert names(here) == ["m.safetensors", "w.npz"]
    ours = load(here / "m.safetensors")
    assert ours.history_["loss"] == whole.history_["loss"]
    for one, other in zip(ours.factors_, whole.factors_, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_fit_that_is_killed_outright_has_its_last_checkpoint(here):
    process = Piped([*LONG, "--sweeps", "100000", "--checkpoint-every", "0"], here)
    while not (here / "m.safetensors.checkpoint").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    polyadic(*LONG, "--sweeps", "2", "--resume", cwd=here)
    assert names(here) == ["m.safetensors", "w.npz"]


@pytest.mark.parametrize(("number", "code"), SIGNALS[1:])
def test_a_fit_of_recordings_resumes_although_they_are_cut_again_and_leaves_no_temporary_folder(number, code, tmp_path):
    rng = np.random.default_rng(0)
    for person in ("anna", "bert"):
        signals = [edfio.EdfSignal(rng.normal(size=6000), 100, label=name) for name in ("C3", "C4")]
        (tmp_path / "own" / person).mkdir(parents=True)
        edfio.Edf(signals).write(tmp_path / "own" / person / "one.edf")
    (tmp_path / "temporary").mkdir()
    words = [
        "fit",
        "own",
        "--method",
        "atd",
        "--seconds",
        "1",
        "--batch-size",
        "4",
        "--rank",
        "3",
        "-o",
        "model of mine.safetensors",
    ]
    process = Piped([*words, "--sweeps", "100000"], tmp_path, TMPDIR=str(tmp_path / "temporary"))
    said = stopped(process, number, swept(process))
    assert process.returncode == code
    assert names(tmp_path / "temporary") == []
    polyadic(*said_command(said), "--sweeps", "3", cwd=tmp_path)
    assert names(tmp_path) == ["model of mine.safetensors", "own", "temporary"]


def test_a_checkpoint_that_was_named_stays_and_is_named_when_the_fit_is_stopped(here):
    words = [*LONG, "--sweeps", "100000", "--checkpoint", "kept"]
    process = Piped(words, here)
    said = stopped(process, signal.SIGINT, swept(process))
    assert said_command(said) == [*words, "--resume"]
    polyadic(*words, "--resume", "--sweeps", "3", cwd=here)
    assert names(here) == ["kept", "m.safetensors", "w.npz"]


def test_a_fit_that_is_refused_leaves_no_checkpoint(here):
    np.savez(here / "zero.npz", X=np.full((20, 2, 64), np.nan, "f4"), fs=10)
    polyadic("fit", "zero.npz", "-o", "m.safetensors", cwd=here, code=1)
    assert names(here) == ["w.npz", "zero.npz"]


@pytest.mark.parametrize(
    "library",
    [
        pytest.param("_multiarray_umath", marks=pytest.mark.long),
        "libtorch_cpu",
        pytest.param("_sparsetools", marks=pytest.mark.long),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what a process has loaded can be seen on Linux alone")
def test_ctrl_c_during_imports_is_handled_the_same_way(library, here):
    process = started([*FRESH, *LONG], here)
    said = stopped(process, signal.SIGINT, lambda: library in Path(f"/proc/{process.pid}/maps").read_text())
    assert process.returncode == 130
    assert "polyadic: stopped" in said


STOP_AT = """
import atexit, os, sys
wanted, number = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]
sys.addaudithook(lambda event, given: event == "import" and given[0] == wanted and os.kill(os.getpid(), number))
atexit.register(lambda: print("torch is there:", "torch" in sys.modules))
from polyadic.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "number", "code"),
    [
        pytest.param("numpy", *SIGNALS[1], marks=pytest.mark.long),
        pytest.param("torch._C", *SIGNALS[0], marks=pytest.mark.long),
        pytest.param("torch._C", *SIGNALS[1], marks=pytest.mark.long),
        ("torch.cuda", *SIGNALS[2]),
        pytest.param("torch.nn.functional", *SIGNALS[0], marks=pytest.mark.long),
        pytest.param("torch.nn.functional", *SIGNALS[1], marks=pytest.mark.long),
    ],
)
def test_a_signal_during_an_import_waits_until_it_is_over(module, number, code, here):
    """C++ libraries abort the process if an exception is raised while they are being loaded."""
    words = [sys.executable, "-c", STOP_AT, module, str(int(number)), *LONG]
    done = subprocess.run(words, cwd=here, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    # A module may be imported once more when the fit has begun, which then leaves a checkpoint.
    assert "\npolyadic: stopped; " in done.stderr
    assert "Traceback" not in done.stderr
    if module != "numpy":  # that is imported by others before
        assert done.stdout == "torch is there: True\n"


@pytest.mark.parametrize(
    "module", ["typer", *(pytest.param(f"polyadic.cli.{name}", marks=pytest.mark.long) for name in ("commands", "fit"))]
)
def test_ctrl_c_before_the_command_is_parsed_is_handled_the_same_way(module, here):
    words = [sys.executable, "-c", STOP_AT, module, str(int(signal.SIGINT)), "--version"]
    done = subprocess.run(words, cwd=here, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    if done.returncode == 0:  # it was done before the signal was sent again
        assert done.stdout.startswith("polyadic ")
        return
    assert done.returncode == 130
    assert done.stderr == "\npolyadic: stopped; no partial output is left\n"


def test_a_fit_under_nohup_continues_when_the_terminal_is_closed(here):
    process = started(["nohup", *FRESH, *LONG, "--sweeps", "5"], here)
    swept_once = swept(process)
    while not swept_once():
        assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert load(here / "m.safetensors").n_sweeps_ > 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_fit_in_a_terminal_that_is_gone_still_leaves_its_checkpoint(number, here):
    """Its output goes to a stream without a reader."""
    process = Piped([*LONG, "--sweeps", "100000"], here)
    swept_once = swept(process)
    while not swept_once():
        assert process.poll() is None
    process.stderr.close()
    process.stdout.close()
    process.send_signal(number)
    assert process.wait(timeout=120) == 128 + number
    assert (here / "m.safetensors.checkpoint").is_file()


# ------------------------------------------------------------------------------------------------ other commands


def test_a_stopped_prepare_leaves_nothing(tmp_path):
    (tmp_path / "own").mkdir()
    for person in range(40):
        signals = [edfio.EdfSignal(np.random.default_rng(person).normal(size=30_000), 500, label="C3")]
        edfio.Edf(signals).write(tmp_path / "own" / f"{person}.edf")
    words = ("prepare", "folder", "own", "s.store", "--seconds", "2")
    process = Piped(words, tmp_path)
    said = stopped(process, signal.SIGTERM, (tmp_path / ".s.store.writing" / "samples.npy").exists)
    assert process.returncode == 143, said
    assert said.strip() == "polyadic: stopped; no partial output is left"
    assert names(tmp_path) == ["own"]


def test_a_stopped_run_says_what_has_been_written(tmp_path):
    process = Piped(["run", "--sweeps", "2"], tmp_path)
    saved = tmp_path / "polyadic-run" / "cpd.safetensors"
    said = stopped(process, signal.SIGINT, saved.exists)
    assert process.returncode == 130
    said = re.sub(r"\s+", " ", said)
    assert re.search(r"stopped; [1-9]\d* of 12 fits were done, and models of seed 0 are in polyadic-run/", said)
    assert all(load(path) for path in saved.parent.iterdir())
