"""The exported graph in onnxruntime equals `transform`, and needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import polyadic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import paper
from sklearn.linear_model import LogisticRegression

from polyadic import ATD, CPD, GRSALS, SALS, export
from polyadic.baselines import PCAFeatures
from polyadic.data import synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.export import Features
from polyadic.presets import preset
from polyadic.readout import Readout
from polyadic.spectral import PARTS, STFT

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[1] / "examples" / "onnx_device.py"


def signals(shape, count=24, seed=0):
    """Oscillations in noise with an offset, at the scale of an EEG in volts."""
    random = np.random.default_rng(seed)
    time = np.arange(shape[1])
    waves = np.sin(random.uniform(0.05, 1.5, (count, shape[0], 1)) * time + random.uniform(0, 6, (count, shape[0], 1)))
    return ((waves + 0.5 * random.normal(size=(count, *shape)) + 0.5) * 1e-5).astype(np.float32)


def largest_difference(found, expected):
    """Return the largest difference, relative to the scale of the features."""
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    return np.abs(found - expected).max() / np.sqrt(np.mean(np.square(expected)))


@pytest.mark.parametrize(
    ("name", "parts"),
    [*(("har", parts) for parts in PARTS), ("sleep_edf", preset("sleep_edf").tensorize.parts)],
)
def test_features_are_those_of_transform(name, parts, tmp_path):
    chosen = preset(name)
    X = signals(chosen.shape)
    parameters = {**chosen.parameters, "max_sweeps": 2, "batch_size": 8}
    if parts != chosen.tensorize.parts:
        parameters["beta"] = 0.0  # at a scale of microvolts the alignment of amplitudes would not converge
    stft = replace(chosen.tensorize, parts=parts)
    model = ATD(tensorize=stft, augment=chosen.augment, **parameters).fit(X)
    export.onnx(model, tmp_path / "model.onnx")
    found = Features(tmp_path / "model.onnx")(X)
    assert largest_difference(found, model.transform(X)) < 1e-4
    assert largest_difference(found, model.transform(X.astype(np.float64))) < 1e-4


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    channels=st.integers(1, 5),
    samples=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 33, 64, 100]),
    constant=st.sets(st.integers(0, 4)),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_statistics_of_short_huge_and_tiny_windows_and_of_constant_channels(
    channels, samples, constant, scale, tmp_path_factory
):
    X = signals((channels, samples), 40, samples) * np.float32(1e5 * scale)
    for channel in constant & set(range(channels)):
        X[: 20 + 5 * channel, channel] = X[: 20 + 5 * channel, channel, :1]  # channel 4 is constant in all windows
    stft = STFT(min(samples, 4), 1, floor=scale, mean="auto")
    # The file does not recognise dead channels.
    model = CPD(1, tensorize=stft, readout=Readout(keep_flat=True), max_sweeps=1).fit(X.astype(np.float64))
    assert model._fitted_readout().n_statistics == len(model.get_feature_names_out()) - 1
    file = tmp_path_factory.mktemp("onnx") / "model.onnx"
    export.onnx(model, file)
    assert largest_difference(Features(file)(X), model.transform(X.astype(np.float64))) < 1e-4


@pytest.mark.parametrize(("shape", "features"), [((20, 64), 3 + 64), ((2, 3000), 3 + 31)])
def test_many_statistics_and_long_windows(shape, features, tmp_path):
    X = signals(shape, 60)
    model = CPD(3, max_sweeps=2).fit(X.astype(np.float64))
    probe = Probe(C=1.0, scale="plain").fit(model.transform(X.astype(np.float64)), np.arange(60) % 3)
    export.onnx(model, tmp_path / "model.onnx", probe=probe)
    run, exact = Features(tmp_path / "model.onnx"), np.asarray(model.transform(X.astype(np.float64)))
    assert run.n_features == features
    assert largest_difference(run(X), exact) < 1e-4
    assert np.abs(run.probabilities(X) - probe.predict_proba(exact)).max() < 1e-4


@pytest.mark.parametrize(
    ("parts", "window"),
    [("log_amplitude", "blackman"), ("log_re_im", "rectangular"), ("log_amplitude_phase", "blackman")],
)
def test_offsets_far_beyond_the_signal_do_not_disturb_the_features(parts, window, tmp_path):
    X = signals((3, 96), 40) * np.float32(1e5) + np.array([[1e5], [-3e4], [0]], np.float32)
    model = CPD(5, tensorize=STFT(32, 8, window, parts, mean="auto"), max_sweeps=3).fit(X.astype(np.float64))
    export.onnx(model, tmp_path / "model.onnx")
    exact = np.asarray(model.transform(X.astype(np.float64)))
    assert largest_difference(Features(tmp_path / "model.onnx")(X), exact) < 1e-3


def test_phases_in_all_quadrants_are_those_of_atan2(tmp_path):
    # Frames of four samples: a single impulse at each place has phases 0, -π/2, π, π/2 at the middle frequency.
    X = np.zeros((8, 1, 4), np.float32)
    X[np.arange(4), 0, np.arange(4)] = 1
    X[4:] = -X[:4]
    model = paper(SALS, rank=1, tensorize=STFT(4, 4, "rectangular", "amplitude_phase"), max_sweeps=1).fit(X)
    model.factors_ = [np.array([[0.0], [1.0]]), np.array([[0.0], [1.0], [0.0]]), np.ones((1, 1))]
    model.alpha = 0.0
    export.onnx(model, tmp_path / "model.onnx")
    found = Features(tmp_path / "model.onnx")(X)[:, 0]
    spectrum = np.fft.rfft(X[:, 0].astype(np.float64))[:, 1]
    assert np.allclose(np.abs(found), np.abs(np.angle(spectrum)), atol=1e-6)
    assert np.allclose(found, model.transform(X)[:, 0], atol=1e-6)


@pytest.mark.parametrize(("kind", "shape"), [(SALS, (5,)), (ATD, (4, 6)), (GRSALS, (2, 3, 4, 5))])
def test_tensors_of_any_number_of_modes(kind, shape, tmp_path):
    X = np.random.default_rng(0).normal(size=(30, *shape)).astype(np.float32)
    model = paper(kind, rank=3, max_sweeps=2, **({"beta": 0.0} if kind is ATD else {})).fit(X)
    export.onnx(model, tmp_path / "model.onnx")
    run = Features(tmp_path / "model.onnx")
    assert run.shape == shape
    assert largest_difference(run(X), model.transform(X)) < 1e-5


def test_collinear_components_are_projected_in_double(tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 6, 7)).astype(np.float32)
    model = paper(SALS, rank=2, max_sweeps=2, alpha=1e-9).fit(X)
    a, b = model.factors_
    model.factors_ = [np.stack([a[:, 0], a[:, 0] + 3e-3 * a[:, 1]], axis=1), b[:, [0, 0]]]
    export.onnx(model, tmp_path / "model.onnx")
    exact = model.transform(X.astype(np.float64))
    assert largest_difference(Features(tmp_path / "model.onnx")(X), exact) < 1e-4


def test_a_warning_says_if_float32_does_not_suffice(tmp_path):
    X = signals((3, 96), 40) * np.float32(1e5) + np.float32(1e5)
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
    export.onnx(model, tmp_path / "model.onnx", probe=probe)
    run = Features(tmp_path / "model.onnx")
    found = run.probabilities(windows.X)
    assert run.classes == tuple(probe.classes_)
    assert np.allclose(found, probe.predict_proba(model.transform(windows.X.astype(np.float64))), atol=1e-5)
    assert np.allclose(run(windows.X), Z, atol=1e-4 * np.abs(Z).max())


def test_a_window_classifier_is_written_with_its_probe(labelled, tmp_path):
    windows, model, _ = labelled
    classifier = WindowClassifier(model, probe="plain").fit(windows, windows.label)
    export.onnx(classifier, tmp_path / "model.onnx")
    run = Features(tmp_path / "model.onnx")
    assert run.classes == tuple(classifier.classes_.tolist())
    assert np.allclose(run.probabilities(windows.X), classifier.predict_proba(windows), atol=1e-4)
    assert np.allclose(run.probabilities(windows.X[5]), run.probabilities(windows.X)[5], atol=1e-5)
    other = WindowClassifier(PCAFeatures(dim=3).fit(windows.X), probe="plain").fit(windows.X, windows.label)
    for write in (export.onnx, export.c):
        with pytest.raises(PolyadicError, match=r"only CPD, ATD, .* have an ONNX or C form, but .* PCAFeatures"):
            write(other, tmp_path / "model.c")
    own = paper(SALS, rank=2, tensorize=lambda batch: batch * 2, max_sweeps=1).fit(np.ones((5, 3, 4)))
    with pytest.raises(PolyadicError, match="a function of your own has no ONNX form"):
        export.onnx(own, tmp_path / "model.onnx")


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"probe": LogisticRegression()}, "the probe must be a Probe, but is a LogisticRegression"),
        ({"probe": Probe(C=1.0).fit([[0.0], [1.0]], [0, 1])}, "model's 4 features, but was fitted to 1"),
    ],
)
def test_options_that_cannot_be_exported_are_refused(labelled, options, said, tmp_path):
    with pytest.raises(PolyadicError, match=said):
        export.onnx(labelled[1], tmp_path / "model.onnx", **options)
    assert not list(tmp_path.iterdir())


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
    export.onnx(model, tmp_path / "model.onnx", probe=probe)
    np.save(tmp_path / "windows.npy", windows.X[:3])
    code = f"import runpy; sys.argv[0] = {str(EXAMPLE)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    said = alone(code, tmp_path / "model.onnx", tmp_path / "windows.npy")
    assert "3 windows" in said
    assert "most probable" in said
    assert "4 features" in alone(code, tmp_path / "model.onnx")


def test_the_command_prints_opset_and_size(labelled, tmp_path):
    labelled[1].save(tmp_path / "model.safetensors")
    words = ("export", "model.safetensors", "-o", "m.onnx")
    assert json.loads(polyadic(*words, "--json", cwd=tmp_path).stdout)["opset"] == 17
    said = " ".join(polyadic(*words, "--force", cwd=tmp_path).stdout.split())
    assert f"bytes {(tmp_path / 'm.onnx').stat().st_size / 1e3:,.1f} kB" in said
