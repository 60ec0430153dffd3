"""Evaluation of features: probes, scores, subject-wise cross-validation, robustness tests and significance tests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyadic.evaluate.augmented import AugmentedProbe, augmented_features, perturbed
    from polyadic.evaluate.classifier import WindowClassifier, labels_of
    from polyadic.evaluate.metrics import scores
    from polyadic.evaluate.probes import PROBES, low_label_rows, probe
    from polyadic.evaluate.scoring import (
        own_split,
        probe_accuracy,
        score_features,
        score_own_probe,
        score_split,
        score_splits,
        summarise,
    )
    from polyadic.evaluate.significance import corrected_resampled, holm, paired, unpaired
    from polyadic.evaluate.timing import seconds_per_sweep
    from polyadic.evaluate.validated_probe import Probe
    from polyadic.evaluate.validation import CrossValidation, cross_validate

__all__ = [
    "PROBES",
    "AugmentedProbe",
    "CrossValidation",
    "Probe",
    "WindowClassifier",
    "augmented_features",
    "corrected_resampled",
    "cross_validate",
    "holm",
    "labels_of",
    "low_label_rows",
    "own_split",
    "paired",
    "perturbed",
    "probe",
    "probe_accuracy",
    "score_features",
    "score_own_probe",
    "score_split",
    "score_splits",
    "scores",
    "seconds_per_sweep",
    "summarise",
    "unpaired",
]

_MODULES = {
    "AugmentedProbe": "augmented",
    "CrossValidation": "validation",
    "PROBES": "probes",
    "Probe": "validated_probe",
    "WindowClassifier": "classifier",
    "augmented_features": "augmented",
    "corrected_resampled": "significance",
    "cross_validate": "validation",
    "holm": "significance",
    "labels_of": "classifier",
    "low_label_rows": "probes",
    "own_split": "scoring",
    "paired": "significance",
    "perturbed": "augmented",
    "probe": "probes",
    "probe_accuracy": "scoring",
    "score_features": "scoring",
    "score_own_probe": "scoring",
    "score_split": "scoring",
    "score_splits": "scoring",
    "scores": "metrics",
    "seconds_per_sweep": "timing",
    "summarise": "scoring",
    "unpaired": "significance",
}


def __getattr__(name: str) -> Any:
    # Importing scikit-learn takes as long as importing torch, and `predict` needs only the stored probe.
    if name in _MODULES:
        return getattr(import_module(f"polyadic.evaluate.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyadic.evaluate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
