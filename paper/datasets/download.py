"""Download public datasets file by file, and check each file against its SHA-256.

A file gets its final name only if it is complete and its checksum matches. If a download fails, finished files are
kept, and another call fetches the rest.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import quote, urlsplit

from polyadic._util.files import open_atomically
from polyadic.errors import DataError, MissingExtraError, PolyadicError

__all__ = ["OnBytes", "Source", "download", "sources"]

OnBytes = Callable[[str, int, int, int], None]
"""Called during a download with the file name, its number from 1, the number of files, and the bytes fetched so far."""

_SUMS = "SHA256SUMS.txt"
_SUMS_LARGEST = 64 * 1024**2
_STEP = 1024**2
_WORKERS = 4
"""Number of parallel downloads: for small files, of which PTB-XL has 43,600, most of the time is network latency."""

_PAUSES = (1.0, 5.0)
"""Seconds to wait before each retry of a file."""


@dataclass(frozen=True)
class Source:
    """A published dataset and where it can be downloaded.

    Parameters
    ----------
    name, title : name for `download`, and the title of the publication
    licence : licence of the data
    bytes : approximate size of the download in bytes
    base : URL of its folder
    citation : publication to cite
    """

    name: str
    title: str
    licence: str
    bytes: int
    base: str
    citation: str


_SOURCES = {
    "sleep_edf": Source(
        "sleep_edf",
        "Sleep-EDF Database Expanded 1.0.0, Sleep Cassette",
        "Open Data Commons Attribution License 1.0",
        7_000_000_000,
        "https://physionet.org/files/sleep-edfx/1.0.0/",
        "B. Kemp, A. H. Zwinderman, B. Tuk, H. A. C. Kamphuisen, J. J. L. Oberyé: Analysis of a sleep-dependent "
        "neuronal feedback loop: the slow-wave microcontinuity of the EEG. IEEE Transactions on Biomedical "
        "Engineering 47(9), 1185–1194, 2000",
    ),
    "ptb_xl": Source(
        "ptb_xl",
        "PTB-XL 1.0.3, at 500 Hz",
        "Creative Commons Attribution 4.0",
        2_640_000_000,
        "https://physionet.org/files/ptb-xl/1.0.3/",
        "P. Wagner, N. Strodthoff, R.-D. Bousseljot, D. Kreiseler, F. I. Lunze, W. Samek, T. Schaeffter: PTB-XL, a "
        "large publicly available electrocardiography dataset. Scientific Data 7, 154, 2020",
    ),
    "har": Source(
        "har",
        "Human Activity Recognition Using Smartphones",
        "Creative Commons Attribution 4.0; the README in the archive forbids commercial use",
        61_005_872,
        "https://archive.ics.uci.edu/static/public/240/",
        "D. Anguita, A. Ghio, L. Oneto, X. Parra, J. L. Reyes-Ortiz: A public domain dataset for human activity "
        "recognition using smartphones. European Symposium on Artificial Neural Networks, 2013",
    ),
}

_WANTED = {
    "sleep_edf": ("sleep-cassette/*-PSG.edf", "sleep-cassette/*-Hypnogram.edf"),
    "ptb_xl": ("ptbxl_database.csv", "scp_statements.csv", "RECORDS", "records500/*"),
}
"""Patterns of the files to fetch, among those that PhysioNet lists for a dataset."""

_HAR = {
    "human+activity+recognition+using+smartphones.zip": (
        "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031"
    )
}
"""UCI publishes no checksum; this one was recorded in several independent downloads of the file (61,005,872 bytes)."""

_MGH = (
    "mgh cannot be downloaded: the sleep recordings of the Massachusetts General Hospital are not public. Ask the "
    "authors of Biswal et al., Expert-level sleep scoring with deep neural networks, JAMIA 25(12), 2018. The "
    "hospital's recordings for the PhysioNet/CinC Challenge 2018 have the same layout, 994 with labels and 989 "
    "without: https://physionet.org/content/challenge-2018/"
)


def sources() -> tuple[Source, ...]:
    """Return the datasets that can be downloaded."""
    return tuple(_SOURCES.values())


def download(
    name: str,
    root: str | os.PathLike[str],
    *,
    files: str | Sequence[str] | None = None,
    base: str | None = None,
    progress: OnBytes | None = None,
) -> Path:
    """Download a dataset; files that are already complete are not fetched again.

    Parameters
    ----------
    name : name of one of the `sources`
    root : folder for the files; created if it does not exist
    files : glob patterns such as `"*/SC400*"` for the paths of the files (`*` also matches `/`); by default all files
    base : URL of a mirror
    progress : called from several threads, but never concurrently

    Returns
    -------
    the folder; for "har" the zip file in it

    Raises
    ------
    PolyadicError : if the name is unknown, no file matches, or the URL cannot be reached
    DataError : if the checksum of a file does not match
    """
    if name == "mgh":
        raise PolyadicError(_MGH)
    if name not in _SOURCES:
        raise PolyadicError(f"name must be one of {', '.join(_SOURCES)}, but is {name!r}")
    base = (_SOURCES[name].base if base is None else base).rstrip("/") + "/"
    if urlsplit(base).scheme not in ("http", "https"):
        raise PolyadicError(f"base must be a URL that starts with https:// or http://, but is {base}")
    get = _build_downloader()
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    sums = _HAR if name == "har" else _select(_fetch_checksums(get, base, root), _WANTED[name], base)
    if files is not None:
        sums = _select(sums, (files,) if isinstance(files, str) else tuple(files), base)
    _fetch_all(get, base, root, sums, progress)
    return root / next(iter(sums)) if name == "har" else root


Get = Callable[[str, Any], None]
"""Function that writes the content of a URL to an object with a `write` method."""


def _build_downloader() -> Get:
    """Return a function that downloads with Pooch and names the URL in its errors."""
    try:
        import pooch
        import requests
    except ImportError as error:
        raise MissingExtraError(
            "downloads need pooch, which is not installed: pip install 'polyadic[download]'"
        ) from error

    def get(address: str, file: Any) -> None:
        fetch = pooch.HTTPDownloader(chunk_size=1 << 16, timeout=60)
        try:
            fetch(address, file, None)
        except requests.RequestException as error:
            raise PolyadicError(
                f"{address} cannot be fetched: {error}. Finished files are kept; run it again to fetch the rest"
            ) from error

    return get


def _fetch_checksums(get: Get, base: str, root: Path) -> dict[str, str]:
    """Return the published checksums by path; if they cannot be fetched, use those fetched last time."""
    target = root / _SUMS
    try:
        with open_atomically(target, durable=False) as file:
            get(base + _SUMS, _Counted(file, largest=_SUMS_LARGEST))
            file.flush()
            _parse_checksums(Path(file.name))
    except DataError:
        raise
    except PolyadicError:
        if not target.is_file():
            raise
    return _parse_checksums(target)


def _parse_checksums(path: Path) -> dict[str, str]:
    """Parse a file with a checksum and a path on each line; return the checksums by path."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{_SUMS} must be text, but is not: {error}") from error
    sums = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        found = re.fullmatch(r"([0-9a-fA-F]{64}) [ *]?(\S.*?)\s*", line)
        if not found:
            raise DataError(f"{_SUMS}, line {number}: must be a SHA-256 and a path, but is {line[:80]!r}")
        name = found[2].removeprefix("./")
        # On Windows, a backslash separates folders and a colon follows a drive: both are refused on all systems.
        if name.startswith("/") or ".." in PurePosixPath(name).parts or re.search(r"[\\:\x00-\x1f]", name):
            raise DataError(f"{_SUMS}, line {number}: paths must stay within the folder, but got {name!r}")
        sums[name] = found[1].lower()
    return sums


