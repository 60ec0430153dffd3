"""Every table and figure of the paper runs, resumes, and has the right content."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from paper import reference
from paper.catalogue import EXPERIMENTS, low_quality_augmentation
from paper.methods import Variant, fit_and_score
from paper.results import encode_result
from paper.runner import Request, experiment_settings, run
from paper.tables import paired_table
from polyadic.augment import Jitter
from polyadic.presets import preset

SHORT = {"table1", "table5", "figure1", "figure3", "figure4", "figure5"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in EXPERIMENTS if name != "table2"],
)
def test_every_table_and_figure_of_the_paper_runs_in_small(name, tmp_path, capsys):
    run_in_small(name, tmp_path, capsys)


def run_in_small(name, tmp_path, capsys):
    """Run an experiment on synthetic signals, look at all that it writes, and return its result."""
    result = run(Request(name, tmp_path, quick=True), EXPERIMENTS[name])
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
    assert result["title"] in re.sub(r"\s+", " ", capsys.readouterr().out)
    return result


@pytest.mark.long
def test_the_main_comparison_has_every_method_under_both_protocols_with_no_empty_cell(tmp_path, capsys):
    result = run_in_small("table2", tmp_path, capsys)
    names = {row["method"] for row in result["rows"]}
    assert set(reference.MAIN) | {"CNN", "UMLDA", "STL", "PCA-32", "Hand", "MiniRocket"} == names
    for row in result["rows"]:
        for score in ("accuracy", "balanced_accuracy", "macro_f1", "kappa"):
            assert np.isfinite(row["standardised"][score])
        assert row["standardised"]["worst_subject"] <= row["standardised"]["mean_subject"]
        assert "per_subject" not in row["standardised"]  # no table reads it, and it would be most of the file
        assert np.isfinite(row["standardised perturbed"]["accuracy"])
        assert len(row["split"]) == 16
    assert {row["protocol"] for row in result["rows"]} == {"subject", "paper"}


@pytest.mark.parametrize(("letter", "noisy", "gap"), [("A", True, False), ("B", False, True), ("C", True, True)])
def test_low_quality_augmentations_are_the_papers(letter, noisy, gap):
    jitter, bandpass, rotate = low_quality_augmentation("har", None, letter).steps
    usual = preset("har").augment.steps
    assert jitter == (Jitter(1) if noisy else usual[0])
    assert bandpass.bands == (((1, 5), (20, 24.5)) if gap else usual[1].bands)
    assert rotate == usual[2]


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


def test_an_interrupted_table_resumes_from_its_finished_cells(tmp_path, monkeypatch):
    request = Request("table9", tmp_path, quick=True, methods=("SALS",))
    cells = tmp_path / "table9-synthetic.cells.jsonl"
    table9 = EXPERIMENTS["table9"]

    def run_once(*cell):
        if cells.exists():
            raise KeyboardInterrupt
        return fit_and_score(*cell)

    with monkeypatch.context() as patch:
        patch.setattr("paper.runner.fit_and_score", run_once)
        with pytest.raises(KeyboardInterrupt):
            run(request, table9)
    (before,) = [json.loads(line) for line in cells.read_text().splitlines() if line]
    cells.write_text(cells.read_text() + '\n["cut sho')
    rows = run(request, table9)["rows"]
    assert len(rows) == 4
    assert all(row in rows for row in before[1])


def test_tuned_settings_of_a_family_are_those_of_its_methods_and_of_their_files(tmp_path):
    file, table2 = tmp_path / "settings.json", EXPERIMENTS["table2"]
    chosen = {"SimCLR": {"window": "rectangular", "views": "jitter 0.3"}, "SALS": {"alpha": 0.5}}
    file.write_text(json.dumps({"dataset": "synthetic", "settings": chosen}))
    request = Request("table2", tmp_path, quick=True, methods=("SALS",))
    tuned = experiment_settings(replace(request, tuned=file), table2)
    for name in ("SimCLR-32", "SimCLR-128"):
        model = Variant(name).build(tuned, 0)
        assert (model.tensorize.window, model.augment) == ("rectangular", Jitter(0.3))
    assert [Variant(name).build(tuned, 0).alpha for name in ("SALS", "ATD")] == [0.5, 1e-3]
    assert run(replace(request, tuned=file), table2)["settings"]["tuned"] == chosen
    assert [path.name for path in tmp_path.glob("table2*.json")] == ["table2-synthetic-tuned.json"]
