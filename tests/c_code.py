"""C files of `polyadic.export.c` compiled for this machine, and called from Python."""

from __future__ import annotations

import ctypes
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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

    A library built with `-ffast-math` runs in a child process: gcc adds code to it that, once loaded, turns subnormal
    numbers of the whole thread into zeros.

    Parameters
    ----------
    written : what `polyadic.export.c` returned
    flags : of the compiler
    """

    def __init__(self, written, *flags: str, compiler: str = "gcc") -> None:
        source, target = written.files[0], written.files[0].with_suffix(f".{compiler}{abs(hash(flags))}.so")
        # Little optimisation takes a third of the time.
        run(compiler, *STRICT, "-O1", *flags, "-shared", "-fPIC", source, "-o", target, "-lm")
        self.path = str(target)
        self.library = None if "-ffast-math" in flags else ctypes.CDLL(self.path)
        self.written = written

    def features(self, X) -> np.ndarray:
        """Return features (N, F) in float32 for windows (N, channels, time)."""
        windows = np.ascontiguousarray(X, np.float32)
        return self._call("features", windows, self.written.n_features, self.written.scratch_bytes)[1]

    def predict(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the most probable classes (N,), and probabilities (N, classes)."""
        windows = np.ascontiguousarray(X, np.float32)
        return self._call("predict", windows, len(self.written.classes), self.written.scratch_bytes)[:2]

    def features_masked(self, X) -> np.ndarray:
        """Return features (N, F) of windows (N, channels, time) with NaN, which stay as they are."""
        return self._masked("features", X, self.written.n_features)[1]

    def predict_masked(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Return classes (N,) and probabilities (N, classes) of windows (N, channels, time) with NaN."""
        return self._masked("predict", X, len(self.written.classes))

    def _masked(self, name: str, X, size: int) -> tuple[np.ndarray, np.ndarray]:
        windows, memory = np.array(X, np.float32, order="C"), (self.written.scratch_bytes, self.written.masked_bytes)
        returned, rows, after = self._call(f"{name}_masked", windows, size, *memory)
        assert np.array_equal(after, np.asarray(X, np.float32), equal_nan=True)
        return returned, rows

    def push(self, signal, masked: bool = False) -> dict[int, np.ndarray]:
        """Push a stream of samples (time, channels), and return the results by number of samples pushed."""
        samples, size = np.ascontiguousarray(signal, np.float32), len(self.written.classes) or self.written.n_features
        memory = (self.written.stream_bytes, *([self.written.masked_bytes] if masked else []))
        return self._call("push", samples, size, *memory)

    def selftest(self) -> int:
        return self._call("selftest")

    def _call(self, name: str, *arguments: object) -> Any:
        if self.library is not None:
            return CALLS[name](self.library, *arguments)
        request = pickle.dumps((self.path, name, arguments))
        done = subprocess.run([sys.executable, __file__], input=request, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return pickle.loads(done.stdout)


def _compute(function: Any, X: np.ndarray, size: int, *memory: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what the function returns for each window, the `size` values that it writes, and the windows after it."""
    # Memory need not be initialised.
    buffers = [ctypes.create_string_buffer(b"\xff" * count, count) for count in memory]
    rows = np.empty((len(X), size), np.float32)
    returned = [function(_address(window), _address(row), *buffers) for window, row in zip(X, rows, strict=True)]
    return np.array(returned), rows, X


def _push(library: ctypes.CDLL, samples: np.ndarray, size: int, *memory: int) -> dict[int, np.ndarray]:
    stream, *masked = (ctypes.create_string_buffer(count) for count in memory)
    result, results = np.empty(size, np.float32), {}
    push = library.polyadic_push_masked if masked else library.polyadic_push
    for number, sample in enumerate(samples, start=1):
        if push(stream, _address(sample), _address(result), *masked):
            results[number] = result.copy()
    return results


def _address(array: np.ndarray) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


CALLS = {
    "features": lambda library, *arguments: _compute(library.polyadic_features, *arguments),
    "predict": lambda library, *arguments: _compute(library.polyadic_predict, *arguments),
    "features_masked": lambda library, *arguments: _compute(library.polyadic_features_masked, *arguments),
    "predict_masked": lambda library, *arguments: _compute(library.polyadic_predict_masked, *arguments),
    "push": _push,
    "selftest": lambda library: int(library.polyadic_selftest()),
}


if __name__ == "__main__":
    path, name, arguments = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(CALLS[name](ctypes.CDLL(path), *arguments)))
