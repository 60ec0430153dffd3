"""The estimators pass scikit-learn's common checks, on two-dimensional input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor

from polyadic import ATD, CPD, GRSALS, SALS
from polyadic.augment import Augmentation
from polyadic.errors import PolyadicError


@dataclass(frozen=True)
class Fainter(Augmentation):
    """A view of tensors of any shape."""

    share: float = 0.9

    def check(self, X: Tensor) -> None:
        pass

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        return self.share * X


def exceptions(estimator: BaseEstimator) -> dict[str, str]:
    """Return the checks that fail on purpose: the paper's estimators refuse NaN in `fit`, but not in `transform`."""
    if isinstance(estimator, ATD | SALS | GRSALS):
        return {"check_estimators_nan_inf": "transform takes NaN as missing"}
    return {}


FLAT = {"rank": 2, "tensorize": None, "max_sweeps": 3, "device": "cpu"}


@parametrize_with_checks(
    [
        CPD(**FLAT),
        SALS(solver="memory", learning_rate=0.5, **FLAT),
        GRSALS(solver="blend", learning_rate=0.5, **FLAT),
        ATD(augment=Fainter(), beta=0.1, solver="blend", learning_rate=0.5, **FLAT),
    ],
    expected_failed_checks=exceptions,
)
def test_every_common_check_of_scikit_learn_passes(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


@pytest.mark.parametrize("method", [SALS, GRSALS, partial(ATD, augment=Fainter(), beta=0.0)])
def test_the_papers_estimators_refuse_infinity_and_take_nan_only_in_transform(method: Callable[..., CPD]) -> None:
    X = np.random.default_rng(0).uniform(size=(10, 3))
    model, nan, inf = method(**FLAT | {"tol": 0}).fit(X), X.copy(), X.copy()
    nan[0, 0], inf[0, 0] = np.nan, np.inf
    for call, X, word in (
        (model.fit, nan, "NaN.*CPD, which takes NaN as missing"),
        (model.fit, inf, "infinity"),
        (model.transform, inf, "infinity"),
    ):
        with pytest.raises(PolyadicError, match=f"sample 0 contains {word}"):
            call(X)
    assert not model.__sklearn_tags__().input_tags.allow_nan
    assert np.isfinite(model.transform(nan)).all()
