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

from polyadic import ATD, GRSALS, SALS
from polyadic.data.samples import Samples, choose_device
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
CPU = torch.device("cpu")


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


def spread(array: np.ndarray) -> np.ndarray:
    """The same values with gaps between them."""
    wide = np.zeros((2 * len(array), *array.shape[1:], 3), array.dtype)
    wide[::2, ..., 1] = array
    return wide[::2, ..., 1]


def read_only(array: np.ndarray) -> np.ndarray:
    frozen = array.copy()
    frozen.flags.writeable = False
    return frozen


NUMPY_KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": lambda X: X.tolist(),
    "float64": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "float16": lambda X: X.astype(np.float16),
    "longdouble": lambda X: X.astype(np.longdouble),
    "int8": lambda X: X.astype(np.int8),
    "int16": lambda X: X.astype(np.int16),
    "int64": lambda X: X.astype(np.int64),
    "uint8": lambda X: X.astype(np.uint8),
    "uint16": lambda X: X.astype(np.uint16),
    "uint32": lambda X: X.astype(np.uint32),
    "uint64": lambda X: X.astype(np.uint64),
    "big-endian float": lambda X: X.astype(">f8"),
    "big-endian int16": lambda X: X.astype(">i2"),
    "objects that are numbers": lambda X: X.astype(object),
    "Fortran order": lambda X: np.asfortranarray(X),
    "axes swapped": swapped,
    "with gaps": spread,
    "backwards": lambda X: X[::-1, :, ::-1].copy()[::-1, :, ::-1],
    "read-only": read_only,
}
WIDE = ("float64", "list", "longdouble", "big-endian float", "objects that are numbers", "Fortran order")
WIDE += ("axes swapped", "with gaps", "backwards", "read-only")


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


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int16, torch.int64, torch.uint8, torch.uint16],
)
def test_torch_in_gives_torch_out_on_its_device(dtype: torch.dtype, device: torch.device) -> None:
    X = torch.tensor(WINDOWS).to(device, dtype)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    Z = paper(SALS, **SETTINGS | {"device": "auto"}).fit_transform(X)
    assert isinstance(Z, torch.Tensor)
    assert Z.dtype == expected
    assert Z.device.type == device.type
    reference = paper(SALS, **SETTINGS).fit_transform(WINDOWS.astype(str(expected).removeprefix("torch.")))
    np.testing.assert_allclose(Z.cpu().numpy(), reference, rtol=1e-3, atol=1e-3)


def test_booleans_are_zeros_and_ones() -> None:
    X = WINDOWS > 50
    expected = paper(SALS, **SETTINGS).fit_transform(X.astype(np.float32))
    np.testing.assert_array_equal(paper(SALS, **SETTINGS).fit_transform(X), expected)
    np.testing.assert_array_equal(paper(SALS, **SETTINGS).fit_transform(torch.tensor(X)).numpy(), expected)


def test_a_tensor_that_is_not_contiguous_gives_the_same_features() -> None:
    X = torch.tensor(WINDOWS)
    strided = X.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not strided.is_contiguous()
    for model in (paper(SALS, **SETTINGS), paper(SALS, tensorize=STFT(n_fft=4, hop=2), **SETTINGS)):
        expected = model.fit_transform(X)
        torch.testing.assert_close(model.fit_transform(strided), expected, rtol=1e-10, atol=1e-10)


def test_a_tensor_that_requires_grad_gives_features_without_a_graph() -> None:
    X = torch.tensor(WINDOWS, requires_grad=True)
    model = paper(SALS, tensorize=STFT(n_fft=4, hop=2), **SETTINGS)
    Z = model.fit_transform(X)
    assert not Z.requires_grad
    assert X.grad is None
    assert X.requires_grad
    torch.testing.assert_close(Z, model.transform(X.detach()))
    assert not model.inverse_transform(Z.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<i2", ">i2", "<u2"])
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


def test_a_list_of_tensors_is_a_stack_of_samples() -> None:
    Z = paper(SALS, **SETTINGS).fit_transform([torch.tensor(window) for window in WINDOWS])
    np.testing.assert_array_equal(Z, paper(SALS, **SETTINGS).fit_transform(WINDOWS))


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, np.asfortranarray])
@pytest.mark.parametrize("ids", [slice(2, 5), slice(None), torch.tensor([7, 0, 7])])
def test_take_returns_the_given_samples_in_the_requested_type(kind: Callable[..., Any], ids: Any) -> None:
    batch = Samples(kind(WINDOWS)).take(ids, CPU, torch.float32)
    assert batch.dtype == torch.float32
    rows = ids if isinstance(ids, slice) else ids.numpy()
    np.testing.assert_array_equal(batch.numpy(), WINDOWS[rows])


# --------------------------------------------------------------------------------------------------- input refused


