"""Measurements beside the paper: memory, stores, start-up, deployment, defaults and tuning.

Each is a command: `python -m paper.benchmarks.store` and the like.
"""
