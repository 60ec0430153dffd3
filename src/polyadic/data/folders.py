"""Find the files of a folder: hidden files are skipped, links are followed, and the reason for skipping is kept."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from polyadic.errors import DataError

__all__ = ["FolderFiles", "find_files"]

_READ_ALREADY = "a link to a {} that is already read"


class FolderFiles(NamedTuple):
    """The files found in a folder and its subfolders.

    files : paths in alphabetical order, including files that are not regular, which their reader refuses
    left_out : skipped files and folders, relative to the folder, with the reason
    """

    files: list[Path]
    left_out: dict[str, str]


def find_files(
    root: str | os.PathLike[str], matches: Callable[[str], bool], on_error: Literal["raise", "skip"] = "raise"
) -> FolderFiles:
    """Find all files in a folder and its subfolders whose names match.

    Hidden files and folders (names that begin with a dot) are skipped. Links to files and folders are followed, but
    nothing is read twice: a link to a target inside the same folder is skipped.

    Parameters
    ----------
    root : folder to search
    matches : function that returns whether to include a file of this name
    on_error : what to do about a subfolder that cannot be listed: "raise", or "skip" it and add it to `left_out`

    Raises
    ------
    DataError : if `root` is not a folder, or a folder cannot be listed
    """
    base = Path(root)
    if not base.is_dir():
        raise DataError(f"{base} is not a folder of recordings" if base.exists() else f"{base} does not exist")
    search = _Search(base, matches, on_error)
    search.visit(base)
    while search.links:
        search.follow(search.links.pop(0))
    return FolderFiles(sorted(search.files), dict(sorted(search.left_out.items())))


class _Search:
    """Search through folders that visits files and folders first and follows links afterwards."""

    def __init__(self, base: Path, matches: Callable[[str], bool], on_error: Literal["raise", "skip"]) -> None:
        self.base, self.matches, self.on_error = base, matches, on_error
        self.files: list[Path] = []
        self.links: list[Path] = []
        self.left_out: dict[str, str] = {}
        self._seen: set[tuple[int, int]] = set()

    def visit(self, folder: Path) -> None:
        """Search a folder and its subfolders; links are queued for later."""
        self._seen.add(_identity(folder.stat()))
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            if self.on_error == "raise":
                raise DataError(f"{self._name(folder) or folder} cannot be listed: {error.strerror}") from error
            self.left_out[self._name(folder)] = f"cannot be listed: {error.strerror}"
            return
        for path in entries:
            self._enter(path)

    def _enter(self, path: Path) -> None:
        is_folder = path.is_dir()
        if path.name.startswith("."):
            if is_folder or self.matches(path.name):
                self.left_out[self._name(path)] = f"hidden {'folder' if is_folder else 'file'}"
        elif path.is_symlink() and (is_folder or self.matches(path.name)):
            self.links.append(path)
        elif is_folder:
            self.visit(path)
        elif self.matches(path.name):
            self._add(path)

    def follow(self, path: Path) -> None:
        """Visit the target of a link, unless it was visited before."""
        try:
            found = path.stat()
        except OSError:  # a broken or circular link: its reader raises the error
            self.files.append(path)
            return
        is_folder = stat.S_ISDIR(found.st_mode)
        if _identity(found) in self._seen:
            self.left_out[self._name(path)] = _READ_ALREADY.format("folder" if is_folder else "file")
        elif is_folder:
            self.visit(path)
        else:
            self._add(path)

    def _add(self, path: Path) -> None:
        self._seen.add(_identity(path.stat()))
        self.files.append(path)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.base).as_posix()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
