"""Data: signals with known classes, and splits that keep people apart."""

from __future__ import annotations

from polyadic.data.splits import Split, split_labelled, split_windows
from polyadic.data.synthetic import Signals, synthetic

__all__ = ["Signals", "Split", "split_labelled", "split_windows", "synthetic"]
