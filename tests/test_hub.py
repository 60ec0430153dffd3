"""Folders for the Hugging Face hub: the card is what the hub reads, and the model comes back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_line import polyadic as command

import polyadic
from polyadic import CPD, export
from polyadic.data import synthetic
from polyadic.errors import PolyadicError
from polyadic.evaluate import WindowClassifier, cross_validate


@pytest.fixture(scope="module")
def windows():
    return synthetic(80, n_channels=3, length=128)


@pytest.fixture(scope="module")
def classifier(windows):
    return WindowClassifier(CPD(rank=3, max_sweeps=20).fit(windows)).fit(windows)


def test_the_hub_reads_the_metadata_and_scores_of_a_card(tmp_path, windows, classifier):
    hub = pytest.importorskip("huggingface_hub")
    scores = cross_validate(classifier.features_, windows, folds=2)
    folder = tmp_path / "rest | walk: <b>"
    files = export.hub(classifier, folder, data="synthetic [1]", scores=scores)
    assert [file.name for file in files] == ["README.md", "config.json", "model.safetensors"]
    card = hub.ModelCard.load(folder / "README.md")
    assert card.data.library_name == "polyadic"
    measured = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert measured["balanced_accuracy"] == pytest.approx(scores.balanced_accuracy, abs=1e-4)
    for subject in scores.per_subject:
        assert f"\n| {subject.replace('_', chr(92) + '_')} |" in card.text
    assert "# rest \\| walk: \\<b\\>" in card.text
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["classes"] == [str(label) for label in classifier.classes_]
    assert config["samples"] == windows.shape[-1]


def test_a_model_is_loaded_from_the_cache_of_the_hub(tmp_path, monkeypatch, windows, classifier):
    pytest.importorskip("huggingface_hub")
    repository, commit = tmp_path / "models--user--walks", "0" * 40
    export.hub(classifier, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = polyadic.load("hf://user/walks")
    same = WindowClassifier.of(model).predict_proba(windows[:5])
    np.testing.assert_array_equal(same, classifier.predict_proba(windows[:5]))
    with pytest.raises(PolyadicError, match="hf://user/repository"):
        polyadic.load("hf://walks")


def test_the_command_writes_a_folder_with_the_scores_of_evaluate(tmp_path, windows, classifier):
    classifier.save(tmp_path / "m.safetensors")
    named = {"X": windows.X, "y": windows.label.astype(str), "subject": windows.subject, "fs": windows.fs}
    np.savez(tmp_path / "w.npz", **named, channels=windows.channels)
    words = ("export", "m.safetensors", "-o", "v0.3/", "--data", "w.npz")
    scored = json.loads(command("evaluate", "m.safetensors", "w.npz", "--json", cwd=tmp_path).stdout)
    said = json.loads(command(*words, "--json", cwd=tmp_path).stdout)
    assert said["files"] == ["README.md", "config.json", "model.safetensors"]
    assert said["scores"]["per_subject"] == scored["per_subject"]
    card = (tmp_path / "v0.3" / "README.md").read_text("utf-8")
    assert f"Balanced accuracy {100 * scored['balanced_accuracy']:.1f} %" in card
    for subject, row in scored["per_subject"].items():
        assert f"\n| {subject.replace('_', chr(92) + '_')} | {100 * row['balanced_accuracy']:.1f} |" in card
    assert " windows of w.npz;" in card
    model = polyadic.load(tmp_path / "v0.3" / "model.safetensors")
    assert model.get_params() == polyadic.load(tmp_path / "m.safetensors").get_params()
    same = WindowClassifier.of(model).predict_proba(windows[:5])
    np.testing.assert_array_equal(same, classifier.predict_proba(windows[:5]))
    assert "README.md already exists: use --force" in command(*words, cwd=tmp_path, code=1).stderr
    said = command("export", "m.safetensors", "-o", "v0.3", "--force", cwd=tmp_path).stdout
    assert "has no scores: give labelled recordings as --data" in " ".join(said.split())
    card = (tmp_path / "v0.3" / "README.md").read_text("utf-8")
    assert "Not measured" in card
    assert "model-index" not in card


def test_a_folder_never_replaces_the_model_that_it_is_written_from(tmp_path, classifier):
    classifier.save(tmp_path / "model.safetensors")
    said = command("export", "model.safetensors", "-o", ".", "--force", cwd=tmp_path, code=1).stderr
    assert "would overwrite model.safetensors" in said
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
