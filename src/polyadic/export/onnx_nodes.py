"""Statistics and missing samples as nodes of an ONNX graph: `polyadic.statistics`, `core.missing`, `core.completion`.

Everything is in float64. The spectrum of the padded window is ONNX's DFT operator: a matrix of the transform would be
as large as the square of a window's length. ONNX has no factorisations: an inverse is a loop of Gauss-Jordan steps, one
for each row, and the symmetric root of a covariance a loop of Newton-Schulz steps. Both run only if something is
missing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from polyadic import statistics
from polyadic.core.completion import Solver
from polyadic.core.missing import CLIPPED_SHARE, longest_gap
from polyadic.evaluate.probe import fixed_points
from polyadic.export.inference import Inference
from polyadic.export.onnx_graph import Graph
from polyadic.readout import CLIP

_ROOT_STEPS = 30
"""Newton-Schulz steps; the root of a variance of 1e-9 of the total is then exact to 1e-4 of the largest root."""


# --------------------------------------------------------------- what is missing


class Filled(NamedTuple):
    windows: Any  # without NaN
    present: Any  # (N, C, time) float64
    observed: Any  # (N, I, 1, K) float64, rows and frames


def filled(graph: Graph, model: Any, window: Any) -> Filled | None:
    """Add what is present in windows, and fill the rest; None if the model has no form for it."""
    prior = getattr(model, "prior_", None)
    if prior is None or model.tensorize_ is None:
        return None
    channels, length = map(int, model._sample_shape)
    missing = window.apply("IsNaN")
    zeros = missing.where(0, window)
    if not model._keeps_flat:
        missing |= _dead(zeros, missing, prior.flatness, length)
        zeros = missing.where(0, window)
    windows, present = _interpolated(graph, zeros, missing, length, longest_gap(model.fs_))
    frames = model.tensorize_.onnx_observed(graph, (~present).to(np.float32), (channels, length))
    by_row = frames.to(np.float64).take(np.arange(len(model.factors_[0])) % channels, 1)
    return Filled(windows, present.to(np.float64), by_row.unsqueeze(2))


def _dead(zeros: Any, missing: Any, flatness: Any, length: int) -> Any:
    """Add which channels are dead, as `dead_channels`: (N, C, 1) bool."""
    low = missing.where(np.inf, zeros).reduce("Min", 2, keep=True)
    high = missing.where(-np.inf, zeros).reduce("Max", 2, keep=True)
    dead = low.apply("Equal", high)
    if not flatness.shape[1]:
        return dead
    below, lowest, highest = (row[:, None] for row in flatness)
    known = (~missing).to(np.float32)
    count = known.sum(2).apply("Max", 1)
    # Relative to the minimum, float32 suffices however large an offset is; a channel without samples is 0.
    apart = (zeros - low.apply("IsInf").where(0, low)) * known
    centred = (apart - apart.sum(2) / count) * known
    deviation = ((centred * centred).sum(2) / count).apply("Sqrt")
    dead |= (deviation < below) & (low <= high)
    for extreme, reached in ((low, low <= lowest), (high, high >= highest)):
        share = (zeros.apply("Equal", extreme) & ~missing).to(np.float32).sum(2)
        dead |= reached & (share > CLIPPED_SHARE * length)
    return dead


def _interpolated(graph: Graph, zeros: Any, missing: Any, length: int, longest: int) -> tuple[Any, Any]:
    """Add windows without gaps and the samples that are present, as `fill_gaps`: (N, C, time) each, the second bool."""
    places = graph.constant(np.arange(length), np.float32)
    before = _running_maximum(graph, missing.where(-1, places), length, False)
    # The next known sample is the previous one, counted from the end; `length` if there is none.
    backwards = graph.constant(np.arange(length)[::-1], np.float32)
    after = length - 1 - _running_maximum(graph, missing.where(-1, backwards), length, True)
    has_before, has_after = before >= 0, after < length
    left, right = has_before.where(before, after), has_after.where(after, before)
    first, second = (
        graph.add("GatherElements", zeros, place.apply("Clip", 0, length - 1).to(np.int64), axis=2)
        for place in (left, right)
    )
    share = ((places - left) / (right - left).apply("Max", 1)).apply("Clip", 0, 1)
    line = first + (second - first) * share
    present = ~missing | ((has_before | has_after) & (after - before - 1 <= longest))
    return missing.where(line, zeros), present


def _running_maximum(graph: Graph, values: Any, length: int, reverse: bool) -> Any:
    """Add the maximum of all values up to each one along the last axis, or from each one on."""
    step = 1
    while step < length:
        pads = [0, 0, 0, 0, 0, step] if reverse else [0, 0, step, 0, 0, 0]
        padded = graph.add("Pad", values, graph.integers(pads), graph.constant(-1, np.float32))
        first = step if reverse else 0
        values, step = values.apply("Max", padded.part(first, first + length)), 2 * step
    return values


# --------------------------------------------------------------------- statistics


def standardised_statistics(graph: Graph, inference: Inference, window: Any, shape: Any, present: Any) -> Any:
    """Add standardised statistics of the samples that are present: (N, S) float64, NaN where there are too few."""
    channels, length = shape
    values = graph.add("Concat", *_statistics(graph, window, channels, length, present), axis=1)
    readout = inference.readout
    z = ((values - readout.statistic_mean) * readout.statistic_gain).apply("Clip", -CLIP, CLIP)
    own = statistics.channels_of_statistics(channels, length).numpy() * (channels + 1)
    rows, columns = statistics.correlated_pairs(channels).numpy()
    counts = _pairs(graph, present).reshape(-1, channels * channels)
    counts = counts.take(np.concatenate([own, rows * channels + columns]), 1)
    known = counts >= statistics.FEWEST_SAMPLES * length - 1e-9
    return known.where(z, np.nan)


def _pairs(graph: Graph, x: Any) -> Any:
    # Older versions of onnxruntime fuse a transposition and a product to an operator that lacks float64.
    return graph.add("Einsum", x, x, equation="nct,ndt->ncd")


def _statistics(graph: Graph, window: Any, channels: int, length: int, present: Any) -> list[Any]:
    """Add every statistic, in the order of `STATISTICS`: a list of (N, n) float64."""

    def average(x: Any) -> Any:
        """Average values that are 0 where no sample is present."""
        return x.sum(2, keep=False) / count

    def in_columns(x: Any) -> Any:
        return x.reshape(-1, channels, 1)

    count = present.sum(2, keep=False).apply("Max", 1.0)
    X = window.to(np.float64)
    first = X.apply("GatherElements", present.apply("ArgMax", axis=2, keepdims=1), axis=2)
    apart = (X - first) * present  # relative to the first sample, a constant channel is exactly 0
    X, middle = first + apart, average(apart)
    centred = (apart - in_columns(middle)) * present
    deviation = average(centred * centred).apply("Sqrt")
    z = centred / in_columns((deviation > 0.0).where(deviation, 1.0))
    squares = z * z
    mean = first.reduce("Max", 2) + middle  # the maximum over one sample removes the axis
    floor = deviation * statistics.FLOOR + (deviation.reduce("Max", 1, keep=True) * statistics.SILENT + statistics.TINY)
    found = [
        (mean.apply("Abs") <= deviation * statistics.ZERO_MEAN).where(0.0, mean),
        X.reduce("Min", 2),
        X.reduce("Max", 2),
        (deviation + floor).apply("Log"),
        average(squares * z),
        average(squares * squares).apply("Max", 1.0).apply("Log"),
    ]
    above = (centred >= in_columns(apart.apply("Abs").reduce("Max", 2) * -statistics.TIE)).to(np.float64)
    if length == 1:
        found.append((above - above).reduce("Mean", 2))
    else:
        changes = (above.part(1, length) - above.part(0, length - 1)).apply("Abs")
        both = present.part(1, length) * present.part(0, length - 1)
        found.append((changes * both).reduce("Mean", 2) / both.reduce("Mean", 2).apply("Max", 1 / (length - 1)))
    padded, edges = statistics.padded_length(length), statistics.band_edges(length)
    if edges:
        samples = centred.reshape(-1, channels, length, 1)
        power = graph.add("DFT", samples, graph.integers(padded), axis=2, onesided=1).reduce("SumSquare", 3)
        bands = graph.add("Concat", *(power.part(*band).sum(2) for band in pairwise(edges)), axis=2)
        logarithms = (bands * (2 / padded / in_columns(count)) + in_columns(floor * floor)).apply("Log")
        found.append(logarithms.reshape(-1, channels * (len(edges) - 1)))
    rows, columns = statistics.correlated_pairs(channels).numpy()
    if len(rows):
        listed = (_pairs(graph, z) / _pairs(graph, present).apply("Max", 1.0)).reshape(-1, channels * channels)
        found.append(listed.take(rows * channels + columns, 1))
    return found


# ------------------------------------------------------------------ what follows


def completed(
    graph: Graph, model: Any, inference: Inference, found: Filled, projections: Any, z: Any
) -> tuple[Any, Any, Any]:
    """Add what follows from the distribution of unlabelled windows.

    From projections K_oᵀt_o (N, R) and standardised statistics (N, S) with NaN where missing, or None: projections with
    the expectation of what is missing, statistics without NaN, and the symmetric root (N, k, k) of the covariance of
    the logits, None without a probe. All are float64.
    """
    outputs, weights = [projections, *([] if z is None else [z])], inference.uncertain
    solver = model._solver(torch.device("cpu"))

    def lacking() -> list[Any]:
        return _completed(graph, solver, inference, found.observed, projections, z)

    def complete() -> list[Any]:
        same = [graph.add("Identity", name) for name in outputs]
        if len(weights):
            same.append((projections * 0).sum(1).unsqueeze(2) * np.zeros((1, len(weights), len(weights))))
        return same

    lacks = graph.add("ReduceMin", found.present, keepdims=0).apply("Less", 1)
    results = graph.branches(lacks, lacking, complete, len(outputs) + bool(len(weights)))
    return results[0], None if z is None else results[1], results[-1] if len(weights) else None


def _completed(graph: Graph, solver: Solver, inference: Inference, observed: Any, b: Any, z: Any) -> list[Any]:
    """Add `Solver.coefficients`, `Solver.statistics` and `Solver.spread`; see `completed`."""
    rank, weights = inference.rank, inference.uncertain

    def form(a: Any, matrix: Any, shared: str = "") -> Any:
        """Multiply aᵀ matrix a."""
        return graph.product(a, matrix @ a, shared)

    seen, unseen = (_gram(graph, inference, mask) for mask in (observed, 1 - observed))
    root = solver.root.numpy() / np.sqrt(solver.noise)
    posterior = root @ (_inverse(graph, np.eye(rank) + root @ (seen @ root), rank) @ root)  # in units of the noise
    mean = solver.mean.numpy()[:, None]
    x_map = mean + posterior @ (b - (seen @ mean).row()).unsqueeze(2)
    completed = b + (unseen @ x_map).row()
    lost = solver.noise * (unseen + unseen @ (posterior @ unseen))
    D = graph.constant((weights[:, : len(inference.matrix)] @ inference.matrix).T) if len(weights) else None
    if z is None:
        return [completed, *([_root(graph, form(D, lost, "a"), len(weights))] if len(weights) else [])]
    V, L = solver.V.numpy(), solver.loadings.numpy()
    gain, unique, axes = solver.gain.numpy(), solver.unique.numpy(), L.shape[1]
    spread = ((V @ (lost @ V)) * np.eye(rank)).sum(2, keep=False)
    known = ~z.apply("IsNaN")
    of_x = (gain > 0).astype(float) / (spread * gain**2 + unique[:rank])
    share = of_x.apply("Concat", known.to(np.float64) * (1 / unique[rank:]), axis=1)
    # float32 halves the table; it is exact to 1e-7.
    loadings = graph.constant(L, np.float32).to(np.float64)
    standard = ((completed @ V - solver.mean.numpy()) * gain).apply("Concat", known.where(z, 0), axis=1)
    system = np.eye(axes) + graph.product(loadings * share.unsqueeze(2), loadings, "b")
    inverse = _inverse(graph, system, axes)
    f = (inverse @ ((standard * share) @ loadings).unsqueeze(2)).row()
    own, others = loadings.part(rank, len(L), 0), loadings.part(0, rank, 0)
    results = [completed, known.where(z, f @ graph.add("Transpose", own, perm=[1, 0]))]
    if not len(weights):
        return results
    block = inference.readout.pulled_back(torch.from_numpy(weights))[1].numpy()
    effect = block.T * (~known).to(np.float64).unsqueeze(2)  # (N, S, k)
    on_axes = graph.product(own, effect, "a")  # (N, A, k)
    follows = (others @ (inverse @ on_axes)) * (of_x * gain).unsqueeze(2)  # of coefficients, by their regression
    total = D + V @ follows
    alone = graph.product(effect, effect * unique[rank:, None])
    logits = form(total, lost) + (form(on_axes, inverse) + alone)
    return [*results, _root(graph, logits, len(weights))]


def _gram(graph: Graph, inference: Inference, mask: Any) -> Any:
    """Add K_oᵀK_o for a mask (N, I, 1, K): (N, R, R)."""
    first, second, third = inference.factors
    # The Khatri-Rao product, as a node because it is larger than its factors.
    K = (graph.constant(first).unsqueeze(1) * third[None]).reshape(-1, inference.rank)
    return graph.product(K * mask.reshape(0, -1, 1), K, "b") * (second.T @ second)


def _inverse(graph: Graph, matrix: Any, size: int) -> Any:
    """Add the inverses of positive definite matrices (N, size, size), by Gauss and Jordan's steps."""
    identity = graph.constant(np.eye(size))

    def step(number: Any, a: Any) -> list[Any]:
        row, column = (graph.add("Gather", a, number, axis=axis) for axis in (1, 2))  # (N, 1, size), (N, size, 1)
        pivot = graph.add("Gather", row, number, axis=2)
        unit = graph.add("Gather", identity, number, axis=0)  # (1, size)
        down = unit.reshape(size, 1)
        row, column = row * (1 - unit) + unit, column * (1 - down) - down
        return [a * (1 - unit) * (1 - down) - column * (row / pivot)]

    return graph.loop(size, step, matrix)[0]


