"""`python -m paper`: prepare the data sets, and reproduce every table and figure of the paper; measure speed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from paper import datasets
from paper.catalogue import EXPERIMENTS
from paper.labels.people import FILES, PTB_XL
from paper.runner import Request, run
from polyadic import reuse_memory
from polyadic.errors import PolyadicError

app = typer.Typer(
    name="python -m paper",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Reproduce the tables and figures of the paper. To resume an interrupted command, run it again.",
)

_FOLDER: Any = typer.Option("--data", metavar="FOLDER", help=f"Folder with {', '.join(FILES.values())}.", exists=True)
_JOBS = "Number of parallel fits. With more than one, seconds per sweep are not comparable."


def _check_sets(names: list[str] | None) -> list[str] | None:
    """Return the names, all of which must be known."""
    for name in names or ():
        if name not in (*FILES, PTB_XL):
            raise typer.BadParameter(f"{name!r} is not one of {', '.join((*FILES, PTB_XL))}")
    return names


_Folder = Annotated[Path, _FOLDER]
_Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Output folder for JSON, Markdown and plot.")]
_Methods = Annotated[
    list[str] | None, typer.Option("--method", metavar="NAME", help="Method to run; repeat for several. Default: all.")
]
_Sets = Annotated[
    list[str] | None,
    typer.Option("--dataset", metavar="NAME", callback=_check_sets, help="Set; repeat for several. Default: all."),
]
_Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Number of random seeds.")]
_Splits = Annotated[int, typer.Option(min=1, metavar="N", help="Number of splits of the subjects.")]
_Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or cuda.")]
_Jobs = Annotated[int, typer.Option(min=1, metavar="N", help=_JOBS)]
_Final = Annotated[bool, typer.Option("--final", help="Score the subjects that no setting was chosen on.")]
_Quick = Annotated[bool, typer.Option("--quick", help="Short test on synthetic signals.")]
_OUT = Path("paper-results")


@app.command(rich_help_panel="Data")
def prepare(
    dataset: Annotated[Literal["har", "sleep-edf", "ptb-xl", "mgh"], typer.Argument(help="Data set.")],
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the data set, in its published layout.")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Store (folder) to write.")],
) -> None:
    """Write a store of windows from a data set in its published layout. For har, FOLDER may be the zip file."""
    written = getattr(datasets, dataset.replace("-", "_"))(root, store)
    channels, length = written.shape[1:]
    size = f"{len(written):,} windows of {channels} channels × {length} samples at {written.fs:g} Hz"
    typer.echo(f"{written.path.name}: {size}")


def _add_experiment(name: str) -> None:
    """Add the command of one table or figure. Tables show the paper's numbers next to yours."""
    experiment = EXPERIMENTS[name]

    @app.command(name, help=f"{experiment.title}.")
    def command(
        data: Annotated[
            Path | None, typer.Option(metavar="DATA", help="Store or .npz file with labels.", exists=True)
        ] = None,
        dataset: Annotated[
            str, typer.Option(metavar="NAME", help="sleep_edf, har, ptb_xl, ptb_xl_100hz or mgh.")
        ] = experiment.datasets[0],
        paper_settings: Annotated[
            bool, typer.Option("--paper-settings", help="Use the paper's settings for the tensor methods.")
        ] = False,
        method: _Methods = None,
        tuned: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Settings: docs/results/*/tune-*.json.", exists=True)
        ] = None,
        seeds: _Seeds = 5,
        device: _Device = "auto",
        jobs: _Jobs = 1,
        quick: _Quick = False,
        out: _Out = _OUT,
    ) -> None:
        how = (seeds, paper_settings, quick, device, jobs, tuple(method or ()), tuned)
        run(Request(name, out, dataset, data, *how), experiment)


for _name in EXPERIMENTS:
    _add_experiment(_name)


@app.command()
def speed(device: _Device = "auto", quick: _Quick = False, out: _Out = _OUT) -> None:
    """Seconds of sweeps and whole fits on random windows, and of other implementations."""
    from paper.speed.runner import run as run_speed

    run_speed(out, device, quick=quick)


@app.command()
def labels(
    data: Annotated[Path | None, _FOLDER] = None,
    dataset: _Sets = None,
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
) -> None:
    """Accuracy against labels per class on new subjects, next to strong baselines."""
    from paper.labels.runner import LabelRequest
    from paper.labels.runner import run as run_labels

    sets = tuple(dataset or (*FILES, PTB_XL))
    run_labels(LabelRequest(out, data, sets, tuple(method or ()), seeds, splits, development, device, jobs, quick))


@app.command()
def cluster(quick: _Quick = False, out: _Out = _OUT) -> None:
    """Seconds, bytes and memory of fits on Dask clusters of 1, 2 and 4 processes of this machine."""
    from paper.speed.cluster import run as run_cluster

    run_cluster(out, quick)


@app.command()
def compare(
    repetitions: Annotated[int, typer.Option(min=1, metavar="N", help="Number of simulated comparisons.")] = 2000,
    out: _Out = _OUT,
) -> None:
    """False positives and power of comparisons between groups."""
    from paper.comparison import run as run_comparison

    run_comparison(out, repetitions)


@app.command()
def components(data: _Folder, out: _Out = _OUT) -> None:
    """Components for people of three data sets, coverage of their bands, and EEGMAT: rest and arithmetic."""
    from paper.components import run as run_components

    run_components(out, data)


@app.command()
def along(
    data: _Folder,
    splits: _Splits = 3,
    draws: Annotated[int, typer.Option(min=1, metavar="N", help="Number of draws of labels for each split.")] = 2,
    final: _Final = False,
    jobs: _Jobs = 1,
    out: _Out = _OUT,
) -> None:
    """Predictions along the recording against each window by itself; resumable."""
    from paper.labels.along import run as run_along

    run_along(data, out, splits, draws, final, jobs)


@app.command()
def missing(
    data: _Folder,
    dataset: _Sets = None,
    method: _Methods = None,
    splits: _Splits = 3,
    final: _Final = False,
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
    data: _Folder,
    dataset: _Sets = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of splits of the development subjects.")] = 10,
    jobs: _Jobs = 1,
    out: _Out = _OUT,
) -> None:
    """Labels that simulated annotators need, by the way in which windows are chosen."""
    from paper import label as simulation

    simulation.run(out, data, tuple(dataset or simulation.SETS), runs, jobs)


def main() -> None:
    """Run a command; errors are one line on standard error."""
    reuse_memory()
    try:
        app()
    except (PolyadicError, OSError) as error:
        sys.exit(f"paper: {error}")


if __name__ == "__main__":
    main()
