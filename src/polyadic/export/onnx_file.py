"""A fitted model as one ONNX graph, from raw windows to features and probabilities, and a runner that needs no torch.

The STFT is a fixed convolution with the DFT matrix, which is most of the file; the bases stay small factors that are
contracted one by one, and the closed form of the features (Eqn. feature_extractor) is one product with the ridge
inverse. Writing a graph takes `onnx` and torch; running one takes numpy and `onnxruntime` alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.errors import PolyadicError
from polyadic.files import check_regular_file, write_atomically
from polyadic.version import __version__

if TYPE_CHECKING:
    from polyadic.spectral import STFT

__all__ = ["Features", "onnx"]

_OPSET, _IR = 17, 8  # of 2022: runtimes on small devices are seldom new
_KEY = "polyadic"
_INPUT, _FEATURES, _PROBABILITIES = "window", "features", "probabilities"


class Features:
    """Features of raw windows from a file that `polyadic.export.onnx` wrote, by numpy and onnxruntime alone.

    Parameters
    ----------
    path : the ONNX file
    threads : how many to use; 1 suits single windows and small devices

    Attributes
    ----------
    shape : of one window, (channels, time)
    rank : number of features
    channels, fs : names of the channels and sampling rate in Hz, () and None where the model does not know them
    classes : those of the probe in the order of its probabilities, () if there is none
    version : of polyadic that wrote the file

    Examples
    --------
    >>> from polyadic import SALS
    >>> import tempfile
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6)).astype(np.float32)
    >>> model = SALS(rank=3, max_sweeps=2).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     onnx(model, f"{folder}/model.onnx")
    ...     features = Features(f"{folder}/model.onnx")
    >>> features(X[:5]).shape, features.shape
    ((5, 3), (4, 6))
    """

    def __init__(self, path: str | os.PathLike[str], threads: int = 1) -> None:
        runtime = _needed("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.log_severity_level = 3
        check_regular_file(path, PolyadicError)
        with open(path, "rb"):  # noqa: PTH123  the error of a missing file in the words everyone knows
            pass
        try:
            self._session = runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
            known = json.loads(self._session.get_modelmeta().custom_metadata_map[_KEY])
            self.shape = tuple(int(size) for size in known["shape"])
            self.rank = int(known["rank"])
            self.channels = tuple(str(name) for name in known["channels"])
            self.fs = None if known["fs"] is None else float(known["fs"])
            self.classes = tuple(known["classes"])
            self.version = str(known["version"])
        except Exception as error:  # onnxruntime has a class of its own for every reason
            raise PolyadicError(
                f"{path} must be an ONNX file written by polyadic.export.onnx, but is not: {error!r}"
            ) from error

    def __call__(self, X: ArrayLike) -> NDArray[np.float32]:
        """Features of windows.

        Parameters
        ----------
        X : (N, channels, time), or one window (channels, time)

        Returns
        -------
        (N, rank), or (rank,) of one window
        """
        return self._run(_FEATURES, X)

    def probabilities(self, X: ArrayLike) -> NDArray[np.float32]:
        """Probabilities of the classes by the probe in the file.

        Parameters
        ----------
        X : (N, channels, time), or one window (channels, time)

        Returns
        -------
        (N, classes), or (classes,) of one window
        """
        if not self.classes:
            raise PolyadicError("the file holds no probe, so there are no probabilities: export it with probe=...")
        return self._run(_PROBABILITIES, X)

    def _run(self, output: str, X: ArrayLike) -> NDArray[np.float32]:
        windows = np.ascontiguousarray(X, dtype=np.float32)
        single = windows.shape == self.shape
        if single:
            windows = windows[None]
        if windows.shape[1:] != self.shape or not len(windows):
            expected = ", ".join(str(size) for size in self.shape)
            raise PolyadicError(f"X must have shape (N, {expected}) as in fit, but has shape {windows.shape}")
        if not np.isfinite(windows).all():
            raise PolyadicError("X must be finite, but contains NaN or infinity")
        result: NDArray[np.float32] = self._session.run([output], {_INPUT: windows})[0]
        return result[0] if single else result

    def __repr__(self) -> str:
        probe = f", {len(self.classes)} classes" if self.classes else ""
        return f"Features({' × '.join(map(str, self.shape))} → {self.rank} features{probe})"


def onnx(
    model: Any,
    path: str | os.PathLike[str],
    *,
    probe: Any = None,
    fs: float | None = None,
    channels: Sequence[str] = (),
) -> None:
    """Write a fitted model as one ONNX graph, atomically.

    The input `window` is (N, channels, time) float32, or (N, I, J, …) where `tensorize` is None; the outputs are
    `features` (N, rank) and, with a probe, `probabilities` (N, classes), both float32.

    Parameters
    ----------
    model : a fitted `ATD`, `SALS` or `GRSALS` whose `tensorize` is an `STFT` or None
    path : the file, by custom ending in .onnx
    probe : a fitted scikit-learn `LogisticRegression`, or a pipeline of `StandardScaler` and `LogisticRegression`; the
        model's own if it has one and none is given
    fs, channels : sampling rate in Hz and names of the channels, to be written beside the graph; what the model knows
        of them if not given
    """
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model)
    shape = tuple(int(size) for size in model._sample_shape)
    graph = _Graph()
    features = graph.add("MatMul", _projections(graph, model, shape), graph.constant(_closed_form(model)))
    outputs = {_FEATURES: (graph.add("Cast", features, to=graph.float), model.rank)}
    classes: list[Any] = []
    probe = getattr(model, "probe_", None) if probe is None else probe
    if probe is not None:
        weights, offsets, classes = _linear(probe, model.rank)
        outputs[_PROBABILITIES] = (_probabilities(graph, features, weights, offsets), len(classes))
    names = [str(name) for name in (channels or getattr(model, "channel_names_", ()))]
    if len(names) not in (0, shape[0]):
        raise PolyadicError(f"channels must name {shape[0]} channels, but names {len(names)}")
    known = {
        "version": __version__,
        "estimator": type(model).__name__,
        "shape": shape,
        "rank": model.rank,
        "fs": getattr(model, "fs_", None) if fs is None else float(fs),
        "channels": names,
        "classes": classes,
        "split": model.split_,
    }
    write_atomically(path, graph.serialised(shape, outputs, known))


class _Graph:
    """Nodes and constants of a graph under construction; every node is called by the name of its one output."""

    def __init__(self) -> None:
        self.api = _needed("onnx")
        self.float, self.double = self.api.TensorProto.FLOAT, self.api.TensorProto.DOUBLE
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: ArrayLike, dtype: Any = None) -> str:
        name = f"constant{len(self.constants)}"
        array = np.ascontiguousarray(values, dtype)
        self.constants.append(self.api.numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(self.api.helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def pair(self, operator: str, *inputs: str, **attributes: Any) -> tuple[str, str]:
        """A node with two outputs."""
        names = (f"first{len(self.nodes)}", f"second{len(self.nodes)}")
        self.nodes.append(self.api.helper.make_node(operator, inputs, names, **attributes))
        return names

    def serialised(self, shape: Sequence[int], outputs: dict[str, tuple[str, int]], known: dict[str, Any]) -> bytes:
        """The checked model as bytes.

        Parameters
        ----------
        outputs : by name, the node and its number of columns
        known : for the metadata
        """
        helper = self.api.helper
        for name, (node, _) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [node], [name]))
        graph = helper.make_graph(
            self.nodes,
            "polyadic",
            [helper.make_tensor_value_info(_INPUT, self.float, ["N", *shape])],
            [helper.make_tensor_value_info(name, self.float, ["N", size]) for name, (_, size) in outputs.items()],
            self.constants,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR,
            producer_name="polyadic",
            producer_version=__version__,
        )
        helper.set_model_props(model, {_KEY: json.dumps(known)})
        self.api.checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString()
        return content


def _projections(graph: _Graph, model: Any, shape: tuple[int, ...]) -> str:
    """The inner products of every window with every component, `algebra.project`: (N, R) float64."""
    from polyadic.spectral import STFT

    factors = [np.asarray(factor, np.float64) for factor in model.factors_]
    tensor = _INPUT
    if isinstance(model.tensorize_, STFT):
        tensor = _spectrum(graph, model.tensorize_, shape)
        # In the graph a channel's parts lie side by side, in the model all channels' first part comes first.
        factors[0] = factors[0].reshape(-1, shape[0], model.rank).swapaxes(0, 1)
    elif model.tensorize_ is not None:
        raise PolyadicError(
            f"tensorize must be an STFT or None to be written as ONNX, but is the function {model.tensorize_!r}"
        )
    # Components of real data are close to collinear: what float32 would lose here, the closed form would magnify.
    result = graph.add("MatMul", graph.add("Cast", tensor, to=graph.double), graph.constant(factors[-1]))
    for factor in reversed(factors[:-1]):
        axes = np.arange(-factor.ndim, -1)
        weighted = graph.add("Mul", result, graph.constant(factor))
        result = graph.add("ReduceSum", weighted, graph.constant(axes, np.int64), keepdims=0)
    return result


def _spectrum(graph: _Graph, stft: STFT, shape: tuple[int, ...]) -> str:
    """`STFT.__call__`: (N, channels, parts, frequencies, frames)."""
    channels, time = shape
    _, frequencies, frames = stft.shape(channels, time)
    rows = graph.add("Reshape", _INPUT, graph.constant([-1, 1, time], np.int64))
    filters = _dft(stft).reshape(2 * frequencies, 1, stft.n_fft)
    Z = graph.add("Conv", rows, graph.constant(filters, np.float32), strides=[stft.hop])
    Z = graph.add("Reshape", Z, graph.constant([-1, channels, 2, frequencies, frames], np.int64))
    floors = np.broadcast_to(np.asarray(stft.floor, np.float64), channels)[:, None, None, None]

    def logarithm(magnitude: str) -> str:
        return graph.add("Log", graph.add("Add", magnitude, graph.constant(floors, np.float32)))

    if stft.parts == "re_im":
        return Z
    if stft.parts == "log_re_im":
        return logarithm(graph.add("Abs", Z))
    re, im = graph.pair("Split", Z, axis=2)
    squares = graph.add("Add", graph.add("Mul", re, re), graph.add("Mul", im, im))
    amplitude = graph.add("Sqrt", squares)
    if stft.parts.startswith("log_"):
        amplitude = logarithm(amplitude)
    if not stft.parts.endswith("phase"):
        return amplitude
    return graph.add("Concat", amplitude, _angle(graph, re, im), axis=2)


def _dft(stft: STFT) -> NDArray[np.float64]:
    """The real and imaginary parts of the frequencies as weights of a frame's samples: (2, n_fft // 2 + 1, n_fft).

    The transform of every unit impulse, by the STFT itself: window, sign and scale are its own.
    """
    import torch

    impulses = torch.eye(stft.n_fft, dtype=torch.float64)[None]
    columns = replace(stft, parts="re_im", floor=1.0)(impulses)[0, :, :, 0]
    return columns.reshape(2, stft.n_fft, -1).transpose(1, 2).numpy()


def _angle(graph: _Graph, re: str, im: str) -> str:
    """atan2, which ONNX does not have."""

    def number(value: float) -> str:
        return graph.constant(value, np.float32)

    zero = number(0.0)
    # A quotient by a very small number is as good as infinite, and 0 where both are 0.
    divisor = graph.add("Where", graph.add("Equal", re, zero), number(1e-30), re)
    turn = graph.add("Where", graph.add("Less", im, zero), number(-np.pi), number(np.pi))
    turn = graph.add("Where", graph.add("Less", re, zero), turn, zero)
    return graph.add("Add", graph.add("Atan", graph.add("Div", im, divisor)), turn)


def _closed_form(model: Any) -> NDArray[np.float64]:
    """(KᵀK + αI)⁻¹ of the features' closed form: (R, R)."""
    import torch

    from polyadic.algebra import gram, ridge_inverse

    G = gram([torch.as_tensor(factor, dtype=torch.float64) for factor in model.factors_])
    return ridge_inverse(G, float(model.alpha)).numpy()


