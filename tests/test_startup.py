"""Small commands import only what they use, because importing torch takes longer than all the work of `info`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from polyadic.data import Windows, synthetic
from polyadic.data.store import write_windows
from polyadic.estimators import CPD
from polyadic.evaluate import WindowClassifier
from polyadic.spectral import STFT

PROGRAM = """
import json, sys
from polyadic.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, (words, stop.code)
with open("modules.json", "w") as file:
    json.dump(sorted({".".join(name.split(".")[: 1 + name.startswith("polyadic.")]) for name in sys.modules}), file)
"""
HEAVY = {"torch", "scipy", "sklearn", "pandas", "joblib", "matplotlib", "plotly", "jinja2", "tensorly", "triton"}
HEAVY |= {"onnx", "edfio", "wfdb", "mne"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    drawn = synthetic(60, 2, 64)
    people = np.arange(60) // 20
    signals = Windows(drawn.X, label=drawn.label, subject=people, fs=drawn.fs, channels=["channel 1", "channel 2"])
    np.savez(folder / "w.npz", X=signals.X, y=signals.label, subject=signals.subject, fs=signals.fs)
    np.save(folder / "w.npy", signals.X)
    rows = "\n".join(f"{n / signals.fs},{n % 7},{n % 3}" for n in range(640))
    (folder / "night.csv").write_text(f"time,{','.join(signals.channels)}\n{rows}\n")
    features = CPD(rank=2, tensorize=STFT(n_fft=16, hop=8), max_sweeps=1, device="cpu").fit(signals)
    WindowClassifier(features).fit(signals).save(folder / "m.safetensors")
    write_windows(signals, folder / "w.store")
    return folder


def imported_by(commands: list[str], folder: Path) -> set[str]:
    """The packages that commands, one after another, have imported in the end; of polyadic, its modules."""
    words = json.dumps([command.split() for command in commands])
    done = subprocess.run([sys.executable, "-c", PROGRAM, words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads((folder / "modules.json").read_text()))


def test_info_imports_no_array_engine(made: Path) -> None:
    names = ["m.safetensors", "w.npz", "w.npy", "w.store"]
    assert not imported_by([f"info {name}" for name in names], made) & HEAVY
    assert imported_by(["info night.csv"], made) & HEAVY == {"pandas"}


def test_help_imports_not_even_numpy(made: Path) -> None:
    assert not imported_by(["--help"], made) & {*HEAVY, "numpy"}


def test_the_package_and_its_version_import_nothing_heavy(made: Path) -> None:
    assert not imported_by(["--version"], made) & HEAVY
    program = "import polyadic, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {*HEAVY, "numpy"}


def test_predict_imports_neither_plots_nor_other_methods(made: Path) -> None:
    found = imported_by(["predict m.safetensors w.npz -o labels.csv --quiet"], made)
    unwanted = {
        "matplotlib",
        "plotly",
        "jinja2",
        "tensorly",
        "triton",
        "onnx",
        "mne",
        "polyadic.plot",
        "polyadic.report",
    }
    assert not found & unwanted
