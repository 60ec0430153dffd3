"""`polyadic fit` and `polyadic transform`: a model from a store, and features from a model."""

from __future__ import annotations

import json as json_module
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows

__all__ = ["FIT_EXAMPLES", "TRANSFORM_EXAMPLES", "fit", "transform"]

FIT_EXAMPLES = """
All windows of a store, with the paper's settings for Sleep-EDF:

  polyadic fit sleep.store --preset sleep_edf -o model.safetensors

Only the unlabelled part of a split that keeps people apart, from a slow disk:

  polyadic fit sleep.store --protocol subject --shuffle block -o model.safetensors

A long fit that can be stopped and goes on where it was:

  polyadic fit sleep.store --checkpoint sleep.checkpoints --resume

Four processes that share every batch:

  torchrun --nproc-per-node 4 -m polyadic fit sleep.store
"""

TRANSFORM_EXAMPLES = """
  polyadic transform model.safetensors sleep.store -o features.npy

  polyadic transform model.safetensors windows.npz -o features.csv
"""


class Method(StrEnum):
    """The tensor methods, by their names in the paper."""

    ATD = "ATD"
    ATD_SS = "ATD_ss-"
    GRSALS = "GR-SALS"
    SALS = "SALS"


class Solver(StrEnum):
    """How a batch moves the bases."""

    BLEND = "blend"
    MEMORY = "memory"


class Shuffle(StrEnum):
    """In which order windows on a disk are visited."""

    FULL = "full"
    BLOCK = "block"


class Protocol(StrEnum):
    """How to split."""

    SUBJECT = "subject"
    PAPER = "paper"


_Data = Annotated[
    Path, typer.Argument(help="A window store made by [bold]polyadic prepare[/bold], or a .npz file.", exists=True)
]
_Json = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON and nothing else.")]
_Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


