"""Export of a fitted model as C99 for microcontrollers: raw window → features → probabilities, also for streams.

The tensor of a window is computed and projected frame by frame, so working memory does not grow with its length.
Components are stored as rank-one factors; the closed form and the readout are one matrix (`inference`).
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyadic import statistics
from polyadic._util.checks import check_integer
from polyadic._util.files import write_atomically
from polyadic._util.torch_state import plain_torch
from polyadic._util.version import __version__
from polyadic.core.tensorizer import Tensorizer
from polyadic.data.channels import numbered_channels
from polyadic.errors import PolyadicError
from polyadic.evaluate.probe import Probe
from polyadic.evaluate.sequences import LONGEST_GAP
from polyadic.export import inference
from polyadic.export.c_masked import masked_code
from polyadic.export.c_text import Struct, Table, comment, float_literal, literal, sizeof, string_literal, table
from polyadic.export.inference import Inference
from polyadic.readout import CLIP
from polyadic.spectral import CForm

__all__ = ["CExport", "c"]

_TOLERANCE, _PROBABILITY_TOLERANCE = 1e-3, 5e-3
"""Tolerances of the selftest: relative to the root mean square of the test window's features, and of probabilities."""


@dataclass(frozen=True, eq=False)
class CExport:
    """The result of an export: the files, their sizes, and a float64 reference of what the C code computes."""

    files: tuple[Path, ...]  # the C file and the header
    shape: tuple[int, int]  # of a window, (channels, time)
    stride: int  # samples of a stream from one result to the next
    n_features: int
    classes: tuple[Any, ...]  # of the probe, () if there is none
    table_bytes: int  # of all constant tables except those of the selftest and of missing samples
    scratch_bytes: int  # `sizeof` of the structures
    stream_bytes: int
    masked_bytes: int  # for windows with missing samples; 0 if the file has no functions for them
    masked_table_bytes: int
    along: bool  # whether a stream gives probabilities along the recording
    int8: bool
    accumulator: str  # type of sums: "float", or "double" if components are nearly collinear or tensors far from 0
    _tensorizer: Tensorizer = field(repr=False)
    _inference: Inference = field(repr=False)

    @plain_torch()
    def features(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute features (N, F) of windows (N, channels, time) with the weights in the file, in float64."""
        return inference.features_of(self._tensorizer, self._inference, np.asarray(X, np.float64))

    def probabilities(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute class probabilities (N, classes) of windows (N, channels, time) like `features`, in float64."""
        if not self.classes:
            raise PolyadicError("the model has no probe, so there are no probabilities: export a WindowClassifier")
        return self._inference.probabilities(self.features(X))


@plain_torch()
def c(
    model: Any,
    path: str | os.PathLike[str],
    *,
    stride: int | None = None,
    int8: bool = False,
) -> CExport:
    """Write a fitted model as C99 with a header, for devices with little memory and no operating system.

    The code needs only `math.h`, uses memory provided by its caller, and computes in float32; see the header for the
    functions. If components are nearly collinear, sums are in double precision.

    Parameters
    ----------
    model : a fitted `CPD`, `ATD`, `SALS` or `GRSALS` whose `tensorize` supports C, such as `STFT`; or a fitted
        `WindowClassifier`
    path : the C file; the header has the same name with the extension .h
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
    target, header = Path(path), Path(path).with_suffix(".h")
    if target == header:
        raise PolyadicError(f"path must not end in .h, the extension of the header, but is {target.name}: use .c")
    model, probe = inference.parts_of(model)
    if model.tensorize_ is None:
        raise PolyadicError("tensorize must be an STFT for export to C, but is None: export the model as ONNX")
    channels, length = map(int, model._sample_shape)
    form, exact = model.tensorize_.c_form((channels, length)), Inference.of(model, probe)
    # As many windows as it takes to tell whether sums need double precision; the first one is that of the selftest.
    windows = inference.typical_windows(model, 64).astype(np.float32).astype(np.float64)
    # Rounding errors are negligible compared with int8.
    real = "double" if not int8 and inference.needs_double(model, exact, windows) else "float"
    exact = inference.fitted_to_float32(exact) if real == "double" else exact
    settled, rounded = inference.quantise(exact) if int8 else (exact, {})
    if (error := inference.rounding_error(model.tensorize_, settled, windows[:1])) > _TOLERANCE / 2:
        raise PolyadicError(
            f"in float32, features of the test window would differ by {100 * error:.2g} % of their root mean "
            f"square, because samples of about {np.abs(windows[0]).max():.2g} are far from 0: subtract the mean of "
            "each channel before fitting, or use parts of the STFT with logarithms"
        )
    chain = getattr(probe, "chain_", None)
    chain = chain if chain is not None and chain.is_default else None
    if stride is None:
        stride = length if chain is None else int(chain.step)
    check_integer("stride", stride, 1)
    along = chain is not None and stride % chain.step == 0 and stride <= LONGEST_GAP * chain.step
    chain = chain if along else None

    tables = _tables(settled, rounded, form, real, (channels, length))
    if chain is not None and probe is not None:
        tables |= _chain_tables(chain, probe, stride)
    masked = masked_code(model, exact, settled, form, real, int8)
    scratch, stream = _structures(settled, form, real, (channels, length), along)
    whole = stream | {"scratch": (real, (sizeof(scratch) // sizeof({"sum": (real, ())}),))}
    export = CExport(
        files=(target, header),
        shape=(channels, length),
        stride=int(stride),
        n_features=settled.n_features,
        classes=settled.classes,
        table_bytes=sum(values.bytes for values in tables.values()),
        scratch_bytes=sizeof(scratch),
        stream_bytes=sizeof(whole),
        masked_bytes=sizeof(masked.fields) if masked else 0,
        masked_table_bytes=sum(values.bytes for values in masked.tables.values()) if masked else 0,
        along=along,
        int8=int8,
        accumulator=real,
        _tensorizer=model.tensorize_,
        _inference=settled,
    )
    Z = export.features(windows[:1])
    tests, expected = {"window": table(windows[0]), "features": table(Z[0])}, Z[0, :8]
    if export.classes:
        expected = export.probabilities(windows[:1])[0]
        tests["probability"] = table(expected)
    names, units = model.channel_names_ or numbered_channels(channels), model.units_ or [""] * channels
    context = {
        **vars(export),
        "export": export,
        "form": form,
        "inference": settled,
        "model": model,
        "version": __version__,
        "sha256": hashlib.sha256("".join(values.text for values in tables.values()).encode()).hexdigest(),
        "channels": [f"{name} ({unit})" if unit else name for name, unit in zip(names, units, strict=True)],
        "classes": [str(name) for name in settled.classes],
        "statistics": settled.n_statistics,
        "axes": settled.n_axes,
        "real": real,
        "weight": "signed char" if int8 else "float",
        "mean": "mean" in tables,
        "chain": chain,
        "longest_gap": 0 if chain is None else LONGEST_GAP * chain.step // stride,
        "constants": statistics,
        "clip": CLIP,
        # The gain of the block is in its last factor: that of the axes or of the statistics.
        "block": 1.0 if settled.n_axes else settled.readout.block_gain,
        "padded": statistics.padded_length(length),
        "bands": max(len(statistics.band_edges(length)) - 1, 0),
        "pairs": statistics.correlated_pairs(export.shape[0]).shape[1],
        "fewest": math.ceil(statistics.FEWEST_SAMPLES * length - 1e-9),
        "masked": masked,
        **(masked.numbers if masked else {}),
        "tables": tables | (masked.tables if masked else {}),
        "tests": tests,
        "expected": expected,
        "tolerance": _TOLERANCE * max(float(np.sqrt(np.mean(np.square(Z)))), 1e-6),
        "probability_tolerance": _PROBABILITY_TOLERANCE,
        "structures": {"scratch": scratch, "stream": stream},
    }
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("polyadic.export", "."),
        autoescape=False,  # noqa: S701  this is C; names are escaped by `comment` and `string_literal`
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    templates.filters |= {"f": float_literal, "literal": literal, "comment": comment, "string_literal": string_literal}
    for file, template in zip(export.files, ("model.c.j2", "model.h.j2"), strict=True):
        write_atomically(file, templates.get_template(template).render(context).encode())
    return export


def _tables(
    settled: Inference, rounded: dict[str, NDArray[Any]], form: CForm, real: str, window: tuple[int, int]
) -> dict[str, Table]:
    """Return the tables of all steps after the tensorizer; `rounded` ones take the place of others."""
    names, readout, offset = ("first", "second", "third"), settled.readout, settled.offset
    arrays: dict[str, NDArray[Any]] = {name: factor.T for name, factor in zip(names, settled.factors, strict=True)}
    arrays["matrix"] = settled.matrix
    if form.mean is not None:
        # With int8, the mean does not need float32 precision, so all of it is folded into the offset.
        mean = np.zeros_like(form.mean) if rounded else form.mean.astype(np.float32)
        offset = offset - settled.matrix @ settled.project_mean(form.mean - mean)
        arrays |= {} if rounded else {"mean": mean}
    arrays["offset"] = offset
    # A level near that of each channel, relative to which mean, minimum and maximum are computed; means come first.
    centre = (readout.statistic_mean[: window[0]] if settled.n_statistics else np.zeros(window[0])).astype(np.float32)
    if settled.n_statistics or "polyadic_centre" in form.code:
        arrays["centre"] = centre
    if settled.n_statistics:
        edges, padded = statistics.band_edges(window[1]), statistics.padded_length(window[1])
        gain = readout.statistic_gain * (1.0 if settled.n_axes else readout.block_gain)
        relative = -readout.statistic_mean
        relative[: 3 * len(centre)] += np.tile(centre.astype(np.float64), 3)
        arrays |= {"statistic_gain": gain, "statistic_offset": gain * relative}
        if edges:
            sine = np.sin(2 * np.pi * np.arange(padded // 4 + 1) / padded)
            arrays |= {"band": np.array(edges), "sine": sine}
    if settled.n_axes:
        arrays["axes"] = readout.statistic_axes.T * readout.block_gain
    if settled.classes:
        arrays |= {"weights": settled.weights, "intercept": settled.intercept}
    arrays |= rounded | {name: np.asarray(values) for name, values in form.tables.items()}
    sums = {"matrix", "offset"} - rounded.keys()
    return {name: table(values, real if name in sums else "") for name, values in arrays.items()}


def _chain_tables(chain: Any, probe: Probe, stride: int) -> dict[str, Table]:
    """Return transitions for a stride, and the factor of each class's emission, prior^-kappa: (K,)."""
    power = np.linalg.matrix_power(chain.transitions, stride // chain.step)
    logarithm = chain.kappa * probe.likelihoods_of(np.zeros(len(chain.initial)))
    gain = np.exp(logarithm - logarithm.max())
    return {"transitions": table(power), "initial": table(chain.initial), "likelihood": table(gain)}


def _structures(
    settled: Inference, form: CForm, real: str, window: tuple[int, int], along: bool
) -> tuple[Struct, Struct]:
    """Return the fields of polyadic_scratch, and those of polyadic_stream before its scratch."""
    (channels, length), work = window, max(1, form.work)
    if settled.n_statistics:  # they share the work area with the tensorizer
        work = max(work, statistics.padded_length(length), channels)
    scratch: Struct = {"tensor": ("float", form.shape[:2]), "work": ("float", (work,))}
    if settled.n_statistics:
        scratch["channel"] = ("float", (channels, 4))
    if settled.n_axes:
        scratch["statistics"] = ("float", (settled.n_statistics,))
    scratch |= {"projection": (real, (settled.rank,)), "features": ("float", (settled.n_features,))}
    stream: Struct = {"window": ("float", window), **dict.fromkeys(("next", "seen", "since"), ("int", ()))}
    if along:
        stream |= {"steps": ("int", ()), "before": ("float", (len(settled.classes),))}
    return scratch, stream
