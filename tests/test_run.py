"""`polyadic run` from end to end, in a separate process where necessary."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from command_line import polyadic
from polyadic.methods import paper_methods
from sklearn.metrics import balanced_accuracy_score
from typer.testing import CliRunner

from paper.robustness import score_split
from paper.timing import seconds_per_sweep
from polyadic import load
from polyadic.cli import app
from polyadic.cli.run_methods import fit_and_score_methods, split_for, summarise_methods
from polyadic.data import Windows, synthetic
from polyadic.data.readers.arrays import open_windows
from polyadic.errors import PolyadicError
from polyadic.evaluate.probe import PROBES, Probe, level_columns
from polyadic.evaluate.scoring import probe_accuracy
from polyadic.presets import preset

METHODS = ["ATD", "ATD, paper", "PCA", "hand features"]
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
    assert "…" not in result.stdout  # the table fits into 80 columns
    text = (out / "results.json").read_text()
    written = json.loads(text)
    assert [entry["method"] for entry in written["summary"]] == METHODS
    assert {"command", "commit", "date", "machine", "versions", "seeds"} <= written.keys()
    assert str(arrays.parent) not in json.dumps(written)
    assert len(written["rows"]) == 2 * len(METHODS)
    assert "| ATD |" in (out / "results.md").read_text()
    X = np.load(arrays)["X"][:3]
    for name in ("atd", "atd-paper"):
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
    assert found["ATD"] == 8 * (8 + 33 + 25) + 8 * 33 + 72 + 16  # bases, mean spectrum, readout and levels
    assert found["ATD, paper"] == 8 * (16 + 33 + 25)
    assert found["PCA"] == 9 * 8 * 33 * 25


def test_the_same_command_gives_the_same_figures(tmp_path, arrays, finished):
    def figures(text):
        return [{key: row[key] for key in row if "seconds" not in key} for row in json.loads(text)["rows"]]

    again = run("--data", str(arrays), "--out", str(tmp_path / "out"), "--json", *QUICK)
    assert figures(again.stdout) == figures((finished[1] / "results.json").read_text())


@pytest.mark.long
def test_both_protocols_are_distinguished(tmp_path, arrays):
    result = run("--data", str(arrays), "--out", str(tmp_path / "out"), "--protocol", "both", *QUICK)
    assert result.exit_code == 0, result.output
    assert "random split of windows" in result.stdout
    assert "subject-wise split" in result.stdout


def test_windows_without_labels_get_models_and_no_accuracy(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, X=synthetic(60).X)
    result = run("--data", str(path), "--out", str(tmp_path / "out"), *QUICK)
    assert result.exit_code == 0, result.output
    assert "%" not in result.stdout
    assert load(tmp_path / "out" / "atd.safetensors").n_parameters_ > 0


def test_windows_without_subjects_are_split_at_random_and_the_table_says_so(tmp_path):
    signals = synthetic(120)
    np.savez(tmp_path / "xy.npz", X=signals.X, y=signals.label)
    result = run("--data", str(tmp_path / "xy.npz"), "--out", str(tmp_path / "out"), *QUICK)
    assert "protocol paper: random split of windows" in result.stdout


@pytest.mark.long
def test_a_preset_brings_the_papers_settings_and_defaults_the_librarys(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "har.npz", X=rng.normal(size=(80, 9, 128)).astype(np.float32), y=np.arange(80) % 2)
    base = ("--data", str(tmp_path / "har.npz"), "--preset", "har", "--seeds", "1", "--sweeps", "1", "--json")
    paper = json.loads(run(*base, "--out", str(tmp_path / "a")).stdout)
    own = json.loads(run(*base, "--defaults", "--out", str(tmp_path / "b")).stdout)
    assert paper["settings_of_ATD"]["learning_rate"] == preset("har").parameters["learning_rate"]
    assert own["settings_of_ATD"]["learning_rate"] != preset("har").parameters["learning_rate"]
    assert own["settings_of_ATD"]["tensorize"]["window"] == "hann"
    assert paper["settings_of_ATD"]["tensorize"]["window"] == "rectangular"
    assert paper["settings_of_ATD"]["augment"] == own["settings_of_ATD"]["augment"]
    assert all(entry["parameters"] == 2688 for entry in paper["summary"] + own["summary"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--preset", "har"), "--preset is for recordings"),
        (("--defaults",), "--defaults requires --preset"),
        (("--data", "missing.npz"), "does not exist"),
        (("--data", "damaged.npz"), "damaged.npz cannot be read"),
        (("--data", "other.npz"), "the file must contain X, or X_train and X_test, but contains neither"),
        (("--data", "short.npz"), r"label must have shape \(6,\), one entry per window, but has shape \(5,\)"),
        (("--data", "good.npz", "--protocol", "person"), "--protocol must be subject, paper or both, but is 'person'"),
        (
            ("--data", "good.npz", "--preset", "hal"),
            "name must be one of sleep_edf, har, ptb_xl, ptb_xl_100hz, mgh, but is 'hal'",
        ),
        (("--data", "good.npz", "--protocol", "subject"), "needs the subject of every window"),
        (("--data", "good.npz", "--n-fft", "999"), "at least n_fft=999 samples, but they have 64"),
        (("--data", "good.npz", "--device", "cuda:99"), "cuda"),
        (("--data", "fractions.npz"), "label must hold classes"),
        (("--data", "rates.npz"), "fs must be one positive number in Hz"),
        (("--data", "uneven.npz"), "X_train and X_test must have windows of the same shape"),
        (("--data", "good.npz", "--out", "good.npz"), "good.npz"),
        (("--data", "slow.npz", "--preset", "har"), "is too low for har"),
    ],
)
def test_impossible_requests_give_a_one_line_error_with_exit_code_1_or_2(tmp_path, arguments, message):
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 not really")
    np.savez(tmp_path / "other.npz", Q=np.zeros(3))
    np.savez(tmp_path / "short.npz", X=np.ones((6, 2, 64)), y=np.zeros(5))
    np.savez(tmp_path / "good.npz", X=np.random.default_rng(0).normal(size=(40, 2, 64)), y=np.arange(40) % 2)
    good = np.load(tmp_path / "good.npz")
    np.savez(tmp_path / "fractions.npz", X=good["X"], y=np.linspace(0, 1, 40))
    np.savez(tmp_path / "rates.npz", **good, fs=[50, 50])
    np.savez(tmp_path / "slow.npz", **good, fs=20)
    np.savez(tmp_path / "uneven.npz", X_train=np.ones((3, 2, 64)), X_test=np.ones((3, 2, 32)))
    result = polyadic("run", "--seeds", "1", "--sweeps", "1", *arguments, cwd=tmp_path, code=(1, 2))
    import re

    assert re.search(message, re.sub(r"[│╭╮╰╯─\s]+", " ", result.stderr))


def test_help_and_import_load_nothing_heavy():
    code = (
        "import sys, polyadic, polyadic.cli\n"
        "from typer.testing import CliRunner\n"
        "assert CliRunner().invoke(polyadic.cli.app, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(polyadic.cli.app, ['run', '--help']).exit_code == 0\n"
        "print([name for name in ('torch', 'sklearn', 'scipy', 'numpy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result.stderr


def test_the_version_is_shown():
    from polyadic import __version__

    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == f"polyadic {__version__}"


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


def _small_methods():
    settings = preset("har")
    small = replace(settings, augment=settings.augment.steps[0], parameters={"rank": 2, "max_sweeps": 1})
    return paper_methods(small)


def test_one_fit_serves_both_protocols_where_the_data_has_an_unlabelled_part():
    signals = synthetic(200)
    part = np.where(signals.subject.astype(int) < 15, "train", "test")
    windows = Windows(signals.X, signals.fs, subject=signals.subject, label=signals.label, part=part)
    fitted = []
    p = _small_methods()
    rows = fit_and_score_methods(
        windows, {"SALS": p["SALS"]}, ["paper", "subject"], [0, 1], on_fit=lambda *call: fitted.append(call[:2])
    )
    assert fitted == [("SALS", 0), ("SALS", 1)]
    assert [(row["seed"], row["protocol"]) for row in rows] == [(s, p) for s in (0, 1) for p in ("paper", "subject")]


def test_a_row_has_the_scores_of_the_scorer_and_the_seconds_of_the_one_definition():
    signals = synthetic(200)
    models = {}
    estimator = _small_methods()["SALS"].set_params(max_sweeps=6, tol=0.0)
    (row,) = fit_and_score_methods(
        signals,
        {"SALS": estimator},
        ["subject"],
        [3],
        on_fit=lambda name, seed, model: models.update({name: model}),
        probes=("auto", *PROBES),
    )
    assert row["seconds_per_sweep"] == seconds_per_sweep(models["SALS"].history_["seconds"])
    assert row["sweeps"] == 6
    scored = score_split(models["SALS"], split_for(signals, "subject", 3))
    assert {kind: row[kind] for kind in PROBES} == {kind: 100 * scored[kind]["accuracy"] for kind in PROBES}
    part = split_for(signals, "subject", 3)
    train, test = part.train, part.test
    Z_train, Z_test = (models["SALS"].transform(signals[rows]) for rows in (train, test))
    words = {"groups": signals.subject[train], "level_columns": level_columns(models["SALS"])}
    chosen = Probe().fit(Z_train, signals.label[train], **words)
    assert row["reason"] == chosen.reason_
    predicted = chosen.predict(Z_test)
    assert row["accuracy"] == 100 * np.mean(predicted == signals.label[test])
    assert row["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(signals.label[test], predicted))


@pytest.mark.long
def test_the_probe_of_a_run_is_chosen_by_leaving_subjects_out_unless_the_papers_probes_are_requested(tmp_path, arrays):
    base = ("--data", str(arrays), "--out", str(tmp_path / "out"), "--seeds", "1", "--sweeps", "2", "--rank", "4")
    shown = run(*base, "--quiet").stdout
    assert "balanced" in shown
    assert "accuracy %" in shown
    assert "Probe of ATD, seed 0: C=" in " ".join(shown.split())
    assert "settings are chosen by leaving subjects out" in (tmp_path / "out" / "results.md").read_text()
    paper = run(*base, "--probe", "plain", "--probe", "standardised", "--json")
    assert set(PROBES) < set(json.loads(paper.stdout)["summary"][0])
    assert "balanced_accuracy" not in json.loads(paper.stdout)["summary"][0]
    assert "on plain and on standardised features" in (tmp_path / "out" / "results.md").read_text()


def test_a_preset_follows_the_sampling_rate_of_the_file(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 9, 256)).astype(np.float32)
    np.savez(tmp_path / "fast.npz", X=X, fs=100)
    result = run(
        "--data", str(tmp_path / "fast.npz"), "--preset", "har", "--out", str(tmp_path / "out"), "--json", *QUICK
    )
    settings = json.loads(result.stdout)["settings_of_ATD"]
    assert (settings["tensorize"]["n_fft"], settings["tensorize"]["hop"]) == (128, 4)
    assert settings["augment"]["steps"][1]["fs"] == 100


def test_known_sampling_rates_bring_a_bandpass_filter(finished):
    paper = load(finished[1] / "atd-paper.safetensors")
    assert [type(step).__name__ for step in paper.augment.steps] == ["Jitter", "Bandpass"]
    assert paper.beta > 0
    assert json.loads((finished[1] / "results.json").read_text())["settings_of_ATD"]["beta"] == 0


@pytest.mark.long
def test_jobs_do_not_change_the_figures(tmp_path, arrays):
    def figures(*more):
        written = json.loads(run("--data", str(arrays), "--out", str(tmp_path / "out"), "--json", *QUICK, *more).stdout)
        return [[row["method"], row["seed"], row["accuracy"], row["reason"]] for row in written["rows"]]

    assert figures() == figures("--jobs", "2")


def test_the_four_methods_differ_as_the_paper_says():
    settings = preset("har")
    estimators = paper_methods(settings)
    assert list(estimators) == ["ATD", "ATD_ss-", "GR-SALS", "SALS"]
    assert (estimators["ATD"].beta, estimators["ATD_ss-"].beta) == (2.0, 0.0)
    assert estimators["ATD_ss-"].augment is settings.augment
    assert not hasattr(estimators["SALS"], "augment")
    assert len({estimator.learning_rate for estimator in estimators.values()}) == 1


def test_a_summary_is_mean_and_standard_deviation_over_seeds():
    rows = [{"method": m, "protocol": "paper", "seed": s, "plain": 10.0 * s} for m in "AB" for s in range(3)]
    summary = summarise_methods(rows)
    assert [entry["method"] for entry in summary] == ["A", "B"]
    assert all((entry["plain"], entry["plain_std"]) == (10.0, 10.0) for entry in summary)


@pytest.mark.parametrize("kind", PROBES)
def test_the_probe_learns_separable_classes(kind):
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    Z = rng.normal(size=(200, 3)) + 4 * y[:, None]
    assert probe_accuracy(kind, Z[:100], y[:100], Z[100:], y[100:]) > 0.97


def test_only_the_standardised_probe_is_blind_to_scale():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    Z = np.c_[rng.normal(size=200) * 1e-4, rng.normal(size=200) * 100]
    Z[:, 0] += 1e-3 * y
    halves = (Z[:100], y[:100], Z[100:], y[100:])
    assert probe_accuracy("standardised", *halves) > 0.95 > probe_accuracy("plain", *halves)


def test_training_labels_of_one_class_are_refused():
    signals = synthetic(100)
    windows = Windows(signals.X, subject=signals.subject, label=np.zeros(100, int))
    estimators = _small_methods()
    with pytest.raises(PolyadicError, match="at least two classes"):
        fit_and_score_methods(windows, {"SALS": estimators["SALS"]}, ["subject"], [0])
