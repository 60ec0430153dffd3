"""`polyadic bench`: reproduce the tables and figures of the paper, and measure speed."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli.options import (
    MOST_EPOCHS,
    MOST_JOBS,
    MOST_REPEATS,
    DeviceOption,
    JsonOption,
    QuietOption,
    SettingsOption,
)
from polyadic.cli.outputs import check_out_folder

__all__ = ["BENCH_EXAMPLES", "bench"]

BENCH_EXAMPLES = """
[bold]Examples[/bold]

A quick test of everything, on synthetic signals:
  polyadic bench table2 --quick

The main comparison on HAR, with eight parallel fits:
  polyadic bench table2 --dataset har --store har.store --jobs 8

Tune every method with the same number of tries, on subjects outside the test set, then compare with these settings:
  polyadic bench tune --store har.store --out tries
  polyadic bench table2 --store har.store --tuned tries/tune-har.settings.json

With the paper's settings for the tensor methods:
  polyadic bench table2 --dataset har --store har.store --paper-settings

Measure the time of every stage, and accuracy against time:
  polyadic bench speed
  polyadic bench race --store har.npz

Accuracy against labels per class on new subjects, next to strong baselines. First on the development subjects, on whom
settings are chosen:
  polyadic bench labels --store folder --seeds 3 --development
  polyadic bench labels --store folder --seeds 3
"""


def bench(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="table1 to table13, figure1 to figure5, tune, views, seconds, speed, race or labels."
        ),
    ],
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA", help="Store or .npz file with labels; for NAME labels, a folder of .npz files.", exists=True
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Data set whose settings to use: sleep_edf, har, ptb_xl, ptb_xl_100hz or mgh. Default: the first one "
            "in the paper.",
        ),
    ] = None,
    paper_settings: Annotated[
        bool,
        typer.Option(
            "--paper-settings", help="Use the paper's settings for the tensor methods instead of the library's."
        ),
    ] = False,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Method to run; repeat for several. Default: all methods of the experiment."),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File written by `polyadic bench tune`, with the settings of each method.", exists=True
        ),
    ] = None,
    tries: Annotated[
        int, typer.Option(min=1, max=MOST_REPEATS, metavar="N", help="For tune: number of settings to try per method.")
    ] = 12,
    protocol: Annotated[
        str, typer.Option(metavar="NAME", help="subject: subject-wise split; paper: the paper's split; or both.")
    ] = "both",
    seeds: Annotated[int, typer.Option(min=1, max=MOST_REPEATS, metavar="N", help="Number of random seeds.")] = 5,
    splits: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_REPEATS,
            metavar="N",
            help="For labels: number of splits. Default: 30 or 10, depending on the data set.",
        ),
    ] = None,
    development: Annotated[
        bool, typer.Option("--development", help="For labels: score held-out development subjects, to choose settings.")
    ] = False,
    epochs: Annotated[
        int, typer.Option(min=1, max=MOST_EPOCHS, metavar="N", help="Maximum number of epochs of the deep baselines.")
    ] = 100,
    device: DeviceOption = "auto",
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_JOBS,
            metavar="N",
            help="Number of parallel fits. With more than one, seconds per sweep are not comparable.",
        ),
    ] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Short test on synthetic signals.")] = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Output folder for JSON, Markdown and plot.")
    ] = Path("polyadic-bench"),
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Reproduce a table or figure of the paper, or measure speed.

    Tables show the paper's numbers next to yours. To resume an interrupted table or figure, run the same command again.

    [bold]speed[/bold] needs no data: it uses random windows of the paper's shapes, on the CPU and on the GPU, if
    there is one. [bold]race[/bold] measures how soon several solvers reach their accuracy. [bold]labels[/bold]
    measures accuracy against labels per class on new subjects; its folder contains har.npz, geotec_phone.npz,
    sisfall.npz, eegmat.npz and ludb.npz.
    """
    check_out_folder(out, store)
    if name == "speed":
        from paper.speed import runner

        runner.run(out, device, dataset, quick=quick, quiet=quiet, as_json=json)
        return
    if name == "race":
        from paper.speed import race

        race.run(out, store, dataset or "har", seeds, device, quick=quick, quiet=quiet, as_json=json)
        return
    if name == "labels":
        from paper.labels.people import FILES
        from paper.labels.runner import LabelRequest
        from paper.labels.runner import run as run_labels

        if dataset is not None and dataset not in FILES:
            raise typer.BadParameter(f"{dataset!r} is not one of {', '.join(FILES)}", param_hint="--dataset")
        run_labels(
            LabelRequest(
                out=out,
                folder=store,
                sets=tuple(FILES) if dataset is None else (dataset,),
                methods=tuple(method or ()),
                seeds=seeds,
                splits=splits,
                epochs=epochs,
                development=development,
                device=device,
                jobs=jobs,
                quick=quick,
            ),
            quiet=quiet,
            as_json=json,
        )
        return
    from paper.catalogue import EXPERIMENTS, experiment
    from paper.runner import Request, run

    if name not in EXPERIMENTS:
        raise _unknown(name, [*EXPERIMENTS, "speed", "race", "labels"])

    request = Request(
        name=name,
        out=out,
        dataset=dataset,
        store=store,
        seeds=seeds,
        protocol=protocol,
        paper_settings=paper_settings,
        quick=quick,
        device=device,
        jobs=jobs,
        epochs=epochs,
        methods=tuple(method or ()),
        tuned=tuned,
        tries=tries,
    )
    run(request, experiment(name), quiet=quiet, as_json=json)


def _unknown(name: str, known: list[str]) -> typer.BadParameter:
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
    return typer.BadParameter(f"{name!r} is not a table, a figure or a measurement; {hint}", param_hint="NAME")
