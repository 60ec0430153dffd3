"""One experiment of the paper on one dataset, resumable cell by cell, as JSON and Markdown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import delayed

from paper.methods import PROTOCOLS, ExperimentSettings, Row, Variant, fit_and_score
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


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    datasets : the paper's datasets for it; the first is the default
    table : function that formats the result as Markdown, given the protocol, "" for experiments without methods
    variants, build_rows : function that returns the methods to compare, given the settings, or the rows without methods
    plot : function that draws the result to a file, or None
    ablation : whether the paper uses at most 50,000 unlabelled windows
    parameters : parameters of the tensor methods that override the preset, by dataset
    """

    title: str
    datasets: tuple[str, ...]
    table: Callable[[dict[str, Any], str], str]
    variants: Callable[[ExperimentSettings], list[Variant]] | None = None
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
    paper_settings: bool = False
    quick: bool = False
    device: str = "auto"
    jobs: int = 1
    methods: tuple[str, ...] = ()
    tuned: Path | None = None


def experiment_settings(request: Request, experiment: Experiment) -> ExperimentSettings:
    """Open the data of a request, and return it with all settings."""
    settings = _quick_settings(request) if request.quick else _full_settings(request, experiment)
    if request.tuned is None:
        return settings
    content = json.loads(request.tuned.read_bytes())
    if content["dataset"] != settings.dataset:
        raise PolyadicError(f"{request.tuned.name} has settings for {content['dataset']}, not for {settings.dataset}")
    return replace(settings, tuned=content["settings"])


def _full_settings(request: Request, experiment: Experiment) -> ExperimentSettings:
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
    return ExperimentSettings(
        windows=windows,
        dataset=base,
        tensorize=tensorize,
        augment=paper.augment,
        parameters=parameters | (experiment.parameters or {}).get(base, {}),
        seeds=range(request.seeds),
        max_unlabelled=_ABLATION_UNLABELLED if experiment.ablation else None,
        max_labelled=_LABELLED if base in ("sleep_edf", "mgh") else None,
        device=request.device,
    )


def _quick_settings(request: Request) -> ExperimentSettings:
    """Return small synthetic signals and settings that take seconds, to check that everything runs."""
    return ExperimentSettings(
        windows=synthetic(96, n_channels=3, length=64, n_classes=3),
        dataset="synthetic",
        tensorize=STFT(n_fft=16, hop=8, floor="channel"),
        augment=Compose([Jitter(0.05), Bandpass([(2.0, 24.0), (4.0, 20.0)], 64.0)]),
        parameters={**PAPER_METHOD, "rank": 4, "max_sweeps": 2, "batch_size": 32},
        seeds=range(2 if request.name in ("table11", "table12") else 1),
        epochs=1,
        device=request.device,
    )


def run(request: Request, experiment: Experiment) -> dict[str, Any]:
    """Run the missing cells, write `NAME-DATASET.json` and `.md` (and `.png`), and show the table."""
    settings = experiment_settings(request, experiment)
    request.out.mkdir(parents=True, exist_ok=True)
    stem = f"{request.name}-{settings.dataset}" + "-paper" * (request.paper_settings and not request.quick)
    stem += "-tuned" * (request.tuned is not None)
    which = "quick" if request.quick else "paper" if request.paper_settings else "library"
    windows = settings.windows
    result = {
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
            "which": which if request.tuned is None else f"{which}, tuned",
            "tuned": settings.tuned,
        },
        "seeds": list(settings.seeds),
        "protocols": list(PROTOCOLS),
        "jobs": request.jobs,
        **provenance(str(choose_device(request.device))),
        "rows": _build_rows(request, experiment, settings, stem),
    }
    publish(request.out, stem, result, render(result, experiment))
    if experiment.plot is not None:
        experiment.plot(result, request.out / f"{stem}.png")
    return result


def render(result: dict[str, Any], experiment: Experiment) -> str:
    """Return a result as Markdown, with a table for each protocol if methods are compared."""
    parts = [f"# {result['experiment']}: {result['title']}, {result['dataset']}\n"]
    for protocol in ("",) if experiment.variants is None else result["protocols"]:
        parts += [heading(result, protocol), experiment.table(result, protocol)]
    return "\n".join([*parts, footer(result)])


def _build_rows(request: Request, experiment: Experiment, settings: ExperimentSettings, stem: str) -> list[Row]:
    """Run the cells that are not in the journal yet, and return the rows of all."""
    if experiment.build_rows is not None:
        return experiment.build_rows(settings)
    assert experiment.variants is not None
    variants = experiment.variants(settings)
    known = {one.method for one in variants}
    if unknown := set(request.methods) - known:
        raise PolyadicError(f"--method must be one of {', '.join(sorted(known))}, but is {min(unknown)!r}")
    how = {"jobs": request.jobs, "commit": commit()}
    tasks = {
        _cell_key(settings, one, seed): delayed(_run_cell)(one, settings, seed, how)
        for one in variants
        if not request.methods or one.method in request.methods
        for seed in settings.seeds
    }
    done = run_cells(request.name, tasks, request.out / f"{stem}.cells.jsonl", request.jobs)
    return [row for rows in done.values() for row in rows]


def _run_cell(one: Variant, settings: ExperimentSettings, seed: int, how: Row) -> list[Row]:
    """Run a cell, and add the device and `how` to its rows."""
    place = choose_device(settings.device)
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else str(place)
    return [{**row, "device": name, **how} for row in fit_and_score(one, settings, seed)]


def _cell_key(settings: ExperimentSettings, one: Variant, seed: int) -> str:
    """Return a hash of everything that a cell's result depends on, such as data and settings."""
    windows = settings.windows
    parameters = one.build(settings, seed).get_params(deep=False)
    parts = [
        [one.method, one.labels],
        [encode(one.augment or settings.augment), list(one.label_counts)],
        {name: repr(encode(value)) for name, value in parameters.items()},
        [settings.split_for(protocol, seed).hash for protocol in PROTOCOLS],
        list(windows.shape),
        float(np.abs(windows.read(np.arange(1))).sum()),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]
