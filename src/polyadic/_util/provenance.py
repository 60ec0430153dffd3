"""Provenance of a result: command, commit, machine, versions, date; no paths, user names or host names."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from polyadic._util.version import __version__


def versions() -> dict[str, str]:
    """Return the versions of Python, polyadic and the main dependencies."""
    packages = {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}
    return {"python": platform.python_version(), "polyadic": __version__, **packages}


def commit() -> str | None:
    """Return the commit of the source tree, with "+changes" if it has any, or None if the package is installed.

    The environment variable POLYADIC_COMMIT overrides it, for copies without git history.
    """
    if "POLYADIC_COMMIT" in os.environ:
        return os.environ["POLYADIC_COMMIT"]

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603

    try:
        if not git("ls-files", "--", Path(__file__).name):
            return None
        changed = git("status", "--porcelain", "--", ":/src", ":/paper")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def provenance(device: str) -> dict[str, Any]:
    """Return what a reader needs to assess and reproduce a result that was computed on this torch device."""
    import torch

    # Strip folders from paths: they are private and mean nothing elsewhere.
    words = [re.sub(rf"[^=]*{re.escape(os.sep)}", "", word) for word in sys.argv]
    if spec := getattr(sys.modules["__main__"], "__spec__", None):  # run by python -m
        module = str(spec.name).removesuffix(".__main__")
        words[:1] = ["polyadic"] if module == "polyadic" else ["python", "-m", module]
    details = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*:\s*(.+)", details.read_text("utf-8", "replace")) if details.exists() else []
    machine = {"processor": models[0].strip() if models else platform.processor() or platform.machine()}
    machine |= {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if device.startswith("cuda"):
        machine["gpu"] = torch.cuda.get_device_name()
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return {
        "command": shlex.join(words),
        "date": date,
        "commit": commit(),
        "machine": machine,
        "versions": versions(),
    }
