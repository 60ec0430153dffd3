"""The terms of the objective (Eqn. objective of the paper), named once for plain code, CUDA graphs and kernels."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["TERMS", "Term"]


class Term(IntEnum):
    """The place of each term in a vector of all of them.

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
        """The name in a history."""
        return self.name.lower()

    @property
    def label(self) -> str:
        """The name on a screen."""
        return {"FIT_AUGMENTED": "augmented", "TIKHONOV": "Tikhonov"}.get(self.name, self.key.replace("_", "-"))


TERMS = tuple(term.key for term in Term)
"""The names of the terms in a history, in their order."""
