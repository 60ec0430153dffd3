"""The paper's baselines beside its tensor methods: deep networks, supervised tensor methods, hand-crafted features."""

from __future__ import annotations

from paper.baselines.deep import BYOL, AutoEncoder, ReferenceCNN, SimCLR
from paper.baselines.hand import HandFeatures
from paper.baselines.stl import STL
from paper.baselines.umlda import UMLDA

__all__ = ["BYOL", "STL", "UMLDA", "AutoEncoder", "HandFeatures", "ReferenceCNN", "SimCLR"]
