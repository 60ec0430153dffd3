"""The deep baselines: losses against slow ones, sizes against the paper's, training, and the common contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import Tensor

from polyadic import load
from polyadic.augment import Bandpass, Compose, Jitter
from polyadic.baselines import training
from polyadic.baselines.autoencoder import AutoEncoder, Decoder
from polyadic.baselines.backbone import Backbone, Standardize, grids, widths
from polyadic.baselines.cnn import ReferenceCNN
from polyadic.baselines.contrastive import BYOL, SimCLR, byol_loss, nce_loss
from polyadic.baselines.training import DeepBaseline, Learner, Plateau, Settings, batches_of, hold_out, train
from polyadic.core.tensorizer import tensors
from polyadic.data.batches import WindowSource
from polyadic.data.samples import Samples
from polyadic.data.synthesis import synthetic
from polyadic.errors import PolyadicError
from polyadic.spectral import STFT
from polyadic.testing import BaselineContract

SMALL: dict[str, Any] = {
    "tensorize": STFT(n_fft=16, hop=8),
    "augment": Jitter(0.1),
    "batch_size": 8,
    "max_epochs": 2,
    "device": "cpu",
    "random_state": 3,
}
ALL: dict[str, Callable[..., DeepBaseline]] = {
    "SimCLR": lambda **changes: SimCLR(**{"dim": 4, **SMALL, **changes}),
    "BYOL": lambda **changes: BYOL(**{"dim": 4, **SMALL, **changes}),
    "AE": lambda **changes: AutoEncoder(**{"dim": 4, **SMALL, "augment": None, **changes}),
    "AE_ss": lambda **changes: AutoEncoder(**{"dim": 4, "contrastive": True, **SMALL, **changes}),
    "CNN": lambda **changes: ReferenceCNN(**{**SMALL, "augment": None, **changes}),
}
X = np.random.default_rng(0).normal(size=(24, 3, 64)).astype(np.float32)
Y = np.arange(24) % 2


@pytest.fixture(params=ALL)
def make(request: pytest.FixtureRequest) -> Callable[..., DeepBaseline]:
    """Makes each of the five baselines."""
    return ALL[request.param]


class TestSimCLR(BaselineContract):
    baseline = ALL["SimCLR"]()


class TestBYOL(BaselineContract):
    baseline = ALL["BYOL"]()


class TestAutoEncoder(BaselineContract):
    baseline = ALL["AE"]()


class TestContrastiveAutoEncoder(BaselineContract):
    baseline = ALL["AE_ss"]()


class TestReferenceCNN(BaselineContract):
    baseline = ALL["CNN"]()


class TestReferenceCNNWithViews(BaselineContract):
    baseline = ALL["CNN"](augment=Jitter(0.1))


# ---------------------------------------------------------------------- losses


def views(count: int = 5, dim: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    A, B = torch.randn((2, count, dim), generator=generator, dtype=torch.float64)
    return A, B


def slow_nce(A: Tensor, B: Tensor, temperature: float) -> float:
    def cosine(u: Tensor, v: Tensor) -> float:
        return float(u @ v) / math.sqrt(float(u @ u) * float(v @ v))

    Z, count, total = [*A, *B], len(A), 0.0
    for i in range(2 * count):
        partner = i + count if i < count else i - count
        others = 0.0
        for j in range(2 * count):
            if j != i:
                others += math.exp(cosine(Z[i], Z[j]) / temperature)
        total -= math.log(math.exp(cosine(Z[i], Z[partner]) / temperature) / others)
    return total / (2 * count)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_nce_is_the_double_sum_of_its_definition(count: int, temperature: float) -> None:
    A, B = views(count)
    assert float(nce_loss(A, B, temperature)) == pytest.approx(slow_nce(A, B, temperature), rel=1e-12, abs=1e-12)


def test_byol_loss_is_the_squared_distance_between_unit_vectors() -> None:
    P, Z = views(6)
    total = 0.0
    for i in range(6):
        p, z = (V[i] / math.sqrt(sum(float(value) ** 2 for value in V[i])) for V in (P, Z))
        total += sum(float(p[k] - z[k]) ** 2 for k in range(3))
    assert float(byol_loss(P, Z)) == pytest.approx(total / 6, rel=1e-12)


@pytest.mark.parametrize("loss", [nce_loss, byol_loss])
def test_losses_depend_on_directions_alone_and_reward_alignment(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    A, B = views()
    assert float(loss(3 * A, 0.1 * B)) == pytest.approx(float(loss(A, B)))
    assert loss(A, A + 0.1 * B) < loss(A, B)
    assert float(loss(A, B)) >= 0


@pytest.mark.parametrize("loss", [nce_loss, byol_loss, lambda A, B: nce_loss(A, B, 0.1)])
def test_gradients_of_the_losses_are_those_of_finite_differences(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    A, B = (V.requires_grad_() for V in views(4))
    assert torch.autograd.gradcheck(loss, (A, B))


def network_of(model: DeepBaseline, shape: tuple[int, ...] = (2, 5, 6)) -> Any:
    if isinstance(model, ReferenceCNN):
        model.classes_ = np.arange(3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = model._network_for(shape)
    # Batch norm makes finite differences of ReLUs jump; its averages do not.
    return network.eval()


def test_gradients_of_whole_objectives_are_those_of_finite_differences(make: Callable[..., DeepBaseline]) -> None:
    network = network_of(make()).double()
    network.standardize.forward = lambda T: T
    T = torch.randn((4, 2, 5, 6), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    codes = torch.tensor([0, 2, 1, 1]) if isinstance(make(), ReferenceCNN) else None
    weights = [parameter for parameter in network.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(network.objective(T, codes), weights)
    generator = torch.Generator().manual_seed(2)
    steps = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in weights]
    slope = sum(float((g * s).sum()) for g, s in zip(gradients, steps, strict=True))
    ends = []
    with torch.no_grad():
        for sign in (1, -2):
            for weight, step in zip(weights, steps, strict=True):
                weight += sign * 1e-7 * step
            ends.append(float(network.objective(T, codes)))
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-7, rel=1e-4)


def test_contrastive_autoencoder_adds_weighted_nce_to_the_error_of_both_views() -> None:
    T = torch.randn((6, 2, 5, 6), generator=torch.Generator().manual_seed(1))
    plain = network_of(ALL["AE"]())
    both = network_of(ALL["AE_ss"](weight=0.7, temperature=0.2))
    both.load_state_dict(plain.state_dict())
    with torch.no_grad():
        Z = plain.encode(T)
        error = ((plain.decoder(Z) - T) ** 2).mean()
        assert float(plain.objective(T, None)) == pytest.approx(float(error), rel=1e-5)
        expected = error + 0.7 * nce_loss(Z[:3], Z[3:], 0.2)
        assert float(both.objective(T, None)) == pytest.approx(float(expected), rel=1e-5)


def test_simclr_contrasts_windows_with_their_views_at_its_temperature() -> None:
    T = torch.randn((6, 2, 5, 6), generator=torch.Generator().manual_seed(1))
    network = network_of(ALL["SimCLR"](temperature=0.2))
    with torch.no_grad():
        Z = network.encode(T)
        assert float(network.objective(T, None)) == pytest.approx(slow_nce(Z[:3], Z[3:], 0.2), rel=1e-5)


def test_reference_cnn_gives_a_view_the_label_of_its_window() -> None:
    T = torch.randn((6, 2, 5, 6), generator=torch.Generator().manual_seed(1))
    network = network_of(ALL["CNN"]())
    with torch.no_grad():
        logs = torch.log_softmax(network.linear(network.encode(T)), dim=1)
        expected = -sum(float(logs[row, (0, 2, 1)[row % 3]]) for row in range(6)) / 6
        assert float(network.objective(T, torch.tensor([0, 2, 1]))) == pytest.approx(expected, rel=1e-5)


def test_byol_predicts_the_targets_features_of_the_other_view() -> None:
    T = torch.randn((6, 2, 5, 6), generator=torch.Generator().manual_seed(1))
    network = network_of(ALL["BYOL"]())
    with torch.no_grad():
        for weight in network.target.parameters():
            weight += 0.1
        network.spread.running_mean += 0.2
        P = network.predictor(network.encode(T))
        Z = network.spread(network.target(T))
        there, back = byol_loss(P[:3], Z[3:]), byol_loss(P[3:], Z[:3])
        assert float(network.objective(T, None)) == pytest.approx(float(there + back) / 2, rel=1e-5)


def test_byol_target_follows_by_its_momentum_and_gets_no_gradient() -> None:
    network = network_of(ALL["BYOL"](momentum=0.75))
    old = [weight.clone() for weight in network.target.parameters()]
    with torch.no_grad():
        for weight in network.encoder.parameters():
            weight += 1.0
    network.after_step()
    for before, after, online in zip(old, network.target.parameters(), network.encoder.parameters(), strict=True):
        assert torch.allclose(after, 0.75 * before + 0.25 * online)
    network.objective(torch.randn(4, 2, 5, 6, generator=torch.Generator().manual_seed(0)), None).backward()
    assert all(weight.grad is None for weight in network.target.parameters())
    assert all(weight.grad is not None for weight in network.encoder.parameters())


def test_momentum_of_1_leaves_the_target_as_it_began_and_0_makes_it_the_encoder() -> None:
    def equal(one: Any, other: Any) -> list[bool]:
        return [
            torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(one.parameters(), other.parameters(), strict=True)
        ]

    start: Any = ALL["BYOL"](learning_rate=1e-30, weight_decay=0.0, max_epochs=1).fit(X)._network
    frozen: Any = ALL["BYOL"](momentum=1.0).fit(X)._network
    assert all(equal(frozen.target, start.target))
    assert not any(equal(frozen.target, frozen.encoder))
    same: Any = ALL["BYOL"](momentum=0.0).fit(X)._network
    assert all(equal(same.target, same.encoder))


def test_features_of_byol_do_not_collapse() -> None:
    T = torch.randn((64, 4, 8, 8), generator=torch.Generator().manual_seed(0))
    model = BYOL(
        8, augment=lambda batch: batch + 0.1 * torch.randn_like(batch), max_epochs=40, patience=40, device="cpu"
    )
    Z = model.set_params(batch_size=16, learning_rate=3e-3).fit(T).transform(T)
    Z = Z / torch.linalg.vector_norm(Z, dim=1, keepdim=True)
    assert float((Z @ Z.T).mean()) < 0.5


# -------------------------------------------------------------------- backbone

SHAPES = {"Sleep-EDF": (14, 129, 86), "HAR": (18, 33, 33), "PTB-XL": (24, 129, 75), "MGH": (12, 257, 43)}
PAPER = {
    ("SimCLR", 32): (210_384, 53_286, 200_960, 212_624),
    ("SimCLR", 128): (222_768, 65_670, 237_920, 246_608),
    ("BYOL", 32): (211_440, 54_342, 202_016, 214_736),
    ("BYOL", 128): (239_280, 82_182, 254_432, 279_632),
    ("AE", 32): (217_216, 62_940, 224_528, 220_088),
    ("AE", 128): (241_888, 87_612, 298_352, 257_048),
    ("AE_ss", 32): (217_216, 62_940, 224_528, 220_088),
    ("AE_ss", 128): (241_888, 87_612, 298_352, 257_048),
}


@pytest.mark.parametrize(("name", "dim"), PAPER)
def test_sizes_are_within_a_tenth_of_those_in_table_2(name: str, dim: int) -> None:
    for shape, expected in zip(SHAPES.values(), PAPER[name, dim], strict=True):
        count = ALL[name](dim=dim)._network_for(shape).n_parameters()
        assert count == pytest.approx(expected, rel=0.1), shape


def test_reference_cnn_is_the_backbone_and_one_layer() -> None:
    for shape in SHAPES.values():
        backbone = Backbone(shape)
        size = sum(weight.numel() for weight in backbone.parameters())
        model = ReferenceCNN()
        model.classes_ = np.arange(5)
        assert model._network_for(shape).n_parameters() == size + 5 * (backbone.n_features + 1)


def test_only_trainable_parameters_are_counted(make: Callable[..., DeepBaseline]) -> None:
    model = make().fit(X, Y)
    network: Any = model._network
    trained = dict(network.named_parameters())
    counted = {name: weight for name, weight in trained.items() if not name.startswith("target.")}
    assert model.n_parameters_ == sum(weight.numel() for weight in counted.values())
    assert not any("standardize" in name or "running" in name for name in trained)
    start: Any = dict(make(learning_rate=1e-12, max_epochs=1).fit(X, Y)._network.named_parameters())
    assert all(float((weight - start[name]).detach().abs().max()) > 1e-4 for name, weight in counted.items())


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (2, 1, 9), (3, 3, 3), (5, 4, 2), (3, 33, 5), (7, 19, 70), (2, 50), (18, 33, 33)]
)
def test_odd_shapes_go_there_and_back(shape: tuple[int, ...]) -> None:
    backbone = Backbone(shape)
    T = Standardize(shape[0])(torch.randn(3, *shape))
    assert backbone(T).shape == (3, backbone.n_features)
    assert Decoder(backbone, 4, shape[0])(torch.randn(3, 4)).shape == T.shape
    maps = backbone.stem(T)
    for block, size in zip(backbone.blocks, backbone.grids[1:], strict=True):
        maps = block(maps)
        assert maps.shape[2:] == size
    assert max(backbone.grids[-1]) <= 3


def test_depth_and_width_follow_their_rules() -> None:
    assert [len(grids(shape)) - 1 for shape in SHAPES.values()] == [6, 4, 6, 7]
    assert widths(7) == [16, 16, 24, 32, 44, 64, 64]
    assert widths(1) == [16]
    assert widths(12)[-1] == 64


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4, 5)])
def test_tensors_that_are_not_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(PolyadicError, match="tensorize must return"):
        AutoEncoder(2, device="cpu").fit(np.zeros((10, *shape)))


def test_raw_windows_will_do_as_channels_by_time() -> None:
    assert AutoEncoder(2, max_epochs=1, device="cpu").fit(X).transform(X).shape == (24, 2)


def test_standardised_channels_have_mean_0_and_deviation_1() -> None:
    T = torch.randn((50, 3, 4, 5), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    T = T * torch.tensor([1.0, 1e-4, 0.0])[:, None, None] + torch.tensor([0.0, 1e3, 7.0])[:, None, None]
    standardize = Standardize(3)
    standardize.measure(T.split([7, 40, 3]))
    S = standardize(T)
    assert S.dtype == torch.float32
    assert torch.allclose(S.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(S.std(dim=(0, 2, 3), correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-5)


def test_scale_of_the_input_does_not_matter(make: Callable[..., DeepBaseline]) -> None:
    features = [make(tensorize=STFT(16, 8, parts="re_im")).fit(c * X, Y).transform(c * X) for c in (1.0, 1024.0)]
    assert np.allclose(features[0], features[1], atol=1e-4 * np.abs(features[0]).max())


def test_statistics_come_from_windows_that_are_trained_on() -> None:
    kept, held = hold_out(len(X), 0.1, SMALL["random_state"])
    extreme = X.copy()
    extreme[held] *= 1e3
    tensorize = STFT(16, 8, parts="re_im")
    models = [make_ae.fit(data) for make_ae, data in ((ALL["AE"](tensorize=tensorize), D) for D in (X, extreme))]
    assert torch.equal(models[0]._network.standardize.mean, models[1]._network.standardize.mean)
    T = tensorize(torch.from_numpy(X))[kept]
    assert torch.allclose(models[0]._network.standardize.mean, T.double().mean(dim=(0, 2, 3)))


# -------------------------------------------------------------------- training


class Scripted(Learner):
    """A network of one weight whose held-out losses are given beforehand."""

    def __init__(self, held_out: list[float]) -> None:
        super().__init__((3, 64), 1)
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.script = iter(held_out)
        self.sizes: list[int] = []
        self.steps = 0

    def encode(self, S: Tensor) -> Tensor:
        return self.weight * S.mean(dim=(1, 2, 3))[:, None]

    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        if not self.training:
            return torch.tensor(next(self.script))
        self.sizes.append(len(S))
        return (self.weight - 1e6).abs()

    def after_step(self) -> None:
        self.steps += 1


def source_of(data: np.ndarray, augment: Any = None, seed: int = 0) -> WindowSource:
    return WindowSource(Samples(data), None, augment, seed, torch.device("cpu"), torch.float32)


def test_training_stops_on_a_plateau_and_keeps_the_best_weights() -> None:
    losses = [3.0, 2.0, 1.9999, 2.5, 2.0]
    network = Scripted([*losses, 0.1, 0.1])
    history = train(network, source_of(X), None, Settings(batch_size=64, max_epochs=50, patience=3))
    assert history["held_out"] == pytest.approx(losses)
    assert len(history["loss"]) == len(history["seconds"]) == 5
    # One step of 1e-3 upwards in each epoch, and the third was the best.
    assert float(network.weight.detach()) == pytest.approx(3e-3, rel=1e-3)
    assert network.steps == 5


def test_training_stops_after_max_epochs() -> None:
    history = train(Scripted([5.0, 4.0, 3.0, 2.0]), source_of(X), None, Settings(batch_size=64, max_epochs=3))
    assert len(history["loss"]) == 3


def test_plateau_is_reset_by_an_improvement() -> None:
    plateau = Plateau(2)
    told = [plateau.reached(loss) for loss in (1.0, 0.9995, 0.9985, 0.998, 0.9985)]
    assert told == [False, False, False, False, True]
    zero = Plateau(2)
    assert [zero.reached(0.0) for _ in range(3)] == [False, False, True]


def test_a_model_that_has_learned_all_stops_before_max_epochs() -> None:
    model = ALL["CNN"](max_epochs=60, patience=2, learning_rate=0.01)
    model.fit(X, Y)
    assert model.n_epochs_ < 60
    best = min(model.history_["held_out"])
    assert model.history_["held_out"][model.best_epoch_ - 1] == best
    assert model.n_epochs_ >= model.best_epoch_ + 1


def test_kept_weights_are_those_of_the_lowest_held_out_loss(make: Callable[..., DeepBaseline]) -> None:
    model = make(max_epochs=6, learning_rate=0.01).fit(X, Y)
    _, held = hold_out(len(X), 0.1, 3)
    source = model._source(X, reset=False)
    codes = torch.from_numpy(Y)[held] if isinstance(model, ReferenceCNN) else None
    with torch.no_grad():
        loss = model._network.loss(source.views(held, -1), codes)
    assert float(loss) == pytest.approx(min(model.history_["held_out"]), rel=1e-4)


@pytest.mark.parametrize("count", range(2, 40))
@pytest.mark.parametrize("batch_size", [2, 3, 4, 8, 37])
def test_no_batch_is_of_one_window(count: int, batch_size: int) -> None:
    parts = batches_of(torch.arange(count), batch_size)
    sizes = [len(part) for part in parts]
    assert torch.cat(parts).tolist() == list(range(count))
    assert min(sizes) >= 2
    assert max(sizes) <= max(batch_size, 3)
    assert max(sizes) - min(sizes) <= 1


def test_last_batch_of_one_window_would_do_no_harm(make: Callable[..., DeepBaseline]) -> None:
    flat = np.random.default_rng(0).normal(size=(19, 2, 1)).astype(np.float32)
    model = make(tensorize=None, augment=lambda batch: 0.9 * batch, batch_size=16).fit(flat, np.arange(19) % 2)
    assert np.isfinite(model.transform(flat)).all()


def test_held_out_windows_are_a_share_sampled_by_seed() -> None:
    kept, held = hold_out(200, 0.25, seed=1)
    assert len(held) == 50
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(200))
    assert torch.equal(held, hold_out(200, 0.25, seed=1)[1])
    assert not torch.equal(held, hold_out(200, 0.25, seed=2)[1])
    assert len(hold_out(5, 0.01, seed=0)[1]) == 2
    assert len(hold_out(5, 0.99, seed=0)[0]) == 2
    # About a quarter in either half: held-out windows lie all over the data.
    assert 15 < int((held < 100).sum()) < 35


class Recording(WindowSource):
    """Keeps what is asked of it."""

    def batches(self, parts: Any, sweep: int) -> Any:
        self.asked = [*getattr(self, "asked", []), (sweep, torch.cat(list(parts)).tolist())]
        return super().batches(parts, sweep)


def test_each_epoch_has_an_order_and_augmentations_of_its_own_and_the_held_out_windows_never_change() -> None:
    source = Recording(Samples(X), None, Jitter(0.1), 0, torch.device("cpu"), torch.float32)
    train(Scripted([3.0, 2.0, 1.0]), source, None, Settings(batch_size=64, max_epochs=3, holdout=0.25))
    kept, held = (part.tolist() for part in hold_out(len(X), 0.25, 0))
    trained, checked = source.asked[0::2], source.asked[1::2]
    assert [sweep for sweep, _ in trained] == [0, 1, 2]
    assert all(sorted(ids) == kept for _, ids in trained)
    assert trained[0][1] != trained[1][1] != kept
    assert checked == [(-1, held)] * 3


def test_loss_of_an_epoch_is_the_mean_over_windows_not_over_batches() -> None:
    class Counting(Scripted):
        def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
            return self.weight * 0 + float(len(S))

    history = train(Counting([]), source_of(X), None, Settings(batch_size=3, max_epochs=1, holdout=5 / 24))
    # 19 windows in batches of 3, 3, 3, 3, 3, 2, 2; 5 held out in batches of 3 and 2.
    assert history["loss"] == [pytest.approx((5 * 9 + 2 * 4) / 19)]
    assert history["held_out"] == [pytest.approx((9 + 4) / 5)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_loss_that_does_not_stay_finite_is_an_error(bad: float) -> None:
    with pytest.raises(PolyadicError, match=r"did not stay finite.*learning_rate"):
        train(Scripted([1.0, bad]), source_of(X), None, Settings(max_epochs=3))


@pytest.mark.parametrize("augment", [None, Jitter(0.1)])
@pytest.mark.parametrize("most", [0, 20_000, 2**30])
def test_batches_built_at_once_equal_the_batches_of_the_source(
    most: int, augment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = STFT(n_fft=16, hop=8).calibrated(torch.from_numpy(X))
    source = WindowSource(Samples(X), frames, augment, 3, torch.device("cpu"), torch.float32)
    parts = list(torch.split(torch.randperm(24), [8, 7, 9]))
    monkeypatch.setattr(training, "_PIECE_BYTES", {"cpu": most})
    size = math.prod(frames.shape(3, 64))
    # Copies: the tensors of one batch may lie where those of the last did.
    found = [(ids, T.clone()) for ids, T in training._batches(source, parts, 5, size)]
    expected = [(ids, T.clone()) for ids, T in source.batches(parts, 5)]
    assert len(found) == len(expected) == 3
    for (ids, T), (wanted, S) in zip(found, expected, strict=True):
        assert torch.equal(ids, wanted)
        torch.testing.assert_close(T, S)


@pytest.mark.parametrize("parts", [1, 2, 100])
def test_views_of_many_batches_computed_at_once_equal_views_of_single_batches(
    parts: int, make: Callable[..., DeepBaseline], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(augment=Compose([Jitter(0.1), Bandpass([(2.0, 24.0), (4.0, 20.0)], 64.0)])).fit(X, Y)
    asked: list[int] = []
    real = WindowSource.batches

    def batches(self: WindowSource, ids: Any, sweep: int) -> Any:
        asked.append(len(ids))
        return real(self, ids, sweep)

    monkeypatch.setattr(WindowSource, "batches", batches)
    size = 8 * 2 * 4 * math.prod(STFT(n_fft=16, hop=8).shape(3, 64))
    monkeypatch.setattr(training, "_PIECE_BYTES", {"cpu": parts * size})
    many = make(augment=one.augment).fit(X, Y)
    assert asked[1] == -(-3 // parts)  # after the measuring of the scale, three batches
    assert many.history_["loss"] == pytest.approx(one.history_["loss"], rel=1e-5)
    assert many.history_["held_out"] == pytest.approx(one.history_["held_out"], rel=1e-5)
    np.testing.assert_allclose(many.transform(X), one.transform(X), rtol=1e-4, atol=1e-5)


def test_functions_of_the_users_see_the_batches_they_always_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def views(batch: Tensor) -> Tensor:
        sizes.append(len(batch))
        return batch + 0.1 * torch.randn_like(batch)

    one = ALL["SimCLR"](augment=views).fit(X)
    before, sizes = sizes, []
    monkeypatch.setattr(training, "_PIECE_BYTES", {"cpu": 2**30})
    many = ALL["SimCLR"](augment=views).fit(X)
    assert sizes == before
    assert max(sizes) == 8
    np.testing.assert_array_equal(many.transform(X), one.transform(X))


def test_adam_has_the_requested_weight_decay() -> None:
    decayed, free = (ALL["AE"](weight_decay=decay, max_epochs=5).fit(X) for decay in (10.0, 0.0))
    norms = [sum(float(w.detach().square().sum()) for w in model._network.parameters()) for model in (decayed, free)]
    assert norms[0] < norms[1]


def test_seeds_differ_and_reach_weights_and_held_out_windows(make: Callable[..., DeepBaseline]) -> None:
    first, second = (make(random_state=seed).fit(X, Y) for seed in (0, 1))
    assert not np.array_equal(first.transform(X), second.transform(X))
    assert first.history_["held_out"] != second.history_["held_out"]
    still = [make(random_state=seed, learning_rate=1e-12, max_epochs=1).fit(X, Y)._network for seed in (0, 1)]
    weights = [torch.cat([w.detach().flatten() for w in network.parameters()]) for network in still]
    assert float((weights[0] - weights[1]).abs().max()) > 0.1


def test_state_of_torchs_generator_does_not_matter(make: Callable[..., DeepBaseline]) -> None:
    expected = make().fit(X, Y).transform(X)
    with torch.random.fork_rng():
        torch.manual_seed(77)
        assert np.array_equal(make().fit(X, Y).transform(X), expected)


def test_fit_and_transform_on_each_device(make: Callable[..., DeepBaseline], device: torch.device) -> None:
    model = make(device=str(device)).fit(torch.from_numpy(X).to(device), Y)
    Z = model.transform(torch.from_numpy(X).to(device))
    assert Z.device.type == device.type
    assert Z.dtype == torch.float32
    assert model.transform(X.astype(np.float64)).dtype == np.float64


def test_epochs_are_reported_on_standard_error(make: Callable[..., DeepBaseline], capsys: Any) -> None:
    make(verbose=1, max_epochs=2).fit(X, Y)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "epoch 1 of at most 2, loss" in captured.err
    assert "epoch 2 of at most 2, loss" in captured.err


# -------------------------------------------------------------------- learning


@pytest.fixture(scope="module")
def signals() -> tuple[np.ndarray, np.ndarray]:
    windows = synthetic(300)
    return np.asarray(windows.read(np.arange(300))), np.asarray(windows.label)


LEARNING: dict[str, Any] = {
    "tensorize": STFT(n_fft=32, hop=16),
    "augment": Compose([Jitter(0.05), Bandpass([(1, 30), (4, 25)], fs=64)]),
    "batch_size": 32,
    "max_epochs": 8,
    "device": "cpu",
}


def test_reference_cnn_beats_chance_by_far_on_new_windows(signals: tuple[np.ndarray, np.ndarray]) -> None:
    windows, labels = signals
    names = np.array(["a", "b", "c", "d"])[labels]
    model = ReferenceCNN(**{**LEARNING, "augment": None}).fit(windows[:200], names[:200])
    assert model.classes_.tolist() == ["a", "b", "c", "d"]
    probabilities = model.predict_proba(windows[200:])
    assert probabilities.shape == (100, 4)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    predicted = model.predict(windows[200:])
    assert np.array_equal(predicted, model.classes_[probabilities.argmax(axis=1)])
    assert float((predicted == names[200:]).mean()) > 0.6
    assert model.score(windows[200:], names[200:]) == float((predicted == names[200:]).mean())
    weight, bias = (value.detach().numpy() for value in model._network.linear.parameters())
    logits = model.transform(windows[200:]) @ weight.T + bias
    assert np.array_equal(logits.argmax(axis=1), probabilities.argmax(axis=1))


def test_error_of_the_autoencoder_falls_below_that_of_the_mean(signals: tuple[np.ndarray, np.ndarray]) -> None:
    model = AutoEncoder(16, **{**LEARNING, "augment": None}).fit(signals[0])
    assert model.history_["loss"][-1] < 0.95 * model.history_["loss"][0]
    assert min(model.history_["held_out"]) < 0.95


def apart(model: DeepBaseline, windows: np.ndarray) -> float:
    """By how much the cosine of a window and its view exceeds that of two windows, on average."""
    augmented = LEARNING["augment"](torch.from_numpy(windows), seed=99).numpy()
    A, B = (Z / np.linalg.norm(Z, axis=1, keepdims=True) for Z in map(model.transform, (windows, augmented)))
    cosines = A @ B.T
    return float(np.diag(cosines).mean() - (cosines.sum() - np.trace(cosines)) / (cosines.size - len(cosines)))


@pytest.mark.parametrize("kind", [SimCLR, BYOL])
def test_views_of_new_windows_come_closer_than_other_windows(
    kind: Callable[..., DeepBaseline], signals: tuple[np.ndarray, np.ndarray]
) -> None:
    windows = signals[0]
    start = kind(16, **{**LEARNING, "max_epochs": 1, "learning_rate": 1e-12}).fit(windows[:200])
    model = kind(16, **LEARNING).fit(windows[:200])
    assert apart(model, windows[200:]) > 10 * apart(start, windows[200:])
    assert apart(model, windows[200:]) > 0.05


# ----------------------------------------------------------------------- files


@pytest.mark.parametrize("labels", [np.array(["x", "yy"]), np.array([2, 5]), np.array([0.5, 1.5]), [False, True]])
def test_classes_are_restored_from_a_file(labels: Any, tmp_path: Path) -> None:
    y = np.asarray(labels)[Y]
    model = ALL["CNN"]().fit(X, y)
    model.save(tmp_path / "m.safetensors")
    same: Any = load(tmp_path / "m.safetensors")
    assert same.classes_.dtype == model.classes_.dtype
    assert np.array_equal(same.predict(X), model.predict(X))
    assert np.array_equal(same.predict_proba(X), model.predict_proba(X))


def test_file_keeps_curve_epochs_and_parameters(make: Callable[..., DeepBaseline], tmp_path: Path) -> None:
    model = make(max_epochs=3).fit(X, Y)
    model.save(tmp_path / "m.safetensors")
    same: Any = load(tmp_path / "m.safetensors")
    assert set(same.history_) == {"loss", "held_out", "seconds"}
    assert (same.n_epochs_, same.best_epoch_) == (model.n_epochs_, model.best_epoch_) == (3, same.best_epoch_)
    assert same.get_params()["batch_size"] == 8
    again = same.fit(X, Y)
    assert np.array_equal(again.transform(X), model.transform(X))


def test_zero_epochs_leave_the_initial_weights_unchanged(make: Callable[..., DeepBaseline], tmp_path: Path) -> None:
    model = make(max_epochs=0).fit(X, Y)
    assert (model.n_epochs_, model.best_epoch_) == (0, 0)
    assert model.history_ == {"loss": [], "held_out": [], "seconds": []}
    start = dict(make(learning_rate=1e-12, weight_decay=0.0, max_epochs=1).fit(X, Y)._network.named_parameters())
    for name, value in model._network.named_parameters():
        assert torch.allclose(value, start[name], atol=1e-6), name
    assert not model._network.training
    scaled = model._network.standardize(tensors(model.tensorize_, torch.from_numpy(X)))
    assert float(scaled.std()) == pytest.approx(1, abs=0.2)
    model.save(tmp_path / "m.safetensors")
    same: Any = load(tmp_path / "m.safetensors")
    assert (same.n_epochs_, same.best_epoch_) == (0, 0)
    assert np.array_equal(same.transform(X), model.transform(X))


def test_a_model_with_a_function_as_its_augmentation_is_restored_without_it(tmp_path: Path) -> None:
    model = SimCLR(4, **{**SMALL, "augment": lambda batch: 0.9 * batch}).fit(X)
    model.save(tmp_path / "m.safetensors")
    same: Any = load(tmp_path / "m.safetensors")
    assert same.augment is None
    assert np.array_equal(same.transform(X), model.transform(X))
    with pytest.raises(PolyadicError, match="augment is None"):
        same.fit(X)


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0),
        ("learning_rate", -1.0),
        ("learning_rate", math.nan),
        ("weight_decay", -1e-3),
        ("batch_size", 1),
        ("batch_size", None),
        ("max_epochs", -1),
        ("patience", 0),
        ("holdout", 0.0),
        ("holdout", 1.0),
        ("verbose", -1),
        ("augment", 3),
        ("tensorize", "stft"),
        ("random_state", "x"),
    ],
)
def test_bad_arguments_are_refused_by_name(make: Callable[..., DeepBaseline], name: str, value: Any) -> None:
    with pytest.raises(PolyadicError, match=f"^{name} must be"):
        make(**{name: value}).fit(X, Y)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("SimCLR", "dim", 0),
        ("BYOL", "dim", 2.5),
        ("AE", "dim", True),
        ("SimCLR", "temperature", 0),
        ("AE_ss", "temperature", -1),
        ("BYOL", "momentum", 1.1),
        ("AE_ss", "weight", -1),
        ("AE", "contrastive", "yes"),
    ],
)
def test_bad_arguments_of_one_baseline_are_refused_by_name(kind: str, name: str, value: Any) -> None:
    with pytest.raises(PolyadicError, match=f"^{name} must be"):
        ALL[kind](**{name: value}).fit(X, Y)


@pytest.mark.parametrize("kind", ["SimCLR", "BYOL", "AE_ss"])
def test_views_cannot_be_learned_from_without_an_augmentation(kind: str) -> None:
    with pytest.raises(PolyadicError, match=r"^augment is None, but"):
        ALL[kind](augment=None).fit(X)


def test_labels_are_needed_by_the_supervised_alone(make: Callable[..., DeepBaseline]) -> None:
    if isinstance(make(), ReferenceCNN):
        for wrong, word in ((None, "supervised"), (Y[:-1], "shape"), (0 * Y, "two classes")):
            with pytest.raises(PolyadicError, match=word):
                make().fit(X, wrong)
    else:
        assert np.array_equal(make().fit(X).transform(X), make().fit(X, Y).transform(X))


def test_too_few_windows_are_refused(make: Callable[..., DeepBaseline]) -> None:
    with pytest.raises(PolyadicError, match="at least 4 windows"):
        make().fit(X[:3], [0, 1, 0])
    assert len(make().fit(X[:4], Y[:4]).transform(X[:1])) == 1


def test_another_tensorize_than_that_of_the_fit_is_refused(make: Callable[..., DeepBaseline]) -> None:
    model = make().fit(X, Y)
    model.tensorize_ = STFT(n_fft=8, hop=8).calibrated(torch.from_numpy(X))
    with pytest.raises(PolyadicError, match="as in fit"):
        model.transform(X)


def test_copies_have_all_parameters_and_nothing_that_was_learned(make: Callable[..., DeepBaseline]) -> None:
    model = make(batch_size=5, patience=7, holdout=0.3).fit(X, Y)
    copied = clone(model)
    assert {**copied.get_params(), "augment": None} == {**model.get_params(), "augment": None}
    assert not hasattr(copied, "history_")
    assert copied.set_params(patience=2).patience == 2
