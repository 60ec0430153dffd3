"""How features are judged: a logistic regression on few labels."""

from __future__ import annotations

from polyadic.evaluate.probe import PROBES, probe, probe_accuracy

__all__ = ["PROBES", "probe", "probe_accuracy"]
