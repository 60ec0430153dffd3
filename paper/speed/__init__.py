"""Timing experiments: stages, scaling, comparisons, and accuracy against seconds."""
