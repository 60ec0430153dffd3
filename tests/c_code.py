"""C files of `polyadic.export.c` compiled for this machine, and called from Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
STRICTER = ("-Wconversion", "-Wshadow", "-Wdouble-promotion", "-Wstrict-prototypes", "-Wundef")
EXAMPLE = Path(__file__).parents[1] / "examples" / "microcontroller"
ARM_TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm", "make")


def missing(*tools: str) -> str:
    """Return why a test that needs these tools must be skipped, or an empty string."""
    absent = [tool for tool in tools if shutil.which(tool) is None]
    return f"{' and '.join(absent)} not installed: the C files are not tested with {'them' if absent[1:] else 'it'}"[
        : None if absent else 0
    ]


def run(*words: object, **options: object) -> str:
    """Run a program, which must succeed, and return its output."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class CLibrary:
    """The functions of a C file.

    Parameters
    ----------
    written : what `polyadic.export.c` returned
    flags : of the compiler
    """

    def __init__(self, written, *flags: str, compiler: str = "gcc") -> None:
        source, target = written.files[0], written.files[0].with_suffix(f".{compiler}{abs(hash(flags))}.so")
        # Little optimisation takes a third of the time.
        run(compiler, *STRICT, "-O1", *flags, "-shared", "-fPIC", source, "-o", target, "-lm")
        self.library = ctypes.CDLL(str(target))
        self.written = written
        self.scratch = ctypes.create_string_buffer(written.scratch_bytes)

    def features(self, X) -> np.ndarray:
        """Return features (N, F) in float32 for windows (N, channels, time)."""
        Z = np.empty((len(X), self.written.n_features), np.float32)
        for window, row in zip(np.ascontiguousarray(X, np.float32), Z, strict=True):
            self.library.polyadic_features(_address(window), _address(row), self.scratch)
        return Z

    def predict(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the most probable classes (N,), and probabilities (N, classes)."""
        P = np.empty((len(X), len(self.written.classes)), np.float32)
        best = [
            self.library.polyadic_predict(_address(window), _address(row), self.scratch)
            for window, row in zip(np.ascontiguousarray(X, np.float32), P, strict=True)
        ]
        return np.array(best), P

    def push(self, signal) -> dict[int, np.ndarray]:
        """Push a stream of samples (time, channels), and return the results by number of samples pushed."""
        stream = ctypes.create_string_buffer(self.written.stream_bytes)
        result = np.empty(len(self.written.classes) or self.written.n_features, np.float32)
        found = {}
        for number, sample in enumerate(np.ascontiguousarray(signal, np.float32), start=1):
            if self.library.polyadic_push(stream, _address(sample), _address(result)):
                found[number] = result.copy()
        return found

    def selftest(self) -> int:
        return int(self.library.polyadic_selftest())


def _address(array: np.ndarray) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
