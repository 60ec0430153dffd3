"""`polyadic run` from end to end, in a separate process where necessary."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from command_line import polyadic
from sklearn.metrics import balanced_accuracy_score
from typer.testing import CliRunner

from polyadic import load
from polyadic.cli import app
from polyadic.cli.run import fit_and_score, split_for
from polyadic.data import synthetic
from polyadic.data.readers.arrays import open_windows
from polyadic.estimators import SALS
from polyadic.evaluate.probe import Probe, statistic_columns
from polyadic.presets import preset
from polyadic.spectral import STFT

METHODS = ["CPD", "ATD, paper", "PCA", "hand features"]
QUICK = ("--seeds", "2", "--sweeps", "2", "--rank", "4", "--quiet")


def run(*arguments: str):
    return CliRunner().invoke(app, ["run", *arguments])


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    signals = synthetic(120)
    path = tmp_path_factory.mktemp("arrays") / "windows.npz"
    np.savez(path, X=signals.X, y=signals.label, subject=signals.subject, fs=signals.fs)
    return path


@pytest.fixture(scope="module")
def finished(arrays):
    """A run, and the folder with what it wrote."""
    out = arrays.parent / "out"
    result = run("--data", str(arrays), "--out", str(out), *QUICK)
    assert result.exit_code == 0, result.output
    return result, out


def test_run_writes_a_table_the_results_and_a_model_of_each_method(arrays, finished):
    result, out = finished
    assert all(method in result.stdout for method in METHODS)
    assert "protocol subject: subject-wise split" in result.stdout
    text = (out / "results.json").read_text()
    written = json.loads(text)
    assert [entry["method"] for entry in written["summary"]] == METHODS
    assert {"command", "commit", "date", "machine", "versions", "seeds"} <= written.keys()
    assert str(arrays.parent) not in json.dumps(written)
    assert len(written["rows"]) == 2 * len(METHODS)
    X = np.load(arrays)["X"][:3]
    for name in ("cpd", "atd-paper"):
        assert load(out / f"{name}.safetensors").coefficients(X).shape == (3, 4)
    assert load(out / "pca.safetensors").transform(X).shape == (3, 4)
    assert len(load(out / "hand-features.safetensors").transform(X)) == 3
    default, paper, *simple = written["summary"]
    assert default["parameters"] != paper["parameters"]
    assert all("sweeps" in entry for entry in (default, paper))
    assert not any("sweeps" in entry for entry in simple)
    assert all(entry["seconds"] > 0 for entry in written["summary"])


@pytest.mark.long
def test_run_without_arguments_takes_built_in_signals(tmp_path):
    result = run("--out", str(tmp_path), "--seeds", "1", "--sweeps", "1", "--json")
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    assert written["title"] == "built-in signals"
    found = {entry["method"]: entry["parameters"] for entry in written["summary"]}
    assert found["CPD"] == 8 * (8 + 33 + 25) + 8 * 33 + 72 + 2 * 148  # bases, mean spectrum, readout, statistics
    assert found["ATD, paper"] == 8 * (16 + 33 + 25)
    assert found["PCA"] == 9 * 8 * 33 * 25


def test_windows_without_labels_get_models_and_no_accuracy(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, X=synthetic(60).X)
    result = run("--data", str(path), "--out", str(tmp_path / "out"), *QUICK)
    assert result.exit_code == 0, result.output
    assert "%" not in result.stdout
    assert load(tmp_path / "out" / "cpd.safetensors").n_parameters_ > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--preset", "har"), "--preset is for recordings"),
        (("--data", "missing.npz"), "does not exist"),
        (("--data", "damaged.npz"), "damaged.npz cannot be read"),
        (("--data", "good.npz", "--protocol", "person"), "'person' is not one of"),
        (("--data", "good.npz", "--preset", "hal"), "name must be one of sleep_edf, har, ptb_xl, .* but is 'hal'"),
        (("--data", "good.npz", "--protocol", "subject"), "needs the subject of every window"),
        (("--data", "good.npz", "--device", "cuda:99"), "cuda"),
        (("--data", "good.npz", "--out", "good.npz"), "good.npz"),
        (("--data", "slow.npz", "--preset", "har"), "is too low for har"),
        (("--data", "one.npz"), "labels must have at least two classes among the training windows, but have one"),
    ],
)
def test_impossible_requests_give_a_one_line_error_with_exit_code_1_or_2(tmp_path, arguments, message):
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 not really")
    np.savez(tmp_path / "good.npz", X=np.random.default_rng(0).normal(size=(40, 2, 64)), y=np.arange(40) % 2)
    good = np.load(tmp_path / "good.npz")
    np.savez(tmp_path / "slow.npz", **good, fs=20)
    np.savez(tmp_path / "one.npz", X=good["X"], y=np.zeros(40, int))
    result = polyadic("run", "--seeds", "1", "--sweeps", "1", *arguments, cwd=tmp_path, code=(1, 2))
    assert re.search(message, re.sub(r"[│╭╮╰╯─\s]+", " ", result.stderr))


def test_a_file_with_a_split_of_its_own_keeps_it(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(
        path, X_train=np.zeros((8, 2, 16)), X_test=np.ones((6, 2, 16)), y_test=np.arange(6), subject_test=np.arange(6)
    )
    windows = open_windows(path)
    parts = split_for(windows, "subject", 0)
    assert np.array_equal(parts.unlabelled, np.arange(8))
    assert sorted([*parts.train, *parts.test]) == list(range(8, 14))
    assert sorted(windows.label[8:]) == list(range(6))


def test_a_row_has_the_scores_of_a_probe_on_the_features_of_the_unlabelled_part():
    signals = synthetic(200)
    estimator = SALS(rank=2, tensorize=STFT(n_fft=32, hop=16), max_sweeps=3, tol=0.0, device="cpu")
    row, model = fit_and_score(signals, estimator, "subject", 3, "auto")
    assert row["sweeps"] == 3
    part = split_for(signals, "subject", 3)
    train, test = part.train, part.test
    Z_train, Z_test = (model.transform(signals[rows]) for rows in (train, test))
    words = {"groups": signals.subject[train], "statistic_columns": statistic_columns(model)}
    chosen = Probe().fit(Z_train, signals.label[train], **words)
    assert row["reason"] == chosen.reason_
    predicted = chosen.predict(Z_test)
    assert row["accuracy"] == 100 * np.mean(predicted == signals.label[test])
    assert row["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(signals.label[test], predicted))


@pytest.mark.long
def test_a_preset_compares_the_papers_methods_with_its_settings(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "har.npz", X=rng.normal(size=(80, 9, 128)).astype(np.float32), y=np.arange(80) % 2)
    words = (
        "--data",
        str(tmp_path / "har.npz"),
        *["--preset", "har", "--seeds", "1", "--sweeps", "1", "--probe", "plain"],
    )
    written = json.loads(run(*words, "--json", "--out", str(tmp_path / "a")).stdout)
    assert [entry["method"] for entry in written["summary"]] == ["ATD", "ATD_ss-", "GR-SALS", "SALS"]
    assert all(entry["parameters"] == 2688 for entry in written["summary"])
    assert written["settings"]["learning_rate"] == preset("har").parameters["learning_rate"]
    assert written["settings"]["tensorize"]["window"] == "rectangular"
