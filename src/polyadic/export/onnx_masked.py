"""Windows with missing samples in an ONNX graph: what `core.missing` and `core.completion` compute, as nodes.

NaN in the input means missing. ONNX has no factorisations: an inverse is a loop of Gauss-Jordan steps, one for each
row, and the symmetric root of a covariance a loop of Newton-Schulz steps. Both run only if something is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from polyadic.core.completion import Solver
from polyadic.core.missing import CLIPPED_SHARE, longest_gap
from polyadic.evaluate.probe import fixed_points
from polyadic.export.inference import Inference

__all__ = ["Filled", "averaged", "completed", "filled"]

_ROOT_STEPS = 30
"""Newton-Schulz steps; the root of a variance of 1e-9 of the total is then exact to 1e-4 of the largest root."""
_TINY = 1e-300


class Filled(NamedTuple):
    """Nodes: windows without NaN, samples that are present (N, C, time) and entries that are observed, as numbers.

    `observed` is float64 (N, I, J, …), with size 1 in all but the masked `modes`, in the order of the bases.
    """

    windows: str
    present: str | None
    observed: str
    modes: tuple[int, ...]


def filled(graph: Any, model: Any, window: str) -> Filled | None:
    """Add what is present in windows, and fill the rest; None if the model has no form for it."""
    prior = getattr(model, "prior_", None)
    if prior is None:
        return None
    nodes = _Nodes(graph)
    missing = graph.add("IsNaN", window)
    zeros = nodes.where(missing, nodes.number(0, np.float32), window)
    if model.tensorize_ is None:
        return Filled(zeros, None, nodes.double(graph.add("Not", missing)), tuple(range(len(model.factors_))))
    channels, length = map(int, model._sample_shape)
    if not model._keeps_flat:
        dead = _dead(nodes, zeros, missing, prior.flatness, length)
        missing = graph.add("Or", missing, dead)
        zeros = nodes.where(missing, nodes.number(0, np.float32), window)
    windows, present = _interpolated(nodes, zeros, missing, length, longest_gap(model.fs_))
    lost = graph.add("Cast", graph.add("Not", present), to=graph.float)
    frames = model.tensorize_.onnx_observed(graph, lost, (channels, length))
    if frames is None:
        return None
    rows = np.arange(len(model.factors_[0])) % channels
    by_row = graph.add("Gather", nodes.double(frames), nodes.indices(rows), axis=1)
    return Filled(windows, nodes.double(present), graph.add("Unsqueeze", by_row, nodes.indices([2])), (0, 2))


def _dead(nodes: _Nodes, zeros: str, missing: str, flatness: Any, length: int) -> str:
    """Add which channels are dead, as `dead_channels`: (N, C, 1) bool."""
    add, f = nodes.graph.add, np.float32
    last = nodes.indices([2])
    huge = [nodes.number(value, f) for value in (np.inf, -np.inf)]
    low = add("ReduceMin", nodes.where(missing, huge[0], zeros), axes=[2])
    high = add("ReduceMax", nodes.where(missing, huge[1], zeros), axes=[2])
    dead = add("Equal", low, high)
    if not flatness.shape[1]:
        return str(dead)
    below, lowest, highest = (nodes.graph.constant(row[:, None], f) for row in flatness)
    known = add("Cast", add("Not", missing), to=nodes.graph.float)
    count = add("Max", add("ReduceSum", known, last), nodes.number(1, f))
    # Relative to the minimum, float32 suffices however large an offset is; a channel without samples is 0.
    apart = add("Mul", add("Sub", zeros, nodes.where(add("IsInf", low), nodes.number(0, f), low)), known)
    centred = add("Mul", add("Sub", apart, add("Div", add("ReduceSum", apart, last), count)), known)
    deviation = add("Sqrt", add("Div", add("ReduceSum", add("Mul", centred, centred), last), count))
    faint = add("And", add("Less", deviation, below), add("LessOrEqual", low, high))
    dead = add("Or", dead, faint)
    for extreme, reached in ((low, add("LessOrEqual", low, lowest)), (high, add("GreaterOrEqual", high, highest))):
        at = add("And", add("Equal", zeros, extreme), add("Not", missing))
        share = add("ReduceSum", add("Cast", at, to=nodes.graph.float), last)
        clipped = add("Greater", share, nodes.number(CLIPPED_SHARE * length, f))
        dead = add("Or", dead, add("And", reached, clipped))
    return str(dead)


def _interpolated(nodes: _Nodes, zeros: str, missing: str, length: int, longest: int) -> tuple[str, str]:
    """Add windows without gaps and the samples that are present, as `fill_gaps`: (N, C, time) each, the second bool."""
    add, f = nodes.graph.add, np.float32
    places, none = nodes.graph.constant(np.arange(length), f), nodes.number(-1, f)
    before = _running_maximum(nodes, nodes.where(missing, none, places), length, 0)
    # The next known sample is the previous one, counted from the end.
    behind = _running_maximum(
        nodes, nodes.where(missing, none, nodes.graph.constant(np.arange(length)[::-1], f)), length, 1
    )
    after = add("Sub", nodes.number(length - 1, f), behind)  # length if there is none
    has_before, has_after = (
        add("GreaterOrEqual", before, nodes.number(0, f)),
        add("Less", after, nodes.number(length, f)),
    )
    left, right = nodes.where(has_before, before, after), nodes.where(has_after, after, before)
    limits = nodes.number(0, f), nodes.number(length - 1, f)
    first, second = (
        add("GatherElements", zeros, add("Cast", add("Clip", place, *limits), to=nodes.int), axis=2)
        for place in (left, right)
    )
    distance = add("Max", add("Sub", right, left), nodes.number(1, f))
    share = add("Clip", add("Div", add("Sub", places, left), distance), nodes.number(0, f), nodes.number(1, f))
    line = add("Add", first, add("Mul", add("Sub", second, first), share))
    short = add("LessOrEqual", add("Sub", add("Sub", after, before), nodes.number(1, f)), nodes.number(longest, f))
    some = add("Or", has_before, has_after)
    present = add("Or", add("Not", missing), add("And", some, short))
    return nodes.where(missing, line, zeros), str(present)


def _running_maximum(nodes: _Nodes, values: str, length: int, reverse: int) -> str:
    """Add the maximum of all values up to each one along the last axis, or from each one on."""
    add, step = nodes.graph.add, 1
    while step < length:
        pads = [0, 0, 0, 0, 0, step] if reverse else [0, 0, step, 0, 0, 0]
        padded = add("Pad", values, nodes.indices(pads), nodes.number(-1, np.float32))
        first = step if reverse else 0
        moved = add("Slice", padded, *(nodes.indices([bound]) for bound in (first, first + length, 2)))
        values, step = add("Max", values, moved), 2 * step
    return values


def completed(
    graph: Any, model: Any, inference: Inference, found: Filled, projections: str, z: str | None
) -> tuple[str, str | None, str | None]:
    """Add what follows from the distribution of unlabelled windows.

    Parameters
    ----------
    projections : (N, R) float64, K_oᵀt_o
    z : (N, S) float64, standardised statistics, with NaN where missing; or None

    Returns
    -------
    projections with the expectation of what is missing; statistics without NaN; and the symmetric root (N, k, k) of the
    covariance of the logits, None without a probe
    """
    nodes, outputs = _Nodes(graph), [projections, *([] if z is None else [z])]
    weights = _uncertain(inference)
    solver = Solver(model.prior_, [torch.tensor(factor) for factor in inference.factors], inference.alpha)

    def lacking() -> list[str]:
        return _completed(nodes, solver, inference, weights, found, projections, z)

    def complete() -> list[str]:
        same = [graph.add("Identity", name) for name in outputs]
        if not len(weights):
            return same
        zero = graph.add("ReduceSum", graph.add("Mul", projections, nodes.number(0)), nodes.indices([1]))
        square = graph.add("Unsqueeze", zero, nodes.indices([2]))
        return [*same, graph.add("Mul", square, graph.constant(np.zeros((1, len(weights), len(weights)))))]

    everything = graph.add("ReduceMin", found.present or found.observed, keepdims=0)
    lacks = graph.add("Less", everything, nodes.number(1))
    results = graph.branches(lacks, lacking, complete, len(outputs) + bool(len(weights)))
    return results[0], None if z is None else results[1], results[-1] if len(weights) else None


def _completed(
    nodes: _Nodes, solver: Solver, inference: Inference, weights: Any, found: Filled, b: str, z: str | None
) -> list[str]:
    """Add `Solver.coefficients`, `Solver.statistics` and `Solver.spread`; see `completed`."""
    add, c, rank = nodes.graph.add, nodes.graph.constant, inference.rank
    unobserved = add("Sub", nodes.number(1), found.observed)
    seen, unseen = (_gram(nodes, inference.factors, mask, found.modes) for mask in (found.observed, unobserved))
    root = c(solver.root.numpy() / np.sqrt(solver.noise))
    precision = add("Add", c(np.eye(rank)), add("MatMul", root, add("MatMul", seen, root)))
    posterior = add("MatMul", root, add("MatMul", _inverse(nodes, precision, rank), root))  # in units of the noise
    mean = solver.mean.numpy()
    apart = nodes.columns(add("Sub", b, nodes.row(add("MatMul", seen, c(mean[:, None])))))
    x_map = add("Add", c(mean[:, None]), add("MatMul", posterior, apart))
    completed = add("Add", b, nodes.row(add("MatMul", unseen, x_map)))
    noise = nodes.number(solver.noise)
    lost = add("Mul", noise, add("Add", unseen, add("MatMul", unseen, add("MatMul", posterior, unseen))))
    D, results = c((weights[:, : len(inference.matrix)] @ inference.matrix).T) if len(weights) else "", [completed]
    if z is None:
        if len(weights):
            results.append(_root(nodes, nodes.form(D, lost, "a"), len(weights)))
        return results
    V, L = solver.V.numpy(), solver.loadings.numpy()
    gain, unique, axes = solver.gain.numpy(), solver.unique.numpy(), L.shape[1]
    covariance = add("MatMul", c(V), add("MatMul", lost, c(V)))
    spread = add("ReduceSum", add("Mul", covariance, c(np.eye(rank))), nodes.indices([2]), keepdims=0)
    known = add("Not", add("IsNaN", z))
    of_x = add("Div", c((gain > 0).astype(float)), add("Add", add("Mul", spread, c(gain**2)), c(unique[:rank])))
    share = add("Concat", of_x, add("Mul", nodes.double(known), c(1 / unique[rank:])), axis=1)
    x = add("MatMul", completed, c(V))
    # float32 halves the table; it is exact to 1e-7.
    loadings = nodes.double(c(L, np.float32))
    standard = add(
        "Concat", add("Mul", add("Sub", x, c(mean)), c(gain)), nodes.where(known, z, nodes.number(0)), axis=1
    )
    weighted = add("Mul", loadings, nodes.columns(share))
    system = add("Add", c(np.eye(axes)), nodes.product(weighted, loadings, "b"))
    inverse = _inverse(nodes, system, axes)
    f = nodes.row(add("MatMul", inverse, nodes.columns(add("MatMul", add("Mul", standard, share), loadings))))
    own, others = (
        add("Slice", loadings, nodes.indices([i]), nodes.indices([j])) for i, j in ((rank, len(L)), (0, rank))
    )
    estimate = add("MatMul", f, add("Transpose", own, perm=[1, 0]))
    results.append(nodes.where(known, z, estimate))
    if not len(weights):
        return results
    block = weights[:, len(inference.matrix) :] * inference.block_gain
    block = block @ inference.statistic_axes.T if inference.n_axes else block
    effect = add("Mul", c(block.T), nodes.columns(nodes.double(add("Not", known))))  # (N, S, k)
    on_axes = nodes.product(own, effect, "a")  # (N, A, k)
    follows = add("MatMul", others, add("MatMul", inverse, on_axes))  # of coefficients, by their regression
    follows = add("Mul", follows, nodes.columns(add("Mul", of_x, c(gain))))
    total = add("Add", D, add("MatMul", c(V), follows))
    alone = nodes.product(effect, add("Mul", effect, c(unique[rank:, None])))
    logits = add("Add", nodes.form(total, lost), add("Add", nodes.form(on_axes, inverse), alone))
    results.append(_root(nodes, logits, len(weights)))
    return results


def _uncertain(inference: Inference) -> Any:
    """Return the weights of the logits that are not 0: (k, F), with k = 1 for two classes."""
    is_difference = len(inference.weights) == 2 and not inference.weights[0].any()
    return inference.weights[1:] if is_difference else inference.weights


def _gram(nodes: _Nodes, factors: Sequence[Any], mask: str, masked: Sequence[int]) -> str:
    """Add K_oᵀK_o for a mask with size 1 in all but the masked modes: (N, R, R)."""
    add, c, rank = nodes.graph.add, nodes.graph.constant, factors[0].shape[1]
    rest = np.prod([factor.T @ factor for mode, factor in enumerate(factors) if mode not in masked] or [1.0], axis=0)
    K = c(np.ones((1, rank)))
    for mode in masked:  # the Khatri-Rao product
        outer = add("Mul", add("Unsqueeze", K, nodes.indices([1])), c(factors[mode][None]))
        K = add("Reshape", outer, nodes.indices([-1, rank]))
    flat = add("Reshape", mask, nodes.indices([0, -1, 1]))
    return str(add("Mul", nodes.product(add("Mul", K, flat), K, "b"), c(rest)))


def _inverse(nodes: _Nodes, matrix: str, size: int) -> str:
    """Add the inverses of positive definite matrices (N, size, size), by Gauss and Jordan's steps."""
    graph, add = nodes.graph, nodes.graph.add
    identity = graph.constant(np.eye(size))

    def step(number: str, a: str) -> list[str]:
        row, column = (add("Gather", a, number, axis=axis) for axis in (1, 2))  # (N, 1, size), (N, size, 1)
        pivot = add("Gather", row, number, axis=2)
        unit = add("Gather", identity, number, axis=0)  # (1, size)
        down = add("Reshape", unit, nodes.indices([size, 1]))
        keep, keep_down = (add("Sub", nodes.number(1), vector) for vector in (unit, down))
        row, column = add("Add", add("Mul", row, keep), unit), add("Sub", add("Mul", column, keep_down), down)
        others = add("Mul", add("Mul", a, keep), keep_down)
        return [add("Sub", others, add("Mul", column, add("Div", row, pivot)))]

    return str(graph.loop(size, step, matrix)[0])


