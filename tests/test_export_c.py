"""The C code equals `transform` and the probe for every kind of model, and stays within its memory."""

from __future__ import annotations

import ctypes
import json
import re
import runpy
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from c_code import ARM_TOOLS, EXAMPLE, STRICT, STRICTER, CLibrary, missing, run
from command_line import polyadic
from exported import CLASSES, check, largest_difference, recordings, signals, trained, with_gaps
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from problems import paper

from polyadic import ATD, CPD, SALS, export, load
from polyadic._util import model_files
from polyadic.data import Windows
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.export import inference
from polyadic.export.inference import Inference
from polyadic.readout import Readout
from polyadic.spectral import STFT

pytestmark = [
    pytest.mark.skipif(bool(missing("gcc")), reason=missing("gcc")),
    pytest.mark.filterwarnings("ignore::polyadic.core.missing.MissingWarning"),
]


@pytest.fixture(scope="module")
def small():
    windows = recordings()
    return trained(windows), windows.X[:12]


@pytest.fixture(scope="module")
def compiled(small, tmp_path_factory):
    return CLibrary(export.c(small[0], tmp_path_factory.mktemp("c") / "model.c"))


@pytest.fixture
def files(compiled, tmp_path):
    """A folder with model.c and model.h."""
    for file in compiled.written.files:
        shutil.copy(file, tmp_path)
    return tmp_path


@pytest.fixture
def flushed():
    """Subnormal numbers are zeros, as in a program that is linked with `-ffast-math`."""
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


# ------------------------------------------------------------------ the same results


