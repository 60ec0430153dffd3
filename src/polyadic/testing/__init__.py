"""Contract tests for custom augmentations, pairings, tensorizers and baselines: subclass one to run its tests."""

from __future__ import annotations

from polyadic.testing.augmentation import AugmentationContract, PairingContract
from polyadic.testing.baseline import BaselineContract
from polyadic.testing.tensorizer import TensorizerContract

__all__ = ["AugmentationContract", "BaselineContract", "PairingContract", "TensorizerContract"]