def _root(nodes: _Nodes, covariance: str, size: int) -> str:
    """Add the symmetric roots of positive semidefinite matrices (N, size, size), by Newton and Schulz's steps."""
    graph, add = nodes.graph, nodes.graph.add
    identity = graph.constant(np.eye(size))
    trace = add("ReduceSum", add("Mul", covariance, identity), nodes.indices([1, 2]))
    trace = add("Max", trace, nodes.number(_TINY))

    def step(_: str, y: str, z: str) -> list[str]:
        product = add("MatMul", z, y)
        correction = add("Sub", graph.constant(1.5 * np.eye(size)), add("Mul", nodes.number(0.5), product))
        return [add("MatMul", y, correction), add("MatMul", correction, z)]

    scaled = add("Div", covariance, trace)
    start = add("Add", identity, add("Mul", scaled, nodes.number(0)))
    root = graph.loop(_ROOT_STEPS, step, scaled, start)[0]
    return str(add("Mul", root, add("Sqrt", trace)))


def averaged(graph: Any, inference: Inference, logits: str, root: str) -> str:
    """Add probabilities averaged over the distribution of the logits, as `averaged_softmax`: (N, classes) float32.

    Parameters
    ----------
    logits : (N, classes) float32
    root : (N, k, k), the root of the covariance of the last k logits
    """
    nodes, classes, size = _Nodes(graph), len(inference.classes), len(_uncertain(inference))
    points = fixed_points(size)
    moved = graph.add("MatMul", graph.constant(np.concatenate([points, -points])), root)  # (N, points, size)
    if classes > size:
        moved = graph.add("Pad", moved, nodes.indices([0, 0, classes - size, 0, 0, 0]), nodes.number(0))
    scores = graph.add("Add", nodes.double(graph.add("Unsqueeze", logits, nodes.indices([1]))), moved)
    single = graph.add("Cast", scores, to=graph.float)
    return str(graph.add("ReduceMean", graph.add("Softmax", single, axis=2), axes=[1], keepdims=0))


