"""Check before any work that `--out` is writable and does not overwrite an input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyadic._util.files import check_output
from polyadic.errors import PolyadicError

__all__ = ["check_out_file", "check_out_folder"]

_BESIDE_HEADER = (".dat", ".mat", ".atr", ".arousal")
"""Extensions of files that belong to a WFDB header of the same name: signals and annotations."""


def check_out_file(
    out: Path, *inputs: Path | None, endings: Sequence[str] = (), force: bool = True, option: str = "--out"
) -> None:
    """Raise if an output file cannot be written, or would overwrite an input or another file.

    Parameters
    ----------
    inputs : files and folders that the command reads; None if not given
    endings : allowed extensions; any if empty
    force : whether to replace a file of the same kind
    option : name of the option, for messages
    """
    if out.is_dir():
        raise PolyadicError(f"--out must be a file, but {out} is a folder")
    if not out.resolve().parent.is_dir():
        raise PolyadicError(f"--out must be in an existing folder, but {out.parent} does not exist")
    for given in inputs:
        if given is not None:
            _check_apart(out, given)
    if endings and out.suffix.lower() not in endings:
        *first, last = endings
        named = f"{', '.join(first)} or {last}" if first else last
        raise PolyadicError(f"{option} must end in {named}, but is {out.name}")
    if out.exists() and not force:
        raise PolyadicError(f"{option}: {out.name} already exists: use --force to overwrite it, or choose another name")
    if endings and out.exists() and not _is_of_kind(out):
        raise PolyadicError(
            f"{option}: {out.name} already exists and is not a {out.suffix} file written by polyadic: choose another "
            "name"
        )
    check_output(out)


_BEGINNINGS = {
    ".npy": (b"\x93NUMPY",),
    ".png": (b"\x89PNG",),
    ".pdf": (b"%PDF",),
    ".svg": (b"<?xml", b"<svg"),
    ".html": (b"<!doctype html", b"<html"),
    ".htm": (b"<!doctype html", b"<html"),
    ".csv": (b"subject,recording,start", b"measure,name,value", b"n_fft,hop,parts"),
    ".json": (b'{\n "settings"',),
    ".tsv": (b"onset\tduration\ttrial_type",),
}
"""First bytes of the files that commands write, by extension, in lower case."""


def _is_of_kind(path: Path) -> bool:
    """Whether a file has the format of its extension, as written by a command; an empty file passes."""
    with path.open("rb") as file:
        head = file.read(4096)
    if not head:
        return True
    if path.suffix.lower() == ".safetensors":
        return b'"polyadic"' in head[:4096] or b"__metadata__" in head
    if path.suffix.lower() in (".edf", ".bdf"):
        from polyadic.data.readers.edf import is_marked

        return is_marked(path)
    if path.suffix.lower() == ".atr":
        from polyadic.data.readers.wfdb import is_annotations

        return is_annotations(path)
    if path.suffix.lower() in (".c", ".h", ".onnx"):
        return b"polyadic" in head.lower()
    known = _BEGINNINGS.get(path.suffix.lower())
    return known is None or head.lower().lstrip(b"\xef\xbb\xbf").startswith(tuple(one.lower() for one in known))


def check_out_folder(out: Path, *inputs: Path | None, option: str = "--out") -> None:
    """Raise if an output folder cannot be written to, or is a store that the command reads.

    Parameters
    ----------
    inputs : as for `check_out_file`
    option : name of the option, for messages
    """
    for given in inputs:
        if given is not None and given.is_dir() and out.resolve().is_relative_to(given.resolve()) and _is_store(given):
            raise PolyadicError(f"{option} {out} is the store {given.name} or a folder in it: choose another folder")
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if existing == out and not out.is_dir():
        raise PolyadicError(f"{option} must be a folder, but {out} is a file")
    check_output(existing / "polyadic-output")


def _check_apart(out: Path, given: Path) -> None:
    if given.is_dir():
        inside = out.resolve().is_relative_to(given.resolve())
        if inside and _is_store(given):
            raise PolyadicError(
                f"--out is inside the store {given.name}, which this command reads: choose another folder"
            )
        own = out.suffix.lower() in (".csv", ".tsv", ".edf", ".bdf") and out.exists() and _is_of_kind(out)
        if out.exists() and _is_recording(out) and not own and (inside or _has_link_to(out, given)):
            raise PolyadicError(f"--out would overwrite {out.name}, a recording in {given.name}: choose another name")
        return
    companions = [given.with_suffix(ending) for ending in _BESIDE_HEADER] if given.suffix.lower() == ".hea" else []
    for path in (given, *companions):
        if out.exists() and path.exists() and out.samefile(path):
            raise PolyadicError(f"--out would overwrite {path.name}, which this command reads: choose another name")


def _is_store(folder: Path) -> bool:
    from polyadic.data.store import is_store

    return is_store(folder)


def _has_link_to(file: Path, folder: Path) -> bool:
    return any(path.exists() and path.samefile(file) for path in folder.rglob(f"*{file.suffix}"))


def _is_recording(path: Path) -> bool:
    from polyadic.data.folders import ENDINGS
    from polyadic.data.readers.common import ending_of

    return ending_of(path) in (*ENDINGS, *_BESIDE_HEADER)
