"""Sums over windows in files: stages, merging over sites, groups, and fits without data."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from command_line import polyadic

from polyadic import CPD, SALS, load
from polyadic._util import model_files
from polyadic.core.passes import STAGES
from polyadic.data import Windows, open_windows, synthetic
from polyadic.data.store import write_windows
from polyadic.errors import ModelFileError, PolyadicError
from polyadic.explain import match, replicability
from polyadic.scale import Moments
from polyadic.statistics import statistic_names, window_statistics


def recordings(count: int = 360, subjects: int = 9, seed: int = 0, **changes) -> Windows:
    """Windows of several subjects with different spectra and offsets."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(count, 3, 128)).cumsum(axis=2).astype(np.float32)
    X *= random.uniform(0.5, 2, size=(count, 3, 1)).astype(np.float32)
    settings = {"fs": 64, "channels": ["x", "y", "z"], "units": ["uV"] * 3, **changes}
    return Windows(X, subject=[f"s{n * subjects // count}" for n in range(count)], **settings)


@pytest.fixture(scope="module")
def windows() -> Windows:
    return recordings()


@pytest.fixture(scope="module")
def sites(windows) -> dict[str, Windows]:
    return {"north": windows[:120], "west": windows[120:144], "south": windows[144:]}


@pytest.fixture(scope="module")
def stages(sites) -> dict[str, dict[str, Moments]]:
    """The sums of each site at each stage, and those of all sites."""
    collected, merged = {}, None
    for stage in STAGES:
        parts = {name: Moments.collect(own, stage, previous=merged, site=name) for name, own in sites.items()}
        merged = Moments.merge(list(parts.values()))
        collected[stage] = {**parts, "merged": merged}
    return collected


# ----------------------------------------------------------------------- fits


def test_a_fit_to_merged_sums_is_the_fit_to_all_windows(windows, stages):
    pooled, merged = CPD(4).fit(windows), CPD(4).fit(stages["core"]["merged"])
    assert merged.compression_["ranks"] == pooled.compression_["ranks"]
    assert merged.history_["loss"][-1] == pytest.approx(pooled.history_["loss"][-1], rel=1e-6)
    Z, expected = merged.transform(windows), pooled.transform(windows)
    assert np.sqrt(np.mean((Z - expected) ** 2)) < 1e-4 * np.sqrt(np.mean(expected**2))
    assert (merged.fs_, merged.channel_names_, merged.units_) == (64.0, ("x", "y", "z"), ("uV",) * 3)
    np.testing.assert_allclose(merged.prior_.noise, pooled.prior_.noise, rtol=1e-5)


