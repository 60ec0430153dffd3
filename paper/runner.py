"""One experiment of the paper on one dataset, resumable cell by cell, as JSON and Markdown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import delayed

from paper.methods import ExperimentSettings, MethodVariant, Protocol, Row, fit_and_score
from paper.results import choose_device, commit, provenance, publish, run_cells
from paper.tables import footer, heading
from polyadic.augment import Bandpass, Compose, Jitter
from polyadic.core.persist import encode
from polyadic.data import open_windows, synthetic
from polyadic.errors import PolyadicError
from polyadic.presets import PAPER_METHOD, preset
from polyadic.spectral import STFT

_ABLATION_UNLABELLED = 50_000
_LABELLED = 5_000
_PROTOCOLS: tuple[Protocol, ...] = ("subject", "paper")


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    title : title of the table or figure
    datasets : the paper's datasets for it; the first is the default
    table : function that formats the result as Markdown, given the protocol, "" for experiments without methods
    variants : function that returns the methods to compare, given the settings
    build_rows : function that returns the rows, for experiments that do not compare methods
    plot : function that draws the result to a file, or None
    ablation : whether the paper uses at most 50,000 unlabelled windows
    parameters : parameters of the tensor methods that override the preset, by dataset
    """

    title: str
    datasets: tuple[str, ...]
    table: Callable[[dict[str, Any], str], str]
    variants: Callable[[ExperimentSettings], list[MethodVariant]] | None = None
    build_rows: Callable[[ExperimentSettings], list[Row]] | None = None
    plot: Callable[[dict[str, Any], Path], None] | None = None
    ablation: bool = False
    parameters: dict[str, dict[str, Any]] | None = None


@dataclass(frozen=True)
class Request:
    """The options of `python -m paper TABLE`; see its help."""

    name: str
    out: Path
    dataset: str | None = None
    data: Path | None = None
    seeds: int = 5
    protocol: str = "both"
    paper_settings: bool = False
    quick: bool = False
    device: str = "auto"
    jobs: int = 1
    epochs: int = 100
    methods: tuple[str, ...] = ()
    tuned: Path | None = None


def experiment_settings(request: Request, experiment: Experiment) -> ExperimentSettings:
    """Open the data of a request, and return it with all settings."""
    protocols: list[Protocol] = [p for p in _PROTOCOLS if request.protocol in (p, "both")]
    if not protocols:
        raise PolyadicError(f"--protocol must be subject, paper or both, but is {request.protocol!r}")
    build = _quick_settings if request.quick else _full_settings
    settings = build(request, experiment, protocols)
    if request.tuned is not None:
        settings = replace(settings, tuned=_read_tuned(request.tuned, settings.dataset))
    return settings


