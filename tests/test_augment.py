"""The augmentations against transcriptions for one window and one channel at a time, and the laws of their draws.

Appendix D.3 of the paper describes them; scipy's `butter`, `lfilter` and `interp1d` are the references.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import paper
from scipy.interpolate import interp1d
from scipy.signal import butter, lfilter
from scipy.spatial.transform import Rotation
from scipy.stats import kstest
from torch import Tensor

from polyadic import ATD
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


class TestJitterInWindowsShorterThanItsNoise(AugmentationContract):
    augmentation = Jitter(0.05)
    shape = (16, 3, 50)


class TestBandpass(AugmentationContract):
    augmentation = Bandpass(BANDS, FS)


class TestRotate3D(AugmentationContract):
    @pytest.fixture(autouse=True, params=[False, True], ids=["shared", "independent"])
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.augmentation = Rotate3D(TRIADS, independent=request.param)


class TestComposeAsThePaperDoes(AugmentationContract):
    augmentation = preset("har").augment
    shape = (16, 9, 128)


class TestOneOf(AugmentationContract):
    augmentation = OneOf([Jitter(0.05), Bandpass(BANDS, FS), Rotate3D(TRIADS), Scale()])


class TestAnAugmentationOfTheUsersOwn(AugmentationContract):
    augmentation = Scale()


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
        ("shape_type_and_device_stay_the_same", lambda X, u: (X * u).float()),
        ("finite_windows_stay_finite", lambda X, u: X * u / X.std(dim=2, keepdim=True)),
        ("single_and_double_precision_agree", lambda X, u: X * u if X.dtype == torch.float64 else X),
        ("input_is_not_changed", lambda X, u: X.mul_(u)),
        ("input_that_cannot_be_written_to_will_do", lambda X, u: X.mul_(u).div_(u)),
        ("memory_layout_of_the_input_does_not_matter", lambda X, u: torch.empty_like(X).fill_(X.stride(2))),
        ("same_seed_sweep_and_ids_give_the_same_result", lambda X, u: X * torch.rand(())),
        ("same_seed_sweep_and_ids_give_the_same_result", lambda X, u: X * u + 0 * torch.rand(())),
        ("another_seed_sweep_or_window_id_gives_another_result", lambda X, u: 2 * X),
        ("rest_of_the_batch_does_not_matter", lambda X, u: X * u[:1]),
        ("rest_of_the_batch_does_not_matter", lambda X, u: X * u * len(X)),
        ("rest_of_the_batch_does_not_matter", lambda X, u: X * u.flip(0)),
        ("rest_of_the_batch_does_not_matter", lambda X, u: X * u + 1e-9 * X.mean()),
    ],
)
def test_the_contract_detects_broken_implementations(test: str, function: object) -> None:
    class Contract(AugmentationContract):
        augmentation = Broken(function)

    with pytest.raises((AssertionError, RuntimeError)):
        getattr(Contract(), f"test_{test}")()


@pytest.mark.parametrize(
    "wrong", [windows(20), windows(9, 20), windows(1, 4, 9, 20), windows(4, 9, 20).to(torch.int16)]
)
def test_only_floating_point_batches_of_windows_are_augmented(wrong: Tensor) -> None:
    with pytest.raises(PolyadicError, match=r"needs a floating-point batch \(windows, channels, time\)"):
        Jitter(0.1)(wrong)


@pytest.mark.parametrize("ids", [torch.arange(3), torch.tensor([7]), torch.tensor(7), torch.arange(4)[None]])
def test_ids_that_do_not_match_the_windows_are_refused(ids: Tensor) -> None:
    for augmentation in (Jitter(0.1), Bandpass(BANDS, FS), Rotate3D(TRIADS)):
        with pytest.raises(PolyadicError, match=r"^ids must have shape \(4,\)"):
            augmentation(windows(4, 9, 20), ids)


def test_whole_batches_may_be_empty() -> None:
    for augmentation in (Jitter(0.1), Bandpass(BANDS, FS), Rotate3D(TRIADS), OneOf([Jitter(0.1), Rotate3D(TRIADS)])):
        assert augmentation(torch.empty(0, 9, 20)).shape == (0, 9, 20)


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


@pytest.mark.parametrize("length", [1, 2, 50, 99, 100, 101, 128, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jitter_equals_its_transcription(length: int, dtype: torch.dtype) -> None:
    X = windows(8, 3, length) * torch.tensor([[1.0], [1e-5], [300.0]])
    ids = torch.arange(8) * 12_345
    result = Jitter(0.2)(X.to(dtype), ids, seed=4, sweep=9)
    expected = jitter_one_channel_at_a_time(X, 0.2, window_keys(4, 9, ids))
    scale = X.abs().amax(dim=(0, 2))[:, None].numpy()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(result.numpy() / scale, expected / scale, rtol=0, atol=tolerance)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    length=st.integers(1, 260),
    channels=st.integers(1, 4),
    degree=st.floats(0, 3),
    seed=st.integers(-(2**70), 2**70),
    sweep=st.integers(0, 2**40),
    first=st.integers(0, 2**50),
)
def test_jitter_equals_its_transcription_for_any_key(
    length: int, channels: int, degree: float, seed: int, sweep: int, first: int
) -> None:
    X, ids = windows(3, channels, length), torch.arange(first, first + 3)
    result = Jitter(degree)(X, ids, seed=seed, sweep=sweep)
    expected = jitter_one_channel_at_a_time(X, degree, window_keys(seed, sweep, ids))
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-11)


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


def test_fast_slow_or_both_kinds_of_noise_have_equal_chance(tossed: list[tuple[int, ...]]) -> None:
    for channel in range(2):
        assert_equally_likely(Counter(kinds[channel] for kinds in tossed), range(3))


def test_each_channel_has_a_coin_of_its_own(tossed: list[tuple[int, ...]]) -> None:
    assert_equally_likely(Counter(tossed), [(a, b) for a in range(3) for b in range(3)])


def test_lengths_of_slow_noise_are_uniform_from_100_to_the_windows_length_inclusive() -> None:
    X = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat_interleave(52)[:103].expand(3000, 1, 103)
    noise = Noise(window_keys(3, 0, torch.arange(3000)), 1, 103)
    added = (Jitter(1.0)(X, seed=3) - X).numpy()
    lengths: Counter = Counter()
    for window in np.flatnonzero(noise.kinds[:, 0] == 1):
        stretched = {size: noise.slow(window, 0, size) for size in range(98, 104)}
        lengths.update(size for size, candidate in stretched.items() if np.allclose(added[window, 0], candidate))
    assert sum(lengths.values()) == np.sum(noise.kinds[:, 0] == 1)
    assert_equally_likely(lengths, [100, 101, 102, 103])


@pytest.mark.parametrize("length", [2, 50, 100])
def test_slow_noise_is_not_stretched_in_windows_of_100_samples_or_less(length: int) -> None:
    X = torch.linspace(-1, 1, length, dtype=torch.float64).expand(40, 2, length)
    noise = Noise(window_keys(0, 0, torch.arange(40)), 2, length)
    added = (Jitter(1.0)(X) - X).numpy()
    slow = noise.kinds == 1
    assert slow.any()
    np.testing.assert_allclose(added[slow], noise.points[slow], atol=1e-12)


def test_windows_of_one_sample_have_no_range_and_get_no_noise() -> None:
    X = windows(40, 2, 1)
    assert torch.equal(Jitter(1.0)(X), X)


def test_slow_noise_is_smooth_and_fast_noise_is_not() -> None:
    """Over long windows the steps of slow noise are smaller than its range, in the mean."""
    X = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat_interleave(5000).expand(60, 1, 10_000)
    noise = Noise(window_keys(0, 0, torch.arange(60)), 1, 10_000)
    added = (Jitter(1.0)(X) - X).numpy()[:, 0]
    steps = np.abs(np.diff(added)).mean(axis=1)
    # Two independent numbers from U[-1, 1] differ by 2/3 in the mean.
    assert np.abs(steps[noise.kinds[:, 0] == 0] - 2 / 3).max() < 0.05
    assert np.median(steps[noise.kinds[:, 0] == 1]) < 0.45


def test_noise_reaches_the_degree_times_half_the_range_and_no_further() -> None:
    X = 4 + torch.tensor([[1.0], [1e-6], [25.0]]) * windows(400, 3, 128)
    noise = Noise(window_keys(0, 0, torch.arange(400)), 3, 128)
    amplitude = (X.amax(dim=2) - X.amin(dim=2)) / 2
    added = ((Jitter(0.3)(X) - X).abs().amax(dim=2) / amplitude).numpy()
    one, both = noise.kinds < 2, noise.kinds == 2
    # The second channel is tiny beside its offset: some rounding of the offset shows.
    assert 0.295 < added[one].max() < 0.3 + 1e-7
    assert 0.45 < added[both].max() < 0.6 + 1e-7
    assert np.percentile(added[one], 5) > 0.27


def test_fast_noise_is_uniform_from_minus_one_to_one() -> None:
    X = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat_interleave(50).expand(300, 1, 100)
    noise = Noise(window_keys(0, 0, torch.arange(300)), 1, 100)
    added = (Jitter(1.0)(X) - X).numpy()[:, 0][noise.kinds[:, 0] == 0]
    assert kstest(added.ravel(), "uniform", args=(-1, 2)).pvalue > 0.001


@settings(derandomize=True, deadline=None, max_examples=30)
@given(exponent=st.floats(-9, 6), offset=st.floats(-5, 5), degree=st.floats(0.001, 2))
def test_noise_follows_the_unit_of_the_channel_but_not_its_offset(
    exponent: float, offset: float, degree: float
) -> None:
    X, unit = windows(4, 2, 120), 10.0**exponent
    expected = X + degree * (Jitter(1.0)(X) - X)
    torch.testing.assert_close(Jitter(degree)(unit * (X + offset)) / unit - offset, expected, rtol=0, atol=1e-9)


def test_a_silent_channel_and_a_degree_of_zero_get_no_noise() -> None:
    X = windows(6, 2, 150)
    X[:, 1] = 7.0
    assert torch.equal(Jitter(0.0)(X), X)
    jittered = Jitter(0.5)(X)
    assert torch.equal(jittered[:, 1], X[:, 1])
    assert bool((jittered[:, 0] != X[:, 0]).any(dim=1).all())


@pytest.mark.parametrize("degree", [-0.1, math.nan, math.inf, None, "much"])
def test_degrees_that_are_not_numbers_of_at_least_zero_are_refused(degree: object) -> None:
    with pytest.raises(PolyadicError, match=r"^degree must be a number of at least 0, but is "):
        Jitter(degree)


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
        pytest.param(((1, 30), (10, 49)), 100, 3000, id="Sleep-EDF"),
        pytest.param(((1, 20), (5, 24.5)), 50, 128, id="HAR"),
        pytest.param(((1, 30), (10, 50)), 500, 5000, id="PTB-XL"),
        pytest.param(((1, 30), (10, 50)), 200, 6000, id="MGH"),
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


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    edges=st.lists(st.floats(0.002, 0.498), min_size=4, max_size=4, unique=True),
    fs=st.floats(1, 5000),
    length=st.integers(1, 400),
)
def test_filters_by_blocks_equal_filters_by_fourier_transform(edges: list[float], fs: float, length: int) -> None:
    a, b, c, d = (fs * edge for edge in edges)
    bandpass = Bandpass([(min(a, b), max(a, b)), (min(c, d), max(c, d))], fs)
    X, kinds = windows(3, 3, length), torch.tensor([[0, 1, 2], [2, 2, 0], [1, 1, 1]])
    expected = filter_one_channel_at_a_time(X, bandpass, kinds.numpy())
    np.testing.assert_allclose(bandpass._filter_in_blocks(X, kinds), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(bandpass._filter_by_fft(X, kinds), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["sleep_edf", "har", "ptb_xl", "mgh"])
def test_both_filters_agree_in_single_precision_on_the_papers_windows(name: str) -> None:
    bandpass, shape = preset(name).augment.steps[1], preset(name).shape
    X = (windows(3, *shape) + 1).float()
    kinds = torch.arange(3 * shape[0]).reshape(3, -1) % 3
    torch.testing.assert_close(
        bandpass._filter_in_blocks(X, kinds), bandpass._filter_by_fft(X, kinds), rtol=0, atol=1e-4
    )


def test_filters_start_at_rest() -> None:
    """A constant passes at first, and is gone at the end: nothing is assumed about the time before the window."""
    X = torch.ones(8, 3, 500, dtype=torch.float64)
    result = Bandpass(BANDS, FS)(X)
    first = [three_filters(np.ones(1), BANDS, FS)[kind][0] for kind in range(3)]
    for value in result[..., 0].flatten().tolist():
        assert min(abs(value - response) for response in first) < 1e-12
    assert result[..., -1].abs().max() < 1e-6


@pytest.fixture(scope="module")
def filtered() -> list[tuple[int, ...]]:
    """Which of the three filters each of two channels got, read off the result, in 3000 windows."""
    X = windows(1, 2, 30)
    candidates = [three_filters(x, BANDS, FS) for x in X[0].numpy()]
    result = Bandpass(BANDS, FS)(X.expand(3000, 2, 30), seed=11).numpy()
    return [
        tuple(
            next(kind for kind in range(3) if np.allclose(window[channel], candidates[channel][kind], atol=1e-12))
            for channel in range(2)
        )
        for window in result
    ]


def test_one_band_the_other_or_both_have_equal_chance(filtered: list[tuple[int, ...]]) -> None:
    for channel in range(2):
        assert_equally_likely(Counter(kinds[channel] for kinds in filtered), range(3))


def test_each_channel_has_a_filter_of_its_own(filtered: list[tuple[int, ...]]) -> None:
    assert_equally_likely(Counter(filtered), [(a, b) for a in range(3) for b in range(3)])


def test_bandpass_keeps_frequencies_within_the_band_and_removes_others() -> None:
    time = torch.arange(4000, dtype=torch.float64) / 200
    waves = torch.stack([torch.sin(2 * torch.pi * f * time) for f in (0.01, 5.0, 95.0)])[None]
    bandpass = Bandpass([(2, 12), (2, 12)], fs=200)
    power = bandpass._filter_in_blocks(waves, torch.zeros(1, 3, dtype=torch.long))[..., 2000:].square().mean(dim=2)[0]
    assert power[1] > 0.4
    assert power[0] < 0.01
    assert power[2] < 0.01


@pytest.mark.parametrize("band", [(0, 10), (-1, 10), (10, 10), (12, 10), (5, 25), (5, 30), (math.nan, 5)])
@pytest.mark.parametrize("place", [0, 1])
def test_bands_outside_zero_to_half_the_sampling_rate_are_refused(band: tuple[float, float], place: int) -> None:
    bands = [(1, 20), (5, 24)]
    bands[place] = band
    with pytest.raises(PolyadicError, match=r"^bands must satisfy 0 < low < high < fs/2 = 25 Hz, but one is \("):
        Bandpass(bands, fs=50)


@pytest.mark.parametrize("bands", [[], [(1, 20)], [(1, 20)] * 3, (1, 20), [(1, 2, 3), (1, 2)], None, [("a", "b")] * 2])
def test_bands_that_are_not_two_pairs_are_refused(bands: object) -> None:
    with pytest.raises(PolyadicError, match=r"^bands must be two pairs \(low, high\) in Hz, but are "):
        Bandpass(bands, fs=50)


@pytest.mark.parametrize("fs", [None, "50", math.inf, math.nan, -50])
def test_sampling_rates_that_are_not_numbers_are_refused(fs: object) -> None:
    with pytest.raises(PolyadicError, match=r"^fs must be a number"):
        Bandpass(BANDS, fs=fs)


# ---------------------------------------------------------------------- rotation


def matrices(rotate: Rotate3D, count: int, triads: int, **key: int) -> Tensor:
    """The rotation of every triad, read off what happens to unit vectors: (count, triads, 3, 3)."""
    axes = torch.eye(3, dtype=torch.float64).repeat(triads, 1).expand(count, -1, -1)
    return rotate(axes, **key).reshape(count, triads, 3, 3)


@pytest.mark.parametrize("independent", [False, True])
def test_rotations_are_orthogonal_with_determinant_one(independent: bool) -> None:
    R = matrices(Rotate3D(TRIADS, independent=independent), 200, 3)
    torch.testing.assert_close(R @ R.mT, torch.eye(3, dtype=torch.float64).expand_as(R), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(200, 3, dtype=torch.float64), rtol=0, atol=1e-12)


def test_all_sensors_turn_together() -> None:
    R = matrices(Rotate3D(TRIADS), 50, 3)
    assert torch.equal(R, R[:, :1].expand_as(R))
    assert (R[1:] - R[:-1]).abs().amax(dim=(1, 2, 3)).min() > 1e-3


def test_independent_sensors_turn_each_by_itself() -> None:
    R = matrices(Rotate3D(TRIADS, independent=True), 50, 3)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert (R[:, a] - R[:, b]).abs().amax(dim=(1, 2)).min() > 1e-3


@pytest.mark.parametrize("independent", [False, True])
def test_rotations_are_uniform_over_all_rotations(independent: bool) -> None:
    R = matrices(Rotate3D(TRIADS, independent=independent), 4000, 3, seed=5)
    # Every entry of a uniform rotation has mean 0 and mean square 1/3 (variance of the square: 1/5 − 1/9).
    for triad in range(3):
        assert R[:, triad].mean(dim=0).abs().max() < 4 * math.sqrt(1 / 3 / 4000)
        assert (R[:, triad].square().mean(dim=0) - 1 / 3).abs().max() < 4 * math.sqrt((1 / 5 - 1 / 9) / 4000)
        # The angle has density (1 − cos θ)/π, also that of the turn from one window to the next.
        for turn in (R[:, triad], R[::2, triad] @ R[1::2, triad].mT):
            trace = turn.diagonal(dim1=1, dim2=2).sum(dim=1)
            angle = torch.arccos(((trace - 1) / 2).clamp(-1, 1)).numpy()
            assert kstest(angle, lambda x: (x - np.sin(x)) / np.pi).pvalue > 0.001


def test_independent_rotations_are_uncorrelated() -> None:
    R = matrices(Rotate3D(TRIADS, independent=True), 4000, 3)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert (R[:, a].flatten(1).T @ R[:, b].flatten(1) / 4000).abs().max() < 5 / 3 / math.sqrt(4000)


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotation_equals_its_transcription_by_quaternions(independent: bool, dtype: torch.dtype) -> None:
    triads = [(4, 0, 2), (6, 5, 1)]
    X, ids = windows(5, 8, 30), torch.arange(5) * 31
    result = Rotate3D(triads, independent=independent)(X.to(dtype), ids, seed=1, sweep=2)
    draws = uniform(window_keys(1, 2, ids), (2 if independent else 1, 3), torch.float64).numpy()
    expected = X.numpy().copy()
    for window in range(5):
        for number, triad in enumerate(triads):
            u, v, w = draws[window, number if independent else 0]
            near, far = math.sqrt(1 - u), math.sqrt(u)
            v, w = 2 * math.pi * v, 2 * math.pi * w
            rotation = Rotation.from_quat(
                [near * math.sin(v), near * math.cos(v), far * math.sin(w), far * math.cos(w)]
            )
            for moment in range(30):
                expected[window, triad, moment] = rotation.apply(X[window, triad, moment].numpy())
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(result, expected, rtol=0, atol=5 * tolerance)


def test_channels_outside_the_triads_are_untouched() -> None:
    X = windows(5, 8, 30)
    result = Rotate3D([(4, 0, 2), (6, 5, 1)])(X)
    assert torch.equal(result[:, [3, 7]], X[:, [3, 7]])
    for channel in (0, 1, 2, 4, 5, 6):
        assert not torch.allclose(result[:, channel], X[:, channel])


def test_lengths_and_angles_between_sensors_are_kept_when_they_turn_together() -> None:
    X = windows(5, 9, 30)
    result = Rotate3D(TRIADS)(X)
    for a in TRIADS:
        for b in TRIADS:
            torch.testing.assert_close((result[:, a] * result[:, b]).sum(1), (X[:, a] * X[:, b]).sum(1))


@pytest.mark.parametrize(
    "triads",
    [[], [(0, 1)], [(0, 1, 2, 3)], [(0, 1, 1)], [(0, 1, 2), (2, 3, 4)], [(-1, 0, 1)], (0, 1, 2), [(0.5, 1, 2)], None],
)
def test_triads_that_are_not_three_different_channels_each_are_refused(triads: object) -> None:
    with pytest.raises(PolyadicError, match=r"^triads must "):
        Rotate3D(triads)


def test_triads_beyond_the_last_channel_are_refused() -> None:
    with pytest.raises(PolyadicError, match=r"^triads contain channel 9, but X has only 9 channels"):
        Rotate3D([(7, 8, 9)])(windows(2, 9, 20))


# ------------------------------------------------------------- several augmentations


def test_compose_equals_its_steps_in_order_with_keys_derived_by_number() -> None:
    steps = [Jitter(0.2), Bandpass(BANDS, FS), Rotate3D(TRIADS), Jitter(0.1)]
    X, ids = windows(6, 9, 128), torch.arange(6) + 100
    keys = window_keys(8, 3, ids)
    expected = X
    for number, step in enumerate(steps):
        expected = step.apply(expected, derive(keys, number))
    assert torch.equal(Compose(steps)(X, ids, seed=8, sweep=3), expected)


def test_the_order_of_the_steps_matters() -> None:
    X = windows(6, 9, 128)
    jitter, bandpass = Jitter(1.0), Bandpass(BANDS, FS)
    there, back = Compose([jitter, bandpass])(X), Compose([bandpass, jitter])(X)
    assert (there - back).abs().max() > 0.1


def test_the_same_step_twice_draws_twice() -> None:
    X = windows(6, 3, 128)
    once, twice = Compose([Scale()])(X), Compose([Scale(), Scale()])(X)
    factors = [(Y / X)[:, 0, 0] for Y in (once, twice)]
    assert (factors[1] - factors[0].square()).abs().min() > 1e-6


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


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_one_of_picks_each_choice_with_equal_chance_for_each_window(count: int) -> None:
    X = torch.ones(3000, 2, 4)
    result = OneOf([Scale(10.0 * number) for number in range(count)])(X, seed=6)
    assert torch.equal(result, result[:, :1, :1].expand_as(result))
    assert_equally_likely(Counter((result[:, 0, 0] / 10).long().tolist()), range(count))


def test_one_of_gives_each_window_exactly_its_chosen_augmentation() -> None:
    choices = [Jitter(0.3), Bandpass(BANDS, FS), Rotate3D(TRIADS)]
    X, ids = windows(40, 9, 60), torch.arange(40) * 3
    keys = window_keys(2, 1, ids)
    chosen = (uniform(derive(keys, -1), ()) * 3).long()
    results = torch.stack([choice.apply(X, derive(keys, number)) for number, choice in enumerate(choices)])
    expected = results[chosen, torch.arange(40)]
    torch.testing.assert_close(OneOf(choices)(X, ids, seed=2, sweep=1), expected, rtol=0, atol=1e-12)


def test_augmentations_that_no_window_chose_are_not_called() -> None:
    class Fussy(Augmentation):
        def apply(self, X: Tensor, keys: Tensor) -> Tensor:
            return X / X.max()

    X = windows(1, 9, 20)
    for seed in range(20):
        assert bool(torch.isfinite(OneOf([Fussy(), Rotate3D(TRIADS), Scale()])(X, seed=seed)).all())


@pytest.mark.parametrize("combine", [Compose, OneOf])
@pytest.mark.parametrize("members", [[], [Jitter(0.1), abs], [None], ["jitter"]])
def test_combinations_of_nothing_or_of_other_things_are_refused(combine: type, members: list) -> None:
    with pytest.raises(PolyadicError, match=r"^expected one or more augmentations, but got "):
        combine(members)


# --------------------------------------------------------------------- in a fit


class Recorder(Augmentation):
    """Notes what a fit asks for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, tuple[int, ...]]] = []

    def apply(self, X: Tensor, keys: Tensor) -> Tensor:
        return X

    def __call__(self, X: Tensor, ids: Tensor | None = None, *, seed: int = 0, sweep: int = 0) -> Tensor:
        assert ids is not None
        self.calls.append((seed, sweep, tuple(ids.tolist())))
        return super().__call__(X, ids, seed=seed, sweep=sweep)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_full_batch_fits_use_sweep_0_throughout_and_others_count(batch_size: int | None) -> None:
    recorder = Recorder()
    model = paper(ATD, rank=2, augment=recorder, beta=0, batch_size=batch_size, max_sweeps=3, tol=0, random_state=13)
    model.set_params(device="cpu").fit(windows(10, 4, 12).numpy())
    sweeps = {sweep for _, sweep, _ in recorder.calls}
    assert sweeps == ({0} if batch_size is None else {0, 1, 2})
    assert {seed for seed, _, _ in recorder.calls} == {13}
    for sweep in sweeps:
        ids = {number for _, s, numbers in recorder.calls for number in numbers if s == sweep}
        assert ids == set(range(10))
