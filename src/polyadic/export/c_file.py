"""Export of a fitted model as C99 for microcontrollers: raw window → features → probabilities, also for streams.

The tensor of a window is computed and projected frame by frame, so working memory does not grow with its length.
Components are stored as rank-one factors; the closed form and the readout are one matrix (`inference`).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic._util.checks import check_integer
from polyadic._util.files import write_atomically
from polyadic._util.torch_state import plain_torch
from polyadic._util.version import __version__
from polyadic.core.tensorizer import CForm, Tensorizer
from polyadic.errors import PolyadicError
from polyadic.evaluate.probe import Probe
from polyadic.evaluate.sequences import LONGEST_GAP
from polyadic.export.c_masked import masked_code
from polyadic.export.c_text import BYTES, Table, comment, float_literal, string_literal, table
from polyadic.export.inference import (
    Inference,
    Quantised,
    features_of,
    fitted_to_float32,
    needs_double,
    parts_of,
    quantise,
    rounding_error,
    typical_windows,
)
from polyadic.readout import CLIP
from polyadic.statistics import (
    FEWEST_SAMPLES,
    FLOOR,
    SILENT,
    TIE,
    TINY,
    ZERO_MEAN,
    band_edges,
    padded_length,
)

__all__ = ["CExport", "c"]

_TOLERANCE, _PROBABILITY_TOLERANCE = 1e-3, 5e-3
"""Tolerances of the selftest: relative to the root mean square of the test window's features, and of probabilities."""
_TYPICAL = 64
"""Number of synthetic windows that tell whether sums need double precision."""


