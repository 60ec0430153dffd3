"""Hyperparameter search on your own subjects: `polyadic.tune`."""

from __future__ import annotations

from polyadic.tuning.run import Tuning, tune
from polyadic.tuning.search import Settings

__all__ = ["Settings", "Tuning", "tune"]
