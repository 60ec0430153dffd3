"""Fits, features and scores by real processes, on one machine and over a network, against those of one process."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import cache
from itertools import product

import numpy as np
import pytest
import teams
import torch
from command_line import polyadic
from polyadic.engine import processes
from polyadic.team import ALONE
from problems import paper
from torchrun import SCRIPT, assert_close, ended, forked, part_of, torchrun, written_store

from polyadic import SALS, load
from polyadic.data import WindowStore, synthetic
from polyadic.data.readers.arrays import open_windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import cross_validate

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package here")
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


@cache
def alone(kind: str, dtype: str = "float64") -> dict[str, np.ndarray]:
    """What one process ends with."""
    return teams.outcome(teams.KINDS[kind]().fit(teams.WINDOWS[dtype]))


# ------------------------------------------------------------------------ fits


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder in which two processes did the tasks that need no more; those of torchrun are below."""
    folder = tmp_path_factory.mktemp("pair")
    written_store(folder / "fits")
    forked("fits+messages+features+refused", folder, processes=2)
    return folder


@pytest.mark.parametrize("processes", [2, *(pytest.param(count, marks=pytest.mark.long) for count in (1, 4))])
def test_any_number_of_processes_ends_with_the_bases_of_one_and_uses_every_window_once_a_sweep(
    processes, pair, tmp_path
):
    folder = pair
    if processes != 2:
        folder = tmp_path
        written_store(folder / "fits")
        forked("fits", folder, processes=processes)
    found = ended("fits", folder, processes)
    for exchange, kind, dtype in product(("block", "modes"), teams.KINDS, TOLERANCE):
        prefix, expected = f"{exchange}; {kind}; {dtype}; ", alone(kind, dtype)
        mine = [part_of(part, prefix) for part in found]
        assert_close(mine[0], expected, TOLERANCE[dtype])
        for other in mine[1:]:
            assert all(np.array_equal(other[name], mine[0][name]) for name in expected)
        sweeps, windows = np.concatenate([part["seen"] for part in mine], axis=1)
        # In a full batch, one piece that holds all of a process's windows is read once and kept.
        starts = 3 if "restarts" in kind or "consensus" in kind else 1
        assert set(sweeps) == ({0} if "full batch" in kind or starts > 1 else {0, 1, 2, 3})
        for sweep in set(sweeps):
            assert sorted(windows[sweeps == sweep]) == sorted([*range(61)] * starts)
    for shuffle in teams.ORDERS:
        mine = [part_of(part, f"{shuffle}; ") for part in found]
        model = teams.KINDS["ATD"]().fit(WindowStore(folder / "fits" / "w.store", shuffle=shuffle))
        assert_close(mine[0], teams.outcome(model), TOLERANCE["float32"])
        sweeps, windows = np.concatenate([part["seen"] for part in mine], axis=1)
        assert all(sorted(windows[sweeps == sweep]) == list(range(80)) for sweep in range(4))


def test_a_step_sends_two_sums_of_rows_and_the_statistics_and_nothing_else(pair):
    rank, modes = 4, [len(factor) for factor in teams.KINDS["ATD"]().fit(teams.WINDOWS["float32"]).factors_]
    block, by_modes = [(rank * math.prod(modes), False, False)], [(rank * mode, True, False) for mode in modes]
    for found in ended("messages", pair, 2):
        for kind, (views, rows) in teams.COUNTED.items():
            # XᵀX travels with two squared errors and what the penalties follow from, the sums of rows among it.
            small = (rank**2 + 2 + 2 + views * rank, True, False)
            sums = [(rank, True, False)] * rows
            for exchange, expected in (("block", [*sums, *block, small]), ("modes", [*sums, small, *by_modes])):
                steps = found[f"{exchange}; {kind}"]
                assert len(steps) == 4 * 4
                assert all([tuple(message) for message in step] == expected for step in steps), (exchange, kind)


def test_shares_are_even_and_together_everything():
    class Three(processes.Processes):
        def __init__(self, index: int) -> None:
            self.index, self.size = index, 3

    for count in (0, 1, 2, 3, 10, 11):
        ids = torch.randperm(count)
        shares = [Three(index).share(ids) for index in range(3)]
        assert sorted(torch.cat(shares).tolist()) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_small_blocks_are_sent_whole_and_large_ones_by_modes_unless_chosen_otherwise():
    class Two(processes.Processes):
        def __init__(self, exchange: str) -> None:
            self.index, self.size, self._exchange = 0, 2, exchange

    for rows, by_size in ((2**17, False), (2**17 + 1, True)):  # 512 KiB, and a little more
        Y = torch.empty(rows)
        chosen = [Two(exchange).sum_by_mode(Y) is not None for exchange in ("auto", "block", "modes")]
        assert chosen == [by_size, False, True]


