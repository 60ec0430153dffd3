"""Interpretation of components: expression in dB, replicability, choice of rank, matching, typical spectra and scalp maps."""

from __future__ import annotations

from polyadic.explain.expression import expression, level
from polyadic.explain.matching import Match, match
from polyadic.explain.rank import RankSuggestion, core_consistency, suggest_rank
from polyadic.explain.replicability import Replicability, replicability
from polyadic.explain.spectra import Typical, shares, typical

__all__ = [
    "Match",
    "RankSuggestion",
    "Replicability",
    "Typical",
    "core_consistency",
    "expression",
    "level",
    "match",
    "replicability",
    "shares",
    "suggest_rank",
    "typical",
]
