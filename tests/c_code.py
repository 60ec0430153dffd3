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
        source = written.files[0]
        target = source.with_suffix(f".{compiler}{abs(hash(flags))}.so")
        # Little optimisation takes a third of the time. Linked with `-ffast-math`, a library would turn subnormal
        # numbers of this whole thread into zeros.
        run(compiler, *STRICT, "-O1", *flags, "-fPIC", "-c", source, "-o", target.with_suffix(".o"))
        run(compiler, "-shared", target.with_suffix(".o"), "-o", target, "-lm")
        self.library, self.written = ctypes.CDLL(str(target)), written

    def features(self, X) -> np.ndarray:
        """Return features (N, F) in float32 for windows (N, channels, time)."""
        return self.call("features", X)[1]

    def predict(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the most probable classes (N,), and probabilities (N, classes)."""
        return self.call("predict", X)

    def features_masked(self, X) -> np.ndarray:
        """Return features (N, F) of windows (N, channels, time) with NaN, which stay as they are."""
        return self.call("features_masked", X)[1]

    def predict_masked(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Return classes (N,) and probabilities (N, classes) of windows (N, channels, time) with NaN."""
        return self.call("predict_masked", X)

    def call(self, name: str, X) -> tuple[np.ndarray, np.ndarray]:
        """Return what a function returns for each window, and the numbers that it writes; windows must stay."""
        windows = np.array(X, np.float32, order="C")
        size = self.written.n_features if name.startswith("features") else len(self.written.classes)
        # Memory need not be initialised.
        sizes = (self.written.scratch_bytes, *([self.written.masked_bytes] if name.endswith("masked") else []))
        buffers = [ctypes.create_string_buffer(b"\xff" * count, count) for count in sizes]
        function, rows = getattr(self.library, f"polyadic_{name}"), np.empty((len(windows), size), np.float32)
        returned = [
            function(_address(window), _address(row), *buffers) for window, row in zip(windows, rows, strict=True)
        ]
        assert np.array_equal(windows, np.asarray(X, np.float32), equal_nan=True)
        return np.array(returned), rows

    def push(self, signal, masked: bool = False) -> dict[int, np.ndarray]:
        """Push a stream of samples (time, channels), and return the results by number of samples pushed."""
        stream = ctypes.create_string_buffer(self.written.stream_bytes)
        extra = [ctypes.create_string_buffer(self.written.masked_bytes)] if masked else []
        push = self.library.polyadic_push_masked if masked else self.library.polyadic_push
        result, results = np.empty(len(self.written.classes) or self.written.n_features, np.float32), {}
        for number, sample in enumerate(np.ascontiguousarray(signal, np.float32), start=1):
            if push(stream, _address(sample), _address(result), *extra):
                results[number] = result.copy()
        return results

    def selftest(self) -> int:
        return self.library.polyadic_selftest()


def _address(array: np.ndarray) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
