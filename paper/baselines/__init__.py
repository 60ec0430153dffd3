"""The paper's baselines beside its tensor methods: deep networks, supervised tensor methods, and CP by TensorLy."""

from __future__ import annotations

from paper.baselines.cp_als import CPALS
from paper.baselines.deep import BYOL, AutoEncoder, ReferenceCNN, SimCLR
from paper.baselines.stl import STL
from paper.baselines.umlda import UMLDA

__all__ = ["BYOL", "CPALS", "STL", "UMLDA", "AutoEncoder", "ReferenceCNN", "SimCLR"]
