"""Every table and figure of the paper runs, resumes, and has the right content."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from paper import reference
from paper.catalogue import EXPERIMENTS
from paper.methods import score_variant, variant
from paper.results import encode_result
from paper.runner import Request, experiment_settings, run
from paper.tables import paired_table
from polyadic import presets
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError

ROOT = Path(__file__).parents[2]


LONG = {"tune", "table4", "table6", "table8", "table9", "table10", "table11", "table12", "figure2", "views", "seconds"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in EXPERIMENTS if name != "table2"],
)
def test_every_table_and_figure_of_the_paper_runs_in_small(name, tmp_path, capsys):
    run_in_small(name, tmp_path, capsys)


def run_in_small(name, tmp_path, capsys):
    """Run an experiment on synthetic signals, look at all that it writes, and return its result."""
    result = run(Request(name, tmp_path, quick=True), EXPERIMENTS[name], quiet=True)
    written = (tmp_path / f"{name}-synthetic.json").read_text()
    saved = json.loads(written)
    assert written == encode_result(saved)
    assert saved["rows"] == json.loads(json.dumps(result["rows"]))
    assert saved["rows"]
    assert {"command", "commit", "machine", "versions", "seeds", "settings"} <= saved.keys()
    text = (tmp_path / f"{name}-synthetic.md").read_text()
    assert result["title"] in text
    assert "nan" not in text.lower()
    assert (tmp_path / f"{name}-synthetic.png").exists() == (EXPERIMENTS[name].plot is not None)
    assert not list(tmp_path.glob("*.jsonl"))
    assert result["title"] in re.sub(r"\s+", " ", capsys.readouterr().out)
    return result


@pytest.mark.long
def test_the_main_comparison_has_every_method_under_both_protocols_with_no_empty_cell(tmp_path, capsys):
    result = run_in_small("table2", tmp_path, capsys)
    names = {row["method"] for row in result["rows"]}
    assert set(reference.MAIN) | {"CNN", "UMLDA", "STL", "PCA-32", "Hand", "MiniRocket", "CP-ALS"} == names
    for row in result["rows"]:
        for score in ("accuracy", "balanced_accuracy", "macro_f1", "kappa"):
            assert np.isfinite(row["standardised"][score])
        assert row["standardised"]["worst_subject"] <= row["standardised"]["mean_subject"]
        assert "per_subject" not in row["standardised"]  # no table reads it, and it would be most of the file
        assert np.isfinite(row["standardised perturbed"]["accuracy"])
        assert len(row["split"]) == 16
    assert {row["protocol"] for row in result["rows"]} == {"subject", "paper"}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"name": "table3"}, "--data is missing"),
        ({"name": "table3", "quick": True, "protocol": "random"}, "--protocol must be"),
        ({"name": "table9", "quick": True, "methods": ("Magic",)}, "--method must be one of"),
    ],
)
def test_requests_that_make_no_sense_are_refused(request_, message, tmp_path):
    with pytest.raises(PolyadicError, match=message):
        run(Request(out=tmp_path, **request_), EXPERIMENTS[request_["name"]], quiet=True)


def test_ablations_take_the_papers_subset_and_batch(tmp_path):
    signals = synthetic(60, n_channels=9, length=128)
    np.savez(tmp_path / "w.npz", X=signals.X, y=signals.label, subject=signals.subject, fs=50)
    request = Request("table7", tmp_path, dataset="har", data=tmp_path / "w.npz")
    settings = experiment_settings(request, EXPERIMENTS["table7"])
    assert (settings.max_unlabelled, settings.parameters["batch_size"]) == (50_000, 64)
    np.savez(tmp_path / "w.npz", X=signals.X, y=signals.label, subject=signals.subject, fs=200)
    main = experiment_settings(
        Request("table2", tmp_path, dataset="mgh", data=tmp_path / "w.npz"), EXPERIMENTS["table2"]
    )
    assert (main.max_labelled, main.max_unlabelled) == (5_000, None)
    assert "max_sweeps" not in main.parameters


def test_on_few_records_the_tensor_methods_have_the_sweeps_to_converge(tmp_path):
    signals = synthetic(60, n_channels=12, length=1000)
    np.savez(tmp_path / "w.npz", X=signals.X, y=signals.label, subject=signals.subject, fs=100)
    for name in ("table2", "table12", "table13", "tune"):
        request = Request(name, tmp_path, dataset="ptb_xl_100hz", data=tmp_path / "w.npz", seeds=1, protocol="subject")
        expected = {**presets.PAPER_METHOD, "rank": 32, "max_sweeps": 300}
        assert experiment_settings(request, EXPERIMENTS[name]).parameters == expected


def test_atd_is_paired_with_its_rivals_seed_by_seed_and_count_by_count():
    probes = ("plain", "standardised", "augmented", "standardised perturbed", "augmented perturbed")

    def row(method, seed, value, **more):
        scores = {probe: {"accuracy": value} for probe in probes}
        return {"method": method, "seed": seed, "protocol": "paper", "sweeps": 9 + seed, **scores, **more}

    ours = [row("ATD", seed, value) for seed, value in enumerate((0.90, 0.92, 0.95))]
    theirs = [row("SALS", seed, value) for seed, value in enumerate((0.89, 0.90, 0.92))]
    text = paired_table({"rows": [*ours, *theirs[::-1], row("ATD_ss-", 0, 0.5)]}, "paper")
    lines = text.splitlines()[2:]
    assert len(lines) == 1  # one seed of ATD_ss- is nothing to compare with
    assert lines[0] == f"| ATD minus SALS |{' +2.00 (0.074) |' * 5} 11 and 11 |"
    counted = [row(name, seed, 0.5 + seed / 10, labels=12) for name in ("ATD", "SALS") for seed in (0, 1)]
    assert "ATD minus SALS, 12 labels | +0.00 (1)" in paired_table({"rows": counted}, "paper")
    assert paired_table({"rows": ours}, "paper") == ""


@pytest.mark.parametrize("kind", ["features", "classifier"])
def test_scores_do_not_depend_on_the_number_of_threads(kind, tmp_path):
    settings = experiment_settings(Request("table2", tmp_path, quick=True), EXPERIMENTS["table2"])
    seen = []

    class Model:
        def transform(self, X):
            seen.append(max(library["num_threads"] for library in threadpool_info()))
            return np.asarray(X.X if isinstance(X, Windows) else X).mean(axis=2)

        def predict(self, X):
            return (self.transform(X)[:, 0] > 0).astype(int)

    one = variant({"features": "Hand", "classifier": "STL"}[kind])
    with threadpool_limits(2):
        score_variant(one, Model(), settings.split_for("subject", 0), settings.augment)
    assert seen
    assert set(seen) == {1}


@pytest.mark.parametrize("protocol", ["subject", "paper"])
def test_every_seed_has_a_different_split_reduced_to_the_requested_size(protocol, tmp_path):
    settings = experiment_settings(Request("table2", tmp_path, quick=True), EXPERIMENTS["table2"])
    whole, other = (settings.split_for(protocol, seed) for seed in (0, 1))
    assert whole.hash == settings.split_for(protocol, 0).hash != other.hash
    cut = replace(settings, max_unlabelled=20, max_labelled=6).split_for(protocol, 0)
    assert (len(cut.unlabelled), len(cut.train), len(cut.test)) == (20, 6, len(whole.test))
    assert set(cut.unlabelled) <= set(whole.unlabelled)
    assert set(cut.train) <= set(whole.train)
    assert len(set(settings.windows.label[cut.train])) == 3


def test_an_interrupted_table_resumes_from_its_finished_cells(tmp_path):
    request = Request("table9", tmp_path, quick=True, methods=("SALS",))
    cells = tmp_path / "table9-synthetic.cells.jsonl"
    table9 = EXPERIMENTS["table9"]

    def run_once(one, settings, seed):
        if cells.exists():
            raise KeyboardInterrupt
        return table9.run_cell(one, settings, seed)

    with pytest.raises(KeyboardInterrupt):
        run(request, replace(table9, run_cell=run_once), quiet=True)
    (before,) = [json.loads(line) for line in cells.read_bytes().splitlines()]
    cells.write_bytes(cells.read_bytes() + b'{"key": "cut sho')
    rows = run(request, table9, quiet=True)["rows"]
    assert len(rows) == 4
    assert [row for row in rows if row["key"] == before["key"]] == before["rows"]


def test_commands_run_and_report_errors_in_one_line(tmp_path):
    def paper(*words):
        return subprocess.run(
            [sys.executable, "-m", "paper", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )

    done = paper("table1", "--quick", "--json", "-o", str(tmp_path))
    assert json.loads(done.stdout)["command"].startswith("python -m paper table1 --quick")
    failed = paper("table1", "-o", str(tmp_path))
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert failed.stderr.startswith("paper: --data is missing")
