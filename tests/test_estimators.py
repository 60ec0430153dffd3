"""ATD, SALS and GR-SALS on windows and tensors: what a fit promises, with two to four dimensions and an STFT."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import oracles
import pandas as pd
import pytest
import torch
from problems import OwnTensors, OwnView, paper
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from polyadic import ATD, CPD, GRSALS, SALS
from polyadic._util import random_streams as draws
from polyadic.augment import Augmentation, Bandpass, Compose, Jitter, Rotate3D
from polyadic.core import step as als
from polyadic.core.algebra import initial_factors
from polyadic.errors import PolyadicError
from polyadic.spectral import STFT

NUMBER = r"-?[\d.]+(e[+-]\d+)?"

TERMS = {
    "GRSALS, three dimensions": ["fit", "tikhonov", "graph"],
    "ATD, STFT, memory": ["fit", "fit augmented", "tikhonov", "self supervised"],
}


Model = CPD

SETTINGS: dict[str, Any] = {
    "rank": 3,
    "alpha": 0.01,
    "solver": "blend",
    "learning_rate": 0.5,
    "batch_size": 10,
    "max_sweeps": 3,
    "device": "cpu",
    "random_state": 4,
}
MEMORY = {"solver": "memory", "learning_rate": 0.3}
SHORT_TIME = STFT(n_fft=8, hop=4, floor="channel")
HISTORY = ["loss", "fit", "fit_augmented", "tikhonov", "self_supervised", "graph", "seconds"]


def windows(*shape: int, seed: int = 0) -> np.ndarray:
    """Three rank-one components with random coefficients, and noise."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(shape[0], 3))
    for size in shape[1:]:
        X = (
            X[:, None] * generator.normal(size=(size, 3))
            if X.ndim == 2
            else X[..., None, :] * generator.normal(size=(size, 3))
        )
    return X.sum(axis=-1) + 0.1 * generator.normal(size=shape)


def fainter(batch: Tensor) -> Tensor:
    return 0.8 * batch


def matrix(batch: Tensor) -> Tensor:
    """A custom tensorizer: squares and cubes of the windows as another mode."""
    return torch.stack([batch, batch**2, batch**3], dim=2)


FLAT, CUBE, FOUR = windows(34, 7), windows(34, 3, 40), windows(34, 4, 5, 3)
TURN = Compose([Jitter(0.2), Bandpass([(1, 20), (5, 24)], fs=50), Rotate3D([(0, 1, 2)])])

CASES: dict[str, tuple[Callable[..., Model], dict[str, Any], np.ndarray]] = {
    "CPD, two dimensions": (CPD, {}, FLAT),
    "GRSALS, three dimensions": (GRSALS, {"graph_weight": 0.5}, CUBE),
    "SALS, four dimensions, float32": (SALS, {}, FOUR.astype(np.float32)),
    "SALS, STFT, memory": (SALS, {"tensorize": SHORT_TIME, **MEMORY}, CUBE),
    "SALS, own tensors": (SALS, {"tensorize": OwnTensors(matrix)}, CUBE),
    "ATD, STFT, float32": (ATD, {"augment": TURN, "beta": 0.05, "tensorize": SHORT_TIME}, CUBE.astype(np.float32)),
    "ATD, STFT, memory": (ATD, {"augment": TURN, "beta": 0.05, "tensorize": SHORT_TIME, **MEMORY}, CUBE),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Model, np.ndarray]:
    """A model that is not fitted, and data for it."""
    kind, settings, X = CASES[request.param]
    if kind is CPD:
        plain = {"tensorize": None, "readout": None, "alpha": 0.01, "max_sweeps": 3, "random_state": 4}
        return CPD(3, device="cpu", **plain), X.copy()
    return paper(kind, **SETTINGS | settings), X.copy()


def tensors(model: Model, X: np.ndarray) -> np.ndarray:
    return X if model.tensorize_ is None else model.tensorize_(torch.tensor(X)).numpy()


def losses(model: Model) -> dict[str, list[float]]:
    """Return the history without the seconds, which are not reproducible."""
    return {name: values for name, values in model.history_.items() if name != "seconds"}


def assert_same(one: Model, other: Model, X: np.ndarray) -> None:
    """Equal to the bit in everything learned."""
    for mine, theirs in zip(one.factors_, other.factors_, strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)
    assert losses(one) == losses(other)
    assert one.tensorize_ == other.tensorize_
    assert (one.seed_, one.n_sweeps_) == (other.seed_, other.n_sweeps_)
    np.testing.assert_array_equal(one.transform(X), other.transform(X), strict=True)


