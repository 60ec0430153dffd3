"""`polyadic info`: describe a file or folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic._util.files import check_regular_file
from polyadic._util.terminal import console, print_json, print_notes, printable
from polyadic.cli import options
from polyadic.cli.windows import files_by_reason, scarcities
from polyadic.errors import DataError, PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows, WindowStore
    from polyadic.data.recordings import Recording

EXAMPLES = """
[bold]Examples[/bold]

  polyadic info model.safetensors
  polyadic info night.edf
  polyadic info sleep.store --json

Read a whole store and compare it with its checksums:
  polyadic info sleep.store --verify
"""

_SHOWN = 12
"""Maximum number of items of a list that are shown; --json has all."""
_COUNTED = (
    "factors.",
    *(f"readout.{name}" for name in ("matrix", "centre", "statistic_mean", "statistic_scale", "statistic_axes")),
)
"""Beginnings of the names of the arrays that `n_parameters_` counts."""
_STORE = "store of windows"
Facts = dict[str, Any]


@options.with_options("json", reading=("channels", "fs", "resample", "label", "subject", "time"))
def info(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A model, a store, arrays, moments, a table, a recording or a folder of recordings.",
            exists=True,
        ),
    ],
    verify: Annotated[bool, typer.Option("--verify", help="Compare a store with its checksums.")] = False,
    *,
    common: options.Common,
) -> None:
    """Describe a file or folder: a model, store, recording, arrays or moments.

    Shows shapes, channels, labels, settings and size.
    """
    facts = describe(path, common.given)
    if verify:
        if facts["kind"] != _STORE:
            raise PolyadicError(f"--verify is for stores, but {path.name} is not one: other files have no checksums")
        from polyadic.data import WindowStore

        with console(err=True).status(f"verifying {printable(path.name)}"):
            WindowStore(path).verify()
        facts["verified"] = "all checksums match"
    if common.json:
        print_json(facts)
    else:
        show(facts)


def show(facts: Facts) -> None:
    """Print a description as a table, and notes on what a store or folder has too few of."""
    from rich.table import Table
    from rich.text import Text

    if "recordings" in facts:
        names = [name for name, count in facts.get("classes", {}).items() if count]
        print_notes(*scarcities(facts["recordings"], facts["subjects"], names))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        if value not in (None, "", [], {}):
            grid.add_row(name.replace("_", " "), Text(_shown(name, value)))
    console().print(grid)


def _shown(name: str, value: Any) -> str:
    """Format a value for display."""
    if name == "bytes":
        from rich.filesize import decimal

        return decimal(value)
    if name in ("fs", "seconds"):
        return f"{value:g} {'Hz' if name == 'fs' else 's'}"
    if isinstance(value, dict):
        known = {key: item for key, item in value.items() if item not in (None, "", [], {})}
        return ("\n" if name else ", ").join(f"{printable(key)}: {_shown('', item)}" for key, item in known.items())
    if isinstance(value, list):
        if name in ("shape", "window"):
            return " × ".join(f"{side:,}" for side in value)
        words = [_shown("", item) for item in value[:_SHOWN]]
        return ", ".join(words) + (f", … ({len(value):,} in all)" if len(value) > _SHOWN else "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return printable(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def describe(path: Path, given: Mapping[str, Any]) -> Facts:
    """Return the contents of a file or folder as JSON values; `kind` says what it is.

    `given` has the fields of a `Reading` that were set; they apply to recordings.
    """
    if path.is_dir():
        return {"path": path.name or path.absolute().name, **_folder(path, given)}
    check_regular_file(path)
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.arrays import ARRAYS
    from polyadic.data.readers.common import ending_of

    readers: dict[str, Any] = {".safetensors": _model, ".moments": _moments, **dict.fromkeys(ARRAYS, _arrays)}
    readers |= dict.fromkeys(ENDINGS, partial(_recording, given=given)) | {".csv": partial(_table, given=given)}
    read = readers.get(ending_of(path))
    if read is None:
        known = ", ".join(sorted(readers))
        raise PolyadicError(f"{path.name} is not a file that polyadic reads: known extensions are {known}")
    return {"path": path.name, **read(path), "bytes": path.stat().st_size}


# ------------------------------------------------------------------------------------------ models, moments, arrays


def _model(path: Path) -> Facts:
    """Describe a model file by its header and the shapes of its arrays."""
    from polyadic._util import model_files

    arrays, header = model_files.read(path)
    header = {name: value for name, value in header.items() if value is not None}
    parameters, losses = header.get("parameters", {}), header.get("history", {}).get("loss", [])
    mean = header.get("tensorize", {}).get("mean") or []
    learned = sum(array.size for name, array in arrays.items() if name.startswith(_COUNTED)) + sum(map(len, mean))
    return {
        "kind": "model",
        "estimator": header.get("estimator"),
        "rank": parameters.get("rank"),
        "parameters": learned or sum(array.size for array in arrays.values()),
        "window": header.get("sample_shape"),
        **{name: header.get(name) for name in ("fs", "channels")},
        "classes": header.get("probe", {}).get("classes"),
        "probe": "probe" in header,
        "sweeps": len(losses) or None,
        "loss": losses[-1] if losses else None,
        **{name: header.get(name) for name in ("seed", "split", "reading")},
        "settings": _short(parameters),
        "tensorize": _short(header.get("tensorize")),
        "arrays": {name: f"{' × '.join(map(str, array.shape))} {array.dtype}" for name, array in arrays.items()},
        "version": header.get("version"),
    }


def _short(value: Any) -> Any:
    """Return an object as encoded by `persist.encode`, without long lists."""
    import numpy as np

    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return f"{np.size(value):,} values" if isinstance(value, list) and np.size(value) > _SHOWN else value


def _moments(path: Path) -> Facts:
    """Describe the sums over windows in a file written by `polyadic moments`."""
    from polyadic._util import model_files

    _, header = model_files.read(path)
    if "moments" not in header:
        raise PolyadicError(f"{path.name} holds no sums of polyadic moments: is it a model, named .safetensors?")
    sites = list(header["sites"].values())
    return {
        "kind": "sums over windows",
        "stage": header["moments"],
        **{name: sum(site[name] for site in sites) for name in ("windows", "subjects")},
        "sites": [site["name"] for site in sites if site["name"]],
        "groups": len(header["groups"]),
        **{name: value for name, value in header["windows"].items() if name != "units" or any(value)},
        **{name: _short(header[name]) for name in ("reading", "tensorize", "version")},
    }


def _arrays(path: Path) -> Facts:
    from polyadic.data.readers.arrays import open_windows

    return {"kind": "windows in arrays", **_windows(open_windows(path))}


def _windows(windows: Windows) -> Facts:
    import numpy as np

    counts = np.bincount(windows.label[windows.label >= 0], minlength=len(windows.classes))
    return {
        "shape": list(windows.shape),
        "seconds": None if windows.fs is None else windows.shape[2] / windows.fs,
        "channels": list(windows.channels),
        "fs": windows.fs,
        "subjects": windows.index.n_subjects,
        "subjects_from": windows.index.subjects_from,
        "classes": {name: int(count) for name, count in zip(windows.classes, counts, strict=True)},
    }


# -------------------------------------------------------------------------------------------- folders and recordings


def describe_store(store: WindowStore) -> Facts:
    """Return the contents of a store in numbers, as JSON values."""
    return {
        "kind": _STORE,
        "recordings": len(store.recordings),
        **_windows(store.windows),
        "windows_without_any_sample": sum(int(recording["empty"]) for recording in store.recordings) or None,
        "left_out": files_by_reason(store),
        "quality": store.quality(),
        "notes": list(store.notes),
        "dataset": store.dataset,
        "settings": store.settings,
        "checksum": store.checksum,
        "bytes": sum(file.stat().st_size for file in store.path.iterdir()),
    }


def _folder(path: Path, given: Mapping[str, Any]) -> Facts:
    from polyadic.data import WindowStore
    from polyadic.data.folders import find_recordings
    from polyadic.data.store import is_store
    from polyadic.data.subjects import find_subject, join_sources

    if is_store(path):
        return describe_store(WindowStore(path))
    try:
        files, left_out = find_recordings(path, on_error="skip")
    except DataError as error:
        raise PolyadicError(f"{path} is not a store and contains no recordings: {error}") from error
    names = [file.relative_to(path).as_posix() for file in files]
    subjects = [find_subject(name, root=path.absolute().name) for name in names]
    unreadable, first = dict[str, str](), Facts()
    for name, file in zip(names, files, strict=True):
        try:
            first = {"file": name, **_recording(file, given)}
            break
        except DataError as error:
            unreadable[name] = str(error)
    return {
        "kind": "folder of recordings",
        "recordings": len(files),
        "subjects": len({subject.name for subject in subjects}),
        "subjects_from": join_sources(subject.source for subject in subjects),
        "left_out": _by_reason(left_out),
        "bytes": sum(file.stat().st_size for file in files if file.exists()),
        "unreadable": _by_reason(unreadable),
        "first_recording": first,
    }


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names of files by the reason why they are not read, without the file's own name."""
    files: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        files.setdefault(reason.removeprefix(Path(name).name).lstrip(": "), []).append(name)
    return files


