"""Exported models infer from windows with missing samples what the model itself infers."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
from c_code import ARM_TOOLS, EXAMPLE, STRICT, CLibrary, missing, run
from command_line import polyadic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyadic import CPD, export
from polyadic.core.missing import MissingWarning
from polyadic.data import Windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.readout import Readout
from polyadic.spectral import STFT

pytestmark = [
    pytest.mark.skipif(bool(missing("gcc")), reason=missing("gcc")),
    pytest.mark.filterwarnings("ignore::polyadic.core.missing.MissingWarning"),
]
CLASSES = np.array(["rest", "walk", "run"])


def recordings(channels=4, samples=96, classes=3, count=120):
    """Classes that differ in frequency and level, with channels that are correlated."""
    random = np.random.default_rng(5)
    codes, time = np.arange(count) % classes, np.arange(samples)
    rates = (0.25 + 0.3 * codes)[:, None, None] + 0.1 * random.normal(size=(count, 1, 1))
    waves = np.sin(rates * time + random.uniform(0, 6, (count, 1, 1))) * (1 + 0.7 * random.random((count, 1, 1)))
    mixed = waves * random.uniform(0.5, 2, (1, channels, 1)) + 0.3 * random.normal(size=(count, channels, samples))
    X = (mixed + codes[:, None, None] * 0.3 + 0.5).astype(np.float32)
    return Windows(X, fs=50.0, label=CLASSES[codes])


def trained(windows, rank=5, **parameters):
    model = CPD(rank, device="cpu", max_sweeps=15, **parameters).fit(windows)
    return WindowClassifier(model, probe=Probe(C=1.0, scale="plain", statistics=1.0, unlabelled=False)).fit(windows)


@pytest.fixture(scope="module")
def small():
    windows = recordings()
    return trained(windows), windows.X[:12]


def lacking(X, how, random=None):
    """Return windows in which something is missing."""
    random, X = random or np.random.default_rng(0), X.copy()
    if how == "whole channels":
        X[:, 1] = X[:6, 3] = np.nan
    elif how == "a gap in all channels":
        X[:, :, 30:60] = np.nan
    elif how == "gaps":
        X[:, 0, 20:70] = X[:, 1, :40] = X[:, 2, 60:] = np.nan
    elif how == "short gaps":
        X[:, 0, :3] = X[:, 1, 50:53] = X[:, 2, 95:] = np.nan
    elif how == "any samples":
        X[random.random(X.shape) < 0.3] = np.nan
    elif how == "any channels":
        X[random.random(X.shape[:2]) < 0.5] = np.nan
    elif how == "dead, stuck and clipped":
        X[:4, 0], X[4:8, 1] = 0, X[4:8, 1, :1]
        X[8:10, 2] *= 1e-4
        X[10:, 3] = np.minimum(X[10:, 3], np.quantile(X[10:, 3], 0.3)) + 100
    elif how == "all but one sample":
        X[:, :, 1:] = X[:, 1:] = np.nan
    elif how == "everything":
        X[:] = np.nan
    return X


def with_gaps(X, seed, share, longest):
    """Return windows of which a share of the channels has a gap, of up to `longest` samples."""
    random, X = np.random.default_rng(seed), X.copy()
    for window, channel in zip(*np.nonzero(random.random(X.shape[:2]) < share), strict=True):
        first = random.integers(-longest, X.shape[2])
        X[window, channel, max(first, 0) : max(first + longest, 0)] = np.nan
    return X


KINDS = [
    ((1, 64), 2, {}),
    ((3, 70), 2, {"readout": Readout(statistics=0)}),
    ((3, 70), 3, {"readout": Readout(0.5, keep_flat=True)}),
    ((3, 100), 3, {"tensorize": STFT(25, 10, "rectangular", "log_re_im", mean="auto")}),
    ((20, 64), 3, {}),  # 490 statistics, as 64 axes
]


def broken(shape, classes, parameters):
    """Return a classifier, and windows with gaps, missing channels and dead ones."""
    windows = recordings(*shape, classes)
    classifier, X = trained(windows, 4, **parameters), windows.X[:12].copy()
    X[:6, 0, 20:60] = X[4:8, -1] = np.nan
    X[8:, 0] = 0.5
    return classifier, X


HOWS = ["whole channels", "a gap in all channels", "gaps", "short gaps", "any samples", "any channels"]
HOWS += ["dead, stuck and clipped", "all but one sample", "everything", "nothing"]


def check(classifier, X, features, labels, probabilities, tolerance=1e-3):
    """Assert that results are those of the model in float64."""
    exact, model = X.astype(np.float64), classifier.features_
    Z, P = np.asarray(model.transform(exact)), classifier.predict_proba(exact)
    # The readout has features with a mean square of 1 or 2 over unlabelled windows.
    assert np.abs(features - Z).max() < tolerance * 5
    assert np.abs(probabilities - P).max() < tolerance
    ordered = np.sort(P, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 2 * tolerance
    assert (labels == P.argmax(axis=1))[clear].all()
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)


# ----------------------------------------------------------------------------------------- C


@pytest.fixture(scope="module")
def compiled(small, tmp_path_factory):
    written = export.c(small[0], tmp_path_factory.mktemp("c") / "model.c")
    return CLibrary(written)


@pytest.mark.parametrize("how", HOWS)
def test_c_agrees_with_the_model(small, compiled, how):
    X = lacking(small[1], how)
    check(small[0], X, compiled.features_masked(X), *compiled.predict_masked(X))


@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 1), longest=st.integers(1, 96))
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_c_agrees_with_the_model_for_any_gaps(small, compiled, seed, share, longest):
    X = with_gaps(small[1], seed, share, longest)
    check(small[0], X, compiled.features_masked(X), *compiled.predict_masked(X))


@pytest.mark.parametrize("compiler", [pytest.param("gcc", marks=pytest.mark.long), "clang"])
def test_compilers_and_fast_math_agree_with_the_model(small, compiler, tmp_path):
    if missing(compiler):
        pytest.skip(missing(compiler))
    code = CLibrary(export.c(small[0], tmp_path / "model.c"), "-O3", "-ffast-math", compiler=compiler)
    for how in ("gaps", "whole channels", "dead, stuck and clipped"):
        X = lacking(small[1], how)
        check(small[0], X, code.features_masked(X), *code.predict_masked(X))


@pytest.mark.parametrize(("shape", "classes", "parameters"), KINDS)
def test_kinds_of_models_agree_in_c(shape, classes, parameters, tmp_path):
    classifier, X = broken(shape, classes, parameters)
    code = CLibrary(export.c(classifier, tmp_path / "model.c"))
    check(classifier, X, code.features_masked(X), *code.predict_masked(X))


def test_nearly_noiseless_components_are_solved_in_double(tmp_path):
    X = recordings().X
    model = CPD(2, device="cpu", max_sweeps=15).fit(X)
    model.prior_ = replace(model.prior_, noise=1e-7 * model.prior_.noise)
    code = CLibrary(export.c(model, tmp_path / "model.c"))
    assert "double gram" in (tmp_path / "model.h").read_text()
    X = lacking(X[:12], "gaps")
    assert np.abs(code.features_masked(X) - model.transform(X.astype(np.float64))).max() < 1e-3


def test_infinity_gives_no_result_and_a_missing_channel_none_without_masks(small, compiled):
    X = lacking(small[1], "whole channels")
    assert (compiled.predict(X)[0] == -1).all()
    X[0, 0, 5], X[1, 2, 7] = np.inf, -np.inf
    best, P = compiled.predict_masked(X)
    assert best[:2].tolist() == [-1, -1]
    assert not P[:2].any()
    assert (best[2:] >= 0).all()


def test_a_stream_with_gaps_gives_the_results_of_its_windows(small, tmp_path):
    classifier, X = small
    code = CLibrary(export.c(classifier, tmp_path / "model.c", stride=31))
    signal = X[:4].transpose(0, 2, 1).reshape(-1, 4).copy()
    signal[100:160, 1] = signal[150:300, 3] = np.nan
    signal[200:220] = np.nan
    found = code.push(signal, masked=True)
    ends = list(range(96, len(signal) + 1, 31))
    assert list(found) == ends
    expected = code.predict_masked(np.stack([signal[end - 96 : end].T for end in ends]))[1]
    assert np.allclose(list(found.values()), expected, atol=1e-5)


def test_int8_agrees_within_its_error(small, tmp_path):
    classifier, X = small
    code = CLibrary(export.c(classifier, tmp_path / "model.c", int8=True))
    for how in ("gaps", "whole channels"):
        lacks = lacking(X, how)
        expected = classifier.predict_proba(lacks.astype(np.float64))
        labels, P = code.predict_masked(lacks)
        assert np.abs(P - expected).max() < 0.1
        assert (labels == expected.argmax(axis=1)).mean() > 0.8


def test_the_linker_drops_what_nobody_calls(small, tmp_path):
    export.c(small[0], tmp_path / "model.c")
    for call, kept in (("0", False), ("polyadic_predict_masked(w, p, &s, &m)", True)):
        (tmp_path / "main.c").write_text(
            '#include "model.h"\nfloat w[POLYADIC_CHANNELS][POLYADIC_SAMPLES], p[POLYADIC_CLASSES];\n'
            "polyadic_scratch s;\npolyadic_masked m;\n"
            f"int main(void) {{ return polyadic_predict(POLYADIC_WINDOW(w), p, &s) + {call}; }}\n"
        )
        words = ("-O1", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections")
        run("gcc", *STRICT, *words, tmp_path / "main.c", tmp_path / "model.c", "-o", tmp_path / "main", "-lm")
        symbols = run("nm", tmp_path / "main")
        for name in ("polyadic_loadings", "polyadic_prior_root", "polyadic_predict_masked"):
            assert (name in symbols) == kept


@pytest.mark.long
def test_sanitizers_find_nothing_in_the_example_with_a_failing_sensor(small, tmp_path):
    export.c(small[0], tmp_path / "model.c", stride=7)
    words = ("-DMASKED", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{tmp_path}")
    sources = (EXAMPLE / "main.c", EXAMPLE / "host.c", tmp_path / "model.c")
    run("gcc", *STRICT, *words, *sources, "-o", tmp_path / "host", "-lm")
    said = run(tmp_path / "host", cwd=tmp_path)
    assert "selftest: passed" in said
    assert said.count("sample ") == 3
    assert "without the first channel: " in said


@pytest.mark.long
@pytest.mark.skipif(bool(missing(*ARM_TOOLS)), reason=missing(*ARM_TOOLS))
def test_a_cortex_m4f_agrees_with_the_model(small, tmp_path):
    classifier, _ = small
    shutil.copytree(EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns("build", "model.*"))
    export.c(classifier, tmp_path / "project" / "model.c")
    said = run("make", "-C", tmp_path / "project", "run-m4", "MASKED=1", timeout=120)
    # The signal of `main.c`.
    period, now = 8 + 3 * np.arange(4)[:, None], np.arange(96)
    X = (np.minimum(now % (2 * period), 2 * period - now % (2 * period)) / period - 0.5)[None]
    X[:, 0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingWarning)
        P = classifier.predict_proba(X)[0]
    name, percent = re.search(r"without the first channel: (\w+), (\d+) %", said).groups()
    assert name == classifier.classes_[P.argmax()]
    assert abs(int(percent) - 100 * P.max()) < 1


# -------------------------------------------------------------------------------------- ONNX


@pytest.fixture(scope="module")
def graph(small, tmp_path_factory):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    export.onnx(small[0], path)
    return export.Features(path)


def check_graph(classifier, X, run):
    P = run.probabilities(X)
    check(classifier, X, run(X), P.argmax(axis=1), P, 1e-4)


@pytest.mark.parametrize("how", HOWS)
def test_onnx_agrees_with_the_model(small, graph, how):
    check_graph(small[0], lacking(small[1], how), graph)


@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 1), longest=st.integers(1, 96))
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_onnx_agrees_with_the_model_for_any_gaps(small, graph, seed, share, longest):
    check_graph(small[0], with_gaps(small[1], seed, share, longest), graph)


@pytest.mark.parametrize(("shape", "classes", "parameters"), KINDS)
def test_kinds_of_models_agree_in_onnx(shape, classes, parameters, tmp_path):
    pytest.importorskip("onnx")
    classifier, X = broken(shape, classes, parameters)
    export.onnx(classifier, tmp_path / "model.onnx")
    check_graph(classifier, X, export.Features(tmp_path / "model.onnx"))


def test_a_graph_without_masks_is_smaller_and_refuses_nan(small, graph, tmp_path):
    classifier, X = small
    export.onnx(classifier, tmp_path / "small.onnx", missing=False)
    run = export.Features(tmp_path / "small.onnx")
    assert graph.missing
    assert not run.missing
    with pytest.raises(PolyadicError, match="contains NaN or infinity"):
        run(lacking(X, "gaps"))
    with pytest.raises(PolyadicError, match="contains infinity"):
        graph(np.full_like(X, np.inf))
    assert np.abs(run.probabilities(X) - graph.probabilities(X)).max() < 1e-5


# ------------------------------------------------------------------------------ command line


@pytest.mark.parametrize("out", ["model.c", "model.onnx"])
def test_the_command_says_what_missing_samples_cost(small, out, tmp_path):
    classifier, _ = small
    classifier.save(tmp_path / "m.safetensors")
    words = ("export", "m.safetensors", "-o", out)
    outcome = json.loads(polyadic(*words, "--json", cwd=tmp_path).stdout)
    said = " ".join(polyadic(*words, "--force", cwd=tmp_path).stdout.split())
    if out == "model.c":
        assert f"masked table bytes {outcome['masked_table_bytes'] / 1e3:.1f} kB" in said
        assert f"{outcome['masked_bytes']} bytes and" in (tmp_path / "model.h").read_text()
    else:
        assert "missing True" in said
