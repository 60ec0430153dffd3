"""Commands run in a terminal of a given width, as a user sees them."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from pathlib import Path

from command_line import Command


def in_a_terminal(columns: int, words: tuple[str, ...], cwd: Path, **variables: str) -> tuple[int, str]:
    """Run a command in a terminal of this width, and return its exit code and output."""
    terminal, other = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    command = Command(words, cwd, [os.ttyname(other)] * 3, {"TERM": "xterm"} | variables)
    shown, until = b"", time.monotonic() + 120
    while command.poll() is None:
        assert time.monotonic() < until
        if select.select([terminal], [], [], 0.01)[0]:
            shown += os.read(terminal, 1 << 16)
    os.close(other)
    while part := _rest(terminal):
        shown += part
    os.close(terminal)
    return command.wait(), shown.decode()


def _rest(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other side is gone, and all that it wrote is read
        return b""
