"""Small commands import what they use and nothing else: torch alone takes longer than all that `info` does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from polyadic.data import Windows, synthetic
from polyadic.data.prepare import write_windows
from polyadic.estimators import SALS
from polyadic.evaluate import WindowClassifier
from polyadic.spectral import STFT

PROGRAM = """
import json, sys
from polyadic.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
with open("modules.json", "w") as file:
    json.dump(sorted({".".join(name.split(".")[: 1 + name.startswith("polyadic.")]) for name in sys.modules}), file)
"""
HEAVY = {"torch", "scipy", "sklearn", "pandas", "joblib", "matplotlib", "plotly", "jinja2", "onnx", "edfio", "mne"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    signals: Windows = synthetic(60, 2, 64)
    np.savez(folder / "w.npz", X=signals.X, y=signals.label, subject=signals.subject, fs=signals.fs)
    np.save(folder / "w.npy", signals.X)
    rows = "\n".join(f"{n / 64},{n % 7},{n % 3}" for n in range(640))
    (folder / "night.csv").write_text(f"time,channel 1,channel 2\n{rows}\n")
    (folder / "results.json").write_text(json.dumps({"command": "polyadic run", "rows": []}))
    features = SALS(rank=2, tensorize=STFT(n_fft=16, hop=8), max_sweeps=1, device="cpu").fit(signals)
    WindowClassifier(features).fit(signals).save(folder / "m.safetensors")
    write_windows(signals, folder / "w.store")
    return folder


def imported_by(words: list[str], folder: Path) -> set[str]:
    """The packages that a command has imported when it ends; of polyadic, its modules."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads((folder / "modules.json").read_text()))


@pytest.mark.parametrize("name", ["m.safetensors", "w.npz", "w.npy", "night.csv", "results.json", "w.store"])
def test_info_imports_no_array_engine(name: str, made: Path) -> None:
    assert not imported_by(["info", name], made) & HEAVY


def test_help_imports_not_even_numpy(made: Path) -> None:
    assert not imported_by(["--help"], made) & {*HEAVY, "numpy", "pydantic"}


def test_predict_imports_nothing_for_plots_reports_files_of_others_or_experiments(made: Path) -> None:
    found = imported_by(["predict", "m.safetensors", "w.npz", "-o", "labels.csv", "--quiet"], made)
    assert "torch" in found  # and scikit-learn, whose base class the estimators have
    unwanted = {"matplotlib", "plotly", "jinja2", "onnx", "edfio", "wfdb", "mne", "tensorly", "triton"}
    own = {
        f"polyadic.{name}" for name in ("baselines", "experiments", "explain", "export", "plot", "report", "testing")
    }
    assert not found & (unwanted | own)
