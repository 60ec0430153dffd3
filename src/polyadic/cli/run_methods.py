"""`polyadic run`: methods fitted to the same windows and scored by the same probes.

The methods are the library's defaults, the paper's ATD and simple features; with a preset, they are the paper's four
tensor methods. A seed determines the initial values, the order of windows, the augmentations, and the split of the
labelled windows. The table is printed; models, results and a report are written to a folder.
"""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from rich import box
from rich.table import Table
from rich.text import Text
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from polyadic import load, report
from polyadic._util.files import digest, write_atomically
from polyadic._util.progress import stage_bar
from polyadic._util.provenance import provenance
from polyadic._util.terminal import console, echo, print_json, printable
from polyadic.baselines import HandFeatures, PCAFeatures
from polyadic.cli.methods import Method, build_estimator
from polyadic.core.persist import encode
from polyadic.data import Split, Windows, split, synthetic
from polyadic.data.readers.arrays import open_windows
from polyadic.data.samples import choose_device
from polyadic.data.splits import PAPER, PROTOCOLS, Protocol
from polyadic.data.store import WindowStore
from polyadic.errors import MissingExtraError, PolyadicError
from polyadic.evaluate.predictor import groups_of
from polyadic.evaluate.probe import AUTO, PROBES, level_columns
from polyadic.evaluate.scoring import default_protocol, score_features, summarise
from polyadic.presets import settings_for

__all__ = ["RunSettings", "compare_methods", "fit_and_score_methods", "split_for", "summarise_methods"]

_FIT_WINDOWS = 1024
"""Number of unlabelled windows on which the relative error is measured."""

_AUTO_SCORES = ("balanced_accuracy", "accuracy")
_SCORES = {"balanced_accuracy": "balanced accuracy", "accuracy": "accuracy"} | {kind: kind for kind in PROBES}
"""The scores of a row by name, and the headings of their columns."""

Estimator = Any
Row = dict[str, Any]


@dataclass(frozen=True)
class RunSettings:
    """The settings of `polyadic run`; see its help."""

    out: Path
    data: Path | None = None
    preset: str | None = None
    protocol: str | None = None
    probes: tuple[str, ...] = (AUTO,)
    seeds: int = 5
    rank: int | None = None
    sweeps: int | None = None
    fs: float | None = None
    n_fft: int | None = None
    hop: int | None = None
    nuisance: float = 0.8
    device: str = "auto"
    jobs: int = 1


def compare_methods(settings: RunSettings, as_json: bool = False, quiet: bool = False) -> None:
    """Compare the methods: print the table (or the JSON), write models, `results.json`, `results.md`, `report.html`."""
    windows = _open_windows(settings)
    protocols = _choose_protocols(settings, windows)
    estimators = _methods(settings, windows)
    settings.out.mkdir(parents=True, exist_ok=True)
    hidden = quiet or as_json
    rows = _fit_with_progress(settings, windows, estimators, protocols, hidden)
    result = _build_result(settings, windows, estimators, rows)
    write_atomically(settings.out / "results.json", (json.dumps(result, indent=1) + "\n").encode())
    write_atomically(settings.out / "results.md", _markdown(result).encode())
    with stage_bar("report", hidden, "parts") as on_stage:
        missing = _write_report(settings, windows, protocols[-1], result, on_stage)
    if as_json:
        print_json(result)
        return
    screen = console()
    for protocol in protocols:
        screen.print(_screen_table(result, protocol))
    if (windows.label >= 0).any():
        screen.print(_explanation(result))
        for reason in [row["reason"] for row in rows if "reason" in row][:1]:
            screen.print(f"Probe of {rows[0]['method']}, seed {rows[0]['seed']}: {reason}.", highlight=False)
    files = "results.json and results.md" if missing else "results.json, results.md and report.html"
    echo(f"Wrote models, {files} to {settings.out}/")
    if missing:
        echo(missing)


def _methods(settings: RunSettings, windows: Windows) -> dict[str, Estimator]:
    """Return the unfitted methods by name; the report is about the first."""
    find = partial(settings_for, windows, n_fft=settings.n_fft, hop=settings.hop)
    given = {"rank": settings.rank, "max_sweeps": settings.sweeps, "device": settings.device}
    chosen = find(preset=settings.preset)
    if settings.preset is not None:
        return {
            "ATD": build_estimator(Method.ATD, chosen, **given),
            "ATD_ss-": build_estimator(Method.ATD, chosen, **given, beta=0.0),
            "GR-SALS": build_estimator(Method.GRSALS, chosen, **given),
            "SALS": build_estimator(Method.SALS, chosen, **given),
        }
    model = build_estimator(Method.CPD, chosen, **given)
    if not (windows.label >= 0).any():
        return {"CPD": model}
    return {
        "CPD": model,
        "ATD, paper": build_estimator(Method.ATD, find(paper_method=True), **given),
        "PCA": PCAFeatures(model.rank, tensorize=chosen.tensorize, device=settings.device),
        "hand features": HandFeatures(device=settings.device),
    }


