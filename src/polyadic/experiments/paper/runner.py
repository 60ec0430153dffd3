"""`polyadic bench`: one experiment of the paper on one dataset, cell by cell, resumable, as JSON and Markdown."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from rich.markdown import Markdown

from polyadic.augment import Bandpass, Compose, Jitter
from polyadic.data import synthetic
from polyadic.data.loading import open_windows
from polyadic.data.splits import PROTOCOLS, Protocol
from polyadic.errors import PolyadicError
from polyadic.experiments.paper.methods import Arm, Context, Row, judged
from polyadic.experiments.paper.tuning import read_settings
from polyadic.files import output_path, write_atomically
from polyadic.inputs import choose_device
from polyadic.persist import encode
from polyadic.presets import preset
from polyadic.progress import stage_bar
from polyadic.provenance import commit, provenance
from polyadic.spectral import STFT
from polyadic.terminal import console, echo, print_json

__all__ = ["Experiment", "Request", "run"]

_ABLATION_UNLABELLED = 50_000
_LABELLED = 5_000
_QUICK_TRIES = 2


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    title : what it shows
    datasets : those the paper shows it for; the first is the default
    arms : from the context to the arms; or
    special : from the context to the rows, for those that are not about accuracy
    markdown : from result and context to the text
    plot : from the result to a picture at a path, or None
    ablation : whether the paper takes 50,000 unlabelled windows for it where there are more
    change : of the settings, by dataset
    prepare : from the context to the one it runs in, where that is another
    judge : from arm, context and seed to the rows of a cell
    also : from the result to a further JSON file, `NAME-DATASET.settings.json`
    alone : whether cells must have the machine for themselves
    """

    title: str
    datasets: tuple[str, ...]
    markdown: Callable[[dict[str, Any]], str]
    arms: Callable[[Context], list[Arm]] | None = None
    special: Callable[[Context], list[Row]] | None = None
    plot: Callable[[dict[str, Any], Path], None] | None = None
    ablation: bool = False
    change: dict[str, dict[str, Any]] | None = None
    prepare: Callable[[Context], Context] | None = None
    judge: Callable[[Arm, Context, int], list[Row]] | None = None
    also: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    alone: bool = False


@dataclass(frozen=True)
class Request:
    """What `polyadic bench` was asked for; see its help."""

    name: str
    out: Path
    dataset: str | None = None
    store: Path | None = None
    seeds: int = 5
    protocol: str = "both"
    paper_settings: bool = False
    quick: bool = False
    device: str = "auto"
    jobs: int = 1
    epochs: int = 100
    methods: tuple[str, ...] = ()
    settings: Path | None = None
    tries: int = 12


def context_of(request: Request, experiment: Experiment) -> Context:
    """Data and settings of a request."""
    context = _context(request, experiment)
    if request.settings is not None:
        context = replace(context, settings=read_settings(request.settings, context.dataset))
    return context if experiment.prepare is None else experiment.prepare(context)


def _context(request: Request, experiment: Experiment) -> Context:
    protocols: Sequence[Protocol] = [p for p in PROTOCOLS if request.protocol in (p, "both")]
    if not protocols:
        raise PolyadicError(f"--protocol must be subject, paper or both, but is {request.protocol!r}")
    if request.quick:
        return _quick(request, protocols)
    if request.store is None:
        raise PolyadicError("--store must name a window store or a .npz file with labels; --quick needs none")
    dataset = request.dataset or experiment.datasets[0]
    windows = open_windows(request.store)
    if not (windows.label >= 0).any():
        raise PolyadicError(f"{request.store.name} has no labels, without which nothing can be compared")
    settings = preset(dataset, windows.fs)
    base = dataset.removesuffix("_100hz")
    parameters = dict(settings.parameters) if request.paper_settings else {"rank": settings.parameters["rank"]}
    tensorize = settings.tensorize
    if not request.paper_settings:
        tensorize = STFT(tensorize.n_fft, tensorize.hop)
    parameters |= (experiment.change or {}).get(base, {})
    return Context(
        windows=windows,
        dataset=base,
        tensorize=tensorize,
        augment=settings.augment,
        parameters=parameters,
        seeds=range(request.seeds),
        protocols=protocols,
        unlabelled=_ABLATION_UNLABELLED if experiment.ablation else None,
        labelled=_LABELLED if base in ("sleep_edf", "mgh") else None,
        epochs=request.epochs,
        device=request.device,
        tries=request.tries,
    )


