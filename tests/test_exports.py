"""Exported models, in C and in ONNX, compute what the model itself computes, also if samples are missing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_line import polyadic
from exported import Exported, check, largest_difference, recordings, signals, trained, with_gaps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import OwnTensors, paper

from polyadic import CPD, SALS, export
from polyadic.baselines import PCAFeatures
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.readout import Readout
from polyadic.spectral import STFT

FORMS = ("c", "onnx")
TOLERANCE = {"c": 1e-3, "onnx": 1e-4}
ANY = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
pytestmark = pytest.mark.filterwarnings("ignore::polyadic.core.missing.MissingWarning")


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=4, **ANY)
@given(
    channels=st.integers(1, 5),
    samples=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 33, 64, 100]),
    constant=st.sets(st.integers(0, 4)),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_statistics_of_short_huge_and_tiny_windows_and_of_constant_channels(
    form, channels, samples, constant, scale, tmp_path_factory
):
    X = signals((channels, samples), 40, samples, scale)
    for channel in constant & set(range(channels)):
        X[: 20 + 5 * channel, channel] = X[: 20 + 5 * channel, channel, :1]  # channel 4 is constant in all windows
    stft = STFT(min(samples, 4), 1, floor=scale, mean="auto")
    # The file does not recognise dead channels.
    model = CPD(1, tensorize=stft, readout=Readout(keep_flat=True), max_sweeps=1).fit(X.astype(np.float64))
    assert model._fitted_readout().n_statistics == len(model.get_feature_names_out()) - 1
    run, exact = Exported(form, model, tmp_path_factory.mktemp(form)), model.transform(X.astype(np.float64))
    # In a band of one bin, power may be nearly 0 by cancellation, and its logarithm less exact in C.
    assert largest_difference(run.features(X), exact) < TOLERANCE[form]


@pytest.mark.parametrize(
    ("form", "shape", "options"),
    [("c", (20, 64), {}), ("c", (20, 64), {"int8": True}), ("onnx", (20, 64), {}), ("onnx", (2, 3000), {})],
)
def test_more_than_256_statistics_as_their_axes_and_long_windows(form, shape, options, tmp_path):
    X = signals(shape, 60)
    model = CPD(3, max_sweeps=2).fit(X.astype(np.float64))
    exact = np.asarray(model.transform(X.astype(np.float64)))
    probe = Probe(C=1.0, scale="plain").fit(exact, np.arange(60) % 3)
    run = Exported(form, WindowClassifier.of(model, probe), tmp_path, **options)
    assert run.features(X).shape[1] == 3 + (64 if shape[0] == 20 else 31)
    assert largest_difference(run.features(X), exact) < (0.2 if options else 1e-4)
    if form == "c":
        assert largest_difference(run.features(X), run.written.features(X)) < 1e-4
    assert np.abs(run.probabilities(X) - probe.predict_proba(exact)).max() < (0.1 if options else 1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("window", "parts", "n_fft"),
    [("hann", "log_amplitude", 32), ("rectangular", "log_re_im", 15), ("blackman", "log_amplitude", 30)],
)
def test_offsets_far_beyond_the_signal_do_not_disturb_the_features(form, window, parts, n_fft, tmp_path):
    X = signals((3, 96), 40) + np.array([[1e5], [-3e4], [0]], np.float32)
    model = CPD(5, tensorize=STFT(n_fft, 8, window, parts, mean="auto"), max_sweeps=3).fit(X.astype(np.float64))
    exact = np.asarray(model.transform(X.astype(np.float64)))
    assert largest_difference(Exported(form, model, tmp_path).features(X), exact) < 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_nearly_collinear_components_are_summed_in_double(form, tmp_path):
    X = signals((6, 64), 30)
    model = paper(SALS, rank=2, tensorize=STFT(16, 8), max_sweeps=2, alpha=1e-9).fit(X)
    a, b, c = model.factors_
    model.factors_ = [np.stack([a[:, 0], a[:, 0] + 1e-2 * a[:, 1]], axis=1), b[:, [0, 0]], c[:, [0, 0]]]
    run = Exported(form, model, tmp_path)
    assert form == "onnx" or run.written.accumulator == "double"
    assert largest_difference(run.features(X), model.transform(X.astype(np.float64))) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_models_without_a_form_are_refused(form, tmp_path):
    X, write = signals((2, 32), 20), getattr(export, form)
    other = WindowClassifier(PCAFeatures(dim=3).fit(X), probe="plain").fit(X, np.arange(20) % 2)
    with pytest.raises(PolyadicError, match=r"only CPD, ATD, .* have an ONNX or C form, but .* PCAFeatures"):
        write(other, tmp_path / "model")
    own = paper(SALS, rank=2, tensorize=OwnTensors(abs), max_sweeps=1).fit(np.ones((5, 3, 4)))
    with pytest.raises(PolyadicError, match="models of an STFT have an ONNX and a C form, but tensorize is a OwnT"):
        write(own, tmp_path / "model")
    phases = CPD(2, tensorize=STFT(16, 4, parts="amplitude_phase"), max_sweeps=1).fit(X)
    with pytest.raises(PolyadicError, match="'amplitude_phase' cannot be exported: rounding may move a phase"):
        write(phases, tmp_path / "model")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------- missing samples


@pytest.fixture(scope="module")
def small():
    windows = recordings()
    return trained(windows), windows.X[:12]


@pytest.fixture(scope="module", params=FORMS)
def masked(request, small, tmp_path_factory):
    run = Exported(request.param, small[0], tmp_path_factory.mktemp("masked"), masked=True)
    return lambda X: check(small[0], X, run.features(X), run.probabilities(X), TOLERANCE[request.param])


HOWS = ["whole channels", "a gap in all channels", "gaps", "short gaps", "any samples", "any channels"]
HOWS += ["dead, stuck and clipped", "all but one sample", "everything", "nothing"]


@pytest.mark.parametrize("how", HOWS)
def test_whatever_is_missing_the_file_agrees_with_the_model(small, masked, how):
    masked(with_gaps(small[1], how))


@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 1), longest=st.integers(1, 96))
@settings(max_examples=12, **ANY)
def test_the_file_agrees_with_the_model_for_any_gaps(small, masked, seed, share, longest):
    random, X = np.random.default_rng(seed), small[1].copy()
    for window, channel in zip(*np.nonzero(random.random(X.shape[:2]) < share), strict=True):
        first = random.integers(-longest, X.shape[2])
        X[window, channel, max(first, 0) : max(first + longest, 0)] = np.nan
    masked(X)


KINDS = [
    ((1, 64), 2, {}),
    ((3, 70), 2, {"readout": Readout(statistics=0)}),
    ((3, 70), 3, {"readout": Readout(0.5, keep_flat=True)}),
    ((3, 100), 3, {"tensorize": STFT(25, 10, "rectangular", "log_re_im", mean="auto")}),
    ((20, 64), 3, {}),  # 490 statistics, as 64 axes
    ((33, 64), 2, {}),  # too many channels for correlations
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("shape", "classes", "parameters"), KINDS)
def test_kinds_of_models_agree(form, shape, classes, parameters, tmp_path):
    windows = recordings(*shape, classes)
    classifier, X = trained(windows, 4, **parameters), windows.X[:12].copy()
    X[:6, 0, 20:60] = X[4:8, -1] = np.nan
    X[8:, 0] = 0.5
    run = Exported(form, classifier, tmp_path, masked=True)
    check(classifier, X, run.features(X), run.probabilities(X), TOLERANCE[form])


@pytest.mark.parametrize("out", ["model.c", "model.onnx"])
def test_the_command_says_what_missing_samples_cost(small, out, tmp_path):
    small[0].save(tmp_path / "m.safetensors")
    words = ("export", "m.safetensors", "-o", out)
    outcome = json.loads(polyadic(*words, "--json", cwd=tmp_path).stdout)
    said = " ".join(polyadic(*words, "--force", cwd=tmp_path).stdout.split())
    if out == "model.c":
        assert f"masked table bytes {outcome['masked_table_bytes'] / 1e3:.1f} kB" in said
        assert f"{outcome['masked_bytes']} bytes and" in (tmp_path / "model.h").read_text()
    else:
        assert outcome["opset"] == 17
        assert f"bytes {outcome['bytes'] / 1e3:,.1f} kB" in said
        assert "missing True" in said
