"""Identity of a fit, for checkpoints, parallel processes and shared second moments."""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Any

from polyadic._util.checks import check_number
from polyadic.core import persist
from polyadic.data.batches import WindowSource
from polyadic.errors import PolyadicError
from polyadic.scale.checkpoints import Checkpoints
from polyadic.scale.fingerprints import check_alike, data_fingerprint, describe
from polyadic.team import Team

__all__ = ["agreed_tensorizer", "checkpoints_of", "share_key"]

_FREE = {"max_sweeps", "tol", "patience", "device", "verbose", "random_state"}
"""Parameters that may change when a fit is resumed; `random_state` is compared by its seed."""


def agreed_tensorizer(tensorize: Any, team: Team) -> Any:
    """Return the first process's tensorizer, because calibrations of other processes may differ in the last digits."""
    agreed = team.once(lambda: persist.encode(tensorize))
    if team.index == 0 or tensorize is None or tensorize.describe() is not None:
        return tensorize
    return persist.decode(agreed)


def share_key(tensorize: Any, source: WindowSource) -> Hashable | None:
    """Return a key that is equal for fits with the same second moments, or None if functions cannot be compared."""
    if tensorize is not None and tensorize.describe() is not None:
        return None
    return id(source.samples.data), repr(persist.encode(tensorize)), source.dtype, source.device


def checkpoints_of(
    model: Any,
    source: WindowSource,
    team: Team,
    folder: str | os.PathLike[str] | None,
    resume: bool,
    every: float,
) -> Checkpoints | None:
    """Return the checkpoints of a fit in a folder, or None without a folder."""
    check_number("checkpoint_every", every, 0)
    if folder is None and resume:
        raise PolyadicError("resume=True needs the folder of the checkpoints, but checkpoint is None: pass checkpoint")
    if folder is None and team.size == 1:
        return None
    fingerprint = _fingerprint(model, source)
    check_alike(team, fingerprint)
    return None if folder is None else Checkpoints(folder, fingerprint, every, resume, team, source.n_views)


def _fingerprint(model: Any, source: WindowSource) -> dict[str, Any]:
    """Describe the settings and data that must be equal to resume a fit."""
    chosen = {name: describe(value) for name, value in model.get_params(deep=False).items() if name not in _FREE}
    learned = {"tensorize": describe(model.tensorize_), "seed": model.seed_}
    return {"estimator": type(model).__name__, **chosen, **learned, "data": data_fingerprint(source.samples)}
