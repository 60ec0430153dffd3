"""Every kind of array is accepted and returned as the same kind; invalid input is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import paper
from scipy import sparse

from polyadic import ATD, CPD, GRSALS, SALS
from polyadic.augment import Jitter
from polyadic.data.batches import Samples
from polyadic.errors import PolyadicError
from polyadic.spectral import STFT

SETTINGS: dict[str, Any] = {
    "rank": 2,
    "solver": "blend",
    "learning_rate": 0.5,
    "batch_size": 8,
    "max_sweeps": 2,
    "device": "cpu",
}


def whole_numbers(*shape: int) -> np.ndarray:
    """Numbers that every type holds exactly, so that all kinds of input must give the same model."""
    return np.random.default_rng(0).integers(0, 100, size=shape).astype(np.float64)


WINDOWS = whole_numbers(20, 3, 8)


def on_disk(tmp_path: Path, array: np.ndarray) -> np.memmap:
    path = tmp_path / "X.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


# ------------------------------------------------------------------------------------------------- kinds that go in


def swapped(array: np.ndarray) -> np.ndarray:
    """The same values in memory of another order, neither C nor Fortran."""
    return np.ascontiguousarray(array.swapaxes(0, 2)).swapaxes(0, 2)


def read_only(array: np.ndarray) -> np.ndarray:
    frozen = array.copy()
    frozen.flags.writeable = False
    return frozen


NUMPY_KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": lambda X: X.tolist(),
    "float32": lambda X: X.astype(np.float32),
    "float16": lambda X: X.astype(np.float16),
    "int16": lambda X: X.astype(np.int16),
    "big-endian float": lambda X: X.astype(">f8"),
    "axes swapped": swapped,
    "read-only": read_only,
}
WIDE = ("list", "big-endian float", "axes swapped", "read-only")


@pytest.mark.parametrize("kind", NUMPY_KINDS)
def test_numpy_in_any_type_order_and_layout_gives_the_same_features_as_numpy(kind: str) -> None:
    X = NUMPY_KINDS[kind](WINDOWS)
    expected = np.float64 if kind in WIDE else np.float32
    reference = paper(SALS, **SETTINGS).fit_transform(WINDOWS.astype(expected))
    model = paper(SALS, **SETTINGS).fit(X)
    Z = model.transform(X)
    assert isinstance(Z, np.ndarray)
    assert Z.dtype == expected
    assert model.factors_[0].dtype == expected
    np.testing.assert_allclose(Z, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int16])
def test_torch_in_gives_torch_out_on_its_device(dtype: torch.dtype, device: torch.device) -> None:
    X = torch.tensor(WINDOWS).to(device, dtype)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    Z = paper(SALS, **SETTINGS | {"device": "auto"}).fit_transform(X)
    assert isinstance(Z, torch.Tensor)
    assert Z.dtype == expected
    assert Z.device.type == device.type
    reference = paper(SALS, **SETTINGS).fit_transform(WINDOWS.astype(str(expected).removeprefix("torch.")))
    np.testing.assert_allclose(Z.cpu().numpy(), reference, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["<f8", ">i2"])
def test_a_read_only_memory_map_is_read_batch_by_batch(dtype: str, tmp_path: Path) -> None:
    X = on_disk(tmp_path, WINDOWS.astype(dtype))
    samples = Samples(X)
    assert isinstance(samples.data, np.memmap), "the whole file must not be converted at once"
    kind = np.float64 if dtype == "<f8" else np.float32
    expected = paper(SALS, **SETTINGS).fit_transform(WINDOWS.astype(kind))
    np.testing.assert_allclose(paper(SALS, **SETTINGS).fit_transform(X), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(X, WINDOWS)


def test_a_data_frame_gives_its_column_names_to_the_model() -> None:
    frame = pd.DataFrame(whole_numbers(12, 3), columns=["x", "y", "z"])
    model = paper(SALS, **SETTINGS).fit(frame)
    assert list(model.feature_names_in_) == ["x", "y", "z"]
    np.testing.assert_array_equal(model.transform(frame), paper(SALS, **SETTINGS).fit_transform(frame.to_numpy()))
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame.rename(columns={"z": "w"}))


# --------------------------------------------------------------------------------------------------- input refused


def with_value(value: float) -> np.ndarray:
    X = WINDOWS.copy()
    X[13, 1, 2] = value
    return X


BAD_VALUES = [(np.nan, "NaN"), (np.inf, "infinity")]
METHODS = ["fit", "partial_fit", "transform"]


def call(method: str, X: Any, **settings: Any) -> Any:
    """A method of a model that, where the method needs it, was fitted before."""
    model = paper(SALS, **SETTINGS | settings)
    if method == "transform":
        model.fit(WINDOWS)
    return getattr(model, method)(X)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("value", "word"), BAD_VALUES)
def test_nan_and_infinity_are_refused_with_the_number_of_the_sample(method: str, value: float, word: str) -> None:
    message = rf"X must be finite.*, but sample 13 contains {word}"
    if word == "NaN" and method == "transform":  # missing, of which the paper's models know nothing
        message = "X has missing values, but the model does not know the distribution of coefficients"
    with pytest.raises(PolyadicError, match=message):
        call(method, with_value(value))


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "one dimension": (WINDOWS[0, 0], PolyadicError, r"X must have at least two dimensions.* has shape \(8,\)"),
    "no samples": (WINDOWS[:0], PolyadicError, r"Found X with 0 sample\(s\) \(shape=\(0, 3, 8\)\) .* minimum of 1"),
    "no channels": (WINDOWS[:, :0], PolyadicError, r"Found X with 0 feature\(s\) \(shape=\(20, 0, 8\)\)"),
    "complex": (WINDOWS * 1j, PolyadicError, "Complex data not supported: X has type complex128, real numbers"),
    "strings": (WINDOWS.astype(str), PolyadicError, "X must hold numbers, but has type <U"),
    "objects": (np.full((4, 3), "a", dtype=object), ValueError, "X must hold numbers, but has type object"),
    "ragged": ([[1.0, 2.0], [3.0]], PolyadicError, "X must be an array of samples of one shape"),
    "sparse": (sparse.eye_array(4).tocsr(), TypeError, "Sparse data was passed for X, but dense data is required"),
    "sparse torch": (torch.eye(4).to_sparse(), TypeError, r"X must be a dense tensor, but has layout torch\.sparse"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_input_that_is_not_a_numeric_array_is_refused_by_name(what: str) -> None:
    X, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        call("fit", X)


@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame], ids=["array", "data frame"])
def test_one_recording_is_not_taken_for_windows(kind: Callable[..., Any]) -> None:
    recording = np.random.default_rng(0).normal(size=(128, 9))
    with pytest.raises(PolyadicError, match=r"windows \(N, channels, time\), but has shape \(128, 9\): cut one"):
        CPD(rank=2).fit(kind(recording))
    assert CPD(rank=2, tensorize=None).fit(kind(recording)).factors_[0].shape == (9, 2)


@pytest.mark.parametrize("shape", [(5, 3, 9), (5, 4, 8)])
def test_after_fit_another_number_of_channels_or_samples_is_refused(shape: tuple[int, ...]) -> None:
    model = paper(SALS, tensorize=STFT(n_fft=4, hop=2), **SETTINGS).fit(WINDOWS)
    for method in (model.transform, model.score, model.partial_fit):
        with pytest.raises(ValueError, match=r"X must have shape \(N, 3, 8\) as in fit, but has shape \(5, "):
            method(np.ones(shape))


# ---------------------------------------------------------------------------------------------- parameters refused

AT_LEAST_0, WHOLE = "must be a number of at least 0, but is", "must be a whole number >= 1, but is"
WRONG_PARAMETERS: list[tuple[type[SALS] | type[ATD] | type[GRSALS], str, Any, str]] = [
    *((SALS, name, value, WHOLE) for name, value in (("rank", 0), ("max_sweeps", 1.5), ("restarts", 0))),
    *((SALS, "batch_size", value, "must be a whole number >= 1 or None, but is") for value in (0, "all")),
    *((SALS, "alpha", value, AT_LEAST_0) for value in (-1, "a", np.nan)),
    (SALS, "learning_rate", 1.1, "must be a number of at least 0 and at most 1, but is"),
    (SALS, "solver", "sgd", "must be 'blend' or 'memory', but is"),
    (SALS, "tensorize", "stft", "must be None, a Tensorizer such as STFT or a function of a batch"),
    (SALS, "random_state", 1.5, "must be an integer, a numpy RandomState or None, but is"),
    (SALS, "device", "gpu", "must be 'auto', 'cpu' or an available"),
    (ATD, "beta", -1, AT_LEAST_0),
    (ATD, "gamma", np.inf, "must be a number of at least 0 and at most"),
    (ATD, "rounds", 0, WHOLE),
    (ATD, "augment", "jitter", "must be None, an Augmentation such as .* or a function of a batch, but is"),
    (GRSALS, "graph_weight", -1, AT_LEAST_0),
]


@pytest.mark.parametrize(("kind", "name", "value", "message"), WRONG_PARAMETERS)
def test_the_error_for_a_wrong_parameter_names_it_its_value_and_what_was_expected(
    kind: type, name: str, value: Any, message: str
) -> None:
    settings = SETTINGS | ({"augment": Jitter(0.1)} if kind is ATD else {}) | {name: value}
    model = paper(kind, **settings)
    with pytest.raises(PolyadicError) as caught:
        model.fit(WINDOWS)
    assert str(caught.value).startswith(name)
    assert repr(value) in str(caught.value)
    caught.match(message)
