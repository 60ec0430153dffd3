"""Which components come back when a model is fitted again to halves of the subjects, from other starts."""

from __future__ import annotations

from polyadic.replication import Replicability

__all__ = ["Replicability"]
