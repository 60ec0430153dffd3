"""`python -m paper prepare`: download the paper's data sets, and write stores of their windows."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from paper.datasets.download import SOURCES, download
from paper.datasets.har import har as write_har
from paper.datasets.mgh import mgh as write_mgh
from paper.datasets.ptb_xl import ptb_xl as write_ptb_xl
from paper.datasets.sleep_edf import sleep_edf as write_sleep_edf
from paper.results import stage_bar
from polyadic.data import WindowStore

app = typer.Typer(
    no_args_is_help=True,
    help="Write a store of windows from a data set in its published layout.",
)


class _OnError(StrEnum):
    RAISE = "raise"
    SKIP = "skip"


_Root = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the data set, in its published layout.")]
_Store = Annotated[Path, typer.Argument(metavar="STORE", help="Store (folder) to write.")]
_Skip = Annotated[
    _OnError, typer.Option(help="Stop at a recording that cannot be read, or skip it and list it in the store.")
]
_Download = Annotated[bool, typer.Option("--download", help="First download missing files into the folder.")]
_Mirror = Annotated[str | None, typer.Option(metavar="URL", help="With --download: URL of a mirror.")]


@app.command()
def har(root: _Root, store: _Store, download: _Download = False, mirror: _Mirror = None) -> None:
    """UCI HAR: windows of 128 samples of nine channels at 50 Hz; six activities. FOLDER may be the zip file."""
    _describe(write_har(_fetched("har", root, download, mirror), store))


@app.command("sleep-edf")
def sleep_edf(
    root: _Root,
    store: _Store,
    trim: Annotated[
        float | None, typer.Option(min=0.0, help="Minutes of wake to keep before and after sleep. Default: all.")
    ] = None,
    download: _Download = False,
    mirror: _Mirror = None,
    on_error: _Skip = _OnError.RAISE,
) -> None:
    """Sleep-EDF Expanded: 30 s windows of seven signals at 100 Hz; five sleep stages."""
    _write(write_sleep_edf, _fetched("sleep_edf", root, download, mirror), store, trim=trim, on_error=on_error.value)


@app.command("ptb-xl")
def ptb_xl(
    root: _Root,
    store: _Store,
    download: _Download = False,
    mirror: _Mirror = None,
    on_error: _Skip = _OnError.RAISE,
) -> None:
    """PTB-XL: 10 s windows of twelve leads at 500 Hz; the class is the sex of the patient."""
    _write(write_ptb_xl, _fetched("ptb_xl", root, download, mirror), store, on_error=on_error.value)


@app.command()
def mgh(root: _Root, store: _Store, download: _Download = False, on_error: _Skip = _OnError.RAISE) -> None:
    """MGH sleep, in the layout of the PhysioNet/CinC Challenge 2018; not public, --download says whom to ask."""
    _write(write_mgh, _fetched("mgh", root, download, None), store, on_error=on_error.value)


def _fetched(name: str, root: Path, wanted: bool, mirror: str | None) -> Path:
    """Download a data set into its folder, after showing its title, size, licence and citation."""
    if not wanted:
        return root
    if name in SOURCES:
        source = SOURCES[name]
        typer.echo(f"{source.title}, about {source.bytes / 1e9:.1f} GB, licence: {source.licence}", err=True)
        typer.echo(f"Please cite {source.citation}", err=True)
    with stage_bar("fetching", unit="files") as update:
        return download(name, root, base=mirror, progress=update)


def _write(write: Callable[..., WindowStore], root: Path, store: Path, **options: Any) -> None:
    with stage_bar("preparing", unit="recordings") as update:
        written = write(root, store, progress=update, **options)
    _describe(written)


def _describe(store: WindowStore) -> None:
    channels, length = store.shape[1:]
    typer.echo(
        f"{store.path.name}: {len(store):,} windows of {channels} channels × {length} samples at {store.fs:g} Hz"
    )
    for entry in store.skipped:
        typer.echo(f"left out {entry['name']}: {entry['reason']}")
