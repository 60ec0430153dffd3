"""The exported graph in onnxruntime equals `transform`, and needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from exported import largest_difference, recordings, signals, trained, with_gaps
from problems import paper

from polyadic import ATD, CPD, GRSALS, SALS, export
from polyadic.data import synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.export import Features
from polyadic.presets import preset
from polyadic.spectral import PARTS, STFT

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[1] / "examples" / "onnx_device.py"


@pytest.mark.parametrize(
    ("name", "parts"),
    [*(("har", parts) for parts in PARTS if "phase" not in parts), ("sleep_edf", preset("sleep_edf").tensorize.parts)],
)
def test_features_are_those_of_transform(name, parts, tmp_path):
    chosen = preset(name)
    X = signals(chosen.shape, scale=1e-5)
    parameters = {**chosen.parameters, "max_sweeps": 2, "batch_size": 8}
    if parts != chosen.tensorize.parts:
        parameters["beta"] = 0.0  # at a scale of microvolts the alignment of amplitudes would not converge
    stft = replace(chosen.tensorize, parts=parts)
    model = ATD(tensorize=stft, augment=chosen.augment, **parameters).fit(X)
    export.onnx(model, tmp_path / "model.onnx")
    found = Features(tmp_path / "model.onnx")(X)
    assert found.dtype == np.float32
    assert largest_difference(found, model.transform(X)) < 1e-4
    assert largest_difference(found, model.transform(X.astype(np.float64))) < 1e-4


@pytest.mark.parametrize(("kind", "shape"), [(SALS, (5,)), (ATD, (4, 6)), (GRSALS, (2, 3, 4, 5))])
def test_tensors_of_any_number_of_modes(kind, shape, tmp_path):
    X = np.random.default_rng(0).normal(size=(30, *shape)).astype(np.float32)
    model = paper(kind, rank=3, max_sweeps=2, **({"beta": 0.0} if kind is ATD else {})).fit(X)
    export.onnx(model, tmp_path / "model.onnx")
    run = Features(tmp_path / "model.onnx")
    assert run.shape == shape
    assert largest_difference(run(X), model.transform(X)) < 1e-5


def test_a_warning_says_if_float32_does_not_suffice(tmp_path):
    X = signals((3, 96), 40) + np.float32(1e5)
    model = CPD(5, tensorize=STFT(16, 8, parts="amplitude", mean="auto"), max_sweeps=3).fit(X.astype(np.float64))
    with pytest.warns(RuntimeWarning, match=r"in float32, features of the graph differ .* by up to [\d.]+ %"):
        export.onnx(model, tmp_path / "model.onnx")


@pytest.fixture(scope="module")
def labelled():
    windows = synthetic(120, random_state=1)
    model = paper(SALS, rank=4, tensorize=STFT(32, 16), max_sweeps=3).fit(windows)
    return windows, model, model.transform(np.asarray(windows.X))


@pytest.mark.parametrize(("classes", "scale"), [(2, "plain"), (4, "standardised")])
def test_probabilities_are_those_of_the_probe(labelled, classes, scale, tmp_path):
    windows, model, Z = labelled
    y = np.array(["rest", "walk", "run", "fall"])[np.arange(len(Z)) % classes]
    probe = Probe(C=1.0, scale=scale).fit(Z, y)
    export.onnx(WindowClassifier.of(model, probe), tmp_path / "model.onnx")
    run = Features(tmp_path / "model.onnx")
    found = run.probabilities(windows.X)
    assert run.classes == tuple(probe.classes_)
    assert np.allclose(found, probe.predict_proba(model.transform(windows.X.astype(np.float64))), atol=1e-5)
    assert np.allclose(run.probabilities(windows.X[5]), found[5], atol=1e-5)
    assert np.allclose(run(windows.X), Z, atol=1e-4 * np.abs(Z).max())


def test_the_file_is_a_valid_model_with_metadata(labelled, tmp_path):
    import polyadic

    windows, model, _ = labelled
    export.onnx(model, tmp_path / "model.onnx")
    proto = onnx.load(tmp_path / "model.onnx")
    assert not {"STFT", "DFT"} & {node.op_type for node in proto.graph.node}
    assert [entry.dim_param or entry.dim_value for entry in proto.graph.input[0].type.tensor_type.shape.dim] == [
        "N",
        *windows.shape[1:],
    ]
    known = json.loads({entry.key: entry.value for entry in proto.metadata_props}["polyadic"])
    assert known["version"] == polyadic.__version__
    assert known["shape"] == list(windows.shape[1:])
    run = Features(tmp_path / "model.onnx")
    assert (run.fs, run.channels, run.classes, run.n_features) == (windows.fs, windows.channels, (), 4)
    assert run.opset == 17


def test_files_and_windows_that_cannot_be_run_are_refused(labelled, tmp_path):
    windows, model, _ = labelled
    (tmp_path / "other.onnx").write_bytes(b"no graph")
    with pytest.raises(PolyadicError, match=r"must be an ONNX file written by polyadic\.export\.onnx"):
        Features(tmp_path / "other.onnx")
    with pytest.raises(FileNotFoundError):
        Features(tmp_path / "missing.onnx")
    export.onnx(model, tmp_path / "model.onnx")
    run = Features(tmp_path / "model.onnx")
    with pytest.raises(PolyadicError, match="X must have shape"):
        run(windows.X[:, :, 1:])
    with pytest.raises(PolyadicError, match="NaN or infinity"):
        run(np.full(run.shape, np.nan))
    with pytest.raises(PolyadicError, match="has no probe"):
        run.probabilities(windows.X)


def test_a_graph_without_masks_is_smaller_and_refuses_nan(tmp_path):
    windows = recordings()
    classifier, X, runs = trained(windows), windows.X[:12], {}
    for missing in (True, False):
        export.onnx(classifier, tmp_path / f"{missing}.onnx", missing=missing)
        runs[missing] = Features(tmp_path / f"{missing}.onnx")
        assert runs[missing].missing == missing
    assert (tmp_path / "False.onnx").stat().st_size < 0.8 * (tmp_path / "True.onnx").stat().st_size
    with pytest.raises(PolyadicError, match="contains NaN or infinity"):
        runs[False](with_gaps(X, "gaps"))
    with pytest.raises(PolyadicError, match="contains infinity"):
        runs[True](np.full_like(X, np.inf))
    assert np.abs(runs[False].probabilities(X) - runs[True].probabilities(X)).max() < 1e-5


_WITHOUT = """
import sys
for name in ("torch", "scipy", "sklearn", "safetensors", "onnx", "rich", "typer"):
    sys.modules[name] = None  # as if it were not installed
"""


def alone(code, *words):
    """Run code in an environment with only onnxruntime and numpy."""
    result = subprocess.run(
        [sys.executable, "-c", _WITHOUT + code, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_example_runs_on_a_device(labelled, tmp_path):
    windows, model, Z = labelled
    probe = Probe(C=1.0, scale="plain").fit(Z, windows.label)
    export.onnx(WindowClassifier.of(model, probe), tmp_path / "model.onnx")
    np.save(tmp_path / "windows.npy", windows.X[:3])
    code = f"import runpy; sys.argv[0] = {str(EXAMPLE)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    said = alone(code, tmp_path / "model.onnx", tmp_path / "windows.npy")
    assert "3 windows" in said
    assert "most probable" in said
    assert "4 features" in alone(code, tmp_path / "model.onnx")
