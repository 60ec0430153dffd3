"""The default settings from raw windows to features: front end, second moments, readout, and what each promises."""

from __future__ import annotations

import csv
import warnings

import numpy as np
import pytest
import torch
from command_line import polyadic
from polyadic.engine import second_moments
from polyadic.engine.solvers import choose_solver
from problems import paper
from sklearn.base import clone
from torchrun import written_store

from polyadic import ATD, GRSALS, SALS, export, load, plot
from polyadic.augment import Compose, Jitter, Neighbour, WindowIndex
from polyadic.cli.info import describe
from polyadic.data import Windows, synthetic
from polyadic.errors import CheckpointError, ModelFileError, PolyadicError
from polyadic.evaluate import WindowClassifier
from polyadic.explain.rank import core_consistency, suggest_rank
from polyadic.readout import Readout
from polyadic.report import write as write_report
from polyadic.spectral import STFT, recommended_stft

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(90, 3, 96)).cumsum(axis=2)
SHORT = {"max_sweeps": 3, "tol": 0.0, "device": "cpu"}


def continuous(count: int = 90, length: int = 64, channels: int = 2) -> Windows:
    """Windows of two recordings, one after the other, half overlapping."""
    signals = np.random.default_rng(1).normal(size=(2, channels, (count + 1) * length // 2)).cumsum(axis=2)
    starts = np.arange(count // 2) * length // 2
    pieces = [signal[:, start : start + length] for signal in signals for start in starts]
    names = [name for name in "ab" for _ in starts]
    return Windows(np.stack(pieces), fs=50.0, recording=names, start=np.tile(starts, 2), channels=["x", "y"][:channels])


@pytest.fixture(scope="module")
def model() -> ATD:
    return ATD(4, **SHORT).fit(X)


# -------------------------------------------------------------------- what "auto" becomes


def test_raw_windows_become_centred_log_amplitudes_and_all_else_is_a_tensor(model: ATD) -> None:
    front = model.tensorize_
    assert (front.n_fft, front.hop, front.parts) == (32, 4, "log_amplitude")
    np.testing.assert_allclose(front(torch.from_numpy(X)).mean(dim=(0, 3)), 0, atol=1e-10)
    for shape in ((30, 12), (30, 3, 4, 5)):
        tensors = np.random.default_rng(0).normal(size=shape)
        assert SALS(2, **SHORT).fit(tensors).tensorize_ is None
    with pytest.raises(PolyadicError, match="at least 32 samples, but they have 20: pass tensorize=None if X already"):
        ATD(2).fit(X[:, :, :20])
    assert GRSALS(2, **SHORT).fit(X).tensorize_.parts == "log_amplitude"


def test_frames_follow_the_sampling_rate_and_floors_the_units() -> None:
    fast, slow = (Windows(X, fs=fs) for fs in (50.0, 20.0))
    assert ATD(2, **SHORT).fit(fast).tensorize_.n_fft == 32  # half the window is less than 1.28 s
    assert ATD(2, **SHORT).fit(slow).tensorize_.n_fft == 32
    floors = ATD(2, **SHORT).fit(Windows(X * [[1.0], [1.0], [100.0]], fs=50.0, units=["g", "g", "V"])).tensorize_.floor
    assert floors[0] == floors[1] != floors[2]


def test_views_are_none_without_alignment_and_jitter_with_it() -> None:
    assert ATD(2, **SHORT).fit(X).augment_ is None
    assert ATD(2, beta=0.05, **SHORT).fit(X).augment_ == Jitter(0.05)
    with pytest.raises(PolyadicError, match=r"beta=.* but augment is None"):
        ATD(2, augment=None, beta=0.1).fit(X)


def test_a_gain_of_all_channels_of_a_unit_changes_no_feature() -> None:
    units, gains = ("g", "V", "g"), np.array([1e-6, 300.0, 1e-6])[:, None]
    first = ATD(3, **SHORT).fit(Windows(X, fs=50.0, units=units))
    second = ATD(3, **SHORT).fit(Windows(X * gains, fs=50.0, units=units))
    np.testing.assert_allclose(second.transform(X * gains), first.transform(X), rtol=1e-6, atol=1e-6)


def test_parameters_are_set_and_cloned_with_those_of_the_readout() -> None:
    model = ATD(2, readout=Readout(levels=0.5), tensorize=STFT(16, 8))
    model.set_params(readout__shrinkage=2.0, tensorize__mean="auto")
    assert model.readout == Readout(levels=0.5, shrinkage=2.0)
    assert clone(model).readout is model.readout
    with pytest.raises(PolyadicError, match=r"readout must be 'auto', None or a .*Readout, but is 'iso'"):
        ATD(2, readout="iso").fit(X)


# ---------------------------------------------------------------------------- second moments


@pytest.mark.parametrize("nonnegative", [False, True])
def test_sweeps_by_second_moments_are_those_of_the_full_batch(nonnegative: bool, monkeypatch) -> None:
    monkeypatch.setattr(second_moments, "_ROUNDS", 1)
    T = np.random.default_rng(0).normal(size=(60, 5, 4, 3))
    fits = [
        SALS(3, solver=solver, batch_size=None, nonnegative=nonnegative, max_sweeps=7, tol=0.0).fit(T)
        for solver in ("moments", "blend")
    ]
    for mine, theirs in zip(fits[0].factors_, fits[1].factors_, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-10)
    for name in ("loss", "fit", "tikhonov"):
        np.testing.assert_allclose(fits[0].history_[name], fits[1].history_[name], rtol=1e-9)


def test_second_moments_are_the_sum_of_outer_products_in_any_batches(monkeypatch) -> None:
    monkeypatch.setattr(second_moments, "_COLUMNS", 7)
    T = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 4, 5)))
    found = second_moments.SecondMoments((4, 5), torch.float64, torch.device("cpu"))
    for part in T.split(9):
        found.add(part)
    found.finish(lambda part: part)
    flat = T.flatten(1)
    torch.testing.assert_close(found.C, flat.T @ flat)
    assert found.square == pytest.approx(float(T.square().sum()))