def _quick(request: Request, protocols: Sequence[Protocol]) -> Context:
    """Small synthetic signals with settings that take seconds: to see that everything runs, not how well."""
    signals = synthetic(96, n_channels=3, length=64, n_classes=3)
    return Context(
        windows=signals,
        dataset="synthetic",
        tensorize=STFT(n_fft=16, hop=8),
        augment=Compose([Jitter(0.05), Bandpass([(2.0, 24.0), (4.0, 20.0)], 64.0)]),
        parameters={"rank": 4, "max_sweeps": 2, "batch_size": 32},
        seeds=range(2 if request.name in ("table11", "table12") else 1),
        protocols=protocols,
        epochs=1,
        device=request.device,
        tries=min(request.tries, _QUICK_TRIES),
    )


def run(request: Request, experiment: Experiment, quiet: bool = False, as_json: bool = False) -> dict[str, Any]:
    """Run what is not done yet, write `NAME-DATASET.json` and `.md` (and `.png`), and show the table."""
    if experiment.alone and request.jobs > 1:
        raise PolyadicError(f"--jobs must be 1 for {request.name}, whose seconds mean nothing beside other work")
    context = context_of(request, experiment)
    request.out.mkdir(parents=True, exist_ok=True)
    stem = f"{request.name}-{context.dataset}" + ("-paper" if request.paper_settings and not request.quick else "")
    stem += "-tuned" if request.settings is not None else ""
    rows = _rows(request, experiment, context, stem, quiet or as_json)
    result = {
        "experiment": request.name,
        "title": experiment.title,
        "dataset": context.dataset,
        "data": {"windows": len(context.windows), "shape": list(context.windows.shape[1:]), "fs": context.windows.fs},
        "settings": {
            "tensorize": encode(context.tensorize),
            "augment": encode(context.augment),
            "parameters": encode_all(context.parameters),
            "unlabelled": context.unlabelled,
            "labelled": context.labelled,
            "epochs": context.epochs,
            "which": _which(request),
            "tuned": {name: dict(own) for name, own in context.settings.items()},
        },
        "asked": {"seeds": request.seeds, "protocol": request.protocol, "tries": context.tries},
        "seeds": list(context.seeds),
        "protocols": list(context.protocols),
        "jobs": request.jobs,
        **provenance(str(choose_device(request.device))),
        "rows": rows,
    }
    text = f"# {request.name}: {experiment.title}, {context.dataset}\n\n{experiment.markdown(result)}"
    write_atomically(request.out / f"{stem}.json", (json.dumps(result, indent=1) + "\n").encode())
    write_atomically(request.out / f"{stem}.md", text.encode())
    if experiment.also is not None:
        more = json.dumps(experiment.also(result), indent=1) + "\n"
        write_atomically(request.out / f"{stem}.settings.json", more.encode())
    if experiment.plot is not None:
        experiment.plot(result, request.out / f"{stem}.png")
    (request.out / f"{stem}.cells.jsonl").unlink(missing_ok=True)
    if as_json:
        print_json(result)
    else:
        console().print(Markdown(text))
        echo(f"{stem}.json and {stem}.md are in {request.out}/")
    return result


def _which(request: Request) -> str:
    """Whose settings they are."""
    base = "quick" if request.quick else "paper" if request.paper_settings else "library"
    return f"{base}, tuned" if request.settings is not None else base


def encode_all(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: encode(value) for name, value in parameters.items()}


