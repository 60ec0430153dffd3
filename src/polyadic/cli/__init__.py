"""The command line. Commands import heavy modules themselves, so that --help is fast."""

from __future__ import annotations

import sys

from polyadic._util.memory import reuse_memory
from polyadic.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the `polyadic` program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # names may have characters that the terminal's encoding lacks
    reuse_memory()
    app(prog_name="polyadic")
