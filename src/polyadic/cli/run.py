"""`polyadic run`: methods fitted to the same windows and scored by the same probe.

The methods are the library's default, the paper's ATD and simple features; with a preset, they are the paper's four
tensor methods. A seed determines the initial values, the order of windows, the augmentations, and the split of the
labelled windows.
"""

from __future__ import annotations

import itertools
import json as json_module
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polyadic._util.terminal import echo, print_json, print_table, printable
from polyadic.cli import options
from polyadic.cli.files import check_out_folder
from polyadic.cli.fit import build_estimator
from polyadic.cli.options import option
from polyadic.cli.windows import counted
from polyadic.errors import MissingExtraError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Split, Windows

EXAMPLES = """
[bold]Examples[/bold]

Synthetic signals; your own windows, at 100 Hz; and the paper's methods, settings, split and probe:
  polyadic run
  polyadic run --data windows.npz --fs 100
  polyadic run --data har.npz --preset har --protocol paper --probe plain
"""

_FIT_WINDOWS = 1024
"""Number of unlabelled windows on which the relative error is measured."""

_SCORES = {"balanced_accuracy": "balanced accuracy", "accuracy": "accuracy"}


def run(
    data: Annotated[
        Path | None,
        option(
            "Store (folder of windows written by [bold]polyadic prepare[/bold]), or a .npz file with X (windows, "
            "channels, time) and optionally y and subject, or with X_train (unlabelled), X_test, y_test and "
            "subject_test. Default: synthetic signals.",
            metavar="DATA",
            exists=True,
        ),
    ] = None,
    preset: options.Preset = None,
    protocol: Annotated[
        options.Protocol | None,
        option(
            "subject: subject-wise split (default if subjects are known); paper: random windows, which gives "
            "optimistic scores."
        ),
    ] = None,
    probe: options.Probe = "auto",
    seeds: Annotated[int, option("Number of random seeds.", min=1, metavar="N")] = 3,
    rank: options.Rank = None,
    sweeps: options.Sweeps = None,
    fs: options.Fs = None,
    nuisance: Annotated[
        float, option("Strength of class-independent components in the synthetic signals.", min=0.0, metavar="X")
    ] = 0.8,
    device: options.Device = "auto",
    out: Annotated[
        Path, option("Output folder for models, results.json and report.html.", "--out", "-o", metavar="FOLDER")
    ] = Path("polyadic-run"),
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """See it work: compare methods on synthetic signals, or on your own windows.

    The methods are CPD, the library's default, ATD as in the paper, PCA and hand-crafted features; with --preset,
    the paper's ATD, ATD_ss-, GR-SALS and SALS. Each is fitted to the unlabelled part. A probe (a simple classifier on
    the features) is trained and tested on the labelled part.

    Shows scores over seeds, the number of parameters and the seconds of a fit. Writes one model per method, the
    results as JSON, and a report.
    """
    from polyadic._util.files import digest, write_atomically
    from polyadic._util.provenance import provenance
    from polyadic.core.persist import encode
    from polyadic.data import WindowStore, synthetic
    from polyadic.data.batches import choose_device
    from polyadic.data.readers.arrays import open_windows
    from polyadic.data.splits import PAPER
    from polyadic.evaluate.scoring import default_protocol, summarise

    check_out_folder(out, data)
    if data is None and preset is not None:
        raise PolyadicError("--preset is for recordings of that dataset: pass them with --data")
    windows = synthetic(nuisance=nuisance) if data is None else open_windows(data, fs=fs)
    labelled = bool((windows.label >= 0).any())
    split = protocol if protocol is not None and labelled else default_protocol(windows)
    estimators = _methods(windows, preset, {"rank": rank, "max_sweeps": sweeps, "device": device})
    out.mkdir(parents=True, exist_ok=True)
    rows = _fit_all(windows, estimators, split, seeds, probe, out, quiet or json)
    settings = next(iter(estimators.values())).get_params(deep=False)
    result = {
        "title": "built-in signals" if data is None else printable(data.name),
        "data": {
            "sha256": None if data is None else WindowStore(data).checksum if data.is_dir() else digest(data),
            "shape": list(windows.shape),
            "fs": windows.fs,
            "drawn": "recordings" if windows.dataset in PAPER else "windows",
            "nuisance": nuisance if data is None else None,
        },
        "preset": preset,
        "protocol": split,
        "probe": probe,
        "settings": {name: encode(value) for name, value in settings.items() if name != "random_state"},
        **provenance(str(choose_device(device))),
        "seeds": list(range(seeds)),
        "summary": summarise(rows, ("method", "protocol"), (*_SCORES, "parameters", "seconds", "sweeps", "fit")),
        "rows": rows,
    }
    write_atomically(out / "results.json", (json_module.dumps(result, indent=1) + "\n").encode())
    missing = _write_report(out, windows, result, device, quiet or json)
    if json:
        print_json(result)
        return
    _show(result)
    echo(f"Wrote models, {'' if missing else 'report.html and '}results.json to {out}/")
    if missing:
        echo(missing)


def _methods(windows: Windows, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unfitted methods by name; the report is about the first."""
    from polyadic.baselines import HandFeatures, PCAFeatures
    from polyadic.presets import settings_for

    chosen = settings_for(windows, preset=preset)
    if preset is not None:
        return {
            "ATD": build_estimator("atd", chosen, **given),
            "ATD_ss-": build_estimator("atd", chosen, **given, beta=0.0),
            "GR-SALS": build_estimator("gr-sals", chosen, **given),
            "SALS": build_estimator("sals", chosen, **given),
        }
    model = build_estimator("cpd", chosen, **given)
    if not (windows.label >= 0).any():
        return {"CPD": model}
    return {
        "CPD": model,
        "ATD, paper": build_estimator("atd", settings_for(windows, paper_method=True), **given),
        "PCA": PCAFeatures(model.rank, tensorize=chosen.tensorize, device=given["device"]),
        "hand features": HandFeatures(device=given["device"]),
    }


# ------------------------------------------------------------- fits and scores


def split_for(windows: Windows, protocol: Any, seed: int) -> Split:
    """Return the split for a seed; windows without labels are all in its unlabelled part."""
    import numpy as np

    from polyadic.data import Split, split

    if (windows.label >= 0).any():
        return split(windows, protocol, random_state=seed)
    nothing = np.empty(0, dtype=np.intp)
    return Split(windows, np.arange(len(windows)), nothing, nothing)


def _fit_all(
    windows: Windows, estimators: Mapping[str, Any], protocol: str, seeds: int, probe: str, out: Path, hidden: bool
) -> list[dict[str, Any]]:
    """Fit and score all methods with all seeds, show progress, and save their models of the first seed."""
    from polyadic._util.progress import stage_bar

    for seed in range(seeds):
        train = split_for(windows, protocol, seed).train
        if len(train) and len(set(windows.label[train].tolist())) < 2:
            raise PolyadicError("labels must have at least two classes among the training windows, but have one")
    rows: list[dict[str, Any]] = []
    total = seeds * len(estimators)
    with stage_bar("fitting", hidden, "fits") as show:
        try:
            for seed, name in itertools.product(range(seeds), estimators):
                show(len(rows), total, f"{name}, seed {seed}")
                row, model = fit_and_score(windows, estimators[name], protocol, seed, probe)
                rows.append({"method": name, "seed": seed, **row})
                if seed == 0:
                    model.save(out / _model_file(name))
        except KeyboardInterrupt as stop:
            if rows:
                stop.args = (
                    f"{len(rows)} of {total} fits were done, and models of seed 0 are in {out}/; running the same "
                    "command again starts over",
                )
            raise
    return rows


def fit_and_score(windows: Windows, estimator: Any, protocol: str, seed: int, probe: str) -> tuple[dict[str, Any], Any]:
    """Fit a method to the unlabelled part of a split, and score a probe on its features; return a row and the model."""
    import warnings

    from sklearn.base import clone
    from sklearn.exceptions import ConvergenceWarning

    from polyadic.evaluate.classifier import groups_of
    from polyadic.evaluate.probe import statistic_columns
    from polyadic.evaluate.scoring import score_features

    part = split_for(windows, protocol, seed)
    unlabelled, train, test = part
    with warnings.catch_warnings():
        # The table shows the number of sweeps.
        warnings.filterwarnings("ignore", "The fit stopped at max_sweeps", ConvergenceWarning)
        begun = time.perf_counter()
        model = clone(estimator).set_params(random_state=seed).fit(unlabelled)
        seconds = time.perf_counter() - begun
    row: dict[str, Any] = {
        "protocol": protocol,
        "split": part.hash,
        "seconds": seconds,
        "parameters": model.n_parameters_,
    }
    if len(part.train):
        features = (model.transform(train), train.label, model.transform(test), test.label)
        scores = score_features([probe], *features, test.subject, groups_of(train), statistic_columns(model))[probe]
        row |= {name: 100 * scores[name] for name in _SCORES}
        row |= {"reason": scores["reason"]} if "reason" in scores else {}
    if hasattr(model, "factors_"):
        row |= {"sweeps": model.n_sweeps_, "fit": model.score(windows[part.unlabelled[:_FIT_WINDOWS]])}
    return row, model


def _model_file(method: str) -> str:
    """Return the file name of a method's model: `atd-paper.safetensors` for "ATD, paper"."""
    return "-".join(re.findall(r"[\w-]+", method.lower())).rstrip("-") + ".safetensors"


def _write_report(out: Path, windows: Windows, result: dict[str, Any], device: str, hidden: bool) -> str:
    """Write the report of the first method with the first seed; return a message if a package for it is missing."""
    from polyadic import load, report
    from polyadic._util.progress import stage_bar

    model = load(out / _model_file(result["summary"][0]["method"])).set_params(device=device)
    origin = {key: result[key] for key in ("command", "commit", "date", "machine", "versions")}
    if result["data"]["sha256"] is not None:
        origin["sha256"] = {result["title"]: result["data"]["sha256"]}
    about = {"title": result["title"], "protocol": result["protocol"]}
    try:
        with stage_bar("report", hidden, "parts") as on_stage:
            report.write(out / "report.html", model, windows, result=result, origin=origin, on_stage=on_stage, **about)
    except MissingExtraError as error:
        return f"No report.html: {error}"
    return ""


# ---------------------------------------------------------------------- table


def _show(result: dict[str, Any]) -> None:
    """Print the table of methods, and what it shows."""
    summary, first = result["summary"], result["rows"][0]
    scores = [name for name in _SCORES if name in summary[0]]
    rows = [
        [
            entry["method"],
            *(
                f"{entry[name]:.1f}" + (f" ± {entry[f'{name}_std']:.1f}" if f"{name}_std" in entry else "")
                for name in scores
            ),
            f"{entry['parameters']:,.0f}",
            f"{entry['seconds']:.1f}",
            f"{entry['sweeps']:.0f}" if "sweeps" in entry else "–",
            f"{entry['fit']:.3f}" if "fit" in entry else "–",
        ]
        for entry in summary
    ]
    heads = ("method", *(f"{_SCORES[name]} %" for name in scores), "parameters", "seconds", "sweeps", "fit")
    title = f"{result['title']}, {counted(len(result['seeds']), 'seed')}"
    if scores:
        drawn = (
            "subject-wise split" if result["protocol"] == "subject" else f"random split of {result['data']['drawn']}"
        )
        title += f", protocol {result['protocol']}: {drawn}"
    print_table(heads, rows, title=title)
    if "ATD, paper" in {entry["method"] for entry in summary}:
        echo(
            "CPD is the library's default; ATD, paper has the paper's front end, views and loss; PCA is of the same "
            "spectra; hand features are statistics and band powers of each channel."
        )
    if scores:
        echo(
            "Scores of a probe whose settings are chosen by leaving subjects out."
            if result["probe"] == "auto"
            else f"Scores of a logistic regression on {result['probe']} features."
        )
    echo("fit is 1 − the relative error of the decomposition. Mean ± standard deviation over the seeds.")
    if "reason" in first:
        echo(f"Probe of {first['method']}, seed {first['seed']}: {first['reason']}.")
