"""`polyadic run`: compare methods on synthetic signals or on your own windows."""

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

Synthetic signals, with and without nuisance components:
  polyadic run
  polyadic run --nuisance 0

Your own windows, at 100 Hz:
  polyadic run --data windows.npz --fs 100

The paper's settings and probe, with random and subject-wise splits:
  polyadic run --data har.npz --preset har --protocol both --probe plain
"""


def run(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="Store (folder of windows written by [bold]polyadic prepare[/bold]), or a .npz file with X (windows, "
            "channels, time) and optionally y and subject, or with X_train (unlabelled), X_test, y_test and "
            "subject_test. Default: synthetic signals.",
            exists=True,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The paper's settings for a dataset: sleep_edf, har, ptb_xl or mgh."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="subject: subject-wise split (default if subjects are known); paper: random windows, which gives "
            "optimistic scores; or both.",
        ),
    ] = None,
    probe: Annotated[
        list[ProbeKind] | None,
        typer.Option(
            metavar="KIND",
            help=f"Probe: the classifier that scores the features; repeat for several. {PROBE_KINDS} Default: auto.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MOST_REPEATS, metavar="N", help="Number of random seeds.")] = 5,
    rank: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of components (patterns over channels, frequencies and time)."),
    ] = None,
    sweeps: Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of sweeps.")] = None,
    fs: Annotated[
        float | None, typer.Option(min=0.0, metavar="HZ", help="Sampling rate, if the file does not contain it.")
    ] = None,
    n_fft: Annotated[int | None, typer.Option(min=2, metavar="N", help="Frame length of the STFT in samples.")] = None,
    hop: Annotated[int | None, typer.Option(min=1, metavar="N", help="Hop of the STFT in samples.")] = None,
    nuisance: Annotated[
        float,
        typer.Option(min=0.0, metavar="X", help="Strength of class-independent components in the synthetic signals."),
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
        Path,
        typer.Option("--out", "-o", metavar="FOLDER", help="Output folder for models, results.json and results.md."),
    ] = Path("polyadic-run"),
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """See it work: compare methods on synthetic signals, or on your own windows.

    The methods are CPD, the library's default, ATD as in the paper, PCA and hand-crafted features; with --preset,
    the paper's ATD, ATD_ss-, GR-SALS and SALS. Each is fitted to the unlabelled part. A probe (a simple classifier on
    the features) is trained and tested on the labelled part.

    Shows scores over seeds, the number of parameters and the seconds of a fit. Writes one model per method, the results
    and a report.
    """
    from polyadic.cli.run_methods import RunSettings, compare_methods

    check_out_folder(out, data)
    chosen = RunSettings(
        data=data,
        preset=preset,
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