def _table(path: Path, given: Mapping[str, Any]) -> Facts:
    """Describe a table written by `transform` or `predict`, or else a recording."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        heads = file.readline().strip().split(",")
        if heads[:3] != ["subject", "recording", "start"] or "label" not in heads[3:5]:
            return _recording(path, given)
        kind = "labels" if "confidence" in heads else "features"
        return {"kind": f"table of {kind}", "columns": heads, "rows": sum(1 for _ in file)}


def _recording(path: Path, given: Mapping[str, Any]) -> Facts:
    import numpy as np

    from polyadic.data import read_recording
    from polyadic.data.loading import open_signals
    from polyadic.data.readers.common import is_table
    from polyadic.data.readers.edf import EdfFile

    columns, file = dict[str, Any](), open_signals(path)
    rates = {} if file is None else file.rates
    if isinstance(file, EdfFile) and not rates:
        return {"kind": "annotations", "annotations": dict(Counter(note.text for note in file.annotations))}
    if is_table(path):
        parts, columns = _read_table(path, given)
    else:
        whole = all(max(rates.values()) % rate == 0 for rate in rates.values())
        mixed = ("hold" if whole else "polyphase") if len(set(rates.values())) > 1 else None
        how = given.get("resample", mixed)
        parts = [read_recording(path, channels=given.get("channels"), resample=how, keep_slow=how)]
    found, samples = parts[0], sum(part.signal.shape[1] for part in parts)
    units = dict(zip(found.channels, found.units, strict=True))
    low, high = np.fmin.reduce(found.signal, axis=1), np.fmax.reduce(found.signal, axis=1)
    return {
        "kind": "recording",
        "channels": list(found.channels),
        "fs": found.fs,
        "rates": {name: f"{rates.get(name, found.fs):g} Hz, {unit or 'no unit'}" for name, unit in units.items()},
        "seconds": samples / found.fs,
        "samples": samples,
        "type": str(found.signal.dtype),
        "flat_channels": [name for name, flat in zip(found.channels, low == high, strict=True) if flat],
        "began": found.began,
        **columns,
        "annotations": dict(Counter(note.text for part in parts for note in part.annotations)),
    }


def _read_table(path: Path, given: Mapping[str, Any]) -> tuple[list[Recording], Facts]:
    """Read a table, and return its recordings and the columns of labels and subjects, which are guessed if need be."""
    from polyadic.data.readers.common import stem_of
    from polyadic.data.readers.tables import read_table, recordings_in
    from polyadic.data.reading import Reading

    frame, reading = read_table(path, Reading(**given), guess=True)
    parts = recordings_in(frame, reading, path.name, stem_of(path), reading.subject_column)
    return parts, {"label": reading.label, "subject": reading.subject_column}