# ------------------------------------------------------------- fits and scores


def split_for(windows: Windows, protocol: Protocol, seed: int) -> Split:
    """Return the split for a seed; windows without labels are all in its unlabelled part."""
    if (windows.label >= 0).any():
        return split(windows, protocol, seed=seed)
    nothing = np.empty(0, dtype=np.intp)
    return Split(windows, np.arange(len(windows)), nothing, nothing)


def fit_and_score_methods(
    windows: Windows,
    estimators: Mapping[str, Estimator],
    protocols: Sequence[Protocol],
    seeds: Sequence[int],
    jobs: int = 1,
    on_fit: Callable[[str, int, Estimator], None] | None = None,
    probes: Sequence[str] = (AUTO,),
) -> list[Row]:
    """Fit every method with every seed, and score it under every protocol.

    Parameters
    ----------
    windows : windows with labels, or without, for models without an accuracy
    estimators : unfitted, by name; their `random_state` is set to the seed
    protocols : how to split; if the data has its own unlabelled part, one fit serves all protocols
    jobs : number of processes
    on_fit : called with the method's name, the seed and the fitted model after each fit
    probes : kinds of probes, as for `polyadic.evaluate.probe.make_probe`

    Returns
    -------
    a row for each method, seed and protocol: for the probe "auto", balanced accuracy and accuracy in percent and the
    `reason` for its settings; for every other probe, its accuracy under its name; parameters and seconds to fit; for
    tensor methods also seconds per sweep, sweeps and fit
    """
    for seed in seeds:
        for protocol in protocols:
            _check_classes(windows, split_for(windows, protocol, seed))
    units = [(seed, name) for seed in seeds for name in estimators]
    work = (delayed(_fit_one)(windows, estimators[name], protocols, seed, probes) for seed, name in units)
    rows: list[Row] = []
    for (seed, name), (found, model) in zip(units, Parallel(jobs, return_as="generator")(work), strict=True):
        rows += [{"method": name, "seed": seed, **row} for row in found]
        if on_fit is not None:
            on_fit(name, seed, model)
    return rows


def _fit_one(
    windows: Windows, estimator: Estimator, protocols: Sequence[Protocol], seed: int, probes: Sequence[str]
) -> tuple[list[Row], Estimator]:
    """Return a method's rows for one seed, one for each protocol, and its (last) model."""
    rows: list[Row] = []
    model, learned, seconds = None, np.empty(0, dtype=np.intp), 0.0
    for protocol in protocols:
        part = split_for(windows, protocol, seed)
        if model is None or not np.array_equal(part.unlabelled, learned):
            learned, unlabelled = part.unlabelled, next(iter(part))
            with warnings.catch_warnings():
                # The table shows the number of sweeps.
                warnings.filterwarnings("ignore", "The fit stopped at max_sweeps", ConvergenceWarning)
                begun = time.perf_counter()
                model = clone(estimator).set_params(random_state=seed).fit(unlabelled)
                seconds = time.perf_counter() - begun
        row = {"protocol": protocol, "split": part.hash, "seconds": seconds}
        rows.append(row | _score(model, windows, part, probes))
    assert model is not None
    return rows, model


def _check_classes(windows: Windows, part: Split) -> None:
    """Raise an error for labels that no classifier can be trained on, before anything is fitted."""
    if len(part.train) and len(np.unique(windows.label[part.train])) < 2:
        raise PolyadicError("labels must have at least two classes among the training windows, but have one")


def _score(model: Estimator, windows: Windows, part: Split, probes: Sequence[str]) -> Row:
    """Return a model's scores in percent, if there are labels, and the cost of its fit."""
    _, train, test = part
    found = {}
    if len(part.train):
        features = (model.transform(train), train.label, model.transform(test), test.label)
        kinds = {kind: kind for kind in probes}
        found = score_features(kinds, *features, test.subject, groups_of(train), level_columns(model))
    row: Row = {kind: 100 * one["accuracy"] for kind, one in found.items() if kind != AUTO}
    if AUTO in found:
        row |= {name: 100 * found[AUTO][name] for name in _AUTO_SCORES} | {"reason": found[AUTO]["reason"]}
    row["parameters"] = model.n_parameters_
    if not hasattr(model, "factors_"):
        return row
    return {
        **row,
        "sweeps": model.n_sweeps_,
        "fit": model.score(windows[part.unlabelled[:_FIT_WINDOWS]]),
    }


