"""`polyadic prepare` and `polyadic verify`: write stores of windows, and verify their checksums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic._util.terminal import echo, print_json
from polyadic.cli.manual import Manual
from polyadic.cli.options import JsonOption, OnError, QuietOption, SettingsOption
from polyadic.cli.reading import reads_recordings
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.data import WindowStore
    from polyadic.data.store import Added

__all__ = ["VERIFY_EXAMPLES", "app", "summary", "verify"]

_EXAMPLE = "[bold]Example[/bold]\n\n  "

VERIFY_EXAMPLES = f"{_EXAMPLE}polyadic verify sleep.store\n"

app = typer.Typer(
    cls=Manual,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Cut recordings into a store of windows.\n\n"
    "A store is a folder of windows on disk, with subjects, labels and times. A fit reads it batch by batch, so "
    "memory use does not grow with the data. To resume an interrupted command, run it again.",
    epilog="""
[bold]Examples[/bold]

  polyadic prepare folder recordings my.store --seconds 30
  polyadic prepare sleep-edf sleep-edfx sleep.store --download
  polyadic prepare arrays windows.npz my.store --fs 100
""",
)


_Store = Annotated[Path, typer.Argument(metavar="STORE", help="Store (folder) to write.")]
_Root = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the data set, in its published layout.")]
_OnError = Annotated[
    OnError, typer.Option(help="Stop at a recording that cannot be read, or skip it and list it in the store.")
]
_Append = Annotated[bool, typer.Option("--append", help="Add new recordings to a complete store.")]
_Download = Annotated[bool, typer.Option("--download", help="First download missing files into the folder.")]
_Mirror = Annotated[str | None, typer.Option(metavar="URL", help="With --download: URL of a mirror.")]


@app.command(
    "sleep-edf",
    epilog="""
[bold]Examples[/bold]

  polyadic prepare sleep-edf sleep-edfx sleep.store --on-error skip
  polyadic prepare sleep-edf sleep-edfx sleep.store --download
""",
)
def sleep_edf(
    root: _Root,
    store: _Store,
    trim: Annotated[
        float | None,
        typer.Option(min=0.0, help="Minutes of wake to keep before and after sleep. Default: all."),
    ] = None,
    download: _Download = False,
    mirror: _Mirror = None,
    on_error: _OnError = OnError.RAISE,
    append: _Append = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Sleep-EDF Expanded: 30 s windows of seven signals at 100 Hz; five sleep stages."""
    from polyadic.data import datasets

    _fetch("sleep_edf", root, download, quiet or json, mirror)
    _write(datasets.sleep_edf, root, store, quiet, json, trim=trim, on_error=on_error.value, append=append)


