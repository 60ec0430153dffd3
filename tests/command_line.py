"""The `polyadic` command for the tests: each runs in a separate process, forked from one that has done the imports.

A new interpreter imports torch and scikit-learn for seconds before each command. A fork starts at once, with its own
memory, folder, streams, signals and exit code. Start-up and imports are
tested with new interpreters (`FRESH`).

`python tests/command_line.py` is the process that is forked: it reads a request a line, and answers with the number of
a process and, when that has ended, its exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

FRESH = [sys.executable, "-c", "from polyadic.cli import main; main()"]
"""The command in a new interpreter."""

LATE = ("plotly.graph_objects", "rich.progress", "sklearn.linear_model", "typer.rich_utils")
"""Modules that commands import when they need them."""

SECONDS = 300
"""After this time a command hangs."""


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
    """A running command; the next one starts when it has ended.

    Parameters
    ----------
    streams : the paths of its standard streams
    """

    last: Command | None = None

    def __init__(
        self, words: Iterable[object], cwd: Path, streams: list[str], variables: dict[str, str] | None = None
    ) -> None:
        if Command.last is not None and Command.last.poll() is None:  # of a test that failed
            Command.last.send_signal(signal.SIGKILL)
            Command.last.wait()
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        self.words = [str(word) for word in words]
        self.answers = server.stdout
        self.returncode: int | None = None
        environment = os.environ | (variables or {})
        request = {"words": self.words, "cwd": str(cwd), "streams": streams, "environment": environment}
        server.stdin.write(json.dumps(request).encode() + b"\n")
        self.pid = int(server.stdout.readline())
        Command.last = self

    def poll(self) -> int | None:
        """Return the exit code, or None while the command is running."""
        if self.returncode is None and select.select([self.answers], [], [], 0)[0]:
            self.returncode = int(self.answers.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = SECONDS) -> int:
        """Wait for the command to end, and return its exit code."""
        if self.returncode is None:
            if not select.select([self.answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.words, timeout)
            self.returncode = int(self.answers.readline())
        return self.returncode


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


@cache
def _server() -> subprocess.Popen[bytes]:
    """The process that is forked, one for each process that runs tests; it ends with the latter."""
    # Programs of the tests may use `paper`, which is in no installed package.
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    # Without buffers, so that an answer which has come can be seen from outside.
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    server = subprocess.Popen([sys.executable, __file__], env=environment, start_new_session=True, **streams)

    def close() -> None:
        if Command.last is not None:
            Command.last.kill()
        server.communicate()

    atexit.register(close)
    return server


def serve() -> None:
    """Fork for every request, and tell how the command ended."""
    import polyadic

    own = [module.name for module in pkgutil.walk_packages(polyadic.__path__, "polyadic.")]
    elsewhere = ("polyadic.__main__", "polyadic.scale.gpu", "polyadic.testing")  # the second needs Triton
    for name in (*LATE, *(name for name in own if not name.startswith(elsewhere))):
        importlib.import_module(name)
    gc.freeze()  # a collection in a fork would copy the memory of all these modules
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            become(json.loads(line))
        tell(child)
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def tell(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def become(request: dict[str, Any]) -> NoReturn:
    """Be the process of this command from here on."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"] | {"OMP_NUM_THREADS": "1"})
    replace_streams(request["streams"])
    try:
        run(request["words"])
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


if __name__ == "__main__":
    serve()
