"""Features to compare with on your own windows: principal components, statistics and MiniRocket."""

from __future__ import annotations

from polyadic.baselines.base import Baseline
from polyadic.baselines.rocket import MiniRocket
from polyadic.baselines.simple import PCAFeatures, StatisticsFeatures

__all__ = ["Baseline", "MiniRocket", "PCAFeatures", "StatisticsFeatures"]
