"""Settings for every method by the same number of tries, on people who are never tested.

Of all people, those tested with any seed under any protocol are put away first. A third of the others is held out:
methods that need no labels learn from the rest, and each half of the held-out people trains a probe (or a supervised
method) for the other half. The best by the standardised probe is chosen.
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

from polyadic.errors import PolyadicError
from polyadic.evaluate import PROBES, seconds_per_sweep
from polyadic.experiments.paper.methods import Arm, Context, Row, clean_scores, family, fitted, method, views_of
from polyadic.experiments.paper.tables import Result, distinct, footer, heading, table

__all__ = ["SPACES", "arms", "chosen", "read_settings", "tried", "tries", "tuning_table", "untested"]

Settings = dict[str, Any]
Space = dict[str, tuple[Any, ...]]

_FRACTIONS = (4.0, 1.0, 1.0)
_DRAW = 0

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
"""What may be tried, those that take longest first. Of each setting the first value is the library's."""


def tries(space: Mapping[str, tuple[Any, ...]], count: int) -> list[Settings]:
    """Up to `count` different settings of a space: first its defaults, then others drawn at random.

    Where `views` are among them, they take turns, each of them first with the defaults of the rest: all are tried
    equally often. Fewer are the beginning of more. A space with fewer settings is tried as a whole.

    Parameters
    ----------
    space : the values of each setting, its default first

    Returns
    -------
    the changes that each try makes to the defaults; the first makes none

    Examples
    --------
    >>> tries({"alpha": (1, 2, 3)}, 12)
    [{}, {'alpha': 2}, {'alpha': 3}]
    >>> tries({"alpha": (1, 2), "views": ("all", "jitter 0.3")}, 3)
    [{}, {'views': 'jitter 0.3'}, {'alpha': 2}]
    """
    defaults = {name: values[0] for name, values in space.items()}
    rng = np.random.default_rng(_DRAW)
    turns: list[list[Settings]] = []
    for view in space.get("views", (None,)):
        own = {**space, "views": (view,)} if "views" in space else space
        first, *rest = (dict(zip(own, values, strict=True)) for values in product(*own.values()))
        turns.append([first, *(rest[k] for k in rng.permutation(len(rest)))])
    drawn = [settings for turn in zip(*turns, strict=True) for settings in turn][: max(count, 1)]
    return [{name: value for name, value in one.items() if value != defaults[name]} for one in drawn]


def untested(context: Context) -> Context:
    """The context of a tuning: only windows of people who are tested with none of its seeds and protocols."""
    windows = context.windows
    tested: set[str] = set()
    for protocol in context.protocols:
        for seed in context.seeds:
            tested |= set(windows.subject[context.parts(protocol, seed).test].tolist())
    free = ~np.isin(windows.subject, sorted(tested))
    people = len(np.unique(windows.subject[free & (windows.label >= 0)]))
    if people < 3:
        raise PolyadicError(
            f"tuning needs three people with labels who are never tested, but with these seeds and protocols there are "
            f"{people}: give fewer --seeds, or --protocol subject"
        )
    inner = windows[np.flatnonzero(free)]
    return replace(context, windows=inner, protocols=("subject",), seeds=range(1), fractions=_FRACTIONS)


def arms(context: Context) -> list[Arm]:
    """The same number of tries of every method, or all settings of its space if there are fewer."""
    found = []
    for name, space in SPACES.items():
        usable = {key: _different(context, values) if key == "views" else values for key, values in space.items()}
        size = math.prod(len(values) for values in usable.values())
        for number, settings in enumerate(tries(usable, context.tries)):
            labels = {"try": number, "settings": settings, "of": size}
            found.append(method(name, labels, **settings))
    return found


