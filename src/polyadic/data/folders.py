"""Find the recordings of a folder, also in the BIDS layout, and say why other files are left out."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from polyadic.data.readers import edf, wfdb
from polyadic.data.readers.common import common_ending, ending_of, is_table, stem_of
from polyadic.data.readers.scoring import matches
from polyadic.data.readers.tables import read_heads, read_texts
from polyadic.data.reading import listed
from polyadic.errors import DataError

ENDINGS = (
    *(".edf", ".bdf", ".hea", ".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".feather", ".xlsx"),
    *(".vhdr", ".set", ".fif", ".fif.gz"),
)
"""Extensions of files that can be read as recordings, in lower case."""

_POLYADIC_TABLES = (
    ["subject", "recording", "start"],
    ["recording", "start", "duration", "label"],
    ["measure", "name", "value"],
)
"""First columns, in lower case, of the tables that polyadic writes."""

_METADATA = re.compile(
    r"(?:participants?|subjects?|patients?|people|metadata|meta|demographics|info|readme|sessions|scans|clinical)"
    r"\.(?:[ct]sv(?:\.gz)?|xlsx)|.*_(?:events|channels|electrodes|scans|sessions|coordsystem)\.tsv",
    re.IGNORECASE,
)
_BIDS_RECORDING = re.compile(r"(?:^|/)sub-[^/]+/(?:.*/)?(?:eeg|ieeg)/[^/]+_(?:eeg|ieeg)\.\w+$")
_BIDS_OTHERS = ("derivatives", "sourcedata", "code", "stimuli")
"""Top-level folders of a BIDS dataset without raw recordings."""
_SHOWN = 3
_HIDDEN = "hidden file"


class FolderFiles(NamedTuple):
    """Files of a folder and its subfolders in alphabetical order, and the names of those left out with the reason."""

    files: list[Path]
    left_out: dict[str, str]


def find_files(root: str | os.PathLike[str]) -> FolderFiles:
    """Find all files in a folder and its subfolders, except hidden ones and those in subfolders that cannot be listed.

    Links to files and folders are followed after everything else, but nothing is read twice.
    """
    base = Path(root)
    if not base.is_dir():
        raise DataError(f"{base} is not a folder of recordings" if base.exists() else f"{base} does not exist")
    files, left_out = [], {}
    waiting, links = [base], list[Path]()
    visited: set[str] = set()
    while waiting or links:
        path = waiting.pop() if waiting else links.pop(0)
        name, real = path.relative_to(base).as_posix(), os.path.realpath(path)
        if real in visited:
            left_out[name] = f"a link to a {'folder' if path.is_dir() else 'file'} that is already read"
            continue
        visited.add(real)
        if not path.is_dir():
            files.append(path)  # if the link is broken, its reader raises the error
            continue
        try:
            entries = sorted(path.iterdir())
        except OSError as error:
            left_out[name] = f"cannot be listed: {error.strerror}"
            continue
        for entry in entries:
            if entry.name.startswith("."):
                left_out[entry.relative_to(base).as_posix()] = "hidden folder" if entry.is_dir() else _HIDDEN
            else:
                (links if entry.is_symlink() else waiting).append(entry)
    return FolderFiles(sorted(files), dict(sorted(left_out.items())))


def find_recordings(
    root: str | os.PathLike[str], pattern: str | None = None, scoring: str | None = None
) -> FolderFiles:
    """Find the files in a folder and its subfolders that can be read as recordings; `root` can also be one file.

    `pattern` selects recordings by their path relative to the folder; files that match `scoring` have labels. Tables of
    metadata, tables written by polyadic and files of other formats are left out. In a BIDS dataset, only raw EEG and
    iEEG files are recordings.
    """
    base = Path(root)
    if base.exists() and not base.is_dir():
        return FolderFiles([base], {})
    every, left_out = find_files(base)
    left_out = {name: why for name, why in left_out.items() if why != _HIDDEN or ending_of(Path(name)) in ENDINGS}
    names = {path: path.relative_to(base).as_posix() for path in every}
    layout = is_bids(base)
    known = [path for path in every if ending_of(path) in ENDINGS]
    found = [
        path
        for path in known
        if (pattern is None or matches(names[path], pattern))
        and not matches(names[path], scoring)
        and (not layout or (names[path].split("/")[0] not in _BIDS_OTHERS and _BIDS_RECORDING.search(names[path])))
        and path.name != "participants.tsv"  # known, and read where it is needed
    ]
    reasons = {path: reason for path in found if (reason := _why_no_recording(path))}
    reasons |= dict.fromkeys(edf.find_copies(found), "a copy with labels, written by polyadic")
    segments = wfdb.find_segments(path for path in found if ending_of(path) == ".hea")
    reasons |= {segment: f"a segment of {record}, read as part of it" for segment, record in segments.items()}
    left_out |= {names[path]: reason for path, reason in reasons.items()}
    files = [path for path in found if path not in reasons]
    unread = [] if layout or pattern is not None else [names[path] for path in _unread(every, known)]
    if unread := [name for name in unread if not matches(name, scoring)]:
        more = f" and {len(unread) - _SHOWN:,} more" if len(unread) > _SHOWN else ""
        left_out[", ".join(unread[:_SHOWN]) + more] = "not in a format that polyadic reads as recordings"
    if not files:
        wanted = f"{', '.join(ENDINGS)}{f' that match --pattern {pattern!r}' if pattern else ''}"
        skipped = "".join(f"; left out {name}: {reason}" for name, reason in list(left_out.items())[:_SHOWN])
        raise DataError(f"No recordings found in {base} (looked for {wanted}){skipped}")
    return FolderFiles(files, dict(sorted(left_out.items())))


def _unread(files: Sequence[Path], recordings: Sequence[Path]) -> list[Path]:
    """Return the files that are neither recordings nor belong to one of their folder: signals, markers, annotations."""
    stems = {path.parent / stem_of(path) for path in recordings}
    headers = {path.parent for path in recordings if ending_of(path) == ".hea"}

    def belongs(path: Path) -> bool:
        signals = path.parent in headers and path.suffix.lower() in (".dat", ".mat")
        return signals or any(path.parent / path.name[: dot.start()] in stems for dot in re.finditer(r"\.", path.name))

    return [path for path in files if not belongs(path)]


def _why_no_recording(path: Path) -> str:
    """Return why a file is not a recording, or an empty string if it may be one."""
    whole = re.sub(r"-\d+(?=\.fif)", "", path.name)
    if whole != path.name and path.with_name(whole).exists():
        return f"a part of {whole}, read with it"
    if not is_table(path) or not path.is_file():
        return ""
    if _METADATA.fullmatch(path.name):
        return "a table of metadata, by its name"
    heads = [head.lower() for head in read_heads(path)]
    if {"onset", "duration"} <= set(heads):
        return f"a table of events: use --scoring '*{common_ending(path.name)}' to read labels from it"
    return "a table written by polyadic" if any(heads[: len(own)] == own for own in _POLYADIC_TABLES) else ""


# --------------------------------------------------------------------------------------------------------------- BIDS


def is_bids(root: Path) -> bool:
    """Return whether a folder is the root of a BIDS dataset."""
    return (root / "dataset_description.json").is_file()


def bids_bad_channels(path: Path) -> list[str]:
    """Return the channels of a recording whose status is "bad" in its channels.tsv."""
    table = bids_table(path, "channels.tsv")
    if table is None or not {"name", "status"} <= set(read_heads(table)):
        return []
    return [row["name"] for row in read_texts(table).to_dict("records") if row["status"].lower() == "bad"]


def bids_table(path: Path, kind: str) -> Path | None:
    """Return the table that belongs to a BIDS recording, such as its "events.tsv", or None."""
    table = path.with_name(re.sub(r"_(?:eeg|ieeg)$", f"_{kind}", stem_of(path)))
    return table if table.is_file() else None


def read_participants(root: Path) -> dict[str, dict[str, str]]:
    """Return the rows of participants.tsv by participant, without "sub-"; empty if there is no such table."""
    path = root / "participants.tsv"
    if "participant_id" not in (read_heads(path) if path.is_file() else ()):
        return {}
    people: dict[str, tuple[int, dict[str, str]]] = {}
    for number, row in enumerate(read_texts(path).to_dict("records"), 2):
        first, known = people.setdefault(row["participant_id"].removeprefix("sub-"), (number, row))
        if differing := [column for column in known if known[column] != row[column] and column != "participant_id"]:
            raise DataError(
                f"participants.tsv: rows {first} and {number} both describe {row['participant_id']!r} and differ in "
                f"{listed(differing)}: remove one of them"
            )
    return {name: row for name, (_, row) in people.items()}
