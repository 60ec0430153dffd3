"""Names of the terms of the objective (Eqn. objective of the paper), shared by torch code, CUDA graphs and kernels."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["TERMS", "Term"]


class Term(IntEnum):
    """Index of each term in a vector of all terms.

    Examples
    --------
    >>> Term.TIKHONOV.key, Term.SELF_SUPERVISED.label
    ('tikhonov', 'self-supervised')
    """

    FIT = 0
    FIT_AUGMENTED = 1
    TIKHONOV = 2
    SELF_SUPERVISED = 3
    GRAPH = 4

    @property
    def key(self) -> str:
        """The key in a history."""
        return self.name.lower()

    @property
    def label(self) -> str:
        """The name for display."""
        return {"FIT_AUGMENTED": "augmented", "TIKHONOV": "Tikhonov"}.get(self.name, self.key.replace("_", "-"))


TERMS = tuple(term.key for term in Term)
"""The keys of the terms in a history, in order."""
