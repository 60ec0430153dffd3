"""A command never overwrites its input: model, data, or a file of a store."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import polyadic

from polyadic.data import synthetic

QUICK = ("--rank", "2", "--sweeps", "1", "--quiet")


def said_by(*words: str, cwd: Path, code: int = 0) -> str:
    return " ".join(polyadic(*words, cwd=cwd, code=code, PYTHONWARNINGS="ignore").stderr.split())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows, a store of them, a recording as a table, a model with a probe, all in one folder."""
    folder = tmp_path_factory.mktemp("made")
    signals = synthetic(60, 2, 64)
    np.savez(folder / "w.npz", X=signals.X, y=signals.label, subject=signals.subject, fs=signals.fs)
    np.save(folder / "w.npy", signals.X)
    (folder / "own").mkdir()
    rows = "\n".join(f"{n / 64},{n % 7},{n % 3}" for n in range(640))
    (folder / "own" / "night.csv").write_text(f"time,channel 1,channel 2\n{rows}\n")
    polyadic("fit", "w.npz", *QUICK, "--probe", "-o", "m.safetensors", cwd=folder)
    polyadic("prepare", "arrays", "w.npz", "w.store", cwd=folder)
    (folder / "link.csv").symlink_to("own/night.csv")
    (folder / "link.npz").symlink_to("w.npz")
    (folder / "elsewhere.csv").write_bytes((folder / "own" / "night.csv").read_bytes())
    (folder / "own" / "linked.csv").symlink_to("../elsewhere.csv")
    return folder


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


OVER_AN_INPUT = [
    ("fit", "w.npz", *QUICK, "-o", "w.npz"),
    ("fit", "w.npz", *QUICK, "-o", "link.npz"),
    ("fit", "w.store", *QUICK, "-o", "w.store/store.json"),
    ("fit", "w.store", *QUICK, "-o", "w.store/model.safetensors"),
    ("fit", "own", *QUICK, "--seconds", "1", "-o", "own/night.csv"),
    ("transform", "m.safetensors", "w.npy", "-o", "w.npy"),
    ("transform", "m.safetensors", "own", "-o", "elsewhere.csv"),
    ("predict", "m.safetensors", "own/night.csv", "-o", "own/night.csv"),
    ("report", "m.safetensors", "-o", "m.safetensors"),
    ("report", "m.safetensors", "--data", "w.npz", "-o", "w.npz"),
    ("run", "--data", "w.store", "--out", "w.store"),
]


@pytest.mark.parametrize("words", OVER_AN_INPUT, ids=" ".join)
def test_an_output_that_is_an_input_is_refused(words: tuple[str, ...], made: Path) -> None:
    before = content(made)
    said = said_by(*words, cwd=made, code=1)
    assert "would overwrite" in said or "is inside the store" in said or "is the store" in said
    assert content(made) == before


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that nothing can be written to: root may write wherever modes forbid it, but not to /proc."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        yield Path("/proc")
        return
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o555)
    yield folder
    folder.chmod(0o755)


WITH_OUT = [
    ("fit", "damaged.npz", *QUICK, "-o", "{}/m.safetensors"),
    ("transform", "damaged.safetensors", "damaged.npz", "-o", "{}/z.npy"),
    ("predict", "damaged.safetensors", "damaged.npz", "-o", "{}/labels.csv"),
    ("report", "damaged.safetensors", "-o", "{}/report.html"),
    ("export", "damaged.safetensors", "-o", "{}/m.onnx"),
    ("run", "--data", "damaged.npz", "-o", "{}/out"),
]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
@pytest.mark.parametrize("where", ["read-only", "missing"])
@pytest.mark.parametrize("words", WITH_OUT, ids=lambda words: " ".join((words[0], words[-2])))
def test_an_output_that_cannot_be_written_is_noticed_before_anything_is_read(
    words: tuple[str, ...], where: str, tmp_path: Path, read_only: Path
) -> None:
    for name in ("damaged.npz", "damaged.safetensors", "file"):
        (tmp_path / name).write_bytes(b"nothing that could be read")
    if where == "missing" and words[-1].endswith("/out"):
        pytest.skip("folders are created")
    folder = read_only if where == "read-only" else tmp_path / where
    said = " ".join(polyadic(*(word.format(folder) for word in words), cwd=tmp_path, code=1).stderr.split())
    assert "damaged" not in said
    assert "cannot be written" in said or "must be in an existing folder" in said
    assert str(folder) in said
