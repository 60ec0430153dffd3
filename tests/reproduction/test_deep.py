"""The deep baselines: losses against slow ones, sizes against the paper's, training, and the common contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paper import reference
from paper.baselines.deep import (
    BYOL,
    AutoEncoder,
    DeepBaseline,
    ReferenceCNN,
    SimCLR,
    train,
)
from paper.baselines.networks import Learner, byol_loss, nce_loss
from polyadic.augment import Jitter
from polyadic.data.batches import Samples, WindowSource
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


class TestSimCLR(BaselineContract):
    baseline = ALL["SimCLR"]()


class TestReferenceCNN(BaselineContract):
    baseline = ALL["CNN"]()


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


def test_nce_is_the_double_sum_of_its_definition() -> None:
    A, B = views(7)
    assert float(nce_loss(A, B, 0.1)) == pytest.approx(slow_nce(A, B, 0.1), rel=1e-12)


def test_byol_loss_is_the_squared_distance_between_unit_vectors() -> None:
    P, Z = views(6)
    total = 0.0
    for i in range(6):
        p, z = (V[i] / math.sqrt(sum(float(value) ** 2 for value in V[i])) for V in (P, Z))
        total += sum(float(p[k] - z[k]) ** 2 for k in range(3))
    assert float(byol_loss(P, Z)) == pytest.approx(total / 6, rel=1e-12)


def test_byol_predicts_the_targets_features_of_the_other_view() -> None:
    T = torch.randn((6, 2, 5, 6), generator=torch.Generator().manual_seed(1))
    network: Any = ALL["BYOL"]()._network_for((2, 5, 6)).eval()
    with torch.no_grad():
        for weight in network.target.parameters():
            weight += 0.1
        network.spread.running_mean += 0.2
        P = network.predictor(network.encoder(T))
        Z = network.spread(network.target(T))
        there, back = byol_loss(P[:3], Z[3:]), byol_loss(P[3:], Z[:3])
        assert float(network.objective(T, None)) == pytest.approx(float(there + back) / 2, rel=1e-5)


# -------------------------------------------------------------------- backbone

SHAPES = {"sleep_edf": (14, 129, 86), "har": (18, 33, 33), "ptb_xl": (24, 129, 75), "mgh": (12, 257, 43)}


@pytest.mark.parametrize("name", ["SimCLR-32", "BYOL-128", "AE-32", "AE-128"])
def test_sizes_are_within_a_tenth_of_those_in_table_2(name: str) -> None:
    kind, _, dim = name.partition("-")
    for data, expected in reference.PARAMETERS[name].items():
        count = ALL[kind](dim=int(dim))._network_for(SHAPES[data]).n_parameters()
        assert count == pytest.approx(expected, rel=0.1), data


# -------------------------------------------------------------------- training


class Scripted(Learner):
    """A network of one weight whose held-out losses are given beforehand."""

    def __init__(self, held_out: list[float]) -> None:
        super().__init__(torch.nn.Identity(), 3, 1)
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.script = iter(held_out)
        self.sizes: list[int] = []
        self.steps = 0

    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        if not self.training:
            return torch.tensor(next(self.script))
        self.sizes.append(len(S))
        return (self.weight - 1e6).abs()

    def after_step(self) -> None:
        self.steps += 1


def test_training_stops_on_a_plateau_and_keeps_the_best_weights() -> None:
    losses = [3.0, 2.0, 1.9999, 2.5, 2.0]
    network = Scripted([*losses, 0.1, 0.1])
    source = WindowSource(Samples(X[..., None]), None, None, 0, torch.device("cpu"), torch.float32)
    model = SimCLR(batch_size=64, max_epochs=50, patience=3)
    model.seed_ = 0
    history = train(network, source, None, model)
    assert history["held_out"] == pytest.approx(losses)
    assert len(history["loss"]) == len(history["seconds"]) == 5
    # One step of 1e-3 upwards in each epoch, and the third was the best.
    assert float(network.weight.detach()) == pytest.approx(3e-3, rel=1e-3)
    assert network.steps == 5
