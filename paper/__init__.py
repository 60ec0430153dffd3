"""Experiments: comparisons of methods, written to files with their settings and provenance."""
