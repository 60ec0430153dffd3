"""The statistics of raw windows as nodes of an ONNX graph: `polyadic.statistics.Signals` on float32 windows.

Samples are float32, relative to the first one and divided by the largest; results are float64. The spectrum of the padded
window is ONNX's DFT operator in float64, whose float32 form is less exact than a float32 FFT.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from polyadic.readout import CLIP
from polyadic.statistics import FLOOR, TINY, ZERO_MEAN, band_edges, padded_length

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

    def exact(name: str) -> str:
        return str(add("Cast", name, to=graph.double))

    def positive(name: str) -> str:
        """Replace 0 by 1, to divide by it."""
        one, zero = graph.constant(1.0, np.float32), graph.constant(0.0, np.float32)
        return str(add("Where", add("Greater", name, zero), name, one))

    def over_time(operator: str, name: str, keepdims: int = 0) -> str:
        return str(add(operator, name, axes=[2], keepdims=keepdims))

    def part(name: str, first: int, end: int) -> str:
        bounds = (graph.constant([bound], np.int64) for bound in (first, end, 2))
        return str(add("Slice", name, *bounds))

    first = part(window, 0, 1)
    apart = add("Sub", window, first)
    size = over_time("ReduceMax", add("Abs", apart), keepdims=1)
    apart = add("Div", apart, positive(size))
    middle = over_time("ReduceMean", apart, keepdims=1)
    centred = add("Sub", apart, middle)
    unit = add("Sqrt", over_time("ReduceMean", add("Mul", centred, centred), keepdims=1))
    z = add("Div", centred, positive(unit))
    flat = graph.constant([-1, channels], np.int64)
    origin, scale, middle, unit = (exact(add("Reshape", name, flat)) for name in (first, size, middle, unit))

    def restored(name: str) -> str:
        """Undo the shift and the scale: (N, channels) float64."""
        return str(add("Add", origin, add("Mul", scale, name)))

    deviation, mean = add("Mul", scale, unit), restored(middle)
    is_rounding = add("LessOrEqual", add("Abs", mean), add("Mul", deviation, number(ZERO_MEAN)))
    largest = add("ReduceMax", deviation, axes=[1], keepdims=1)
    floor = add("Add", add("Mul", largest, number(FLOOR)), number(TINY))
    squares = add("Mul", z, z)
    kurtosis = exact(over_time("ReduceMean", add("Mul", squares, squares)))
    found = [
        add("Where", is_rounding, number(0.0), mean),
        *(restored(exact(over_time(operator, apart))) for operator in ("ReduceMin", "ReduceMax")),
        add("Log", add("Add", deviation, floor)),
        exact(over_time("ReduceMean", add("Mul", squares, z))),
        add("Log", add("Max", kurtosis, number(1.0))),
    ]
    above = add("Cast", add("GreaterOrEqual", centred, graph.constant(0.0, np.float32)), to=graph.float)
    if length > 1:
        changes = add("Abs", add("Sub", part(above, 1, length), part(above, 0, length - 1)))
        found.append(exact(over_time("ReduceMean", changes)))
    else:
        found.append(exact(add("Reshape", add("Sub", above, above), flat)))
    padded, edges = padded_length(length), band_edges(length)
    if edges:
        samples = add("Reshape", exact(centred), graph.constant([-1, channels, length, 1], np.int64))
        spectrum = add("DFT", samples, graph.constant(padded, np.int64), axis=2, onesided=1)
        power = add("ReduceSumSquare", spectrum, axes=[3], keepdims=0)
        third = graph.constant([2], np.int64)
        sums = [add("ReduceSum", part(power, *band), third, keepdims=1) for band in pairwise(edges)]
        columns = graph.constant([-1, channels, 1], np.int64)
        gain = add("Reshape", add("Mul", add("Mul", scale, scale), number(2 / (padded * length))), columns)
        least = add("Reshape", add("Mul", floor, floor), graph.constant([-1, 1, 1], np.int64))
        bands = add("Log", add("Add", add("Mul", add("Concat", *sums, axis=2), gain), least))
        found.append(add("Reshape", bands, graph.constant([-1, channels * len(sums)], np.int64)))
    if channels > 1:
        products = add("MatMul", z, add("Transpose", z, perm=[0, 2, 1]))
        listed = add("Reshape", products, graph.constant([-1, channels * channels], np.int64))
        first_channel, second_channel = np.triu_indices(channels, 1)
        pairs = add("Gather", listed, graph.constant(first_channel * channels + second_channel, np.int64), axis=1)
        found.append(add("Mul", exact(pairs), number(1 / length)))
    return found
