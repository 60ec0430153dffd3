"""Baselines for comparison with ATD, on the same windows, frames and augmentations."""

from __future__ import annotations

from polyadic.baselines.autoencoder import AutoEncoder
from polyadic.baselines.base import Baseline
from polyadic.baselines.cnn import ReferenceCNN
from polyadic.baselines.contrastive import BYOL, SimCLR
from polyadic.baselines.rocket import MiniRocket
from polyadic.baselines.simple import CPALS, HandFeatures, PCAFeatures
from polyadic.baselines.stl import STL
from polyadic.baselines.umlda import UMLDA

__all__ = [
    "BYOL",
    "CPALS",
    "STL",
    "UMLDA",
    "AutoEncoder",
    "Baseline",
    "HandFeatures",
    "MiniRocket",
    "PCAFeatures",
    "ReferenceCNN",
    "SimCLR",
]