def _select(sums: dict[str, str], patterns: Sequence[str], base: str) -> dict[str, str]:
    found = {name: sha for name, sha in sums.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}
    if not found:
        raise PolyadicError(f"no file of {base} matches {', '.join(patterns) or 'an empty list of patterns'} (files)")
    return found


def _fetch_all(get: Get, base: str, root: Path, sums: dict[str, str], progress: OnBytes | None) -> None:
    lock, stop = threading.Lock(), threading.Event()

    def one(item: tuple[int, tuple[str, str]]) -> None:
        index, (name, sha) = item

        def tell(count: int) -> None:
            if stop.is_set():
                raise PolyadicError("another file could not be fetched")
            if progress is not None:
                with lock:
                    progress(name, index, len(sums), count)

        target = root / name
        if not _matches_checksum(target, sha):
            for pause in (*_PAUSES, None):
                try:
                    _fetch(get, base + quote(name, safe="/+"), target, sha, tell)
                    break
                except PolyadicError:
                    if pause is None or stop.wait(pause):
                        raise
        tell(target.stat().st_size)

    with ThreadPoolExecutor(_WORKERS) as pool:
        try:
            # The first failure ends the loop, which cancels the downloads that have not started.
            for _ in pool.map(one, enumerate(sums.items(), start=1)):
                pass
        finally:
            stop.set()  # aborts the downloads in progress


def _fetch(get: Get, address: str, target: Path, sha: str, tell: Callable[[int], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Not durable: fsync is slow for tens of thousands of files, and checksums detect a file lost in a power cut.
    with open_atomically(target, durable=False) as file:
        counted = _Counted(file, tell)
        get(address, counted)
        if counted.sha.hexdigest() != sha:
            raise DataError(
                f"{address} must have SHA-256 {sha}, but has {counted.sha.hexdigest()}: the file was discarded"
            )


def _matches_checksum(path: Path, sha: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha


class _Counted:
    """Wrapper of a file that reports every mebibyte written; `sha` is the checksum of everything written."""

    def __init__(self, file: IO[bytes], tell: Callable[[int], None] | None = None, largest: int | None = None) -> None:
        self.file = file
        self.tell = tell
        self.largest = largest
        self.count = 0
        self.sha = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        before, self.count = self.count, self.count + len(chunk)
        if self.largest is not None and self.count > self.largest:
            raise DataError(f"{_SUMS} must have at most {self.largest} bytes, but has more")
        self.file.write(chunk)
        self.sha.update(chunk)
        if self.tell is not None and self.count // _STEP > before // _STEP:
            self.tell(self.count)

    def flush(self) -> None:
        """Do nothing: Pooch calls this after every chunk, and the file is flushed when it is closed."""
