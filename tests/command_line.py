"""The `polyadic` command for the tests: each runs in a process of its own, forked from one that has done the imports.

A new interpreter imports torch and scikit-learn for seconds before each command. A fork (multiprocessing's forkserver)
starts at once, with its own memory, folder, streams, signals and exit code.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

SECONDS = 300
"""After this time a command hangs."""

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["command_line", "preloaded"])
TESTS = Path(__file__).parent
# The tests, for the server, and `paper`, which is in no installed package, for programs.
SEARCHED = os.pathsep.join(filter(None, [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH")]))


def polyadic(
    *words: object, cwd: Path, code: int | tuple[int, ...] = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; it must end with the given exit code (or one of several) and without a traceback.

    Parameters
    ----------
    variables : of the environment, besides those of the tests; what it says is read in PYTHONIOENCODING
    """
    encoding = variables.get("PYTHONIOENCODING", "utf-8").partition(":")[0]
    with tempfile.TemporaryDirectory() as folder:
        streams = [os.devnull, *(str(Path(folder) / name) for name in ("stdout", "stderr"))]
        found = Command(words, cwd, streams, variables).wait()
        out, err = (Path(path).read_bytes().decode(encoding) for path in streams[1:])
    result = subprocess.CompletedProcess([str(word) for word in words], found, out, err)
    assert result.returncode in (code if isinstance(code, tuple) else (code,)), result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result


def python(program: str, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, as `python -c`, in a process that has imported all of polyadic; it must succeed."""
    return polyadic("-c", program, *words, cwd=cwd)


class Command:
    """A running command.

    Parameters
    ----------
    streams : the paths of its standard streams
    """

    def __init__(
        self, words: Iterable[object], cwd: Path, streams: list[str], variables: dict[str, str] | None = None
    ) -> None:
        self.words = [str(word) for word in words]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": SEARCHED} | (variables or {})
        self.process = SERVER.Process(target=become, args=(self.words, cwd, streams, environment))
        with patch.dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=SEARCHED):  # of the server, which starts with it
            self.process.start()
        atexit.register(self.kill)  # of a test that failed

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while the command is running."""
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = SECONDS) -> int:
        """Wait for the command to end, and return its exit code."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.words, timeout)
        return self.process.exitcode


class Piped(Command):
    """A command that runs while the test reads what it says, as `subprocess.Popen` with two pipes."""

    def __init__(self, words: Iterable[object], cwd: Path, **variables: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder) / name for name in ("stdout", "stderr")]
            for path in streams:
                os.mkfifo(path)
            super().__init__(words, cwd, [os.devnull, *map(str, streams)], variables)
            self.stdout, self.stderr = (path.open(encoding="utf-8") for path in streams)

    def communicate(self, timeout: float = SECONDS) -> tuple[str, str]:
        """All else that it says until it ends; more than a pipe holds may come from its standard error alone."""
        said = self.stderr.read()
        out = self.stdout.read()
        self.wait(timeout)
        self.stdout.close()
        self.stderr.close()
        return out, said


def become(words: list[str], cwd: Path, streams: list[str], environment: dict[str, str]) -> NoReturn:
    """Be the process of this command from here on."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    replace_streams(streams)
    try:
        run(words)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            sys.stderr.write(f"{stop.code}\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    # As an interpreter ends: joblib stops its processes in the first, and the second waits for them.
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError):  # whoever read them may be gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # freeing all these modules would take longer than most commands


def run(words: list[str]) -> None:
    """The command of these words, or the program after `-c`."""
    from polyadic.cli import main

    if words[:1] == ["-c"]:
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.argv = ["polyadic", *words]
        main()


def replace_streams(paths: list[str]) -> None:
    """Open the standard streams of this process anew, as an interpreter does when it starts."""
    if paths[0] != os.devnull:
        os.setsid()  # the terminal that is opened next becomes that of the command
    for number, path in enumerate(paths):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering=1, encoding=encoding, errors=how or None, closefd=False)  # noqa: SIM115
        for number, mode, how in ((0, "r", errors), (1, "w", errors), (2, "w", "backslashreplace"))
    )
