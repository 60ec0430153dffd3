"""Class-preserving augmentations, which provide second views of windows (appendix D.3 of the paper, and more).

An augmentation maps a batch (b, channels, time) to a new batch of the same shape on the same device. `Neighbour`
does not modify windows: the view of a window is another window of the data set.
"""

from __future__ import annotations

from polyadic.augment.base import Augmentation, as_augmentation
from polyadic.augment.combined import Compose, Neighbour, OneOf, split_neighbour
from polyadic.augment.signals import Bandpass, Jitter, Rotate3D

__all__ = [
    "Augmentation",
    "Bandpass",
    "Compose",
    "Jitter",
    "Neighbour",
    "OneOf",
    "Rotate3D",
    "as_augmentation",
    "split_neighbour",
]
