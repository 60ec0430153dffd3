"""Fits, features and evaluations on GPUs under torchrun, with NCCL if every process has its own GPU.

One GPU is enough for a team of one over NCCL, and for two processes that share it, which then talk by gloo; with two
GPUs, two processes talk by NCCL.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import teams
import torch
from polyadic.team import ALONE
from torchrun import SCRIPT, assert_close, ended, part_of, torchrun, written_store

from polyadic import load

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not torch.distributed.is_nccl_available(), reason="no CUDA device, or no NCCL"
)
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch):
    """Plain steps, of which each sends its messages: a process alone would capture them as CUDA graphs."""
    monkeypatch.setenv("POLYADIC_PLAIN", "1")
    monkeypatch.setitem(teams.FIXED, "device", "cuda")


@pytest.fixture(params=[1, 2], ids=["one", "two"])
def processes(request):
    return request.param


def test_fits_over_nccl_end_with_the_bases_of_a_process_alone(processes, tmp_path):
    written_store(tmp_path / "fits")
    torchrun(SCRIPT, "fits", tmp_path, "device=cuda", processes=processes)
    found = ended("fits", tmp_path, processes)
    for kind, dtype in product(teams.KINDS, TOLERANCE):
        expected = teams.outcome(teams.KINDS[kind]().fit(teams.WINDOWS[dtype]))
        for exchange in ("block", "modes"):
            mine = [part_of(part, f"{exchange}; {kind}; {dtype}; ") for part in found]
            assert_close(mine[0], expected, TOLERANCE[dtype])
            assert all(np.array_equal(other[name], mine[0][name]) for other in mine for name in expected)


def test_every_nccl_message_of_a_step_is_on_the_gpu(processes, tmp_path):
    torchrun(SCRIPT, "messages", tmp_path, "device=cuda", processes=processes)
    for found in ended("messages", tmp_path, processes):
        for exchange, count in (("block", 4), ("modes", 6)):
            steps = found[f"{exchange}; ATD"]
            assert steps.shape == (16, count, 3)
            assert steps[..., 2].all()


def test_features_scores_and_evaluations_over_nccl_are_those_of_a_process_alone(processes, tmp_path):
    model, X = teams.KINDS["ATD"]().fit(teams.WINDOWS["float64"]), teams.WINDOWS["float64"]
    torchrun(SCRIPT, "features", tmp_path, "device=cuda", processes=processes, cwd=tmp_path)
    for found in ended("features", tmp_path, processes):
        np.testing.assert_allclose(found["Z"], model.transform(X), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(found["score"], model.score(X), rtol=1e-10)
    torchrun(SCRIPT, "scored", tmp_path, "device=cuda", processes=processes, cwd=tmp_path)
    alone = json.loads(str(teams.scored(ALONE, tmp_path)["rows"]))
    own = processes <= torch.cuda.device_count()
    for found in ended("scored", tmp_path, processes):
        assert json.loads(str(found["rows"])) == alone
        assert str(found["backend"]) == ("ProcessGroupNCCL" if own else "ProcessGroupGloo")


def test_fits_over_nccl_resume_from_their_checkpoints(processes, tmp_path):
    kinds = ["ATD", "ATD, memory", "ATD, full batch"]
    words = ("resumed", tmp_path, f"kinds={';'.join(kinds)}", "device=cuda", "exchange=modes")
    torchrun(SCRIPT, *words, "stop=1", processes=processes)
    torchrun(SCRIPT, *words, processes=processes)
    for found in ended("resumed", tmp_path, processes):
        for kind in kinds:
            mine = part_of(found, f"{kind}; ")
            assert_close(mine, teams.outcome(teams.KINDS[kind]().fit(teams.WINDOWS["float64"])), 1e-9)
            assert mine["steps"] == (0 if "full" in kind else 15)


def test_the_command_line_over_nccl_fits_and_transforms_a_store_as_alone(processes, tmp_path, monkeypatch):
    pytest.importorskip("pydantic")
    monkeypatch.delenv("POLYADIC_PLAIN")
    store = written_store(tmp_path)
    options = ["w.store", "--rank", 3, "--sweeps", 3, "--batch-size", 32]
    torchrun("-m", "polyadic", "fit", *options, "-o", "team.safetensors", processes=processes, cwd=tmp_path)
    words = [sys.executable, "-m", "polyadic", "fit", *map(str, options), "-o", "one.safetensors", "--quiet"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, env=os.environ)
    one, team = load(tmp_path / "one.safetensors"), load(tmp_path / "team.safetensors")
    for first, second in zip(one.factors_, team.factors_, strict=True):
        assert np.linalg.norm(first - second) <= 1e-4 * np.linalg.norm(first)
    torchrun(
        "-m", "polyadic", "transform", "team.safetensors", "w.store", "-o", "f.npy", processes=processes, cwd=tmp_path
    )
    np.testing.assert_allclose(np.load(tmp_path / "f.npy"), team.transform(store), rtol=1e-4, atol=1e-5)
