"""Fits stopped by kills, Ctrl-C and full disks resume to the bases of an uninterrupted fit."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import killed_fits
import numpy as np
import pytest
import torch
from problems import paper

from polyadic import SALS
from polyadic._util import model_files
from polyadic.augment import Compose, Jitter
from polyadic.core import solve
from polyadic.core.persist import encode
from polyadic.core.step import TERMS
from polyadic.data import WindowStore, synthetic
from polyadic.data.store import write_windows
from polyadic.errors import CheckpointError, PolyadicError
from polyadic.scale import checkpoints
from polyadic.scale.checkpoints import Checkpoints
from polyadic.spectral import STFT

X = np.random.default_rng(1).normal(size=(30, 4, 5))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fit.checkpoint"


def small(**parameters):
    return paper(SALS, **{"rank": 3, "batch_size": 7, "max_sweeps": 4, "tol": 0.0, "device": "cpu", **parameters})


@contextmanager
def after_each_sweep(action: Callable[[int], object]) -> Iterator[None]:
    """Call a function with the number of each sweep (from 1 in each restart), before its checkpoint is written."""
    with pytest.MonkeyPatch.context() as patch:
        write = Checkpoints.__call__

        def observed(self, progress) -> None:
            action(len(progress.history["loss"]))
            write(self, progress)

        patch.setattr(Checkpoints, "__call__", observed)
        yield


@contextmanager
def seen_sweeps() -> Iterator[list[int]]:
    """Return a list to which the number of each sweep is added."""
    seen: list[int] = []
    with after_each_sweep(seen.append):
        yield seen


def interrupted(model, path: Path, data=X, sweeps: int = 2) -> bool:
    """Run a fit, or what is left of it, up to Ctrl-C after some sweeps; return whether it came to that."""
    count, begin = 0, solve._run_sweep

    def run_sweep(*arguments) -> None:
        nonlocal count
        if count == sweeps:
            raise KeyboardInterrupt
        begin(*arguments)
        count += 1

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(solve, "_run_sweep", run_sweep)
            # The checkpoint is written because of the interrupt alone.
            model.fit(data, checkpoint=path, resume=True, checkpoint_every=3600)
    except KeyboardInterrupt:
        assert not hasattr(model, "factors_")
        return True
    return False


def assert_alike(a, b) -> None:
    assert all(np.array_equal(first, second) for first, second in zip(a.factors_, b.factors_, strict=True))
    assert [a.history_[name] for name in ("loss", *TERMS)] == [b.history_[name] for name in ("loss", *TERMS)]
    assert a.attempt_ == b.attempt_


# ------------------------------------------------------------------ to the bit


def test_killed_at_seeded_moments_every_fit_ends_with_the_same_bases():
    words = [sys.executable, killed_fits.__file__, "--kills", "9", "--seed", "3"]
    counts = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    assert counts["kills"] == counts["same to the bit"] == 9
    assert counts["while writing"] >= 4


# A CPD saves the sums of its passes, and repeats its sweeps: see `test_passes`.
@pytest.mark.parametrize("kind", [kind for kind in killed_fits.KINDS if kind != "CPD"])
def test_a_fit_interrupted_after_every_sweep_ends_with_the_bits_of_one_that_was_not(kind, path):
    whole = killed_fits.fit(kind, None)
    resumed, stops = killed_fits.KINDS[kind]().set_params(device="cpu"), 0
    while interrupted(resumed, path, killed_fits.WINDOWS, 1):
        stops += 1
    assert stops >= whole.n_sweeps_ - 1
    assert_alike(resumed, whole)
    if whole._memory is not None:
        assert torch.equal(resumed._memory.Y, whole._memory.Y)
        assert torch.equal(resumed._memory.S, whole._memory.S)


@pytest.mark.parametrize("at", [1, 3, 4, 9, 10])
@pytest.mark.parametrize("consensus", [False, True])
def test_an_interrupt_within_any_sweep_resumes_from_the_sweep_before(at, consensus, path, monkeypatch):
    # The first sweep of a later attempt is one of them: what was kept then belongs to the attempt before.
    model = small(restarts=3, consensus=consensus, batch_size=None, max_sweeps=3)
    whole, count = small(restarts=3, consensus=consensus, batch_size=None, max_sweeps=3).fit(X), 0

    real = solve.step

    def step(*arguments, **options):
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(solve, "step", step)
        if at == 10 and not consensus:
            patch.setattr("polyadic.estimators.CPD._fit_readout", step)  # after the last sweep
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, checkpoint=path)
    with seen_sweeps() as seen:
        resumed = model.fit(X, checkpoint=path, resume=True)
    assert len(seen) == 9 + consensus - (at - 1)
    assert_alike(resumed, whole)


def test_the_end_is_written_and_a_finished_fit_can_be_extended_without_sweeping_again(path):
    small(max_sweeps=2).fit(X, checkpoint=path, checkpoint_every=3600)
    assert path.exists()
    with seen_sweeps() as seen:
        longer = small(max_sweeps=5).fit(X, checkpoint=path, resume=True)
    assert seen == [3, 4, 5]
    assert_alike(longer, small(max_sweeps=5).fit(X))


def test_checkpoints_are_written_no_more_often_than_asked(path, monkeypatch):
    writes, write = [], model_files.write
    monkeypatch.setattr(model_files, "write", lambda *arguments: writes.append(arguments) or write(*arguments))
    small().fit(X, checkpoint=path, checkpoint_every=3600)
    assert len(writes) == 1
    small().fit(X, checkpoint=path.with_name("other"), checkpoint_every=0)
    assert len(writes) == 1 + 4


# ------------------------------------------------------ refused: files, settings, data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[: len(content) // 2], "damaged, truncated or not a model file"),
        (lambda content: b"", "damaged, truncated or not a model file"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "damaged: its checksum does not match"),
        (lambda content: content.replace(b'\\"schema\\": 4', b'\\"schema\\": 3'), "version 0.2 or earlier"),
        (lambda content: content.replace(b'\\"schema\\": 4', b'\\"schema\\": 5'), "a later version: upgrade"),
    ],
)
def test_a_damaged_checkpoint_and_one_of_another_version_are_refused_and_stay(change, message, path):
    interrupted(small(), path)
    path.write_bytes(change(path.read_bytes()))
    kept = path.read_bytes()
    with pytest.raises(CheckpointError, match=f"the fit cannot resume: .*fit.checkpoint.*{message}"):
        small().fit(X, checkpoint=path, resume=True)
    assert path.read_bytes() == kept


def test_what_cannot_be_resumed_is_refused(path):
    with pytest.raises(PolyadicError, match="resume=True needs the file of the checkpoint"):
        small().fit(X, resume=True)
    with pytest.raises(PolyadicError, match="checkpoint_every must be a number"):
        small().fit(X, checkpoint=path, checkpoint_every=-1)
    model = small().fit(X, checkpoint=path, resume=True)  # there need not be a file
    model.save(path)
    with pytest.raises(CheckpointError, match="is a model file, not the checkpoint of a fit"):
        small().fit(X, checkpoint=path, resume=True)


def test_an_existing_file_is_not_written_over_without_resume(path):
    interrupted(small(), path)
    kept = path.read_bytes()
    with pytest.raises(
        CheckpointError, match=r"already contains the checkpoint of a fit: resume it .*, remove the file"
    ):
        small().fit(X, checkpoint=path)
    assert path.read_bytes() == kept


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"rank": 4, "alpha": 0.5}, "alpha was 0.001 and is 0.5 now; rank was 3 and is 4 now"),
        ({"batch_size": None}, "batch_size was 7 and is null now"),
        ({"solver": "memory"}, 'solver was "blend" and is "memory" now'),
        ({"random_state": 1}, "seed was 0 and is 1 now"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused_with_the_difference(changed, difference, path):
    interrupted(small(), path)
    kept = path.read_bytes()
    with pytest.raises(CheckpointError, match=re.escape(difference) + "$"):
        small(**changed).fit(X, checkpoint=path, resume=True)
    assert path.read_bytes() == kept


@pytest.mark.parametrize(
    ("then", "now", "difference"),
    [
        (STFT(16, 8), STFT(16, 4), "hop 8 4"),
        (Compose([Jitter(0.1)]), Compose([Jitter(0.2)]), '"degree": 0.1}] ['),
    ],
)
def test_frames_and_augmentations_are_compared_by_content(then, now, difference):
    assert difference in " ".join(next(checkpoints.differences(encode(then), encode(now))))
    assert not list(checkpoints.differences(encode(now), encode(now)))


@pytest.mark.parametrize(
    ("data", "difference"),
    [
        (X[:-1], r"data shape was \[30, 4, 5\] and is \[29, 4, 5\] now"),
        (X.astype(np.float32), 'data dtype was "torch.float64" and is "torch.float32" now'),
        (X + 1e-9, "data sampled windows was"),
    ],
)
def test_a_checkpoint_of_other_data_is_refused_with_the_difference(data, difference, path):
    interrupted(small(), path)
    with pytest.raises(CheckpointError, match=difference):
        small().fit(data, checkpoint=path, resume=True)


@pytest.mark.parametrize("data", [torch.from_numpy(X).bfloat16(), X.astype(">f8"), X > 0])
def test_every_kind_of_array_has_a_fingerprint(data, path):
    interrupted(small(), path, data)
    with pytest.raises(CheckpointError, match="data sampled windows was"):
        small().fit(data[np.arange(len(data))[::-1].copy()], checkpoint=path, resume=True)
    assert_alike(small().fit(data, checkpoint=path, resume=True), small().fit(data))


def test_another_part_of_a_store_is_refused(tmp_path, path):
    signals = synthetic(60, 2, 32)
    write_windows(signals, tmp_path / "s.store")
    store = WindowStore(tmp_path / "s.store")
    interrupted(small(), path, store.windows[:40])
    with pytest.raises(CheckpointError, match="data rows was"):
        small().fit(store.windows[np.r_[0:39, 41]], checkpoint=path, resume=True)
    assert_alike(small().fit(store.windows[:40], checkpoint=path, resume=True), small().fit(store.windows[:40]))


# ---------------------------------------------------------------------- faults


@pytest.fixture
def no_sweep(monkeypatch) -> None:
    """Let a test fail if a sweep is done before the file is checked."""
    monkeypatch.setattr(solve, "_run_sweep", lambda *_: pytest.fail("a sweep was done before the file was checked"))


@pytest.mark.usefixtures("no_sweep")
@pytest.mark.parametrize("resume", [False, True])
def test_a_place_that_cannot_be_written_is_an_error_before_any_work(resume, tmp_path):
    for path, reason in ((tmp_path / "nowhere" / "fit.checkpoint", "No such file"), (tmp_path, "folder")):
        with pytest.raises(PolyadicError, match=reason):
            small().fit(X, checkpoint=path, resume=resume)


def fails_after_two_sweeps(path: Path, change, message: str) -> None:
    """A fit during which something happens to the disk; the last checkpoint stays sound."""
    model, written = small(), rf"a checkpoint could not be written to .*fit\.checkpoint: .*{message}"
    with pytest.raises(CheckpointError, match=written), after_each_sweep(lambda sweep: sweep == 3 and change()):
        model.fit(X, checkpoint=path, checkpoint_every=0)
    assert not hasattr(model, "factors_")


def assert_sound_after_two_sweeps(path: Path) -> None:
    assert [file.name for file in path.parent.iterdir()] == [path.name], "no temporary file is left"
    with seen_sweeps() as seen:
        resumed = small().fit(X, checkpoint=path, resume=True)
    assert seen == [3, 4]
    assert_alike(resumed, small().fit(X))


def test_a_file_that_may_not_grow_is_a_clear_error_and_the_last_checkpoint_stays(path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))  # noqa: E731
        fails_after_two_sweeps(path, limit, "File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_sound_after_two_sweeps(path)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of a quarter of a MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("file systems may not be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_a_clear_error_and_the_last_checkpoint_stays(small_disk):
    def fill() -> None:
        with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"0" * 4096)

    fails_after_two_sweeps(small_disk / "fit.checkpoint", fill, "No space left on device")
    (small_disk / "filler").unlink()
    assert_sound_after_two_sweeps(small_disk / "fit.checkpoint")


def test_a_disk_that_becomes_read_only_is_a_clear_error_and_the_last_checkpoint_stays(small_disk):
    path, remount = small_disk / "fit.checkpoint", ["mount", "-o", "remount,ro", str(small_disk)]
    fails_after_two_sweeps(path, lambda: subprocess.run(remount, check=True), "Read-only file system")
    with pytest.raises(PolyadicError, match="cannot be written: Read-only file system"):
        small().fit(X, checkpoint=path, resume=True)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert_sound_after_two_sweeps(path)


def test_a_folder_that_vanishes_is_a_clear_error(tmp_path):
    (tmp_path / "here").mkdir()
    move = lambda: (tmp_path / "here").rename(tmp_path / "there")  # noqa: E731
    fails_after_two_sweeps(tmp_path / "here" / "fit.checkpoint", move, "No such file")
    assert_sound_after_two_sweeps(tmp_path / "there" / "fit.checkpoint")