def summarise_methods(rows: Sequence[Row]) -> list[Row]:
    """Return the mean and, for several seeds, the standard deviation for each method and protocol, in row order.

    Examples
    --------
    >>> summarise_methods([{"method": "A", "protocol": "paper", "seed": s, "plain": 90.0 + s} for s in (0, 2)])
    [{'method': 'A', 'protocol': 'paper', 'plain': 91.0, 'plain_std': 1.4142135623730951}]
    """
    measures = sorted({name for row in rows for name in row} - {"method", "protocol", "seed", "split", "reason"})
    return summarise(rows, ("method", "protocol"), measures)


def _fit_with_progress(
    settings: RunSettings,
    windows: Windows,
    estimators: Mapping[str, Estimator],
    protocols: Sequence[Protocol],
    hidden: bool,
) -> list[Row]:
    """Fit and score all methods with all seeds, show progress, and save their models of the first seed."""
    count, total = 0, settings.seeds * len(estimators)
    with stage_bar("fitting", hidden, "fits") as show:
        show(0, total, "")

        def on_fit(name: str, seed: int, model: Estimator) -> None:
            nonlocal count
            count += 1
            show(count, total, f"{name}, seed {seed} done")
            if seed == 0:
                model.save(settings.out / _model_file(name))

        try:
            return fit_and_score_methods(
                windows, estimators, protocols, range(settings.seeds), settings.jobs, on_fit, settings.probes
            )
        except KeyboardInterrupt as stop:
            if count:
                stop.args = (
                    f"{count} of {total} fits were done, and models of seed 0 are in {settings.out}/; running the same "
                    "command again starts over",
                )
            raise


def _model_file(method: str) -> str:
    """Return the file name of a method's model.

    Examples
    --------
    >>> _model_file("ATD_ss-"), _model_file("ATD, paper")
    ('atd_ss.safetensors', 'atd-paper.safetensors')
    """
    return "-".join(re.findall(r"[\w-]+", method.lower())).rstrip("-") + ".safetensors"


# ----------------------------------------------------------- settings and files


def _open_windows(settings: RunSettings) -> Windows:
    if settings.data is None:
        if settings.preset is not None:
            raise PolyadicError("--preset is for recordings of that dataset: pass them with --data")
        return synthetic(nuisance=settings.nuisance)
    return open_windows(settings.data, fs=settings.fs)


def _choose_protocols(settings: RunSettings, windows: Windows) -> list[Protocol]:
    if settings.protocol is None or not (windows.label >= 0).any():
        return [default_protocol(windows)]
    if settings.protocol == "both":
        return ["paper", "subject"]
    for known in PROTOCOLS:
        if settings.protocol == known:
            return [known]
    raise PolyadicError(f"--protocol must be subject, paper or both, but is {settings.protocol!r}")


def _write_report(
    settings: RunSettings,
    windows: Windows,
    protocol: Protocol,
    result: dict[str, Any],
    on_stage: Callable[[int, int, str], None],
) -> str:
    """Write the report of the first method with the first seed; return a message if a package for it is missing.

    Parameters
    ----------
    protocol : the last protocol of the run, for which that model was fitted
    """
    first = result["summary"][0]["method"]
    model = load(settings.out / _model_file(first)).set_params(device=settings.device)
    origin = {key: result[key] for key in ("command", "commit", "date", "machine", "versions")}
    if result["data"]["sha256"] is not None:
        origin["sha256"] = {result["title"]: result["data"]["sha256"]}
    try:
        report.write(
            settings.out / "report.html",
            model,
            windows,
            result=result,
            origin=origin,
            title=result["title"],
            protocol=protocol,
            on_stage=on_stage,
        )
    except MissingExtraError as error:
        return f"No report.html: {error}"
    return ""


def _build_result(
    settings: RunSettings, windows: Windows, estimators: Mapping[str, Any], rows: list[Row]
) -> dict[str, Any]:
    """Return the content of `results.json`."""
    parameters = next(iter(estimators.values())).get_params(deep=False)
    graph = {"graph_weight_of_GR-SALS": estimators["GR-SALS"].graph_weight} if "GR-SALS" in estimators else {}
    return {
        "title": "built-in signals" if settings.data is None else printable(settings.data.name),
        "data": {
            "sha256": _checksum(settings.data),
            "shape": list(windows.shape),
            "fs": windows.fs,
            "drawn": "recordings" if windows.dataset in PAPER else "windows",
            "nuisance": settings.nuisance if settings.data is None else None,
        },
        "preset": settings.preset,
        "settings": {name: encode(value) for name, value in parameters.items() if name != "random_state"},
        **graph,
        "seeds": list(range(settings.seeds)),
        "jobs": settings.jobs,
        **provenance(str(choose_device(settings.device))),
        "summary": summarise_methods(rows),
        "rows": rows,
    }