def _root(graph: Graph, covariance: Any, size: int) -> Any:
    """Add the symmetric roots of positive semidefinite matrices (N, size, size), by Newton and Schulz's steps."""
    trace = graph.add("ReduceSum", covariance * np.eye(size), graph.integers([1, 2])).apply("Max", 1e-300)

    def step(_: Any, y: Any, z: Any) -> list[Any]:
        correction = 1.5 * np.eye(size) - 0.5 * (z @ y)
        return [y @ correction, correction @ z]

    scaled = covariance / trace
    return graph.loop(_ROOT_STEPS, step, scaled, np.eye(size) + scaled * 0)[0] * trace.apply("Sqrt")


def averaged(graph: Graph, inference: Inference, logits: Any, root: Any) -> Any:
    """Add probabilities averaged over the distribution of the logits, as `averaged_softmax`: (N, classes) float32.

    `root` (N, k, k) is that of the covariance of the last k logits.
    """
    classes, size = len(inference.classes), len(inference.uncertain)
    points = fixed_points(size)
    moved = np.concatenate([points, -points]) @ root  # (N, points, size)
    if classes > size:
        moved = graph.add("Pad", moved, graph.integers([0, 0, classes - size, 0, 0, 0]), graph.constant(0.0))
    scores = (logits.unsqueeze(1).to(np.float64) + moved).to(np.float32)
    return scores.apply("Softmax", axis=2).reduce("Mean", 1)