def _read_tuned(path: Path, dataset: str) -> dict[str, dict[str, Any]]:
    """Return the settings by family of methods in a file such as `docs/results/har/tune-har.settings.json`."""
    try:
        content = json.loads(path.read_bytes())
        known, settings = content["dataset"], dict(content["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise PolyadicError(f"--tuned must be a settings file with a dataset, but {path.name} is not one") from error
    if known != dataset:
        raise PolyadicError(f"--tuned must be tuned for {dataset}, but {path.name} is for {known}")
    return settings


def _full_settings(request: Request, experiment: Experiment, protocols: Sequence[Protocol]) -> ExperimentSettings:
    if request.data is None:
        raise PolyadicError("--data is missing: pass a window store or a .npz file with labels, or use --quick")
    dataset = request.dataset or experiment.datasets[0]
    windows = open_windows(request.data)
    if not (windows.label >= 0).any():
        raise PolyadicError(f"{request.data.name} has no labels, which are needed to compare methods")
    paper = preset(dataset, windows.fs)
    base = dataset.removesuffix("_100hz")
    tensorize, parameters = paper.tensorize, dict(paper.parameters)
    if not request.paper_settings:
        tensorize = STFT(tensorize.n_fft, tensorize.hop, floor="channel")
        parameters = {**PAPER_METHOD, "rank": parameters["rank"]}
    parameters |= (experiment.parameters or {}).get(base, {})
    return ExperimentSettings(
        windows=windows,
        dataset=base,
        tensorize=tensorize,
        augment=paper.augment,
        parameters=parameters,
        seeds=range(request.seeds),
        protocols=protocols,
        max_unlabelled=_ABLATION_UNLABELLED if experiment.ablation else None,
        max_labelled=_LABELLED if base in ("sleep_edf", "mgh") else None,
        epochs=request.epochs,
        device=request.device,
    )


def _quick_settings(request: Request, experiment: Experiment, protocols: Sequence[Protocol]) -> ExperimentSettings:
    """Return small synthetic signals and settings that take seconds, to check that everything runs."""
    return ExperimentSettings(
        windows=synthetic(96, n_channels=3, length=64, n_classes=3),
        dataset="synthetic",
        tensorize=STFT(n_fft=16, hop=8, floor="channel"),
        augment=Compose([Jitter(0.05), Bandpass([(2.0, 24.0), (4.0, 20.0)], 64.0)]),
        parameters={**PAPER_METHOD, "rank": 4, "max_sweeps": 2, "batch_size": 32},
        seeds=range(2 if request.name in ("table11", "table12") else 1),
        protocols=protocols,
        epochs=1,
        device=request.device,
    )


def run(request: Request, experiment: Experiment, quiet: bool = False) -> dict[str, Any]:
    """Run the missing cells, write `NAME-DATASET.json` and `.md` (and `.png`), and show the table."""
    settings = experiment_settings(request, experiment)
    request.out.mkdir(parents=True, exist_ok=True)
    stem = f"{request.name}-{settings.dataset}" + ("-paper" if request.paper_settings and not request.quick else "")
    stem += "-tuned" if request.tuned is not None else ""
    result = _build_result(request, experiment, settings)
    result["rows"] = _build_rows(request, experiment, settings, stem, quiet)
    publish(request.out, stem, result, render(result, experiment))
    if experiment.plot is not None:
        experiment.plot(result, request.out / f"{stem}.png")
    (request.out / f"{stem}.cells.jsonl").unlink(missing_ok=True)
    return result


def render(result: dict[str, Any], experiment: Experiment) -> str:
    """Return a result as Markdown, with a table for each protocol if methods are compared."""
    parts = [f"# {result['experiment']}: {result['title']}, {result['dataset']}\n"]
    for protocol in ("",) if experiment.variants is None else result["protocols"]:
        parts += [heading(result, protocol), experiment.table(result, protocol)]
    return "\n".join([*parts, footer(result)])


def _build_result(request: Request, experiment: Experiment, settings: ExperimentSettings) -> dict[str, Any]:
    """Return the content of the JSON file without its rows: settings and provenance."""
    whose = "quick" if request.quick else "paper" if request.paper_settings else "library"
    windows = settings.windows
    return {
        "experiment": request.name,
        "title": experiment.title,
        "dataset": settings.dataset,
        "data": {"windows": len(windows), "shape": list(windows.shape[1:]), "fs": windows.fs},
        "settings": {
            "tensorize": encode(settings.tensorize),
            "augment": encode(settings.augment),
            "parameters": {name: encode(value) for name, value in settings.parameters.items()},
            "unlabelled": settings.max_unlabelled,
            "labelled": settings.max_labelled,
            "epochs": settings.epochs,
            "which": whose if request.tuned is None else f"{whose}, tuned",
            "tuned": {name: dict(own) for name, own in settings.tuned.items()},
        },
        "asked": {"seeds": request.seeds, "protocol": request.protocol},
        "seeds": list(settings.seeds),
        "protocols": list(settings.protocols),
        "jobs": request.jobs,
        **provenance(str(choose_device(request.device))),
    }


def _build_rows(
    request: Request, experiment: Experiment, settings: ExperimentSettings, stem: str, quiet: bool
) -> list[Row]:
    """Run the cells that are not done yet, and return the rows of all."""
    if experiment.build_rows is not None:
        return experiment.build_rows(settings)
    assert experiment.variants is not None
    variants = _select_methods(experiment.variants(settings), request.methods)
    cells = {_cell_key(settings, one, seed): (one, seed) for one in variants for seed in settings.seeds}
    known = read_cells(request.out / f"{stem}.json")
    how = {"jobs": request.jobs, "commit": commit()}
    tasks = {
        key: delayed(_run_cell)(key, one, settings, seed, how) for key, (one, seed) in cells.items() if key not in known
    }
    known |= run_cells(request.name, tasks, request.out / f"{stem}.cells.jsonl", request.jobs, quiet)
    return [row for key in cells for row in known[key]]


def _select_methods(variants: list[MethodVariant], names: tuple[str, ...]) -> list[MethodVariant]:
    """Return the variants of the named methods, or all variants if there are no names."""
    known = {one.method for one in variants}
    unknown = set(names) - known
    if unknown:
        raise PolyadicError(f"--method must be one of {', '.join(sorted(known))}, but is {sorted(unknown)[0]!r}")
    return [one for one in variants if not names or one.method in names]


def read_cells(path: Path) -> dict[str, list[Row]]:
    """Return the cells of a complete result, by key, so that with more seeds or methods only the new cells are run.

    Each cell keeps the commit it was run at; early files have one commit for all cells.
    """
    cells: dict[str, list[Row]] = {}
    if path.exists():
        result = json.loads(path.read_bytes())
        for row in result["rows"]:
            cells.setdefault(str(row["key"]), []).append({"commit": result["commit"], **row})
    return cells


def _run_cell(key: str, one: MethodVariant, settings: ExperimentSettings, seed: int, how: Row) -> list[Row]:
    """Run a cell, and add its key, the device and `how` to its rows."""
    place = choose_device(settings.device)
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else str(place)
    return [{**row, "key": key, "device": name, **how} for row in fit_and_score(one, settings, seed)]


def _cell_key(settings: ExperimentSettings, one: MethodVariant, seed: int) -> str:
    """Return a hash of everything that a cell's result depends on, such as data and settings."""
    windows = settings.windows
    estimator = one.build(settings, seed)
    parts = [
        one.labels,
        [encode(one.augment), list(one.label_counts)],
        {name: repr(encode(value)) for name, value in estimator.get_params(deep=False).items()},
        seed,
        list(settings.protocols),
        [settings.max_unlabelled, settings.max_labelled],
        list(windows.shape),
        [settings.split_for(protocol, seed).hash for protocol in settings.protocols],
        float(np.abs(windows.read(np.arange(1))).sum()),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]
