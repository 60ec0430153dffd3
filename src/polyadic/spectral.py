"""Short-time Fourier transform: raw windows to tensors of channel × frequency × time (section 4.1 and appendix D.2).

The paper's text stacks amplitude and phase; its results were computed with log|Re| and log|Im|, the default of `STFT`.
The library's default is `recommended_stft`: log amplitudes minus the mean spectrum of each channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyadic._util.checks import check_integer
from polyadic._util.threads import for_each
from polyadic.core.tensorizer import Axis, Layout, Tensorizer, channel_axis, time_axis
from polyadic.errors import PolyadicError

__all__ = ["FLOOR_SHARE", "PARTS", "SHORTEST_FRAME", "STFT", "CForm", "recommended_stft"]

_CHANNEL_SHARE = 1e-2
_QUIET_SHARE = 1e-3
FLOOR_SHARE = 0.3
"""The floor relative to the amplitude of white noise of the same power, chosen on development subjects."""
LOST_ENERGY = 1 / 3
"""Share of a frame's energy that interpolated samples may have, chosen on development subjects."""
_FLOORS = ("auto", "channel")
_FRAME_SECONDS, _FRAME_SAMPLES = 1.28, 128
SHORTEST_FRAME, _LONGEST = 16, 1024
_MOST_FRAMES = 32
_SMALLEST_SQUARE = 1e-28
_FUSED = tuple(2**power for power in range(5, 12))
"""The frame lengths for which there is a fused kernel."""
_TOO_LARGE = "the values in X are too large for a Fourier transform in {}: rescale X or pass it as float64"
_PIECE_BYTES = {"cpu": 2 * 2**20, "cuda": 2**30}


class _Constants(NamedTuple):
    """The floor of each channel (channels,), and the mean (parts · channels, frequencies) or None, on a device."""

    floor: Tensor
    mean: Tensor | None


PARTS: dict[str, tuple[str, ...]] = {
    "log_re_im": ("log|Re|", "log|Im|"),
    "re_im": ("Re", "Im"),
    "amplitude_phase": ("amplitude", "phase"),
    "log_amplitude_phase": ("log amplitude", "phase"),
    "log_amplitude": ("log amplitude",),
    "amplitude": ("amplitude",),
}
"""Names of the parts of a complex coefficient, by the value of `STFT.parts`."""

_WINDOWS: dict[str, Callable[..., Tensor]] = {
    "rectangular": torch.ones,
    "hann": torch.hann_window,
    "hamming": torch.hamming_window,
    "blackman": torch.blackman_window,
}