def fit(
    data: _Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model file to write.")] = Path("model.safetensors"),
    method: Annotated[Method, typer.Option(help="Which method.", case_sensitive=False)] = Method.ATD,
    preset: Annotated[
        str | None, typer.Option(help="The paper's settings for a dataset: sleep_edf, har, ptb_xl or mgh.")
    ] = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="With --preset: its frames and augmentations, all else the library's.")
    ] = False,
    protocol: Annotated[
        Protocol | None,
        typer.Option(help="Fit the unlabelled part of a split by this protocol; all windows if not given."),
    ] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="Number of components.")] = None,
    sweeps: Annotated[int | None, typer.Option(min=1, help="Most passes over the data.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Windows in a batch.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Share of a batch in the bases.")] = None,
    solver: Annotated[Solver | None, typer.Option(help="Blend bases, or remember statistics.")] = None,
    n_fft: Annotated[int | None, typer.Option(min=2, help="Samples in a frame of the STFT.")] = None,
    hop: Annotated[int | None, typer.Option(min=1, help="Samples from one frame to the next.")] = None,
    shuffle: Annotated[
        Shuffle, typer.Option(help="Visit windows in any order, or shard by shard for slow disks.")
    ] = Shuffle.FULL,
    seed: Annotated[int, typer.Option(help="Of the start, the order, the augmentations and the split.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    checkpoint: Annotated[Path | None, typer.Option(help="A folder for checkpoints, to go on from if stopped.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in that folder, if there is one.")
    ] = False,
    checkpoint_every: Annotated[float, typer.Option(min=0.0, help="Seconds between checkpoints.")] = 60.0,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Learn bases from the windows of a store, in memory that does not grow with it, and write a model file."""
    from polyadic import distributed
    from polyadic.data import split
    from polyadic.experiments.configure import configured

    team = distributed.join()
    _check_folder(out)
    windows = _windows(data, shuffle.value)
    if protocol is not None:
        windows = next(iter(split(windows, protocol.value, seed=seed)))
    estimators = configured(
        windows,
        preset=preset,
        defaults=defaults,
        n_fft=n_fft,
        hop=hop,
        rank=rank,
        max_sweeps=sweeps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        solver=None if solver is None else solver.value,
        device=device,
        random_state=seed,
        verbose=int(not (quiet or json)),
    )
    try:
        model = estimators[method.value].fit(
            windows, checkpoint=checkpoint, resume=resume, checkpoint_every=checkpoint_every, team=team
        )
    except KeyboardInterrupt:
        if checkpoint is not None and team.rank == 0:
            typer.echo(f"stopped; the same command with --resume goes on from {checkpoint}", err=True)
        raise
    team.once(lambda: model.save(out))
    if team.rank > 0:
        return
    seconds = sum(model.history_["seconds"])
    outcome = {
        "model": out.name,
        "method": method.value,
        "windows": len(windows),
        "parameters": model.n_parameters_,
        "sweeps": model.n_sweeps_,
        "seconds": seconds,
        "waited": model.waited_,
        "loss": model.history_["loss"][-1],
        "split": model.split_,
    }
    if json:
        typer.echo(json_module.dumps(outcome, indent=1))
        return
    typer.echo(
        f"{out.name}: {method.value} of {len(windows):,} windows, {model.n_parameters_:,} parameters, "
        f"{model.n_sweeps_} sweeps in {seconds:.1f} s ({model.waited_:.1f} s of it waiting for the disk)"
    )


def transform(
    model: Annotated[Path, typer.Argument(help="A model file.", exists=True, dir_okay=False)],
    data: _Data,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="A .npy file for the features, or a .csv file with who and when beside them."),
    ] = Path("features.npy"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    quiet: _Quiet = False,
) -> None:
    """Write the features of all windows, batch by batch."""
    from polyadic import distributed, load
    from polyadic.progress import file_bar

    team = distributed.join()
    _check_folder(out)
    if out.suffix not in (".npy", ".csv"):
        raise PolyadicError(f"--out must end in .npy or .csv, but is {out.name}")
    loaded = load(model).set_params(device=device)
    windows = _windows(data, "full")
    if out.suffix == ".csv" and team.size > 1:
        raise PolyadicError(f"several processes write a .npy file, but --out is {out.name}")
    with file_bar("transforming", quiet or team.rank > 0) as update:
        size = int(windows.shape[1] * windows.shape[2] * 4)

        def on_rows(done: int) -> None:
            done = min(done * team.size, len(windows))  # the others are about as far
            update("", done, len(windows), done, done * size)

        if out.suffix == ".npy":
            loaded.transform(windows, out=out, on_rows=on_rows, team=team)
        else:
            _write_table(loaded, windows, out, on_rows)
    if team.rank == 0:
        typer.echo(f"{out.name}: {len(windows):,} windows, {loaded.rank} features each")


def _write_table(model: Any, windows: Windows, out: Path, on_rows: Any) -> None:
    """A line for each window: subject, recording, start in seconds, class, features."""
    import csv
    import io

    from polyadic.files import open_atomically

    step = 4096
    with open_atomically(out) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        table = csv.writer(text)
        table.writerow(["subject", "recording", "start", "label", *(f"z{number}" for number in range(model.rank))])
        for first in range(0, len(windows), step):
            part = windows[first : first + step]
            starts = ["" if start < 0 else start / (part.fs or 1.0) for start in part.start.tolist()]
            labels = ["" if label < 0 else windows.classes[label] for label in part.label.tolist()]
            rows = zip(part.subject, part.recording, starts, labels, model.transform(part), strict=True)
            table.writerows([*known, *(f"{value:.6g}" for value in Z)] for *known, Z in rows)
            on_rows(first + len(part))
        text.flush()
        text.detach()


def _windows(data: Path, shuffle: str) -> Windows:
    from polyadic.data import WindowStore
    from polyadic.data.opening import open_windows

    if data.is_dir():
        return WindowStore(data, shuffle=shuffle).windows  # type: ignore[arg-type]
    return open_windows(data)


def _check_folder(out: Path) -> None:
    """Say before the work, not after it, that its outcome could not be written."""
    if not out.resolve().parent.is_dir():
        raise PolyadicError(f"--out must lie in a folder that is there, but {out.parent} is not")
