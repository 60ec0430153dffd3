"""`polyadic prepare`: write stores of windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyadic._util.terminal import print_json, print_notes
from polyadic.cli import options
from polyadic.cli.info import describe_store, show
from polyadic.cli.options import Command, Group
from polyadic.errors import DataError

if TYPE_CHECKING:
    from polyadic.data import WindowStore

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Cut recordings into a store of windows.\n\n"
    "A store is a folder of windows on disk, with subjects, labels and times. A fit reads it batch by batch, so "
    "memory use does not grow with the data.",
    epilog="""
[bold]Examples[/bold]

Recordings, cut into windows of 30 s; or windows in a file of arrays:
  polyadic prepare folder recordings my.store --seconds 30
  polyadic prepare arrays windows.npz my.store --fs 100
""",
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
@options.with_options("force json quiet")
def folder(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of recordings, searched with its subfolders.")],
    store: _Store,
    *,
    common: options.Common,
) -> None:
    """Your own recordings: EDF, BDF, WFDB, BrainVision, EEGLAB, FIF and table files in a folder and its subfolders."""
    from polyadic.data.cutting import write_store
    from polyadic.data.reading import Reading

    given = dict(common.given)
    on_error = given.pop("on_error", "raise")
    make = partial(write_store, root, store, Reading(**given), on_error=on_error, force=common.force)
    try:
        _write(make, common)
    except DataError as error:
        if on_error == "skip":
            raise
        raise DataError(f"{error}\n(--on-error skip skips such recordings)") from error


@app.command(cls=Command, epilog="[bold]Example[/bold]\n\n  polyadic prepare arrays windows.npz my.store --fs 100\n")
@options.with_options("force json quiet", reading=())
def arrays(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help=".npz, .npy or .mat file with X of shape (windows, channels, time).", exists=True
        ),
    ],
    store: _Store,
    fs: options.Fs = None,
    *,
    common: options.Common,
) -> None:
    """Windows from a file of arrays."""
    from polyadic.data.readers.arrays import open_windows
    from polyadic.data.store_writer import write_windows

    _write(partial(write_windows, open_windows(file, fs=fs), store, force=common.force), common)


def _write(make: Callable[..., WindowStore], common: options.Common) -> None:
    """Write a store with a progress bar, and describe it as `polyadic info` does."""
    from polyadic._util.progress import file_bar
    from polyadic.data.subjects import note_on_files

    with file_bar("preparing", common.hidden) as update:
        written = make(progress=update)
    facts = {"path": written.path.name, **describe_store(written)}
    if common.json:
        print_json(facts)
        return
    show(facts)
    print_notes(note_on_files(written.index) or "")