@dataclass(frozen=True)
class STFT(Tensorizer, trusted=True):
    """Short-time Fourier transform without padding: frames of `n_fft` samples to `n_fft // 2 + 1` frequencies.

    Parameters
    ----------
    n_fft : number of samples in a frame
    hop : number of samples from one frame to the next
    window : "rectangular", "hann", "hamming" or "blackman"
    parts : "log_re_im", "re_im", "amplitude_phase", "log_amplitude_phase", "log_amplitude" or "amplitude"; the parts
        are stacked along the channel axis: the first part of all channels, then the second
    floor : constant added to a magnitude before taking its logarithm. "auto" computes one floor for all channels with
        the same unit: 0.3 times the root mean square amplitude of white noise with the power of their signals (each
        window's mean removed). A shared floor preserves the ratio of weak to strong channels. "channel" is the rule
        of the paper's presets: 0.01 times the root mean square of each channel's real and imaginary parts. Both scale
        with the unit of the recording. A number, or one per channel, sets it explicitly
    mean : array (parts · channels, n_fft // 2 + 1) subtracted from the result; "auto" computes the mean of the
        tensors over windows and frames, which centres them; None subtracts nothing
    baseline : array (channels, n_fft // 2 + 1), the mean of ln(amplitude + floor / 1000) over windows and frames, which
        `polyadic.explain.expression` compares windows with. It is computed with the mean, for log amplitudes

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
    floor: float | Sequence[float] | Literal["auto", "channel"] = "auto"
    mean: Sequence[Sequence[float]] | NDArray[Any] | Literal["auto"] | None = None
    baseline: Sequence[Sequence[float]] | NDArray[Any] | None = None

    def __post_init__(self) -> None:
        for name in ("n_fft", "hop"):
            check_integer(name, getattr(self, name), 1)
            object.__setattr__(self, name, int(getattr(self, name)))
        for name, known in (("window", _WINDOWS), ("parts", PARTS)):
            if getattr(self, name) not in tuple(known):
                raise PolyadicError(f"{name} must be one of {', '.join(known)}, but is {getattr(self, name)!r}")
        # Tuples, so that equal settings compare equal however they were given.
        if not (isinstance(self.floor, str) and self.floor in _FLOORS):
            floors = _numbers(self.floor).reshape(-1).tolist()
            if not floors or not all(0 < value < float("inf") for value in floors):
                raise PolyadicError(f"floor must be 'auto', 'channel' or positive numbers, but is {self.floor!r}")
            object.__setattr__(self, "floor", floors[0] if len(floors) == 1 else tuple(floors))
        for name, choices in (("mean", "None, 'auto'"), ("baseline", "None")):
            value, frequencies = getattr(self, name), self.n_fft // 2 + 1
            if value is None or (name == "mean" and isinstance(value, str) and value == "auto"):
                continue
            array = _numbers(value)
            if array.ndim != 2 or array.shape[1] != frequencies or not np.isfinite(array).all():
                given = f"has shape {array.shape}" if array.size else f"is {value!r}"
                raise PolyadicError(
                    f"{name} must be {choices} or finite numbers of shape (channels, {frequencies}), but {given}"
                )
            object.__setattr__(self, name, tuple(map(tuple, array.tolist())))

    def __hash__(self) -> int:
        # Without mean and baseline, which have thousands of values: the hash is computed for every batch.
        return hash((self.n_fft, self.hop, self.window, self.parts, self.floor))

    def transform(self, X: Tensor) -> Tensor:
        """Transform raw windows (N, channels, time) to (N, parts · channels, n_fft // 2 + 1, frames), contiguous."""
        self._check(X)
        T = X.new_empty(len(X), *self.shape(X.shape[1], X.shape[2]))
        self.into(X, T)
        return T

    def into(self, X: Tensor, T: Tensor) -> Tensor | None:
        """Write `transform(X)` into T, fastest with frames before frequencies; return squared norms from a kernel."""
        self._check(X)
        constants = self.constants(X.shape[1], X.device, X.dtype)
        pieces = list(zip(self._pieces(X), self._pieces(X, T), strict=True))
        if X.is_cuda and self._fits_kernel(X, T):
            from polyadic.scale.gpu.kernels.fourier import stft

            weights = None if self.window == "rectangular" else self._weights(X)
            floor, mean = constants
            return torch.cat([stft(piece, weights, self.hop, part, floor, self.parts, mean) for piece, part in pieces])
        for_each(lambda piece: self._by_torch(*piece, constants), pieces)
        return None

    @property
    def _is_logarithmic(self) -> bool:
        return self.parts.startswith("log_")

    @property
    def _has_phase(self) -> bool:
        return self.parts.endswith("_phase")

    @property
    def _has_kernel(self) -> bool:
        return self.n_fft in _FUSED and not self._has_phase

    def _fits_kernel(self, X: Tensor, T: Tensor) -> bool:
        """Return whether the fused kernel can write the tensors of X into T."""
        from polyadic.scale.gpu import kernels

        ordered = T.is_contiguous() or T.transpose(2, 3).is_contiguous()
        suits = ordered and T.dtype in (torch.float32, torch.float16)
        return self._has_kernel and suits and kernels.available(X.device, X.dtype)

    def layout(self, length: int, device: torch.device) -> Layout:
        """Return the memory layout: the frequencies of a frame are contiguous, as a Fourier transform leaves them."""
        if device.type != "cuda":
            return Layout((0, 2, 1), half=False, capturable=False, row_step=length)
        step = -(-length // self.hop) * self.hop
        if not self._has_kernel:
            return Layout((0, 1, 2), half=False, capturable=False, row_step=step)
        # The relative error of half precision, 0.02 %, is far below the noise in a logarithm of real data.
        return Layout((0, 2, 1), half=self._is_logarithmic, capturable=True, row_step=step)

    def constants(self, channels: int, device: torch.device, dtype: torch.dtype) -> _Constants:
        """Return the log floor of each channel, and the mean."""
        return _constants_on(self, channels, device, dtype)

    def _by_torch(self, X: Tensor, T: Tensor, constants: _Constants) -> None:
        """Transform one piece with torch and numpy, on any device."""
        # The transform puts frames before frequencies; if T has another order, transpose once, so that everything
        # else runs through contiguous memory.
        Z, turned = self._coefficients(X), T.stride(2) < T.stride(3)
        if turned:
            Z, T = Z.transpose(2, 3), T.transpose(2, 3)
        else:
            Z = Z.contiguous()
        for number, part in enumerate(T.chunk(len(PARTS[self.parts]), dim=1)):
            if number and self._has_phase:
                torch.angle(Z, out=part)
                continue
            if "amplitude" in self.parts:
                # torch's abs of complex numbers guards against overflow, at ten times the cost.
                torch.square(Z.real, out=part)
                part.addcmul_(Z.imag, Z.imag).sqrt_()
            else:
                values = Z.imag if number else Z.real
                _magnitude(values, part) if self._is_logarithmic else part.copy_(values)
            if self._is_logarithmic:
                _log_in_place(part.add_(constants.floor[:, None, None]))
        if constants.mean is not None:
            T.sub_(constants.mean[:, None, :] if turned else constants.mean[:, :, None])

    def _pieces(self, X: Tensor, of: Tensor | None = None) -> Sequence[Tensor]:
        """Split X, or another tensor like X, into pieces that fit a CPU cache or leave room in GPU memory."""
        channels, frequencies, frames = self.shape(X.shape[1], X.shape[2])
        size = channels // len(PARTS[self.parts]) * frequencies * frames * 2 * X.element_size()
        return torch.split(X if of is None else of, max(1, _PIECE_BYTES.get(X.device.type, 2**30) // size))

    @property
    def is_calibrated(self) -> bool:
        """Whether floor and mean are set."""
        return not isinstance(self.floor, str) and not isinstance(self.mean, str)

    def calibrated(self, X: Tensor, units: Sequence[str] = ()) -> STFT:
        """Return a copy with floor and mean computed from `X`, so that all later batches use the same values.

        Parameters
        ----------
        X : (N, channels, time), windows that are representative of the data
        units : unit of each channel; channels with the same unit share a floor. Without units all share one
        """
        settings = self if self.is_measured else self.measured(*self.measure(X, units), units)
        settings._floors(X.shape[1])
        plain = settings.without_mean()
        if plain is None:
            return settings
        sums, quiet = [], []
        for piece in self._pieces(X):
            T = plain.transform(piece)
            sums.append(T.sum(dim=0, dtype=torch.float64))
            quiet.append(plain.baseline_sums(T))
        settings = settings.centred(torch.stack(sums).sum(dim=0) / len(X))
        known = [part for part in quiet if part is not None]
        return settings.with_baseline(torch.stack(known).sum(dim=0) / len(X)) if known else settings

    @property
    def is_measured(self) -> bool:
        """Whether the floors are set."""
        return not isinstance(self.floor, str)

    def measure(self, X: Tensor, units: Sequence[str] = (), present: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums over a batch (b, channels, time) of the mean squares from which floors follow: (channels,).

        They are those of the coefficients' real and imaginary parts, or of the signals with each window's mean removed.
        The second result is the number of windows with samples of each channel.
        """
        self._check(X)
        if len(units) not in (0, X.shape[1]):
            raise PolyadicError(f"units must have one entry per channel, {X.shape[1]}, but has {len(units)}")
        if present is not None:
            return self._measure_present(X, present)

        def sums(piece: Tensor) -> Tensor:
            if self.floor == "channel":  # in float64: in float32 a square may overflow
                means = torch.view_as_real(self._coefficients(piece)).double().square().mean(dim=(0, 2, 3, 4))
            else:
                means = _variances(piece).mean(dim=0)
            return means * len(piece)

        squares = (torch.stack(for_each(sums, self._pieces(X))).sum(dim=0) / len(X) * len(X)).cpu()
        largest = max(float(X.amax()), -float(X.amin()))
        if not bool(torch.isfinite(squares).all()) or largest > torch.finfo(X.dtype).max / self.n_fft:
            raise PolyadicError(_TOO_LARGE.format(X.dtype))
        return squares, torch.full((X.shape[1],), len(X))

    def _measure_present(self, X: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of `measure` over the samples that are present."""
        if self.floor == "channel":
            frames = self.observed(present)[:, : X.shape[1]].double()
            squares = torch.view_as_real(self._coefficients(X)).double().square().mean(dim=4) * frames
            count = frames.sum(dim=(2, 3))
            mean = squares.mean(dim=2).sum(dim=2) / count.clamp_min(1)
        else:
            exact, count = X.double() * present, present.sum(dim=2)
            centred = (exact - (exact.sum(dim=2) / count.clamp_min(1))[:, :, None]) * present
            mean = centred.square().sum(dim=2) / count.clamp_min(1)
        return mean.sum(dim=0).cpu(), (count > 0).sum(dim=0).cpu()

    @property
    def redundancy(self) -> float:
        """Number of frames that share a sample."""
        return max(self.n_fft / self.hop, 1.0)

    def measured(self, sums: Tensor, counts: Tensor, units: Sequence[str] = ()) -> STFT:
        """Return a copy with the floors that follow from the sums of `measure` over all windows."""
        squares = sums / counts.clamp_min(1)
        if self.floor == "channel":
            floors = _CHANNEL_SHARE * _audible(squares.sqrt())
        else:
            weight = torch.linalg.vector_norm(self._weights(squares))
            floors = FLOOR_SHARE * weight * _audible(_pooled(squares, units).sqrt())
        return replace(self, floor=tuple(floors.tolist()))

    def without_mean(self) -> STFT | None:
        """Return a copy that subtracts no mean, if the mean is to be computed and the floors are set; else None."""
        return replace(self, mean=None) if isinstance(self.mean, str) and not isinstance(self.floor, str) else None

    def centred(self, mean: Tensor) -> STFT:
        """Return a copy that subtracts a mean tensor (parts · channels, frequencies, frames), averaged over frames."""
        if not bool(torch.isfinite(mean).all()):  # squared amplitudes overflow
            raise PolyadicError(_TOO_LARGE.format("float32"))
        return replace(self, mean=mean.mean(dim=2).tolist())

    def observed(self, present: Tensor) -> Tensor:
        """Return which frames are observed: those that lack samples with at most a third of the window's energy.

        present : (b, channels, time) bool; the result is (b, parts · channels, 1, frames) bool

        Examples
        --------
        >>> present = torch.tensor([[[True, True, True, True, False, True]]])
        >>> STFT(n_fft=2, hop=2, window="rectangular").observed(present)[0, 0, 0].tolist()
        [True, True, False]
        """
        energy = self._weights(torch.empty(0, dtype=torch.float32, device=present.device)).square()
        lost = (~present).to(energy.dtype)
        missing = torch.nn.functional.conv1d(lost.flatten(0, 1)[:, None], energy[None, None], stride=self.hop)
        observed = missing.reshape(*present.shape[:2], -1) <= LOST_ENERGY * energy.sum()
        return observed.repeat(1, len(PARTS[self.parts]), 1)[:, :, None]

    def quiet(self) -> STFT:
        """Return a copy with a thousandth of the floor and no mean, for levels in dB that no floor compresses."""
        return replace(self, floor=tuple(_QUIET_SHARE * np.atleast_1d(self.floor)), mean=None, baseline=None)

    def baseline_sums(self, T: Tensor) -> Tensor | None:
        """Return the sum over windows, averaged over frames, of the log amplitudes of `quiet`: (channels, frequencies).

        They are computed from tensors (b, channels, frequencies, frames) of this STFT, without another transform.
        """
        if self.parts != "log_amplitude":
            return None
        floor = self.constants(T.shape[1], T.device, T.dtype).floor[:, None, None]
        amplitude = torch.exp(self.uncentred(T)).sub_(floor).clamp_min_(0.0)
        _log_in_place(amplitude.add_(_QUIET_SHARE * floor))
        return amplitude.mean(dim=3).sum(dim=0).cpu().double()

    def with_baseline(self, baseline: Tensor) -> STFT:
        """Return a copy with the mean over windows of `baseline_sums`."""
        return replace(self, baseline=baseline.tolist())

    def uncentred(self, T: Tensor) -> Tensor:
        """Add the mean back to tensors (N, parts · channels, frequencies, frames)."""
        mean = self.constants(T.shape[1] // len(PARTS[self.parts]), T.device, T.dtype).mean
        return T if mean is None else T + mean[:, :, None]

    @property
    def suits_nonnegative(self) -> bool:
        """Whether non-negative bases suit the tensors: true of centred log amplitudes."""
        return self.parts == "log_amplitude" and self.mean is not None

    @property
    def n_parameters(self) -> int:
        """Number of values in the mean; floors do not count as parameters, as in the paper."""
        return 0 if self.mean is None else int(np.size(self.mean))

    def shape(self, channels: int, time: int) -> tuple[int, int, int]:  # type: ignore[override]
        """Return the shape of one window's tensor.

        Examples
        --------
        >>> STFT(n_fft=256, hop=32).shape(7, 3000)
        (14, 129, 86)
        """
        if time < self.n_fft:
            raise PolyadicError(
                f"windows must have at least n_fft={self.n_fft} samples, but have {time}: use longer windows or a "
                "smaller n_fft"
            )
        return len(PARTS[self.parts]) * channels, self.n_fft // 2 + 1, (time - self.n_fft) // self.hop + 1

    def check(self, sample_shape: Sequence[int]) -> None:
        """Raise if windows are too short, or if floor or mean are not set for this number of channels."""
        self.shape(*sample_shape)
        self._floors(sample_shape[0])
        self._means(sample_shape[0])

    def axes(self, sample_shape: Sequence[int], labels: Sequence[str], fs: float | None) -> list[Axis]:
        """Return the axes: channels with their parts, frequencies in Hz, and frame centres in seconds."""
        _, frequencies, frames = self.shape(sample_shape[0], sample_shape[1])
        rate, unit = (1.0, "cycles per sample") if fs is None else (fs, "Hz")
        return [
            channel_axis(labels, PARTS[self.parts]),
            Axis("frequency", "frequency", np.arange(frequencies) * rate / self.n_fft, unit),
            time_axis(np.arange(frames) * self.hop + (self.n_fft - 1) / 2, fs),
        ]

    def _coefficients(self, X: Tensor) -> Tensor:
        """Compute complex coefficients (N, channels, frequencies, frames), with frequencies contiguous in memory."""
        frames = X.unfold(2, self.n_fft, self.hop)
        if self.window != "rectangular":
            frames = frames * self._weights(X)
        Z: Tensor = torch.fft.rfft(frames)
        return Z.transpose(2, 3)

    def _weights(self, X: Tensor) -> Tensor:
        """Return the window function, one weight per sample of a frame: (n_fft,)."""
        return _WINDOWS[self.window](self.n_fft, dtype=X.dtype, device=X.device)

    def _check(self, X: Tensor) -> None:
        if X.ndim != 3 or not X.is_floating_point():
            raise PolyadicError(
                "X must be floating point with three dimensions (windows, channels, time) for an STFT, but has shape "
                f"{tuple(X.shape)} and type {X.dtype}"
            )
        self.shape(*X.shape[1:])

    def _floors(self, channels: int) -> Tensor:
        """Return one floor for each channel: (channels,) float64."""
        if isinstance(self.floor, str) or np.size(self.floor) not in (1, channels):
            given = f"is {self.floor!r}" if isinstance(self.floor, str) else f"has {np.size(self.floor)}"
            raise PolyadicError(f"floor must be one number or one for each of the {channels} channels, but {given}")
        return torch.as_tensor(self.floor, dtype=torch.float64).expand(channels)

    def _means(self, channels: int) -> Tensor | None:
        """Return the mean to subtract: (parts · channels, frequencies) float64, or None."""
        if self.mean is None:
            return None
        expected = len(PARTS[self.parts]) * channels
        if isinstance(self.mean, str) or len(self.mean) != expected:
            given = "is 'auto'" if isinstance(self.mean, str) else f"has {len(self.mean)}"
            raise PolyadicError(f"mean must have {expected} rows for {channels} channels, but {given}")
        return torch.as_tensor(self.mean, dtype=torch.float64)

    def _check_exportable(self) -> None:
        if self._has_phase:
            raise PolyadicError(
                f"parts={self.parts!r} cannot be exported: rounding may move a phase across its jump from π to −π"
            )

    def onnx(self, graph: Any, window: Any, sample_shape: tuple[int, ...]) -> tuple[Any, NDArray[np.intp]]:
        """Add the ONNX form to a graph of `polyadic.export`: a convolution with the DFT matrix, then the parts.

        `window` is the node of windows (N, channels, time) float32. Returns that of the tensors (N, I, J, K), and the
        index in the first mode of each of its entries: the graph orders by channel, then part, the model by part.
        """
        self._check_exportable()
        channels, time = sample_shape
        first, frequencies, frames = self.shape(channels, time)
        taper = self._weights(torch.empty(0, dtype=torch.float64, device="cpu")).numpy()
        spectra = np.fft.rfft(np.diag(taper)).T
        dft = np.stack([spectra.real, spectra.imag])  # (2, frequencies, n_fft)
        if graph.centre is not None:
            window = window - graph.centre[:, None]
        filters = dft.reshape(2 * frequencies, 1, self.n_fft)
        Z = window.reshape(-1, 1, time).apply("Conv", filters, strides=[self.hop])
        Z = Z.reshape(-1, channels, 2, frequencies, frames)
        if graph.centre is not None:  # the transform of the level that was subtracted
            Z = Z + graph.centre.astype(np.float32)[:, None, None, None] * dft.sum(axis=2)[..., None]
        if self.parts.endswith("amplitude"):
            Z = (Z * Z).sum(2).apply("Sqrt")
        elif self._is_logarithmic:
            Z = Z.apply("Abs")
        if self._is_logarithmic:
            Z = (Z + np.reshape(np.asarray(self.floor, np.float64), (-1, 1, 1, 1))).apply("Log")
        mean = self._means(channels)
        if mean is not None:
            Z = Z - mean.reshape(-1, channels, frequencies, 1).transpose(0, 1).numpy()
        return Z.reshape(-1, first, frequencies, frames), np.arange(first).reshape(-1, channels).T.flatten()

    def onnx_observed(self, graph: Any, lost: Any, sample_shape: tuple[int, ...]) -> Any:
        """Add the ONNX form of `observed`, (N, channels, K); `lost` (N, channels, time) is 1 for missing samples."""
        energy = self._weights(torch.empty(0, dtype=torch.float32, device="cpu")).square()
        starts = np.arange(self.shape(*sample_shape)[2])[:, None] * self.hop
        places = graph.integers(starts) + np.arange(self.n_fft)
        missing = (lost.apply("Gather", places, axis=2) * energy.numpy()).sum(3, keep=False)
        return missing <= float(LOST_ENERGY * energy.sum())

    def c_form(self, sample_shape: tuple[int, ...]) -> CForm:
        """Return the C form: an FFT of each frame, in `kernels/fourier.c`; the caller subtracts the mean."""
        self._check_exportable()
        channels, time = sample_shape
        floors, mean, n = self._floors(channels).numpy(), self._means(channels), self.n_fft
        taper = self._weights(torch.empty(0, dtype=torch.float64, device="cpu")).numpy()
        length = n if n % 2 else n // 2
        radices = _radices(length)
        angles = -2 * np.pi * np.arange(length) / n
        spectrum = np.fft.rfft(taper).real[:3]  # all others are 0
        return CForm(
            shape=self.shape(channels, time),
            code=files("polyadic.scale.gpu.kernels").joinpath("fourier.c").read_text(encoding="utf-8"),
            defines={
                "N_FFT": n,
                "HOP": self.hop,
                "LOST_SHARE": round(1 / LOST_ENERGY),
                "STAGES": len(radices),
                "HAS_RADIX_4": int(4 in radices),
                "HAS_RADIX_2": int(2 in radices),
                "HAS_OTHER_RADIX": int(not {2, 4}.issuperset(radices)),
                "TAPER_BINS": len(spectrum),
                "AMPLITUDE": int(self.parts.endswith("amplitude")),
                "LOGARITHM": int(self._is_logarithmic),
            },
            tables={
                "radix": np.array(radices),
                "taper": taper[: n // 2 + 1],  # all tapers are symmetric about n/2
                "taper_spectrum": spectrum,
                "twiddle": np.stack([np.cos(angles), np.sin(angles)], axis=1),
                **({"floor": floors} if self._is_logarithmic else {}),
            },
            work=4 * length,
            mean=None if mean is None else mean.numpy(),
            scale=floors / (FLOOR_SHARE * np.linalg.norm(taper)),
        )


def _radices(length: int) -> list[int]:
    """Return the radices of the stages of an FFT: 4 as often as possible, then prime factors; [1] for length 1."""
    radices = []
    for radix in (4, 2, *range(3, length + 1, 2)):
        while length % radix == 0:
            radices.append(radix)
            length //= radix
    return radices or [1]


@lru_cache(maxsize=64)
def _constants_on(stft: STFT, channels: int, device: torch.device, dtype: torch.dtype) -> _Constants:
    # Cached, because a CUDA graph cannot copy them from the host and must keep them alive.
    mean = stft._means(channels)
    return _Constants(stft._floors(channels).to(device, dtype), None if mean is None else mean.to(device, dtype))


def _magnitude(values: Tensor, out: Tensor) -> None:
    """Write the magnitudes of real or imaginary parts, whose stride of 2 numpy handles in half of torch's time."""
    if values.device.type == "cpu":
        np.abs(values.numpy(), out=out.numpy())
    else:
        torch.abs(values, out=out)


def _log_in_place(T: Tensor) -> None:
    """Take the natural logarithm in place; numpy with AVX takes a third of torch's time."""
    if T.device.type == "cpu" and T.dtype == torch.float32 and "AVX" in torch.backends.cpu.get_cpu_capability():
        values = T.numpy(force=True)
        np.log(values, out=values)
    else:
        T.log_()


def _variances(X: Tensor) -> Tensor:
    """Return the variance of each channel over each window: (b, C) float64."""
    # Relative to the first sample, float32 suffices however large an offset is.
    apart = X - X[:, :, :1]
    sums, squares = apart.sum(dim=2).double(), torch.einsum("nct,nct->nc", apart, apart).double()
    if X.dtype != torch.float64:
        largest = squares.amax(dim=0)  # of each channel; float32 overflows or underflows beyond these limits
        if not bool((torch.isfinite(largest) & (largest > _SMALLEST_SQUARE)).all()):
            return _variances(X.double())
    return (squares / X.shape[2] - (sums / X.shape[2]).square()).clamp_min(0)


def _pooled(squares: Tensor, units: Sequence[str]) -> Tensor:
    """Return for each channel the mean over all channels with the same unit: (channels,)."""
    if not units:
        return squares.mean().expand_as(squares)
    names = np.asarray(units)
    return torch.stack([squares[torch.from_numpy(names == name)].mean() for name in names])


def _audible(scale: Tensor) -> Tensor:
    """Replace a scale of 0 (a flat channel) by the mean of the others, or by 1 if all are 0."""
    audible = scale[scale > 0]
    fallback = audible.mean() if len(audible) else torch.ones_like(scale[0])
    return torch.where(scale > 0, scale, fallback)


def _numbers(values: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return np.zeros(0)


@dataclass(frozen=True, eq=False)
class CForm:
    """C99 code of an STFT, which computes one frame of a window at a time to save memory.

    ``polyadic_frame`` fills `tensor` (I, J) with one frame of a window, whose rows are ring buffers: the first sample
    is at index `start`, and index 0 follows the last. If ``POLYADIC_MASKED_BYTES`` is defined, ``polyadic_observed``
    tells whether a frame of a channel is observed, and ``POLYADIC_BIT(present, n)`` whether sample n is present.

    Parameters
    ----------
    shape : (I, J, K) of the tensors
    code : the C code, in which names begin with ``polyadic_`` or ``POLYADIC_``. ``POLYADIC_CHANNELS``,
        ``POLYADIC_SAMPLES`` and ``POLYADIC_COLUMNS``, which is J, are defined outside, and so is
        ``polyadic_centre[channel]``, a level near that of the channel, to compute with small numbers
    defines : integer constants that the code needs, by name without ``POLYADIC_``
    tables : arrays that the code needs, by name without ``polyadic_``: float if they are floating point, else int
    work : number of floats in `work`
    mean : (I, J), array that the caller subtracts from every frame, or None
    scale : (channels,), a typical standard deviation of each channel, for test signals
    """

    shape: tuple[int, int, int]
    code: str
    defines: Mapping[str, int]
    tables: Mapping[str, NDArray[Any]]
    work: int
    mean: NDArray[np.float64] | None
    scale: NDArray[np.float64]


def recommended_stft(length: int, fs: float | None = None) -> STFT:
    """Return the STFT that `tensorize="auto"` uses: centred log amplitudes, with frames that suit the window length.

    The frame length is the power of two nearest to 1.28 s (in ratio), between 16 and 1,024 samples, or 128 samples if
    the sampling rate is unknown; at most half the window. The hop is an eighth of a frame, or larger if there would be
    more than 32 frames, but at most one frame.

    Parameters
    ----------
    length : number of samples in a window, at least 32
    fs : sampling rate in Hz

    Examples
    --------
    >>> stft = recommended_stft(128, fs=50.0)
    >>> stft.n_fft, stft.hop, stft.shape(9, 128)
    (64, 8, (9, 33, 9))
    >>> recommended_stft(1000, fs=100.0).shape(12, 1000)
    (12, 65, 31)
    """
    if length < 2 * SHORTEST_FRAME:
        raise PolyadicError(
            f"tensorize='auto' needs windows of at least {2 * SHORTEST_FRAME} samples, but they have {length}: cut "
            "longer ones (--seconds), transpose X to (N, channels, time), or pass tensorize=None if X already holds "
            "tensors"
        )
    wanted = _FRAME_SAMPLES if fs is None else _FRAME_SECONDS * fs
    n_fft = 2 ** round(math.log2(min(max(wanted, SHORTEST_FRAME), _LONGEST)))
    n_fft = min(n_fft, 1 << (length // 2).bit_length() - 1)
    hop = min(max(n_fft // 8, -(-(length - n_fft) // (_MOST_FRAMES - 1))), n_fft)
    return STFT(n_fft=n_fft, hop=hop, parts="log_amplitude", mean="auto")
