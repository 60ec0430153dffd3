"""`polyadic prepare`: write stores of windows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyadic.cli.info import describe_store
from polyadic.cli.options import Command, Common, Fs, Group, with_options
from polyadic.cli.windows import write_recordings

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Cut recordings into a store of windows.\n\n"
    "A store is a folder of windows on disk, with subjects, labels and times. A fit reads it batch by batch, so "
    "memory use does not grow with the data.",
    epilog="[bold]Example[/bold]\n\n  polyadic prepare folder recordings my.store --seconds 30\n",
)


_Store = Annotated[Path, typer.Argument(metavar="STORE", help="Store (folder) to write.")]


@app.command(
    cls=Command,
    epilog="""
[bold]Examples[/bold]

Hypnograms in separate files, with stages 3 and 4 as one class:
  polyadic prepare folder sleep-edfx my.store --seconds 30 \\
    --scoring '*-Hypnogram.edf' --class "N3=Sleep stage 3|Sleep stage 4"

Two channels, and subjects from the first four letters of the file names:
  polyadic prepare folder recordings my.store --seconds 2 \\
    --channel C3 --channel C4 --subject '(....)[^/]*$'
""",
)
@with_options("force json quiet")
def folder(
    common: Common,
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of recordings, searched with its subfolders.")],
    store: _Store,
) -> None:
    """Your own recordings: EDF, BDF, WFDB, BrainVision, EEGLAB, FIF and table files in a folder and its subfolders."""
    from polyadic.data.reading import Reading

    common.tell(describe_store(write_recordings(root, store, Reading(**common.given), common, force=common.force)))


@app.command(cls=Command, epilog="[bold]Example[/bold]\n\n  polyadic prepare arrays windows.npz my.store --fs 100\n")
@with_options("force json quiet", reading=())
def arrays(
    common: Common,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="File (.npz, .npy, .mat) with X (windows, channels, time).", exists=True),
    ],
    store: _Store,
    fs: Fs = None,
) -> None:
    """Windows from a file of arrays."""
    from polyadic.data.readers.arrays import open_windows
    from polyadic.data.store import write_windows

    common.tell(describe_store(write_windows(open_windows(file, fs=fs), store, force=common.force)))
