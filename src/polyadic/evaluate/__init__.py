"""Evaluation of features: probes, window classifiers, subject-wise cross-validation and significance tests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyadic.evaluate.classifier import WindowClassifier, labels_of
    from polyadic.evaluate.metrics import scores
    from polyadic.evaluate.probe import Probe, make_probe
    from polyadic.evaluate.scoring import low_label_rows
    from polyadic.evaluate.significance import corrected_resampled, holm, paired, unpaired
    from polyadic.evaluate.validation import CrossValidation, cross_validate

__all__ = [
    "CrossValidation",
    "Probe",
    "WindowClassifier",
    "corrected_resampled",
    "cross_validate",
    "holm",
    "labels_of",
    "low_label_rows",
    "make_probe",
    "paired",
    "scores",
    "unpaired",
]

_MODULES = {
    "CrossValidation": "validation",
    "Probe": "probe",
    "WindowClassifier": "classifier",
    "cross_validate": "validation",
    "labels_of": "classifier",
    "low_label_rows": "scoring",
    "make_probe": "probe",
    "scores": "metrics",
}


def __getattr__(name: str) -> Any:
    # Importing scikit-learn takes as long as importing torch, and `polyadic predict` does not need it.
    if name in __all__:
        return getattr(import_module(f"polyadic.evaluate.{_MODULES.get(name, 'significance')}"), name)
    raise AttributeError(f"module 'polyadic.evaluate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