def test_one_process_is_a_team_of_one(monkeypatch):
    assert processes.join() is ALONE
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert processes.join() is ALONE
    with pytest.raises(PolyadicError, match="exchange must be"):
        processes.join("all")


REFUSALS = {
    "data": "must have the same settings and data as the first, but process 1 differs: data sampled windows was",
    "settings": "but process 1 differs: rank was 4 and is 5 now",
    "seed": "but process 1 differs: seed was",
    "graph": "a given graph connects windows of all processes",
    "out": "transform writes to a shared file, but out is None",
    "window": "sample 60 contains NaN",
    "folder": "No such file or directory",
    "checkpoint": "checkpoint must be a writable folder",
}


def test_unsupported_distributed_work_is_refused_by_all_processes_and_leaves_nothing(pair):
    first, second = ended("refused", pair, 2)
    assert set(first) == set(second) == set(REFUSALS)
    for name, message in REFUSALS.items():
        assert message in str(second[name])
    assert sorted(path.name for path in (pair / "refused").iterdir()) == ["0.npz", "1.npz"]


# ---------------------------------------------------------- features and scores


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.long)])
def test_processes_write_one_file_of_features_and_agree_on_the_score(processes, pair, tmp_path):
    folder = pair
    if processes != 2:
        folder = tmp_path
        forked("features", folder, "group=own", processes=processes)
    # None of them makes, or is sent, the rows of another.
    done = sorted(int(found["done"]) for found in ended("features", folder, processes))
    assert done == {2: [30, 31], 3: [20, 20, 21]}[processes]
    model = teams.KINDS["ATD"]().fit(teams.WINDOWS["float64"])
    Z = model.transform(teams.WINDOWS["float64"])
    for found in ended("features", folder, processes):  # of the few windows one process has none
        np.testing.assert_allclose(found["Z"], Z, rtol=1e-9)
        np.testing.assert_allclose(found["few"], Z[: processes - 1], rtol=1e-9)
        np.testing.assert_allclose(found["score"], model.score(teams.WINDOWS["float64"]), rtol=1e-12)
    there = sorted(path.name for path in (folder / "features").iterdir() if path.suffix != ".npz")
    assert there == ["features.npy", "few.npy"]


@pytest.mark.long
def test_the_command_line_under_torchrun_fits_and_transforms_a_store_as_alone(tmp_path):
    store = written_store(tmp_path)
    options = ["w.store", "--rank", 3, "--sweeps", 3, "--batch-size", 32, "--shuffle", "block"]
    said = torchrun("-m", "polyadic", "fit", *options, "-o", "two.safetensors", processes=2, cwd=tmp_path)
    assert said.count("two.safetensors: ATD of 80 windows") == 1
    polyadic("fit", *options, "-o", "one.safetensors", "--quiet", cwd=tmp_path)
    one, two = load(tmp_path / "one.safetensors"), load(tmp_path / "two.safetensors")
    for first, second in zip(one.factors_, two.factors_, strict=True):
        assert np.linalg.norm(first - second) <= 1e-5 * np.linalg.norm(first)
    torchrun("-m", "polyadic", "transform", "two.safetensors", "w.store", "-o", "f.npy", processes=2, cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "f.npy"), two.transform(store), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_an_evaluation_by_two_processes_is_that_of_one_and_leaves_nothing_behind(tmp_path):
    signals = synthetic(80, 3, 96)
    np.savez(tmp_path / "w.npz", X=signals.X, y=signals.label, fs=signals.fs)
    paper(SALS, rank=3, max_sweeps=2).fit(signals).save(tmp_path / "m.safetensors")
    words = ["-m", "polyadic", "evaluate", "m.safetensors", "w.npz", "--protocol", "paper", "--seeds", "2", "--json"]
    said = torchrun(*words, processes=2, cwd=tmp_path)
    alone = polyadic(*words[2:], cwd=tmp_path)
    found, expected = json.loads(said[said.index("{") : said.rindex("}") + 1]), json.loads(alone.stdout)
    assert found == expected
    assert len(expected["rows"]) == 4
    assert not list(tmp_path.glob(".polyadic-*"))


