"""Fits and features of Dask arrays and lists of stores, on real clusters whose workers are killed."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import polyadic

from polyadic import CPD, load
from polyadic.core.passes import STAGES
from polyadic.data import Windows, open_windows
from polyadic.data.store import write_windows
from polyadic.errors import PolyadicError
from polyadic.evaluate import WindowClassifier
from polyadic.explain import replicability
from polyadic.scale import cluster, recordings

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
array = pytest.importorskip("dask.array")

pytestmark = pytest.mark.filterwarnings("ignore")  # of processes that are killed
X = np.random.default_rng(0).normal(size=(480, 3, 128)).astype(np.float32).cumsum(axis=2)
CHUNK = 20


def model(**settings) -> CPD:
    return CPD(4, device="cpu", **settings)


@pytest.fixture(scope="module")
def whole() -> CPD:
    return model().fit(X)


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as local,
        distributed.Client(local) as connected,
    ):
        yield connected


def assert_equal_fits(found: CPD, expected: CPD) -> None:
    assert found.compression_["ranks"] == expected.compression_["ranks"]
    assert found.history_["loss"][-1] == pytest.approx(expected.history_["loss"][-1], rel=1e-6)
    Z, wanted = found.transform(X), expected.transform(X)
    assert np.sqrt(np.mean((Z - wanted) ** 2)) < 1e-4 * np.sqrt(np.mean(wanted**2))


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("a.store", "b.store")]
    for path, part in zip(paths, (X[:280], X[280:]), strict=True):
        write_windows(Windows(part, fs=64, channels=["x", "y", "z"]), path)
    return paths


# ------------------------------------------------------------------------ fits


def test_a_dask_array_without_a_cluster_is_fitted_like_an_array(whole):
    assert_equal_fits(model().fit(array.from_array(X, chunks=(CHUNK, 2, 64))), whole)


def test_a_fit_on_two_workers_is_that_of_one_process(whole, client):
    assert_equal_fits(model().fit(array.from_array(X, chunks=(CHUNK, -1, -1))), whole)


@pytest.mark.long
def test_the_fit_does_not_depend_on_the_number_of_workers(whole):
    fits = []
    for workers in (1, 2, 4):
        with (
            distributed.LocalCluster(workers, threads_per_worker=1, dashboard_address=None, silence_logs=50) as local,
            distributed.Client(local) as connected,
            connected.as_current(),
        ):
            fits.append(model().fit(array.from_array(X, chunks=(CHUNK, -1, -1))))
    assert_equal_fits(fits[0], whole)
    for other in fits[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(fits[0].factors_, other.factors_, strict=True))


def test_a_list_of_stores_is_read_by_the_workers(stores, client, monkeypatch):
    monkeypatch.setattr(cluster, "_CHUNK_BYTES", 4 * 3 * 128 * CHUNK)
    values = np.concatenate([open_windows(path).X for path in stores])
    expected = model().fit(Windows(values, fs=64, channels=["x", "y", "z"]))
    found = model().fit([str(path) for path in stores])
    assert_equal_fits(found, expected)
    assert (found.fs_, found.channel_names_) == (64.0, ("x", "y", "z"))
    np.testing.assert_allclose(found.transform(stores).compute(), expected.transform(X), atol=1e-3)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two folders with two recordings each; the channels of the second are in another order."""
    for number, (name, order) in enumerate([("a", "xyz"), ("a", "xyz"), ("b", "zxy"), ("b", "zxy")]):
        (tmp_path / name).mkdir(exist_ok=True)
        signal = dict(zip("xyz", X[120 * number : 120 * (number + 1)].transpose(1, 0, 2).reshape(3, -1), strict=True))
        frame = pd.DataFrame({channel: signal[channel] for channel in order})
        frame.to_csv(tmp_path / name / f"{number}.csv", index=False)
    return [tmp_path / "a", tmp_path / "b"]


