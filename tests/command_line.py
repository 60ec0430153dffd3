"""The `polyadic` command for the tests: each in a process of its own, forked from one that has done the imports.

A new interpreter imports torch and scikit-learn for seconds before each command. A fork starts at once, with its own
memory, folder, streams, signals and exit code. Start-up, imports, early signals and terminals are tested with new
interpreters (`FRESH`).

`python tests/command_line.py` is the process that is forked: it reads a request a line and answers with exit codes.
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
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

FRESH = [sys.executable, "-c", "from polyadic.cli import main; main()"]
"""The command in an interpreter of its own."""

LATE = ("plotly.graph_objects", "pydantic", "rich.progress", "sklearn.linear_model", "typer.rich_utils")
"""Modules that commands import when they need them."""

SECONDS = 300
"""After this time a command hangs."""


def polyadic(*words: object, cwd: Path, code: int | tuple[int, ...] = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; it must end with this exit code, or with one of these, and without a traceback."""
    with tempfile.TemporaryDirectory() as folder:
        streams = {name: str(Path(folder) / name) for name in ("stdout", "stderr")}
        request = {"words": [str(word) for word in words], "cwd": str(cwd), "environment": dict(os.environ), **streams}
        found = _answer(request)
        out, err = (Path(path).read_text(encoding="utf-8") for path in streams.values())
    result = subprocess.CompletedProcess(request["words"], found, out, err)
    assert result.returncode in (code if isinstance(code, tuple) else (code,)), result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result


def _answer(request: dict[str, Any]) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    if not select.select([server.stdout], [], [], SECONDS)[0]:
        os.killpg(server.pid, signal.SIGKILL)
        _server.cache_clear()
        raise subprocess.TimeoutExpired(request["words"], SECONDS)
    return int(server.stdout.readline())


@cache
def _server() -> subprocess.Popen[str]:
    """The process that is forked, one for each process that runs tests; it ends with the latter."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen([sys.executable, __file__], env=environment, start_new_session=True, **streams)

    def close() -> None:
        server.communicate()

    atexit.register(close)
    return server


def serve() -> None:
    """Fork for every request, and tell how the command ended."""
    import polyadic

    own = [module.name for module in pkgutil.walk_packages(polyadic.__path__, "polyadic.")]
    elsewhere = ("polyadic.__main__", "polyadic.kernels", "polyadic.testing")
    for name in (*LATE, *(name for name in own if not name.startswith(elsewhere))):
        importlib.import_module(name)
    gc.freeze()  # a collection in a fork would copy the memory of all these modules
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            become(json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


def become(request: dict[str, Any]) -> NoReturn:
    """Be the process of this command from here on."""
    from polyadic.cli import main

    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"] | {"OMP_NUM_THREADS": "1"})
    flags = os.O_WRONLY | os.O_CREAT
    for number, path in enumerate((os.devnull, request["stdout"], request["stderr"])):
        opened = os.open(path, flags if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["polyadic", *request["words"]]
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    # As an interpreter ends: joblib stops its processes in the first, and the second waits for them.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # freeing all these modules would take longer than most commands


if __name__ == "__main__":
    serve()