def test_the_default_reads_the_data_twice_and_ends_no_worse_than_mini_batches(tmp_path) -> None:
    X = synthetic(400, n_channels=3, length=128, seed=2)
    fits = {solver: ATD(6, solver=solver, device="cpu").fit(X) for solver in ("auto", "blend")}
    assert (fits["auto"].solver_, fits["auto"].batch_size_) == ("moments", None)
    assert (fits["blend"].solver_, fits["blend"].batch_size_) == ("blend", 128)
    assert fits["auto"].score(X) > fits["blend"].score(X) - 0.005


def test_a_solver_that_cannot_do_it_is_refused() -> None:
    for settings in ({"beta": 0.1}, {"batch_size": 16}, {"augment": Jitter(0.1)}):
        with pytest.raises(PolyadicError, match="solver='moments' needs beta=0, no augmentation, no graph, batch_size"):
            ATD(2, solver="moments", **settings).fit(X)
    with pytest.raises(PolyadicError, match="solver='moments' needs"):
        GRSALS(2, solver="moments").fit(X)
    from polyadic.core.step import Objective

    large = (20, 129, 32)
    assert choose_solver("auto", "auto", large, 32, Objective(alpha=1e-3)) == ("blend", 128)
    assert choose_solver("auto", None, large, 32, Objective(alpha=1e-3)) == ("blend", None)
    gpu = {"device": torch.device("cuda")}
    wide = (7, 65, 31)
    assert choose_solver("auto", "auto", wide, 32, Objective(alpha=1e-3), **gpu) == ("moments", None)
    assert choose_solver("auto", "auto", wide, 32, Objective(alpha=1e-3)) == ("blend", 128)


def test_a_store_gives_the_features_of_its_array(tmp_path) -> None:
    store = written_store(tmp_path)
    first, second = (ATD(3, **SHORT).fit(data) for data in (store.windows, store))
    np.testing.assert_array_equal(second.transform(store), first.transform(store.windows))


# ---------------------------------------------------------------------------------- readout


