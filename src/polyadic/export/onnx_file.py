"""Export of a fitted model as one ONNX graph, from raw windows to features and probabilities, and a runner for it.

The STFT is a fixed convolution with the DFT matrix, which is most of the file; the bases stay small factors that are
contracted one by one, and the closed form of the features (Eqn. feature_extractor) is one product with the ridge
inverse. Writing a graph needs `onnx` and torch; running one needs only numpy and `onnxruntime`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.files import check_regular_file, write_atomically
from polyadic._util.version import __version__
from polyadic.errors import PolyadicError
from polyadic.export.onnx_graph import OPSET, Graph, needed

if TYPE_CHECKING:
    from polyadic.export.inference import Inference
    from polyadic.export.onnx_masked import Filled

__all__ = ["Features", "onnx"]

_WELL_CONDITIONED = 1e6
"""Condition number up to which features agree to 1e-4 of their root mean square."""
_TESTED = 16
"""Number of test signals to measure the error above it; more if the graph has a larger fixed batch."""
_INPUT, _FEATURES, _PROBABILITIES = "window", "features", "probabilities"


class Features:
    """Compute features of raw windows with a file from `polyadic.export.onnx`; needs only numpy and onnxruntime.

    Parameters
    ----------
    path : the ONNX file
    threads : number of threads; 1 suits single windows and small devices

    Attributes
    ----------
    shape : shape of one window, (channels, time)
    n_features : number of features of a window
    channels, fs : names of the channels and sampling rate in Hz; () and None if unknown
    classes : classes of the probe, in the order of its probabilities; () if there is none
    version : version of polyadic that wrote the file
    opset : ONNX operator set version that the runtime must support
    batch : fixed number of windows per call, None for any number
    missing : whether NaN in a window means missing

    Examples
    --------
    >>> from polyadic import CPD
    >>> import tempfile
    >>> X = np.random.default_rng(0).normal(size=(50, 4, 6)).astype(np.float32)
    >>> model = CPD(rank=3, tensorize=None, max_sweeps=2).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     onnx(model, f"{folder}/model.onnx")
    ...     features = Features(f"{folder}/model.onnx")
    >>> features(X[:5]).shape, features.shape
    ((5, 3), (4, 6))
    """

    def __init__(self, path: str | os.PathLike[str], threads: int = 1) -> None:
        runtime = needed("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.log_severity_level = 3
        check_regular_file(path, PolyadicError)
        with open(path, "rb"):  # noqa: PTH123  raises FileNotFoundError if the file is missing
            pass
        try:
            self._session = runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
            known = json.loads(self._session.get_modelmeta().custom_metadata_map["polyadic"])
            self.shape = tuple(int(size) for size in known["shape"])
            self.n_features = int(known["features"])
            self.channels = tuple(str(name) for name in known["channels"])
            self.fs = None if known["fs"] is None else float(known["fs"])
            self.classes = tuple(known["classes"])
            self.version = str(known["version"])
            self.opset = int(known.get("opset", OPSET))
            self.missing = bool(known.get("missing"))
            self.batch = None if known.get("batch") is None else int(known["batch"])
        except Exception as error:  # onnxruntime has many exception classes
            raise PolyadicError(
                f"{path} must be an ONNX file written by polyadic.export.onnx, but is not: {error!r}"
            ) from error

    def __call__(self, X: ArrayLike) -> NDArray[np.float32]:
        """Compute features (N, features) of windows (N, channels, time), or (features,) of one window."""
        return self._run(_FEATURES, X)

    def probabilities(self, X: ArrayLike) -> NDArray[np.float32]:
        """Compute class probabilities (N, classes) of windows (N, channels, time), or (classes,) of one window."""
        if not self.classes:
            raise PolyadicError("the file has no probe, so there are no probabilities: export it with probe=...")
        return self._run(_PROBABILITIES, X)

    def _run(self, output: str, X: ArrayLike) -> NDArray[np.float32]:
        windows = np.ascontiguousarray(X, dtype=np.float32)
        single = windows.shape == self.shape
        if single:
            windows = windows[None]
        if windows.shape[1:] != self.shape or not len(windows):
            expected = ", ".join(str(size) for size in self.shape)
            raise PolyadicError(f"X must have shape (N, {expected}) as in fit, but has shape {windows.shape}")
        if self.batch is not None and len(windows) != self.batch:
            raise PolyadicError(f"the file takes {self.batch} windows at a time, but X has {len(windows)}")
        if np.isinf(windows).any() or (not self.missing and np.isnan(windows).any()):
            raise PolyadicError(f"X must be finite, but contains {'infinity' if self.missing else 'NaN or infinity'}")
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
    batch: int | None = None,
    int8: bool = False,
    missing: bool = True,
) -> None:
    """Write a fitted model as one ONNX graph, atomically.

    The input `window` is (N, channels, time) float32, or (N, I, J, …) if `tensorize` is None; the outputs are
    `features` (N, features), as from `transform`, and, with a probe, `probabilities` (N, classes), both float32. The
    graph computes in float32, except for the product with the closed form. If nearly collinear components would reduce
    accuracy, projections are float64, too. If the condition number of KᵀK + αI is above a million, a warning says by
    how much features differ from those of `transform`.

    Parameters
    ----------
    model : a fitted `CPD`, `ATD`, `SALS` or `GRSALS` whose `tensorize` supports ONNX, such as `STFT`, or is None; or a
        fitted `WindowClassifier`
    path : the file, usually with the extension .onnx
    probe : a fitted `WindowClassifier`, `Probe` or `LogisticRegression`, or a pipeline of `StandardScaler` and
        `LogisticRegression`; by default the model's own, if it has one
    fs, channels : sampling rate in Hz and names of the channels, for the metadata of the graph; by default those of the
        model
    batch : a fixed value of N, for runtimes that need static shapes
    int8 : quantise float32 weights, including the Fourier transform, to int8 by onnxruntime's dynamic quantisation,
        which also rounds their inputs: compare predictions before you use it
    missing : recognise what is missing in a window: NaN and, as `predict` does, dead channels, but not
        channels of noise. Without it, the graph is smaller and needs neither loops nor branches, and a window with NaN
        has no result
    """
    from polyadic._util.checks import check_integer
    from polyadic._util.torch_state import plain_torch
    from polyadic.export.inference import Inference, parts_of, sampling_rate

    model, probe = parts_of(model, probe)
    check_integer("batch", batch, 1, none=True)
    with plain_torch():
        inference = Inference.of(model, probe)
        content = _written(model, inference, sampling_rate(model, fs), channels, batch, missing)
    write_atomically(path, _quantised(content) if int8 else content)
    _check_error(model, content, inference, batch)


def _written(
    model: Any, inference: Inference, fs: float | None, channels: Sequence[str], batch: int | None, missing: bool
) -> bytes:
    """Build the graph of a model, as bytes."""
    from polyadic.export.inference import channel_names, needs_double, typical_windows
    from polyadic.export.onnx_masked import averaged, completed, filled
    from polyadic.export.onnx_statistics import standardised_statistics, statistics_block

    shape = tuple(int(size) for size in model._sample_shape)
    level = inference.statistic_mean[: shape[0]] if inference.n_statistics else None  # means of channels come first
    graph = Graph(level)
    exact = needs_double(model, inference, typical_windows(model))
    window, z, root = graph.input(_INPUT), None, None
    found = filled(graph, model, window) if missing else None
    window = window if found is None else found.windows
    projections = _projections(graph, model, inference, exact, window, found)
    if inference.n_statistics:
        z = standardised_statistics(graph, inference, window, shape, found.present if found else None)
    if found is not None:
        projections, z, root = completed(graph, model, inference, found, projections, z)
    features = (projections @ inference.matrix.T + inference.offset).to(np.float32)
    if z is not None:
        features = features.apply("Concat", statistics_block(inference, z), axis=1)
    outputs = {_FEATURES: (features, inference.n_features)}
    if inference.classes:
        logits = features @ inference.weights.T + inference.intercept
        P = logits.apply("Softmax", axis=1) if root is None else averaged(graph, inference, logits, root)
        outputs[_PROBABILITIES] = (P, len(inference.classes))
    known = {
        "version": __version__,
        "estimator": type(model).__name__,
        "shape": shape,
        "features": inference.n_features,
        "fs": fs,
        "channels": channel_names(model, channels),
        "classes": list(inference.classes),
        "split": model.split_,
        "opset": OPSET,
        "batch": batch,
        "missing": found is not None,
    }
    return graph.serialised(_INPUT, shape, outputs, known, batch)


def _quantised(content: bytes) -> bytes:
    """Quantise the float32 weights of a graph to int8 with onnxruntime's tool."""
    import logging
    import tempfile
    from pathlib import Path

    tool = needed("onnxruntime.quantization")
    level = logging.root.manager.disable
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        before.write_bytes(content)
        try:
            logging.disable(logging.WARNING)  # it warns that the float64 product is not quantised, as intended
            # With 8 bits, sums of products overflow on processors without VNNI: weights have 7.
            how = {"per_channel": True, "reduce_range": True}
            tool.quantize_dynamic(before, after, op_types_to_quantize=["Conv", "MatMul"], **how)
        finally:
            logging.disable(level)
        return after.read_bytes()


