"""Features to compare with on your own windows: principal components, hand-crafted features and MiniRocket."""

from __future__ import annotations

from polyadic.baselines.base import Baseline
from polyadic.baselines.rocket import MiniRocket
from polyadic.baselines.simple import HandFeatures, PCAFeatures

__all__ = ["Baseline", "HandFeatures", "MiniRocket", "PCAFeatures"]