def test_folders_of_recordings_are_cut_and_read_by_the_workers(whole, folders, client, monkeypatch):
    monkeypatch.setattr(cluster, "_CHUNK_BYTES", 4 * 3 * 128 * CHUNK)
    windows = recordings(folders, seconds=2, fs=64)
    assert windows.shape == X.shape
    found = model().fit(windows)
    assert_equal_fits(found, whole)
    assert (found.fs_, found.channel_names_, found.reading_["seconds"]) == (64.0, ("x", "y", "z"), 2)
    np.testing.assert_allclose(found.transform(windows).compute(), whole.transform(X), atol=1e-3)
    np.testing.assert_allclose(windows[[3, 280]].X, X[[3, 280]], rtol=1e-6)
    other = recordings(folders[::-1], seconds=2, fs=64)  # channels are matched to those of the model
    assert other.channels == ("z", "x", "y")
    np.testing.assert_allclose(found.transform(other).compute(), whole.transform(np.roll(X, 240, axis=0)), atol=1e-3)


def test_a_folder_is_fitted_on_a_cluster_from_the_command_line(folders, client):
    options = ["--seconds", 2, "--fs", 64, "--rank", 4, "--device", "cpu"]
    run = partial(polyadic, cwd=folders[0].parent)
    run("fit", "a", *options, "-o", "one.safetensors")
    run("fit", "a", *options, "--scheduler", client.scheduler.address, "-o", "many.safetensors")
    one, many = (load(folders[0].parent / f"{name}.safetensors") for name in ("one", "many"))
    assert many.history_["loss"][-1] == pytest.approx(one.history_["loss"][-1], rel=1e-6)
    assert many.typical_["residual"] == pytest.approx(one.typical_["residual"], rel=1e-2)
    assert {**many.reading_, "seconds": 2.0} == {**one.reading_, "seconds": 2.0}


