"""Data: windows with who and when, stores on disk, splits that keep people apart, and signals with known classes."""

from __future__ import annotations

from polyadic.data.recordings import Annotation, Recording
from polyadic.data.splits import Split, split
from polyadic.data.store import Header, WindowStore
from polyadic.data.synthetic import synthetic
from polyadic.data.windows import Windows
from polyadic.data.writer import StoreWriter

__all__ = [
    "Annotation",
    "Header",
    "Recording",
    "Split",
    "StoreWriter",
    "WindowStore",
    "Windows",
    "split",
    "synthetic",
]
