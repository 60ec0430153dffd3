"""`python -m paper`: prepare the data sets, and reproduce every table and figure of the paper; measure speed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from paper import datasets
from paper.catalogue import EXPERIMENTS
from paper.compression import run as run_compression
from paper.labels.people import FILES
from paper.labels.runner import LabelRequest
from paper.labels.runner import run as run_labels
from paper.results import stage_bar
from paper.runner import Request, run
from polyadic import reuse_memory
from polyadic.errors import PolyadicError

app = typer.Typer(
    name="python -m paper",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Reproduce the tables and figures of the paper. To resume an interrupted command, run it again.",
    epilog="""
[bold]Examples[/bold]

  python -m paper table2 --quick
  python -m paper prepare har har har.store --download
  python -m paper table2 --dataset har --data har.store --jobs 8
  python -m paper labels --data folder --seeds 3
  python -m paper speed
""",
)

_Data = Annotated[
    Path | None, typer.Option("--data", metavar="DATA", help="Store or .npz file with labels.", exists=True)
]
_Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Output folder for JSON, Markdown and plot.")]
_Dataset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Data set whose settings to use: sleep_edf, har, ptb_xl, ptb_xl_100hz or mgh. Default: the first in the "
        "paper.",
    ),
]
_Methods = Annotated[
    list[str] | None,
    typer.Option("--method", metavar="NAME", help="Method to run; repeat for several. Default: all of the experiment."),
]
_Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Number of random seeds.")]
_Epochs = Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of epochs of the deep baselines.")]
_Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or cuda.")]
_Jobs = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="Number of parallel fits. With more than one, seconds per sweep are not comparable."
    ),
]
_Splits = Annotated[int, typer.Option(min=1, metavar="N", help="Number of splits of the subjects.")]
_FOLDER: Any = typer.Option("--data", metavar="FOLDER", help=f"Folder with {', '.join(FILES.values())}.", exists=True)
_Folder = Annotated[Path, _FOLDER]
_FolderOrNone = Annotated[Path | None, _FOLDER]
_Sets = Annotated[
    list[str] | None, typer.Option("--dataset", metavar="NAME", help=f"{', '.join(FILES)}; repeat for several.")
]
_Quick = Annotated[bool, typer.Option("--quick", help="Short test on synthetic signals.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
_OUT = Path("paper-results")


@app.command(rich_help_panel="Data")
def prepare(
    dataset: Annotated[str, typer.Argument(help="har, sleep-edf, ptb-xl or mgh.")],
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the data set, in its published layout.")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Store (folder) to write.")],
    skip: Annotated[
        bool, typer.Option("--skip", help="Skip recordings that cannot be read, and list them in the store.")
    ] = False,
    fetch: Annotated[bool, typer.Option("--download", help="First download missing files into the folder.")] = False,
    mirror: Annotated[str | None, typer.Option(metavar="URL", help="With --download: URL of a mirror.")] = None,
) -> None:
    """Write a store of windows from a data set in its published layout. For har, FOLDER may be the zip file."""
    from paper.datasets.download import SOURCES, download

    name = dataset.replace("-", "_")
    if name not in datasets.__all__:
        raise typer.BadParameter(f"{dataset!r} is not har, sleep-edf, ptb-xl or mgh", param_hint="DATASET")
    if fetch:
        if name in SOURCES:
            source = SOURCES[name]
            typer.echo(f"{source.title}, about {source.bytes / 1e9:.1f} GB, licence: {source.licence}", err=True)
            typer.echo(f"Please cite {source.citation}", err=True)
        with stage_bar("fetching", unit="files") as update:
            root = download(name, root, base=mirror, progress=update)
    with stage_bar("preparing", unit="recordings") as update:
        options: dict[str, Any] = {"progress": update, "on_error": "skip" if skip else "raise"}
        written = getattr(datasets, name)(root, store, **({} if name == "har" else options))
    channels, length = written.shape[1:]
    size = f"{len(written):,} windows of {channels} channels × {length} samples at {written.fs:g} Hz"
    typer.echo(f"{written.path.name}: {size}")
    for entry in written.skipped:
        typer.echo(f"left out {entry['name']}: {entry['reason']}")


def _add_experiment(name: str) -> None:
    """Add the command of one table or figure. Tables show the paper's numbers next to yours."""
    experiment = EXPERIMENTS[name]

    @app.command(name, help=f"{experiment.title}.")
    def command(
        data: _Data = None,
        dataset: _Dataset = None,
        paper_settings: Annotated[
            bool,
            typer.Option(
                "--paper-settings", help="Use the paper's settings for the tensor methods instead of the library's."
            ),
        ] = False,
        method: _Methods = None,
        tuned: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="Settings of each method: docs/results/*/tune-*.json.", exists=True),
        ] = None,
        protocol: Annotated[
            str, typer.Option(metavar="NAME", help="subject: subject-wise split; paper: the paper's split; or both.")
        ] = "both",
        seeds: _Seeds = 5,
        epochs: _Epochs = 100,
        device: _Device = "auto",
        jobs: _Jobs = 1,
        quick: _Quick = False,
        out: _Out = _OUT,
        quiet: _Quiet = False,
    ) -> None:
        how = (seeds, protocol, paper_settings, quick, device, jobs, epochs, tuple(method or ()), tuned)
        run(Request(name, out, dataset, data, *how), experiment, quiet)


