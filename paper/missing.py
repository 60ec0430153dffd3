"""`python -m paper missing`: balanced accuracy when a sensor fails, next to rivals with imputed values.

Features are learned from half of the development subjects, and labels and scores come from the others; with `--final`
from all development subjects, and labels and scores from the subjects that no setting was chosen on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from joblib import delayed
from numpy.typing import NDArray
from sklearn.impute import KNNImputer
from sklearn.metrics import balanced_accuracy_score

from paper.labels.people import FILES, halves, read_set
from paper.results import provenance, run_cells, show, write_result
from polyadic import CPD
from polyadic.baselines import HandFeatures, MiniRocket, PCAFeatures
from polyadic.core.missing import dead_channels
from polyadic.data import Windows
from polyadic.evaluate import Probe, WindowClassifier
from polyadic.spectral import recommended_stft

Row = dict[str, Any]

RIVALS = ("PCA", "statistics", "MiniRocket")
IMPUTERS = ("mean", "nearest")
FAULTS = ("zero", "NaN", "stuck", "noise")
_CHANNELS_AT_MOST = 12
"""Channels that fail in turn; of more, these are spread evenly."""
_REPETITIONS = 4
_KNOWN = 500
"""Windows of the fit that the imputer of scikit-learn searches: it keeps and compares all of them."""
_PTB = "ptbxl100.npz"
_INVALID = -32.0


@dataclass(frozen=True)
class MissingRequest:
    """The options of `python -m paper missing`; see its help."""

    out: Path
    folder: Path
    sets: tuple[str, ...] = tuple(FILES)
    splits: int = 5
    final: bool = False
    jobs: int = 1


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
    return _People(unlabelled, windows[half.train], windows[half.test])


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


def _faults(people: _People, split: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the name of each fault, and the windows to score with it."""
    X, rng = np.asarray(people.test.X, np.float32), np.random.default_rng([36, split])
    spread = np.asarray(people.unlabelled.X, np.float32).std(axis=2).mean(axis=0)
    count = X.shape[1]
    some = np.unique(np.linspace(0, count - 1, min(count, _CHANNELS_AT_MOST)).round().astype(int))
    yield "clean", X
    for fault in FAULTS:
        for channel in some.tolist():
            yield f"one channel, {fault}", _broken(X, [channel], fault, spread, rng)
    for fault in FAULTS:
        for _ in range(_REPETITIONS):
            yield f"a quarter, {fault}", _broken(X, rng.permutation(count)[: -(-count // 4)], fault, spread, rng)
    yield "a tenth of the time", _with_gaps(X, 0.1, rng)
    for missing in range(1, count):
        yield f"{missing} channels", _broken(X, rng.permutation(count)[:missing], "NaN", spread, rng)


# --------------------------------------------------------------------------------------------------- methods


def _imputed(method: str, X: NDArray[Any], known: NDArray[Any]) -> NDArray[Any]:
    """Fill NaN in windows by the mean signal, or by the nearest windows (scikit-learn's KNNImputer)."""
    lost = np.isnan(X)
    if not lost.any():
        return X
    if method == "mean":
        return np.where(lost, known.mean(axis=0), X)
    rows = known[np.linspace(0, len(known) - 1, min(len(known), _KNOWN)).astype(int)]
    imputer = KNNImputer(n_neighbors=5, keep_empty_features=True).fit(rows.reshape(len(rows), -1))
    return np.asarray(imputer.transform(X.reshape(len(X), -1)).reshape(X.shape), X.dtype)


def _rival(name: str, people: _People) -> Any:
    X = people.unlabelled
    if name == "PCA":
        return PCAFeatures(32, tensorize=recommended_stft(X.shape[2], X.fs), device="cpu").fit(X)
    return (HandFeatures(device="cpu") if name == "statistics" else MiniRocket(device="cpu")).fit(X)


def _predictors(people: _People) -> dict[str, Callable[[NDArray[Any]], NDArray[Any]]]:
    """Return for each method the function that predicts the labels of windows."""
    train = people.train
    classifier = WindowClassifier(CPD(device="cpu").fit(people.unlabelled)).fit(train, train.label, train.subject)
    found: dict[str, Any] = {"polyadic": classifier.predict}
    for name in RIVALS:
        model = _rival(name, people)
        Z = np.asarray(model.transform(train), np.float64)
        mean, scale = Z.mean(axis=0), Z.std(axis=0) + 1e-12
        standardised = name == "statistics"
        probe = Probe().fit((Z - mean) / scale if standardised else Z, train.label, groups=train.subject)

        def predict(X: NDArray[Any], words: Any = (model, probe, mean, scale, standardised)) -> Any:
            model, probe, mean, scale, standardised = words
            Z = np.asarray(model.transform(X), np.float64)
            return probe.predict((Z - mean) / scale if standardised else Z)

        found[name] = predict
    return found


def _cell(folder: Path, name: str, split: int, final: bool) -> Row:
    """Score all methods with all faults on one split."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        people = _people(folder, name, split, final)
        methods, y = _predictors(people), people.test.label
        known = np.asarray(people.unlabelled.X, np.float32)
        scores: dict[str, dict[str, list[float]]] = {}
        for fault, X in _faults(people, split):
            # Rivals are told which channels are constant. Noise is a signal for all.
            told = np.where(dead_channels(_tensor(X)).numpy()[:, :, None], np.nan, X).astype(np.float32)
            guesses = {"polyadic": methods["polyadic"](X)}
            for by in IMPUTERS:
                filled = _imputed(by, told, known)
                guesses |= {f"{name}, {by} imputation": methods[name](filled) for name in RIVALS}
            for method, guess in guesses.items():
                own = scores.setdefault(method, {}).setdefault(fault, [])
                own.append(100 * float(balanced_accuracy_score(y, guess)))
        means = {method: {fault: float(np.mean(each)) for fault, each in own.items()} for method, own in scores.items()}
        return {"set": name, "split": split, "scores": means, "detection": _detection(people, split)}


def _tensor(X: NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(X))


def _detection(people: _People, split: int) -> dict[str, float]:
    """Return the share of dead channels that are found, and of clean windows with a false alarm, in percent."""
    model, X = CPD(device="cpu", max_sweeps=4, tol=0).fit(people.unlabelled), np.asarray(people.test.X, np.float32)
    limits, rng = model.prior_.limits, np.random.default_rng([37, split])
    spread, found = X.std(axis=2).mean(axis=0), {}
    for fault in ("zero", "stuck", "noise"):
        channel = int(rng.integers(X.shape[1]))
        dead = dead_channels(_tensor(_broken(X, [channel], fault, spread, rng).astype(np.float32)), limits)
        found[fault] = 100 * float(dead[:, channel].double().mean())
    clean = dead_channels(_tensor(X), limits).any(dim=1)
    return {**found, "false alarms": 100 * float(clean.double().mean())}


def _ptb_xl(folder: Path, split: int, as_missing: int) -> Row:
    """Score sex on the printed layout of PTB-XL (2.5 s per lead), by patient."""
    with np.load(folder / _PTB) as file:
        X, sex, patient = file["X"], file["sex"], file["patient_id"]
    people = np.where(patient >= 0, patient, 10**8 + np.arange(len(patient))).astype(str)
    if as_missing:
        X = np.where(X < _INVALID, np.nan, X)
    train, test = halves(sex, people, split + 1)[split]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = WindowClassifier(CPD(device="cpu").fit(X)).fit(X[train], sex[train], people[train])
        score = balanced_accuracy_score(sex[test], classifier.predict(X[test]))
    return {"missing": as_missing, "split": split, "score": 100 * float(score)}


# ------------------------------------------------------------------------------------------------------ run


def run(request: MissingRequest, as_json: bool = False) -> dict[str, Any]:
    """Run all cells, and write `missing.json` and `missing.md`."""
    request.out.mkdir(parents=True, exist_ok=True)
    who, splits = "final" if request.final else "development", range(request.splits)
    tasks = {
        f"{who} {name} {split}": delayed(_cell)(request.folder, name, split, request.final)
        for name in request.sets
        for split in splits
    }
    if (request.folder / _PTB).exists() and request.sets == tuple(FILES):
        tasks |= {
            f"ptb-xl {way} {split}": delayed(_ptb_xl)(request.folder, split, way) for way in (0, 1) for split in splits
        }
    done = run_cells("missing values", tasks, request.out / "missing.journal", request.jobs)
    rows = [done[key] for key in tasks]
    stem, origin = f"missing-{who}", provenance("cpu")
    source = f"`{origin['command']}`, {origin['machine']['processor']}, {origin['date']}, commit {origin['commit']}."
    text = f"# When a sensor fails\n\nBalanced accuracy in percent, mean over splits: {source}\n\n{page(rows)}"
    result = {"experiment": "missing", "subjects": who, "rows": rows, **origin}
    write_result(request.out / f"{stem}.json", result)
    (request.out / f"{stem}.md").write_text(text)
    show(result, text, f"{stem}.json and {stem}.md", as_json)
    return result


def page(rows: list[Row]) -> str:
    """Return the tables of the results as Markdown: means over splits, in percent."""
    lines: list[str] = []
    for name in dict.fromkeys(row["set"] for row in rows if "set" in row):
        own = [row for row in rows if row.get("set") == name]
        faults = [fault for fault in own[0]["scores"]["polyadic"] if not fault.endswith("channels")]
        numbers = [fault for fault in own[0]["scores"]["polyadic"] if fault.endswith("channels")]
        for title, columns in ((name, faults), (f"{name}: number of missing channels", numbers)):
            heads = [column.removesuffix(" channels") for column in columns]
            lines += [f"## {title}", "", f"| | {' | '.join(heads)} |", f"|---|{'---:|' * len(columns)}"]
            for method in own[0]["scores"]:
                means = [np.mean([row["scores"][method][fault] for row in own]) for fault in columns]
                lines.append(f"| {method} | {' | '.join(f'{mean:.1f}' for mean in means)} |")
            lines.append("")
        kinds = own[0]["detection"]
        found = [f"{kind} {np.mean([row['detection'][kind] for row in own]):.2f} %" for kind in kinds]
        lines += [f"Dead channels found, and clean windows with a false alarm: {', '.join(found)}.", ""]
    ptb = [row for row in rows if "missing" in row]
    if ptb:
        before, after = (np.mean([row["score"] for row in ptb if row["missing"] == way]) for way in (0, 1))
        lines += ["## PTB-XL, first 1,987 records, 100 Hz, 2.5 s per lead: sex, by patient", ""]
        lines += [f"Values as they are: {before:.1f} %. Taken as missing: {after:.1f} %.", ""]
    return "\n".join(lines)
