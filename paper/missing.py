"""`python -m paper missing`: balanced accuracy when a sensor fails, next to rivals with imputed values.

Features are learned from half of the development subjects, and labels and scores come from the others; with `--final`
from all development subjects, and labels and scores from the subjects that no setting was chosen on. A cell is a method
on a split: its features and classifier are fitted once, and then score all faults.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import delayed
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score
from sklearn.metrics.pairwise import euclidean_distances

from paper.baselines import HandFeatures
from paper.labels.people import PTB_XL, halves, read_set
from paper.results import provenance, publish, run_cells, table
from polyadic import CPD
from polyadic.baselines import MiniRocket, PCAFeatures
from polyadic.core.missing import dead_channels
from polyadic.data import Windows
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.spectral import recommended_stft

Row = dict[str, Any]
Predict = Callable[[NDArray[Any]], NDArray[Any]]

OWN = "polyadic"
RIVALS = ("PCA", "statistics", "MiniRocket")
IMPUTERS = ("mean", "nearest")
FAULTS = ("zero", "NaN", "stuck", "noise")
_MOST_WINDOWS = 600
"""Maximum number of windows that a split scores, sampled with a fixed seed."""
_MOST_CHANNELS = 12
"""Maximum number of channels that fail in turn, and of numbers of missing channels, spread evenly over all."""
_DRAWS = 4
"""Random choices of several channels; they are the same for all faults and methods."""
_KNOWN = 500
"""Maximum number of windows of the fit that the imputer searches."""


@dataclass(frozen=True)
class _People:
    """Windows of one split: unlabelled, labelled for training, and to score."""

    unlabelled: Windows
    train: Windows
    test: Windows


def _people(folder: Path, name: str, split: int, final: bool) -> _People:
    data = read_set(folder, name)
    if final:
        windows, unlabelled = data.labelled(), data.unlabelled()
    else:
        windows = data.labelled(of_development=True)
        order = np.random.default_rng([35, split]).permutation(np.unique(windows.subject))
        inside = np.isin(windows.subject, order[: len(order) // 2])
        unlabelled, windows = windows[np.flatnonzero(inside)], windows[np.flatnonzero(~inside)]
    half = halves(windows.label, windows.subject, split + 1)[split]
    test = np.sort(np.random.default_rng([38, split]).permutation(half.test)[:_MOST_WINDOWS])
    return _People(unlabelled, windows[half.train], windows[test])


# ---------------------------------------------------------------------------------------------------- faults


def _broken(X: NDArray[Any], channels: Any, fault: str, spread: NDArray[Any], rng: Any) -> NDArray[Any]:
    """Return windows in which some channels fail."""
    X = X.copy()
    if fault == "noise":  # of the sensor's usual size
        level, deviation = X[:, channels].mean(axis=(0, 2)), spread[channels]
        X[:, channels] = level[:, None] + deviation[:, None] * rng.normal(size=X[:, channels].shape)
    elif fault == "stuck":
        X[:, channels] = X[:, channels, :1]
    else:
        X[:, channels] = 0 if fault == "zero" else np.nan
    return X


def _with_gaps(X: NDArray[Any], share: float, rng: Any) -> NDArray[Any]:
    """Return windows that lack one stretch of time in all channels."""
    X, length = X.copy(), max(1, round(share * X.shape[2]))
    for window, start in zip(X, rng.integers(0, X.shape[2] - length + 1, len(X)), strict=True):
        window[:, start : start + length] = np.nan
    return X


def _some(first: int, last: int) -> list[int]:
    """Return the numbers from the first to the last; of more than 12, these are spread evenly."""
    count = min(last - first + 1, _MOST_CHANNELS)
    return [int(number) for number in np.unique(np.linspace(first, last, count).round())]


def _faults(people: _People, split: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the name of each fault, and the windows to score with it."""
    X, rng = np.asarray(people.test.X, np.float32), np.random.default_rng([36, split])
    spread = np.asarray(people.unlabelled.X, np.float32).std(axis=2).mean(axis=0)
    count = X.shape[1]
    orders = [rng.permutation(count) for _ in range(_DRAWS)]
    yield "clean", X
    for fault in FAULTS:
        for channel in _some(0, count - 1):
            yield f"one channel, {fault}", _broken(X, [channel], fault, spread, rng)
    for fault in FAULTS:
        for order in orders:
            yield f"a quarter, {fault}", _broken(X, order[: -(-count // 4)], fault, spread, rng)
    yield "a tenth of the time", _with_gaps(X, 0.1, rng)
    for missing in _some(1, count - 1):
        for order in orders:
            yield f"{missing} channels", _broken(X, order[:missing], "NaN", spread, rng)


# --------------------------------------------------------------------------------------------------- methods


def _imputed(method: str, X: NDArray[Any], known: NDArray[Any]) -> NDArray[Any]:
    """Fill NaN in windows by the mean signal, or by the nearest windows."""
    if method == "nearest" and np.isnan(X).any():
        return nearest(X.reshape(len(X), -1), known.reshape(len(known), -1)).reshape(X.shape)
    return np.where(np.isnan(X), known.mean(axis=0), X)


def nearest(X: NDArray[Any], known: NDArray[Any]) -> NDArray[Any]:
    """Fill NaN in rows (n, F) by the mean of the 5 nearest complete rows, as KNNImputer does, mask by mask.

    KNNImputer searches column by column, which takes minutes for one window of an ECG.
    """
    X, known = X.copy(), known[np.linspace(0, len(known) - 1, min(len(known), _KNOWN)).astype(int)]
    groups: dict[bytes, list[int]] = {}
    for row, mask in enumerate(np.isnan(X)):
        groups.setdefault(mask.tobytes(), []).append(row)
    for rows in groups.values():
        lost = np.isnan(X[rows[0]])
        distances = euclidean_distances(X[rows][:, ~lost], known[:, ~lost])
        neighbours = np.argsort(distances, axis=1, kind="stable")[:, :5]
        X[np.ix_(rows, lost)] = known[:, lost][neighbours].mean(axis=1)
    return X


def _rival(name: str, people: _People) -> Predict:
    """Fit a rival's features and the classifier that polyadic uses, and return the function that predicts labels."""
    X, train = people.unlabelled, people.train
    if name == "PCA":
        model: Any = PCAFeatures(32, tensorize=recommended_stft(X.shape[2], X.fs), device="cpu").fit(X)
    else:
        model = (HandFeatures(device="cpu") if name == "statistics" else MiniRocket()).fit(X)
    Z = np.asarray(model.transform(train), np.float64)
    mean, scale = (Z.mean(axis=0), Z.std(axis=0) + 1e-12) if name == "statistics" else (0.0, 1.0)
    probe = Probe().fit((Z - mean) / scale, train.label, groups=train.subject)
    return lambda X: np.asarray(probe.predict((np.asarray(model.transform(X), np.float64) - mean) / scale))


def _cell(folder: Path, name: str, split: int, final: bool, method: str) -> Row:
    """Score a method with all faults on one split."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        people = _people(folder, name, split, final)
        train, row = people.train, {"set": name, "split": split, "method": method}
        if method == OWN:
            model = CPD(device="cpu").fit(people.unlabelled)
            predict: Predict = WindowClassifier(model).fit(train, train.label, train.subject).predict
            row["detection"] = _detection(model, people, split)
        else:
            predict = _rival(method, people)
        scores: dict[str, dict[str, list[float]]] = {}
        known, done = np.asarray(people.unlabelled.X, np.float32), dict[bytes, float]()
        for fault, X in _faults(people, split):
            # Rivals are told which channels are constant. Noise is a signal for all.
            told = np.where(dead_channels(torch.from_numpy(X)).numpy()[:, :, None], np.nan, X).astype(np.float32)
            for by in ("",) if method == OWN else IMPUTERS:
                given = told if by else X
                key = hashlib.sha256(by.encode() + given.tobytes()).digest()
                if key not in done:  # to a rival, zero and stuck are the same as NaN
                    guess = predict(_imputed(by, given, known) if by else given)
                    done[key] = 100 * float(balanced_accuracy_score(people.test.label, guess))
                scores.setdefault(by, {}).setdefault(fault, []).append(done[key])
    row["scores"] = {by: {fault: float(np.mean(each)) for fault, each in own.items()} for by, own in scores.items()}
    return row


def _detection(model: CPD, people: _People, split: int) -> dict[str, float]:
    """Return the share of failed channels that are found, and of clean windows with a false alarm, in percent."""
    X, rng = np.asarray(people.test.X, np.float32), np.random.default_rng([37, split])
    spread = np.asarray(people.unlabelled.X, np.float32).std(axis=2).mean(axis=0)
    channels = rng.permutation(X.shape[1])[:_DRAWS]

    none = np.zeros((0, model.transform(X[:1]).shape[1]))

    def lost(X: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(model.features_and_spread(X, none).missing == 1)

    found = {
        fault: 100 * float(np.mean([lost(_broken(X, [one], fault, spread, rng))[:, one].mean() for one in channels]))
        for fault in ("zero", "stuck", "noise")
    }
    return {**found, "false alarms": 100 * float(lost(X).any(axis=1).mean())}


def _ptb_xl(folder: Path, split: int, as_missing: int) -> Row:
    """Score sex on the printed layout of PTB-XL (2.5 s per lead), by patient: what is missing is 0, or NaN."""
    windows = read_set(folder, PTB_XL).windows
    sex, people = windows.label, windows.subject
    X = windows.X if as_missing else np.nan_to_num(windows.X)
    train, test = halves(sex, people, split + 1)[split]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = WindowClassifier(CPD(device="cpu").fit(X[train])).fit(X[train], sex[train], people[train])
        score = balanced_accuracy_score(sex[test], classifier.predict(X[test]))
    return {"missing": as_missing, "split": split, "score": 100 * float(score)}


# ------------------------------------------------------------------------------------------------------ run


def run(
    out: Path, folder: Path, sets: Sequence[str], methods: Sequence[str], splits: int, final: bool, jobs: int
) -> None:
    """Run the cells that are not in the journal, and write `missing-….json` and `missing-….md`."""
    out.mkdir(parents=True, exist_ok=True)
    who, tasks = "final" if final else "development", dict[str, Any]()
    for name, split in product(sets, range(splits)):
        if name == PTB_XL:
            tasks |= {f"{PTB_XL} {way} {split}": delayed(_ptb_xl)(folder, split, way) for way in (0, 1)}
        else:
            about = (folder, name, split, final)
            tasks |= {f"{who} {name} {split} {one}": delayed(_cell)(*about, one) for one in methods}
    done = run_cells("missing values", tasks, out / "missing.journal", jobs)
    stem, origin, rows = f"missing-{who}", provenance("cpu"), list(done.values())
    result = {"experiment": "missing", "subjects": who, "rows": rows, **origin}
    source = f"`{origin['command']}`, {origin['machine']['processor']}, {origin['date']}, commit {origin['commit']}."
    text = (
        f"# When a sensor fails\n\nBalanced accuracy in percent, mean over splits. Written by {source}\n\n{page(rows)}"
    )
    publish(out, stem, result, text)


def means(rows: list[Row], name: str) -> dict[str, dict[str, float]]:
    """Return the mean over splits for each method of a set and each fault, in percent."""
    cells: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        if row.get("set") == name:
            for by, scores in row["scores"].items():
                cells.setdefault(f"{row['method']}, {by} imputation" if by else row["method"], []).append(scores)
    return {
        method: {fault: float(np.mean([one[fault] for one in own])) for fault in own[0]}
        for method, own in cells.items()
    }


def page(rows: list[Row]) -> str:
    """Return the tables of the results as Markdown."""
    sets = list(dict.fromkeys(row["set"] for row in rows if "set" in row))
    every = {name: means(rows, name) for name in sets}
    lines = [_against_rivals(every)] if every and all(OWN in scores for scores in every.values()) else []
    for name, scores in every.items():
        count = len({row["split"] for row in rows if row.get("set") == name})
        faults = list(next(iter(scores.values())))
        numbers = [fault for fault in faults if fault.endswith(" channels")]
        titles = {f"{name}, {count} split{'s' * (count > 1)}": [fault for fault in faults if fault not in numbers]}
        for title, columns in (titles | {f"{name}: number of missing channels": numbers}).items():
            cells = [[method, *(f"{own[fault]:.1f}" for fault in columns)] for method, own in scores.items()]
            lines += [f"## {title}\n", table(["", *(fault.removesuffix(" channels") for fault in columns)], cells)]
        found = [row["detection"] for row in rows if row.get("set") == name and "detection" in row]
        if found:
            shares = [f"{kind} {np.mean([one[kind] for one in found]):.2f} %" for kind in found[0]]
            lines.append(
                f"Failed channels that are found, and clean windows with a false alarm: {', '.join(shares)}.\n"
            )
    ptb = [row for row in rows if "missing" in row]
    if ptb:
        before, after = (np.mean([row["score"] for row in ptb if row["missing"] == way]) for way in (0, 1))
        lines.append("## PTB-XL, first 1,987 records, 100 Hz, 2.5 s per lead: sex, by patient\n")
        lines.append(f"Splits: {len(ptb) // 2}. Missing leads as 0: {before:.1f} %. As missing: {after:.1f} %.\n")
    return "\n".join(lines)


def worst_dead(scores: dict[str, dict[str, float]], fault: str) -> dict[str, float]:
    """Return the worst score of each method with zero, NaN and stuck channels, "one channel" or "a quarter"."""
    return {one: min(own[f"{fault}, {kind}"] for kind in FAULTS[:3]) for one, own in scores.items()}


def _against_rivals(sets: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the table of what dead channels cost (the worst of zero, NaN and stuck), next to the best rival."""
    cells = []
    for name, scores in sets.items():
        for fault in ("one channel", "a quarter"):
            worst = worst_dead(scores, fault)
            best = max((one for one in scores if one != OWN), key=lambda one: worst[one], default=OWN)
            shown = [
                [f"{scores[one]['clean']:.1f} → {worst[one]:.1f}", f"{scores[one]['clean'] - worst[one]:z.1f}"]
                for one in (OWN, best)
            ]
            cells.append([f"{name}, {fault}", *shown[0], best, *shown[1]])
    heads = ["dead", OWN, "lost", "best rival with the fault", "its score", "lost"]
    return "Clean, and the worst of zero, NaN and stuck:\n\n" + table(heads, cells)
