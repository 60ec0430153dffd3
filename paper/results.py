"""What every experiment writes and shows: result files with their provenance, a journal to resume from, progress."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress, TextColumn

from polyadic import __version__

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")


def encode_result(result: Mapping[str, Any]) -> str:
    """Return a result as JSON: lists of objects with one object per line, other lists on one line, the rest indented.

    Examples
    --------
    >>> print(encode_result({"seeds": [0, 1], "rows": [{"seed": 0, "fit": 0.5}, {"seed": 1, "fit": 0.6}]}), end="")
    {
     "seeds": [0, 1],
     "rows": [
      {"seed":0,"fit":0.5},
      {"seed":1,"fit":0.6}
     ]
    }
    """
    entries = [f" {json.dumps(name)}: {_encode_entry(value)}" for name, value in result.items()]
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _encode_entry(value: Any) -> str:
    """Return the JSON of one entry of a result, indented as in the file."""
    if not isinstance(value, list):
        return json.dumps(value, indent=1).replace("\n", "\n ")
    if not value or not all(isinstance(row, dict) for row in value):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in value) + "\n ]"


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result to a JSON file; the folder is created if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(encode_result(result))


def commit() -> str | None:
    """Return the commit of the clone, with "+changes" if sources differ from it; None outside a clone.

    The environment variable POLYADIC_COMMIT overrides it, for copies without git history.
    """
    if "POLYADIC_COMMIT" in os.environ:
        return os.environ["POLYADIC_COMMIT"]

    def git(*words: str) -> str:
        words = ("git", "-C", str(_ROOT), *words)
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src", "paper")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def provenance(device: str) -> dict[str, Any]:
    """Return command, date, commit, machine (with its GPU for a cuda device) and versions; no paths or host names."""
    # Strip folders from paths: they are private and mean nothing elsewhere.
    words = [
        f"{name}{sign}{value.rpartition(os.sep)[2]}" for name, sign, value in (w.rpartition("=") for w in sys.argv)
    ]
    script = Path(sys.argv[0]).resolve()
    if script.is_relative_to(_ROOT / "paper"):
        parts = script.relative_to(_ROOT).with_suffix("").parts
        words[:1] = ["python", "-m", ".".join(part for part in parts if part != "__main__")]
    machine = {"processor": _processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if device.startswith("cuda"):
        machine["gpu"] = torch.cuda.get_device_name()
    return {
        "command": shlex.join(words),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine,
        "versions": {
            "python": platform.python_version(),
            "polyadic": __version__,
            **{name: version(name) for name in _PACKAGES},
        },
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def choose_device(device: str) -> torch.device:
    """Return the torch device; "auto" is a GPU if there is one, else the CPU."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def read_lines(path: Path) -> list[Any]:
    """Return the JSON values of a journal in order; lines that a killed process left incomplete are skipped."""
    values = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            values.append(json.loads(line))
        except ValueError:
            continue
    return values


def append_line(path: Path, value: Any) -> None:
    """Append a JSON value as one line, and wait until it is on disk; an incomplete last line is ended first."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write((json.dumps(value) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def stage_bar(
    title: str, hidden: bool = False, unit: str = "", already: int = 0
) -> Iterator[Callable[[int, int, object], None]]:
    """Show a progress bar on standard error, if that is a terminal.

    Parameters
    ----------
    unit : name of the counted items, in the plural
    already : number of items done before

    Yields
    ------
    a function to call with the work done, the total work, and the current stage
    """
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[stage]}", markup=False))
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task(title, total=None, completed=already, stage=unit)
        yield lambda done, total, stage: bar.update(task, completed=done, total=total, stage=f"{unit} {stage}")


def show(result: Mapping[str, Any], text: str, files: str, as_json: bool) -> None:
    """Print a result as JSON, or its Markdown page and the names of the files that were written."""
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        Console().print(Markdown(text))
        print(f"Wrote {files}")
