"""Contract tests for your own augmentations, pairings and baselines: inherit one, and its tests are yours."""

from __future__ import annotations

from polyadic.testing.augmentation import AugmentationContract
from polyadic.testing.baseline import BaselineContract
from polyadic.testing.pairing import PairingContract

__all__ = ["AugmentationContract", "BaselineContract", "PairingContract"]
