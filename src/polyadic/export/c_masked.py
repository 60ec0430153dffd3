"""Tables, memory and numbers of the C code for windows with missing samples (`masked.c.j2`).

The code computes what `core.completion.Solver` does, in coordinates that save tables: the prior's covariance divided by
the residual variance is LLᵀ with L lower triangular; with b = K_oᵀt_o, G_o = K_oᵀK_o and M = I + LᵀG_oL,

    x_MAP = mean + L M⁻¹ Lᵀ (b − G_o mean),

and the features follow from the projections b + G_m x_MAP as those of a complete window do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from polyadic.core.completion import UNIQUE, Solver
from polyadic.core.missing import CLIPPED_SHARE, longest_gap
from polyadic.core.tensorizer import CForm
from polyadic.evaluate.probe import fixed_points
from polyadic.export.c_text import BYTES, Table, float_literal, table
from polyadic.export.inference import Inference

__all__ = ["MaskedCode", "masked_code"]

_LARGEST = {"short": 2**15 - 1, "signed char": 2**7 - 1}
_MOST_CONDITION = 1e4
"""Condition number of M above which the posterior distribution is computed in double precision."""


class MaskedCode(NamedTuple):
    """What the templates need for windows with missing samples."""

    tables: dict[str, Table]
    numbers: dict[str, Any]  # of `masked.c.j2`, and `masked_fields`, sizes of the arrays of polyadic_masked by type
    bytes: int  # `sizeof(polyadic_masked)`, with natural alignment


def masked_code(
    model: Any, exact: Inference, settled: Inference, form: CForm, real: str, int8: bool
) -> MaskedCode | None:
    """Return the code of a model, or None if it has no prior or its tensorizer no `polyadic_observed`.

    `exact` and `settled` are before and after weights are rounded; `real` is the type of the sums of projections.
    """
    prior = getattr(model, "prior_", None)
    if prior is None or "polyadic_observed" not in form.code:
        return None
    solver = Solver(prior, [torch.tensor(np.asarray(factor, np.float64)) for factor in model.factors_], exact.alpha)
    # Coefficients on the rounded components are those on the exact ones times this factor: (R,).
    scale = exact.gram(settled).diagonal() / np.maximum(settled.gram().diagonal(), np.finfo(np.float64).tiny)
    # L is triangular, and that of the coefficients on the rounded components.
    root = np.linalg.qr((scale[:, None] * solver.root.numpy() / math.sqrt(solver.noise)).T)[1].T
    condition = np.linalg.norm(np.eye(len(root)) + root.T @ settled.gram() @ root, 2)
    precise = "double" if real == "double" or condition > _MOST_CONDITION else "float"
    ridge = solver.V.numpy() * scale * scale[:, None]
    lower = np.tril_indices(settled.rank)
    tables = {
        "prior_mean": table(solver.mean.numpy() * scale, precise),
        "prior_root": table(root[lower], precise),
    }
    flat = prior.flatness if prior.limits is not None and not model._keeps_flat else np.zeros((3, 0))
    if flat.size:
        tables["flatness"] = table(flat)
    kind = "signed char" if int8 else "short"
    if settled.n_statistics:
        tables["ridge"] = table(ridge[lower], precise)
        tables["loadings"] = table(np.rint(prior.loadings * _LARGEST[kind]).astype(int), kind)
    uncertain = len(settled.classes)
    if settled.classes:
        uncertain = 1 if uncertain == 2 and not settled.weights[0].any() else uncertain
        tables["points"] = table(fixed_points(uncertain))
    if form.mean is not None and int8:  # a complete window has the mean in its offset
        tables["centred"] = table(form.mean)
        tables["level"] = table(settled.project_mean(form.mean))
    axes = prior.loadings.shape[1]
    numbers = {
        "keep_flat": bool(model._keeps_flat),
        "limits": bool(flat.size),
        "clipped": round(1 / CLIPPED_SHARE),
        "longest": longest_gap(model.fs_),
        "masked_mean": "centred" if "centred" in tables else "mean" if form.mean is not None else "",
        "level": "level" in tables,
        "precise": precise,
        "root": "sqrtf" if precise == "float" else "sqrt",
        "noise": _literal(solver.noise, precise),
        "unique": _literal(UNIQUE, precise),
        "block": _literal(1.0 if settled.n_axes else settled.block_gain, precise),
        "loadings": axes,
        "loading_scale": _literal(1 / _LARGEST[kind], precise),
        "negligible": _literal(1e-16, precise),
        "uncertain": uncertain,
        "points": len(fixed_points(uncertain)) if settled.classes else 0,
    }
    fields = _fields(settled, form, axes, uncertain, model._sample_shape)
    units = {"precise": BYTES[precise], "float": 4, "bytes": 1}
    total = sum(units[kind] * sum(map(math.prod, own.values())) for kind, own in fields.items())
    numbers["masked_fields"] = {
        kind: {name: "".join(f"[{size}]" for size in shape) for name, shape in own.items()}
        for kind, own in fields.items()
    }
    return MaskedCode(tables, numbers, -(-total // units["precise"]) * units["precise"])


def _fields(
    settled: Inference, form: CForm, axes: int, uncertain: int, sample_shape: Sequence[int]
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of the arrays of polyadic_masked."""
    rank, (channels, samples) = settled.rank, map(int, sample_shape)
    packed = (rank * (rank + 1) // 2,)
    precise: dict[str, tuple[int, ...]] = {"gram": packed, "factor": packed}
    precise |= dict.fromkeys(("first", "second", "third"), (rank,))
    bits = (channels, (samples + 7) // 8)
    flags: dict[str, tuple[int, ...]] = {"present": bits, "filled": bits, "observed": (channels, form.shape[2])}
    if settled.n_statistics:
        precise |= {"precision": (axes * (axes + 1) // 2,), "axis": (axes,), "row": (axes,), "weight": (rank,)}
        flags["known"] = (settled.n_statistics,)
    floats: dict[str, tuple[int, ...]] = {}
    if settled.classes:
        square = (uncertain, uncertain)
        precise |= {"direction": (uncertain, rank), "covariance": square, "vectors": square, "effect": (uncertain,)}
        floats = {"logits": (len(settled.classes),), "moved": (len(settled.classes),)}
        if settled.n_statistics:
            precise["on_axes"] = (uncertain, axes)
    return {"precise": precise, "float": floats, "bytes": flags}


def _literal(value: float, kind: str) -> str:
    return float_literal(value) if kind == "float" else repr(float(value))
