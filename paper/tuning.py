"""Tuning of every method with the same number of tries, on subjects who are never tested.

Subjects who are tested with any seed under any protocol are excluded first. A third of the others is held out:
unsupervised methods learn from the rest, and each half of the held-out subjects trains a probe (or a supervised method)
that is tested on the other half. Settings are sampled, and the best are chosen, as `polyadic tune` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from paper.markdown import table
from paper.methods import (
    ExperimentSettings,
    MethodVariant,
    Row,
    choose_views,
    family,
    fit_variant,
    score_variant,
    sweep_columns,
    variant,
)
from paper.scoring import PROBES
from paper.tables import Result, distinct_values, footer, heading
from polyadic.data import Split
from polyadic.errors import PolyadicError

MethodSettings = dict[str, Any]
Space = dict[str, tuple[Any, ...]]

_FRACTIONS = (4.0, 1.0, 1.0)
_CHOSEN_BY = "standardised"
"""The probe whose scores decide."""

_FRAMES: Space = {"window": ("hann", "rectangular"), "parts": ("log_re_im", "log_amplitude")}
_ALS: Space = {
    "learning_rate": (0.05, 0.02, 0.1),
    "solver": ("blend", "memory"),
    "alpha": (1e-3, 1e-2, 1e-1),
    "batch_size": (128, 64, 256),
    **_FRAMES,
}
_ADAM: Space = {
    "learning_rate": (1e-3, 3e-4, 3e-3),
    "weight_decay": (5e-4, 1e-5, 5e-3),
    "batch_size": (128, 256),
    **_FRAMES,
}
_VIEWS: Space = {"views": ("all", "no rotation", "jitter 0.05", "jitter 0.3")}

SPACES: dict[str, Space] = {
    "SimCLR-32": {**_ADAM, "temperature": (0.5, 0.2, 0.1), **_VIEWS},
    "AE_ss-32": {**_ADAM, "weight": (1.0, 0.1, 0.01), "temperature": (0.5, 0.2, 0.1), **_VIEWS},
    "BYOL-32": {**_ADAM, "momentum": (0.99, 0.9, 0.996), **_VIEWS},
    "AE-32": _ADAM,
    "CNN": _ADAM,
    "ATD": {**_ALS, "beta": (2.0, 25.0, 125.0), **_VIEWS},
    "ATD_ss-": {**_ALS, **_VIEWS},
    "GR-SALS": {**_ALS, "graph_weight": (1e-3, 1e-1, 10.0)},
    "SALS": _ALS,
    "UMLDA": {"ridge": (1.0, 0.1, 10.0, 100.0), **_FRAMES},
    "STL": {"alpha": (1e-2, 1e-4, 1e-3, 1e-1), **_FRAMES},
    "PCA-32": {
        "window": ("hann", "rectangular", "hamming"),
        "parts": ("log_re_im", "log_amplitude", "amplitude", "re_im"),
    },
    "Hand": {},
    "MiniRocket": {"n_kernels": (10_000, 5_000, 20_000), "max_dilations": (32, 16, 64)},
    "CP-ALS": {"alpha": (1e-3, 1e-2, 1e-1), **_FRAMES},
}
"""The search spaces, slowest methods first. The first value of each setting is the library's default."""


def without_tested_subjects(settings: ExperimentSettings) -> ExperimentSettings:
    """Return settings for tuning, with only the windows of subjects who are not tested with any seed or protocol."""
    windows = settings.windows
    tested: set[str] = set()
    for protocol in settings.protocols:
        for seed in settings.seeds:
            tested |= set(windows.subject[settings.split_for(protocol, seed).test].tolist())
    free = ~np.isin(windows.subject, sorted(tested))
    people = len(np.unique(windows.subject[free & (windows.label >= 0)]))
    if people < 3:
        raise PolyadicError(
            f"tuning needs three subjects with labels who are never tested, but these seeds and protocols leave "
            f"{people}: use fewer --seeds, or --protocol subject"
        )
    inner = windows[np.flatnonzero(free)]
    return replace(settings, windows=inner, protocols=("subject",), seeds=range(1), fractions=_FRACTIONS)


def variants_to_try(settings: ExperimentSettings) -> list[MethodVariant]:
    """Return the same number of tries for every method, or all settings of its space if there are fewer."""
    found = []
    for name, space in SPACES.items():
        usable = {
            key: _different_views(settings, values) if key == "views" else values for key, values in space.items()
        }
        size = math.prod(len(values) for values in usable.values())
        for number, chosen in enumerate(tries(usable, settings.tries)):
            labels = {"try": number, "settings": chosen, "of": size}
            found.append(variant(name, labels, **chosen))
    return found


def tries(space: Mapping[str, tuple[Any, ...]], count: int) -> list[MethodSettings]:
    """Return up to `count` different settings of a space: first its defaults, then others sampled at random.

    If the space has `views`, they take turns, each first with the defaults of the other settings. A smaller `count`
    gives a prefix of a larger one. A space with fewer than `count` settings is tried exhaustively.

    Returns
    -------
    for each try, its changes from the defaults; the first has none

    Examples
    --------
    >>> tries({"alpha": (1, 2), "views": ("all", "jitter 0.3")}, 3)
    [{}, {'views': 'jitter 0.3'}, {'alpha': 2}]
    """
    defaults = {name: values[0] for name, values in space.items()}
    rng = np.random.default_rng(0)
    turns: list[list[MethodSettings]] = []
    for view in space.get("views", (None,)):
        fixed = {**space, "views": (view,)} if "views" in space else space
        first, *rest = (dict(zip(fixed, values, strict=True)) for values in product(*fixed.values()))
        turns.append([first, *(rest[k] for k in rng.permutation(len(rest)))])
    sampled = [settings for turn in zip(*turns, strict=True) for settings in turn][: max(count, 1)]
    return [{name: value for name, value in one.items() if value != defaults[name]} for one in sampled]


