"""Every table and figure of the paper runs, resumes, and has the right content."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from paper import reference
from paper.catalogue import EXPERIMENTS
from paper.results import encode_result
from paper.runner import Request, experiment_settings, run
from paper.tables import paired_table
from polyadic.data import synthetic

LONG = {"tune", "table4", "table6", "table8", "table9", "table10", "table11", "table12", "figure2"}


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
    (before,) = [json.loads(line) for line in cells.read_text().splitlines() if line]
    cells.write_text(cells.read_text() + '\n["cut sho')
    rows = run(request, table9, quiet=True)["rows"]
    assert len(rows) == 4
    assert [row for row in rows if row["key"] == before[0]] == before[1]
