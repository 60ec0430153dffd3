"""Measurements beside the paper: memory, start-up, deployment, defaults and tuning.

Each is a command: `python -m paper.benchmarks.memory` and the like.
"""
