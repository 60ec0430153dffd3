"""Tables, memory and numbers of the C code for windows with missing samples (`masked.c.j2`).

The code computes what `core.completion.Solver` does, in coordinates that save tables: the prior's covariance divided by
the residual variance is LLᵀ with L lower triangular; with b = K_oᵀt_o, G_o = K_oᵀK_o and M = I + LᵀG_oL,

    x_MAP = mean + L M⁻¹ Lᵀ (b − G_o mean),

and the features follow from the projections b + G_m x_MAP as those of a complete window do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from polyadic.core.completion import UNIQUE
from polyadic.core.missing import CLIPPED_SHARE, longest_gap
from polyadic.evaluate.probe import fixed_points
from polyadic.export.c_text import Struct, Table, table
from polyadic.export.inference import Inference
from polyadic.spectral import CForm

_MOST_CONDITION = 1e4
"""Condition number of M above which the posterior distribution is computed in double precision."""


class MaskedCode(NamedTuple):
    """What the templates need for windows with missing samples."""

    tables: dict[str, Table]
    fields: Struct  # of polyadic_masked
    numbers: dict[str, Any]  # of `masked.c.j2`


def masked_code(
    model: Any, exact: Inference, settled: Inference, form: CForm, real: str, int8: bool
) -> MaskedCode | None:
    """Return the code of a model, or None if it has no prior or its tensorizer no `polyadic_observed`.

    `exact` and `settled` are before and after weights are rounded; `real` is the type of the sums of projections.
    """
    prior = getattr(model, "prior_", None)
    if prior is None:
        return None
    rank, (channels, samples) = settled.rank, map(int, model._sample_shape)
    solver = model._solver(torch.device("cpu"))
    # Coefficients on the rounded components are those on the exact ones times this factor: (R,).
    scale = exact.gram(settled).diagonal() / np.maximum(settled.gram().diagonal(), np.finfo(np.float64).tiny)
    # L is triangular, and that of the coefficients on the rounded components.
    root = np.linalg.qr((scale[:, None] * solver.root.numpy() / math.sqrt(solver.noise)).T)[1].T
    condition = np.linalg.norm(np.eye(rank) + root.T @ settled.gram() @ root, 2)
    precise = "double" if real == "double" or condition > _MOST_CONDITION else "float"
    lower, bits = np.tril_indices(rank), (channels, (samples + 7) // 8)
    packed = (rank * (rank + 1) // 2,)
    tables = {
        "prior_mean": table(solver.mean.numpy() * scale, precise),
        "prior_root": table(root[lower], precise),
    }
    fields: Struct = {"gram": (precise, packed), "factor": (precise, packed)}
    fields |= dict.fromkeys(("first", "second", "third"), (precise, (rank,)))
    flags: Struct = dict.fromkeys(("present", "filled"), ("unsigned char", bits))
    flags["observed"] = ("unsigned char", (channels, form.shape[2]))
    has_limits = prior.limits is not None and not model._keeps_flat
    if has_limits:
        tables["flatness"] = table(prior.flatness)
    kind, axes = np.int8 if int8 else np.int16, prior.loadings.shape[1]
    largest = np.iinfo(kind).max
    if settled.n_statistics:
        tables["ridge"] = table((solver.V.numpy() * scale * scale[:, None])[lower], precise)
        tables["loadings"] = table(np.rint(prior.loadings * largest).astype(kind))
        fields |= {"precision": (precise, (axes * (axes + 1) // 2,)), "weight": (precise, (rank,))}
        fields |= dict.fromkeys(("axis", "row"), (precise, (axes,)))
        flags["known"] = ("unsigned char", (settled.n_statistics,))
    classes, points = len(settled.classes), np.zeros((0, 0))
    uncertain = len(settled.uncertain)
    if classes:
        points = fixed_points(uncertain)
        tables["points"] = table(points)
        fields |= {"direction": (precise, (uncertain, rank)), "effect": (precise, (uncertain,))}
        fields |= dict.fromkeys(("covariance", "vectors"), (precise, (uncertain, uncertain)))
        if settled.n_statistics:
            fields["on_axes"] = (precise, (uncertain, axes))
        fields |= dict.fromkeys(("logits", "moved"), ("float", (classes,)))
    mean = "" if form.mean is None else "mean"
    if form.mean is not None and int8:  # a complete window has the mean in its offset
        mean = "centred"
        tables |= {"centred": table(form.mean), "level": table(settled.project_mean(form.mean))}
    numbers = {
        "keep_flat": bool(model._keeps_flat),
        "limits": has_limits,
        "clipped": round(1 / CLIPPED_SHARE),
        "longest": longest_gap(model.fs_),
        "masked_mean": mean,
        "precise": precise,
        "root": "sqrtf" if precise == "float" else "sqrt",
        "noise": solver.noise,
        "unique": UNIQUE,
        "loadings": axes,
        "loading_scale": 1 / largest,
        "uncertain": uncertain,
        "points": len(points),
    }
    return MaskedCode(tables, fields | flags, numbers)