def _rows(request: Request, experiment: Experiment, context: Context, stem: str, quiet: bool) -> list[Row]:
    if experiment.special is not None:
        return experiment.special(context)
    assert experiment.arms is not None
    arms = _chosen(experiment.arms(context), request.methods)
    cells = {_key(context, arm, seed): (arm, seed) for arm in arms for seed in context.seeds}
    done = _kept(request.out, stem)
    missing = {key: cell for key, cell in cells.items() if key not in done}
    judge = experiment.judge or judged
    how = {"jobs": request.jobs, "commit": commit()}
    work = (delayed(_cell)(key, judge, arm, context, seed, how) for key, (arm, seed) in missing.items())
    count = len(cells) - len(missing)
    with (
        stage_bar(request.name, quiet, "cells", count) as show,
        output_path(request.out / f"{stem}.cells.jsonl").open("ab") as file,
    ):
        show(count, len(cells), "")
        try:
            for key, rows in Parallel(request.jobs, return_as="generator_unordered")(work):
                done[key] = rows
                # One line a cell: being killed costs the cells that were at work and no other.
                file.write((json.dumps({"key": key, "rows": rows}) + "\n").encode())
                file.flush()
                os.fsync(file.fileno())
                count += 1
                show(count, len(cells), _named(rows))
        except KeyboardInterrupt as stop:
            # Counted on the disk: it may have come between a cell's line and the next.
            count = len(cells.keys() & _kept(request.out, stem).keys())
            stop.args = (f"{count} of {len(cells)} cells are done; give the same command again to go on",)
            raise
    return [row for key in cells for row in done[key]]


def _named(rows: list[Row]) -> str:
    """What a cell was about."""
    return f"{rows[0]['method']}, seed {rows[0]['seed']} done" if rows and "method" in rows[0] else ""


def _chosen(arms: list[Arm], names: tuple[str, ...]) -> list[Arm]:
    """The arms of some methods, or all."""
    known = {arm.labels["method"] for arm in arms}
    unknown = set(names) - known
    if unknown:
        raise PolyadicError(f"--method must be one of {', '.join(sorted(known))}, but is {sorted(unknown)[0]!r}")
    return [arm for arm in arms if not names or arm.labels["method"] in names]


def _kept(out: Path, stem: str) -> dict[str, list[Row]]:
    """The cells that need not be run again."""
    return _earlier(out / f"{stem}.json") | _finished(out / f"{stem}.cells.jsonl")


def _earlier(path: Path) -> dict[str, list[Row]]:
    """The cells of a result that is complete: with more seeds or methods only the rest is run.

    Each keeps the commit it was run at, which early files have only as a whole.
    """
    found: dict[str, list[Row]] = {}
    try:
        result = json.loads(path.read_bytes())
        for row in result["rows"]:
            found.setdefault(str(row["key"]), []).append({"commit": result["commit"], **row})
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found


def _cell(
    key: str, judge: Callable[[Arm, Context, int], list[Row]], arm: Arm, context: Context, seed: int, how: Row
) -> tuple[str, list[Row]]:
    place = choose_device(context.device)
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else str(place)
    return key, [{**row, "key": key, "device": name, **how} for row in judge(arm, context, seed)]


def _key(context: Context, arm: Arm, seed: int) -> str:
    """What a cell's outcome depends on, as a hash: other data or settings are another cell."""
    windows = context.windows
    estimator = arm.make(context, seed)
    parts = [
        arm.labels,
        [encode(arm.augment), list(arm.counts)],
        {name: repr(encode(value)) for name, value in estimator.get_params(deep=False).items()},
        seed,
        list(context.protocols),
        [context.unlabelled, context.labelled],
        list(windows.shape),
        [context.parts(protocol, seed).hash for protocol in context.protocols],
        float(np.abs(windows.read(np.arange(1))).sum()),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _finished(path: Path) -> dict[str, list[Row]]:
    """The cells of an earlier run; a last line that was cut short does not count."""
    found: dict[str, list[Row]] = {}
    if not path.exists():
        return found
    for line in path.read_bytes().splitlines():
        try:
            cell = json.loads(line)
            found[str(cell["key"])] = list(cell["rows"])
        except (ValueError, KeyError, TypeError):
            continue
    return found
