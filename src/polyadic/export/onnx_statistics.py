"""The statistics of raw windows as nodes of an ONNX graph: those of `polyadic.statistics`, in float64.

The spectrum of the padded window is ONNX's DFT operator: a matrix of the transform would be as large as the square of a
window's length.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from polyadic.readout import CLIP
from polyadic.statistics import FLOOR, SILENT, TIE, TINY, ZERO_MEAN, band_edges, padded_length

if TYPE_CHECKING:
    from polyadic.export.inference import Inference

__all__ = ["statistics_block"]


def statistics_block(graph: Any, inference: Inference, window: str, shape: tuple[int, ...]) -> str:
    """Add the features that follow the spectral ones, from windows (N, channels, time): (N, S or A) float32."""
    statistics = graph.add("Concat", *_statistics(graph, window, *shape), axis=1)
    centred = graph.add("Sub", statistics, graph.constant(inference.statistic_mean, np.float64))
    z = graph.add("Mul", centred, graph.constant(inference.statistic_gain, np.float64))
    limits = (graph.constant(value, np.float64) for value in (-CLIP, CLIP))
    z = graph.add("Cast", graph.add("Clip", z, *limits), to=graph.float)
    if inference.n_axes:
        return str(graph.add("MatMul", z, graph.constant(inference.statistic_axes * inference.block_gain, np.float32)))
    return str(graph.add("Mul", z, graph.constant(inference.block_gain, np.float32)))


def _statistics(graph: Any, window: str, channels: int, length: int) -> list[str]:
    """Add every statistic, in the order of `STATISTICS`: a list of (N, n) float64."""
    add = graph.add

    def number(value: float) -> str:
        return str(graph.constant(value, np.float64))

    def over_time(operator: str, name: str) -> str:
        return str(add(operator, name, axes=[2], keepdims=0))

    def in_columns(name: str, columns: int) -> str:
        return str(add("Reshape", name, graph.constant([-1, columns, 1], np.int64)))

    def part(name: str, first: int, end: int) -> str:
        """Select indices of the last axis of (N, channels, …)."""
        bounds = (graph.constant([bound], np.int64) for bound in (first, end, 2))
        return str(add("Slice", name, *bounds))

    X = add("Cast", window, to=graph.double)
    # Relative to the first sample, a constant channel is exactly 0.
    first = part(X, 0, 1)
    apart = add("Sub", X, first)
    middle = over_time("ReduceMean", apart)
    centred = add("Sub", apart, in_columns(middle, channels))
    deviation = add("Sqrt", over_time("ReduceMean", add("Mul", centred, centred)))
    divisor = add("Where", add("Greater", deviation, number(0.0)), deviation, number(1.0))
    z = add("Div", centred, in_columns(divisor, channels))
    squares = add("Mul", z, z)
    mean = add("Add", over_time("ReduceMax", first), middle)  # the maximum over one sample removes the axis
    is_rounding = add("LessOrEqual", add("Abs", mean), add("Mul", deviation, number(ZERO_MEAN)))
    largest = add("ReduceMax", deviation, axes=[1], keepdims=1)
    silent = add("Add", add("Mul", largest, number(SILENT)), number(TINY))
    floor = add("Add", add("Mul", deviation, number(FLOOR)), silent)
    kurtosis = over_time("ReduceMean", add("Mul", squares, squares))
    found = [
        add("Where", is_rounding, number(0.0), mean),
        over_time("ReduceMin", X),
        over_time("ReduceMax", X),
        add("Log", add("Add", deviation, floor)),
        over_time("ReduceMean", add("Mul", squares, z)),
        add("Log", add("Max", kurtosis, number(1.0))),
    ]
    tie = in_columns(add("Mul", over_time("ReduceMax", add("Abs", apart)), number(-TIE)), channels)
    above = add("Cast", add("GreaterOrEqual", centred, tie), to=graph.double)
    if length > 1:
        changes = add("Abs", add("Sub", part(above, 1, length), part(above, 0, length - 1)))
    else:
        changes = add("Sub", above, above)
    found.append(over_time("ReduceMean", changes))
    padded, edges = padded_length(length), band_edges(length)
    if edges:
        samples = add("Reshape", centred, graph.constant([-1, channels, length, 1], np.int64))
        spectrum = add("DFT", samples, graph.constant(padded, np.int64), axis=2, onesided=1)
        power = add("ReduceSumSquare", spectrum, axes=[3], keepdims=0)
        last = graph.constant([2], np.int64)
        bands = add("Concat", *(add("ReduceSum", part(power, *band), last) for band in pairwise(edges)), axis=2)
        scaled = add("Mul", bands, number(2 / (padded * length)))
        logarithms = add("Log", add("Add", scaled, in_columns(add("Mul", floor, floor), channels)))
        found.append(add("Reshape", logarithms, graph.constant([-1, channels * (len(edges) - 1)], np.int64)))
    if channels > 1:
        # Older versions of onnxruntime fuse a transposition and a product to an operator that lacks float64.
        products = add("Einsum", z, z, equation="nct,ndt->ncd")
        listed = add("Reshape", products, graph.constant([-1, channels * channels], np.int64))
        rows, columns = np.triu_indices(channels, 1)
        pairs = add("Gather", listed, graph.constant(rows * channels + columns, np.int64), axis=1)
        found.append(add("Mul", pairs, number(1 / length)))
    return found
