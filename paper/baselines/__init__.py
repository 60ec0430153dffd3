"""The paper's baselines beside its tensor methods: deep networks, supervised tensor methods, and CP by TensorLy."""

from __future__ import annotations

from paper.baselines.autoencoder import AutoEncoder
from paper.baselines.cnn import ReferenceCNN
from paper.baselines.contrastive import BYOL, SimCLR
from paper.baselines.cp_als import CPALS
from paper.baselines.stl import STL
from paper.baselines.umlda import UMLDA

__all__ = ["BYOL", "CPALS", "STL", "UMLDA", "AutoEncoder", "ReferenceCNN", "SimCLR"]
