"""Effects of writing a file on existing paths: links, modes, devices, pipes, read-only folders."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from problems import paper

from polyadic import SALS
from polyadic._util.files import open_atomically, write_atomically
from polyadic.data import Windows, synthetic
from polyadic.errors import PolyadicError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="devices, pipes and modes are those of POSIX systems")


@pytest.fixture(scope="module")
def model() -> SALS:
    return paper(SALS, rank=2, max_sweeps=1, device="cpu").fit(windows())


def windows() -> Windows:
    return synthetic(40, 2, 32)


def save_features(path: Path, model: SALS) -> None:
    model.transform(windows(), out=path)


def save_bytes(path: Path, model: SALS) -> None:
    write_atomically(path, b"new")


WRITERS = [save_bytes, save_features]
Writer = Callable[[Path, SALS], None]
writers = pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)


def null_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:  # only root makes devices: a link to one is as good
        path.symlink_to(os.devnull)


def listening_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


SPECIAL: dict[str, Callable[[Path], None]] = {
    "device": null_device,
    "link to a device": lambda path: path.symlink_to(os.devnull),
    "named pipe": os.mkfifo,
    "socket": listening_socket,
    "folder": Path.mkdir,
}


@writers
@pytest.mark.parametrize("kind", SPECIAL)
def test_paths_that_are_not_regular_files_are_refused_and_unchanged(
    write: Writer, kind: str, model: SALS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    target = Path("out.png")
    SPECIAL[kind](target)
    before = target.lstat()
    with pytest.raises(PolyadicError, match=r"^out\.png is (a folder|not a regular file)$"):
        write(target, model)
    after = target.lstat()
    assert (before.st_mode, before.st_rdev, before.st_ino) == (after.st_mode, after.st_rdev, after.st_ino)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["out.png"]


@writers
def test_a_link_stays_a_link_and_its_target_is_written(write: Writer, model: SALS, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link, second = tmp_path / "there" / "out.png", tmp_path / "out.png", tmp_path / "second.png"
    link.symlink_to("there/out.png")
    second.symlink_to(link)
    write(second, model)  # dangling at first
    first = target.read_bytes()
    target.write_bytes(b"older")
    write(second, model)
    assert target.read_bytes() == first
    assert link.is_symlink()
    assert second.is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["out.png", "out.png", "second.png", "there"]


@pytest.mark.parametrize("mode", [0o600, 0o444])
def test_a_file_that_is_replaced_keeps_its_mode_and_is_private_until_then(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    path.write_bytes(b"older")
    path.chmod(mode)
    with open_atomically(path) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_full_disk_is_an_error_with_the_name_of_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*labels\.csv'"),
        open_atomically(tmp_path / "labels.csv"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not list(tmp_path.iterdir())
