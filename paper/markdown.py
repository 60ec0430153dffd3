"""Markdown helpers for all experiments: tables, escaped names, means and machines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def as_text(name: str) -> str:
    """Escape a name so that Markdown shows it literally.

    Examples
    --------
    >>> print(as_text("<b>*a*.npz"))
    \\<b\\>\\*a\\*.npz
    """
    return re.sub(r"([]\\`*_<>[|~&$@])", r"\\\1", " ".join(name.split()))


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table with a left-aligned first column and right-aligned other columns.

    Examples
    --------
    >>> print(table(["", "seconds"], [["ATD", "1.2"]]), end="")
    |  | seconds |
    |---|---:|
    | ATD | 1.2 |
    """
    rule = "|---" + "|---:" * (len(heads) - 1) + "|"
    return "\n".join([f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


def mean_and_std(values: Sequence[float]) -> str:
    """Return mean ± standard deviation with two decimals, the mean alone for one value, and a dash for none.

    Examples
    --------
    >>> mean_and_std([90.0, 92.0])
    '91.00 ± 1.41'
    """
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def machine_name(machine: Mapping[str, Any]) -> str:
    """Name the GPU that a result was computed on, or else the processor and the number of threads.

    Parameters
    ----------
    machine : as in `paper.results.provenance`
    """
    return str(machine.get("gpu") or f"{machine['processor']}, {machine['threads']} threads")
