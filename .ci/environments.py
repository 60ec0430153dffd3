"""Virtual environments for the checks of the package, and functions to run programs in them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

__all__ = ["ROOT", "environment", "install", "run", "say"]

ROOT = Path(__file__).parents[1]
_BEGUN = time.monotonic()


def environment(folder: Path) -> Path:
    """Create an empty virtual environment, and return the path of its Python."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def install(python: Path, *words: object) -> None:
    """Install packages with pip, without compiling modules, because few of them are imported."""
    run(python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile", *words)


def run(*words: object, cwd: Path = ROOT, quiet: bool = False, **variables: str) -> None:
    """Run a program without PYTHONPATH and PYTHONHOME, and exit if its exit code is not 0."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    kept = subprocess.PIPE if quiet else None
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, env=plain | variables, stdout=kept, stderr=kept, text=True)
    if done.returncode:
        sys.stdout.write((done.stdout or "") + (done.stderr or ""))
        raise SystemExit(f"exit code {done.returncode}: {' '.join(command)[:300]}")


def say(what: str) -> None:
    """Print a message with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGUN:4.0f} s] {what}", flush=True)
