"""Evaluation of features: probes, window classifiers and subject-wise cross-validation."""

from __future__ import annotations

from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.probe import Probe
from polyadic.evaluate.scoring import calibration, scores
from polyadic.evaluate.validation import CrossValidation, cross_validate

__all__ = ["CrossValidation", "Probe", "WindowClassifier", "calibration", "cross_validate", "labels_of", "scores"]
