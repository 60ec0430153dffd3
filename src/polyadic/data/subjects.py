"""Find the subject of a recording in its path, and say where it was found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from polyadic.errors import DataError, PolyadicError

FOLDER = "folder names"
FILE = "file names"
ENTITY = "sub- names in paths"
PATTERN = "the pattern"
COLUMN = "a column"
PARTICIPANTS = "participants.tsv"

_PERSON = re.compile(r"s[a-z]?|subj?|subject|p|pat|patient|participant|person|u|user|volunteer|id", re.IGNORECASE)

_BIDS = re.compile(r"(?:^|[/_])(sub-[A-Za-z0-9]+)(?=[/_.]|$)")


class Subject(NamedTuple):
    """The name of a subject, and where it was found."""

    name: str
    source: str


def find_subject(path: str, pattern: str | None = None, root: str = "", label: str = "") -> Subject:
    """Find the subject of a recording in its path.

    `path` is relative to the folder that is read, whose name is `root`, which may itself be the BIDS folder of a
    subject. `pattern` is a regular expression with one group; by default the subject is a BIDS entity such as `sub-01`
    anywhere in the path, else the folder that contains the file (except that of a `label`), else the file name.

    Examples
    --------
    >>> find_subject("sub-01/ses-2/eeg/rest.edf").name, find_subject("S07/night.edf").name
    ('sub-01', 'S07')
    """
    if pattern is not None:
        return Subject(find_in_path(pattern, path), PATTERN)
    entities = _BIDS.findall(path)
    if not entities and any(sign.isdigit() for sign in root) and _BIDS.fullmatch(root):
        entities = [root]
    if len(set(entities)) > 1:
        raise DataError(f"{path} names two subjects: choose one with a regular expression with one group (--subject)")
    if entities:
        return Subject(entities[0], ENTITY)
    *folders, name = path.split("/")
    if above := [folder for folder in folders if folder != label]:
        return Subject(above[-1], FOLDER)
    return Subject(name.removesuffix(".gz").rpartition(".")[0], FILE)


def find_in_path(pattern: str, path: str, what: str = "--subject") -> str:
    """Return what the group of a regular expression, given by the option `what`, matches in a path."""
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


def is_simple_pattern(pattern: str) -> bool:
    r"""Return whether a regular expression is quick on any path: at most three repetitions, none of a group.

    Only such expressions are run if they are from a model file, which may be someone else's.

    Examples
    --------
    >>> is_simple_pattern(r"(S\d+)_"), is_simple_pattern("((a+)+)$")
    (True, False)
    """
    plain = re.sub(r"\[\^?\]?(?:[^\]\\]|\\.)*\]|\\[^1-9]", "x", pattern)  # without sets and escaped characters
    try:
        re.compile(pattern)
    except re.error:
        return False
    return len(re.findall(r"[*+{]", plain)) <= 3 and not re.search(r"\)[*+?{]|\(\?[^:]|\\", plain)


def join_sources(sources: Iterable[str]) -> str:
    """Return where subjects were found, given one source per recording; the most frequent source comes first."""
    counts = Counter(source or "the recordings" for source in sources)
    return " and ".join(source for source, _ in counts.most_common()) or "nothing"


def note_on_files(index: Any) -> str:
    """Return a note if every file is taken as a subject although the names show subjects with several files, or ""."""
    names = sorted(set(index.names[index.present()].tolist()))
    by_file = index.subjects_from == FILE and index.n_subjects == len(names)
    suggested = suggest_pattern(names) if by_file else None
    if suggested is None:
        return ""
    pattern, count = suggested
    return (
        f"Each of {len(names):,} files is taken as one subject. If subjects have several files, say so: --subject "
        f"'{pattern}' finds {count:,} in their names."
    )


def suggest_pattern(names: Sequence[str]) -> tuple[str, int] | None:
    r"""Return a pattern that finds subjects with several recordings each in the names of recordings, and their number.

    The subject is the first part of the name that looks like one (S01, sub3, user7), else the beginning of the name.

    Examples
    --------
    >>> suggest_pattern(["D01_SA01_R01", "D01_SA02_R01", "D02_SA01_R01", "D02_SA02_R01"])
    ('(SA\\d+)', 2)
    >>> suggest_pattern(["anna_walk", "anna_rest", "bob_walk", "bob_rest"]), suggest_pattern(["night1", "night2"])
    (('([^/_]+)_[^/]*$', 2), None)
    """
    stems = [name.rpartition("/")[2] for name in names]
    parts = {part for stem in stems for part in re.findall(r"[A-Za-z]+(?=\d)", stem) if _PERSON.fullmatch(part)}
    letters = "|".join(rf"{part}\d+" for part in sorted(parts))
    for pattern in (f"({letters or 'S'})", r"([^/_]+)_[^/]*$", r"([^/-]+)-[^/]*$", r"([A-Za-z]+\d+)[^/]*$"):
        found = [re.search(pattern, stem) for stem in stems]
        subjects = {match[1] for match in found if match is not None}
        if all(found) and 1 < len(subjects) <= len(stems) / 2:
            return pattern, len(subjects)
    return None
