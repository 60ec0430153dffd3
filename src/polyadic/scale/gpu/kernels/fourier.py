"""Fused short-time Fourier transform with logarithms, in CUDA, because Triton cannot express an FFT's data exchange.

torch's CUDA builds include the compiler (NVRTC), which takes a moment for each frame length. Frames have a power of two
from 32 to 2048 samples. Two neighbouring frames share one complex transform, so float32 rounding leaks from one to the
other: next to a frame that is a thousand times as loud as usual, logarithms near the floor are off by up to 0.01.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch.cuda import _utils

from polyadic.errors import PolyadicError
from polyadic.scale.gpu.kernels.signals import rows

_THREADS = 256
_PART_CODES = {"log_re_im": 0, "re_im": 1, "log_amplitude": 2, "amplitude": 3}


def source() -> str:
    """Return the CUDA source of the kernel."""
    return files("polyadic.scale.gpu.kernels").joinpath("fourier.cu").read_text()


def definitions(
    points: int, frames: int, what: str, half: bool, turned: bool, windowed: bool, centred: bool
) -> tuple[tuple[str, int], ...]:
    """Return the preprocessor definitions of the kernel, for frames of `points` samples; see `fourier.cu`.

    Examples
    --------
    >>> dict(definitions(256, 75, "log_re_im", half=True, turned=False, windowed=False, centred=False))["FRAMES"]
    26
    """
    # Frames of 512 samples take three passes with either value, and 8 needs fewer registers.
    values = 8 if points in (32, 64, 512) else 16
    most = max(2 * _THREADS * values // points, 2)
    blocks = -(-frames // most)
    each = -(-frames // blocks)
    return (
        ("POINTS", points),
        ("VALUES", values),
        ("FRAMES", each + each % 2),
        ("CODE", _PART_CODES[what]),
        ("HALF", int(half)),
        ("TURNED", int(turned)),
        ("WINDOWED", int(windowed)),
        ("CENTRED", int(centred)),
    )


@cache
def _compiled(device: torch.device, defined: tuple[tuple[str, int], ...]) -> Any:
    lines = "".join(f"#define {name} {value}\n" for name, value in defined)
    try:
        with torch.cuda.device(device):
            return _utils._cuda_load_module(_binary(device, lines + source()), ["stft"])["stft"]  # type: ignore[index]
    except Exception as error:
        raise PolyadicError(
            f"the fused Fourier transform cannot be compiled: {error}; set POLYADIC_PLAIN=1 to use torch's own"
        ) from error


def _binary(device: torch.device, text: str) -> bytes:
    """Compile to machine code for a device, like `torch.cuda._compile_kernel` but without importing setuptools."""
    compiler, program, size = _utils._get_gpu_rtc_library(), ctypes.c_void_p(), ctypes.c_size_t()
    major, minor = torch.cuda.get_device_capability(device)
    option = ctypes.c_char_p(f"--gpu-architecture=sm_{major}{minor}".encode())
    failed = compiler.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"fourier.cu", 0, None, None)
    failed = failed or compiler.nvrtcCompileProgram(program, 1, ctypes.byref(option))
    kind = "ProgramLog" if failed else "CUBIN"
    getattr(compiler, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    result = ctypes.create_string_buffer(max(size.value, 1))
    getattr(compiler, f"nvrtcGet{kind}")(program, result)
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(f"NVRTC failed with error {failed}: {result.value.decode(errors='replace').strip()}")
    return result.raw


def stft(
    X: Tensor, window: Tensor | None, hop: int, T: Tensor, floor: Tensor, what: str, mean: Tensor | None = None
) -> Tensor:
    """Fill T (N, parts · channels, frequencies, frames), float32 or float16, from X (N, channels, time) float32.

    T is contiguous, or has its frequencies contiguous. window (n_fft,) or None, floor (channels,) and mean (parts ·
    channels, frequencies) or None are float32; `what` is `STFT.parts`. Returns the squared norm of each tensor:
    (N,) float64.
    """
    (windows, channels), (frequencies, frames) = X.shape[:2], T.shape[2:]
    points = 2 * (frequencies - 1)
    half, turned = T.dtype == torch.float16, T.is_contiguous()
    defined = definitions(points, frames, what, half, turned, window is not None, mean is not None)
    kernel = _compiled(X.device, defined)
    if not windows:
        return torch.zeros(0, dtype=torch.float64, device=X.device)
    sizes = dict(defined)
    blocks = -(-frames // sizes["FRAMES"])
    threads = sizes["FRAMES"] // 2 * (points // sizes["VALUES"])
    # `zeros` launches a torch kernel, which initialises CUDA in a thread that has not used it yet.
    squares = torch.zeros(windows, channels * blocks, dtype=torch.float32, device=X.device)
    X, step = rows(X)
    optional = [X if given is None else given for given in (window, mean)]
    given = [X, optional[0], floor, optional[1], T, squares, channels, frames, hop, step]
    with torch.cuda.device(X.device):
        kernel((windows * channels * blocks, 1, 1), (threads, 1, 1), given)
    return squares.sum(dim=1).double()
