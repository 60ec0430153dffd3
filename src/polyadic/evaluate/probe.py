"""The probe: logistic regression on features, as they are ("plain", the paper's) or standardised."""

from __future__ import annotations

import warnings
from typing import Any

from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from polyadic.errors import PolyadicError

__all__ = ["PROBES", "probe", "probe_accuracy"]

PROBES = ("plain", "standardised")


def probe(kind: str = "standardised") -> Any:
    """An unfitted classifier for features.

    Parameters
    ----------
    kind : "plain" for scikit-learn's LogisticRegression as the paper has it (with more iterations, for the scales of
        raw features differ), "standardised" for the same on features of mean 0 and variance 1

    Examples
    --------
    >>> probe("plain")
    LogisticRegression(max_iter=1000)
    """
    if kind not in PROBES:
        raise PolyadicError(f"kind must be one of {', '.join(PROBES)}, but is {kind!r}")
    regression = LogisticRegression(max_iter=1000)
    return regression if kind == "plain" else make_pipeline(StandardScaler(), regression)


def probe_accuracy(
    kind: str, Z_train: NDArray[Any], y_train: NDArray[Any], Z_test: NDArray[Any], y_test: NDArray[Any]
) -> float:
    """Share of test windows that a probe trained on the training windows labels rightly.

    Parameters
    ----------
    kind : one of `PROBES`
    Z_train, Z_test : (n, rank), features
    y_train, y_test : (n,), labels
    """
    # Problems as small as this one only lose by threads: in BLAS they can take a hundred times as long.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # A regression that is not quite at its optimum after 1000 iterations is still a fair judge.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = probe(kind).fit(Z_train, y_train)
    return float(fitted.score(Z_test, y_test))
