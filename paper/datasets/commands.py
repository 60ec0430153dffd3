"""`python -m paper prepare`: download the paper's data sets, and write stores of their windows."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from paper import datasets
from paper.datasets.download import SOURCES, download
from paper.results import stage_bar


class DatasetName(StrEnum):
    """The paper's data sets."""

    HAR = "har"
    SLEEP_EDF = "sleep-edf"
    PTB_XL = "ptb-xl"
    MGH = "mgh"


def prepare(
    dataset: Annotated[DatasetName, typer.Argument(metavar="DATASET", help="har, sleep-edf, ptb-xl or mgh.")],
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the data set, in its published layout.")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Store (folder) to write.")],
    trim: Annotated[
        float | None, typer.Option(min=0.0, help="sleep-edf: minutes of wake to keep before and after sleep.")
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Skip recordings that cannot be read, and list them in the store.")
    ] = False,
    fetch: Annotated[bool, typer.Option("--download", help="First download missing files into the folder.")] = False,
    mirror: Annotated[str | None, typer.Option(metavar="URL", help="With --download: URL of a mirror.")] = None,
) -> None:
    """Write a store of windows from a data set in its published layout. For har, FOLDER may be the zip file."""
    name = dataset.value.replace("-", "_")
    if fetch:
        if name in SOURCES:
            source = SOURCES[name]
            typer.echo(f"{source.title}, about {source.bytes / 1e9:.1f} GB, licence: {source.licence}", err=True)
            typer.echo(f"Please cite {source.citation}", err=True)
        with stage_bar("fetching", unit="files") as update:
            root = download(name, root, base=mirror, progress=update)
    options: dict[str, Any] = {"trim": trim} if name == "sleep_edf" else {}
    with stage_bar("preparing", unit="recordings") as update:
        if name != "har":
            options |= {"progress": update, "on_error": "skip" if skip else "raise"}
        written = getattr(datasets, name)(root, store, **options)
    channels, length = written.shape[1:]
    size = f"{len(written):,} windows of {channels} channels × {length} samples at {written.fs:g} Hz"
    typer.echo(f"{written.path.name}: {size}")
    for entry in written.skipped:
        typer.echo(f"left out {entry['name']}: {entry['reason']}")