class _Nodes:
    """Short names for groups of nodes."""

    def __init__(self, graph: Any) -> None:
        self.graph, self.int = graph, graph.api.TensorProto.INT64

    def number(self, value: float, dtype: Any = np.float64) -> str:
        return str(self.graph.constant(value, dtype))

    def indices(self, values: ArrayLike) -> str:
        return str(self.graph.constant(values, np.int64))

    def double(self, name: str) -> str:
        return str(self.graph.add("Cast", name, to=self.graph.double))

    def where(self, condition: str, one: str, other: str) -> str:
        return str(self.graph.add("Where", condition, one, other))

    def columns(self, rows: str) -> str:
        """Turn (N, n) into (N, n, 1)."""
        return str(self.graph.add("Unsqueeze", rows, self.indices([2])))

    def row(self, columns: str) -> str:
        """Turn (N, n, 1) into (N, n)."""
        return str(self.graph.add("Squeeze", columns, self.indices([2])))

    def product(self, a: str, b: str, shared: str = "") -> str:
        """Multiply aᵀb for each window; `shared` names the one, "a" or "b", that is the same for all windows."""
        # Older versions of onnxruntime fuse a transposition and a product to an operator that lacks float64.
        left, right = "ij" if shared == "a" else "nij", "ik" if shared == "b" else "nik"
        return str(self.graph.add("Einsum", a, b, equation=f"{left},{right}->njk"))

    def form(self, a: str, matrix: str, shared: str = "") -> str:
        """Multiply aᵀ matrix a."""
        return self.product(a, self.graph.add("MatMul", matrix, a), shared)