# ------------------------------------------------------------------------------------------ what every fit promises


def test_fit_leaves_bases_history_and_counts(case: tuple[Model, np.ndarray]) -> None:
    model, X = case
    assert model.fit(X) is model
    T = tensors(model, X)
    assert [factor.shape for factor in model.factors_] == [(size, 3) for size in T.shape[1:]]
    assert all(type(factor) is np.ndarray and factor.dtype == X.dtype for factor in model.factors_)
    assert model.n_parameters_ == 3 * sum(T.shape[1:])
    assert list(model.history_) == HISTORY
    assert {len(values) for values in model.history_.values()} == {model.n_sweeps_} == {3}
    terms = np.sum([model.history_[name] for name in HISTORY[1:-1]], axis=0)
    np.testing.assert_allclose(model.history_["loss"], terms)
    assert model.history_["loss"][-1] < model.history_["loss"][0]
    assert model.n_features_in_ == X.shape[1]


def test_fit_transform_score_and_partial_fit_do_not_change_the_input(case: tuple[Model, np.ndarray]) -> None:
    model, X = case
    for data in (X, torch.tensor(X)):
        before = copy.deepcopy(data)
        model.fit(data)
        model.transform(data)
        model.score(data)
        model.partial_fit(data)
        assert (before == data).all()
        features = model.transform(data)
        before = copy.deepcopy(features)
        model.inverse_transform(features)
        assert (before == features).all()


def test_fitting_twice_is_equal_to_the_bit(case: tuple[Model, np.ndarray]) -> None:
    model, X = case
    other = clone(model).fit(X)
    assert_same(model.fit(X), other, X)
    other.partial_fit(X[:5])
    assert_same(model, other.fit(X), X)