def test_transform_is_the_readout_of_coefficients_and_levels(model: ATD) -> None:
    x, Z = model.coefficients(X), model.transform(X)
    expected = model.readout_.features(torch.from_numpy(x), torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(Z, expected, atol=1e-12)
    assert x.shape == (90, 4)
    assert Z.shape == (90, 7)
    assert Z[:, :4].var(axis=0).sum() == pytest.approx(4)
    assert list(model.get_feature_names_out()) == ["z1", "z2", "z3", "z4", "level 1", "level 2", "level 3"]
    T = model.reconstruct(x)
    # Distances between features are, up to one factor, distances between reconstructions.
    apart = [np.linalg.norm((a[:45] - a[45:]).reshape(45, -1), axis=1) for a in (Z[:, :4], T)]
    np.testing.assert_allclose(apart[0] / apart[1], (apart[0] / apart[1])[0], rtol=1e-8)


def test_features_and_coefficients_lead_back_to_the_same_tensors_with_their_mean(model: ATD) -> None:
    T = model.reconstruct(model.coefficients(X))
    np.testing.assert_allclose(model.inverse_transform(model.transform(X)), T, atol=1e-9)
    log_spectra = STFT(32, 4, parts="log_amplitude", floor=model.tensorize_.floor)(torch.from_numpy(X)).numpy()
    assert np.abs(log_spectra.mean(axis=(0, 3)) - T.mean(axis=(0, 3))).max() < 0.5 * log_spectra.std()
    centred = model.tensorize_(torch.from_numpy(X)).numpy()
    error = np.linalg.norm(log_spectra - T) / np.linalg.norm(centred)
    assert 1 - error == pytest.approx(model.score(X), abs=1e-9)
    with pytest.raises(PolyadicError, match=r"Z must have shape \(N, 7\), but has shape \(90, 4\)"):
        model.inverse_transform(model.coefficients(X))
    with pytest.raises(PolyadicError, match=r"x must have shape \(N, 4\), but has shape \(90, 7\)"):
        model.reconstruct(model.transform(X))


def test_without_a_readout_features_are_the_coefficients() -> None:
    model = ATD(3, readout=None, **SHORT).fit(X)
    np.testing.assert_array_equal(model.transform(X), model.coefficients(X))
    assert model.readout_ is None
    tensors = np.random.default_rng(0).normal(size=(40, 3, 4))
    assert SALS(2, tensorize=None, **SHORT).fit(tensors).transform(tensors).shape == (40, 2)  # a tensor has no levels


def test_another_readout_can_be_tried_without_another_fit(model: ATD) -> None:
    model = clone(model).fit(X)
    before = [factor.copy() for factor in model.factors_]
    probe = WindowClassifier(model).fit(X, np.arange(90) % 2)
    model.probe_ = probe.probe_
    model.fit_readout(X, Readout(levels=0, whiten=Jitter(0.05)))
    assert model.transform(X).shape == (90, 4)
    assert not hasattr(model, "probe_")
    for old, new in zip(before, model.factors_, strict=True):
        np.testing.assert_array_equal(old, new)


def test_components_that_moved_have_no_readout_until_it_is_fitted(model: ATD) -> None:
    model = clone(model)
    seen = []

    def look(half: ATD) -> None:
        seen.append(half.coefficients(X[:5]).shape)
        with pytest.raises(PolyadicError, match=r"call fit_readout\(X\) with unlabelled windows, or coefficients\(X\)"):
            half.transform(X[:5])

    model.fit(X, after_sweep=look)
    assert seen == [(5, 4)] * 3
    model.transform(X)
    model.partial_fit(X)
    with pytest.raises(PolyadicError, match="fit_readout"):
        model.transform(X)
    assert model.fit_readout(X).transform(X).shape == (90, 7)


def test_whitening_by_the_neighbouring_window_reads_partners() -> None:
    windows = continuous()
    model = SALS(3, readout=Readout(whiten=Neighbour()), **SHORT).fit(windows)
    plain = SALS(3, readout=Readout(), **SHORT).fit(windows)
    index = Neighbour().partners(WindowIndex.of(windows), torch.arange(90))
    has = (index >= 0).numpy()
    assert has.sum() == 86  # the last two of each recording have none
    z = plain.transform(windows)[:, :3]
    apart = z[index[has].numpy()] - z[has]
    S = apart.T @ apart / has.sum()
    values, vectors = np.linalg.eigh(S + np.trace(S) / 3 * np.eye(3))
    white = z @ (vectors * values**-0.5) @ vectors.T
    white *= np.sqrt(3 / white.var(axis=0).sum())
    np.testing.assert_allclose(model.transform(windows)[:, :3], white, atol=1e-6)
    with pytest.raises(PolyadicError, match="which plain arrays do not have"):
        SALS(3, readout=Readout(whiten=Neighbour()), **SHORT).fit(X)
    with pytest.raises(PolyadicError, match="at least 2·rank = 60 pairs"):
        SALS(30, readout=Readout(whiten=Neighbour()), **SHORT).fit(windows[:40])


def test_a_neighbour_may_be_the_second_view_of_a_fit() -> None:
    windows = continuous()
    views = {"neighbour": Neighbour(), "and noise": Compose([Neighbour(), Jitter(0.1)]), "noise": Jitter(0.1)}
    fits = {name: ATD(3, augment=augment, beta=0.05, **SHORT).fit(windows) for name, augment in views.items()}
    assert len({fit.history_["fit_augmented"][0] for fit in fits.values()}) == 3
    with pytest.raises(PolyadicError, match="which plain arrays do not have"):
        ATD(3, augment=Neighbour(), beta=0.05, **SHORT).fit(X)


def test_numbers_are_counted_as_the_design_says(model: ATD) -> None:
    factors = sum(factor.size for factor in model.factors_)
    assert model.n_parameters_ == factors + 3 * 17 + (16 + 4) + 2 * 3
    assert ATD(4, readout=None, **SHORT).fit(X).n_parameters_ == factors + 3 * 17


def test_distances_and_residuals_of_the_windows_are_kept(model: ATD) -> None:
    Z = model.transform(X)
    distances, residuals = model.readout_.quantiles
    assert distances[-1] == pytest.approx(np.linalg.norm(Z, axis=1).max())
    T, x = model.tensorize_(torch.from_numpy(X)).numpy(), model.coefficients(X)
    K = np.einsum("ir,jr,kr->ijkr", *(np.asarray(factor, float) for factor in model.factors_))
    squares = ((T - np.einsum("ijkr,nr->nijk", K, x)) ** 2).sum(axis=(1, 2, 3))
    assert residuals[0] == pytest.approx(np.median(squares), rel=1e-6)
    assert residuals[-1] == pytest.approx(squares.max(), rel=1e-6)


# ------------------------------------------------------------------------------------ files


def test_a_file_holds_front_end_and_readout(model: ATD, tmp_path) -> None:
    model.save(tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(
        again.inverse_transform(model.transform(X)), model.inverse_transform(model.transform(X))
    )
    assert again.tensorize_ == model.tensorize_
    for name in ("solver_", "batch_size_", "nonnegative_", "augment_"):
        assert getattr(again, name) == getattr(model, name)
    assert again.get_params(deep=False) == model.get_params(deep=False)
    assert list(again.get_feature_names_out()) == list(model.get_feature_names_out())
    half = clone(model).partial_fit(X)
    half.save(tmp_path / "half.safetensors")
    with pytest.raises(PolyadicError, match="fit_readout"):
        load(tmp_path / "half.safetensors").transform(X)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, header: arrays.pop("readout.matrix"),
        lambda arrays, header: arrays.update({"readout.matrix": np.eye(5)}),
        lambda arrays, header: arrays.update({"readout.centre": np.full(4, np.nan)}),
        lambda arrays, header: header.update(readout=None),
        lambda arrays, header: header.update(readout="yes"),
        lambda arrays, header: header["tensorize"].update(mean=[[1.0]]),
        lambda arrays, header: header["tensorize"].update(mean="auto"),
    ],
)
def test_a_damaged_readout_is_refused(change, model: ATD, tmp_path) -> None:
    from polyadic._util import model_files

    model.save(tmp_path / "m.safetensors")
    arrays, header = model_files.read(tmp_path / "m.safetensors")
    del header["schema"]
    change(arrays, header)
    model_files.write(tmp_path / "m.safetensors", arrays, header)
    with pytest.raises(ModelFileError):
        load(tmp_path / "m.safetensors")


