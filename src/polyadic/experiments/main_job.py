"""`polyadic run`: from a command's settings to the comparison, its table on the screen and its files."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from polyadic import ATD, GRSALS, SALS
from polyadic.augment import Augmentation, Bandpass, Compose, Jitter
from polyadic.data import synthetic
from polyadic.data.splits import PROTOCOLS, Protocol
from polyadic.errors import PolyadicError
from polyadic.evaluate import PROBES
from polyadic.experiments.compare import Recordings, Row, compare, methods, read_npz, summarise
from polyadic.experiments.provenance import digest, provenance
from polyadic.inputs import choose_device
from polyadic.persist import encode, write_atomically
from polyadic.presets import preset as paper_preset
from polyadic.spectral import STFT

__all__ = ["Job", "run"]

_BUILT_IN_RANK = 8
_BUILT_IN_SWEEPS = 15
_BUILT_IN_FRAMES = STFT(n_fft=64, hop=16, window="hann", parts="amplitude")
_BUILT_IN_BANDS = [(2.0, 24.0), (4.0, 20.0)]
_LONGEST_FRAME = 256


@dataclass(frozen=True)
class Job:
    """The settings of `polyadic run`; see its help."""

    out: Path
    data: Path | None = None
    preset: str | None = None
    defaults: bool = False
    protocol: str | None = None
    seeds: int = 5
    rank: int | None = None
    sweeps: int | None = None
    fs: float | None = None
    n_fft: int | None = None
    hop: int | None = None
    nuisance: float = 0.8
    device: str = "auto"
    jobs: int = 1


def run(job: Job, as_json: bool = False, quiet: bool = False) -> None:
    """Do the job: print the table (or the JSON), write models, `results.json` and `results.md`."""
    if job.defaults and job.preset is None:
        raise PolyadicError("--defaults goes with --preset; without a preset the library's settings are used anyway")
    recordings = _recordings(job)
    protocols = _protocols(job, recordings)
    estimators = _estimators(job, recordings)
    job.out.mkdir(parents=True, exist_ok=True)
    console, errors = Console(), Console(stderr=True)
    seeds = range(job.seeds)
    hidden = quiet or as_json or not errors.is_terminal
    with _bar(errors, hidden) as bar:
        task = bar.add_task("", total=job.seeds * len(estimators))

        def on_fit(name: str, seed: int, model: ATD | SALS | GRSALS) -> None:
            bar.update(task, advance=1, description=f"({name}, seed {seed} done)")
            if seed == seeds[0]:
                model.save(job.out / f"{name.lower().rstrip('-')}.safetensors")

        rows = compare(recordings, estimators, protocols, seeds, job.jobs, on_fit)
    result = _result(job, recordings, estimators, rows)
    text = json.dumps(result, indent=1) + "\n"
    write_atomically(job.out / "results.json", text.encode())
    write_atomically(job.out / "results.md", _markdown(result).encode())
    if as_json:
        console.print_json(text)
        return
    for protocol in protocols:
        console.print(_table(result, protocol))
    if recordings.y is not None:
        console.print(
            "Accuracy of a logistic regression on plain and on standardised features, mean ± std over the seeds."
        )
    console.print(f"Models, results.json and results.md are in {job.out}/", highlight=False)


def _recordings(job: Job) -> Recordings:
    if job.data is None:
        if job.preset is not None:
            raise PolyadicError("--preset is for recordings of that dataset: give them with --data")
        signals = synthetic(nuisance=job.nuisance)
        return Recordings("built-in signals", signals.X, signals.y, signals.subject, None, signals.fs)
    recordings = read_npz(job.data)
    return recordings if job.fs is None else dataclasses.replace(recordings, fs=job.fs)


def _protocols(job: Job, recordings: Recordings) -> list[Protocol]:
    if job.protocol is None or recordings.y is None:
        return ["paper" if recordings.subject is None else "subject"]
    if job.protocol == "both":
        return ["paper", "subject"]
    for known in PROTOCOLS:
        if job.protocol == known:
            return [known]
    raise PolyadicError(f"--protocol must be subject, paper or both, but is {job.protocol!r}")


def _estimators(job: Job, recordings: Recordings) -> dict[str, ATD | SALS | GRSALS]:
    """The four methods with the job's settings: the preset's, or what suits the recordings."""
    parameters: dict[str, Any] = {}
    augment: Augmentation
    if job.preset is not None:
        settings = paper_preset(job.preset, recordings.fs)
        tensorize, augment = settings.tensorize, settings.augment
        if job.defaults:
            tensorize = STFT(tensorize.n_fft, tensorize.hop)
        else:
            parameters |= settings.parameters
    elif job.data is None:
        parameters |= {"rank": _BUILT_IN_RANK, "max_sweeps": _BUILT_IN_SWEEPS}
        tensorize = _BUILT_IN_FRAMES
        augment = Compose([Jitter(0.05), Bandpass(_BUILT_IN_BANDS, recordings.fs or 64.0)])
    else:
        tensorize, augment = _frames(recordings.X.shape), _views(recordings.fs)
    if job.n_fft is not None or job.hop is not None:
        tensorize = dataclasses.replace(tensorize, n_fft=job.n_fft or tensorize.n_fft, hop=job.hop or tensorize.hop)
    parameters |= {"device": job.device}
    parameters |= {} if job.rank is None else {"rank": job.rank}
    parameters |= {} if job.sweeps is None else {"max_sweeps": job.sweeps}
    return methods(tensorize, augment, parameters)


def _frames(shape: tuple[int, ...]) -> STFT:
    """Frames of a quarter of the window or 256 samples, a power of two, that overlap by three quarters."""
    if len(shape) != 3:
        raise PolyadicError(f"X must have three dimensions (windows, channels, time), but has shape {shape}")
    n_fft = max(2, min(_LONGEST_FRAME, 1 << max(shape[2] // 4, 2).bit_length() - 1))
    return STFT(n_fft=n_fft, hop=max(1, n_fft // 4))


def _views(fs: float | None) -> Augmentation:
    """Jitter and, where the sampling rate is known, a filter for the lower or the upper half of the spectrum."""
    if fs is None:
        return Jitter(0.05)
    return Compose([Jitter(0.05), Bandpass([(0.01 * fs, 0.3 * fs), (0.1 * fs, 0.49 * fs)], fs)])


def _bar(console: Console, hidden: bool) -> Progress:
    columns = (
        TextColumn("fitting {task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=hidden, transient=True)


def _result(job: Job, recordings: Recordings, estimators: dict[str, Any], rows: list[Row]) -> dict[str, Any]:
    atd = estimators["ATD"]
    settings = {name: encode(value) for name, value in atd.get_params(deep=False).items() if name != "random_state"}
    return {
        "title": recordings.name,
        "data": {
            "sha256": None if job.data is None else digest(job.data),
            "shape": list(recordings.X.shape),
            "fs": recordings.fs,
            "nuisance": job.nuisance if job.data is None else None,
        },
        "preset": job.preset,
        "settings_of_ATD": settings,
        "graph_weight_of_GR-SALS": estimators["GR-SALS"].graph_weight,
        "seeds": list(range(job.seeds)),
        "jobs": job.jobs,
        **provenance(str(choose_device(job.device))),
        "summary": summarise(rows),
        "rows": rows,
    }


def _cells(entry: Row) -> list[str]:
    spread = {kind: f" ± {entry[f'{kind}_std']:.2f}" if f"{kind}_std" in entry else "" for kind in PROBES}
    accuracies = [f"{entry[kind]:.2f}{spread[kind]}" for kind in PROBES if kind in entry]
    return [
        entry["method"],
        *accuracies,
        f"{entry['parameters']:,.0f}",
        f"{entry['seconds_per_sweep']:.3f}",
        f"{entry['sweeps']:.0f}",
        f"{entry['fit']:.3f}",
    ]


def _heads(result: dict[str, Any]) -> list[str]:
    accuracies = [f"{kind} %" for kind in PROBES if kind in result["summary"][0]]
    return ["method", *accuracies, "parameters", "s/sweep", "sweeps", "fit"]


def _title(result: dict[str, Any], protocol: str) -> str:
    split = {"subject": "people apart", "paper": "windows drawn at random"}[protocol]
    labelled = PROBES[0] in result["summary"][0]
    count = len(result["seeds"])
    seeds = f"{count} seed{'s' * (count > 1)}"
    return f"{result['title']}, {seeds}" + (f", protocol {protocol}: {split}" if labelled else "")


def _table(result: dict[str, Any], protocol: str) -> Table:
    table = Table(title=_title(result, protocol), title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for number, head in enumerate(_heads(result)):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for entry in result["summary"]:
        if entry["protocol"] == protocol:
            table.add_row(*_cells(entry))
    return table


def _markdown(result: dict[str, Any]) -> str:
    """The tables as Markdown, with what is needed to make them again."""
    lines = []
    for protocol in dict.fromkeys(entry["protocol"] for entry in result["summary"]):
        heads = _heads(result)
        lines += [
            f"**{_title(result, protocol)}**",
            "",
            f"| {' | '.join(heads)} |",
            f"|---{'|---:' * (len(heads) - 1)}|",
        ]
        entries = [entry for entry in result["summary"] if entry["protocol"] == protocol]
        lines += [f"| {' | '.join(_cells(entry))} |" for entry in entries] + [""]
    machine = result["machine"]
    where = machine.get("gpu") or f"{machine['processor']}, {machine['threads']} threads"
    lines.append(
        "Accuracy of a logistic regression on plain and on standardised features, mean ± standard deviation over the "
        f"seeds. `{result['command']}`, {where}, {result['date']}, "
        f"commit {result['commit']}."
    )
    return "\n".join(lines) + "\n"
