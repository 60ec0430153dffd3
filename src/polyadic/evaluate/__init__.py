"""How features are judged: a logistic regression on few labels, on windows clean and perturbed, over seeds."""

from __future__ import annotations

from polyadic.evaluate.augmented import AugmentedProbe, augmented_features, perturbed
from polyadic.evaluate.classifier import WindowClassifier, labels_of
from polyadic.evaluate.metrics import scores
from polyadic.evaluate.probe import PROBES, low_label_rows, probe, probe_accuracy
from polyadic.evaluate.scoring import judge_probe, judge_splits, own_split, summary
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
    "judge_probe",
    "judge_splits",
    "labels_of",
    "low_label_rows",
    "own_split",
    "paired",
    "perturbed",
    "probe",
    "probe_accuracy",
    "scores",
    "seconds_per_sweep",
    "summary",
    "unpaired",
]
