"""Hyperparameter search on your own subjects: `polyadic.tune`."""

from __future__ import annotations

from polyadic.tuning.run import Tuning, tune
from polyadic.tuning.space import Settings, views_for

__all__ = ["Settings", "Tuning", "tune", "views_for"]
