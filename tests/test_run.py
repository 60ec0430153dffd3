"""`polyadic run` from end to end, in a separate process where necessary."""

from __future__ import annotations

import json
import re
from importlib import import_module

import numpy as np
import pytest
from command_line import polyadic
from sklearn.metrics import balanced_accuracy_score
from typer.testing import CliRunner

from polyadic import CPD, load
from polyadic.cli import app
from polyadic.cli.run import score
from polyadic.data import Windows, synthetic
from polyadic.evaluate import WindowClassifier, labels_of

METHODS = ["polyadic", "statistics", "PCA", "ATD, paper"]
NAME = "[red]<img src=x>|`*a*\x1b[31m.npz"
HEADS = {"3": "3 labels", "10": "10 labels", "all": "all labels", "dead": "one sensor dead"}
SIGNALS = synthetic(96, n_channels=3, length=64)
SUBJECT = np.array([f"s{number % 8}" for number in range(96)])


def write(path, **changes):
    np.savez(path, **{"X": SIGNALS.X, "y": SIGNALS.label, "subject": SUBJECT, "fs": SIGNALS.fs} | changes)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The output of a run, and the folder with what it wrote."""
    folder = tmp_path_factory.mktemp("run")
    words = ["--data", str(write(folder / NAME)), "--out", str(folder / "out"), "--rank", "4", "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("polyadic.explain.components"), "_RANKS", (2,))  # fewer than by default
        patch.setattr("polyadic.report.page._MAPPED", 30)
        result = CliRunner().invoke(app, ["run", *words], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout, folder / "out", json.loads((folder / "out" / "results.json").read_text())


def test_run_writes_a_table_the_results_a_model_with_a_probe_and_a_report(finished):
    printed, out, written = finished
    assert sorted(path.name for path in out.iterdir()) == ["model.safetensors", "report.html", "results.json"]
    assert [entry["method"] for entry in written["summary"]] == METHODS
    assert [row["split"] for row in written["rows"]] == [1] * 4 + [2] * 4 + [3] * 4
    for entry in written["summary"]:
        own = [row for row in written["rows"] if row["method"] == entry["method"]]
        assert all(entry[name] == pytest.approx(np.mean([row[name] for row in own])) for name in HEADS)
    assert {"command", "commit", "date", "machine", "versions"} <= written.keys()
    assert str(out.parent) not in json.dumps(written)
    for entry in written["summary"]:
        line = " ".join([entry["method"], *(f"{entry[name]:.1f}" for name in HEADS)])
        assert f" {line} " in " ".join(printed.split())
    assert load(out / "model.safetensors").rank == 4
    assert WindowClassifier.load(out / "model.safetensors").predict(SIGNALS.X[:3]).shape == (3,)


def test_the_name_of_a_file_is_text_in_the_table_and_the_page_of_a_run(finished):
    printed, out, _ = finished
    assert "[red]<img src=x>|`*a*\ufffd[31m.npz: balanced accuracy" in printed
    assert "<img src=x>" not in (out / "report.html").read_text(encoding="utf-8")


def test_run_says_where_another_method_is_ahead_and_only_there(finished):
    printed, _, written = finished
    ours, *others = written["summary"]
    expected = []
    for name, head in HEADS.items():
        best = sorted(others, key=lambda entry: entry[name])[-1]
        if best[name] > ours[name]:
            expected.append(f"{best['method']} is ahead with {head}, by {best[name] - ours[name]:.1f} points.")
    assert [line for line in printed.splitlines() if " is ahead with " in line] == expected


@pytest.mark.filterwarnings("ignore:dead or stuck channels")
def test_a_row_has_the_scores_of_a_classifier_on_half_of_the_subjects():
    windows = Windows(SIGNALS.X, SIGNALS.fs, subject=SUBJECT, label=SIGNALS.label)
    row = score(windows, CPD(rank=4, max_sweeps=5, device="cpu"), 3)
    subjects = np.random.default_rng(3).permutation(np.unique(windows.subject))
    inside = np.isin(windows.subject, subjects[: len(subjects) // 2])
    train, test = windows[inside], windows[~inside]
    classifier = WindowClassifier(CPD(rank=4, max_sweeps=5, device="cpu", random_state=3)).fit(train)

    def accuracy(X):
        return 100 * balanced_accuracy_score(labels_of(test), classifier.predict(X))

    assert row["all"] == pytest.approx(accuracy(test.X))
    assert row["parameters"] == classifier.features_.n_parameters_
    dead = []
    for channel in range(3):
        X = test.X.copy()
        X[:, channel] = 0
        dead.append(accuracy(X))
    assert row["dead"] == pytest.approx(np.mean(dead))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--data no.npz", "does not exist"),
        ("--data damaged.npz", "damaged.npz cannot be read"),
        ("--data unlabelled.npz", "run needs labels of at least two classes"),
        ("--data one.npz", "run needs labels of at least two classes"),
        ("--data nobody.npz", "and at least four, but knows 0"),
        ("--data three.npz", "and at least four, but knows 3"),
        ("--data good.npz --device cuda:99", "cuda"),
        ("--data good.npz --out good.npz", "good.npz"),
    ],
)
def test_impossible_requests_give_a_one_line_error_with_exit_code_1_or_2(tmp_path, arguments, message):
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 not really")
    write(tmp_path / "good.npz")
    write(tmp_path / "unlabelled.npz", y=np.full(96, -1))
    write(tmp_path / "one.npz", y=np.zeros(96, int))
    write(tmp_path / "nobody.npz", subject=np.full(96, ""))
    write(tmp_path / "three.npz", subject=np.arange(96) % 3)
    result = polyadic("run", *arguments.split(), cwd=tmp_path, code=(1, 2))
    assert message in re.sub(r"[│╭╮╰╯─\s]+", " ", result.stderr)
