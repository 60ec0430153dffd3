"""`python -m paper race`: accuracy against the seconds of a fit, for several solvers of the same problem.

Only the publisher's training subjects are used. For every seed, a third of them is held out with labels; a probe is
trained on half of the held-out subjects and tested on the other half, and vice versa. The bases after every sweep are
recorded and scored after the fit, so that only the fit is timed.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from paper.drawing import new_figure
from paper.markdown import mean_and_std, table
from paper.results import choose_device, provenance, show, stage_bar, write_result
from paper.scoring import probe_accuracy
from paper.speed.measure import seconds_per_sweep
from paper.speed.tables import footer
from polyadic import ATD
from polyadic.augment import Augmentation, Bandpass, Compose, Jitter
from polyadic.core import step as als
from polyadic.core.algebra import gram, project
from polyadic.core.tensorizer import tensors
from polyadic.data import Windows, open_windows, split, synthetic
from polyadic.errors import PolyadicError
from polyadic.presets import PAPER_METHOD, preset
from polyadic.spectral import STFT

REFERENCE = "blend 0.002 (paper)"
"""The solver of the paper, to which the others are compared."""

CANDIDATES: dict[str, tuple[dict[str, Any], int]] = {
    REFERENCE: ({"solver": "blend", "learning_rate": 2e-3}, 50),
    "blend 0.05": ({"solver": "blend", "learning_rate": 0.05}, 20),
    "blend 0.2": ({"solver": "blend", "learning_rate": 0.2}, 20),
    "memory 0.02": ({"solver": "memory", "learning_rate": 0.02}, 20),
    "memory 0.05": ({"solver": "memory", "learning_rate": 0.05}, 20),
    "memory 0.1": ({"solver": "memory", "learning_rate": 0.1}, 20),
    "memory 0.2": ({"solver": "memory", "learning_rate": 0.2}, 20),
    "memory 0.2, batch 512": ({"solver": "memory", "learning_rate": 0.2, "batch_size": 512}, 20),
}
"""Arguments of ATD and the number of sweeps, by name."""

_SHARE = 0.99
_LAST = 3

Row = dict[str, Any]
Result = dict[str, Any]


def run(
    out: Path,
    data: Path | None,
    dataset: str = "har",
    seeds: int = 5,
    device: str = "auto",
    quick: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> Result:
    """Run all candidates for all seeds, alternately, and write `race-DATASET-DEVICE.json`, `.md` and `.png`."""
    windows, tensorize, augment = _synthetic_windows() if quick else open_training_people(data, dataset)
    place = choose_device(device)
    result: Result = {
        "experiment": "race",
        "title": "Accuracy against seconds",
        "dataset": "synthetic" if quick else dataset,
        "device": place.type,
        "quick": quick,
        "load": os.getloadavg()[0],
        "candidates": {name: {**values, "sweeps": sweeps} for name, (values, sweeps) in CANDIDATES.items()},
        "reference": REFERENCE,
        "seeds": list(range(1 if quick else seeds)),
        **provenance(str(place)),
        "rows": [],
    }
    stem = f"race-{result['dataset']}-{place.type}"
    with stage_bar(f"race on {place.type}", quiet or as_json, "fits") as update:
        for seed in result["seeds"]:
            for row in _run_seed(windows, tensorize, augment, seed, place, quick):
                result["rows"].append(row)
                update(len(result["rows"]), len(result["seeds"]) * len(CANDIDATES), f"seed {seed}")
            result["summary"] = summary(result["rows"])
            write_result(out / f"{stem}.json", result)
    (out / f"{stem}.md").write_text(markdown(result))
    plot(result, out / f"{stem}.png")
    show(result, markdown(result), f"{stem}.json, {stem}.md and {stem}.png to {out}/", as_json)
    return result


def open_training_people(data: Path | None, dataset: str) -> tuple[Windows, STFT, Augmentation]:
    """Return the windows of the publisher's training subjects, with a dataset's frames and augmentations."""
    if data is None:
        raise PolyadicError("--data is missing: pass a window store or a .npz file with labels, or use --quick")
    windows = open_windows(data)
    if {"train", "test"} <= set(windows.part.tolist()):
        windows = windows.select(part="train")
    if not (windows.label >= 0).any():
        raise PolyadicError(f"{data.name} has no labels, which are needed for an accuracy")
    settings = preset(dataset, windows.fs)
    return windows, STFT(settings.tensorize.n_fft, settings.tensorize.hop, floor="channel"), settings.augment


def _synthetic_windows() -> tuple[Windows, STFT, Augmentation]:
    """Return small signals, frames and augmentations for a quick run."""
    augment = Compose([Jitter(0.05), Bandpass([(2.0, 24.0), (4.0, 20.0)], 64.0)])
    return synthetic(120, n_channels=3, length=64, n_classes=3), STFT(n_fft=16, hop=8, floor="channel"), augment


def _run_seed(
    windows: Windows, tensorize: STFT, augment: Augmentation, seed: int, device: torch.device, quick: bool
) -> Iterator[Row]:
    """Yield the row of each candidate for one seed, on one split."""
    # Two thirds of the subjects without labels, and two labelled halves of the others.
    parts = split(windows, "subject", fractions=(4, 1, 1), random_state=seed)
    unlabelled, *labelled = parts
    X = torch.from_numpy(unlabelled.X).to(device)
    shared = {"tensorize": tensorize, "augment": augment, "tol": 0.0, "device": device, "random_state": seed}
    for name, (parameters, sweeps) in CANDIDATES.items():
        settings = {**PAPER_METHOD, **shared, **parameters, "rank": 4 if quick else 32}
        # Run one warm-up sweep, because some code is compiled and some memory allocated on first use.
        _fit_with_clock(ATD(**settings, max_sweeps=1), X)
        model, seconds, bases = _fit_with_clock(ATD(**settings, max_sweeps=3 if quick else sweeps), X)
        row = {"candidate": name, "seed": seed, "split": parts.hash, "seconds": seconds, "loss": model.history_["loss"]}
        yield row | {"accuracy": _accuracies(model, bases, labelled)}


def _accuracies(model: ATD, bases: list[list[torch.Tensor]], labelled: list[Windows]) -> list[float]:
    """Return an accuracy in percent for the bases after each sweep: each part is tested with a probe of the other."""
    first, second = (part.label for part in labelled)
    both = [tensors(model.tensorize_, torch.from_numpy(part.X)) for part in labelled]
    features = [[_features(T, factors, float(model.alpha)) for T in both] for factors in bases]
    return [
        50 * (probe_accuracy("standardised", Z, first, W, second) + probe_accuracy("standardised", W, second, Z, first))
        for Z, W in features
    ]


def _fit_with_clock(model: ATD, X: torch.Tensor) -> tuple[ATD, list[float], list[list[torch.Tensor]]]:
    """Return the fitted model, the seconds since the beginning of the fit after every sweep, and the bases then."""
    seconds: list[float] = []
    bases: list[list[torch.Tensor]] = []
    watching = 0.0

    def watch(now: ATD) -> None:
        nonlocal watching
        arrived = time.perf_counter()
        seconds.append(arrived - begun - watching)
        bases.append([torch.as_tensor(factor).clone() for factor in now.factors_])
        watching += time.perf_counter() - arrived

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        begun = time.perf_counter()
        model.fit(X, after_sweep=watch)
    return model, seconds, bases


def _features(T: torch.Tensor, factors: list[torch.Tensor], alpha: float) -> NDArray[Any]:
    """Return the features that `ATD.transform` would compute from tensors."""
    bases = [factor.to(T) for factor in factors]
    G = gram([factor.double() for factor in bases])
    return als.solve_coefficients(project(T, bases), G, als.Objective(alpha=alpha)).cpu().numpy()


def reached(row: Row, target: float) -> float | None:
    """Return the seconds until the accuracy stays at or above the target for two sweeps, or None if it never does.

    At the end of the fit, one sweep is enough.
    """
    accuracy = row["accuracy"]
    for number, seconds in enumerate(row["seconds"]):
        if min(accuracy[number : number + 2]) >= target:
            return float(seconds)
    return None


def summary(rows: list[Row]) -> list[Row]:
    """Summarise each candidate with one number per seed, None if the target was not reached.

    The converged accuracy is the mean of the last three sweeps. The target is 99 % of the converged accuracy of the
    paper's solver for the same seed. `sooner_to_paper` is the paper's seconds divided by the candidate's.
    """
    names = list(dict.fromkeys(row["candidate"] for row in rows))
    runs = {name: [row for row in rows if row["candidate"] == name] for name in names}
    targets = [_SHARE * _converged(row) for row in runs[REFERENCE]]
    slowest = [reached(*pair) for pair in zip(runs[REFERENCE], targets, strict=True)]
    entries = []
    for name in names:
        sweeps = [np.diff(row["seconds"], prepend=0.0) for row in runs[name]]
        seconds = [reached(*pair) for pair in zip(runs[name], targets, strict=True)]
        pairs = zip(slowest, seconds, strict=True)
        entry: Row = {"candidate": name, "converged": [_converged(row) for row in runs[name]]}
        entry["sweep_seconds"] = float(np.median([seconds_per_sweep(some) for some in sweeps]))
        entry["seconds_to_paper"] = seconds
        entry["sooner_to_paper"] = [None if a is None or b is None else a / b for a, b in pairs]
        entries.append(entry)
    return entries


def _converged(row: Row) -> float:
    return float(np.mean(row["accuracy"][-_LAST:]))


def markdown(result: Result) -> str:
    """Return a table with a row for each candidate: medians over the seeds, minimum and maximum in parentheses."""
    lines = []
    for entry in result["summary"]:
        times = [_median_and_range(entry[key]) for key in ("seconds_to_paper", "sooner_to_paper")]
        lines.append([entry["candidate"], f"{entry['sweep_seconds']:.3g}", mean_and_std(entry["converged"]), *times])
    heads = ["", "s per sweep", "converged, %", "s to 99 % of the paper's", "speed-up"]
    seeds = len(result["seeds"])
    text = f"# Accuracy against seconds of the fit, {result['dataset']}, {seeds} seed{'s' * (seeds != 1)}\n\n"
    return text + table(heads, lines) + "\n" + footer(result)


def _median_and_range(values: list[float | None]) -> str:
    """Return median, minimum and maximum of the values, and the number of seeds with a value unless all have one."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    share = "" if len(known) == len(values) else f", {len(known)} of {len(values)} seeds"
    return f"{np.median(known):.3g} ({min(known):.3g} to {max(known):.3g}{share})"


def plot(result: Result, path: Path) -> None:
    """Draw accuracy against seconds: a thin line for each seed, a thick one for the median after each sweep."""
    figure, axes = new_figure(1, width=7.5, height=4.6)
    axis = axes[0, 0]
    for number, name in enumerate(result["candidates"]):
        rows = [row for row in result["rows"] if row["candidate"] == name]
        for row in rows:
            axis.plot(row["seconds"], row["accuracy"], color=f"C{number}", linewidth=0.5, alpha=0.35)
        seconds, accuracy = (np.median([row[key] for row in rows], axis=0) for key in ("seconds", "accuracy"))
        axis.plot(seconds, accuracy, color=f"C{number}", marker="o", markersize=3, linewidth=1.6, label=name)
    axis.set(xscale="log", xlabel="seconds of the fit", ylabel="accuracy of the probe (%)")
    axis.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)