def _checksum(data: Path | None) -> str | None:
    """Return a checksum of the data; for a store, it is in the manifest."""
    if data is None:
        return None
    return WindowStore(data).checksum if data.is_dir() else digest(data)


# ----------------------------------------------------------------------- tables


def _cells(entry: Row) -> list[str]:
    """Return one row of the table."""
    spread = {name: f" ± {entry[f'{name}_std']:.1f}" if f"{name}_std" in entry else "" for name in _SCORES}
    accuracies = [f"{entry[name]:.1f}{spread[name]}" for name in _SCORES if name in entry]
    return [
        entry["method"],
        *accuracies,
        f"{entry['parameters']:,.0f}",
        f"{entry['seconds']:.1f}",
        f"{entry['sweeps']:.0f}" if "sweeps" in entry else "–",
        f"{entry['fit']:.3f}" if "fit" in entry else "–",
    ]


def _heads(result: dict[str, Any]) -> list[str]:
    """Return the headings of the table's columns."""
    accuracies = [f"{head} %" for name, head in _SCORES.items() if name in result["summary"][0]]
    return ["method", *accuracies, "parameters", "seconds", "sweeps", "fit"]


def _lines(result: dict[str, Any], protocol: str) -> list[list[str]]:
    """Return the rows of the table for one protocol."""
    return [_cells(entry) for entry in result["summary"] if entry["protocol"] == protocol]


def _title(result: dict[str, Any], protocol: str) -> str:
    """Return data, number of seeds and protocol."""
    drawn = {"subject": "subject-wise split", "paper": f"random split of {result['data']['drawn']}"}[protocol]
    labelled = any(name in result["summary"][0] for name in _SCORES)
    count = len(result["seeds"])
    seeds = f"{count} seed{'s' * (count > 1)}"
    return f"{result['title']}, {seeds}" + (f", protocol {protocol}: {drawn}" if labelled else "")


def _explanation(result: dict[str, Any]) -> str:
    """Return a few sentences on what the methods and scores are."""
    found = result["summary"][0]
    sentences = []
    if "ATD, paper" in {entry["method"] for entry in result["summary"]}:
        sentences.append(
            "CPD is the library's default; ATD, paper has the paper's front end, views and loss; PCA is of the same "
            "spectra; hand features are statistics and band powers of each channel."
        )
    if _AUTO_SCORES[0] in found:
        sentences.append("Scores of a probe whose settings are chosen by leaving subjects out.")
    fixed = [kind for kind in PROBES if kind in found]
    if fixed:
        names = " and on ".join(fixed)
        sentences.append(f"Accuracy of a logistic regression on {names} features.")
    return " ".join([*sentences, "Mean ± standard deviation over the seeds."])


def _screen_table(result: dict[str, Any], protocol: str) -> Table:
    """Return the table of one protocol for the terminal."""
    found = Table(
        title=Text(_title(result, protocol), "table.title"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
    for number, head in enumerate(_heads(result)):
        # Break the heading, so that the table fits into a terminal of 80 columns.
        short = head.replace("balanced accuracy", "balanced\naccuracy")
        found.add_column(short, justify="right" if number else "left", no_wrap=True)
    for line in _lines(result, protocol):
        found.add_row(*line)
    return found


def _markdown(result: dict[str, Any]) -> str:
    """Return the tables as Markdown, with what is needed to reproduce them."""
    text = []
    for protocol in dict.fromkeys(entry["protocol"] for entry in result["summary"]):
        heads = _heads(result)
        rule = ["---", *["---:"] * (len(heads) - 1)]
        cells = [heads, rule, *_lines(result, protocol)]
        # File names may contain characters that mean something in Markdown.
        title = re.sub(r"([]\\`*_<>[|~&$@])", r"\\\1", _title(result, protocol))
        text += [f"**{title}**", "", *(f"| {' | '.join(line)} |" for line in cells), ""]
    machine = result["machine"].get("gpu") or result["machine"]["processor"]
    text.append(
        f"{_explanation(result)} `{result['command']}`, {machine}, {result['date']}, commit {result['commit']}."
    )
    return "\n".join(text) + "\n"
