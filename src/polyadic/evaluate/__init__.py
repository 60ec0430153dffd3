"""Evaluation of features: probes, window classifiers, subject-wise cross-validation and significance tests."""

from __future__ import annotations

from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.probe import Probe, make_probe
from polyadic.evaluate.scoring import calibration, low_label_rows, scores
from polyadic.evaluate.significance import corrected_resampled, holm
from polyadic.evaluate.validation import CrossValidation, cross_validate

__all__ = [
    "CrossValidation",
    "Probe",
    "WindowClassifier",
    "calibration",
    "corrected_resampled",
    "cross_validate",
    "holm",
    "labels_of",
    "low_label_rows",
    "make_probe",
    "scores",
]
