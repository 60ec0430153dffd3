"""A checkpoint folder shared with other files and other fits, and used by impatient schedulers."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from command_line import Piped
from polyadic.engine.loop import FitProgress
from problems import paper

from polyadic import SALS
from polyadic.data import synthetic
from polyadic.errors import CheckpointError
from polyadic.scale import checkpoints

X = np.random.default_rng(1).normal(size=(30, 4, 5))
FIT = ("fit", "w.npz", "--rank", "4", "--batch-size", "8", "--checkpoint-every", "3600", "--sweeps", "1000000")


def small(**parameters):
    return paper(SALS, **{"rank": 3, "batch_size": 7, "max_sweeps": 3, "tol": 0.0, "device": "cpu", **parameters})


# --------------------------------------------------------------------- other files


def test_files_of_others_are_never_removed(tmp_path):
    foreign = {"20261101": b"notes", "7": b"", "checkpoint-1": b"mine", ".checkpoint-notes.tmp": b"mine"}
    for name, content in foreign.items():
        (tmp_path / name).write_bytes(content)
    small().fit(X, checkpoint=tmp_path, checkpoint_every=0)
    checkpoints.remove_checkpoints(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == foreign


# --------------------------------------------------------------------- other fits


def test_two_fits_do_not_share_a_folder(tmp_path):
    refused = []

    def another(model):
        with pytest.raises(CheckpointError, match="is in use by another fit: wait until it is done, or choose another"):
            small().fit(X, checkpoint=tmp_path, resume=True)
        refused.append(model.n_sweeps_)

    small().fit(X, checkpoint=tmp_path, checkpoint_every=0, after_sweep=another)
    assert refused == [1, 2, 3]
    small(max_sweeps=4).fit(X, checkpoint=tmp_path, resume=True)


def test_a_fit_that_is_refused_or_fails_frees_the_folder(tmp_path):
    small().fit(X, checkpoint=tmp_path)
    for wrong in ({"rank": 4}, {"alpha": 0.5}):
        with pytest.raises(CheckpointError, match="belongs to another fit"):
            small(**wrong).fit(X, checkpoint=tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="already contains checkpoints of a fit"):
        small().fit(X, checkpoint=tmp_path)
    small().fit(X, checkpoint=tmp_path, resume=True)


# ------------------------------------------------------------------------ signals


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no SIGHUP")
@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGHUP"), ("SIGHUP", "SIGTERM")])
@pytest.mark.parametrize("pause", [0.002, 0.3])
def test_a_second_signal_to_end_does_not_cost_the_checkpoint(first, second, pause, tmp_path):
    signals = synthetic(400, 4, 128)
    np.savez(tmp_path / "w.npz", X=signals.X, fs=signals.fs)
    process = Piped(FIT, tmp_path)
    while "sweep 1" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(getattr(signal, first))
    time.sleep(pause)
    if process.poll() is None:
        process.send_signal(getattr(signal, second))
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 128 + getattr(signal, first), said
    assert "--resume" in said
    assert checkpoints.list_checkpoints(Path(tmp_path, "model.safetensors.checkpoint"))


# ------------------------------------------------------------------- forged files


@pytest.mark.parametrize(
    "change", [{"batch": 10**9}, {"batch": 2**60}, {"bases": 10**30}, {"bases": -1.0}, {"seconds": 1e30}]
)
def test_a_forged_checkpoint_is_refused(change, tmp_path):
    small(max_sweeps=2).fit(X, checkpoint=tmp_path)
    path = checkpoints.list_checkpoints(tmp_path)[-1]
    arrays, header = checkpoints._from_bytes_checked(path.read_bytes())
    header["progress"].update(change)
    body = checkpoints.to_bytes(dict(arrays), metadata={"polyadic": json.dumps(header)})
    checksum = checkpoints.hashlib.sha256(body).hexdigest().encode()
    path.write_bytes(b"polyadic checkpoint\n" + checksum + b"\n" + body)
    with pytest.raises(ValueError, match=r"none of the checkpoints|cannot resume after batch"):
        small().fit(X, checkpoint=tmp_path, resume=True)


def test_a_new_progress_is_within_its_bounds():
    checkpoints._check_progress(FitProgress())
