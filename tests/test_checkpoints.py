"""Fits stopped by kills, signals, full disks and lost folders resume to the bases of an uninterrupted fit."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import killed_fits
import numpy as np
import pytest
import torch
from command_line import polyadic, python
from polyadic.core.terms import TERMS
from polyadic.engine import messages
from problems import paper
from scipy import sparse

from polyadic import ATD, GRSALS, SALS
from polyadic.augment import Augmentation, Compose, Jitter
from polyadic.core import step as als
from polyadic.core.algebra import gram, project
from polyadic.core.consensus import average_components
from polyadic.data import WindowStore, synthetic
from polyadic.errors import CheckpointError, PolyadicError
from polyadic.explain import match
from polyadic.scale import checkpoints
from polyadic.spectral import STFT

HERE = Path(__file__).parent
X = np.random.default_rng(1).normal(size=(30, 4, 5))
each_kind = pytest.mark.parametrize("kind", list(killed_fits.KINDS))


class Stop(Exception):  # noqa: N818
    """Stops a fit within the process of the test."""


def stopping_after(monkeypatch: pytest.MonkeyPatch, saves: int) -> None:
    """Stop every fit from now on after this many checkpoints."""
    save, count = checkpoints.Checkpoints.save, 0

    def limited(self, progress, state):
        nonlocal count
        save(self, progress, state)
        count += 1
        if count == saves:
            count = 0
            raise Stop

    monkeypatch.setattr(checkpoints.Checkpoints, "save", limited)


def start(monkeypatch: pytest.MonkeyPatch, folder: Path, saves: int = 5, model=None, data=X):
    """Run a fit that is stopped after some steps."""
    with monkeypatch.context() as patch:
        stopping_after(patch, saves)
        with pytest.raises(Stop):
            (model or small()).fit(data, checkpoint=folder, checkpoint_every=0)


def small(**parameters):
    return paper(SALS, **{"rank": 3, "batch_size": 7, "max_sweeps": 4, "tol": 0.0, "device": "cpu", **parameters})


def assert_alike(a, b) -> None:
    assert all(np.array_equal(first, second) for first, second in zip(a.factors_, b.factors_, strict=True))
    for name in ("loss", *TERMS):
        assert a.history_[name] == b.history_[name]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------ to the bit


@each_kind
@pytest.mark.parametrize("saves", [1, 3])
def test_a_fit_stopped_again_and_again_ends_with_the_bases_and_history_of_one_that_was_not(
    kind, saves, tmp_path, monkeypatch
):
    whole = killed_fits.fit(kind, None)
    stopping_after(monkeypatch, saves)
    stops = 0
    while True:
        try:
            resumed = killed_fits.fit(kind, tmp_path, resume=True)
            break
        except Stop:
            stops += 1
    assert stops >= 12 // saves
    assert_alike(resumed, whole)
    if whole._memory is not None:
        assert torch.equal(resumed._memory.Y, whole._memory.Y)
        assert torch.equal(resumed._memory.S, whole._memory.S)


@pytest.mark.parametrize("graph", ["complete", "dense", "sparse"])
@pytest.mark.parametrize("batch_size", [7, None])
def test_a_fit_with_a_graph_resumes_to_the_bit(graph, batch_size, tmp_path, monkeypatch):
    weights = np.abs(np.subtract.outer(np.arange(30), np.arange(30))) < 3
    given = {"complete": "complete", "dense": weights.astype(float), "sparse": sparse.csr_array(weights.astype(float))}
    parameters = {"graph": given[graph], "graph_weight": 0.5, "batch_size": batch_size, "max_sweeps": 4, "tol": 0.0}
    start(monkeypatch, tmp_path, 3, paper(GRSALS, 3, **parameters))
    resumed = paper(GRSALS, 3, **parameters).fit(X, checkpoint=tmp_path, resume=True)
    assert_alike(resumed, paper(GRSALS, 3, **parameters).fit(X))


def test_killed_at_seeded_moments_every_fit_ends_with_the_same_bases():
    done = python("import killed_fits; killed_fits.main()", "--kills", "12", "--seed", "3", cwd=HERE)
    counts = json.loads(done.stdout)
    assert counts["kills"] == counts["same to the bit"] == 12
    assert counts["while writing"] >= 4


def test_resuming_a_fit_that_was_done_gives_its_model_without_another_sweep(tmp_path, monkeypatch):
    whole = small().fit(X, checkpoint=tmp_path)
    monkeypatch.setattr(als, "step", None)
    assert_alike(small().fit(X, checkpoint=tmp_path, resume=True), whole)


@pytest.mark.parametrize("solver", ["blend", "memory", "moments"])
def test_restarts_keep_the_attempt_with_the_lowest_loss(solver):
    parameters = {"solver": solver, "batch_size": None if solver == "moments" else 7, "tol": 1e-3}
    seen: dict[int, float] = {}

    def note(model):
        seen[model.attempt_] = model.history_["loss"][-1]
        alone[model.attempt_] = [factor.copy() for factor in model.factors_]

    alone: dict[int, list[np.ndarray]] = {}
    kept = small(restarts=4, **parameters).fit(X, after_sweep=note)
    assert list(seen) == [1, 2, 3, 4]
    assert len(set(seen.values())) == 4
    assert kept.attempt_ == min(seen, key=seen.get)
    assert kept.history_["loss"][-1] == min(seen.values())
    assert kept.n_sweeps_ == len(kept.history_["loss"])
    # Its bases are those of that attempt, up to scale, order and sign.
    assert match(kept.factors_, alone[kept.attempt_]).score > 1 - 1e-6
    assert match(kept.factors_, alone[kept.attempt_ % 4 + 1]).score < 1 - 1e-3
    # The first is the fit without restarts.
    assert small(**parameters).fit(X).history_["loss"][-1] == seen[1]


def test_a_fit_stopped_in_its_second_attempt_resumes_there(tmp_path, monkeypatch):
    parameters = {"restarts": 3, "batch_size": None, "solver": "moments"}
    whole = small(**parameters).fit(X)
    start(monkeypatch, tmp_path, 6, small(**parameters))
    seen = []
    resumed = small(**parameters).fit(
        X, checkpoint=tmp_path, resume=True, after_sweep=lambda model: seen.append((model.attempt_, model.n_sweeps_))
    )
    assert seen == [(2, 3), (2, 4), (3, 1), (3, 2), (3, 3), (3, 4)]
    assert_alike(resumed, whole)
    assert resumed.attempt_ == whole.attempt_


def test_the_consensus_is_one_sweep_from_the_average_of_the_attempts():
    ends: dict[int, list[np.ndarray]] = {}
    losses: dict[int, float] = {}

    def note(model):
        ends[model.attempt_] = [factor.astype(np.float64) for factor in model.factors_]
        losses[model.attempt_] = model.history_["loss"][-1]

    model = small(restarts=3, consensus=True, batch_size=None).fit(X, after_sweep=note)
    assert list(ends) == [1, 2, 3, 4]
    assert (model.attempt_, model.n_sweeps_) == (4, 1)
    middle = average_components([ends[number] for number in (1, 2, 3)], [losses[number] for number in (1, 2, 3)])
    start, T = [torch.from_numpy(basis) for basis in middle], torch.from_numpy(X)
    x = als.solve_coefficients(project(T, start), gram(start), als.Objective(alpha=1e-3))
    bases = als.update_bases(start, als.Statistics.of(x, T), 1e-3)
    assert match(model.factors_, [basis.numpy() for basis in bases]).score == pytest.approx(1.0, abs=1e-9)


def test_a_finished_fit_can_be_extended(tmp_path):
    small(max_sweeps=2).fit(X, checkpoint=tmp_path)
    assert_alike(small(max_sweeps=5).fit(X, checkpoint=tmp_path, resume=True), small(max_sweeps=5).fit(X))


def test_a_checkpoint_stores_the_state_of_the_solver_and_the_position_within_a_sweep(tmp_path, monkeypatch):
    start(monkeypatch, tmp_path, 7, small(solver="memory"))
    arrays, header = checkpoints._from_bytes_checked((tmp_path / "checkpoint-00000007").read_bytes())
    assert header["progress"]["batch"] == 2
    assert len(header["progress"]["history"]["loss"]) == 1
    assert set(arrays) == {"factors.0", "factors.1", "memory.Y", "memory.S", "energy", "total"}
    # The terms of the two batches that were done, not of the whole sweep.
    whole = small(solver="memory").fit(X).history_
    assert 0 < arrays["total"][0] < whole["fit"][1]


def test_the_time_between_checkpoints_is_kept_and_the_end_is_always_written(tmp_path):
    small().fit(X, checkpoint=tmp_path, checkpoint_every=3600)
    assert names(tmp_path) == ["checkpoint-00000001"]


def test_tensors_keep_their_memory_layout():
    tensor = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    array, axes = messages.in_memory_order(tensor)
    back = messages.restore_layout(array, axes)
    assert torch.equal(back, tensor)
    assert back.stride() == tensor.stride()


# --------------------------------------------------------------------- damage


def test_the_last_two_are_kept_and_leftovers_of_a_killed_writer_are_removed(tmp_path, monkeypatch):
    (tmp_path / ".checkpoint-00000001.abc.tmp").write_bytes(b"half")
    start(monkeypatch, tmp_path, 5)
    assert names(tmp_path) == ["checkpoint-00000004", "checkpoint-00000005"]
    small().fit(X, checkpoint=tmp_path, resume=True, checkpoint_every=0)
    assert names(tmp_path) == ["checkpoint-00000019", "checkpoint-00000020"]


def damaged(content: bytes, how: str) -> bytes:
    if how == "cut short":
        return content[: len(content) // 2]
    if how == "empty":
        return b""
    changed = bytearray(content)
    changed[{"magic": 3, "checksum": 40, "newline": 84, "header": 130, "last byte": -1}[how]] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("how", ["cut short", "empty", "magic", "checksum", "newline", "header", "last byte"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_with_a_warning(how, tmp_path, monkeypatch):
    start(monkeypatch, tmp_path)
    last = tmp_path / "checkpoint-00000005"
    last.write_bytes(damaged(last.read_bytes(), how))
    with pytest.warns(RuntimeWarning, match="resumes from checkpoint-00000004"):
        resumed = small().fit(X, checkpoint=tmp_path, resume=True, checkpoint_every=0)
    assert_alike(resumed, small().fit(X))
    assert last.name not in names(tmp_path)


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_sound_one(tmp_path, monkeypatch):
    start(monkeypatch, tmp_path)
    (tmp_path / "checkpoint-00000005").write_bytes(b"")
    stopping_after(monkeypatch, 1)
    with pytest.warns(RuntimeWarning, match="skipped a damaged checkpoint"), pytest.raises(Stop):
        small().fit(X, checkpoint=tmp_path, resume=True, checkpoint_every=0)
    assert names(tmp_path) == ["checkpoint-00000004", "checkpoint-00000006"]


def test_if_all_are_damaged_the_error_says_why_and_nothing_is_lost(tmp_path, monkeypatch):
    start(monkeypatch, tmp_path)
    for name in names(tmp_path):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"none of the checkpoints .* not a checkpoint"):
        small().fit(X, checkpoint=tmp_path, resume=True)
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, header: arrays.pop("total"),
        lambda arrays, header: arrays.update(total=np.zeros(4)),
        lambda arrays, header: arrays.update({"factors.0": np.zeros((4, 2))}),
        lambda arrays, header: arrays.update({"factors.0": np.zeros((4, 3), np.float32)}),
        lambda arrays, header: arrays.update(surplus=np.zeros(4)),
        lambda arrays, header: arrays.update(coefficients=np.zeros((30, 2))),
        lambda arrays, header: header["axes"].update(total=[3]),
        lambda arrays, header: header["progress"].update(batch=-1),
        lambda arrays, header: header["progress"].update(batch="2"),
        lambda arrays, header: header["progress"]["history"].update(loss=[]),
        lambda arrays, header: header["progress"]["history"].update(seconds=["x"]),
        lambda arrays, header: header["progress"].update(bases=float("nan")),
        lambda arrays, header: header["progress"].update(seconds=10**400),
        lambda arrays, header: header["progress"].update(surplus=1),
        lambda arrays, header: header["progress"].update(finished=[1.0]),
        lambda arrays, header: header["progress"].update(spent=-1.0),
        lambda arrays, header: arrays.update({"best.factors.0": np.zeros((4, 3))}),
        lambda arrays, header: arrays.update({"attempt.0.factors.0": np.zeros((4, 2))}),
        lambda arrays, header: header.update(schema=4),
        lambda arrays, header: header.update(schema=2),
        lambda arrays, header: header.update(schema=None),
        lambda arrays, header: header.update(axes=None),
    ],
)
def test_a_checkpoint_with_a_fitting_checksum_and_senseless_content_is_refused(change, tmp_path, monkeypatch):
    start(monkeypatch, tmp_path)
    (tmp_path / "checkpoint-00000004").unlink()
    path = tmp_path / "checkpoint-00000005"
    arrays, header = checkpoints._from_bytes_checked(path.read_bytes())
    arrays = dict(arrays)
    header["axes"].update(
        {"surplus": [0], "coefficients": [0, 1], "best.factors.0": [0, 1], "attempt.0.factors.0": [0, 1]}
    )
    change(arrays, header)
    body = checkpoints.to_bytes(arrays, metadata={"polyadic": json.dumps(header)})
    checksum = checkpoints.hashlib.sha256(body).hexdigest().encode()
    path.write_bytes(b"polyadic checkpoint\n" + checksum + b"\n" + body)
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        small().fit(X, checkpoint=tmp_path, resume=True)


# ---------------------------------------------------------- other settings, data


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"rank": 4}, "rank was 3 and is 4 now"),
        ({"alpha": 0.5}, "alpha was 0.001 and is 0.5 now"),
        ({"batch_size": None}, "batch_size was 7 and is null now"),
        ({"solver": "memory"}, 'solver was "blend" and is "memory" now'),
        ({"learning_rate": 0.1}, "learning_rate was 0.05 and is 0.1 now"),
        ({"random_state": 1}, "seed was 0 and is 1 now"),
        ({"rank": 4, "alpha": 0.5}, "alpha was 0.001 and is 0.5 now; rank was 3 and is 4 now"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused_with_the_difference(changed, difference, tmp_path, monkeypatch):
    start(monkeypatch, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    with pytest.raises(CheckpointError, match=re.escape(difference) + "$"):
        small(**changed).fit(X, checkpoint=tmp_path, resume=True)
    assert before == {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}


def test_frames_augmentations_and_methods_that_differ_are_named(tmp_path, monkeypatch):
    signals = np.random.default_rng(0).normal(size=(20, 2, 64))
    model = paper(ATD, 2, tensorize=STFT(16, 8), augment=Jitter(0.1), beta=0.1, batch_size=7)
    start(monkeypatch, tmp_path, 2, model, signals)
    for other, difference in (
        (
            paper(ATD, 2, tensorize=STFT(16, 4), augment=Jitter(0.1), beta=0.1, batch_size=7),
            "tensorize hop was 8 and is 4",
        ),
        (
            paper(ATD, 2, tensorize=STFT(16, 8), augment=Jitter(0.2), beta=0.1, batch_size=7),
            "degree was 0.1 and is 0.2",
        ),
        (paper(SALS, 2, tensorize=STFT(16, 8), batch_size=7), 'estimator was "ATD" and is "SALS" now'),
    ):
        with pytest.raises(CheckpointError, match=difference):
            other.fit(signals, checkpoint=tmp_path, resume=True)


@dataclass(frozen=True)
class Louder(Augmentation):
    """A custom augmentation."""

    gain: float

    def apply(self, X, keys):
        return self.gain * X


def test_different_settings_of_a_custom_augmentation_are_named(tmp_path, monkeypatch):
    given = {"beta": 0.0, "batch_size": 7, "max_sweeps": 3}
    start(monkeypatch, tmp_path, 2, paper(ATD, 2, augment=Compose([Louder(2.0)]), **given))
    with pytest.raises(CheckpointError, match=r'augment steps was \[{"type": "Louder", "gain": 2.0}\] and is'):
        paper(ATD, 2, augment=Compose([Louder(3.0)]), **given).fit(X, checkpoint=tmp_path, resume=True)
    paper(ATD, 2, augment=Compose([Louder(2.0)]), **given).fit(X, checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize("data", [torch.from_numpy(X), torch.from_numpy(X).bfloat16(), X.astype(">f8"), X > 0])
def test_every_kind_of_array_has_a_fingerprint(data, tmp_path, monkeypatch):
    start(monkeypatch, tmp_path, data=data)
    with pytest.raises(CheckpointError, match="data sampled windows was"):
        small().fit(data[np.arange(len(data))[::-1].copy()], checkpoint=tmp_path, resume=True)
    assert_alike(small().fit(data, checkpoint=tmp_path, resume=True), small().fit(data))


def test_another_given_graph_is_refused(tmp_path, monkeypatch):
    start(monkeypatch, tmp_path, 2, paper(GRSALS, 3, graph=np.ones((30, 30)), batch_size=7))
    with pytest.raises(CheckpointError, match="graph sha256 was"):
        paper(GRSALS, 3, graph=2 * np.ones((30, 30)), batch_size=7).fit(X, checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("data", "difference"),
    [
        (X[:-1], r"data shape was \[30, 4, 5\] and is \[29, 4, 5\] now"),
        (X.astype(np.float32), 'data dtype was "torch.float64" and is "torch.float32" now'),
        (X + 1e-9, "data sampled windows was"),
    ],
)
def test_a_checkpoint_of_other_data_is_refused_with_the_difference(data, difference, tmp_path, monkeypatch):
    start(monkeypatch, tmp_path)
    with pytest.raises(CheckpointError, match=difference):
        small().fit(data, checkpoint=tmp_path, resume=True)


def test_another_part_or_order_of_a_store_is_refused(tmp_path, monkeypatch):
    signals = synthetic(60, 2, 32)
    np.savez(tmp_path / "w.npz", X=signals.X, subject=signals.subject, fs=signals.fs)
    polyadic("prepare", "arrays", "w.npz", "s.store", cwd=tmp_path)
    store = WindowStore(tmp_path / "s.store")
    folder = tmp_path / "checkpoints"
    start(monkeypatch, folder, 3, data=store.windows[:40])
    for data, difference in (
        (store.windows[np.r_[0:39, 41]], "data rows was"),
        (WindowStore(tmp_path / "s.store", shuffle="block").windows[:40], 'shuffle was "full" and is "block" now'),
    ):
        with pytest.raises(CheckpointError, match=difference):
            small().fit(data, checkpoint=folder, resume=True)
    assert_alike(small().fit(store.windows[:40], checkpoint=folder, resume=True), small().fit(store.windows[:40]))


def test_checkpoints_of_a_fit_are_not_written_over_by_a_new_one(tmp_path, monkeypatch):
    start(monkeypatch, tmp_path)
    with pytest.raises(CheckpointError, match="already contains checkpoints of a fit"):
        small().fit(X, checkpoint=tmp_path)


def test_resuming_needs_a_folder_but_no_checkpoint(tmp_path):
    with pytest.raises(PolyadicError, match="resume=True needs the folder"):
        small().fit(X, resume=True)
    with pytest.raises(PolyadicError, match="checkpoint_every must be a number"):
        small().fit(X, checkpoint=tmp_path, checkpoint_every=-1)
    assert_alike(small().fit(X, checkpoint=tmp_path / "new" / "folder", resume=True), small().fit(X))


# ---------------------------------------------------------------------- faults


def assert_last_is_sound(folder: Path) -> None:
    resumed = small().fit(X, checkpoint=folder, resume=True)
    assert_alike(resumed, small().fit(X))


def fit_after(change) -> None:
    """A fit during which something is done to the world after the third checkpoint."""
    model, save, count = small(), checkpoints.Checkpoints.save, 0

    def counted(self, progress, state):
        nonlocal count
        count += 1
        if count == 4:
            change()
        save(self, progress, state)

    checkpoints.Checkpoints.save = counted
    try:
        model.fit(X, checkpoint=Path("checkpoints"), checkpoint_every=0)
    finally:
        checkpoints.Checkpoints.save = save
        assert not hasattr(model, "factors_")


def test_a_file_that_may_not_grow_is_a_clear_error_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(CheckpointError, match=r"could not be written .*File too large.*00000003 is intact"):
            fit_after(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1])))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path / "checkpoints") == ["checkpoint-00000002", "checkpoint-00000003"]
    assert_last_is_sound(tmp_path / "checkpoints")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of a quarter of a MiB."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("file systems may not be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_a_clear_error_and_the_last_checkpoint_stays(small_disk, monkeypatch):
    monkeypatch.chdir(small_disk.parent)

    def fill() -> None:
        with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"0" * 4096)

    with pytest.raises(CheckpointError, match=r"No space left on device.*checkpoint-00000003 is intact"):
        fit_after(fill)
    (small_disk / "filler").unlink()
    assert names(small_disk) == ["checkpoint-00000002", "checkpoint-00000003"]
    assert_last_is_sound(small_disk)


def test_a_folder_that_becomes_read_only_is_a_clear_error_and_the_last_checkpoint_stays(small_disk, monkeypatch):
    monkeypatch.chdir(small_disk.parent)
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    with pytest.raises(CheckpointError, match=r"Read-only file system.*checkpoint-00000003 is intact"):
        fit_after(lambda: subprocess.run(remount, check=True))
    with pytest.raises(CheckpointError, match=r"checkpoint must be a writable folder.*Read-only"):
        small().fit(X, checkpoint=small_disk, resume=True)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert_last_is_sound(small_disk)


def test_a_folder_that_vanishes_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"could not be written to .*checkpoints: .*No such file"):
        fit_after(lambda: Path("checkpoints").rename("elsewhere"))
    assert_last_is_sound(tmp_path / "elsewhere")


def test_a_file_in_place_of_the_folder_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="checkpoint must be a writable folder"):
        small().fit(X, checkpoint=tmp_path / "file")


# --------------------------------------------------------------------- signals


def test_handlers_of_signals_are_as_they_were_after_a_fit(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    small().fit(X, checkpoint=tmp_path / "a")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    with pytest.raises(KeyboardInterrupt):
        fit_interrupted(tmp_path / "b", 1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def fit_interrupted(folder: Path, times: int) -> None:
    """A fit interrupted while it reads its tenth batch, so often at once."""
    count = 0

    def tensorize(batch):
        nonlocal count
        count += 1
        if count == 10:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return batch

    small(tensorize=tensorize).fit(X, checkpoint=folder)


def test_one_interrupt_waits_for_the_step_and_a_second_does_not(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit_interrupted(tmp_path / "once", 1)
    assert names(tmp_path / "once") == ["checkpoint-00000001"]
    with pytest.raises(KeyboardInterrupt):
        fit_interrupted(tmp_path / "twice", 2)
    assert names(tmp_path / "twice") == []


def test_a_pipe_with_the_name_of_a_checkpoint_is_passed_over_and_stays(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(40, 3, 5))
    model = paper(SALS, 2, max_sweeps=5, tol=0.0, device="cpu")

    def stop(seen: SALS) -> None:
        if seen.n_sweeps_ == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(X, checkpoint=tmp_path, checkpoint_every=0, after_sweep=stop)
    pipe = tmp_path / "checkpoint-00000099"
    os.mkfifo(pipe)
    with pytest.warns(RuntimeWarning, match="checkpoint-00000099 is a named pipe"):
        resumed = paper(SALS, 2, max_sweeps=5, tol=0.0, device="cpu").fit(
            X, checkpoint=tmp_path, checkpoint_every=0, resume=True
        )
    whole = paper(SALS, 2, max_sweeps=5, tol=0.0, device="cpu").fit(X)
    np.testing.assert_array_equal(resumed.factors_[0], whole.factors_[0])
    checkpoints.remove_checkpoints(tmp_path)
    assert list(tmp_path.iterdir()) == [pipe]
