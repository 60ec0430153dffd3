"""The statistics of raw windows as nodes of an ONNX graph: those of `polyadic.statistics`, in float64.

The spectrum of the padded window is ONNX's DFT operator: a matrix of the transform would be as large as the square of a
window's length.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from polyadic.readout import CLIP
from polyadic.statistics import (
    FEWEST_SAMPLES,
    FLOOR,
    SILENT,
    TIE,
    TINY,
    ZERO_MEAN,
    band_edges,
    channels_of_statistics,
    padded_length,
)

if TYPE_CHECKING:
    from polyadic.export.inference import Inference

__all__ = ["standardised_statistics", "statistics_block"]


def standardised_statistics(
    graph: Any, inference: Inference, window: str, shape: tuple[int, int], present: str | None
) -> str:
    """Add standardised statistics of windows (N, channels, time): (N, S) float64, NaN where missing.

    Parameters
    ----------
    present : (N, channels, time) float64, 1 for the samples to use; None for all
    """
    statistics = graph.add("Concat", *_statistics(graph, window, *shape, present), axis=1)
    centred = graph.add("Sub", statistics, graph.constant(inference.statistic_mean, np.float64))
    z = graph.add("Mul", centred, graph.constant(inference.statistic_gain, np.float64))
    limits = (graph.constant(value, np.float64) for value in (-CLIP, CLIP))
    z = graph.add("Clip", z, *limits)
    if present is None:
        return str(z)
    share = _shares(graph, present, *shape)
    known = graph.add("GreaterOrEqual", share, graph.constant(FEWEST_SAMPLES * shape[1] - 1e-9, np.float64))
    return str(graph.add("Where", known, z, graph.constant(np.nan, np.float64)))


def _shares(graph: Any, present: str, channels: int, length: int) -> str:
    """Add the number of samples of each statistic: (N, S)."""
    both = graph.add("Einsum", present, present, equation="nct,ndt->ncd")
    flat = graph.add("Reshape", both, graph.constant([-1, channels * channels], np.int64))
    own = channels_of_statistics(channels, length).numpy() * (channels + 1)
    rows, columns = np.triu_indices(channels, 1)
    places = np.concatenate([own, rows * channels + columns])
    return str(graph.add("Gather", flat, graph.constant(places, np.int64), axis=1))


def statistics_block(graph: Any, inference: Inference, z: str) -> str:
    """Add the features that follow the spectral ones, from standardised statistics: (N, S or A) float32."""
    z = graph.add("Cast", z, to=graph.float)
    if inference.n_axes:
        return str(graph.add("MatMul", z, graph.constant(inference.statistic_axes * inference.block_gain, np.float32)))
    return str(graph.add("Mul", z, graph.constant(inference.block_gain, np.float32)))


def _statistics(graph: Any, window: str, channels: int, length: int, present: str | None) -> list[str]:
    """Add every statistic, in the order of `STATISTICS`: a list of (N, n) float64."""
    add = graph.add

    def number(value: float) -> str:
        return str(graph.constant(value, np.float64))

    def over_time(operator: str, name: str) -> str:
        return str(add(operator, name, axes=[2], keepdims=0))

    def average(name: str) -> str:
        """Average values that are 0 where no sample is present."""
        if present is None:
            return over_time("ReduceMean", name)
        return str(add("Div", add("ReduceSum", name, graph.constant([2], np.int64), keepdims=0), count))

    def masked(name: str) -> str:
        return name if present is None else str(add("Mul", name, present))

    def in_columns(name: str, columns: int) -> str:
        return str(add("Reshape", name, graph.constant([-1, columns, 1], np.int64)))

    def part(name: str, first: int, end: int) -> str:
        """Select indices of the last axis of (N, channels, …)."""
        bounds = (graph.constant([bound], np.int64) for bound in (first, end, 2))
        return str(add("Slice", name, *bounds))

    X = add("Cast", window, to=graph.double)
    # Relative to the first sample, a constant channel is exactly 0.
    first, count = part(X, 0, 1), ""
    if present is not None:
        first = add("GatherElements", X, add("ArgMax", present, axis=2, keepdims=1), axis=2)
        count = add("Max", add("ReduceSum", present, graph.constant([2], np.int64), keepdims=0), number(1.0))
    apart = masked(add("Sub", X, first))
    X = X if present is None else add("Add", first, apart)
    middle = average(apart)
    centred = masked(add("Sub", apart, in_columns(middle, channels)))
    deviation = add("Sqrt", average(add("Mul", centred, centred)))
    divisor = add("Where", add("Greater", deviation, number(0.0)), deviation, number(1.0))
    z = add("Div", centred, in_columns(divisor, channels))
    squares = add("Mul", z, z)
    mean = add("Add", over_time("ReduceMax", first), middle)  # the maximum over one sample removes the axis
    is_rounding = add("LessOrEqual", add("Abs", mean), add("Mul", deviation, number(ZERO_MEAN)))
    largest = add("ReduceMax", deviation, axes=[1], keepdims=1)
    silent = add("Add", add("Mul", largest, number(SILENT)), number(TINY))
    floor = add("Add", add("Mul", deviation, number(FLOOR)), silent)
    kurtosis = average(add("Mul", squares, squares))
    found = [
        add("Where", is_rounding, number(0.0), mean),
        over_time("ReduceMin", X),
        over_time("ReduceMax", X),
        add("Log", add("Add", deviation, floor)),
        average(add("Mul", squares, z)),
        add("Log", add("Max", kurtosis, number(1.0))),
    ]
    tie = in_columns(add("Mul", over_time("ReduceMax", add("Abs", apart)), number(-TIE)), channels)
    above = add("Cast", add("GreaterOrEqual", centred, tie), to=graph.double)
    if length == 1:
        found.append(over_time("ReduceMean", add("Sub", above, above)))
    else:
        changes = add("Abs", add("Sub", part(above, 1, length), part(above, 0, length - 1)))
        if present is None:
            found.append(over_time("ReduceMean", changes))
        else:
            both = add("Mul", part(present, 1, length), part(present, 0, length - 1))
            crossings = over_time("ReduceMean", add("Mul", changes, both))
            pairs = add("Max", over_time("ReduceMean", both), number(1 / (length - 1)))
            found.append(add("Div", crossings, pairs))
    padded, edges = padded_length(length), band_edges(length)
    if edges:
        samples = add("Reshape", centred, graph.constant([-1, channels, length, 1], np.int64))
        spectrum = add("DFT", samples, graph.constant(padded, np.int64), axis=2, onesided=1)
        power = add("ReduceSumSquare", spectrum, axes=[3], keepdims=0)
        last = graph.constant([2], np.int64)
        bands = add("Concat", *(add("ReduceSum", part(power, *band), last) for band in pairwise(edges)), axis=2)
        samples_used = number(length) if present is None else in_columns(count, channels)
        scaled = add("Mul", bands, add("Div", number(2 / padded), samples_used))
        logarithms = add("Log", add("Add", scaled, in_columns(add("Mul", floor, floor), channels)))
        found.append(add("Reshape", logarithms, graph.constant([-1, channels * (len(edges) - 1)], np.int64)))
    if channels > 1:
        # Older versions of onnxruntime fuse a transposition and a product to an operator that lacks float64.
        products, together = add("Einsum", z, z, equation="nct,ndt->ncd"), number(length)
        if present is not None:
            together = add("Max", add("Einsum", present, present, equation="nct,ndt->ncd"), number(1.0))
        products = add("Div", products, together)
        listed = add("Reshape", products, graph.constant([-1, channels * channels], np.int64))
        rows, columns = np.triu_indices(channels, 1)
        pairs = add("Gather", listed, graph.constant(rows * channels + columns, np.int64), axis=1)
        found.append(pairs)
    return found