def with_value(value: float) -> np.ndarray:
    X = WINDOWS.copy()
    X[13, 1, 2] = value
    return X


BAD_VALUES = [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")]
METHODS = ["fit", "partial_fit", "transform", "score"]


def call(method: str, X: Any, **settings: Any) -> Any:
    """A method of a model that, where the method needs it, was fitted before."""
    model = paper(SALS, **SETTINGS | settings)
    if method in ("transform", "score"):
        model.fit(WINDOWS)
    return getattr(model, method)(X)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("value", "word"), BAD_VALUES)
@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_nan_and_infinity_are_refused_with_the_number_of_the_sample(
    method: str, value: float, word: str, kind: Callable[..., Any]
) -> None:
    with pytest.raises(PolyadicError, match=rf"X must be finite, but sample 13 contains {word}"):
        call(method, kind(with_value(value)))


def test_the_sample_number_of_a_nan_is_right_in_a_later_piece_of_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    model = paper(SALS, **SETTINGS).fit(WINDOWS)
    monkeypatch.setattr("polyadic.estimators._BATCH_BYTES", 5 * WINDOWS[0].nbytes)
    with pytest.raises(PolyadicError, match="sample 13 contains NaN"):
        model.transform(with_value(np.nan))


def test_nan_among_features_is_refused_under_their_own_name() -> None:
    model = paper(SALS, **SETTINGS).fit(WINDOWS)
    with pytest.raises(PolyadicError, match=r"^Z must be finite, but sample 1 contains NaN \(Input Z"):
        model.inverse_transform([[1.0, 2.0], [np.nan, 0.0]])


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "one dimension": (WINDOWS[0, 0], PolyadicError, r"X must have at least two dimensions.* has shape \(8,\)"),
    "a number": (3.0, PolyadicError, r"X must have at least two dimensions.* has shape \(\)"),
    "nothing": (None, PolyadicError, r"X must have at least two dimensions.* has shape \(\)"),
    "no samples": (WINDOWS[:0], PolyadicError, r"Found X with 0 sample\(s\) \(shape=\(0, 3, 8\)\) .* minimum of 1"),
    "no channels": (WINDOWS[:, :0], PolyadicError, r"Found X with 0 feature\(s\) \(shape=\(20, 0, 8\)\)"),
    "no time": (torch.zeros(4, 3, 0), PolyadicError, r"Found X with 0 feature\(s\) \(shape=\(4, 3, 0\)\)"),
    "complex": (WINDOWS * 1j, PolyadicError, "Complex data not supported: X has type complex128, real numbers"),
    "complex torch": (torch.tensor(WINDOWS * 1j), PolyadicError, r"Complex data not supported: X has type torch\.comp"),
    "strings": (WINDOWS.astype(str), PolyadicError, "X must hold numbers, but has type <U"),
    "dates": (WINDOWS.astype("M8[s]"), PolyadicError, r"X must hold numbers, but has type datetime64\[s\]"),
    "records": (np.zeros(4, dtype=[("a", "f8")]), PolyadicError, "X must hold numbers, but has type"),
    "objects": (np.full((4, 3), "a", dtype=object), ValueError, "X must hold numbers, but has type object"),
    "dicts": ([[{}, {}], [{}, {}]], TypeError, "X must hold numbers, but has type object"),
    "ragged": ([[1.0, 2.0], [3.0]], PolyadicError, "X must be an array of samples of one shape"),
    "sparse": (sparse.eye_array(4).tocsr(), TypeError, "Sparse data was passed for X, but dense data is required"),
    "sparse torch": (torch.eye(4).to_sparse(), TypeError, r"X must be a dense tensor, but has layout torch\.sparse"),
}


@pytest.mark.parametrize("method", ["fit", "transform"])
@pytest.mark.parametrize("what", REFUSED)
def test_input_that_is_not_a_numeric_array_is_refused_by_name(what: str, method: str) -> None:
    X, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        call(method, X)


STFT_REFUSED: dict[str, tuple[Any, str]] = {
    "too short for n_fft": (WINDOWS, r"windows of at least n_fft=16 samples, but they have 8 \(shape \(.*3, 8\)\)"),
    "two dimensions": (WINDOWS[:, 0], r"X must .*three dimensions \(windows, channels, time\).* shape \(.*8\)"),
    "four dimensions": (WINDOWS[..., None], r"X must .*three dimensions .* shape \(.*3, 8, 1\)"),
}


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("what", STFT_REFUSED)
def test_the_error_for_windows_that_an_stft_cannot_take_says_what_was_expected(what: str, method: str) -> None:
    X, message = STFT_REFUSED[what]
    with pytest.raises(PolyadicError, match=message):
        call(method, X, tensorize=STFT(n_fft=16, hop=4))


