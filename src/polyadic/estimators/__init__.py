"""CPD, ATD, SALS and GR-SALS as scikit-learn transformers: raw windows or tensors in, features out.

Read `base` for how windows enter, `model` for what a fitted model does, `cpd` for the default fit, `paper` for the
estimators of the paper, and `files` for model files.
"""

from polyadic.estimators.base import WindowEstimator, all_or_nothing, labelled_windows
from polyadic.estimators.cpd import CPD, MORE_SWEEPS
from polyadic.estimators.files import MODEL_FILE, load
from polyadic.estimators.model import describe_fit
from polyadic.estimators.paper import ATD, GRSALS, SALS

__all__ = [
    "ATD",
    "CPD",
    "GRSALS",
    "MODEL_FILE",
    "MORE_SWEEPS",
    "SALS",
    "WindowEstimator",
    "all_or_nothing",
    "describe_fit",
    "labelled_windows",
    "load",
]
