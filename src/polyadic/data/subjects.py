"""Find the subject of a recording in its path, and say where it was found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from polyadic.errors import DataError, PolyadicError

__all__ = [
    "COLUMN",
    "ENTITY",
    "FILE",
    "FOLDER",
    "PARTICIPANTS",
    "PATTERN",
    "Subject",
    "find_in_path",
    "find_subject",
    "join_sources",
    "subject_count",
]

FOLDER = "folder names"
FILE = "file names"
ENTITY = "sub- names in paths"
PATTERN = "the pattern"
COLUMN = "a column"
PARTICIPANTS = "participants.tsv"
_UNSAID = "the recordings"
_NOTHING = "nothing"

_BIDS = re.compile(r"(?:^|[/_])(sub-[A-Za-z0-9]+)(?=[/_.]|$)")


class Subject(NamedTuple):
    """The name of a subject, and where it was found: one of the constants of this module."""

    name: str
    source: str


def find_subject(path: str, pattern: str | None = None, root: str = "") -> Subject:
    """Find the subject of a recording in its path.

    Parameters
    ----------
    path : path relative to the folder that is read, with forward slashes
    pattern : regular expression with one group that finds the subject in the path; by default a BIDS entity such as
        `sub-01` anywhere in the path, else the folder that contains the file, else the file name
    root : name of the folder that is read, which may itself be the BIDS folder of a subject

    Raises
    ------
    DataError : if the path names two subjects
    PolyadicError : if the pattern is not a regular expression with one group, or does not match the path

    Examples
    --------
    >>> find_subject("sub-01/ses-2/eeg/rest.edf").name, find_subject("S07/night.edf").name
    ('sub-01', 'S07')
    """
    if pattern is not None:
        return Subject(find_in_path(pattern, path), PATTERN)
    entities = list(dict.fromkeys(_BIDS.findall(path)))
    if not entities and any(sign.isdigit() for sign in root):
        entities = [root] if _BIDS.fullmatch(root) else []
    if len(entities) > 1:
        raise DataError(
            f"{path} names two subjects, {' and '.join(entities)}: choose the subject with a "
            "regular expression with one group (--subject, or subject=)"
        )
    if entities:
        return Subject(entities[0], ENTITY)
    *folders, name = path.split("/")
    return Subject(folders[-1], FOLDER) if folders else Subject(name.removesuffix(".gz").rpartition(".")[0], FILE)


def find_in_path(pattern: str, path: str, what: str = "--subject") -> str:
    r"""Return what the group of a regular expression matches in a path.

    Parameters
    ----------
    what : name of the option in error messages

    Examples
    --------
    >>> find_in_path(r"E(\d)", "S01/E3.csv")
    '3'
    """
    try:
        found = re.search(pattern, path)
        name = None if found is None else found[1]
    except (re.error, IndexError) as error:
        raise PolyadicError(
            f"{what} must be a regular expression with one group, but is {pattern!r}: {error}"
        ) from error
    if name is None:
        sought = what.lstrip("-").partition("-")[0]
        raise PolyadicError(f"{what} must find the {sought} in every path, but {pattern!r} does not match {path}")
    return name


def join_sources(sources: Iterable[str]) -> str:
    """Return where subjects were found, given one source per recording; the most frequent source comes first.

    Examples
    --------
    >>> join_sources([FOLDER, ENTITY, ENTITY]), join_sources([])
    ('sub- names in paths and folder names', 'nothing')
    """
    counts = Counter(source or _UNSAID for source in sources)
    return " and ".join(source for source, _ in counts.most_common()) or _NOTHING


def subject_count(count: int, source: str) -> str:
    """Return the number of subjects and where they were found as a phrase.

    Examples
    --------
    >>> subject_count(12, FOLDER), subject_count(0, "nothing")
    ('12 subjects (from folder names)', 'no known subjects')
    """
    return f"{count:,} subject{'s' * (count != 1)} (from {source})" if count else "no known subjects"
