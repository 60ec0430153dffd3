"""Download the public data sets file by file; files whose SHA-256 matches are not fetched again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pooch
import requests

from polyadic.errors import DataError, PolyadicError

_SUMS = "SHA256SUMS.txt"
_WORKERS = 4
"""Number of parallel downloads: for small files, of which PTB-XL has 43,600, most of the time is network latency."""


@dataclass(frozen=True)
class Source:
    """A published data set: title, licence, approximate bytes, URL of its folder, and publication to cite."""

    title: str
    licence: str
    bytes: int
    base: str
    citation: str


SOURCES = {
    "sleep_edf": Source(
        "Sleep-EDF Database Expanded 1.0.0, Sleep Cassette",
        "Open Data Commons Attribution License 1.0",
        7_000_000_000,
        "https://physionet.org/files/sleep-edfx/1.0.0/",
        "B. Kemp, A. H. Zwinderman, B. Tuk, H. A. C. Kamphuisen, J. J. L. Oberyé: Analysis of a sleep-dependent "
        "neuronal feedback loop: the slow-wave microcontinuity of the EEG. IEEE Transactions on Biomedical "
        "Engineering 47(9), 1185–1194, 2000",
    ),
    "ptb_xl": Source(
        "PTB-XL 1.0.3, at 500 Hz",
        "Creative Commons Attribution 4.0",
        2_640_000_000,
        "https://physionet.org/files/ptb-xl/1.0.3/",
        "P. Wagner, N. Strodthoff, R.-D. Bousseljot, D. Kreiseler, F. I. Lunze, W. Samek, T. Schaeffter: PTB-XL, a "
        "large publicly available electrocardiography dataset. Scientific Data 7, 154, 2020",
    ),
    "har": Source(
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


def download(
    name: str, root: str | Path, *, base: str | None = None, progress: Callable[[int, int, str], None] | None = None
) -> Path:
    """Download a data set.

    Parameters
    ----------
    name : a name in `SOURCES`
    root : folder for the files; created if it does not exist
    base : URL of a mirror
    progress : called after each file with the number done, the total, and the name

    Returns
    -------
    the folder; for "har" the zip file in it
    """
    if name == "mgh":
        raise PolyadicError(_MGH)
    root, base = Path(root), (base or SOURCES[name].base).rstrip("/") + "/"
    pooch.get_logger().setLevel("ERROR")
    sums = _HAR if name == "har" else _published_sums(name, base)
    files = pooch.create(root, base, registry={file: f"sha256:{sha}" for file, sha in sums.items()}, retry_if_failed=2)
    fetcher = pooch.HTTPDownloader(timeout=60)
    for folder in {(root / file).parent for file in sums}:  # pooch makes them, too, but not from several threads
        folder.mkdir(parents=True, exist_ok=True)

    def fetch(file: str) -> str:
        try:
            files.fetch(file, downloader=fetcher)
        except ValueError as error:  # another checksum
            raise DataError(f"{base}{file} must have SHA-256 {sums[file]}, but has another: {error}") from error
        except requests.RequestException as error:
            raise PolyadicError(
                f"{base}{file} cannot be fetched: {error}. Finished files are kept; run it again"
            ) from error
        return file

    with ThreadPoolExecutor(_WORKERS) as pool:
        for number, file in enumerate(pool.map(fetch, sums), 1):
            if progress is not None:
                progress(number, len(sums), file)
    return root / next(iter(sums)) if name == "har" else root


def _published_sums(name: str, base: str) -> dict[str, str]:
    """Return the SHA-256 that PhysioNet publishes for each file of a data set that is wanted, by path."""
    try:
        answer = requests.get(base + _SUMS, timeout=60)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise PolyadicError(f"{base}{_SUMS} cannot be fetched: {error}") from error
    sums = {}
    for line in answer.text.splitlines():
        sha, _, path = line.partition(" ")
        path = path.strip().removeprefix("*").removeprefix("./")
        if path.startswith("/") or ".." in path.split("/"):
            raise DataError(f"{_SUMS}: paths must stay within the folder, but got {path!r}")
        if any(fnmatchcase(path, pattern) for pattern in _WANTED[name]):
            sums[path] = sha.lower()
    if not sums:
        raise PolyadicError(f"{base}{_SUMS} lists no file of {name}: pass the URL of the data set's folder")
    return sums
