"""The augmentations against transcriptions for one window and one channel at a time, and the laws of their draws.

Appendix D.3 of the paper describes them; scipy's `butter`, `lfilter` and `interp1d` are the references.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import interp1d
from scipy.signal import butter, lfilter
from scipy.spatial.transform import Rotation
from scipy.stats import kstest
from torch import Tensor

from polyadic._util.random_streams import derive, uniform, window_keys
from polyadic.augment import Augmentation, Bandpass, Compose, Jitter, OneOf, Rotate3D
from polyadic.errors import PolyadicError
from polyadic.presets import preset
from polyadic.testing import AugmentationContract

BANDS = ((1.0, 20.0), (5.0, 24.5))
FS = 50.0
TRIADS = ((0, 1, 2), (3, 4, 5), (6, 7, 8))


def windows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_equally_likely(counts: Counter, outcomes: Sequence) -> None:
    """Every outcome, and no other, within four standard deviations of its equal share."""
    total, chance = sum(counts.values()), 1 / len(outcomes)
    assert set(counts) == set(outcomes)
    sigma = math.sqrt(total * chance * (1 - chance))
    for outcome in outcomes:
        assert abs(counts[outcome] - total * chance) <= 4 * sigma, counts


# ------------------------------------------------------- the contract, inherited


@dataclass(frozen=True)
class Scale(Augmentation):
    """An augmentation as a user may write it: each window times a random number from `low` to `low + 1`."""

    low: float = 0.5

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        return X * (self.low + uniform(keys, (1, 1), X.dtype))


class TestJitter(AugmentationContract):
    augmentation = Jitter(0.05)


class TestBandpass(AugmentationContract):
    augmentation = Bandpass(BANDS, FS)


class TestRotate3D(AugmentationContract):
    augmentation = Rotate3D(TRIADS)


class TestComposeAsThePaperDoes(AugmentationContract):
    augmentation = preset("har").augment
    shape = (16, 9, 128)


class TestOneOf(AugmentationContract):
    augmentation = OneOf([Jitter(0.05), Bandpass(BANDS, FS), Rotate3D(TRIADS), Scale()])


class Broken(Augmentation):
    """Breaks one promise, named by the function it is given."""

    def __init__(self, function: object) -> None:
        self.function = function

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        return self.function(X, uniform(keys, (1, 1), X.dtype))


@pytest.mark.parametrize(
    ("test", "function"),
    [
        ("shape_type_and_device_stay_the_same", lambda X, u: (X * u)[..., 1:]),
        ("finite_windows_stay_finite", lambda X, u: X * u / X.std(dim=2, keepdim=True)),
        ("single_and_double_precision_agree", lambda X, u: X * u if X.dtype == torch.float64 else X),
        ("input_is_not_changed", lambda X, u: X.mul_(u)),
        ("memory_layout_of_the_input_does_not_matter", lambda X, u: torch.empty_like(X).fill_(X.stride(2))),
        ("same_seed_sweep_and_ids_give_the_same_result", lambda X, u: X * torch.rand(())),
        ("same_seed_sweep_and_ids_give_the_same_result", lambda X, u: X * u + 0 * torch.rand(())),
        ("another_seed_sweep_or_window_id_gives_another_result", lambda X, u: 2 * X),
        ("rest_of_the_batch_does_not_matter", lambda X, u: X * u[:1]),
        ("rest_of_the_batch_does_not_matter", lambda X, u: X * u + 1e-9 * X.mean()),
    ],
)
def test_the_contract_detects_broken_implementations(test: str, function: object) -> None:
    class Contract(AugmentationContract):
        augmentation = Broken(function)

    with pytest.raises((AssertionError, RuntimeError)):
        getattr(Contract(), f"test_{test}")()


# ------------------------------------------------------------------------ jitter


@dataclass
class Noise:
    """The draws of `Jitter` for one batch, taken from the same keys: everything it needs, window by window."""

    keys: Tensor
    channels: int
    length: int
    kinds: np.ndarray = field(init=False)
    fast: np.ndarray = field(init=False)
    sizes: np.ndarray = field(init=False)
    points: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        shortest = min(100, self.length)
        each, all_ = (self.channels,), (self.channels, self.length)
        self.kinds = np.floor(3 * uniform(derive(self.keys, 0), each).numpy()).astype(int)
        self.fast = 2 * uniform(derive(self.keys, 1), all_, torch.float64).numpy() - 1
        lengths = uniform(derive(self.keys, 2), each).numpy() * np.float32(self.length - shortest + 1)
        self.sizes = shortest + np.floor(lengths).astype(int)
        self.points = 2 * uniform(derive(self.keys, 3), all_, torch.float64).numpy() - 1

    def slow(self, window: int, channel: int, size: int | None = None) -> np.ndarray:
        """The short sequence of one channel, stretched by scipy."""
        size = int(self.sizes[window, channel]) if size is None else size
        short = self.points[window, channel, :size]
        if size == 1:
            return np.full(self.length, short[0])
        return interp1d(np.arange(size), short)(np.linspace(0, size - 1, self.length))

    def all_kinds(self, window: int, channel: int) -> list[np.ndarray]:
        fast, slow = self.fast[window, channel], self.slow(window, channel)
        return [fast, slow, fast + slow]


def half_range(x: np.ndarray) -> float:
    return (x.max() - x.min()) / 2


def jitter_one_channel_at_a_time(X: Tensor, degree: float, keys: Tensor) -> np.ndarray:
    noise = Noise(keys, X.shape[1], X.shape[2])
    result = X.numpy().copy()
    for window, channel in np.ndindex(*X.shape[:2]):
        x = result[window, channel]
        chosen = noise.all_kinds(window, channel)[noise.kinds[window, channel]]
        result[window, channel] = x + degree * half_range(x) * chosen
    return result


@given(
    length=st.integers(1, 260),
    channels=st.integers(1, 4),
    degree=st.floats(0, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(-(2**70), 2**70),
    sweep=st.integers(0, 2**40),
    first=st.integers(0, 2**50),
)
def test_jitter_equals_its_transcription_for_any_key(
    length: int, channels: int, degree: float, dtype: torch.dtype, seed: int, sweep: int, first: int
) -> None:
    X, ids = windows(3, channels, length).to(dtype), torch.arange(first, first + 3)
    result = Jitter(degree)(X, ids, seed=seed, sweep=sweep)
    expected = jitter_one_channel_at_a_time(X.double(), degree, window_keys(seed, sweep, ids))
    tolerance = 3e-5 if dtype == torch.float32 else 1e-11
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def tossed() -> list[tuple[int, ...]]:
    """What kind of noise each of two channels got, read off the result, in 3000 windows."""
    X = windows(1, 2, 120).expand(3000, 2, 120)
    noise = Noise(window_keys(7, 0, torch.arange(3000)), 2, 120)
    added = (Jitter(1.0)(X, seed=7) - X).numpy()
    size = [half_range(x) for x in X[0].numpy()]
    return [
        tuple(
            next(
                kind
                for kind, candidate in enumerate(noise.all_kinds(window, channel))
                if np.allclose(added[window, channel], size[channel] * candidate, atol=1e-12)
            )
            for channel in range(2)
        )
        for window in range(3000)
    ]


def test_each_channel_has_a_coin_of_its_own(tossed: list[tuple[int, ...]]) -> None:
    assert_equally_likely(Counter(tossed), [(a, b) for a in range(3) for b in range(3)])


# ---------------------------------------------------------------------- bandpass


def three_filters(x: np.ndarray, bands: Sequence[tuple[float, float]], fs: float) -> list[np.ndarray]:
    """One channel through the first band, the second, and one after the other."""
    (b1, a1), (b2, a2) = (butter(1, band, btype="bandpass", fs=fs) for band in bands)
    first = lfilter(b1, a1, x)
    return [first, lfilter(b2, a2, x), lfilter(b2, a2, first)]


def filter_one_channel_at_a_time(X: Tensor, bandpass: Bandpass, kinds: np.ndarray) -> np.ndarray:
    result = X.numpy().copy()
    for window, channel in np.ndindex(*X.shape[:2]):
        result[window, channel] = three_filters(result[window, channel], bandpass.bands, bandpass.fs)[
            kinds[window, channel]
        ]
    return result


@pytest.mark.parametrize(
    ("bands", "fs", "length"),
    [
        pytest.param(((1, 20), (5, 24.5)), 50, 128, id="HAR"),
        pytest.param(((1, 30), (10, 50)), 500, 5000, id="PTB-XL"),
        pytest.param(((1, 20), (5, 24.5)), 50, 1, id="one sample"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bandpass_equals_its_transcription(
    bands: Sequence[tuple[float, float]], fs: float, length: int, dtype: torch.dtype
) -> None:
    X, ids, bandpass = windows(6, 3, length), torch.arange(6) + 40, Bandpass(bands, fs)
    kinds = np.floor(3 * uniform(window_keys(2, 5, ids), (3,)).numpy()).astype(int)
    assert set(kinds.ravel()) == {0, 1, 2}
    result = bandpass(X.to(dtype), ids, seed=2, sweep=5)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(result, filter_one_channel_at_a_time(X, bandpass, kinds), rtol=0, atol=tolerance)


# ---------------------------------------------------------------------- rotation


def test_rotations_are_uniform_over_all_rotations() -> None:
    axes = torch.eye(3, dtype=torch.float64).repeat(3, 1).expand(4000, -1, -1)
    R = Rotate3D(TRIADS)(axes, seed=5).reshape(4000, 3, 3, 3)
    assert torch.equal(R[:, 0], R[:, 1])
    R = R[:, 0]
    # Every entry of a uniform rotation has mean 0 and mean square 1/3 (variance of the square: 1/5 − 1/9).
    assert R.mean(dim=0).abs().max() < 4 * math.sqrt(1 / 3 / 4000)
    assert (R.square().mean(dim=0) - 1 / 3).abs().max() < 4 * math.sqrt((1 / 5 - 1 / 9) / 4000)
    # The angle has density (1 − cos θ)/π, also that of the turn from one window to the next.
    for turn in (R, R[::2] @ R[1::2].mT):
        trace = turn.diagonal(dim1=1, dim2=2).sum(dim=1)
        angle = torch.arccos(((trace - 1) / 2).clamp(-1, 1)).numpy()
        assert kstest(angle, lambda x: (x - np.sin(x)) / np.pi).pvalue > 0.001


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotation_equals_its_transcription_by_quaternions(dtype: torch.dtype) -> None:
    triads = [(4, 0, 2), (6, 5, 1)]
    X, ids = windows(5, 8, 30), torch.arange(5) * 31
    result = Rotate3D(triads)(X.to(dtype), ids, seed=1, sweep=2)
    draws = uniform(window_keys(1, 2, ids), (3,), torch.float64).numpy()
    expected = X.numpy().copy()
    for window in range(5):
        for triad in triads:
            u, v, w = draws[window]
            near, far = math.sqrt(1 - u), math.sqrt(u)
            v, w = 2 * math.pi * v, 2 * math.pi * w
            rotation = Rotation.from_quat(
                [near * math.sin(v), near * math.cos(v), far * math.sin(w), far * math.cos(w)]
            )
            for moment in range(30):
                expected[window, triad, moment] = rotation.apply(X[window, triad, moment].numpy())
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(result, expected, rtol=0, atol=5 * tolerance)


# ------------------------------------------------------------- several augmentations


def test_compositions_can_be_nested() -> None:
    X = windows(30, 9, 40)
    nested = Compose([OneOf([Jitter(0.1), Compose([Scale(), Rotate3D(TRIADS)])]), Bandpass(BANDS, FS)])
    keys = window_keys(0, 0, torch.arange(30))
    outer = derive(keys, 0)
    chosen = (uniform(derive(outer, -1), ()) * 2).long()
    jittered = Jitter(0.1).apply(X, derive(outer, 0))
    inner = derive(outer, 1)
    turned = Rotate3D(TRIADS).apply(Scale().apply(X, derive(inner, 0)), derive(inner, 1))
    expected = Bandpass(BANDS, FS).apply(torch.where(chosen[:, None, None] == 0, jittered, turned), derive(keys, 1))
    torch.testing.assert_close(nested(X), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3])
def test_one_of_picks_each_choice_with_equal_chance_for_each_window(count: int) -> None:
    X = torch.ones(3000, 2, 4)
    result = OneOf([Scale(10.0 * number) for number in range(count)])(X, seed=6)
    assert torch.equal(result, result[:, :1, :1].expand_as(result))
    assert_equally_likely(Counter((result[:, 0, 0] / 10).long().tolist()), range(count))


BATCH = windows(4, 9, 20)
REFUSED = [
    *((lambda value=value: Jitter(value), "degree must be a number of at least 0") for value in (-0.1, math.nan, None)),
    *((lambda band=band: Bandpass([(1, 20), band], fs=50), r"bands must satisfy 0 < low < high < fs/2 = 25 Hz, but one")
      for band in ((0, 10), (12, 10), (5, 25), (math.nan, 5))),
    *((lambda bands=bands: Bandpass(bands, fs=50), r"bands must be two pairs \(low, high\) in Hz, but are ")
      for bands in ([], [(1, 20)], (1, 20), None, [("a", "b")] * 2)),
    (lambda: Bandpass(BANDS, fs=None), "fs must be a number"),
    *((lambda triads=triads: Rotate3D(triads), "triads must be groups of three different channels >= 0, but are ")
      for triads in ([], [(0, 1)], [(0, 1, 2), (2, 3, 4)], [(-1, 0, 1)], (0, 1, 2), [(0.5, 1, 2)], None)),
    (lambda: Rotate3D([(7, 8, 9)])(BATCH), "triads contain channel 9, but X has only 9 channels"),
    (lambda: Compose([]), "expected one or more augmentations, but got "),
    (lambda: OneOf([Jitter(0.1), abs]), "expected one or more augmentations, but got "),
    (lambda: Jitter(0.1)(BATCH[0]), r"Jitter needs a floating-point batch \(windows, channels, time\)"),
    (lambda: Jitter(0.1)(BATCH.to(torch.int16)), r"Jitter needs a floating-point batch \(windows, channels, time\)"),
    (lambda: Jitter(0.1)(BATCH, torch.arange(3)), r"ids must have shape \(4,\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_settings_and_batches_that_make_no_sense_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(PolyadicError, match=f"^{message}"):
        call()