def _linear(probe: Any, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Any]]:
    """A probe as weights (R, n), offsets (n,) and its classes; n is 1 for two classes."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.validation import check_is_fitted

    steps = [step for _, step in probe.steps] if isinstance(probe, Pipeline) else [probe]
    if [type(step) for step in steps] not in ([LogisticRegression], [StandardScaler, LogisticRegression]):
        raise PolyadicError(
            "probe must be a LogisticRegression or a pipeline of StandardScaler and LogisticRegression, but is "
            + " and ".join(type(step).__name__ for step in steps)
        )
    for step in steps:
        check_is_fitted(step)
    regression = steps[-1]
    weights, offsets = regression.coef_.T.astype(np.float64), regression.intercept_.astype(np.float64)
    if len(weights) != rank:
        raise PolyadicError(f"probe must be fitted to the model's {rank} features, but was fitted to {len(weights)}")
    # Some versions of scikit-learn can fit one regression for each of many classes, whose probabilities are no softmax.
    one_by_one = regression.solver == "liblinear" or getattr(regression, "multi_class", "auto") == "ovr"
    if one_by_one and len(offsets) > 1:
        raise PolyadicError("probe must be one regression for all classes, but has one for each class against the rest")
    if len(steps) == 2:
        scaler = steps[0]
        weights = weights / scaler.scale_[:, None] if scaler.with_std else weights
        offsets = offsets - scaler.mean_ @ weights if scaler.with_mean else offsets
    return weights, offsets, regression.classes_.tolist()


def _probabilities(graph: _Graph, features: str, weights: NDArray[np.float64], offsets: NDArray[np.float64]) -> str:
    """Probabilities of a logistic regression: (N, classes)."""
    if len(offsets) == 1:
        # Two classes are a softmax of 0 and the one decision.
        weights, offsets = np.pad(weights, ((0, 0), (1, 0))), np.pad(offsets, (1, 0))
    decisions = graph.add("Add", graph.add("MatMul", features, graph.constant(weights)), graph.constant(offsets))
    return graph.add("Cast", graph.add("Softmax", decisions, axis=1), to=graph.float)


def _needed(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise PolyadicError(f"{package} is needed for ONNX files: pip install 'polyadic[onnx]'") from error
