"""The paper's baselines beside its tensor methods: deep networks and supervised tensor methods."""

from __future__ import annotations

from paper.baselines.deep import BYOL, AutoEncoder, ReferenceCNN, SimCLR
from paper.baselines.stl import STL
from paper.baselines.umlda import UMLDA

__all__ = ["BYOL", "STL", "UMLDA", "AutoEncoder", "ReferenceCNN", "SimCLR"]