@pytest.mark.parametrize("tensorize", [None, STFT(n_fft=4, hop=2)])
@pytest.mark.parametrize("method", ["transform", "score", "partial_fit"])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 3, 9), r"X must have shape \(N, 3, 8\) as in fit, but has shape \(5, 3, 9\)"),
        ((5, 3), r"X must have shape \(N, 3, 8\) as in fit, but has shape \(5, 3\)"),
        ((5, 3, 8, 1), r"X must have shape \(N, 3, 8\) as in fit, but has shape \(5, 3, 8, 1\)"),
        ((5, 4, 8), r"X must have shape \(N, 3, 8\) as in fit, but has shape \(5, 4, 8\)"),
        ((5, 128), r"X must have shape \(N, 3, 8\) as in fit, but has shape \(5, 128\)"),
    ],
)
def test_after_fit_another_number_of_channels_samples_or_dimensions_is_refused(
    tensorize: STFT | None, method: str, shape: tuple[int, ...], message: str
) -> None:
    model = paper(SALS, tensorize=tensorize, **SETTINGS).fit(WINDOWS)
    for kind in (np.asarray, torch.tensor):
        with pytest.raises(ValueError, match=message):
            getattr(model, method)(kind(np.ones(shape)))


@pytest.mark.parametrize("shape", [(4, 3), (4,), (4, 2, 1)])
def test_features_of_another_rank_are_refused_by_inverse_transform(shape: tuple[int, ...]) -> None:
    model = paper(SALS, **SETTINGS).fit(WINDOWS)
    with pytest.raises(PolyadicError, match="Z must have"):
        model.inverse_transform(np.ones(shape))


def test_numbers_too_large_for_float32_are_refused_and_fit_in_float64() -> None:
    for X in (1e25 * WINDOWS, 1e25 * WINDOWS[:, 0]):
        for settings in (SETTINGS, SETTINGS | {"max_sweeps": 1, "batch_size": None}):
            with pytest.raises(PolyadicError, match=r"finite.*float64"):
                paper(SALS, **settings).fit(X.astype(np.float32))
        assert np.isfinite(paper(SALS, **SETTINGS).fit(X).factors_[0]).all()


# ---------------------------------------------------------------------------------------------- parameters refused

WHOLE = r"must be a whole number >= 1, but is"
WRONG_PARAMETERS: list[tuple[type[SALS] | type[ATD] | type[GRSALS], str, Any, str]] = [
    *((SALS, name, value, WHOLE) for name in ("rank", "max_sweeps", "patience", "restarts") for value in (0, 1.5)),
    (SALS, "rank", True, WHOLE),
    *((SALS, "batch_size", value, "must be a whole number >= 1 or None, but is") for value in (0, 2.0, "all", True)),
    *(
        (SALS, name, value, "must be a number of at least 0, but is")
        for name in ("alpha", "tol")
        for value in (-1, "a")
    ),
    *((SALS, "alpha", value, "must be a number of at least 0, but is") for value in (np.nan, None, True)),
    *((SALS, "learning_rate", value, "must be a number of at least 0 and at most 1, but is") for value in (-0.1, 1.1)),
    (SALS, "learning_rate", None, "must be a number of at least 0 and at most 1, but is"),
    *((SALS, "solver", value, "must be 'auto', 'blend' or 'memory', but is") for value in ("sgd", "moments", None)),
    *(
        (
            SALS,
            "tensorize",
            value,
            "must be None, a Tensorizer such as STFT, a torch module or a function of a batch, but is",
        )
        for value in ("stft", 3)
    ),
    *((SALS, "random_state", value, "must be an integer, a numpy RandomState or None, but is") for value in ("a", 1.5)),
    (SALS, "random_state", np.random.default_rng(0), "must be an integer, a numpy RandomState or None, but is"),
    *((SALS, "verbose", value, "must be a whole number >= 0, but is") for value in ("loud", -1)),
    *((SALS, "device", value, "must be 'auto', 'cpu' or an available") for value in ("gpu", None, "meta")),
    *((ATD, "beta", value, "must be a number of at least 0, but is") for value in (-1, "a", np.nan)),
    *((ATD, "gamma", value, "must be a number of at least 0 and at most") for value in (-1, "a", np.inf)),
    *((ATD, "rounds", value, WHOLE) for value in (0, 1.5, None)),
    *(
        (ATD, "augment", value, "must be None, an Augmentation or a function of a batch, but is")
        for value in ("jitter", 3, [abs])
    ),
    *((GRSALS, "graph_weight", value, "must be a number of at least 0, but is") for value in (-1, "a", None)),
    *((GRSALS, "graph", value, "must be 'complete' or an .N, N. array of weights, but is") for value in ("ring", None)),
]


def itself(batch: torch.Tensor) -> torch.Tensor:
    return batch


