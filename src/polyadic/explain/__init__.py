"""Interpretation of components: expression in dB, replicability and matching."""

from __future__ import annotations

from polyadic.explain.comparison import Comparison, compare, compare_subjects
from polyadic.explain.components import Components, components
from polyadic.explain.expression import expression, level
from polyadic.explain.replicability import Match, Replicability, match, replicability
from polyadic.explain.spectra import shares

__all__ = [
    "Comparison",
    "Components",
    "Match",
    "Replicability",
    "compare",
    "compare_subjects",
    "components",
    "expression",
    "level",
    "match",
    "replicability",
    "shares",
]