@app.command("ptb-xl", epilog=f"{_EXAMPLE}polyadic prepare ptb-xl ptb-xl-1.0.3 ecg.store\n")
def ptb_xl(
    root: _Root,
    store: _Store,
    download: _Download = False,
    mirror: _Mirror = None,
    on_error: _OnError = OnError.RAISE,
    append: _Append = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """PTB-XL: 10 s windows of twelve leads at 500 Hz; the class is the sex of the patient."""
    from polyadic.data import datasets

    _fetch("ptb_xl", root, download, quiet or json, mirror)
    _write(datasets.ptb_xl, root, store, quiet, json, on_error=on_error.value, append=append)


@app.command("mgh", epilog=f"{_EXAMPLE}polyadic prepare mgh challenge-2018/training mgh.store\n")
def mgh(
    root: _Root,
    store: _Store,
    download: Annotated[
        bool, typer.Option("--download", help="The data are not public: print whom to ask for access.")
    ] = False,
    on_error: _OnError = OnError.RAISE,
    append: _Append = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """MGH sleep, in the layout of the PhysioNet/CinC Challenge 2018: 30 s windows of six EEG channels at 200 Hz."""
    from polyadic.data import datasets

    _fetch("mgh", root, download, quiet or json)
    _write(datasets.mgh, root, store, quiet, json, on_error=on_error.value, append=append)


@app.command("har", epilog=f"{_EXAMPLE}polyadic prepare har 'UCI HAR Dataset' har.store\n")
def har(
    root: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder 'UCI HAR Dataset', its parent folder, or the zip file.")
    ],
    store: _Store,
    download: _Download = False,
    mirror: _Mirror = None,
    append: _Append = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """UCI HAR: windows of 128 samples of nine channels at 50 Hz; six activities."""
    from polyadic.data import datasets

    root = _fetch("har", root, download, quiet or json, mirror)
    _write(datasets.har, root, store, quiet, json, append=append)


@app.command(
    "folder",
    epilog="""
[bold]Examples[/bold]

All EDF files below a folder, in windows of 30 s, labelled by their annotations:
  polyadic prepare folder recordings my.store --seconds 30 \\
    --class "Sleep stage W" --class "Sleep stage R"

Hypnograms in separate files, with stages 3 and 4 as one class:
  polyadic prepare folder sleep-edfx my.store --seconds 30 \\
    --scoring '*-Hypnogram.edf' --class "N3=Sleep stage 3|Sleep stage 4"

Two channels, and subjects from the first four letters of the file names:
  polyadic prepare folder recordings my.store --seconds 2 \\
    --channel C3 --channel C4 --subject '(....)[^/]*$'
""",
)
@reads_recordings
def folder(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of recordings, searched with its subfolders.")],
    store: _Store,
    on_error: _OnError = OnError.RAISE,
    append: _Append = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Your own recordings: EDF, BDF, WFDB, BrainVision, EEGLAB, FIF and table files in a folder and its subfolders."""
    from polyadic.data.cutting import write_store
    from polyadic.data.reading import Reading

    _write(
        partial(write_store, reading=Reading(**given)),
        root,
        store,
        quiet,
        json,
        on_error=on_error.value,
        append=append,
    )


@app.command("arrays", epilog=f"{_EXAMPLE}polyadic prepare arrays windows.npz my.store --fs 100\n")
def arrays(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help=".npz, .npy or .mat file with X of shape (windows, channels, time).", exists=True
        ),
    ],
    store: _Store,
    fs: Annotated[
        float | None, typer.Option(min=0.0, metavar="HZ", help="Sampling rate, if the file does not contain it.")
    ] = None,
    append: _Append = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Windows from a file of arrays."""
    from polyadic.data.prepare import write_windows
    from polyadic.data.readers.arrays import open_windows

    _write(write_windows, open_windows(file, fs=fs), store, quiet, json, append=append)


def verify(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="Store (folder of windows) to verify.", exists=True, file_okay=False)
    ],
    settings: SettingsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Verify the checksums of a store."""
    from polyadic._util.progress import file_bar
    from polyadic.data import WindowStore

    opened = WindowStore(store)
    with file_bar("verifying", quiet or json) as update:
        read = 0

        def on_shard(number: int, size: int) -> None:
            nonlocal read
            read += size
            update(opened.shards[number - 1].name, number, len(opened.shards), 0, read)

        opened.verify(on_shard)
    if json:
        print_json(
            {"store": store.name, "windows": len(opened), "shards": len(opened.shards), "checksum": opened.checksum}
        )
        return
    shards = _count(len(opened.shards), "shard")
    echo(f"{store.name}: {_count(len(opened), 'window')} in {shards}, all checksums match")


def _fetch(name: str, root: Path, wanted: bool, quiet: bool, mirror: str | None = None) -> Path:
    """Download a dataset into its folder, after showing its title, size, licence and citation."""
    if not wanted:
        return root
    from polyadic._util.progress import file_bar
    from polyadic.data.download import download, sources

    for source in sources():
        if source.name == name:
            echo(f"{source.title}, about {source.bytes / 1e9:.1f} GB, licence: {source.licence}", err=True)
            echo(f"Please cite {source.citation}", err=True)
    with file_bar("fetching", quiet) as update:
        sizes: dict[str, int] = {}

        def on_bytes(file: str, number: int, total: int, size: int) -> None:
            sizes[file] = size
            update(file.rpartition("/")[2], number, total, 0, sum(sizes.values()))

        return download(name, root, base=mirror, progress=on_bytes)


def _write(make: Callable[..., WindowStore], source: Any, store: Path, quiet: bool, json: bool, **options: Any) -> None:
    """Write a store with a progress bar, and print a summary."""
    from polyadic._util.progress import file_bar

    try:
        with file_bar("preparing", quiet or json) as update:
            written = make(source, store, progress=update, **options)
    except KeyboardInterrupt as stop:
        stop.args = (f"run the same command again to resume {store.name}",)
        raise
    except PolyadicError as error:
        if "on_error" in options and options["on_error"] == "raise" and type(error).__name__ == "DataError":
            raise type(error)(f"{error}\n(--on-error skip skips such recordings)") from error
        raise
    if json:
        print_json(summary(written))
        return
    for line in (*_lines(written), *written.notes):
        echo(line)


def summary(store: WindowStore) -> dict[str, Any]:
    """Return the contents of a store in numbers, as JSON values."""
    import numpy as np

    counts = np.bincount(store.index.label[store.index.label >= 0], minlength=len(store.classes))
    return {
        "store": store.path.name,
        "windows": len(store),
        "channels": list(store.channels),
        "length": store.header.length,
        "fs": store.fs,
        "dtype": store.header.dtype,
        "recordings": len(store.recordings),
        "subjects": store.index.n_subjects,
        "subjects_from": store.index.subjects_from,
        "classes": {name: int(count) for name, count in zip(store.classes, counts, strict=True)},
        "incomplete": sum(int(recording.get("incomplete", 0)) for recording in store.recordings),
        "skipped": store.skipped,
        "quality": store.quality(),
        "checksum": store.checksum,
        "notes": list(store.notes),
        **({} if store.added is None else {"added": store.added._asdict()}),
    }


def _lines(store: WindowStore) -> list[str]:
    facts = summary(store)
    lines = [
        f"{facts['store']}: {_count(facts['windows'], 'window')} of {_count(len(store.channels), 'channel')} × "
        f"{store.header.length} samples at {store.fs:g} Hz ({store.header.dtype}), "
        f"{_count(facts['recordings'], 'recording')} of {store.index.describe_subjects()}"
    ]
    if store.added is not None:
        lines.append(_added_line(store.added))
    if store.classes:
        total = max(sum(facts["classes"].values()), 1)
        shares = (f"{name} {100 * count / total:.1f} %" for name, count in facts["classes"].items())
        lines.append(f"classes: {', '.join(shares)}")
    if facts["incomplete"]:
        lines.append(f"left out: {_count(facts['incomplete'], 'window')} with missing values")
    for kind, channels in facts["quality"].items():
        named = ", ".join(f"{channel} ({count})" for channel, count in channels.items())
        lines.append(f"{kind} samples, by channel (number of recordings): {named}")
    if store.skipped:
        by_reason: dict[str, list[str]] = {}
        for entry in store.skipped:
            by_reason.setdefault(entry["reason"], []).append(entry["name"])
        count = len(store.skipped)
        lines.append(f"left out {count:,} {'files or folders' if count != 1 else 'file or folder'}:")
        lines += [f"  {', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    return lines


def _added_line(added: Added) -> str:
    line = f"added {_count(added.windows, 'window')} of {_count(added.recordings, 'recording')}"
    if added.present:
        line += f"; {_count(added.present, 'recording')} {'were' if added.present != 1 else 'was'} already there"
    return line


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
