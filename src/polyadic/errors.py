"""Exceptions raised by polyadic.

Every message names the argument, its value and the expected value.
"""

from __future__ import annotations

__all__ = ["CheckpointError", "DataError", "MissingExtraError", "ModelFileError", "PolyadicError"]


class PolyadicError(ValueError):
    """Invalid input or settings; the base class of all errors."""


class ModelFileError(PolyadicError):
    """A model file is damaged, has a newer schema, or is not a model file."""


class DataError(PolyadicError):
    """A recording or a store is damaged, incomplete, or of an unexpected kind."""


class MissingExtraError(PolyadicError):
    """An optional dependency is not installed."""


class CheckpointError(PolyadicError):
    """A checkpoint cannot be written, is damaged, or belongs to another fit."""
