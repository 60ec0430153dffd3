"""Hyperparameter search on your own subjects: `polyadic.tune`."""

from __future__ import annotations

from polyadic.tuning.nested import Tuning, tune
from polyadic.tuning.space import Settings

__all__ = ["Settings", "Tuning", "tune"]