def test_parts_of_dask_arrays_are_refused(whole):
    chunked = array.from_array(X, chunks=(CHUNK, -1, -1))
    with pytest.raises(PolyadicError, match="Dask chunks cannot be fitted: pass a WindowStore or an array"):
        replicability(whole, chunked, np.arange(len(X)) // 60, refits=2)
    with pytest.raises(PolyadicError, match="needs a CPD and windows that it reads itself"):
        model().fit_with_moments(chunked, np.arange(len(X)) // 60)


def test_features_and_labels_of_dask_arrays_are_lazy(whole, client):
    x = array.from_array(X, chunks=(200, -1, 50))
    Z = whole.transform(x)
    assert isinstance(Z, array.Array)
    assert Z.chunks == ((200, 200, 80), (len(whole.get_feature_names_out()),))
    np.testing.assert_allclose(Z.compute(), whole.transform(X), atol=1e-4)
    assert whole.coefficients(x).shape == (480, 4)
    classifier = WindowClassifier(whole).fit(X[:60], np.arange(60) % 2, groups=np.arange(60) // 6)
    assert np.array_equal(classifier.predict(x).compute(), classifier.predict(X))
    assert classifier.predict_proba(x).chunks == ((200, 200, 80), (2,))
    with pytest.raises(PolyadicError, match="no further arguments"):
        classifier.predict(x, groups=np.arange(480))


def test_an_error_names_the_chunk(client):
    broken = X.copy()
    broken[248, 1, 3] = np.inf
    with pytest.raises(PolyadicError, match=r"chunk of 20 windows from window 240: .*sample 8 contains infinity"):
        model().fit(array.from_array(broken, chunks=(CHUNK, -1, -1)))
    with pytest.raises(PolyadicError, match="unknown size"):
        model().fit(array.from_array(X, chunks=(CHUNK, -1, -1))[array.from_array(X[:, 0, 0], chunks=CHUNK) > 0])


# ---------------------------------------------------------------------- losses


def test_a_worker_killed_in_each_pass_changes_nothing(whole, client, monkeypatch):
    """The chunks of a killed worker are computed again, also those whose sums it had finished."""
    killed, real = [], cluster._computed

    def kill(tasks):
        results = real(tasks)
        yield next(results)
        killed.append(next(iter(client.run(os.getpid).values())))
        os.kill(killed[-1], signal.SIGKILL)
        yield from results

    monkeypatch.setattr(cluster, "_computed", kill)
    monkeypatch.setattr(cluster, "_GROUP", 4)
    found = model().fit(array.from_array(X, chunks=(CHUNK, -1, -1)))
    assert len(set(killed)) == len(STAGES)
    assert_equal_fits(found, whole)


@pytest.mark.parametrize("stage", [pytest.param("axes", marks=pytest.mark.long), "core"])
def test_a_fit_resumes_from_saved_sums_when_the_scheduler_goes_away(stage, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_GROUP", 4)
    x = array.from_array(X, chunks=(CHUNK, -1, -1))
    settings = {"checkpoint": tmp_path / "fit.checkpoint", "checkpoint_every": 0.0}
    local = distributed.LocalCluster(1, processes=False, dashboard_address=None, silence_logs=50)
    lost = distributed.Client(local, set_as_default=False)
    real, begun, computed = cluster._computed, [], []

    def stop(tasks):
        results = real(tasks)
        begun.append(len(tasks))
        if len(begun) - 1 == STAGES.index(stage):
            yield next(results)
            yield next(results)
            local.close(timeout=10)
        yield from results

    with monkeypatch.context() as patch, lost.as_current():
        patch.setattr(cluster, "_computed", stop)
        with pytest.raises(PolyadicError, match="scheduler or its workers were lost"):
            model().fit(x, **settings)
    lost.close()

    def count(tasks):
        computed.append(len(tasks))
        return real(tasks)

    monkeypatch.setattr(cluster, "_computed", count)
    found = model().fit(x, **settings, resume=True)
    assert computed[0] == 6 - 2, "two of six groups of chunks had arrived"
    assert len(computed) == len(STAGES) - STAGES.index(stage)
    assert_equal_fits(found, whole)


def test_a_scheduler_that_is_not_there_is_an_error():
    nowhere = cluster.on_cluster("tcp://127.0.0.1:1", "recordings", {}, timeout=0.5)
    with pytest.raises(PolyadicError, match="no Dask scheduler answers"), nowhere:
        pass


def test_few_windows_are_kept_themselves(client):
    part = X[:100]
    found, expected = (
        model(compression=None).fit(data) for data in (array.from_array(part, chunks=(30, -1, -1)), part)
    )
    assert found.history_["loss"][-1] == pytest.approx(expected.history_["loss"][-1], rel=1e-6)


def test_the_progress_bar_counts_every_window_of_every_pass(client):
    estimator, counts = model(), []
    source = estimator._source(array.from_array(X, chunks=(CHUNK, -1, -1)), calibrate=False)
    source.on_batch = lambda windows, size: counts.append((windows, size))
    estimator._collect(source)
    assert len(counts) == len(STAGES) * 2, "groups of 16 of 24 chunks"
    assert np.sum(counts, axis=0).tolist() == [len(STAGES) * len(X), len(STAGES) * X.nbytes]


def test_options_for_a_store_and_stores_with_other_channels_are_refused(stores, tmp_path):
    with pytest.raises(PolyadicError, match=r"a\.store already contains windows"):
        recordings(stores, seconds=2)
    write_windows(Windows(X[:5], fs=32, channels=["x", "y", "z"]), tmp_path / "c.store")
    with pytest.raises(PolyadicError, match=r"c\.store differs"):
        model().fit([*stores, tmp_path / "c.store"])


def test_a_chunk_computed_twice_counts_once():
    """Tasks leave their inputs as they are, so that a task that runs again finds the same."""
    x = array.from_array(X[:200], chunks=(CHUNK, -1, -1))
    chunks = cluster.Chunks(x)
    stage = cluster.Stage("axes", None)
    parts = [cluster._sums_of_chunk(stage, block.compute(), 0, "cpu", cluster.torch.float32) for block in chunks.blocks]
    first, again = cluster._merged(parts), cluster._merged(parts)
    assert first.count == again.count == 200
    assert np.array_equal(first["total"], again["total"])