def test_files_of_the_schema_before_have_no_readout_and_signed_bases(tmp_path) -> None:
    from polyadic._util import model_files

    old = paper(ATD, 3, tensorize=STFT(16, 8, floor="channel"), augment=Jitter(0.1), beta=0.05, **SHORT).fit(X)
    old.save(tmp_path / "m.safetensors")
    arrays, header = model_files.read(tmp_path / "m.safetensors")
    for name in ("readout", "nonnegative"):
        del header["parameters"][name]
    del header["readout"], header["parameters"]["tensorize"]["mean"], header["tensorize"]["mean"]
    header["parameters"]["tensorize"]["floor"] = "auto"
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(model_files, "SCHEMA", 2)
        del header["schema"]
        model_files.write(tmp_path / "m.safetensors", arrays, header)
    again = load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.transform(X), old.transform(X))
    assert (again.readout, again.nonnegative, again.tensorize.floor) == (None, False, "channel")


def test_a_fit_stopped_after_its_last_sweep_resumes_with_the_readout_alone(tmp_path, monkeypatch) -> None:
    from polyadic.engine import cp_model, loop

    expected = ATD(4, **SHORT).fit(X)
    with monkeypatch.context() as patch:
        patch.setattr(cp_model, "fit_readout", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ATD(4, **SHORT).fit(X, checkpoint=tmp_path / "c")
    monkeypatch.setattr(loop.Fit, "_sweep", lambda *_: pytest.fail("a sweep was done again"))
    monkeypatch.setattr(loop.Fit, "_second_moments", lambda *_: pytest.fail("the data was read for moments again"))
    resumed = ATD(4, **SHORT).fit(X, checkpoint=tmp_path / "c", resume=True)
    np.testing.assert_array_equal(resumed.transform(X), expected.transform(X))
    with pytest.raises(CheckpointError, match="belongs to another fit"):
        ATD(4, nonnegative=False, **SHORT).fit(X, checkpoint=tmp_path / "c", resume=True)


# ------------------------------------------------------------------ more features than components


def test_everything_works_where_features_are_not_as_many_as_components(tmp_path) -> None:
    windows = synthetic(120, n_channels=3, length=96)
    windows = Windows(windows.X, fs=64.0, label=windows.label, channels=["a", "b", "c"], classes=windows.classes)
    classifier = WindowClassifier(ATD(3, **SHORT)).fit(windows)
    model = classifier.features_
    assert model.transform(windows).shape == (120, 6)
    write_report(tmp_path / "report.html", model, windows)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert plot.components(model) is not None
    x, T = model.coefficients(windows), model.tensorize_(torch.from_numpy(windows.X))
    assert core_consistency(T, [x, *model.factors_]) <= 100
    assert suggest_rank(windows, [1, 2], tensorize=model.tensorize_, n_windows=40, refits=2).rank in (1, 2)
    assert export.to_tensorly(model, windows).factors[0].shape == (120, 3)
    like = export.from_tensorly(export.to_tensorly(model), like=model)
    np.testing.assert_allclose(like.coefficients(windows), x, atol=1e-4)
    np.testing.assert_allclose(like.fit_readout(windows).transform(windows), model.transform(windows), atol=1e-3)
    classifier.save(tmp_path / "m.safetensors")
    again = WindowClassifier.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict_proba(windows), classifier.predict_proba(windows))
    np.savez(tmp_path / "w.npz", X=windows.X, fs=64.0, channels=["a", "b", "c"])
    polyadic("transform", "m.safetensors", "w.npz", "-o", "f.csv", cwd=tmp_path)
    with (tmp_path / "f.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    written = np.array([[float(row[name]) for name in model.get_feature_names_out()] for row in rows])
    assert list(model.get_feature_names_out())[-3:] == ["level a", "level b", "level c"]
    np.testing.assert_allclose(written, model.transform(windows), rtol=1e-4, atol=1e-4)


def test_onnx_has_centring_readout_levels_and_probe(tmp_path) -> None:
    pytest.importorskip("onnxruntime")
    windows = synthetic(160, n_channels=3, length=96)
    shifted = (windows.X + np.array([[3.0], [0.0], [-1.0]]) * RANDOM.normal(size=(160, 1, 1))).astype(np.float32)
    windows = Windows(shifted, fs=64.0, label=windows.label, classes=windows.classes)
    classifier = WindowClassifier(ATD(4, **SHORT)).fit(windows)
    classifier.save(tmp_path / "m.safetensors")
    model = load(tmp_path / "m.safetensors")
    export.onnx(model, tmp_path / "m.onnx")
    written = export.Features(tmp_path / "m.onnx")
    assert written.n_features == 7
    export.onnx(classifier.features_, tmp_path / "again.onnx", probe=classifier)
    assert export.Features(tmp_path / "again.onnx").classes == written.classes
    assert describe(tmp_path / "m.safetensors")["parameters"] == model.n_parameters_
    np.testing.assert_allclose(written(windows.X), model.transform(windows), atol=2e-4)
    np.testing.assert_allclose(written.probabilities(windows.X), classifier.predict_proba(windows), atol=1e-4)


def test_defaults_give_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ATD(4, device="cpu").fit(synthetic(200, n_channels=2, length=128))
    assert recommended_stft(128, 64.0).mean == "auto"
