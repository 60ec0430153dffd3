"""Evaluation of features: probes, scores, subject-wise cross-validation, robustness tests and significance tests."""

from __future__ import annotations

from polyadic.evaluate.augmented import AugmentedProbe, augmented_features, perturbed
from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.metrics import scores
from polyadic.evaluate.probe import PROBES, low_label_rows, probe
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
from polyadic.evaluate.validation import CrossValidation, cross_validate
from polyadic.validated_probe import Probe

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
