"""`polyadic run`: the four tensor methods compared on built-in signals or on your own windows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli.options import (
    MOST_JOBS,
    MOST_REPEATS,
    PROBE_KINDS,
    DeviceOption,
    JsonOption,
    ProbeKind,
    QuietOption,
    SettingsOption,
)
from polyadic.cli.outputs import check_out_folder

__all__ = ["RUN_EXAMPLES", "run"]

RUN_EXAMPLES = """
[bold]Examples[/bold]

Built-in signals, and such as augmentations cannot help with:
  polyadic run
  polyadic run --nuisance 0

Your own windows, sampled at 100 Hz:
  polyadic run --data windows.npz --fs 100

The paper's settings and probe, its protocol and by subject:
  polyadic run --data har.npz --preset har --protocol both --probe plain
"""


def run(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="A window store made by [bold]polyadic prepare[/bold], or a .npz file with X (windows, channels, "
            "time), optional y and subject; or X_train (unlabelled) with X_test, y_test, subject_test. Built-in "
            "signals if not given.",
            exists=True,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The paper's settings for a dataset: sleep_edf, har, ptb_xl or mgh."),
    ] = None,
    defaults: Annotated[
        bool,
        typer.Option(
            "--defaults",
            help="With --preset: its frame length, hop and augmentations, all else as in 0.1.0.",
        ),
    ] = False,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="subject: people of the training and the test windows are apart (default where people are known); "
            "paper: windows drawn at random, which flatters every method; or both.",
        ),
    ] = None,
    probe: Annotated[
        list[ProbeKind] | None,
        typer.Option(
            metavar="KIND",
            help=f"Once for each. {PROBE_KINDS} Default: auto; the paper's tables: --probe plain --probe standardised.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MOST_REPEATS, metavar="N", help="Number of seeds.")] = 5,
    rank: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of components.")] = None,
    sweeps: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most passes over the data.")] = None,
    fs: Annotated[
        float | None, typer.Option(min=0.0, metavar="HZ", help="Sampling rate in Hz, if the file does not say.")
    ] = None,
    n_fft: Annotated[int | None, typer.Option(min=2, metavar="N", help="Samples in a frame of the STFT.")] = None,
    hop: Annotated[int | None, typer.Option(min=1, metavar="N", help="Samples from one frame to the next.")] = None,
    nuisance: Annotated[
        float,
        typer.Option(min=0.0, metavar="X", help="Built-in signals: strength of the components no class cares about."),
    ] = 0.8,
    device: DeviceOption = "auto",
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_JOBS,
            metavar="N",
            help="Number of parallel processes. With more than one, seconds per sweep are not comparable.",
        ),
    ] = 1,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the models, results.json and results.md.")
    ] = Path("polyadic-run"),
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare ATD, ATD_ss-, GR-SALS and SALS on the same windows.

    Each is fitted on the unlabelled part; a probe is trained and tested on the labelled part.

    Shows scores over the seeds, parameters and seconds a sweep; writes one model of each method and the results.
    """
    from polyadic.experiments.run import RunSettings, compare_methods

    check_out_folder(out, data)
    chosen = RunSettings(
        data=data,
        preset=preset,
        defaults=defaults,
        protocol=protocol,
        probes=tuple(dict.fromkeys(kind.value for kind in probe or [ProbeKind.AUTO])),
        seeds=seeds,
        rank=rank,
        sweeps=sweeps,
        fs=fs,
        n_fft=n_fft,
        hop=hop,
        nuisance=nuisance,
        device=device,
        jobs=jobs,
        out=out,
    )
    compare_methods(chosen, as_json=json, quiet=quiet)