def test_statistics_of_a_channel_that_a_site_lacks_are_those_of_the_other_sites(windows, tmp_path):
    X = windows.X.copy()
    X[120:, 1] = np.nan
    lacking = Windows(X, fs=64, channels=["x", "y", "z"], subject=windows.subject)
    assert Moments.collect(lacking, "floor").n_windows == 360
    parts = [Moments.collect(lacking, groups=lacking.subject), Moments.collect(lacking)]
    parts[0].save(tmp_path / "m.moments")
    for moments in (*parts, Moments.load(tmp_path / "m.moments")):
        readout = CPD(2).fit(moments).readout_
        own = [name.endswith(" y") for name in statistic_names(["x", "y", "z"], 128)]
        expected = window_statistics(torch.from_numpy(windows.X[:120])).numpy()[:, own]
        np.testing.assert_allclose(readout.statistic_mean[own], expected.mean(axis=0), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(readout.statistic_scale[own], expected.std(axis=0), rtol=1e-6)


def test_the_order_and_number_of_files_does_not_matter(stages):
    parts = [stages["core"][name] for name in ("south", "north", "west")]
    by_two = Moments.merge([Moments.merge(parts[:2]), parts[2]])
    energies = [moments.of().energy for moments in (by_two, stages["core"]["merged"])]
    assert energies[0] == pytest.approx(energies[1], rel=1e-12)
    assert Moments.merge(parts).of().energy == energies[1]


def test_a_saved_file_is_the_same_sums(stages, tmp_path):
    for stage in STAGES:
        for name in ("west", "merged"):
            path, moments = tmp_path / f"{stage}.moments", stages[stage][name]
            moments.save(path)
            again = Moments.load(path)
            assert model_files.checksum(again._arrays()) == model_files.checksum(moments._arrays())
            assert again._compared() == moments._compared()
            assert (again.sites, again.windows) == (moments.sites, moments.windows)
    loaded, own = (CPD(3).fit(moments) for moments in (again, moments))
    assert all(np.array_equal(a, b) for a, b in zip(loaded.factors_, own.factors_, strict=True))


def test_sums_hold_no_single_window(sites, stages):
    """With twice the windows, every array of a stage keeps its size."""
    for stage in STAGES:
        sums = [next(iter(stages[stage][site].sums.values())) for site in ("north", "south")]
        first, second = ({name: array.shape for name, array in each.arrays().items()} for each in sums)
        assert first == second


# --------------------------------------------------------------------- groups


def test_groups_serve_replicability_rank_and_bootstrap_without_data(windows):
    moments = Moments.collect(windows, groups=windows.subject)
    assert moments.groups == [f"s{n}" for n in range(9)]
    assert moments.n_windows == 360
    model = CPD(3).fit(moments)
    found, expected = replicability(model, moments, refits=4), replicability(model, windows, refits=4)
    np.testing.assert_allclose(found.match, expected.match, atol=1e-3)
    once, twice = moments.of(["s1"]), moments.of(["s1", "s1", "s2"])
    assert twice.count == 120
    assert twice.energy == pytest.approx(2 * once.energy + moments.of(["s2"]).energy, rel=1e-12)
    direct = Moments.collect(windows[np.isin(windows.subject, ["s1", "s2"])], "floor")
    assert direct.n_windows == 80


# --------------------------------------------------------------------- errors


def other(stage: str, stages, changed: Windows, **settings) -> Moments:
    previous = {"floor": None, "axes": "floor", "core": "axes"}[stage]
    return Moments.collect(changed, stage, previous=previous and stages[previous]["merged"], site="other", **settings)


def test_sums_that_do_not_belong_together_are_refused_with_the_difference(stages):
    north = {stage: stages[stage]["north"] for stage in STAGES}
    wrong = {
        'stage is "axes" in north, but "floor"': (north["axes"], stages["floor"]["south"]),
        "sampling rate is 64.0 in north, but 32.0 in other": (
            north["floor"],
            other("floor", stages, recordings(fs=32)),
        ),
        "channels": (north["floor"], other("floor", stages, recordings(channels=["x", "y", "w"]))),
        "units": (north["floor"], other("floor", stages, recordings(units=["mV"] * 3))),
        "compression is": (north["floor"], other("floor", stages, recordings(), compression=(2, 3, 4))),
        "tensorize floor is": (north["axes"], Moments.collect(recordings(seed=1), "axes", site="other")),
        "axes is": (north["core"], Moments.collect(recordings(seed=1), site="other")),
        "shape is": (north["floor"], Moments.collect(np.zeros((9, 3, 100), np.float32), "floor", site="other")),
    }
    for words, parts in wrong.items():
        with pytest.raises(PolyadicError, match=words):
            Moments.merge(parts)


def test_a_site_that_is_merged_twice_is_noticed(stages, sites):
    core = stages["core"]
    for repeated in (core["west"], Moments.collect(sites["west"], previous=stages["axes"]["merged"], site="again")):
        with pytest.raises(PolyadicError, match="is among the sums twice: merge it once"):
            Moments.merge([core["merged"], repeated])


# ------------------------------------------------------------------- commands


def test_sites_fit_a_model_by_commands(tmp_path, sites):
    run = partial(polyadic, cwd=tmp_path)
    for name in ("north", "south"):
        write_windows(sites[name], tmp_path / f"{name}.store")
    before: list[str] = []
    for stage in STAGES:
        words = [["moments", f"{name}.store", "--stage", stage, *before, "--site", name] for name in ("north", "south")]
        if stage == "floor":
            few = run(*words[0], "-o", "north.moments", code=1)
            assert "at least 5 known subjects are wanted, and these are of 3" in few.stderr
            assert not (tmp_path / "north.moments").exists()
        run(*words[0], "-o", "north.moments", "--allow-few", "--force")
        run(*words[1], "-o", "south.moments", "--force")
        run("moments", "merge", "north.moments", "south.moments", "-o", f"{stage}.moments")
        before = ["--from", f"{stage}.moments"]
    twice = run("moments", "merge", "core.moments", "north.moments", "-o", "twice.moments", code=1)
    assert "north is among the sums twice" in twice.stderr
    run("fit", "--moments", "core.moments", "-o", "model.safetensors", "--rank", 3)
    X = np.concatenate([open_windows(tmp_path / f"{name}.store").X for name in ("north", "south")])
    pooled, model = CPD(3).fit(Windows(X, fs=64)), load(tmp_path / "model.safetensors")
    assert model.history_["loss"][-1] == pytest.approx(pooled.history_["loss"][-1], rel=1e-6)


@pytest.mark.parametrize("piece", [1, 2**21], ids=["a piece for each window", "one piece"])
def test_moments_of_few_windows_with_missing_channels_give_the_components_of_complete_ones(piece, monkeypatch):
    monkeypatch.setattr("polyadic.core.passes._PIECE_BYTES", piece)
    windows = synthetic(240, n_channels=3, length=128)
    X = windows.X.copy()
    X[np.isin(windows.subject, np.unique(windows.subject)[:2]), 1] = np.nan
    incomplete = Windows(X, windows.fs, subject=windows.subject)
    sums = CPD(rank=2).fit_with_moments(incomplete, incomplete.subject), Moments.collect(incomplete)
    assert [each.n_windows for each in sums] == [240, 240]
    whole = CPD(rank=2, readout=None, restarts=3).fit(Moments.collect(windows))
    for each in sums:
        found = CPD(rank=2, readout=None, restarts=3).fit(each)
        assert match(found, whole).score > 0.9


def test_contributions_without_a_name_are_all_counted(windows):
    parts = [Moments.collect(part, "floor") for part in (windows[:150], windows[150:240], windows[240:])]
    assert Moments.merge([Moments.merge(parts[:1]), Moments.merge(parts[1:])]).n_windows == len(windows)


def test_the_model_of_moments_is_saved_without_them(stages, tmp_path):
    model = CPD(3).fit(stages["core"]["merged"])
    model.save(tmp_path / "model.safetensors")
    stages["core"]["merged"].save(tmp_path / "core.moments")
    assert (tmp_path / "model.safetensors").stat().st_size < (tmp_path / "core.moments").stat().st_size / 10
    assert load(tmp_path / "model.safetensors").n_sweeps_ == model.n_sweeps_
    with pytest.raises(ModelFileError, match="holds no sums"):
        Moments.load(tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match="not a model"):
        load(tmp_path / "core.moments")


def test_unknown_subjects_are_a_group_and_many_subjects_share_groups(windows, monkeypatch):
    subjects = np.where(np.arange(len(windows)) < 100, "", windows.subject)
    moments = Moments.collect(windows, groups=subjects)
    assert "(unknown)" in moments.groups
    assert moments.n_windows == len(windows)
    monkeypatch.setattr("polyadic.scale.moments._GROUPS_BYTES", 1)
    moments = Moments.collect(windows, groups=subjects)
    assert moments.groups == ["group 1", "group 2"]
    assert moments.n_windows == len(windows)


def test_windows_of_a_site_that_do_not_fit_are_refused(stages, windows):
    with pytest.raises(PolyadicError, match="fewer than two are known"):
        replicability(CPD(2).fit(stages["core"]["merged"]), stages["core"]["merged"])
    with pytest.raises(PolyadicError, match="64"):
        Moments.collect(recordings(fs=32), "axes", previous=stages["floor"]["merged"])
    with pytest.raises(PolyadicError, match="stage before"):
        Moments.collect(windows, "core", previous=stages["floor"]["merged"])
    with pytest.raises(PolyadicError, match="go on with stage 'core'"):
        CPD(2).fit(stages["axes"]["merged"])


def test_what_moments_cannot_do_is_said(stages, tmp_path):
    moments = stages["core"]["merged"]
    wrong = (
        (SALS(2), {}, "must read the windows themselves"),
        (CPD(2, compression=(1, 1, 1)), {}, "compression must be 'auto'"),
        (CPD(2), {"checkpoint": tmp_path / "fit"}, "needs no checkpoint"),
    )
    for model, arguments, words in wrong:
        with pytest.raises(PolyadicError, match=words):
            model.fit(moments, **arguments)


def test_moments_of_one_data_set_serve_several_fits(tmp_path, windows):
    run = partial(polyadic, cwd=tmp_path)
    write_windows(windows, tmp_path / "all.store")
    run("moments", "all.store", "-o", "all.moments")
    run("fit", "--moments", "all.moments", "--rank", 2, "-o", "m.safetensors")
    assert load(tmp_path / "m.safetensors").rank == 2
    refused = run("fit", "--moments", "all.moments", "--method", "atd", "-o", "n.safetensors", code=1)
    assert "--moments is for --method cpd" in refused.stderr
    wrong = run("fit", "all.store", "--scheduler", "tcp://127.0.0.1:1", "--method", "atd", code=1)
    assert "--scheduler is for --method cpd" in wrong.stderr