for _name in EXPERIMENTS:
    _add_experiment(_name)


@app.command()
def speed(device: _Device = "auto", quick: _Quick = False, out: _Out = _OUT, quiet: _Quiet = False) -> None:
    """Seconds of sweeps and whole fits on random windows, and of other implementations."""
    from paper.speed.runner import run as run_speed

    run_speed(out, device, quick=quick, quiet=quiet)


@app.command()
def labels(
    data: _FolderOrNone = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"One of {', '.join(FILES)}. Default: all.")
    ] = None,
    method: _Methods = None,
    seeds: _Seeds = 5,
    splits: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of splits. Default: 30 or 10, by data set.")
    ] = None,
    development: Annotated[
        bool, typer.Option("--development", help="Score held-out development subjects, to choose settings.")
    ] = False,
    device: _Device = "auto",
    jobs: _Jobs = 1,
    quick: _Quick = False,
    out: _Out = _OUT,
    quiet: _Quiet = False,
) -> None:
    """Accuracy against labels per class on new subjects, next to strong baselines."""
    if dataset is not None and dataset not in FILES:
        raise typer.BadParameter(f"{dataset!r} is not one of {', '.join(FILES)}", param_hint="--dataset")
    sets = tuple(FILES) if dataset is None else (dataset,)
    methods = tuple(method or ())
    request = LabelRequest(out, data, sets, methods, seeds, splits, development, device, jobs, quick)
    run_labels(request, quiet=quiet)


@app.command()
def cluster(quick: _Quick = False, out: _Out = _OUT) -> None:
    """Seconds, bytes and memory of fits on Dask clusters of 1, 2 and 4 processes of this machine."""
    from paper.speed import cluster as cluster_runner  # it needs Dask

    cluster_runner.run(out, quick)


@app.command()
def compression(
    data: _Folder,
    seeds: _Seeds = 3,
    splits: _Splits = 4,
    jobs: _Jobs = 1,
    out: _Out = _OUT,
    quiet: _Quiet = False,
) -> None:
    """Loss and accuracy of default fits with compressed and with uncompressed windows, on development subjects."""
    run_compression(out, data, seeds, splits, jobs, quiet=quiet)


@app.command()
def compare(
    repetitions: Annotated[int, typer.Option(min=1, metavar="N", help="Number of simulated comparisons.")] = 2000,
    out: _Out = Path("docs/results/compare"),
    quiet: _Quiet = False,
) -> None:
    """False positives and power of comparisons between groups."""
    from paper.comparison import run as run_comparison

    run_comparison(out, repetitions, quiet=quiet)


@app.command()
def components(data: _Folder, out: _Out = Path("docs/results/components"), quiet: _Quiet = False) -> None:
    """Components for people of three data sets, coverage of their bands, and EEGMAT: rest and arithmetic."""
    from paper.components import run as run_components

    run_components(out, data, quiet=quiet)


@app.command()
def along(
    data: _Folder,
    splits: _Splits = 3,
    draws: Annotated[int, typer.Option(min=1, metavar="N", help="Number of draws of labels for each split.")] = 2,
    out: _Out = _OUT,
) -> None:
    """Predictions along the recording against each window by itself, on development subjects."""
    from paper.labels.along import run as run_along

    run_along(data, out, splits, draws)


@app.command()
def missing(
    data: _Folder,
    dataset: _Sets = None,
    method: _Methods = None,
    splits: _Splits = 3,
    final: Annotated[bool, typer.Option("--final", help="Score the subjects that no setting was chosen on.")] = False,
    jobs: _Jobs = 1,
    out: _Out = _OUT,
) -> None:
    """Accuracy when a sensor fails: dead channels, gaps and noise, next to rivals with imputed values; resumable.

    --dataset ptb-xl, with ptbxl100.npz in the folder, scores the printed layout of PTB-XL.
    """
    from paper.missing import OWN, RIVALS
    from paper.missing import run as run_missing

    run_missing(out, data, dataset or list(FILES), method or [OWN, *RIVALS], splits, final, jobs)


@app.command()
def label(
    data: _FolderOrNone = None,
    dataset: _Sets = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of splits of the development subjects.")] = 10,
    latency: Annotated[
        bool, typer.Option("--latency", help="Instead, measure the latency per label; needs an idle machine.")
    ] = False,
    jobs: _Jobs = 1,
    out: _Out = _OUT,
    quiet: _Quiet = False,
) -> None:
    """Labels that simulated annotators need, by the way in which windows are chosen."""
    from paper import label as simulation

    if latency:
        simulation.latency(out)
        return
    if data is None:
        raise PolyadicError("--data is missing: pass the folder with the sets")
    simulation.run(out, data, simulation.check_sets(dataset), runs, jobs, quiet)


def main() -> None:
    """Run a command; errors are one line on standard error."""
    reuse_memory()
    try:
        app()
    except (PolyadicError, OSError) as error:
        sys.exit(f"paper: {error}")


if __name__ == "__main__":
    main()
