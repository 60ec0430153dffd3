"""Experiments: comparisons of methods that write down what they found, and how."""
