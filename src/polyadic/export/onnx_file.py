"""A fitted model as one ONNX graph, from raw windows to features and probabilities, and a runner that needs no torch.

The STFT is a fixed convolution with the DFT matrix, which is most of the file; the bases stay small factors that are
contracted one by one, and the closed form of the features (Eqn. feature_extractor) is one product with the ridge
inverse. Writing a graph takes `onnx` and torch; running one takes numpy and `onnxruntime` alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic.errors import PolyadicError
from polyadic.files import check_regular_file, write_atomically
from polyadic.version import __version__

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
    n_features : how many a window has
    channels, fs : names of the channels and sampling rate in Hz, () and None where the model does not know them
    classes : those of the probe in the order of its probabilities, () if there is none
    version : of polyadic that wrote the file

    Examples
    --------
    >>> from polyadic import SALS
    >>> import tempfile
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6)).astype(np.float32)
    >>> model = SALS(rank=3, tensorize=None, max_sweeps=2).fit(X)
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
            self.n_features = int(known["features"])
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
        (N, features), or (features,) of one window
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
        return f"Features({' × '.join(map(str, self.shape))} → {self.n_features} features{probe})"


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
    `features` (N, features), as `transform` gives them, and, with a probe, `probabilities` (N, classes), both float32.

    Parameters
    ----------
    model : a fitted `ATD`, `SALS` or `GRSALS` whose `tensorize` has an ONNX form, as `STFT` has, or is None
    path : the file, by custom ending in .onnx
    probe : a fitted `WindowClassifier`, `Probe` or `LogisticRegression`, or a pipeline of `StandardScaler` and
        `LogisticRegression`; the model's own if it has one and none is given
    fs, channels : sampling rate in Hz and names of the channels, to be written beside the graph; what the model knows
        of them if not given
    """
    from sklearn.utils.validation import check_is_fitted

    from polyadic.torch_state import plain_torch

    check_is_fitted(model)
    with plain_torch():
        content = _written(model, probe, fs, channels)
    write_atomically(path, content)


def _written(model: Any, probe: Any, fs: float | None, channels: Sequence[str]) -> bytes:
    """The graph of a model, as bytes."""
    from polyadic.linear_probe import linear

    shape = tuple(int(size) for size in model._sample_shape)
    graph = _OnnxGraph()
    x = graph.add("MatMul", _projections(graph, model, shape), graph.constant(_closed_form(model)))
    features, width = _read_out(graph, model, x), model._n_features_out
    outputs = {_FEATURES: (graph.add("Cast", features, to=graph.float), width)}
    classes: list[Any] = []
    # A `WindowClassifier` has its probe inside.
    probe = getattr(model, "probe_", None) if probe is None else getattr(probe, "probe_", probe)
    if probe is not None:
        weights, offsets, classes = linear(probe, width)
        outputs[_PROBABILITIES] = (_probabilities(graph, features, weights, offsets), len(classes))
    names = [str(name) for name in (channels or getattr(model, "channel_names_", ()))]
    if len(names) not in (0, shape[0]):
        raise PolyadicError(f"channels must name {shape[0]} channels, but names {len(names)}")
    known = {
        "version": __version__,
        "estimator": type(model).__name__,
        "shape": shape,
        "features": width,
        "fs": getattr(model, "fs_", None) if fs is None else float(fs),
        "channels": names,
        "classes": classes,
        "split": model.split_,
    }
    return graph.serialised(shape, outputs, known)


class _OnnxGraph:
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


def _projections(graph: _OnnxGraph, model: Any, shape: tuple[int, ...]) -> str:
    """The inner products of every window with every component, `algebra.project`: (N, R) float64."""
    factors = [np.asarray(factor, np.float64) for factor in model.factors_]
    tensor = _INPUT
    if model.tensorize_ is not None:
        tensor, order = model.tensorize_.onnx(graph, _INPUT, shape)
        factors[0] = factors[0][order]
    # Components of real data are close to collinear: what float32 would lose here, the closed form would magnify.
    result = graph.add("MatMul", graph.add("Cast", tensor, to=graph.double), graph.constant(factors[-1]))
    for factor in reversed(factors[:-1]):
        weighted = graph.add("Mul", result, graph.constant(factor))
        result = graph.add("ReduceSum", weighted, graph.constant([-2], np.int64), keepdims=0)
    return result


def _closed_form(model: Any) -> NDArray[np.float64]:
    """(KᵀK + αI)⁻¹ of the features' closed form: (R, R)."""
    import torch

    from polyadic.algebra import gram, ridge_inverse

    G = gram([torch.as_tensor(factor, dtype=torch.float64) for factor in model.factors_])
    return ridge_inverse(G, float(model.alpha)).numpy()


def _read_out(graph: _OnnxGraph, model: Any, x: str) -> str:
    """From coefficients (N, R) to features (N, F), float64."""
    readout = model._fitted_readout()
    if readout is None:
        return x
    z = graph.add("Add", graph.add("MatMul", x, graph.constant(readout.matrix.T)), graph.constant(readout.offset))
    if not readout.n_channels:
        return z
    means = graph.add("ReduceMean", graph.add("Cast", _INPUT, to=graph.double), axes=[2], keepdims=0)
    scaled = graph.add(
        "Mul", graph.add("Sub", means, graph.constant(readout.level_mean)), graph.constant(readout.level_gain)
    )
    return graph.add("Concat", z, scaled, axis=1)


def _probabilities(graph: _OnnxGraph, features: str, weights: NDArray[np.float64], offsets: NDArray[np.float64]) -> str:
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