@st.composite
def models(draw):
    """A model of any shape with random components, windows for it, and a number of classes."""
    channels, rank = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    n_fft = draw(st.integers(4, 48))
    stft = STFT(
        n_fft,
        draw(st.integers(1, n_fft)),
        draw(st.sampled_from(["rectangular", "hann", "hamming", "blackman"])),
        draw(st.sampled_from(["log_amplitude", "log_amplitude", "log_re_im", "re_im", "amplitude"])),
        mean=draw(st.sampled_from(["auto", None])),
    )
    readout = draw(st.sampled_from([None, Readout(), Readout(statistics=0), Readout(0.5)]))
    samples, seed = n_fft + draw(st.integers(0, 60)), draw(st.integers(0, 99))
    X = signals((channels, samples), 40, seed, draw(st.sampled_from([1e-5, 1.0, 300.0])))
    model = SALS(rank, tensorize=stft, readout=None, nonnegative=False, max_sweeps=1, random_state=seed).fit(X)
    model.factors_ = [np.random.default_rng(seed).normal(size=factor.shape) for factor in model.factors_]
    assume(np.linalg.cond(Inference.of(model).gram()) < 1e4)
    if readout is not None:
        model.set_params(readout=readout).fit_readout(X)
    return model, X, draw(st.sampled_from([0, 2, 3, 5]))


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=models())
def test_random_models_agree_with_python(case, tmp_path_factory):
    model, X, classes = case
    exact, probe = np.asarray(model.transform(X.astype(np.float64))), None
    if classes:
        y = np.array(["rest", "walk", "run", "fall", "swim"])[np.arange(len(X)) % classes]
        probe = Probe(C=1.0, scale="plain").fit(exact, y)
    whole = model if probe is None else WindowClassifier.of(model, probe)
    code = CLibrary(export.c(whole, tmp_path_factory.mktemp("c") / "model.c"))
    assert largest_difference(code.features(X), exact) < 1e-4
    assert code.selftest() == 0
    if probe is not None:
        best, P = code.predict(X)
        assert np.abs(P - probe.predict_proba(exact)).max() < 1e-4
        assert (best == P.argmax(axis=1)).all()
        assert np.allclose(P.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("n_fft", [16, 30, 97, pytest.param(1024, marks=pytest.mark.long)])
def test_the_fourier_transform_is_right_for_every_length(n_fft, tmp_path):
    # With as many components as entries of the tensor, each of one entry alone, coefficients are the tensor itself.
    stft, X = STFT(n_fft, 1, "rectangular", "re_im"), signals((1, n_fft), 6)
    size = 2 * (n_fft // 2 + 1)
    model = paper(SALS, rank=size, tensorize=stft, max_sweeps=1).fit(X)
    model.factors_ = [np.kron(np.eye(2), np.ones((1, size // 2))), np.tile(np.eye(size // 2), 2), np.ones((1, size))]
    model.alpha = 0.0
    found = CLibrary(export.c(model, tmp_path / "model.c")).features(X)
    spectrum = np.fft.rfft(X[:, 0].astype(np.float64))
    expected = np.concatenate([spectrum.real, spectrum.imag], axis=1)
    assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max() * np.log2(n_fft + 2)


# ----------------------------------------------------------------- offsets, NaN and infinity


def test_what_c_cannot_hold_is_refused(small, tmp_path):
    with pytest.raises(PolyadicError, match="stride"):
        export.c(small[0], tmp_path / "model.c", stride=0)
    with pytest.raises(PolyadicError, match=r"path must not end in \.h"):
        export.c(small[0], tmp_path / "model.h")
    tensors = paper(SALS, rank=2, max_sweeps=1).fit(np.ones((5, 3, 4)))
    with pytest.raises(PolyadicError, match="tensorize must be an STFT for export to C, but is None"):
        export.c(tensors, tmp_path / "model.c")
    X = signals((3, 96), 40).astype(np.float64) + 1e5
    model = CPD(5, tensorize=STFT(16, 8, parts="amplitude", mean="auto"), max_sweeps=3).fit(X)
    with pytest.raises(PolyadicError, match=r"differ by 0\.\d+ % .* samples of about 1e\+05 are far from 0: subtract"):
        export.c(model, tmp_path / "model.c")
    assert not list(tmp_path.iterdir())


def test_a_window_with_nan_infinity_or_overflow_has_no_result_even_with_fast_math(small, flushed, tmp_path):
    classifier, X = small
    code = CLibrary(export.c(classifier, tmp_path / "model.c", stride=32), "-ffast-math")
    for value in (np.nan, -np.inf, 3e38):
        wrong = X[:3].copy()
        wrong[1, 2, 50] = value
        best, P = code.predict(wrong)
        assert best[1] == -1
        assert not P[1].any()
        assert (best[[0, 2]] >= 0).all()
        returned, Z = code.call("features", wrong)
        assert returned.tolist() == [0, -1, 0]
        assert not Z[1].any()
        # A stream recovers once the sample has left the window.
        found = code.push(np.concatenate([wrong[1], X[0], X[0]], axis=1).T)
        assert [number for number, row in found.items() if not row.any()] == [96, 128]
    assert "-1 if a sample is NaN or infinite" in (tmp_path / "model.h").read_text()


# ----------------------------------------------------------------------------- streams


@pytest.mark.parametrize(("stride", "masked"), [(1, False), (150, False), (31, True)])
def test_a_stream_gives_the_results_of_its_windows(small, stride, masked, tmp_path):
    classifier, X = small
    code = CLibrary(export.c(classifier, tmp_path / "model.c", stride=stride))
    signal = X[:4].transpose(0, 2, 1).reshape(-1, 4).copy()  # 384 samples
    if masked:
        signal[100:160, 1] = signal[150:300, 3] = np.nan
        signal[200:220] = np.nan
    found = code.push(signal, masked)
    ends = list(range(96, len(signal) + 1, stride))
    assert list(found) == ends
    expected = (code.predict_masked if masked else code.predict)(np.stack([signal[end - 96 : end].T for end in ends]))
    assert np.allclose(list(found.values()), expected[1], atol=1e-5 if masked else 1e-6)


def test_a_stream_of_a_model_without_a_probe_gives_features(small, tmp_path):
    classifier, X = small
    code = CLibrary(export.c(classifier.features_, tmp_path / "features.c"))
    assert np.allclose(code.push(X[0].T)[96], code.features(X[:1])[0], atol=1e-5)
    assert "polyadic_predict" not in (tmp_path / "features.h").read_text()


# --------------------------------------------------------------------------- the C itself


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("int8", [False, True])
def test_no_compiler_has_anything_to_say(small, compiler, int8, tmp_path):
    if missing(compiler):
        pytest.skip(missing(compiler))
    export.c(small[0].features_ if int8 else small[0], tmp_path / "model.c", int8=int8)
    how = ("-O2", "-c") if compiler == "gcc" else ("-fsyntax-only",)  # clang warns without optimising
    run(compiler, *STRICT, *STRICTER, *how, tmp_path / "model.c", "-o", tmp_path / "model.o")


def test_the_c_code_keeps_no_state_and_calls_only_the_math_library(files):
    run("gcc", *STRICT, "-O1", "-fno-pic", "-fno-pie", "-c", files / "model.c", "-o", files / "model.o")
    symbols = [line.split() for line in run("nm", files / "model.o").splitlines()]
    kinds = {(words[-2], words[-1]) for words in symbols}
    ours = {"logf", "sqrtf", "sqrt", "expf", "memset", "memcpy", "memmove", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
    assert {name for kind, name in kinds if kind == "U"} <= ours
    assert not [name for kind, name in kinds if kind in "BbDdCc"]  # variables
    outside = {name for kind, name in kinds if kind in "TR"}
    functions = ("features", "predict", "classes", "push", "reset", "selftest")
    functions += ("features_masked", "predict_masked", "push_masked")
    assert outside == {f"polyadic_{name}" for name in functions}


def test_cpp_can_include_the_header(files):
    if missing("g++"):
        pytest.skip(missing("g++"))
    (files / "main.cpp").write_text('#include "model.h"\nint main() { return polyadic_selftest(); }\n')
    run("gcc", *STRICT, "-c", files / "model.c", "-o", files / "model.o")
    words = ("-Wall", "-Wextra", "-Werror", files / "main.cpp", files / "model.o", "-o", files / "test", "-lm")
    run("g++", *words)
    run(files / "test")


@pytest.mark.parametrize("table", ["sine", "weights"])
def test_the_selftest_notices_a_changed_number(small, table, tmp_path):
    written = export.c(small[0], tmp_path / "model.c")
    text = written.files[0].read_text()
    start = text.index(f"polyadic_{table}[")
    place = re.compile(r"-?\d+\.\d*(e[-+]\d+)?f").search(text, text.index("=", start))
    number = float(place[0].rstrip("f"))
    written.files[0].write_text(text[: place.start()] + f"{number - 3}f" + text[place.end() :])
    assert CLibrary(written).selftest() > 0


def test_names_cannot_break_the_code(tmp_path):
    X = signals((2, 64), 30)
    names = ['a "quoted" \\ name??/', "*/ #error", "/* µ \n\r ‮", "100 %d"]
    y = np.array(names)[np.arange(30) % 4]
    model = SALS(rank=2, max_sweeps=1).fit(Windows(X, fs=50.0, channels=["*/ x", "y\n/*\\"]))
    model.units_ = ("µV", "*/")
    probe = Probe(C=1.0, scale="plain").fit(np.asarray(model.transform(X), np.float64), y)
    written = export.c(WindowClassifier.of(model, probe), tmp_path / "model.c")
    code = CLibrary(written, *STRICTER, "-Wtrigraphs", "-Wcomment")
    found = (ctypes.c_char_p * 4).in_dll(code.library, "polyadic_classes")
    assert [name.decode() for name in found] == sorted(names)


def test_structures_and_tables_have_the_reported_sizes(small, tmp_path):
    for int8 in (False, True):
        written = export.c(small[0], tmp_path / "model.c", int8=int8)
        (tmp_path / "main.c").write_text(
            '#include <stdio.h>\n#include "model.h"\nint main(void) { printf("%d %d %d\\n", '
            "(int)sizeof(polyadic_scratch), (int)sizeof(polyadic_stream), (int)sizeof(polyadic_masked)); return 0; }\n"
        )
        run("gcc", tmp_path / "main.c", tmp_path / "model.c", "-o", tmp_path / "main", "-lm")
        expected = (written.scratch_bytes, written.stream_bytes, written.masked_bytes)
        assert [int(word) for word in run(tmp_path / "main").split()] == list(expected)
        run("gcc", "-c", tmp_path / "model.c", "-o", tmp_path / "model.o")
        lines = [line.split() for line in run("nm", "-S", tmp_path / "model.o").splitlines()]
        tables = {words[3]: int(words[1], 16) for words in lines if len(words) == 4 and words[2] in "rR"}
        counted = sum(size for name, size in tables.items() if "_test_" not in name and name != "polyadic_classes")
        assert counted == written.table_bytes + written.masked_table_bytes


def test_the_header_describes_the_model_also_from_a_file(tmp_path):
    labels = CLASSES[np.arange(120) % 3]
    named = Windows(recordings(2).X, fs=50.0, channels=["ax", "gx"], units=["m/s2", "rad/s"], label=labels)
    trained(named).save(tmp_path / "m.safetensors")
    assert load(tmp_path / "m.safetensors").units_ == ("m/s2", "rad/s")
    export.c(load(tmp_path / "m.safetensors"), tmp_path / "model.c", stride=25)
    text = (tmp_path / "model.h").read_text()
    for said in (
        "2 channels of 96 samples at 50 Hz, 1.92 s",
        "0: ax (m/s2), 1: gx (rad/s)",
        "#define POLYADIC_STRIDE 25",
    ):
        assert said in text
    assert "0: rest, 1: run, 2: walk" in text
    assert re.search(r"probabilities of the test window: rest \d\.\d{4}, run \d\.\d{4}, walk \d\.\d{4}", text)
    arrays, header = model_files.read(tmp_path / "m.safetensors")
    model_files.write(tmp_path / "m.safetensors", arrays, header | {"units": ["m/s2"]})
    with pytest.raises(ModelFileError, match="do not match its channels"):
        load(tmp_path / "m.safetensors")


# --------------------------------------------------------------------------------- int8


def test_int8_is_smaller_and_computes_with_its_rounded_weights(small, compiled, tmp_path):
    classifier, X = small
    code = CLibrary(written := export.c(classifier, tmp_path / "model.c", int8=True))
    assert written.table_bytes < 0.6 * compiled.written.table_bytes
    assert code.selftest() == 0
    assert largest_difference(code.features(X), written.features(X)) < 1e-4
    assert np.abs(code.predict(X)[1] - written.probabilities(X)).max() < 1e-4
    exact = np.asarray(classifier.features_.transform(X.astype(np.float64)))
    assert largest_difference(compiled.written.features(X), exact) < 1e-9
    assert 1e-5 < largest_difference(written.features(X), exact) < 0.2
    for how in ("gaps", "whole channels"):
        lacks = with_gaps(X, how)
        expected = classifier.predict_proba(lacks.astype(np.float64))
        labels, P = code.predict_masked(lacks)
        assert np.abs(P - expected).max() < 0.1
        assert (labels == expected.argmax(axis=1)).mean() > 0.8


def test_rounding_with_feedback_is_closer_than_rounding_alone():
    random = np.random.default_rng(0)
    K = random.uniform(size=(50, 12))  # all positive: similar components
    H, rows = K.T @ K, random.normal(size=(9, 12))

    def loss(rounded, scale):
        error = rows - rounded * scale[:, None]
        return np.einsum("sr,rq,sq->", error, H, error)

    assert loss(*inference._rounded_together(rows, H)) < 0.3 * loss(*inference._rounded(rows))


def test_int8_keeps_the_mean_of_windows_that_lie_far_from_zero(tmp_path):
    # Log amplitudes that are not centred: all windows have almost the same large projections.
    X = signals((3, 96), 60, scale=1e-6)
    # The correction assumes that the components fit the mean, so the fit must be good.
    model = CPD(6, tensorize=STFT(32, 8, parts="log_amplitude"), readout=Readout(statistics=0), max_sweeps=5).fit(X)
    exact = np.asarray(model.transform(X.astype(np.float64)))
    error = export.c(model, tmp_path / "model.c", int8=True).features(X) - exact
    assert np.abs(error.mean(axis=0)).max() < 0.02 * np.sqrt(np.mean(np.square(exact)))


# ------------------------------------------------------------------------- missing samples


@pytest.mark.parametrize("compiler", [pytest.param("gcc", marks=pytest.mark.long), "clang"])
def test_compilers_and_fast_math_agree_with_the_model(small, compiler, flushed, tmp_path):
    if missing(compiler):
        pytest.skip(missing(compiler))
    code = CLibrary(export.c(small[0], tmp_path / "model.c"), "-O3", "-ffast-math", compiler=compiler)
    for how in ("gaps", "whole channels", "dead, stuck and clipped"):
        X = with_gaps(small[1], how)
        check(small[0], X, code.features_masked(X), code.predict_masked(X)[1])


def test_nearly_noiseless_components_are_solved_in_double(tmp_path):
    X = recordings().X
    model = CPD(2, device="cpu", max_sweeps=15).fit(X)
    model.prior_ = replace(model.prior_, noise=1e-7 * model.prior_.noise)
    code = CLibrary(export.c(model, tmp_path / "model.c"))
    assert "double gram" in (tmp_path / "model.h").read_text()
    X = with_gaps(X[:12], "gaps")
    assert np.abs(code.features_masked(X) - model.transform(X.astype(np.float64))).max() < 1e-3


def test_infinity_gives_no_result_and_a_missing_channel_none_without_masks(small, compiled):
    X = with_gaps(small[1], "whole channels")
    assert (compiled.predict(X)[0] == -1).all()
    X[0, 0, 5], X[1, 2, 7] = np.inf, -np.inf
    best, P = compiled.predict_masked(X)
    assert best[:2].tolist() == [-1, -1]
    assert not P[:2].any()
    assert (best[2:] >= 0).all()


def test_the_linker_drops_what_nobody_calls(files):
    for call, kept in (("0", False), ("polyadic_predict_masked(w, p, &s, &m)", True)):
        (files / "main.c").write_text(
            '#include "model.h"\nfloat w[POLYADIC_CHANNELS][POLYADIC_SAMPLES], p[POLYADIC_CLASSES];\n'
            "polyadic_scratch s;\npolyadic_masked m;\n"
            f"int main(void) {{ return polyadic_predict(POLYADIC_WINDOW(w), p, &s) + {call}; }}\n"
        )
        words = ("-O1", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections")
        run("gcc", *STRICT, *words, files / "main.c", files / "model.c", "-o", files / "main", "-lm")
        symbols = run("nm", files / "main")
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
    P = classifier.predict_proba(X)[0]
    name, percent = re.search(r"without the first channel: (\w+), (\d+) %", said).groups()
    assert name == classifier.classes_[P.argmax()]
    assert abs(int(percent) - 100 * P.max()) < 1


# ------------------------------------------------------------------------ command line


def test_the_command_writes_c_with_8_bit_weights(small, tmp_path):
    classifier, X = small
    classifier.save(tmp_path / "m.safetensors")
    np.savez(tmp_path / "w.npz", X=X, y=CLASSES[np.arange(12) % 3], fs=50.0)
    words = ("export", "m.safetensors", "-o", "model.c", "--int8", "--stride", 24, "--json")
    outcome = json.loads(polyadic(*words, cwd=tmp_path).stdout)
    assert outcome["files"] == ["model.c", "model.h"]
    assert (outcome["stride"], outcome["window"], outcome["int8"]) == (24, [4, 96], True)
    export.c(load(tmp_path / "m.safetensors"), tmp_path / "same.c", int8=True)
    named = re.compile(r"sha256 ([0-9a-f]{64})")
    assert named.findall((tmp_path / "model.h").read_text()) == named.findall((tmp_path / "same.h").read_text()) != []
    for words in (("-o", "n.onnx", "--int8"), ("-o", "n.c", "--data", "w.npz")):
        said = polyadic("export", "m.safetensors", *words, cwd=tmp_path, code=1).stderr
        assert "is not for this kind of export: --out is n." in said


# ---------------------------------------------------------------------------- Cortex-M


@pytest.fixture(scope="module")
def har_classifier(data_folder):
    """The default model of HAR with a probe, learned from the training people, and the windows of the others."""
    path = data_folder / "har.npz"
    if not path.exists():
        pytest.skip("POLYADIC_DATA has no har.npz")
    har = np.load(path)
    learned = Windows(har["X_train"], 50.0, label=har["y_train"].astype(str), subject=har["subject_train"].astype(str))
    return WindowClassifier(ATD(device="cpu").fit(learned)).fit(learned), har["X_test"]


@pytest.mark.long
def test_the_default_model_of_har_gives_the_same_labels_in_c(har_classifier, tmp_path):
    classifier, X = har_classifier
    code = CLibrary(export.c(classifier, tmp_path / "model.c"), "-O2")
    Z = np.asarray(classifier.features_.transform(X.astype(np.float64)))
    assert largest_difference(code.features(X), Z) < 1e-4
    expected = classifier.predict_proba(X.astype(np.float64))
    ordered = np.sort(expected, axis=1)
    close = ordered[:, -1] - ordered[:, -2] < 1e-3
    best = code.predict(X)[0]
    assert len(best) == 3003
    assert (close | (best == expected.argmax(axis=1))).all()
    small = CLibrary(export.c(classifier, tmp_path / "small.c", int8=True), "-O2")
    assert (small.predict(X)[0] == expected.argmax(axis=1)).mean() > 0.99


@pytest.mark.long
@pytest.mark.skipif(bool(missing(*ARM_TOOLS)), reason=missing(*ARM_TOOLS))
@pytest.mark.parametrize(("int8", "most"), [(False, 32), (True, 16)])
def test_the_default_model_of_har_fits_a_small_cortex_m4f(har_classifier, int8, most, tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns("build", "model.*"))
    export.c(har_classifier[0], tmp_path / "project" / "model.c", int8=int8)
    # The linker is given 24 KiB of memory.
    said = run("make", "-C", tmp_path / "project", "build/m4.elf", "run-m4", timeout=120)
    assert "selftest: passed" in said
    found = runpy.run_path(str(EXAMPLE / "sizes.py"))["sizes"]((tmp_path / "project" / "build" / "m4.map").read_text())
    assert sum(found["flash"][part] for part in ("tables", "code", "libraries")) <= most * 1024
    assert sum(found["memory"].values()) <= 24 * 1024
    assert found["memory"]["stream"] <= 8 * 1024
