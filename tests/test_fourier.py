"""The Fourier transform in CUDA, compiled for the processor: every thread of a block is a thread here, and waits for
the others where it would on a GPU. `test_kernels.py` has the same kernel on a GPU where there is one.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch

from polyadic.spectral import STFT

pytest.importorskip("triton", reason="Triton is not installed")
from polyadic.scale.gpu.kernels.fourier import definitions, source

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

BEFORE = """
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>
#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(threads)
struct Index { int x; };
static Index blockIdx;
static thread_local Index threadIdx;
static std::barrier<> *barrier;
static void __syncthreads() { barrier->arrive_and_wait(); }
static void sincospif(float x, float *sine, float *cosine) { *sine = sin(M_PI * x); *cosine = cos(M_PI * x); }
#define __log2f log2f
static unsigned short rounded(float x) { _Float16 half = x; unsigned short bits; memcpy(&bits, &half, 2); return bits; }
static float widened(unsigned short bits) { _Float16 half; memcpy(&half, &bits, 2); return half; }
"""
AFTER = """
extern "C" void run(int blocks, int threads, const float *X, const float *window, const float *floor,
                    const float *mean, Number *T, float *squares, int channels, int frames, int hop, int step) {
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        std::barrier<> here(threads);
        barrier = &here;
        std::vector<std::thread> all;
        for (int number = 0; number < threads; number++)
            all.emplace_back([=] {
                threadIdx.x = number;
                stft(X, window, floor, mean, T, squares, channels, frames, hop, step);
            });
        for (std::thread &one : all) one.join();
    }
}
"""

FLOOR = (0.1, 0.3, 2.0)
# n_fft, hop, length, parts, window, half, turned, centred; frames of one block, or more, the last not full
SHORT = [(128, 50, 428, "log_amplitude", "hamming", True, True, True)]
LONG = [
    (64, 2, 128, "log_re_im", "rectangular", True, False, True),
    (32, 7, 100, "re_im", "rectangular", False, True, False),
    (256, 64, 5000, "log_re_im", "rectangular", True, False, False),
    (512, 128, 4000, "log_re_im", "hann", False, True, True),
    (1024, 300, 4000, "amplitude", "rectangular", False, False, True),
    (2048, 1, 2050, "re_im", "hann", False, False, False),
]
CASES = [*SHORT, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)]


@pytest.mark.parametrize(("n_fft", "hop", "length", "parts", "window", "half", "turned", "centred"), CASES)
def test_the_kernel_fills_the_tensor_of_the_plain_transform(
    n_fft, hop, length, parts, window, half, turned, centred, tmp_path
) -> None:
    torch.manual_seed(n_fft)
    # Rows that begin further apart than they are long, and a signal far from zero, as recordings are.
    room = torch.randn(2, 3, length + 5).cumsum(dim=2) + 3
    transform = STFT(n_fft=n_fft, hop=hop, window=window, parts=parts, floor=FLOOR)
    if centred:
        transform = replace(transform, mean=np.random.default_rng(0).normal(size=transform.shape(3, length)[:2]))
    found, energy = run(transform, room[..., :length], half, turned, tmp_path)
    expected, plain = transform(room[..., :length].double()), transform(room[..., :length]).double()
    # The rounding of float32, and that of a neighbour, after it that of halves.
    tolerance = 3 * float((plain - expected).norm()) + (5e-4 if half else 1e-6) * float(expected.norm())
    assert float((found - expected).norm()) < tolerance
    torch.testing.assert_close(energy, found.square().flatten(1).sum(dim=1), rtol=1e-5, atol=0)


@pytest.mark.long
def test_a_loud_frame_reaches_its_neighbour_by_rounding_only(tmp_path) -> None:
    torch.manual_seed(0)
    X = torch.randn(1, 1, 4 * 64)
    X[..., 64:128] *= 100
    transform = STFT(n_fft=64, hop=64, parts="log_re_im", window="rectangular", floor=0.01 * 8 / 2**0.5)
    found, _ = run(transform, X, False, False, tmp_path)
    assert float((found - transform(X.double())).abs().max()) < 3e-3


def run(transform, X, half, turned, folder) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor of windows (N, channels, time) by the kernel, and the squared norm of each."""
    windows, channels, length = X.shape
    stacked, frequencies, frames = transform.shape(channels, length)
    windowed, centred = transform.window != "rectangular", transform.mean is not None
    defined = definitions(transform.n_fft, frames, transform.parts, half, turned, windowed, centred)
    sizes = dict(defined)
    blocks = -(-frames // sizes["FRAMES"])
    shape = (frequencies, frames) if turned else (frames, frequencies)
    T = np.full((windows, stacked, *shape), np.nan, dtype=np.float16 if half else np.float32)
    squares = np.full(windows * channels * blocks, np.nan, dtype=np.float32)
    floor = transform._floors(channels).numpy().astype(np.float32)
    pointers = [ctypes.c_void_p(X.data_ptr())]
    mean = floor if transform.mean is None else np.asarray(transform.mean, np.float32)
    arrays = [transform._weights(X).numpy(), floor, mean, T, squares]
    pointers += [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    threads = sizes["FRAMES"] // 2 * (transform.n_fft // sizes["VALUES"])
    library = _library(defined, folder)
    library.run(len(squares), threads, *pointers, channels, frames, transform.hop, X.stride(1))
    found = torch.from_numpy(T).double()
    energy = torch.from_numpy(squares).double().reshape(windows, -1).sum(dim=1)
    return found if turned else found.transpose(2, 3), energy


def _library(defined: tuple[tuple[str, int], ...], folder) -> ctypes.CDLL:
    lines = "".join(f"#define {name} {value}\n" for name, value in defined)
    (folder / "kernel.cpp").write_text(BEFORE + lines + source() + AFTER)
    built = folder / "kernel.so"
    flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread"]
    subprocess.run([str(COMPILER), *flags, "-o", str(built), str(folder / "kernel.cpp")], check=True)
    return ctypes.CDLL(str(built))
