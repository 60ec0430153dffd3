"""Execution of fits: loop, batches, checkpoints, processes, CUDA graphs."""

from __future__ import annotations

from polyadic.engine.processes import join

__all__ = ["join"]
