"""The short-time Fourier transform with its logarithms in one pass, in CUDA: what an FFT does between its threads,
Triton has no words for. torch's CUDA builds bring the compiler (NVRTC), which takes a moment for each kind of frame.

Two neighbouring frames go through one complex transform, and a frame hears its neighbour by the rounding of float32:
where that is a thousand times as loud as the channel usually is, logarithms next to the floor are off by up to 0.01.
"""

from __future__ import annotations

import ctypes
import warnings
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch.cuda import _utils

from polyadic.kernels.signals import PART_CODES, rows

__all__ = ["definitions", "source", "stft"]

_THREADS = 256
_POINTS = [2**power for power in range(5, 12)]


def source() -> str:
    """The kernel, in CUDA."""
    return files("polyadic.kernels").joinpath("fourier.cu").read_text()


def definitions(
    points: int, frames: int, what: str, half: bool, turned: bool, windowed: bool, centred: bool
) -> tuple[tuple[str, int], ...]:
    """What the kernel must be told when it is compiled.

    Parameters
    ----------
    points : samples in a frame
    frames : of a channel
    what : a key of `PART_CODES`
    half : for tensors of float16, else of float32
    turned : for frames next to each other, else frequencies
    windowed : whether samples are weighted
    centred : whether a mean is subtracted

    Examples
    --------
    >>> dict(definitions(256, 75, "log_re_im", half=True, turned=False, windowed=False, centred=False))["FRAMES"]
    26
    """
    # Frames of 512 samples go through three passes in any case, and then the shorter ones need fewer registers.
    values = 8 if points in (32, 64, 512) else 16
    most = max(2 * _THREADS * values // points, 2)
    blocks = -(-frames // most)
    each = -(-frames // blocks)
    return (
        ("POINTS", points),
        ("VALUES", values),
        ("FRAMES", each + each % 2),
        ("CODE", PART_CODES[what]),
        ("HALF", int(half)),
        ("TURNED", int(turned)),
        ("WINDOWED", int(windowed)),
        ("CENTRED", int(centred)),
    )


@cache
def _compiled(device: torch.device, defined: tuple[tuple[str, int], ...]) -> Any:
    """The kernel for a device, or None where it cannot be compiled."""
    lines = "".join(f"#define {name} {value}\n" for name, value in defined)
    try:
        with torch.cuda.device(device):
            return _utils._cuda_load_module(_binary(device, lines + source()), ["stft"])["stft"]  # type: ignore[index]
    except Exception as error:
        # Whatever this machine lacks, there is another way; but it should be known that this one is closed for good.
        warnings.warn(f"the fused Fourier transform cannot be compiled: {error}", RuntimeWarning, stacklevel=2)
        return None


def _binary(device: torch.device, text: str) -> bytes:
    """The kernel as this device's machine code. `torch.cuda._compile_kernel` does the same and imports setuptools."""
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
        raise RuntimeError(f"NVRTC gave up with {failed}: {result.value.decode(errors='replace').strip()}")
    return result.raw


def stft(
    X: Tensor, window: Tensor | None, hop: int, T: Tensor, floor: Tensor, what: str, mean: Tensor | None = None
) -> Tensor | None:
    """Fill tensors with what is wanted of the Fourier coefficients of frames.

    Parameters
    ----------
    X : (N, channels, time) float32
    window : (n_fft,) float32 weights of a frame's samples, or None
    hop : samples from one frame to the next
    T : (N, parts · channels, frequencies, frames) float32 or float16, to be filled; contiguous, or with frequencies
        next to each other
    floor : (channels,) float32
    what : a key of `PART_CODES`
    mean : (parts · channels, frequencies) float32, what is subtracted at the end, or None

    Returns
    -------
    (N,) float64, the squared norm of each window's tensor; None if frames of this length need another way
    """
    (windows, channels), (frequencies, frames) = X.shape[:2], T.shape[2:]
    points = 2 * (frequencies - 1)
    half, turned = T.dtype == torch.float16, T.is_contiguous()
    defined = definitions(points, frames, what, half, turned, window is not None, mean is not None)
    kernel = _compiled(X.device, defined) if X.is_cuda and points in _POINTS else None
    if kernel is None:
        return None
    if not windows:
        return torch.zeros(0, dtype=torch.float64, device=X.device)
    sizes = dict(defined)
    blocks = -(-frames // sizes["FRAMES"])
    threads = sizes["FRAMES"] // 2 * (points // sizes["VALUES"])
    # Filled, for that is work which torch itself starts, and a thread that has not yet used the GPU begins by it.
    squares = torch.zeros(windows, channels * blocks, dtype=torch.float32, device=X.device)
    X, step = rows(X)
    optional = [X if given is None else given for given in (window, mean)]
    given = [X, optional[0], floor, optional[1], T, squares, channels, frames, hop, step]
    with torch.cuda.device(X.device):
        kernel((windows * channels * blocks, 1, 1), (threads, 1, 1), given)
    return squares.sum(dim=1).double()