def _projections(graph: Graph, model: Any, inference: Inference, exact: bool, window: Any, found: Filled | None) -> Any:
    """Add the inner products of what is observed with every component, summed in float64 if `exact`: (N, R) float64."""
    factors, tensor, order = list(inference.factors), window, np.arange(len(inference.factors[0]))
    if model.tensorize_ is not None:
        tensor, order = model.tensorize_.onnx(graph, window, model._sample_shape)
        factors[0] = factors[0][order]
    tensor = tensor.to(np.float64) if exact else tensor
    if found is not None:
        mask = found.observed.take(order, 1)
        tensor = tensor * (mask if exact else mask.to(np.float32))
    result = tensor @ factors[-1]
    for factor in reversed(factors[:-1]):
        result = (result * factor).sum(-2, keep=False)
    return result if exact else result.to(np.float64)


def _check_error(model: Any, content: bytes, inference: Inference, batch: int | None) -> None:
    """Warn if features of the graph (before int8) differ from those of `transform` for collinear components."""
    import tempfile
    import warnings
    from pathlib import Path

    from polyadic.export.inference import typical_windows

    condition = inference.condition
    if condition < _WELL_CONDITIONED:
        return
    step = batch or _TESTED
    X = typical_windows(model, -(-_TESTED // step) * step)
    expected = np.asarray(model.transform(X))
    size = float(np.sqrt(np.mean(np.square(expected)))) or 1.0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(content)
        run = Features(file)
    Z = np.concatenate([run(X[first : first + step]) for first in range(0, len(X), step)])
    error = float(np.abs(Z - expected).max()) / size
    warnings.warn(
        f"components are nearly collinear (condition number {condition:.0e}, above {_WELL_CONDITIONED:.0e}): features "
        f"of the graph differ from those of transform by up to {error:.0e} of their root mean square on "
        f"{len(X)} test signals; use a smaller rank or a larger alpha",
        RuntimeWarning,
        stacklevel=3,
    )