def _different_views(settings: ExperimentSettings, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the distinct views: "no rotation" equals "all" if the dataset's augmentations have no rotation."""
    first = {repr(choose_views(settings.augment, name)): name for name in reversed(names)}
    return tuple(name for name in names if name in first.values())


def run_try(one: MethodVariant, settings: ExperimentSettings, seed: int) -> list[Row]:
    """Try settings once, and return the mean scores of both halves of the held-out subjects, or why the fit failed."""
    part = settings.split_for("subject", seed)
    row: Row = {**one.labels, "seed": seed, "protocol": "subject", "split": part.hash}
    halves: list[tuple[Split, Row]] = []
    model, messages = None, list[str]()
    for half in (part, replace(part, train=part.test, test=part.train)):
        try:
            if model is None or one.kind != "features":
                model, messages = fit_variant(one, settings, half, seed)
            halves.append((half, score_variant(one, model, half)))
        except PolyadicError as error:
            return [{**row, "failed": str(error)}]
    assert model is not None
    total = sum(len(half.test) for half, _ in halves)
    for kind in PROBES:
        names = ("accuracy", "balanced_accuracy", "macro_f1", "kappa")
        row[kind] = {name: sum(len(half.test) * own[kind][name] for half, own in halves) / total for name in names}
    row["shares"] = [share / total for half, own in halves for share in _correct(half, own[_CHOSEN_BY])]
    row |= sweep_columns(model)
    if messages:
        row["warnings"] = messages
    return [{**row, "parameters": int(model.n_parameters_), "n_train": len(part.train), "n_test": total}]


def _correct(part: Split, scores: Row) -> list[float]:
    """Return the number of correctly classified windows of each test subject."""
    names, counts = np.unique(part.windows.subject[part.test], return_counts=True)
    return [scores["per_subject"][name] * int(count) for name, count in zip(names.tolist(), counts, strict=True)]


def _best_try(result: Result, name: str) -> Row | None:
    """Return the best try of a method; ties are broken by the plain probe, then by order.

    Like `polyadic tune`, choose the largest gain in accuracy over the defaults, less half its standard error over
    subjects. Tries in early files, which lack the contributions of the subjects, are compared by accuracy alone.
    """
    rows = [row for row in result["rows"] if row["method"] == name and "failed" not in row]
    first = rows[0] if rows and rows[0]["try"] == 0 and all("shares" in row for row in rows) else None

    def value(row: Row) -> float:
        return float(row[_CHOSEN_BY]["accuracy"]) if first is None else _cautious_gain(row, first)

    return max(rows, key=lambda row: (value(row), row["plain"]["accuracy"], -row["try"]), default=None)


def _cautious_gain(row: Row, first: Row) -> float:
    """Return the gain in accuracy over the defaults, less half its standard error over subjects."""
    gaps = np.array(row["shares"]) - np.array(first["shares"])
    error = np.sqrt(len(gaps)) * gaps.std(ddof=1) if len(gaps) > 1 else np.inf
    return float(gaps.sum() - error / 2)


def best_settings(result: Result) -> dict[str, Any]:
    """Return the content of the file for `--tuned`: the best settings of each family, and the number of tries."""
    names = distinct_values(result["rows"], "method")
    best = {name: row for name in names if (row := _best_try(result, name)) is not None}
    return {
        "dataset": result["dataset"],
        "settings": {family(name): row["settings"] for name, row in best.items()},
        "tries": {family(name): sum(row["method"] == name for row in result["rows"]) for name in names},
        "held_out": {family(name): {kind: row[kind]["accuracy"] for kind in PROBES} for name, row in best.items()},
        **{key: result[key] for key in ("command", "date", "commit")},
    }


def read_settings(path: Path, dataset: str) -> dict[str, MethodSettings]:
    """Return the settings by family in a file that `python -m paper tune` wrote for this dataset."""
    try:
        content = json.loads(path.read_bytes())
        known, settings = content["dataset"], dict(content["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise PolyadicError(
            f"--tuned must be a settings file written by `python -m paper tune`, but {path.name} is not one"
        ) from error
    if known != dataset:
        raise PolyadicError(f"--tuned must be tuned for {dataset}, but {path.name} is for {known}")
    return settings


def tuning_table(result: Result) -> str:
    """Return a table with one row per method: tries, accuracy of default and best settings, and the best settings."""
    lines = []
    for name in distinct_values(result["rows"], "method"):
        rows = [row for row in result["rows"] if row["method"] == name]
        best, first = _best_try(result, name) or {}, rows[0]
        settings = ", ".join(f"{key} {value}" for key, value in best.get("settings", {}).items()) or "the defaults"
        exhausted = " (all)" if len(rows) == first["of"] else ""
        failed = sum("failed" in row for row in rows)
        lines.append(
            [
                name,
                f"{len(rows)}{exhausted}" + (f", {failed} failed" if failed else ""),
                *(_percent(first, kind) for kind in PROBES),
                *(_percent(best, kind) for kind in PROBES),
                settings if best else "–",
            ]
        )
    heads = ["", "tries", *(f"defaults, {kind}" for kind in PROBES), *(f"best, {kind}" for kind in PROBES), "settings"]
    return "\n".join([heading(result, "subject"), table(heads, lines), footer(result)])


def _percent(row: Row, kind: str) -> str:
    """Return the accuracy of a try by one probe in percent, or a dash."""
    return f"{100 * row[kind]['accuracy']:.2f}" if kind in row else "–"
