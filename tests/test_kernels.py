"""The fused kernels against the plain code: on a GPU where there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from problems import paper

from polyadic import ATD, CPD
from polyadic._util import random_streams as draws
from polyadic.augment import Bandpass, Compose, Jitter, Rotate3D
from polyadic.augment.signals import _JITTER_STREAMS, _filter_sections
from polyadic.core import step as als
from polyadic.core.algebra import contract, gram, initial_factors, khatri_rao, ridge_inverse
from polyadic.core.solve import Settings, plain_sweep
from polyadic.core.tensorizer import Layout
from polyadic.data.batches import Samples, WindowSource, to_device
from polyadic.scale.gpu import cuda_graphs, device_batches
from polyadic.scale.gpu.kernels import signals, steps
from polyadic.spectral import STFT

long = pytest.mark.long  # Triton's interpreter takes seconds for what a GPU does in no time
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


def close(found, expected, tolerance=2e-6):
    found, expected = found.double(), expected.double()
    return float((found - expected).norm()) <= tolerance * float(expected.norm()) + 1e-30


@pytest.mark.parametrize("shape", [(3, 2, 150), (1, 2, 2)])
def test_jitter_draws_the_same_noise(shape, monkeypatch):
    X = torch.randn(shape, device=DEVICE)
    keys = draws.window_keys(1, 2, torch.arange(shape[0])).to(DEVICE)
    monkeypatch.setenv("POLYADIC_PLAIN", "1")
    expected = Jitter(0.3).apply(X, keys)
    found = signals.jitter(X, keys, 0.3, _JITTER_STREAMS, min(100, shape[2]))
    assert close(found, expected)
    assert not torch.equal(found, X)


@pytest.mark.parametrize("shape", [(3, 2, 150), (1, 3, 1)])
def test_biquads_are_the_recursive_filter(shape, monkeypatch):
    X = torch.randn(shape).cumsum(dim=2)
    bandpass = Bandpass([(1, 20), (5, 24)], fs=50)
    kind = torch.randint(3, shape[:2])
    found = signals.biquads(X.to(DEVICE), kind.to(DEVICE), _filter_sections(bandpass, DEVICE))
    assert close(found.cpu(), bandpass._by_scipy(X, kind), 1e-5)


def bases(rank, sizes=(3, 6, 4)):
    factors = [torch.randn(size, rank, dtype=torch.float64, device=DEVICE) for size in sizes]
    return factors, torch.stack([factor.T @ factor for factor in factors])


def limits(rank):
    return torch.tensor([1 / (4 * rank * 2.22e-16), 1e300], dtype=torch.float64, device=DEVICE)


@pytest.mark.parametrize("rank", [1, 5, 33])
def test_inverse_is_the_ridge_inverse(rank):
    factors, grams = bases(rank)
    flag = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    ridge = torch.tensor(0.01, dtype=torch.float64, device=DEVICE)
    V, product = steps.inverse(grams, -1, ridge, limits(rank), flag)
    assert close(product, gram(factors), 1e-14)
    assert close(V, ridge_inverse(gram(factors), 0.01), 1e-9)
    half = torch.randn(rank, rank + 2, dtype=torch.float64, device=DEVICE)
    S = half @ half.T
    V, _ = steps.inverse(grams, 1, ridge, limits(rank), flag, S)
    assert close(V, ridge_inverse(S * grams[0] * grams[2], 0.01), 1e-9)
    assert int(flag) == 0


@pytest.mark.parametrize("trouble", ["singular", "nan"])
def test_inverse_raises_its_flag(trouble):
    _, grams = bases(3)
    grams[:, 2] = grams[:, 1]
    grams[:, :, 2] = grams[:, :, 1]
    if trouble == "nan":
        grams[0, 0, 0] = math.nan
    flag = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    steps.inverse(grams, -1, torch.zeros((), dtype=torch.float64, device=DEVICE), limits(3), flag)
    assert int(flag) == 1


@pytest.mark.parametrize(("rank", "sizes"), [(5, (3, 6, 4)), (1, (1, 1, 1)), (1, (2, 150, 3)), (32, (14, 5, 33))])
def test_contract_sums_over_a_mode(rank, sizes):
    first_size, J, K = sizes
    Y = torch.randn(first_size * J * K, rank, device=DEVICE)
    A, B, C = (torch.randn(size, rank, device=DEVICE) for size in sizes)
    whole = Y.reshape(first_size, J, K, rank).movedim(-1, 0)
    last = steps.contract(Y, C, first_size * J, K * rank, rank, torch.float32)
    assert close(last.reshape(first_size, J, rank).movedim(-1, 0), contract(whole, 2, C), 1e-5)
    first = steps.contract(Y, A, J * K, rank, J * K * rank, torch.float64)
    assert first.dtype == torch.float64
    assert close(first.reshape(J, K, rank).movedim(-1, 0), contract(whole, 0, A), 1e-5)
    middle = steps.contract(last, B, first_size, J * rank, rank, torch.float32)
    assert close(middle.T, contract(contract(whole, 2, C), 1, B), 1e-5)


@pytest.mark.parametrize("rank", [5, 32])
@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (3, (1, 5, 1)),
        *(pytest.param(*case, marks=long) for case in ((70, (9, 37, 1)), (130, (2, 27, 19)), (1, (2, 1, 2)))),
    ],
)
def test_projections_solve_the_batch(rows, sizes, rank):
    factors, _ = bases(rank, sizes)
    factors = [factor.float() * 10.0 ** (mode - 2) for mode, factor in enumerate(factors)]
    factors[1][:, 0] = 0.0
    T = torch.randn(rows, math.prod(sizes), device=DEVICE).half()
    V = torch.randn(rank, rank, dtype=torch.float64, device=DEVICE)
    V = V + V.T
    peaks = torch.stack([factor.abs().amax(dim=0) for factor in factors])
    K = khatri_rao(factors)
    M, ls = steps.least_squares(steps.project_halves(T, steps.halves(factors, peaks)), V, peaks)
    assert M.dtype == torch.float64
    assert close(M, T.double() @ K.double())
    assert close(ls, T.double() @ K.double() @ V)


@pytest.mark.parametrize("rank", [1, 32])
@pytest.mark.parametrize(("rows", "width"), [(1, 4), (70, 136)])
def test_collect_is_the_product_with_the_coefficients(rows, width, rank):
    T = torch.randn(rows, width, device=DEVICE).half()
    X = torch.randn(rows, rank, device=DEVICE) * torch.logspace(-6, 6, rank, device=DEVICE)
    X[:, rank - 1] = 0.0
    Y = torch.randn(width, rank, device=DEVICE)
    steps.collect(T, X, X.abs().amax(dim=0), Y)
    expected = T.double().T @ X.double()
    for found, column in zip(Y.T, expected.T, strict=True):
        assert close(found, column)


@pytest.mark.parametrize(("count", "rank"), [(3, 5), (40, 32)])
def test_solve_moves_a_basis_and_renews_what_follows(count, rank):
    exact = {"dtype": torch.float64, "device": DEVICE}
    mttkrp, V, base = (torch.randn(rows, rank, **exact) for rows in (count, rank, count))
    expected = base.lerp(mttkrp @ V, 0.3)
    narrow, gram_, peak = base.float(), V.clone(), base[0].float()
    steps.solve(mttkrp, V, base, narrow, gram_, peak, torch.tensor(0.3, **exact))
    assert close(base, expected, 1e-14)
    assert close(gram_, expected.T @ expected, 1e-14)
    assert torch.equal(narrow, base.float())
    assert torch.equal(peak, narrow.abs().amax(dim=0))


class Stream:
    """A stream that is always up to date."""

    def __init__(self, *_, **__) -> None:
        self.wait_stream = self.wait_event = self.record_event = lambda *_: None


@pytest.fixture
def streams(monkeypatch):
    """Streams that a CPU has not."""
    if not torch.cuda.is_available():
        for name, value in {"Stream": Stream, "current_stream": Stream, "stream": lambda _: nullcontext()}.items():
            monkeypatch.setattr(torch.cuda, name, value)


STEPS = [
    (2, 2.0, 3, 4),
    *(pytest.param(*case, marks=long) for case in ((1, 0.0, 17, 4), (2, 50.0, 4, 20), (2, 1.0, 32, 3))),
]


@pytest.mark.parametrize(("views", "beta", "rank", "batch"), STEPS)
def test_steps_are_those_of_als(views, beta, rank, batch, streams):
    objective = als.Objective(alpha=1e-3, beta=beta, rounds=2)
    settings = Settings("blend", 0.3, batch, 5, 1e-3, 3, 0)
    plain = als.State(initial_factors((3, 6, 4), rank, 0, torch.float32, DEVICE))
    state = als.State([factor.clone() for factor in plain.factors])
    fused = cuda_graphs.Steps(objective, settings, views, state)
    totals = torch.zeros(5, dtype=torch.float64, device=DEVICE)
    for stage in range(2):
        plain.energy = None
        fused.load(state)
        totals.zero_()
        for _ in range(2):
            T = torch.randn(views * batch, 3, 6, 4, device=DEVICE).half()
            totals += als.step(T.float(), plain, objective, views, learning_rate=0.3)
            fused.step(T)
            energies = torch.stack([view.double().square().sum() for view in T.chunk(views)])
            fused.totals[:views] += energies
        fused.unload(state)
        assert int(fused.flag) == 0
        assert close(fused.totals, totals, 1e-5), stage
        assert all(close(found, factor, 1e-4) for found, factor in zip(state.factors, plain.factors, strict=True))
        assert close(state.energy, plain.energy, 1e-4)


# --------------------------------------------------------- whole sweeps, with graphs that a CPU has not


class Graph:
    """A graph that runs what it would have captured."""

    def __init__(self, work) -> None:
        self.replay = work


def write_halves(transform, X, T, into=STFT.into):
    """What the kernel does: write float16 tensors, and return their squared norms."""
    whole = torch.empty(T.shape)
    into(transform, X, whole)
    T.copy_(whole)
    return T.double().square().flatten(1).sum(dim=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="whole fits are tested below")
@pytest.mark.parametrize("views", [Compose([Jitter(0.05), Rotate3D([(0, 1, 2)])]), pytest.param(None, marks=long)])
@pytest.mark.parametrize("resident", [pytest.param(0.0, marks=long), 0.6])
def test_captured_sweeps_are_the_plain_ones(resident, views, streams, monkeypatch):
    X = torch.randn(21, 3, 96).cumsum(dim=2)
    transform = STFT(32, 16, floor="channel").calibrated(X)
    source = WindowSource(Samples(X), transform, views, 3, DEVICE, torch.float32)
    objective, settings = als.Objective(1e-3, beta=2.0 * (views is not None)), Settings("blend", 0.3, 8, 5, 1e-3, 3, 0)
    expected = als.State(initial_factors(transform.shape(3, 96), 4, 0, torch.float32, DEVICE))
    state = als.State([factor.clone() for factor in expected.factors])
    plain = plain_sweep(source, objective, settings)
    terms = plain(expected, 0)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**30))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(device_batches, "_RESIDENT_SHARE", resident)
    monkeypatch.setattr(
        device_batches.BatchGroups,
        "_capture",
        lambda self, X, T, count: Graph(lambda: self._transform(X, T, count)),
    )
    monkeypatch.setattr(
        cuda_graphs.Sweeps, "_capture", lambda self, batches: Graph(lambda: [self._steps.step(T) for T in batches])
    )
    monkeypatch.setattr(STFT, "into", write_halves)
    halves = Layout((0, 2, 1), half=True, capturable=True, row_step=112)
    monkeypatch.setattr(STFT, "layout", lambda self, length, device: halves)
    sweep = cuda_graphs.captured_sweep(source, objective, settings, transform.shape(3, 96), 4, plain)
    assert sweep is not plain
    assert cuda_graphs.captured_sweep(source, objective, settings, transform.shape(3, 96), 300, plain) is plain
    assert close(sweep(state, 0), terms, 1e-3)
    assert all(close(found, factor, 2e-3) for found, factor in zip(state.factors, expected.factors, strict=True))


# ------------------------------------------------------------------- whole fits, on a GPU only

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
AUGMENT = Compose([Jitter(0.05), Bandpass([(1, 20), (5, 24)], fs=50), Rotate3D([(0, 1, 2)])])


def model(**other):
    settings = {"rank": 6, "tensorize": STFT(64, 4, floor="channel"), "augment": AUGMENT, "batch_size": 32}
    return paper(ATD, **settings | {"max_sweeps": 4, "tol": 0.0, "random_state": 3} | other)


def both(monkeypatch, X, **other):
    monkeypatch.delenv("POLYADIC_PLAIN", raising=False)
    fast = model(**other).fit(X)
    monkeypatch.setenv("POLYADIC_PLAIN", "1")
    return fast, model(**other).fit(X)


@on_gpu
@pytest.mark.parametrize("stretch", [2**31, 2**20, 1])
@pytest.mark.parametrize("place", ["host", "device", "streamed", "int16"])
def test_a_captured_fit_is_the_plain_one(stretch, place, monkeypatch):
    monkeypatch.setattr(device_batches, "_GROUP_BYTES", stretch)
    X = torch.randn(203, 3, 128).cumsum(dim=2)
    if place == "streamed":
        monkeypatch.setattr(device_batches, "_RESIDENT_SHARE", 0.0)
    if place == "int16":
        X = (X * 1000).to(torch.int16)
    fast, plain = both(monkeypatch, X.to(DEVICE) if place == "device" else X.numpy())
    for found, expected in zip(fast.factors_, plain.factors_, strict=True):
        assert close(torch.as_tensor(found), torch.as_tensor(expected), 1e-3)
    for name, values in fast.history_.items():
        if name != "seconds":
            assert values == pytest.approx(plain.history_[name], rel=3e-3, abs=1e-6), name


@on_gpu
def test_a_default_fit_on_a_gpu_is_that_of_a_cpu():
    X = torch.randn(3000, 3, 128).cumsum(dim=2)
    settings = {"rank": 4, "max_sweeps": 40, "tol": 0.0}
    host, device = CPD(device="cpu", **settings).fit(X), CPD(device=DEVICE, **settings).fit(X.to(DEVICE))
    assert host.compression_["ranks"] == device.compression_["ranks"]
    assert device.history_["loss"] == pytest.approx(host.history_["loss"], rel=1e-4)
    for found, expected in zip(device.factors_, host.factors_, strict=True):
        assert close(torch.as_tensor(found), torch.as_tensor(expected), 1e-2)


@on_gpu
def test_large_batches_reach_a_gpu_unchanged():
    batch = torch.randint(-(2**15), 2**15, (5001, 4, 1001), dtype=torch.int16)
    assert torch.equal(to_device(batch, DEVICE).cpu(), batch)


@on_gpu
def test_a_singular_sweep_is_left_to_the_plain_code(monkeypatch):
    X = torch.randn(40, 1, 16)
    with pytest.warns(RuntimeWarning, match="singular"):
        fast = model(rank=30, alpha=0.0, beta=0.0, augment=None, tensorize=STFT(16, 4, floor="channel")).fit(X)
    assert all(bool(torch.isfinite(torch.as_tensor(factor)).all()) for factor in fast.factors_)


@on_gpu
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_one_step_is_within_a_thousandth_of_float64_on_the_cpu(scale):
    X = torch.randn(128, 3, 64, dtype=torch.float64).cumsum(dim=2) * scale
    exact = model(device="cpu", max_sweeps=1, batch_size=128, beta=2.0).fit(X)
    fast = model(device="cuda", max_sweeps=1, batch_size=128, beta=2.0).fit(X.float().cuda())
    for found, expected in zip(fast.factors_, exact.factors_, strict=True):
        assert close(torch.as_tensor(found), torch.as_tensor(expected), 1e-3)
    assert close(fast.transform(X.float().cuda()).cpu(), exact.transform(X), 1e-3)