@dataclass(frozen=True, eq=False)
class CExport:
    """The result of an export: the files, their sizes, and a float64 reference of what the C code computes.

    Attributes
    ----------
    files : the paths of the C file and the header
    shape : shape of a window, (channels, time)
    stride : number of samples of a stream from one result to the next
    n_features : number of features of a window
    classes : classes of the probe, () if there is none
    table_bytes : size of all constant tables except those of the selftest
    scratch_bytes, stream_bytes : `sizeof` of the two structures
    masked_bytes, masked_table_bytes : `sizeof(polyadic_masked)`, and the size of the tables that only the functions for
        windows with missing samples need; 0 if there are none
    along : whether a stream gives probabilities along the recording
    int8 : whether weights are int8
    accumulator : the type of sums, "float", or "double" if components are nearly collinear or tensors far from 0
    """

    files: tuple[Path, ...]
    shape: tuple[int, int]
    stride: int
    n_features: int
    classes: tuple[Any, ...]
    table_bytes: int
    scratch_bytes: int
    stream_bytes: int
    masked_bytes: int
    masked_table_bytes: int
    along: bool
    int8: bool
    accumulator: str
    _tensorizer: Tensorizer = field(repr=False)
    _inference: Inference = field(repr=False)

    @plain_torch()
    def features(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute features (N, F) of windows (N, channels, time) with the weights in the file, in float64."""
        return features_of(self._tensorizer, self._inference, np.asarray(X, np.float64))

    def probabilities(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute class probabilities (N, classes) of windows (N, channels, time) like `features`, in float64."""
        if not self.classes:
            raise PolyadicError("the model has no probe, so there are no probabilities: export it with probe=...")
        return self._inference.probabilities(self.features(X))


@plain_torch()
def c(
    model: Any,
    path: str | os.PathLike[str],
    *,
    probe: Any = None,
    stride: int | None = None,
    int8: bool = False,
) -> CExport:
    """Write a fitted model as C99 with a header, for devices with little memory and no operating system.

    The code needs only `math.h`, uses memory provided by its caller, and computes in float32; see the header for the
    functions. If components are nearly collinear, sums are in double precision.

    Parameters
    ----------
    model : a fitted `CPD`, `ATD`, `SALS` or `GRSALS` whose `tensorize` supports C, such as `STFT`; or a fitted
        `WindowClassifier`. The header has the sampling rate, names and units of its channels, if it knows them
    path : the C file; the header has the same name with the extension .h
    probe : as for `polyadic.export.onnx`; by default the model's own, if it has one
    stride : number of samples of a stream from one result to the next; by default the step of the windows that the
        classifier learned the order of classes from, if it uses it, and else the length of a window. A stream gives
        probabilities along the recording (`Chain.filter`) if `predict` does and stride is a multiple of that step
    int8 : write weights as int8, with a scale for each component, feature and class. `probabilities` of the result
        are those of the rounded weights: compare them with the model's on your own windows

    Raises
    ------
    PolyadicError : also if samples are so far from 0 that float32 cannot represent the features

    Examples
    --------
    >>> import tempfile
    >>> from polyadic import CPD
    >>> X = np.random.default_rng(0).normal(size=(50, 2, 64)).astype(np.float32)
    >>> model = CPD(rank=3, max_sweeps=2).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = c(model, f"{folder}/model.c", stride=32)
    >>> [file.name for file in written.files], written.scratch_bytes
    (['model.c', 'model.h'], 564)
    """
    model, probe = parts_of(model, probe)
    form, exact = _form(model), Inference.of(model, probe)
    windows, centre = _test_windows(model, exact)
    # Rounding errors are negligible compared with int8.
    real = "double" if not int8 and needs_double(model, exact, windows) else "float"
    exact = fitted_to_float32(exact) if real == "double" else exact
    chain, likelihood_gain = _chain_of(probe)
    if stride is None:
        stride = int(model._sample_shape[1]) if chain is None else chain.step
    check_integer("stride", stride, 1)
    along = chain is not None and stride % chain.step == 0 and stride <= LONGEST_GAP * chain.step
    quantised = quantise(exact) if int8 else None
    settled = exact if quantised is None else quantised.inference
    tables = _model_tables(settled, quantised, form, real, centre, int(model._sample_shape[1]))
    tables |= {name: table(np.asarray(values)) for name, values in form.tables.items()}
    if along:
        power = np.linalg.matrix_power(chain.transitions, stride // chain.step)
        tables |= {"transitions": table(power), "initial": table(chain.initial), "likelihood": table(likelihood_gain)}
    masked = masked_code(model, exact, settled, form, real, int8)
    state = 4 * (len(settled.classes) + 1) if along else 0
    work, scratch, stream = _memory(settled, form, model._sample_shape, real, state)
    target, header = Path(path), Path(path).with_suffix(".h")
    if target == header:
        raise PolyadicError(f"path must not end in .h, the extension of the header, but is {target.name}: use .c")
    if (error := rounding_error(model.tensorize_, settled, windows[:1])) > _TOLERANCE / 2:
        raise PolyadicError(
            f"in float32, features of the test window would differ by {100 * error:.2g} % of their root mean "
            f"square, because samples of about {np.abs(windows[0]).max():.2g} are far from 0: subtract the mean of "
            "each channel before fitting, or use parts of the STFT with logarithms"
        )
    export = CExport(
        files=(target, header),
        shape=(int(model._sample_shape[0]), int(model._sample_shape[1])),
        stride=int(stride),
        n_features=settled.n_features,
        classes=settled.classes,
        table_bytes=sum(values.bytes for values in tables.values()),
        scratch_bytes=scratch,
        stream_bytes=stream,
        masked_bytes=masked.bytes if masked else 0,
        masked_table_bytes=sum(values.bytes for values in masked.tables.values()) if masked else 0,
        along=along,
        int8=int8,
        accumulator=real,
        _tensorizer=model.tensorize_,
        _inference=settled,
    )
    tests, expected = _test_tables(export, windows[0].astype(np.float32))
    size, rate = float(np.sqrt(np.mean(np.square(export.features(windows[:1]))))), model.fs_
    known = {
        **vars(export),
        **vars(form),
        "title": f"{type(model).__name__} of rank {settled.rank} for {'classes' if settled.classes else 'features'}",
        "version": __version__,
        "estimator": type(model).__name__,
        "sha256": _hash(exact, form),
        "header": header.name,
        "channels": _channel_lines(model),
        "samples": export.shape[1],
        "fs": None if rate is None else f"{rate:g}",
        "fs_literal": None if rate is None else float_literal(rate),
        "seconds": None if rate is None else f"{export.shape[1] / rate:.4g}",
        "n_spectral": len(settled.matrix),
        "classes": [{"comment": comment(str(name)), "literal": string_literal(str(name))} for name in settled.classes],
        "weights_type": "int8 with scales in float" if int8 else "float",
        "table_bytes": f"{export.table_bytes:,}",
        "test_bytes": f"{sum(values.bytes for values in tests.values()):,}",
        "expected": expected,
        "rank": settled.rank,
        "work": work,
        "real": real,
        "weight": "signed char" if int8 else "float",
        "mean": "mean" in tables,
        "kappa": float_literal(chain.kappa) if along and chain.kappa != 1 else "",
        "longest_gap": LONGEST_GAP * chain.step // stride if along else 0,
        "statistics": settled.n_statistics,
        "axes": settled.n_axes,
        **_statistic_numbers(settled, export.shape[1]),
        "masked": masked is not None,
        **(masked.numbers if masked else {}),
        "tables": tables | (masked.tables if masked else {}),
        "tests": tests,
        "tolerance": float_literal(_TOLERANCE * max(size, 1e-6)),
        "probability_tolerance": float_literal(_PROBABILITY_TOLERANCE),
    }
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("polyadic.export", "."),
        autoescape=False,  # noqa: S701  this is C; names are escaped by `comment` and `string_literal`
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    for file, template in zip(export.files, ("model.c.j2", "model.h.j2"), strict=True):
        write_atomically(file, templates.get_template(template).render(known).encode())
    return export


def _form(model: Any) -> CForm:
    """Return the C code of the model's tensorizer."""
    if model.tensorize_ is None:
        raise PolyadicError("tensorize must be an STFT for export to C, but is None: export the model as ONNX")
    form: CForm = model.tensorize_.c_form(tuple(int(size) for size in model._sample_shape))
    sizes = tuple(len(factor) for factor in model.factors_)
    if tuple(form.shape) != sizes:
        raise PolyadicError(f"the C code of tensorize has shape {form.shape}, but the model's tensors have {sizes}")
    return form


def _model_tables(
    settled: Inference, quantised: Quantised | None, form: CForm, real: str, centre: NDArray[np.float32], length: int
) -> dict[str, Table]:
    """Return the tables of all steps after the tensorizer."""
    # With int8, the mean does not need float32 precision, so all of it is folded into the offset.
    mean = None if form.mean is None or quantised is not None else form.mean.astype(np.float32)
    offset = settled.offset + _shift(settled, form, mean)
    factors: Sequence[Any] = settled.factors if quantised is None else quantised.factors
    weight = "float" if quantised is None else "signed char"
    modes = zip(("first", "second", "third"), factors, strict=True)
    tables = {name: table(factor.T, weight) for name, factor in modes}
    if quantised is None:
        tables |= {"matrix": table(settled.matrix, real), "offset": table(offset, real)}
    else:
        tables |= {"gain": table(quantised.gain), "matrix": table(quantised.matrix, weight)}
        tables |= {"scale": table(quantised.scale), "offset": table(offset)}
    if mean is not None:
        tables["mean"] = table(mean)
    if settled.n_statistics or "polyadic_centre" in form.code:
        tables["centre"] = table(centre)
    if settled.n_statistics:
        tables |= _statistic_tables(settled, quantised, length, centre)
    if settled.classes:
        tables["weights"] = table(settled.weights if quantised is None else quantised.weights, weight)
        if quantised is not None:
            tables["weight_scale"] = table(quantised.weight_scale)
        tables["intercept"] = table(settled.intercept)
    return tables


def _statistic_tables(
    settled: Inference, quantised: Quantised | None, length: int, centre: NDArray[np.float32]
) -> dict[str, Table]:
    """Return the tables of the statistics; mean, minimum and maximum are computed relative to `centre`."""
    edges, padded = band_edges(length), padded_length(length)
    # The gain of the block is in its last factor: that of the axes or of the statistics.
    gain = settled.statistic_gain * (1.0 if settled.n_axes else settled.block_gain)
    relative = -settled.statistic_mean
    relative[: 3 * len(centre)] += np.tile(centre.astype(np.float64), 3)
    tables = {"statistic_gain": table(gain), "statistic_offset": table(gain * relative)}
    if edges:
        tables["band"] = table(np.array(edges))
        tables["sine"] = table(np.sin(2 * np.pi * np.arange(padded // 4 + 1) / padded))
    if settled.n_axes and quantised is None:
        tables["axes"] = table(settled.statistic_axes.T * settled.block_gain)
    elif settled.n_axes and quantised is not None:
        tables["axes"] = table(quantised.axes, "signed char")
        tables["axis_scale"] = table(quantised.axis_scale * settled.block_gain)
    return tables


def _statistic_numbers(settled: Inference, length: int) -> dict[str, Any]:
    """Return the numbers of `statistics.c.j2`."""
    padded, block = padded_length(length), 1.0 if settled.n_axes else settled.block_gain
    numbers = {"power_scale": 2 / padded, "zero_mean": ZERO_MEAN, "floor": FLOOR, "silent": SILENT, "tie": TIE}
    numbers |= {"tiny": TINY, "clip": CLIP * block}
    counts = {"padded": padded, "bands": max(len(band_edges(length)) - 1, 0)}
    counts["fewest"] = math.ceil(FEWEST_SAMPLES * length - 1e-9)
    return {name: float_literal(value) for name, value in numbers.items()} | counts


def _shift(settled: Inference, form: CForm, mean: NDArray[np.float32] | None) -> NDArray[np.float64]:
    """Return the shift of the features if `mean` is subtracted from tensors instead of the exact mean: (S,)."""
    if form.mean is None:
        return np.zeros(len(settled.matrix))
    return -settled.matrix @ settled.project_mean(form.mean if mean is None else form.mean - mean)


def _memory(
    settled: Inference, form: CForm, sample_shape: Sequence[int], real: str, state: int
) -> tuple[int, int, int]:
    """Return the floats of the work area, which the tensorizer and the statistics share, and `sizeof` of both structs.

    `state` are the bytes of the chain. Alignment is natural.
    """
    unit, (channels, length) = BYTES[real], map(int, sample_shape)
    work, floats = max(1, form.work), form.shape[0] * form.shape[1]
    if settled.n_statistics:
        work = max(work, padded_length(length), channels)
        floats += 4 * channels + (settled.n_statistics if settled.n_axes else 0)

    def up(count: int) -> int:
        return -(-count // unit) * unit

    scratch = up(up(4 * (floats + work)) + unit * settled.rank + 4 * settled.n_features)
    return work, scratch, up(4 * channels * length + 3 * 4 + state) + scratch


def _chain_of(probe: Any) -> tuple[Any, NDArray[np.float64]]:
    """Return the chain that `predict` uses, or None, and the factor of each class's emission, prior^-kappa: (K,)."""
    fitted = getattr(probe, "probe_", probe)
    chain = getattr(fitted, "chain_", None)
    if chain is None or not chain.is_default:
        return None, np.ones(0)
    logarithm = chain.kappa * Probe.of(fitted).likelihoods_of(np.zeros(len(chain.initial)))
    return chain, np.exp(logarithm - logarithm.max())


def _channel_lines(model: Any) -> list[str]:
    """Return the names of the channels with their units, escaped for a comment."""
    count = int(model._sample_shape[0])
    names = model.channel_names_ or [f"channel {number + 1}" for number in range(count)]
    units = model.units_ or [""] * count
    return [comment(f"{name} ({unit})" if unit else name) for name, unit in zip(names, units, strict=True)]


def _hash(exact: Inference, form: CForm) -> str:
    """Return the SHA-256 of the numbers of a model."""
    state = hashlib.sha256(repr((form.shape, dict(form.defines), [str(name) for name in exact.classes])).encode())
    statistics = (exact.statistic_mean, exact.statistic_gain * exact.block_gain, exact.statistic_axes)
    arrays = (*exact.factors, exact.matrix, exact.offset, *statistics, exact.weights, exact.intercept)
    for array in (*arrays, *form.tables.values(), *(() if form.mean is None else (form.mean,))):
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


# ------------------------------------------------------------------------ test windows


def _test_windows(model: Any, exact: Inference) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return test windows (N, channels, time) as float32 numbers, and a level near that of each channel: (channels,).

    The first window is that of the selftest. It is rounded to four digits, without its level, to keep the file short.
    """
    channels = int(model._sample_shape[0])
    centre = exact.statistic_mean[:channels] if exact.n_statistics else np.zeros(channels)  # means come first
    windows, rounded = typical_windows(model, _TYPICAL, centre), centre.astype(np.float32)
    first = windows[0] - rounded[:, None]
    size = np.abs(first).max(axis=1, keepdims=True)
    unit = 10.0 ** np.floor(np.log10(np.where(size > 0, size, 1.0)) - 4)
    windows[0] = np.rint(first / unit) * unit + rounded[:, None]
    return windows.astype(np.float32).astype(np.float64), rounded


def _test_tables(export: CExport, window: NDArray[np.float32]) -> tuple[dict[str, Table], str]:
    """Return the tables of the test window and its expected result, and that result as text."""
    Z = export.features(window[None])
    tables = {"test_window": table(window), "test_features": table(Z[0])}
    if not export.classes:
        more = f", and {Z.size - 8} more" if Z.size > 8 else ""
        return tables, f"features of the test window: {', '.join(f'{value:.4g}' for value in Z[0, :8])}{more}"
    P = export.probabilities(window[None])[0]
    tables["test_probability"] = table(P)
    named = [f"{comment(str(name))} {value:.4f}" for name, value in zip(export.classes, P, strict=True)]
    return tables, "probabilities of the test window: " + ", ".join(named)
