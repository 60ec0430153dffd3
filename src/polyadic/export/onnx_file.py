"""Export of a fitted model as one ONNX graph, from raw windows to features and probabilities, and a runner for it.

The STFT is a fixed convolution with the DFT matrix, which is most of the file; the bases stay small factors that are
contracted one by one, and the closed form of the features (Eqn. feature_extractor) is one product with the ridge
inverse. Writing a graph needs `onnx` and torch; running one needs only numpy and `onnxruntime`.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.files import check_regular_file, write_atomically
from polyadic._util.packages import import_package
from polyadic._util.version import __version__
from polyadic.errors import PolyadicError
from polyadic.export.onnx_graph import OPSET, Graph

__all__ = ["Features", "onnx"]

_MOST_ERROR = 1e-3
"""Error of features by float32, relative to their root mean square, above which there is a warning."""


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
        runtime = import_package("onnxruntime", "an ONNX file")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.log_severity_level = 3
        check_regular_file(path, PolyadicError)
        content = Path(path).read_bytes()
        try:
            self._session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            known = json.loads(self._session.get_modelmeta().custom_metadata_map["polyadic"])
            self.shape, self.n_features = tuple(map(int, known["shape"])), int(known["features"])
            self.channels, self.fs, self.classes = tuple(known["channels"]), known["fs"], tuple(known["classes"])
            self.version, self.opset, self.missing = known["version"], known["opset"], known["missing"]
        except Exception as error:  # onnxruntime has many exception classes
            raise PolyadicError(
                f"{path} must be an ONNX file written by polyadic.export.onnx, but is not: {error!r}"
            ) from error

    def __call__(self, X: ArrayLike) -> NDArray[np.float32]:
        """Compute features (N, features) of windows (N, channels, time), or (features,) of one window."""
        return self._run("features", X)

    def probabilities(self, X: ArrayLike) -> NDArray[np.float32]:
        """Compute class probabilities (N, classes) of windows (N, channels, time), or (classes,) of one window."""
        if not self.classes:
            raise PolyadicError("the file has no probe, so there are no probabilities: export a WindowClassifier")
        return self._run("probabilities", X)

    def _run(self, output: str, X: ArrayLike) -> NDArray[np.float32]:
        windows = np.ascontiguousarray(X, dtype=np.float32)
        single = windows.shape == self.shape
        windows = windows[None] if single else windows
        if windows.shape[1:] != self.shape or not len(windows):
            expected = ", ".join(str(size) for size in self.shape)
            raise PolyadicError(f"X must have shape (N, {expected}) as in fit, but has shape {windows.shape}")
        if np.isinf(windows).any() or (not self.missing and np.isnan(windows).any()):
            raise PolyadicError(f"X must be finite, but contains {'infinity' if self.missing else 'NaN or infinity'}")
        result: NDArray[np.float32] = self._session.run([output], {"window": windows})[0]
        return result[0] if single else result

    def __repr__(self) -> str:
        probe = f", {len(self.classes)} classes" if self.classes else ""
        return f"Features({' × '.join(map(str, self.shape))} → {self.n_features} features{probe})"


def onnx(
    model: Any,
    path: str | os.PathLike[str],
    *,
    missing: bool = True,
) -> None:
    """Write a fitted model as one ONNX graph, atomically.

    The input `window` is (N, channels, time) float32, or (N, I, J, …) if `tensorize` is None; the outputs are
    `features` (N, features), as from `transform`, and, with a probe, `probabilities` (N, classes), both float32. The
    graph computes in float32, except for the product with the closed form. If nearly collinear components would reduce
    accuracy, projections are float64, too. A warning says by how much features differ from those of `transform` if
    float32 does not suffice for the spectra, either.

    Parameters
    ----------
    model : a fitted `CPD`, `ATD`, `SALS` or `GRSALS` whose `tensorize` is an `STFT` or None; or a fitted
        `WindowClassifier`
    path : the file, usually with the extension .onnx
    missing : recognise what is missing in a raw window: NaN and, as `predict` does, dead channels, but not
        channels of noise. Without it, the graph is smaller and needs neither loops nor branches, and a window with NaN
        has no result
    """
    # Running a graph does not need torch.
    from polyadic._util.torch_state import plain_torch
    from polyadic.export.inference import Inference, needs_double, parts_of, rounding_error, typical_windows

    model, probe = parts_of(model)
    with plain_torch():
        inference, signals = Inference.of(model, probe), typical_windows(model)
        exact = needs_double(model, inference, signals)
        write_atomically(path, _written(model, inference, exact, missing))
        error = rounding_error(model.tensorize_, inference, signals)
    if error > _MOST_ERROR:
        warnings.warn(
            f"in float32, features of the graph differ from those of transform by up to {100 * error:.2g} % of their "
            "root mean square: use a smaller rank or a larger alpha, or subtract the mean of each channel",
            RuntimeWarning,
            stacklevel=2,
        )


def _written(model: Any, inference: Any, exact: bool, missing: bool) -> bytes:
    """Build the graph of a model, as bytes; projections are summed in float64 if `exact`."""
    from polyadic.export.onnx_nodes import averaged, completed, filled, standardised_statistics

    shape = tuple(int(size) for size in model._sample_shape)
    graph = Graph(inference.readout.statistic_mean[: shape[0]] if inference.n_statistics else None)  # means come first
    window, z, root = graph.node("window", np.float32), None, None
    found = filled(graph, model, window) if missing else None
    signals = window if found is None else found.windows
    factors, tensor = list(inference.factors), signals
    if model.tensorize_ is not None:
        tensor, order = model.tensorize_.onnx(graph, signals, model._sample_shape)
        factors[0] = factors[0][order]
    tensor = tensor.to(np.float64) if exact else tensor
    if found is not None:
        mask = found.observed.take(order, 1)
        tensor = tensor * (mask if exact else mask.to(np.float32))
    projections = tensor @ factors[-1]
    for factor in reversed(factors[:-1]):
        projections = (projections * factor).sum(-2, keep=False)
    projections = projections if exact else projections.to(np.float64)
    if inference.n_statistics:
        # Without masks, every sample is present.
        present = (signals * 0 + 1).to(np.float64) if found is None else found.present
        z = standardised_statistics(graph, inference, signals, shape, present)
    if found is not None:
        projections, z, root = completed(graph, model, inference, found, projections, z)
    features = (projections @ inference.matrix.T + inference.offset).to(np.float32)
    if z is not None:
        z = z.to(np.float32)
        readout = inference.readout
        block = z @ (readout.statistic_axes * readout.block_gain) if inference.n_axes else z * readout.block_gain
        features = features.apply("Concat", block, axis=1)
    outputs = {"features": (features, inference.n_features)}
    if inference.classes:
        logits = features @ inference.weights.T + inference.intercept
        P = logits.apply("Softmax", axis=1) if root is None else averaged(graph, inference, logits, root)
        outputs["probabilities"] = (P, len(inference.classes))
    known = {
        "version": __version__,
        "estimator": type(model).__name__,
        "shape": shape,
        "features": inference.n_features,
        "fs": model.fs_,
        "channels": model.channel_names_,
        "classes": list(inference.classes),
        "opset": OPSET,
        "missing": found is not None,
    }
    return graph.serialised(window, shape, outputs, known)
