"""The errors polyadic raises on purpose.

Every message names the argument, what came and what was expected.
"""

from __future__ import annotations

__all__ = ["CheckpointError", "DataError", "MissingExtraError", "ModelFileError", "PolyadicError"]


class PolyadicError(ValueError):
    """Input or settings that cannot be used as they are."""


class ModelFileError(PolyadicError):
    """A model file that is damaged, of a newer schema, or not a model file at all."""


class DataError(PolyadicError):
    """A recording or a store that is damaged, incomplete, or not what it is said to be."""


class MissingExtraError(PolyadicError):
    """A package that is not installed, for something that not everyone needs."""


class CheckpointError(PolyadicError):
    """A checkpoint that cannot be written, is damaged, or is of another fit."""
