"""Short-time Fourier transform: raw windows to tensors of channel × frequency × time (section 4.1 and appendix D.2).

The paper's text stacks amplitude and phase; its numbers were made with log|Re| and log|Im|, the default here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic import kernels
from polyadic.checks import check_integer
from polyadic.errors import PolyadicError
from polyadic.tensorize import Axis, Layout, OnnxGraph, Tensorizer, channel_axis, time_axis
from polyadic.threads import for_each

__all__ = ["PARTS", "STFT", "Part"]

_RELATIVE_FLOOR = 1e-2
_WITH_KERNEL = ("log_re_im", "re_im", "log_amplitude", "amplitude")
_PIECE_BYTES = {"cpu": 2 * 2**20, "cuda": 2**30}


class Part(NamedTuple):
    """Something real of complex coefficients, how to put it into a tensor, and whether its logarithm is what counts."""

    name: str
    fill: Callable[[Tensor, Tensor], object]
    logarithm: bool = False


def _amplitude(Z: Tensor, out: Tensor) -> None:
    # torch's abs of complex numbers guards against overflow, at ten times the cost.
    torch.square(Z.real, out=out)
    out.addcmul_(Z.imag, Z.imag).sqrt_()


def _magnitude(values: Tensor, out: Tensor) -> None:
    if values.device.type == "cpu":
        # Of every other number, as real parts lie in memory, numpy takes half of torch's time.
        np.abs(values.numpy(), out=out.numpy())
    else:
        torch.abs(values, out=out)


PARTS: dict[str, tuple[Part, ...]] = {
    "log_re_im": (
        Part("log|Re|", lambda Z, out: _magnitude(Z.real, out), True),
        Part("log|Im|", lambda Z, out: _magnitude(Z.imag, out), True),
    ),
    "re_im": (Part("Re", lambda Z, out: out.copy_(Z.real)), Part("Im", lambda Z, out: out.copy_(Z.imag))),
    "amplitude_phase": (Part("amplitude", _amplitude), Part("phase", lambda Z, out: torch.angle(Z, out=out))),
    "log_amplitude_phase": (
        Part("log amplitude", _amplitude, True),
        Part("phase", lambda Z, out: torch.angle(Z, out=out)),
    ),
    "log_amplitude": (Part("log amplitude", _amplitude, True),),
    "amplitude": (Part("amplitude", _amplitude),),
}
"""What can be made of a complex coefficient, by the value of `STFT.parts`."""

_WINDOWS: dict[str, Callable[..., Tensor]] = {
    "rectangular": torch.ones,
    "hann": torch.hann_window,
    "hamming": torch.hamming_window,
    "blackman": torch.blackman_window,
}


@dataclass(frozen=True)
class STFT(Tensorizer, trusted=True, threaded=True):
    """Frames of `n_fft` samples every `hop` samples, without padding, each to `n_fft // 2 + 1` frequencies.

    Parameters
    ----------
    n_fft : samples in a frame
    hop : samples from one frame to the next
    window : "rectangular", "hann", "hamming" or "blackman"
    parts : "log_re_im", "re_im", "amplitude_phase", "log_amplitude_phase", "log_amplitude" or "amplitude"; the parts
        are stacked along the channels: first all channels' first part, then all channels' second
    floor : what is added to a magnitude before its logarithm. "auto" is a hundredth of the root mean square of each
        channel's real and imaginary parts, so that the unit of the recording does not matter; a number, or one for
        each channel, fixes it

    Examples
    --------
    >>> STFT(n_fft=64, hop=2)(torch.randn(5, 9, 128)).shape
    torch.Size([5, 18, 33, 33])
    """

    n_fft: int
    hop: int
    window: Literal["rectangular", "hann", "hamming", "blackman"] = "hann"
    parts: Literal["log_re_im", "re_im", "amplitude_phase", "log_amplitude_phase", "log_amplitude", "amplitude"] = (
        "log_re_im"
    )
    floor: float | Sequence[float] | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        for name in ("n_fft", "hop"):
            check_integer(name, getattr(self, name), 1)
            object.__setattr__(self, name, int(getattr(self, name)))
        for name, known in (("window", _WINDOWS), ("parts", PARTS)):
            if getattr(self, name) not in tuple(known):
                raise PolyadicError(f"{name} must be one of {', '.join(known)}, but is {getattr(self, name)!r}")
        if isinstance(self.floor, str):
            if self.floor != "auto":
                raise PolyadicError(f"floor must be 'auto' or positive numbers, but is {self.floor!r}")
            return
        try:
            floors = np.asarray(self.floor, dtype=np.float64).reshape(-1).tolist()
        except (TypeError, ValueError):
            floors = []
        if not floors or not all(0 < value < float("inf") for value in floors):
            raise PolyadicError(f"floor must be 'auto' or positive numbers, but is {self.floor!r}")
        # A tuple, so that equal settings compare equal however they were given.
        object.__setattr__(self, "floor", floors[0] if len(floors) == 1 else tuple(floors))

    def transform(self, X: Tensor) -> Tensor:
        """Tensors of raw windows.

        Parameters
        ----------
        X : (N, channels, time), floating point

        Returns
        -------
        (N, parts · channels, n_fft // 2 + 1, frames), contiguous
        """
        self._check(X)
        T = X.new_empty(len(X), *self.shape(X.shape[1], X.shape[2]))
        self._fill(X, T)
        return T

    def into(self, X: Tensor, T: Tensor) -> Tensor | None:
        """Fill T, shaped as what a call returns; where it costs nothing, return the squared norm of each tensor.

        T may lie in memory with frames before frequencies, as transforms leave them, which is faster.

        Returns
        -------
        (N,) float64, or None

        Examples
        --------
        >>> X, stft = torch.randn(5, 1, 8), STFT(n_fft=4, hop=2, floor=0.1)
        >>> T = torch.empty(5, *stft.shape(1, 8))
        >>> _ = stft.into(X, T)
        >>> bool((T == stft(X)).all())
        True
        """
        self._check(X)
        return self._fill(X, T)

    @property
    def has_kernel(self) -> bool:
        """Whether a GPU fills tensors by a kernel of ours; those of logarithms may then be in half precision, too."""
        return self.parts in _WITH_KERNEL and self.n_fft > 1

    def layout(self, length: int, device: torch.device) -> Layout:
        """A Fourier transform leaves the frequencies of a frame next to each other, and there they stay.

        Examples
        --------
        >>> STFT(n_fft=256, hop=32).layout(3000, torch.device("cuda"))
        Layout(order=(0, 2, 1), half=True, capturable=True, row_step=3008)
        """
        if device.type != "cuda":
            return Layout((0, 2, 1), half=False, capturable=False, row_step=length)
        step = -(-length // self.hop) * self.hop
        if not self.has_kernel:
            return Layout((0, 1, 2), half=False, capturable=False, row_step=step)
        # The relative error of a half, 0.02 %, is far below what a logarithm of noisy data is good for.
        half = all(part.logarithm for part in PARTS[self.parts])
        return Layout((0, 2, 1), half=half, capturable=True, row_step=step)

    def constants(self, channels: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The log floor of each channel."""
        return _floors_on(self, channels, device, dtype)

    def _fill(self, X: Tensor, T: Tensor) -> Tensor | None:
        """Fill T, piece by piece; the fused kernel knows the squared norms when it is done."""
        floor = _floors_on(self, X.shape[1], X.device, X.dtype)
        suits = T.dtype in (torch.float32, torch.float16) and (T.is_contiguous() or T.transpose(2, 3).is_contiguous())
        if kernels.available(X.device, X.dtype) and self.has_kernel and suits:
            pieces = zip(self._pieces(X), self._pieces(X, T), strict=True)
            return torch.cat([self._by_kernel(piece, part, floor) for piece, part in pieces])
        both = list(zip(self._pieces(X), self._pieces(X, T), strict=True))
        for_each(lambda piece: self._by_torch(*piece, floor[:, None, None]), both)
        return None

    def _by_torch(self, X: Tensor, T: Tensor, floor: Tensor) -> None:
        """One piece by calls of torch and numpy, on any device."""
        # The transform leaves frames before frequencies; turned round once if need be, all else goes straight through
        # memory.
        Z, parts = self._coefficients(X), PARTS[self.parts]
        if T.stride(2) < T.stride(3):
            Z, T = Z.transpose(2, 3), T.transpose(2, 3)
        else:
            Z = Z.contiguous()
        for part, slot in zip(parts, T.chunk(len(parts), dim=1), strict=True):
            part.fill(Z, slot)
            if part.logarithm:
                _log_in_place(slot.add_(floor))

    def _by_kernel(self, X: Tensor, T: Tensor, floor: Tensor) -> Tensor:
        """One piece on a GPU: by one kernel, or by a Fourier transform and a kernel that makes of it what is wanted."""
        from polyadic.kernels import fourier, signals

        weights = None if self.window == "rectangular" else self._weights(X)
        # An odd frame has as many frequencies as the even one before it.
        squares = None if self.n_fft % 2 else fourier.stft(X, weights, self.hop, T, floor, self.parts)
        if squares is not None:
            return squares
        if weights is not None:
            Z = self._coefficients(X).transpose(2, 3).contiguous().flatten(0, 2)
            return signals.parts(Z, T, floor, self.parts, T.shape[3])
        # Rows that begin at multiples of the hop let all frames be read where they are, at one step from each other;
        # those that reach over the end of a row are ignored.
        (X, step), length = signals.rows(X), X.shape[2]
        if step % self.hop:
            step = -(-length // self.hop) * self.hop
            X = torch.nn.functional.pad(X, (0, step - length)).contiguous()
        count = ((X.shape[0] * X.shape[1] - 1) * step + length - self.n_fft) // self.hop + 1
        Z = torch.fft.rfft(X.as_strided((count, self.n_fft), (self.hop, 1)))
        return signals.parts(Z, T, floor, self.parts, step // self.hop)

    def _pieces(self, X: Tensor, of: Tensor | None = None) -> Sequence[Tensor]:
        """The batch in pieces whose coefficients stay in a processor's cache, or leave room in a GPU's memory.

        Parameters
        ----------
        of : something with as many rows, to be split alike in place of X
        """
        channels, frequencies, frames = self.shape(X.shape[1], X.shape[2])
        size = channels // len(PARTS[self.parts]) * frequencies * frames * 2 * X.element_size()
        return torch.split(X if of is None else of, max(1, _PIECE_BYTES.get(X.device.type, 2**30) // size))

    @property
    def is_calibrated(self) -> bool:
        """Whether the floor is known."""
        return self.floor != "auto"

    def calibrated(self, X: Tensor) -> STFT:
        """These settings with the floor fixed by the scale of `X`, so that later batches are treated alike.

        Parameters
        ----------
        X : (N, channels, time), windows that are typical of the data

        Examples
        --------
        >>> STFT(n_fft=4, hop=2, floor=0.5).calibrated(torch.randn(2, 1, 8)).floor
        0.5
        """
        self._check(X)
        if self.floor != "auto":
            self._floors(X.shape[1])
            return self
        pieces = self._pieces(X)
        squares = torch.empty(len(pieces), X.shape[1], dtype=torch.float64, device=X.device)

        def measure(number: int) -> None:
            squares[number] = _mean_squares(self._coefficients(pieces[number])) * len(pieces[number])

        for_each(measure, range(len(pieces)))
        if not bool(torch.isfinite(squares).all()):
            raise PolyadicError(f"X is too large for a Fourier transform in {X.dtype}: scale X or give it as float64")
        return replace(self, floor=tuple(_floor(squares.sum(dim=0) / len(X)).tolist()))

    def shape(self, channels: int, time: int) -> tuple[int, int, int]:  # type: ignore[override]
        """The shape of one window's tensor.

        Examples
        --------
        >>> STFT(n_fft=256, hop=32).shape(7, 3000)
        (14, 129, 86)
        """
        if time < self.n_fft:
            raise PolyadicError(f"time must be at least n_fft={self.n_fft} samples, but is {time}")
        return len(PARTS[self.parts]) * channels, self.n_fft // 2 + 1, (time - self.n_fft) // self.hop + 1

    def check(self, sample_shape: Sequence[int]) -> None:
        """Refuse windows that are too short, or a floor that is open or of other channels."""
        self.shape(*sample_shape)
        if self.floor == "auto" or np.size(self.floor) not in (1, sample_shape[0]):
            raise PolyadicError(f"STFT has floor {self.floor!r}, which does not fit {sample_shape[0]} channels")

    def axes(self, sample_shape: Sequence[int], labels: Sequence[str], fs: float | None) -> list[Axis]:
        """Channels with their parts, frequencies in Hz, and the middles of the frames in seconds."""
        _, frequencies, frames = self.shape(sample_shape[0], sample_shape[1])
        rate, unit = (1.0, "cycles per sample") if fs is None else (fs, "Hz")
        return [
            channel_axis(labels, tuple(part.name for part in PARTS[self.parts])),
            Axis("frequency", "frequency", np.arange(frequencies) * rate / self.n_fft, unit),
            time_axis(np.arange(frames) * self.hop + (self.n_fft - 1) / 2, fs),
        ]

    def _coefficients(self, X: Tensor) -> Tensor:
        """(N, channels, frequencies, frames), complex; frequencies next to each other in memory."""
        frames = X.unfold(2, self.n_fft, self.hop)
        if self.window != "rectangular":
            frames = frames * self._weights(X)
        Z: Tensor = torch.fft.rfft(frames)
        return Z.transpose(2, 3)

    def _weights(self, X: Tensor) -> Tensor:
        """Of the samples of a frame: (n_fft,)."""
        return _WINDOWS[self.window](self.n_fft, dtype=X.dtype, device=X.device)

    def _check(self, X: Tensor) -> None:
        """Refuse what is no batch of windows that are long enough."""
        if X.ndim != 3 or not X.is_floating_point():
            raise PolyadicError(
                "X must be floating point with three dimensions (windows, channels, time) for an STFT, but has shape "
                f"{tuple(X.shape)} and type {X.dtype}"
            )
        if X.shape[2] < self.n_fft:
            raise PolyadicError(
                f"X must have windows of at least n_fft={self.n_fft} samples, but they have {X.shape[2]} "
                f"(shape {tuple(X.shape)})"
            )

    def _floors(self, channels: int) -> Tensor:
        """One floor for each channel: (channels,) float64."""
        given = torch.as_tensor(self.floor, dtype=torch.float64)
        if given.numel() not in (1, channels):
            raise PolyadicError(
                f"floor must be one number or one for each of the {channels} channels, but has {given.numel()}"
            )
        return given.expand(channels)

    def onnx(self, graph: OnnxGraph, window: str, sample_shape: tuple[int, ...]) -> tuple[str, NDArray[np.intp]]:
        """A fixed convolution with the DFT matrix, and what is made of its real and imaginary parts."""
        channels, time = sample_shape
        first, frequencies, frames = self.shape(channels, time)
        rows = graph.add("Reshape", window, graph.constant([-1, 1, time], np.int64))
        filters = self._dft().reshape(2 * frequencies, 1, self.n_fft)
        Z = graph.add("Conv", rows, graph.constant(filters, np.float32), strides=[self.hop])
        Z = graph.add("Reshape", Z, graph.constant([-1, channels, 2, frequencies, frames], np.int64))
        T = graph.add("Reshape", self._onnx_parts(graph, Z), graph.constant([-1, first, frequencies, frames], np.int64))
        # In the graph a channel's parts lie side by side, in the model all channels' first part comes first.
        return T, np.arange(first).reshape(-1, channels).T.flatten()

    def _onnx_parts(self, graph: OnnxGraph, Z: str) -> str:
        """From (N, channels, 2, frequencies, frames), real and imaginary, to (N, channels, parts, …)."""
        floors = np.reshape(np.asarray(self.floor, np.float64), (-1, 1, 1, 1))

        def logarithm(magnitude: str) -> str:
            return graph.add("Log", graph.add("Add", magnitude, graph.constant(floors, np.float32)))

        if self.parts == "re_im":
            return Z
        if self.parts == "log_re_im":
            return logarithm(graph.add("Abs", Z))
        re, im = graph.pair("Split", Z, axis=2)
        amplitude = graph.add("Sqrt", graph.add("Add", graph.add("Mul", re, re), graph.add("Mul", im, im)))
        if self.parts.startswith("log_"):
            amplitude = logarithm(amplitude)
        if not self.parts.endswith("phase"):
            return amplitude
        return graph.add("Concat", amplitude, _onnx_angle(graph, re, im), axis=2)

    def _dft(self) -> NDArray[np.float64]:
        """The real and imaginary parts of the frequencies as weights of a frame's samples: (2, n_fft // 2 + 1, n_fft).

        The transform of every unit impulse, by the STFT itself: window, sign and scale are its own.
        """
        impulses = torch.eye(self.n_fft, dtype=torch.float64, device="cpu")[None]
        columns = replace(self, parts="re_im", floor=1.0).transform(impulses)[0, :, :, 0]
        weights: NDArray[np.float64] = columns.reshape(2, self.n_fft, -1).transpose(1, 2).numpy()
        return weights


def _onnx_angle(graph: OnnxGraph, re: str, im: str) -> str:
    """atan2, which ONNX does not have."""

    def number(value: float) -> str:
        return graph.constant(value, np.float32)

    zero = number(0.0)
    # A quotient by a very small number is as good as infinite, and 0 where both are 0.
    divisor = graph.add("Where", graph.add("Equal", re, zero), number(1e-30), re)
    turn = graph.add("Where", graph.add("Less", im, zero), number(-np.pi), number(np.pi))
    turn = graph.add("Where", graph.add("Less", re, zero), turn, zero)
    return graph.add("Add", graph.add("Atan", graph.add("Div", im, divisor)), turn)


@lru_cache(maxsize=64)
def _floors_on(stft: STFT, channels: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The floor of each channel on a device: (channels,). A GPU's graph could not fetch it, and must hold on to it."""
    return stft._floors(channels).to(device, dtype)


def _log_in_place(T: Tensor) -> None:
    """The natural logarithm; on processors with vectors by numpy, which takes a third of torch's time."""
    if T.device.type == "cpu" and T.dtype == torch.float32 and "AVX" in torch.backends.cpu.get_cpu_capability():
        values = T.numpy(force=True)
        np.log(values, out=values)
    else:
        T.log_()


def _mean_squares(Z: Tensor) -> Tensor:
    """Of the real and imaginary parts of each channel: (channels,) float64."""
    return torch.view_as_real(Z).double().square().mean(dim=(0, 2, 3, 4))  # in float32 a square may overflow


def _floor(squares: Tensor) -> Tensor:
    """The floor of each channel with these mean squares."""
    scale = squares.sqrt()
    # A silent channel borrows the scale of the others; silence everywhere is as good as any scale.
    audible = scale[scale > 0]
    fallback = audible.mean() if len(audible) else torch.ones_like(scale[0])
    return _RELATIVE_FLOOR * torch.where(scale > 0, scale, fallback)