def test_a_transform_in_pieces_equals_the_transform_of_the_whole(
    case: tuple[Model, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, X = case
    Z, score = model.fit(X).transform(X), model.score(X)
    monkeypatch.setattr("polyadic.estimators.base._BATCH_BYTES", 4 * tensors(model, X)[0].nbytes)
    np.testing.assert_allclose(model.transform(X), Z, rtol=0, atol=1e-4 * np.abs(Z).max())
    assert model.score(X) == pytest.approx(score, rel=1e-4)


def test_features_are_the_ridge_least_squares_solution(case: tuple[Model, np.ndarray]) -> None:
    model, X = case
    Z = model.fit(X).transform(X)
    expected = oracles.least_squares(
        tensors(model, X).astype(float), [f.astype(float) for f in model.factors_], model.alpha
    )
    np.testing.assert_allclose(Z, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_inverse_transform_is_the_sum_of_the_components(case: tuple[Model, np.ndarray]) -> None:
    model, X = case
    Z = model.fit(X).transform(X)
    back = model.inverse_transform(Z)
    assert back.shape == tensors(model, X).shape
    assert back.dtype == X.dtype
    np.testing.assert_allclose(back, oracles.reconstruct(Z, model.factors_), rtol=1e-4, atol=1e-4 * np.abs(back).max())
    from_torch = model.inverse_transform(torch.tensor(Z))
    assert isinstance(from_torch, Tensor)
    np.testing.assert_array_equal(from_torch.numpy(), back)


def test_score_is_one_minus_the_dense_relative_error(case: tuple[Model, np.ndarray]) -> None:
    model, X = case
    T = tensors(model.fit(X), X)
    error = np.linalg.norm(T - oracles.reconstruct(model.transform(X), model.factors_)) / np.linalg.norm(T)
    assert model.score(X) == pytest.approx(1 - error, abs=1e-4)
    assert isinstance(model.score(X), float)


# ----------------------------------------------------------------------------------------------------- partial_fit


def literal_step(model: Model, X: np.ndarray, state: als.State, first_id: int = 0) -> als.State:
    """One step of Algorithm 2 put together by hand from the parameters."""
    batch = torch.tensor(X)
    T = batch
    if isinstance(model, ATD) and model.augment is not None:
        ids = torch.arange(first_id, first_id + len(X))
        T = torch.cat([batch, model.augment(batch, ids, seed=model.seed_, sweep=0)])
    T = T if model.tensorize_ is None else model.tensorize_(T)
    objective = als.Objective(
        alpha=model.alpha, beta=getattr(model, "beta", 0.0), graph_weight=getattr(model, "graph_weight", 0.0)
    )
    solver, rate = getattr(model, "solver", "blend"), getattr(model, "learning_rate", 0.05)
    als.step(T, state, objective, len(T) // len(batch), solver=solver, learning_rate=rate)
    return state


def test_partial_fit_is_the_literal_step_on_each_batch_in_turn(case: tuple[Model, np.ndarray]) -> None:
    model, X = case
    assert model.partial_fit(X[:9]) is model
    shape, dtype = tensors(model, X).shape[1:], torch.tensor(X).dtype
    state = als.State(initial_factors(shape, 3, seed=4, dtype=dtype, device=torch.device("cpu")))
    for first, last in ((0, 9), (9, 13), (13, 14)):
        if first:
            model.partial_fit(X[first:last])
        literal_step(model, X[first:last], state, first)
        for mine, expected in zip(model.factors_, state.factors, strict=True):
            np.testing.assert_array_equal(mine, expected.numpy())
    assert model.n_sweeps_ == 0
    assert model.history_ == {name: [] for name in HISTORY}
    assert model.n_parameters_ == 3 * sum(shape)


# ---------------------------------------------------------------------------------------- a fit that fails


def broken(X: np.ndarray) -> np.ndarray:
    """The last window of the order of the first sweep is no number: by then most of the work is done."""
    X = X.copy()
    X[draws.permutation(len(X), seed=4, sweep=0)[-1]] = np.inf
    return X


def interrupted(batch: Tensor) -> Tensor:
    raise KeyboardInterrupt


FAILURES: dict[str, tuple[Callable[[Model, np.ndarray], object], str | None]] = {
    "infinity at the end": (lambda model, X: model.fit(broken(X)), "contains infinity"),
    "infinity in a batch": (lambda model, X: model.partial_fit(broken(X)), "contains infinity"),
    "another shape": (
        lambda model, X: model.partial_fit(np.concatenate([X, X], axis=1)),
        "expecting|must have shape",
    ),
    "wrong rank": (lambda model, X: model.set_params(rank=0).fit(X), "rank must be"),
    "no tensors": (lambda model, X: model.set_params(tensorize=OwnTensors(len)).fit(X[:, :2]), "tensorize must return"),
    "interrupt": (lambda model, X: model.set_params(tensorize=OwnTensors(interrupted)).fit(X[:, :2]), None),
}


def test_a_fit_that_fails_leaves_a_fitted_model_as_it_was(case: tuple[Model, np.ndarray]) -> None:
    fitted, X = case
    fitted.fit(X)
    twin = clone(fitted).fit(X).partial_fit(X[:4])
    for failure in FAILURES:
        assert_unchanged_by(failure, copy.deepcopy(fitted), twin, X)


def assert_unchanged_by(failure: str, model: Model, twin: Model, X: np.ndarray) -> None:
    """A fitted model is as it was after a failure, and another `partial_fit` makes it the twin that had one."""
    action, message = FAILURES[failure]
    learned = {name: value for name, value in vars(model).items() if name not in model.get_params(deep=False)}
    kept, Z = copy.deepcopy(learned), model.transform(X)
    parameters = model.get_params(deep=False)
    with pytest.raises((ValueError, KeyboardInterrupt), match=message):
        action(model, X)
    assert {name: value for name, value in vars(model).items() if name not in parameters} == learned
    for mine, before in zip(model.factors_, kept["factors_"], strict=True):
        np.testing.assert_array_equal(mine, before)
    assert model.history_ == kept["history_"]
    assert model._sample_shape == kept["_sample_shape"] == X.shape[1:]
    assert model.n_features_in_ == kept["n_features_in_"] == X.shape[1]
    assert model.tensorize_ == kept["tensorize_"]
    model.set_params(**parameters)
    np.testing.assert_array_equal(model.transform(X), Z)
    assert_same(model.partial_fit(X[:4]), twin, X)


# -------------------------------------------------------------------------- augmentations, tensorizers of one's own


def test_without_alignment_a_full_batch_fit_is_that_of_windows_and_augmented_windows_together() -> None:
    settings = SETTINGS | {"batch_size": None}
    model = paper(ATD, augment=OwnView(fainter), beta=0, **settings).fit(CUBE)
    stacked = paper(SALS, **settings).fit(np.concatenate([CUBE, 0.8 * CUBE]))
    for mine, theirs in zip(model.factors_, stacked.factors_, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-10)


def test_without_augmentation_and_alignment_atd_is_sals_to_the_bit() -> None:
    model = paper(ATD, augment=None, beta=0, **SETTINGS).fit(CUBE)
    assert_same(model, paper(SALS, **SETTINGS).fit(CUBE), CUBE)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_alignment_without_an_augmentation_is_an_error(method: str) -> None:
    with pytest.raises(PolyadicError, match=r"beta=0\.01 .* augment is None: pass an augmentation, or use CPD or SALS"):
        getattr(paper(ATD, beta=0.01, **SETTINGS), method)(CUBE)


def in_place(batch: Tensor) -> Tensor:
    return batch.abs_().add_(1.0)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_tensorizers_that_write_to_their_batch_do_not_write_to_the_input(kind: Callable[..., Any]) -> None:
    X = kind(CUBE)
    model = paper(SALS, tensorize=OwnTensors(in_place), **SETTINGS).fit(X)
    model.transform(X)
    model.score(X)
    model.partial_fit(X)
    np.testing.assert_array_equal(np.asarray(X), CUBE)


@dataclass(frozen=True)
class Recorded(Augmentation):
    """Notes which key each window got, window by window; the first sample of a window is its number."""

    keys: dict[int, list[int]] = field(default_factory=dict)

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        for number, key in zip(X[:, 0, 0].long().tolist(), keys.tolist(), strict=True):
            self.keys.setdefault(number, []).append(key)
        return 0.8 * X


def numbered() -> np.ndarray:
    X = CUBE.copy()
    X[:, 0, 0] = np.arange(len(X))
    return X


def recorded(**settings: Any) -> dict[int, list[int]]:
    augment = Recorded()
    paper(ATD, augment=augment, beta=0.0, tensorize=OwnTensors(fainter), **SETTINGS | settings).fit(numbered())
    assert sorted(augment.keys) == list(range(34))
    return augment.keys


def test_augmentation_of_a_window_does_not_depend_on_size_and_order_of_batches() -> None:
    keys = recorded(batch_size=10)
    assert recorded(batch_size=7) == recorded(batch_size=1) == recorded(batch_size=100) == keys
    assert all(len(set(row)) == 3 for row in keys.values()), "every sweep augments anew"
    assert len({row[0] for row in keys.values()}) == 34, "every window is augmented in its own way"
    assert recorded(random_state=5) != keys


# -------------------------------------------------------------------------------------------------------- the STFT


def test_the_floor_is_learned_in_fit_and_kept_for_quieter_windows() -> None:
    model = paper(SALS, tensorize=SHORT_TIME, **SETTINGS).fit(CUBE)
    assert model.tensorize == SHORT_TIME, "parameters stay as they were given"
    assert model.tensorize_ == SHORT_TIME.calibrated(torch.tensor(CUBE))
    assert np.size(model.tensorize_.floor) == 3
    floor = model.tensorize_.floor
    quiet = model.transform(1e-6 * CUBE)
    np.testing.assert_allclose(quiet, model.transform(np.zeros_like(CUBE)), atol=1e-2)
    assert model.partial_fit(100 * CUBE).tensorize_.floor == floor
    assert model.fit(100 * CUBE).tensorize_.floor != floor


def test_copies_and_pickles_give_the_same_features_and_continue_equally(
    case: tuple[Model, np.ndarray], tmp_path: Path
) -> None:
    model, X = case
    model.fit(X)
    joblib.dump(model, tmp_path / "model")
    stored = joblib.load(tmp_path / "model")
    copied = copy.deepcopy(model)
    assert_same(model, stored, X)
    for each in (model, stored, copied):
        each.partial_fit(X[:9])
    assert_same(model, stored, X)
    assert_same(model, copied, X)


def test_features_have_names_and_are_returned_as_a_data_frame_on_request(case: tuple[Model, np.ndarray]) -> None:
    model, X = case
    Z = model.fit(X).transform(X)
    names = ["x1", "x2", "x3"]
    assert list(model.get_feature_names_out()) == names
    frame = model.set_output(transform="pandas").transform(X)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == names
    np.testing.assert_array_equal(frame.to_numpy(), Z)
    np.testing.assert_array_equal(model.inverse_transform(frame), clone(model).fit(X).inverse_transform(Z))
    assert isinstance(model.transform(torch.tensor(X)), pd.DataFrame)


def test_the_same_model_comes_out_on_every_device(case: tuple[Model, np.ndarray], device: torch.device) -> None:
    model, X = case
    score = clone(model).fit(X).score(X)
    model.set_params(device=device).fit(X)
    Z = model.transform(torch.tensor(X, device=device))
    assert Z.device.type == device.type
    assert model.score(X) == pytest.approx(score, abs=1e-3)


def test_partial_fit_continues_from_a_fit_with_the_state_of_its_solver(case: tuple[Model, np.ndarray]) -> None:
    model, X = case
    model.fit(X)
    state = als.State([torch.tensor(factor) for factor in model.factors_])
    if model.solver_ == "memory":
        assert model._memory is not None
        state.memory = model._memory
    history = copy.deepcopy(model.history_)
    literal_step(model, X[:9], state, first_id=len(X))
    model.partial_fit(X[:9])
    for mine, expected in zip(model.factors_, state.factors, strict=True):
        np.testing.assert_array_equal(mine, expected.numpy())
    assert model.history_ == history


def test_a_model_that_is_not_fitted_says_so() -> None:
    for method in ("transform", "inverse_transform", "score", "save"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(SALS(), method)(CUBE)


@dataclass(frozen=True)
class Shortened(Augmentation):
    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        return X[..., :-1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"augment": Shortened()}, r"augment must return .* but \w+ returned \(\d+, 3, 39\)"),
        ({"augment": OwnView(lambda batch: None)}, "augment must return .* NoneType"),
        (
            {"tensorize": OwnTensors(lambda batch: batch[:-1])},
            r"tensorize must return a tensor of \d+ samples, but ",
        ),
        ({"tensorize": OwnTensors(lambda batch: batch.numpy())}, "tensorize must return .* ndarray"),
    ],
)
def test_a_function_of_another_shape_is_refused(settings: dict[str, Any], message: str) -> None:
    model = paper(ATD, beta=0.01, **{"augment": OwnView(fainter), **SETTINGS, **settings})
    for method in (model.fit, model.partial_fit):
        with pytest.raises(PolyadicError, match=message):
            method(CUBE)


@pytest.mark.filterwarnings("ignore:.*singular")
def test_a_function_that_makes_nan_is_an_error_and_no_model() -> None:
    for settings in (SETTINGS, SETTINGS | {"max_sweeps": 1, "batch_size": None}):
        model = paper(SALS, tensorize=OwnTensors(torch.log), **settings)
        with pytest.raises(PolyadicError, match="finite"):
            model.fit(CUBE)
        assert not hasattr(model, "factors_")


def test_partial_fit_counts_its_windows_so_that_each_is_augmented_in_its_own_way() -> None:
    augment = Recorded()
    model = paper(ATD, augment=augment, beta=0.0, **SETTINGS)
    X = numbered()
    for ids in (range(10), range(10, 30), range(30, 34)):
        model.partial_fit(X[list(ids)])
    assert augment.keys == {number: row[:1] for number, row in recorded().items()}


def two_classes(count: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Windows whose first frequency is strong in one class and weak in the other."""
    generator = np.random.default_rng(1)
    y = np.arange(count) % 2
    time = np.arange(64)
    phases = generator.uniform(0, 2 * np.pi, size=(count, 3, 1))
    X = np.where(y, 3.0, 0.5)[:, None, None] * np.sin(2 * np.pi * time / 8 + phases)
    return X + 0.3 * generator.normal(size=X.shape), y


def test_a_pipeline_from_windows_to_classes_learns() -> None:
    X, y = two_classes()
    features = paper(ATD, tensorize=STFT(n_fft=16, hop=8), augment=Jitter(0.05), beta=0.05, **SETTINGS)
    pipeline = make_pipeline(features, StandardScaler(), LogisticRegression()).fit(X[:40], y[:40])
    assert pipeline.score(X[40:], y[40:]) > 0.9
    assert pipeline[:-1].transform(X).shape == (80, 3)
    assert clone(pipeline).fit(X[:40], y[:40]).score(X[40:], y[40:]) == pipeline.score(X[40:], y[40:])


def test_a_grid_search_over_the_rank_finds_that_of_the_data() -> None:
    search = GridSearchCV(paper(SALS, **SETTINGS), {"rank": np.arange(1, 4)}, cv=3, error_score="raise").fit(FOUR)
    assert search.best_params_ == {"rank": 3}
    assert search.best_estimator_.n_parameters_ == 3 * (4 + 5 + 3)


@pytest.mark.parametrize("name", TERMS)
def test_verbose_writes_lines_with_the_loss_terms_to_standard_error_where_there_is_no_terminal(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, settings, X = CASES[name]
    model = paper(kind, **SETTINGS | settings | {"verbose": 1, "max_sweeps": 11, "tol": 0})
    model.fit(X)
    out, err = capfd.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line]  # old versions of rich add an empty one
    assert [line.split(" of at most 11, ")[0] for line in lines] == [
        f"{kind.__name__}: sweep {sweep}" for sweep in (1, 10)
    ]
    terms = r" \+ ".join(f"{term} {NUMBER}" for term in TERMS[name])
    assert all(re.search(rf"loss {NUMBER} = {terms}$", line) for line in lines)
    assert f"loss {model.history_['loss'][0]:.4g} " in lines[0]
