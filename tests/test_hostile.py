"""Archives that try to leave their folder or fill the disk, and names that contain markup or code."""

from __future__ import annotations

import io
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import python
from problems import paper
from typer.testing import CliRunner

import polyadic
from polyadic import SALS
from polyadic._util.files import harmless
from polyadic.cli import app
from polyadic.data.readers.arrays import open_windows
from polyadic.errors import DataError

SOURCE = Path(polyadic.__file__).parent
NAMES = ("../outside.txt", "/tmp/polyadic-outside.txt", "..\\outside.txt")


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_nothing_in_the_library_unpacks_archives_to_disk() -> None:
    files = list(SOURCE.rglob("*.py"))
    assert len(files) > 50
    for file in files:
        found = re.search(r"\.extract(all)?\(|unpack_archive|\btarfile\b", file.read_text(encoding="utf-8"))
        assert found is None, f"{file.name} has {found and found[0]}"


@pytest.mark.parametrize("name", NAMES)
def test_names_that_leave_the_folder_are_never_written(name: str, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with zipfile.ZipFile(inner / "w.npz", "w") as archive:
        archive.writestr(name, b"outside")
    before = everything(tmp_path)
    with pytest.raises(DataError, match="X, or X_train and X_test"):
        open_windows(inner / "w.npz")
    assert everything(tmp_path) == before
    assert not Path("/tmp/polyadic-outside.txt").exists()


def bomb(size: int) -> bytes:
    """A `.npy` file of that many zeros."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (1, 1, size)})
    return head.getvalue() + bytes(size)


LIMITED = """
import resource, sys
from pathlib import Path
from polyadic.errors import DataError
from polyadic.data.readers.arrays import open_windows
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 100 * 2**20, size + 100 * 2**20))
try:
    open_windows(sys.argv[1])
except DataError as error:
    assert not isinstance(error.__cause__, MemoryError), error
    print(error)
"""


def refused_in_little_memory(path: Path) -> str:
    return python(LIMITED, path, cwd=path.parent).stdout


def claiming(path: Path, size: int) -> None:
    """Change what the archive says of its first file's size, in both places."""
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[22:26] = content[entry + 24 : entry + 28] = size.to_bytes(4, "little")
    path.write_bytes(content)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does")
def test_archives_that_claim_gigabytes_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", bomb(10))
    claiming(tmp_path / "w.npz", 2**32 - 2)
    assert re.search("X would take 4,295 MB|claims 4294967294", refused_in_little_memory(tmp_path / "w.npz"))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does")
def test_an_archive_that_claims_less_than_it_holds_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("X.npy", bomb(150 * 2**20))
    claiming(tmp_path / "w.npz", 1000)
    assert "cannot be read" in refused_in_little_memory(tmp_path / "w.npz")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(1)", "\t=1"])
def test_no_name_is_a_formula_in_a_table(text: str) -> None:
    assert harmless(text) == f"'{text}"


def test_names_are_neither_markup_nor_codes_in_the_terminal(tmp_path: Path) -> None:
    names = ["[/b]x", "[red]y", "z\x1b[31m\x07"]
    windows = np.random.default_rng(0).normal(size=(8, 3, 32))
    np.savez(tmp_path / "w.npz", X=windows, channels=np.array(names), fs=10.0)
    paper(SALS, 2, max_sweeps=1, batch_size=4).fit(open_windows(tmp_path / "w.npz")).save(tmp_path / "m.safetensors")
    for file in ("w.npz", "m.safetensors"):
        shown = CliRunner().invoke(app, ["info", str(tmp_path / file)])
        assert shown.exit_code == 0, shown.output
        assert "\x1b[31m" not in shown.output
        assert "\x07" not in shown.output
    assert "[/b]x, [red]y, z\ufffd[31m" in shown.output
