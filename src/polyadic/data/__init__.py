"""Windows with subjects and times, stores on disk, subject-wise splits, readers, and synthetic signals."""

from __future__ import annotations

from polyadic.data.loading import open_windows
from polyadic.data.recordings import Annotation, Recording
from polyadic.data.splits import Split, split
from polyadic.data.store import Header, StoreWriter, WindowStore
from polyadic.data.synthetic import synthetic
from polyadic.data.windows import Windows

__all__ = [
    "Annotation",
    "Header",
    "Recording",
    "Split",
    "StoreWriter",
    "WindowStore",
    "Windows",
    "open_windows",
    "split",
    "synthetic",
]