@pytest.mark.parametrize(("kind", "name", "value", "message"), WRONG_PARAMETERS)
def test_the_error_for_a_wrong_parameter_names_it_its_value_and_what_was_expected(
    kind: type, name: str, value: Any, message: str
) -> None:
    settings = SETTINGS | ({"augment": itself} if kind is ATD else {}) | {name: value}
    model = paper(kind, **settings)
    with pytest.raises(PolyadicError) as caught:
        model.fit(WINDOWS)
    assert str(caught.value).startswith(name)
    assert repr(value) in str(caught.value)
    caught.match(message)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rank", np.int64(2)),
        ("alpha", 0),
        ("alpha", np.float32(0.5)),
        ("learning_rate", 1),
        ("tol", 0),
        ("batch_size", np.int32(7)),
        ("learning_rate", np.float32(0.25)),
        ("max_sweeps", np.int16(2)),
        ("verbose", False),
        ("random_state", np.uint8(3)),
        ("random_state", -5),
        ("device", torch.device("cpu")),
    ],
)
def test_numpy_numbers_and_limits_are_taken_as_parameters(name: str, value: Any) -> None:
    assert paper(SALS, **SETTINGS | {name: value}).fit_transform(WINDOWS).shape == (20, 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", 0, torch.device("cuda")])
def test_a_device_that_is_not_there_is_refused_by_name(device: Any) -> None:
    model = paper(SALS, **SETTINGS).fit(WINDOWS).set_params(device=device)
    for method in (model.fit, model.transform, model.score, model.partial_fit):
        with pytest.raises(PolyadicError, match=r"device must be 'auto', 'cpu' or an available torch device, but"):
            method(WINDOWS)


def test_auto_is_the_accelerator_of_the_data_or_any_available_one(device: torch.device) -> None:
    anywhere = "cuda" if torch.cuda.is_available() else "cpu"
    assert choose_device("auto").type == anywhere
    assert choose_device("auto", np.ones(3)).type == anywhere
    assert choose_device("auto", torch.ones(3, device=device)).type == anywhere
    assert choose_device(device, torch.ones(3)) == device


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda T: T * float("nan"), "must return finite real numbers, but .*returned NaN or infinity"),
        (lambda T: T.to(torch.complex64), "must return finite real numbers, but .*returned type torch.complex64"),
    ],
)
def test_results_of_user_functions_are_checked(broken, message) -> None:
    with pytest.raises(PolyadicError, match=f"tensorize {message}"):
        paper(SALS, tensorize=broken, **SETTINGS).fit(WINDOWS)
    with pytest.raises(PolyadicError, match=f"augment {message}"):
        paper(ATD, augment=broken, beta=0.0, **SETTINGS).fit(WINDOWS)
    with pytest.raises(PolyadicError, match="tensorize must return a tensor of"):
        paper(SALS, tensorize=lambda T: T[:, :0], **SETTINGS).fit(WINDOWS)


# ---------------------------------------------------------------------------------------------- numbers beyond reason

HUGE = 10**400


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("learning_rate", 0.0, "learning_rate must be greater than 0"),
        ("learning_rate", HUGE, "learning_rate must be a number of at least 0 and at most 1, but is 1000"),
        ("gamma", 1e308, r"gamma must be .* at most 3.40282e\+38 or None, but is 1e\+308"),
        *((name, HUGE, f"{name} must be a number of at least 0, but is 1000") for name in ("alpha", "beta", "tol")),
        *((name, HUGE, rf"{name} must be .* below 2\*\*63") for name in ("batch_size", "max_sweeps", "patience")),
        ("rounds", 10**12, "rounds must be at most 10,000"),
        ("rank", 2**63, r"rank must be a whole number >= 1 and below 2\*\*63"),
        ("rank", 10**9, "rank=1,000,000,000 needs at least .* GiB of memory, but this machine has"),
        ("device", 10**40, "device must be 'auto', 'cpu' or an available torch device"),
    ],
)
def test_a_number_that_no_fit_can_use_is_refused_in_a_short_sentence(name: str, value: Any, message: str) -> None:
    with pytest.raises(PolyadicError, match=message) as caught:
        paper(ATD, **{**SETTINGS, "augment": itself, name: value}).fit(WINDOWS)
    assert len(str(caught.value)) < 300


@pytest.mark.filterwarnings("ignore:the fixed-point rule")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "value"), [("gamma", 3e38), ("alpha", 1e308), ("beta", 1e308), ("batch_size", 2**63 - 1), ("rank", 300)]
)
def test_a_number_that_is_merely_large_is_fitted(name: str, value: Any, dtype: Any) -> None:
    X = WINDOWS.astype(dtype)
    Z = paper(ATD, **{**SETTINGS, "augment": itself, "beta": 0.1, name: value}).fit(X).transform(X)
    assert np.isfinite(Z).all()
    assert Z.shape == (20, 300 if name == "rank" else 2)
