"""The estimators pass scikit-learn's common checks, on two-dimensional input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor

from polyadic import ATD, CPD, GRSALS, SALS


@dataclass(frozen=True)
class Fainter:
    """An augmentation that can be copied and compared as scikit-learn asks, and whose name is the same in every run."""

    share: float = 0.9

    def __call__(self, batch: Tensor) -> Tensor:
        return self.share * batch


FLAT = {"rank": 2, "tensorize": None, "max_sweeps": 3, "device": "cpu"}


@parametrize_with_checks(
    [
        CPD(**FLAT),
        SALS(solver="memory", learning_rate=0.5, **FLAT),
        SALS(solver="blend", learning_rate=0.5, batch_size=None, **FLAT),
        GRSALS(solver="blend", learning_rate=0.5, **FLAT),
        ATD(augment=Fainter(), beta=0.1, solver="blend", learning_rate=0.5, **FLAT),
        ATD(augment=Fainter(), beta=0.0, solver="memory", learning_rate=0.5, **FLAT),
    ]
)
def test_every_common_check_of_scikit_learn_passes(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)
