"""Commands run in a terminal of a given width, as a person sees them."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from pathlib import Path

RUN = [sys.executable, "-c", "from polyadic.cli import main; main()"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def in_a_terminal(columns: int, words: tuple[str, ...], cwd: Path, **variables: str) -> tuple[int, str]:
    """The exit code of a command and what it shows in a terminal of this width."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(cwd)
        os.execve(RUN[0], [*RUN, *words], ENVIRONMENT | {"TERM": "xterm"} | variables)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    shown, until = b"", time.monotonic() + 120
    while time.monotonic() < until:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # the other side is gone
            break
        shown += part
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), shown.decode()
