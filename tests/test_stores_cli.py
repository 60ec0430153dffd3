"""`polyadic prepare`, `info --verify`, `fit` and `transform` as a user runs them: real processes and kills."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import trees
from command_line import polyadic

from polyadic import load
from polyadic.data import WindowStore

CHANNELS = [word for name, _, _ in trees.SLEEP_CHANNELS for word in ("--channel", name)]
CLASSES = (
    "W=Sleep stage W",
    "N1=Sleep stage 1",
    "N2=Sleep stage 2",
    "N3=Sleep stage 3|Sleep stage 4",
    "R=Sleep stage R",
)
SLEEP = (
    *("--seconds", 30, "--scoring", "*-Hypnogram.edf", "--pattern", "*-PSG.edf", "--subject", r"(SC4\d\d)"),
    *("--resample", "hold", *CHANNELS, *(word for name in CLASSES for word in ("--class", name))),
)
PREPARE = ("prepare", "folder", "sleep-edfx", "s.store", *SLEEP)
"""How Sleep-EDF is prepared as a folder of one's own."""


@pytest.fixture
def sleep(tmp_path):
    trees.sleep_edf(tmp_path / "sleep-edfx")
    return tmp_path


def test_from_recordings_to_features_in_four_commands(sleep):
    said = " ".join(polyadic(*PREPARE, cwd=sleep).stdout.split())
    assert "kind store of windows recordings 4 shape 53 × 7 × 3,000 seconds 30 s" in said
    assert "subjects 2 subjects from the pattern" in said
    assert "all checksums match" in polyadic("info", "s.store", "--verify", cwd=sleep).stdout
    options = ("--rank", 3, "--sweeps", 2, "-o", "m.safetensors")
    said = " ".join(polyadic("fit", "s.store", "--method", "sals", *options, cwd=sleep).stdout.split())
    assert said.startswith("model m.safetensors method sals windows 53 subjects 2 ")
    assert " sweeps 2 " in said
    polyadic("transform", "m.safetensors", "s.store", "-o", "f.npy", cwd=sleep)
    polyadic("transform", "m.safetensors", "s.store", "-o", "f.csv", cwd=sleep)
    store, features = WindowStore(sleep / "s.store"), np.load(sleep / "f.npy")
    np.testing.assert_allclose(features, load(sleep / "m.safetensors").transform(store), rtol=1e-4, atol=1e-4)
    with (sleep / "f.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    named = [*store.classes, ""]  # -1 marks windows without a label
    assert [row["label"] for row in rows] == [named[label] for label in store.windows.label]
    assert [float(row["start"]) for row in rows] == (store.windows.start / 100).tolist()
    np.testing.assert_allclose([float(row["z2"]) for row in rows], features[:, 1], rtol=1e-5)
