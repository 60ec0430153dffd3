"""The statistics of raw windows as nodes of an ONNX graph: those of `polyadic.statistics`, in float64.

The spectrum of the padded window is ONNX's DFT operator: a matrix of the transform would be as large as the square of a
window's length.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from polyadic.export.inference import Inference
from polyadic.export.onnx_graph import Graph
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

__all__ = ["standardised_statistics", "statistics_block"]


def standardised_statistics(graph: Graph, inference: Inference, window: Any, shape: Any, present: Any) -> Any:
    """Add standardised statistics of windows (N, channels, time): (N, S) float64, NaN where missing.

    Parameters
    ----------
    present : (N, channels, time) float64, 1 for the samples to use; None for all
    """
    channels, length = shape
    statistics: Any = graph.add("Concat", *_statistics(graph, window, channels, length, present), axis=1)
    z = ((statistics - inference.statistic_mean) * inference.statistic_gain).apply("Clip", -CLIP, CLIP)
    if present is None:
        return z
    own = channels_of_statistics(channels, length).numpy() * (channels + 1)
    rows, columns = np.triu_indices(channels, 1)
    counts = _pairs(graph, present).reshape(-1, channels * channels)
    known = counts.take(np.concatenate([own, rows * channels + columns]), 1) >= FEWEST_SAMPLES * length - 1e-9
    return known.where(z, np.nan)


def statistics_block(inference: Inference, z: Any) -> Any:
    """Add the features that follow the spectral ones, from standardised statistics: (N, S or A) float32."""
    z = z.to(np.float32)
    return z @ (inference.statistic_axes * inference.block_gain) if inference.n_axes else z * inference.block_gain


def _pairs(graph: Graph, x: Any) -> Any:
    # Older versions of onnxruntime fuse a transposition and a product to an operator that lacks float64.
    return graph.add("Einsum", x, x, equation="nct,ndt->ncd")


def _statistics(graph: Graph, window: Any, channels: int, length: int, present: Any) -> list[Any]:
    """Add every statistic, in the order of `STATISTICS`: a list of (N, n) float64."""

    def average(x: Any) -> Any:
        """Average values that are 0 where no sample is present."""
        return x.reduce("Mean", 2) if present is None else x.sum(2, keep=False) / count

    def masked(x: Any) -> Any:
        return x if present is None else x * present

    def in_columns(x: Any) -> Any:
        return x.reshape(-1, channels, 1)

    X = window.to(np.float64)
    first, count = X.part(0, 1), None
    if present is not None:
        first = X.apply("GatherElements", present.apply("ArgMax", axis=2, keepdims=1), axis=2)
        count = present.sum(2, keep=False).apply("Max", 1.0)
    apart = masked(X - first)  # relative to the first sample, a constant channel is exactly 0
    X = X if present is None else first + apart
    middle = average(apart)
    centred = masked(apart - in_columns(middle))
    deviation = average(centred * centred).apply("Sqrt")
    z = centred / in_columns((deviation > 0.0).where(deviation, 1.0))
    squares = z * z
    mean = first.reduce("Max", 2) + middle  # the maximum over one sample removes the axis
    floor = deviation * FLOOR + (deviation.reduce("Max", 1, keep=True) * SILENT + TINY)
    found = [
        (mean.apply("Abs") <= deviation * ZERO_MEAN).where(0.0, mean),
        X.reduce("Min", 2),
        X.reduce("Max", 2),
        (deviation + floor).apply("Log"),
        average(squares * z),
        average(squares * squares).apply("Max", 1.0).apply("Log"),
    ]
    above = (centred >= in_columns(apart.apply("Abs").reduce("Max", 2) * -TIE)).to(np.float64)
    if length == 1:
        crossings = (above - above).reduce("Mean", 2)
    else:
        changes = (above.part(1, length) - above.part(0, length - 1)).apply("Abs")
        if present is None:
            crossings = changes.reduce("Mean", 2)
        else:
            both = present.part(1, length) * present.part(0, length - 1)
            crossings = (changes * both).reduce("Mean", 2) / both.reduce("Mean", 2).apply("Max", 1 / (length - 1))
    found.append(crossings)
    padded, edges = padded_length(length), band_edges(length)
    if edges:
        samples = centred.reshape(-1, channels, length, 1)
        power = graph.add("DFT", samples, graph.integers(padded), axis=2, onesided=1).reduce("SumSquare", 3)
        bands: Any = graph.add("Concat", *(power.part(*band).sum(2) for band in pairwise(edges)), axis=2)
        scale = 2 / padded / length if present is None else 2 / padded / in_columns(count)
        logarithms = (bands * scale + in_columns(floor * floor)).apply("Log")
        found.append(logarithms.reshape(-1, channels * (len(edges) - 1)))
    if channels > 1:
        together = length if present is None else _pairs(graph, present).apply("Max", 1.0)
        rows, columns = np.triu_indices(channels, 1)
        listed = (_pairs(graph, z) / together).reshape(-1, channels * channels)
        found.append(listed.take(rows * channels + columns, 1))
    return found
