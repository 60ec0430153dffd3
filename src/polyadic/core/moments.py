"""Full-batch sweeps from second moments: without views and graphs, the loss depends on the data only via Σ ttᵀ.

With C = TᵀT of the flattened tensors T (N, D), and K, G and V of the bases as in `step`, the coefficients are X = TKV.
So XᵀT = VKᵀC, XᵀX = VKᵀCKV and ‖T − XKᵀ‖² = tr C − 2·tr(VKᵀCK) + tr(XᵀX·G). One pass over the data collects C.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from polyadic._util.threads import for_each
from polyadic.core.algebra import khatri_rao, ridge_inverse, squared_norms
from polyadic.core.step import Objective, State, Statistics, Term, grams_of, hadamard, update_bases

__all__ = ["BUDGET", "SecondMoments", "are_shared", "fits_budget", "keep_shared", "shared", "sharing"]

BUDGET = 2**30
"""Maximum size of C in bytes."""
_COLUMNS = 512

_SHARED: ContextVar[dict[Hashable, SecondMoments] | None] = ContextVar("shared second moments", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Let fits to the same windows with the same tensorizer share second moments within this context."""
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


def are_shared() -> bool:
    """Return whether fits share second moments here."""
    return _SHARED.get() is not None


def shared(key: Hashable) -> SecondMoments | None:
    """Return the second moments stored under this key by an earlier fit within `sharing`, or None."""
    kept = _SHARED.get()
    return None if kept is None else kept.get(key)


def keep_shared(key: Hashable, moments: SecondMoments) -> None:
    """Store second moments for later fits within `sharing`; the oldest are dropped to stay within the budget."""
    kept = _SHARED.get()
    if kept is not None:
        kept[key] = moments
        while sum(one.C.nbytes for one in kept.values()) > BUDGET and len(kept) > 1:
            del kept[next(iter(kept))]


def fits_budget(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Return whether the second moments of tensors of this shape fit the budget of 1 GiB.

    Examples
    --------
    >>> fits_budget((9, 33, 9), torch.float32), fits_budget((12, 129, 32), torch.float32)
    (True, False)
    """
    return dtype.itemsize * math.prod(shape) ** 2 <= BUDGET


class SecondMoments:
    """The second moments C of the windows added so far.

    Parameters
    ----------
    shape : shape (I, J, …) of a window's tensor
    dtype, device : type and device of C

    Examples
    --------
    >>> moments = SecondMoments((2, 2), torch.float32, torch.device("cpu"))
    >>> moments.add(torch.ones(3, 2, 2))
    >>> moments.finish()
    >>> moments.C[0].tolist(), moments.square
    ([3.0, 3.0, 3.0, 3.0], 12.0)
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, size = tuple(shape), math.prod(shape)
        self.C = torch.zeros(size, size, dtype=dtype, device=device)
        self.square, self._squares = 0.0, torch.zeros((), dtype=torch.float64, device=device)
        blocks = [slice(first, min(first + _COLUMNS, size)) for first in range(0, size, _COLUMNS)]
        self._pairs = list(combinations_with_replacement(blocks, 2))

    def add(self, T: Tensor) -> None:
        """Add tensors (b, I, J, …)."""
        rows = T.reshape(len(T), -1)

        def multiply(pair: tuple[slice, slice]) -> None:
            first, second = pair
            self.C[first, second].addmm_(rows[:, first].T, rows[:, second])

        for_each(multiply, self._pairs)
        self._squares += squared_norms(T).sum()

    def finish(self) -> None:
        """Complete C after all windows are added."""
        self.square = float(self._squares)
        for first, second in self._pairs:
            if first != second:
                self.C[second, first] = self.C[first, second].T

    def sweep(self, state: State, objective: Objective) -> Tensor:
        """Take the step of `step.step` on all windows; the same arguments and result, from second moments alone."""
        K, grams = khatri_rao([factor.to(self.C.dtype) for factor in state.factors]), grams_of(state.factors)
        G = hadamard(grams)
        V = ridge_inverse(G, objective.alpha)
        CK = torch.empty_like(K)
        blocks = [slice(first, first + _COLUMNS) for first in range(0, len(K), _COLUMNS)]
        for_each(lambda block: torch.mm(self.C[block], K, out=CK[block]), blocks)
        K, CK = K.double(), CK.double()
        KCK = K.T @ CK
        S = V @ KCK @ V
        terms = G.new_zeros(len(Term))
        terms[Term.FIT] = (self.square - 2 * (V * KCK).sum() + (S * G).sum()).clamp_min(0.0)
        terms[Term.TIKHONOV] = objective.alpha * S.trace()
        Y = (CK @ V).T.reshape(-1, *self.shape).to(state.factors[0].dtype)
        state.energy = S.diagonal()
        state.factors = update_bases(
            state.factors, Statistics(Y, S), objective.alpha, grams=grams, nonnegative=objective.nonnegative
        )
        return terms
