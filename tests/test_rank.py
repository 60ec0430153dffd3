"""`polyadic rank` shows how many components replicate at each rank."""

from __future__ import annotations

import json
from importlib import import_module

import numpy as np
from command_line import polyadic
from test_components import FEWER_RANKS

from polyadic.data import synthetic
from polyadic.explain import Replicability, components
from polyadic.explain.components import distinct_components
from polyadic.scale import Moments


def test_copies_of_a_component_count_once():
    bases = [np.eye(4)[:, [0, 0, 1, 2, 2]], np.eye(5)[:, [0, 0, 1, 2, 3]]]
    checked = Replicability(np.full(5, 0.95), np.array([1.0, 1.0, 1.0, 0.0, 1.0]), refits=4)
    assert len(distinct_components(bases, checked)) == 3


def test_the_command_shows_what_components_finds_in_windows_and_in_sums(tmp_path, monkeypatch):
    windows = synthetic(60, n_channels=2, length=64)
    np.savez(tmp_path / "w.npz", X=windows.X, y=windows.label, subject=windows.subject, fs=windows.fs)
    Moments.collect(windows, groups=windows.subject).save(tmp_path / "w.moments")
    monkeypatch.setattr(import_module("polyadic.explain.components"), "_RANKS", (4, 2))
    found, words = components(windows, restarts=2, replicates=0), ("-c", FEWER_RANKS, "rank", "--restarts", 2)
    shown = json.loads(polyadic(*words, "w.moments", "--json", cwd=tmp_path).stdout)
    assert shown["rank"] == found.rank
    assert shown["tried"] == {str(rank): count for rank, count in found.tried.items()}
    assert repr(found) in polyadic(*words, "w.npz", "--quiet", cwd=tmp_path).stdout


def test_the_command_names_data_without_subjects(tmp_path):
    np.savez(tmp_path / "w.npz", X=synthetic(30, n_channels=2).X)
    assert "fewer than two are known" in polyadic("rank", "w.npz", cwd=tmp_path, code=1).stderr
