"""Labelling in the browser: which windows to ask about, what the labels say so far, and the page that asks."""

from __future__ import annotations

from polyadic.label.journal import Journal, apply_labels
from polyadic.label.questions import Questions
from polyadic.label.session import Session

__all__ = ["Journal", "Questions", "Session", "apply_labels"]