def _different(context: Context, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the views that differ: where nothing is rotated, views without rotation are those there are anyway."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(repr(views_of(context.augment, name)), name)
    return tuple(found.values())


def tried(arm: Arm, context: Context, seed: int) -> list[Row]:
    """One try: the mean scores of both halves of the held-out people; settings that cannot be fitted score nothing."""
    part = context.parts("subject", seed)
    row: Row = {**arm.labels, "seed": seed, "protocol": "subject", "split": part.hash}
    halves: list[tuple[int, Row]] = []
    model, said = None, list[str]()
    for half in (part, replace(part, train=part.test, test=part.train)):
        try:
            if model is None or arm.kind != "features":
                model, said = fitted(arm, context, half, seed)
            halves.append((len(half.test), clean_scores(arm, model, half)))
        except PolyadicError as error:
            return [{**row, "failed": str(error)}]
    assert model is not None
    total = sum(count for count, _ in halves)
    for kind in PROBES:
        names = ("accuracy", "balanced_accuracy", "macro_f1", "kappa")
        row[kind] = {name: sum(count * found[kind][name] for count, found in halves) / total for name in names}
    seconds = getattr(model, "history_", {}).get("seconds", [])
    if len(seconds):
        row |= {"seconds": seconds_per_sweep(seconds), "sweeps": len(seconds)}
    if said:
        row["warnings"] = said
    return [{**row, "parameters": int(model.n_parameters_), "n_train": len(part.train), "n_test": total}]


def _best(result: Result, name: str) -> Row | None:
    """The best try of a method by the standardised probe, then the plain one, then the earliest."""
    rows = [row for row in result["rows"] if row["method"] == name and "failed" not in row]
    return max(rows, key=lambda r: (*(r[kind]["accuracy"] for kind in reversed(PROBES)), -r["try"]), default=None)


def chosen(result: Result) -> dict[str, Any]:
    """What `--tuned` reads: the best settings of each method by family, and of how many they are the best."""
    names = distinct(result["rows"], "method")
    best = {name: row for name in names if (row := _best(result, name)) is not None}
    return {
        "dataset": result["dataset"],
        "settings": {family(name): row["settings"] for name, row in best.items()},
        "tries": {family(name): sum(row["method"] == name for row in result["rows"]) for name in names},
        "held_out": {family(name): {kind: row[kind]["accuracy"] for kind in PROBES} for name, row in best.items()},
        **{key: result[key] for key in ("command", "date", "commit")},
    }


def read_settings(path: Path, dataset: str) -> dict[str, Settings]:
    """The settings by family in a file that `polyadic bench tune` wrote for this dataset."""
    try:
        content = json.loads(path.read_bytes())
        known, settings = content["dataset"], {name: _today(own) for name, own in content["settings"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PolyadicError(f"--tuned must be a file by `polyadic bench tune`, but {path.name} is none") from error
    families = {family(name) for name in SPACES}
    if not settings.keys() <= families:
        raise PolyadicError(
            f"--tuned must name methods among {', '.join(sorted(families))}, but {path.name} has "
            f"{sorted(settings.keys() - families)[0]!r}"
        )
    if known != dataset:
        raise PolyadicError(f"--tuned must be tuned for {dataset}, but {path.name} is for {known}")
    return settings


def _today(own: Mapping[str, Any]) -> Settings:
    """Settings of a file: an early one says `rotation` false, where `views` say so now."""
    settings = dict(own)
    return settings if settings.pop("rotation", True) else {**settings, "views": "no rotation"}


def tuning_table(result: Result) -> str:
    """One line a method: tries, accuracy of the defaults and of the best on held-out people, and the best settings."""
    lines = []
    for name in distinct(result["rows"], "method"):
        rows = [row for row in result["rows"] if row["method"] == name]
        best, first = _best(result, name), rows[0]
        exhausted = ", all there are" if len(rows) == first["of"] else ""
        failed = sum("failed" in row for row in rows)
        lines.append(
            [
                name,
                f"{len(rows)}{exhausted}" + (f", {failed} failed" if failed else ""),
                *(_percent(first, kind) for kind in PROBES),
                *(_percent(best, kind) for kind in PROBES),
                _words(best),
            ]
        )
    heads = ["", "tries", *(f"defaults, {kind}" for kind in PROBES), *(f"best, {kind}" for kind in PROBES), "settings"]
    return "\n".join([heading(result, "subject"), table(heads, lines), footer(result)])


def _percent(row: Row | None, kind: str) -> str:
    return "–" if row is None or kind not in row else f"{100 * row[kind]['accuracy']:.2f}"


def _words(row: Row | None) -> str:
    if row is None:
        return "–"
    return ", ".join(f"{name} {value}" for name, value in row["settings"].items()) or "the defaults"
