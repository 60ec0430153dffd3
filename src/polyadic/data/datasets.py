"""Your own data sets: stores of windows from folders of recordings, and single recordings."""

from __future__ import annotations

from polyadic.data.collection import folder
from polyadic.data.sources import ENDINGS, find_recordings
from polyadic.data.sources import read_recording as recording
from polyadic.data.synthetic import synthetic

__all__ = ["ENDINGS", "find_recordings", "folder", "recording", "synthetic"]