@pytest.mark.long
def test_a_cross_validation_by_two_processes_refits_together_and_scores_as_one(tmp_path):
    signals = synthetic(200, 3, 96)
    np.savez(tmp_path / "w.npz", X=signals.X, y=signals.label, subject=signals.subject, fs=signals.fs)
    paper(SALS, rank=3, max_sweeps=2).fit(signals).save(tmp_path / "m.safetensors")
    words = ["-m", "polyadic", "evaluate", "m.safetensors", "w.npz", "--folds", "2", "--json"]
    said = torchrun(*words, processes=2, cwd=tmp_path)
    found = json.loads(said[said.index("{") : said.rindex("}") + 1])
    expected = cross_validate(load(tmp_path / "m.safetensors"), open_windows(tmp_path / "w.npz"), 2)
    assert found["refitted"]
    assert found["balanced_accuracy"] == pytest.approx(expected.balanced_accuracy, abs=0.02)
    assert not list(tmp_path.glob(".polyadic-*"))


# ------------------------------------------------------------- dying and resuming


def test_fits_of_four_processes_resume_with_two_and_end_with_one(tmp_path):
    kinds = ["ATD", "ATD, memory", "ATD, full batch", "SALS, restarts", "SALS, consensus"]
    for count, exchange in ((4, "block"), (2, "modes")):
        words = ("resumed", tmp_path, f"kinds={';'.join(kinds)}", "stop=1", f"exchange={exchange}")
        forked(*words, processes=count)
    found = teams.resumed(ALONE, tmp_path / "resumed", ";".join(kinds))
    for kind in kinds:
        mine = part_of(found, f"{kind}; ")
        assert_close(mine, alone(kind), 1e-10)
        # Each of the two before had done a sweep, one of the sixteen batches, or one of three attempts of one batch.
        assert mine["steps"] == (0 if "full" in kind else 14 if kind.startswith("ATD") else 1)


def test_a_worker_that_dies_is_restarted_and_the_fit_resumes_from_the_last_checkpoint(tmp_path):
    words = ("resumed", tmp_path, "kinds=ATD, memory", "kill=9", "exchange=modes")
    torchrun(SCRIPT, *words, processes=2, restarts=1)
    for found in ended("resumed", tmp_path, 2):
        mine = part_of(found, "ATD, memory; ")
        assert_close(mine, alone("ATD, memory"), 1e-10)
        assert found["restarts"] == 1
        assert mine["steps"] == 16 - 8  # none of the steps before the death was done twice


# --------------------------------------------------------------------- two hosts


def ip(*words: str) -> bool:
    try:
        return subprocess.run(["ip", *words], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def two_hosts():
    """Two network namespaces with a cable between them, as (name, address, interface)."""
    tag = f"plx{os.getpid() % 10000}"
    hosts = [(f"{tag}{side}", f"10.213.77.{number}", f"{tag}v{side}") for number, side in ((1, "a"), (2, "b"))]
    (a, _, cable_a), (b, _, cable_b) = hosts
    made = ip("netns", "add", a) and ip("netns", "add", b)
    made = made and ip("link", "add", cable_a, "netns", a, "type", "veth", "peer", "name", cable_b, "netns", b)
    for name, address, cable in hosts:
        made = made and ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
        made = made and ip("-n", name, "link", "set", cable, "up") and ip("-n", name, "link", "set", "lo", "up")
    if made:
        yield hosts
    for name, _, _ in hosts:
        ip("netns", "del", name)
    if not made:
        pytest.skip("network namespaces cannot be made here")


@pytest.mark.long
def test_two_hosts_over_a_network_end_with_the_bases_of_one_process(two_hosts, tmp_path):
    written_store(tmp_path / "fits")
    running = []
    for number, (name, _, cable) in enumerate(two_hosts):
        options = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number)]
        options += ["--master-addr", two_hosts[0][1], "--master-port", "29511"]
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", *options]
        running.append(
            subprocess.Popen(
                [*command, SCRIPT, "fits", str(tmp_path)],
                env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": cable, "PYTHONWARNINGS": "ignore"},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for process in running:
        said = process.communicate(timeout=300)[1]
        assert process.returncode == 0, said
    for found in ended("fits", tmp_path, 2):
        for exchange, kind in product(("block", "modes"), teams.KINDS):
            assert_close(part_of(found, f"{exchange}; {kind}; float64; "), alone(kind), 1e-10)
