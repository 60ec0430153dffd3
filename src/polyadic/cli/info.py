"""`polyadic info`: describe a file or folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyadic._util.files import check_regular_file
from polyadic.cli.options import Common, option, with_options
from polyadic.cli.windows import by_reason
from polyadic.errors import PolyadicError

if TYPE_CHECKING:
    from polyadic.data import Windows, WindowStore

EXAMPLES = """
  polyadic info model.safetensors
  polyadic info night.edf
  polyadic info sleep.store --json

Read a whole store and compare it with its checksums:
  polyadic info sleep.store --verify
"""

_STORE = "store of windows"
_READ_BYTES = 2**30
"""Bytes of samples of a folder that are read, besides its first recording, to find flat channels."""
Facts = dict[str, Any]


@with_options("json", reading=("channels", "fs", "resample", "label", "subject", "time"))
def info(
    common: Common,
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A model, store, arrays, moments, recording or folder.", exists=True),
    ],
    verify: Annotated[bool, option("Compare a store with its checksums.", "--verify")] = False,
) -> None:
    """Describe a file or folder: a model, store, recording, arrays or moments.

    Shows shapes, channels, labels, settings and size.
    """
    facts = describe(path, common.given)
    if verify:
        if facts["kind"] != _STORE:
            raise PolyadicError(f"--verify is for stores, but {path.name} is not one: other files have no checksums")
        from polyadic.data import WindowStore

        WindowStore(path).verify()
        facts["verified"] = "all checksums match"
    common.tell(facts)


def describe(path: Path, given: Mapping[str, Any]) -> Facts:
    """Return the contents of a file or folder as JSON values; `kind` says what it is.

    `given` has the fields of a `Reading` that were set; they apply to recordings.
    """
    if path.is_dir():
        return {"path": path.name or path.absolute().name, **_folder(path, given)}
    check_regular_file(path)
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.arrays import ARRAYS, open_windows
    from polyadic.data.readers.common import ending_of

    ending = ending_of(path)
    if ending in (".safetensors", ".moments"):
        facts = _model_file(path)
    elif ending in ARRAYS:
        facts = {"kind": "windows in arrays", **_windows(open_windows(path))}
    elif ending in ENDINGS:
        facts = _recording(path, given)
    else:
        known = ", ".join(sorted((".safetensors", ".moments", *ARRAYS, *ENDINGS)))
        raise PolyadicError(f"{path.name} is not a file that polyadic reads: known extensions are {known}")
    return {"path": path.name, **facts, "bytes": path.stat().st_size}


# ------------------------------------------------------------------------------------------ models, moments, windows


def _model_file(path: Path) -> Facts:
    """Describe a model, or the sums of `polyadic moments`, by the header and the shapes of the arrays."""
    from polyadic._util import model_files

    arrays, header = model_files.read(path)
    header = {name: value for name, value in header.items() if value is not None}
    facts = {name: header.get(name) for name in ("reading", "tensorize", "version")}
    if "moments" in header:
        sites = list(header["sites"].values())
        return {
            "kind": "sums over windows",
            "stage": header["moments"],
            **{name: sum(site[name] for site in sites) for name in ("windows", "subjects")},
            "sites": [site["name"] for site in sites],
            "groups": len(header["groups"]),
            **header["windows"],
            **facts,
        }
    parameters, losses = header.get("parameters", {}), header.get("history", {}).get("loss", [])
    return {
        "kind": "model",
        "rank": parameters.get("rank"),
        "window": header.get("sample_shape"),
        **{name: header.get(name) for name in ("estimator", "fs", "channels", "seed")},
        "classes": header.get("probe", {}).get("classes"),
        "sweeps": len(losses),
        "loss": losses[-1] if losses else None,
        "settings": parameters,
        "arrays": {name: f"{' × '.join(map(str, array.shape))} {array.dtype}" for name, array in arrays.items()},
        **facts,
    }


def _windows(windows: Windows) -> Facts:
    counts = Counter(windows.label.tolist())
    return {
        "shape": list(windows.shape),
        "seconds": None if windows.fs is None else windows.shape[2] / windows.fs,
        "channels": list(windows.channels),
        "fs": windows.fs,
        "subjects": windows.index.n_subjects,
        "subjects_from": windows.index.subjects_from,
        "classes": {name: counts[code] for code, name in enumerate(windows.classes)},
    }


def describe_store(store: WindowStore) -> Facts:
    """Return the contents of a store in numbers, as JSON values."""
    from polyadic.data.subjects import note_on_files

    return {
        "path": store.path.name,
        "kind": _STORE,
        "recordings": len(store.recordings),
        **_windows(store.windows),
        "windows_without_any_sample": sum(int(recording["empty"]) for recording in store.recordings) or None,
        "left_out": by_reason({entry["name"]: entry["reason"] for entry in store.skipped}),
        "quality": store.quality(),
        "notes": [*store.notes, *filter(None, [note_on_files(store.index)])],
        "dataset": store.dataset,
        "settings": store.settings,
        "checksum": store.checksum,
        "bytes": sum(file.stat().st_size for file in store.path.iterdir()),
    }


# -------------------------------------------------------------------------------------------- folders and recordings


def _folder(path: Path, given: Mapping[str, Any]) -> Facts:
    """Describe a store, or a folder of recordings: the first one, and rates, channels and labels of all.

    `rates` and `annotated` count recordings; `lacking` names those that lack a channel that others have.
    """
    from polyadic.data import WindowStore
    from polyadic.data.folders import find_recordings
    from polyadic.data.store import is_store
    from polyadic.data.subjects import find_subject, join_sources

    if is_store(path):
        return describe_store(WindowStore(path))
    files, left_out = find_recordings(path)
    names = {file: file.relative_to(path).as_posix() for file in files}
    subjects = [find_subject(name, root=path.absolute().name) for name in names.values()]
    described, unreadable, size = dict[str, Facts](), dict[str, str](), 0
    for file, name in names.items():
        if described and size > _READ_BYTES:
            break
        try:
            found = described[name] = _recording(file, given)
            size += 4 * found.get("samples", 0) * len(found.get("channels", ()))
        except (PolyadicError, OSError) as error:
            unreadable[name] = str(error)
    flat = dict[str, list[str]]()
    for name, facts in described.items():
        for channel in facts.get("flat_channels", ()):
            flat.setdefault(channel, []).append(name)
    signals = {name: facts for name, facts in described.items() if "channels" in facts}
    everywhere = dict.fromkeys(channel for facts in signals.values() for channel in facts["channels"])
    lacking = {
        channel: [name for name, facts in signals.items() if channel not in facts["channels"]] for channel in everywhere
    }
    unread = len(files) - len(described) - len(unreadable)
    return {
        "kind": "folder of recordings",
        "recordings": len(files),
        "subjects": len({subject.name for subject in subjects}),
        "subjects_from": join_sources(subject.source for subject in subjects),
        "left_out": by_reason(left_out),
        "bytes": sum(file.stat().st_size for file in files if file.exists()),
        "unreadable": by_reason(unreadable),
        "rates": dict(Counter(f"{facts['fs']:g} Hz" for facts in signals.values())),
        "lacking": {channel: places for channel, places in lacking.items() if places},
        "annotated": dict(Counter(text for facts in described.values() for text in facts["annotations"])),
        "flat_channels": flat,
        "not_checked": f"{unread:,} recordings after the first {size / 1e6:,.0f} MB of samples" if unread else None,
        "first_recording": next(({"file": name, **facts} for name, facts in described.items()), None),
    }


def _recording(path: Path, given: Mapping[str, Any]) -> Facts:
    import numpy as np

    from polyadic.data.loading import open_signals
    from polyadic.data.readers.common import is_table, stem_of
    from polyadic.data.readers.edf import EdfFile
    from polyadic.data.readers.tables import read_table
    from polyadic.data.reading import Reading

    columns, rates = Facts(), dict[str, float]()
    if is_table(path):
        parts, reading = read_table(path, Reading(**given), stem_of(path), guess=True)
        columns = {"label": reading.label, "subject": reading.subject_column}
    else:
        file = open_signals(path)
        rates = file.rates
        if isinstance(file, EdfFile) and not rates:
            return {"kind": "annotations", "annotations": dict(Counter(note.text for note in file.annotations))}
        several = set(rates.values())
        whole = all(max(several) % rate == 0 for rate in several)
        how = given.get("resample", ("hold" if whole else "polyphase") if len(several) > 1 else None)
        parts = [file.read(given.get("channels"), resample=how).in_memory()]
    found, samples = parts[0], sum(part.signal.shape[1] for part in parts)
    constant = [np.fmin.reduce(part.signal, axis=1) == np.fmax.reduce(part.signal, axis=1) for part in parts]
    units = zip(found.channels, found.units, strict=True)
    return {
        "kind": "recording",
        "channels": list(found.channels),
        "fs": found.fs,
        "rates": {name: f"{rates.get(name, found.fs):g} Hz, {unit or 'no unit'}" for name, unit in units},
        "seconds": samples / found.fs,
        "samples": samples,
        "type": str(found.signal.dtype),
        "flat_channels": [name for name, *flat in zip(found.channels, *constant, strict=True) if any(flat)],
        "began": found.began,
        **columns,
        "annotations": dict(Counter(note.text for part in parts for note in part.annotations)),
    }
