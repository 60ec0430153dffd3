"""Contract tests for your own augmentations, tensorizers and baselines: inherit one, and its tests are yours."""

from __future__ import annotations

from polyadic.testing.augmentation import AugmentationContract
from polyadic.testing.baseline import BaselineContract
from polyadic.testing.tensorizer import TensorizerContract

__all__ = ["AugmentationContract", "BaselineContract", "TensorizerContract"]
