"""The deep baselines: SimCLR, BYOL, autoencoders and a CNN, trained by Adam until the held-out loss reaches a plateau.

Batch norm needs more than one window, so an epoch is split into batches of nearly equal size, none with one window.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from torch import Tensor

from paper.baselines.networks import AutoEncoderNetwork, BYOLNetwork, ClassifierNetwork, Learner, SimCLRNetwork
from paper.baselines.shared import labels_of
from polyadic._util.random_streams import integer_seed, uniform, window_keys
from polyadic.baselines import Baseline
from polyadic.errors import PolyadicError

_IMPROVEMENT = 1e-3
_HELD_OUT = 0.1
"""Share of the windows that is held out."""
_MEASURED_WINDOWS = 1024
_HELD_OUT_SWEEP = -1
_SPLIT, _WEIGHTS = 0x5B117, 0x3E16475

History = dict[str, list[float]]


def train(network: Learner, source: Any, codes: Tensor | None, settings: DeepBaseline) -> History:
    """Train until the loss on held-out windows has not fallen by 0.1 % for `patience` epochs; keep the best weights.

    Each epoch has its own order of windows and its own augmentations; the held-out windows have the same augmentations
    in every epoch. `codes` (N,) are the classes of the windows, if the loss needs them.
    """
    network.to(source.device)
    codes = None if codes is None else codes.to(source.device)
    kept, held = hold_out(source.n_windows, settings.seed_)
    measured = torch.linspace(0, len(kept) - 1, min(len(kept), _MEASURED_WINDOWS), dtype=torch.float64).long()
    plain = replace(source, augment=None)
    network.measure(T for _, T in plain.batches(torch.split(kept[measured], settings.batch_size), 0))
    weights = [parameter for parameter in network.parameters() if parameter.requires_grad]
    fused = source.device.type == "cuda" or None  # one kernel launch for all weights
    optimizer = torch.optim.Adam(weights, settings.learning_rate, weight_decay=settings.weight_decay, fused=fused)
    history: History = {"loss": [], "held_out": [], "seconds": []}
    mark, waited = math.inf, 0
    best: dict[str, Tensor] = {}
    for epoch in range(settings.max_epochs):
        begun = time.perf_counter()
        order = source.order(settings.seed_, epoch)
        parts = batches_of(order[~torch.isin(order, held)], settings.batch_size)
        network.train()
        loss = _mean_loss(network, source, codes, parts, epoch, optimizer)
        network.eval()
        with torch.no_grad():
            parts = batches_of(held, settings.batch_size)
            held_out = _mean_loss(network, source, codes, parts, _HELD_OUT_SWEEP)
        if not (math.isfinite(loss) and math.isfinite(held_out)):
            raise PolyadicError(
                f"the loss is not finite after epoch {epoch + 1}: learning_rate={settings.learning_rate:g} may be too "
                "large"
            )
        if held_out < min(history["held_out"], default=math.inf):
            best = {name: value.detach().clone() for name, value in network.state_dict().items()}
        for name, value in (("loss", loss), ("held_out", held_out), ("seconds", time.perf_counter() - begun)):
            history[name].append(value)
        if epoch == 0 or held_out < mark - _IMPROVEMENT * abs(mark):
            mark, waited = held_out, 0
        else:
            waited += 1
        if waited >= settings.patience:
            break
    network.load_state_dict(best)
    return history


def _mean_loss(
    network: Learner,
    source: Any,
    codes: Tensor | None,
    parts: Sequence[Tensor],
    sweep: int,
    optimizer: torch.optim.Optimizer | None = None,
) -> float:
    """Return the mean loss over all windows of the parts; with an optimiser, take a step after each part."""
    total = torch.zeros((), dtype=torch.float64, device=source.device)
    for ids, T in source.batches(parts, sweep):
        loss = network.objective(network.standardize(T), None if codes is None else codes[ids.to(codes.device)])
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            network.after_step()
        total += loss.detach() * len(ids)
    return float(total) / sum(len(ids) for ids in parts)


def hold_out(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the training windows and the held-out windows, a tenth but at least two, both in order.

    Each window has its own random number; those with the lowest are held out.
    """
    if count < 4:
        raise PolyadicError(f"X must have at least 4 windows, two to train on and two to hold out, but has {count}")
    held = max(round(_HELD_OUT * count), 2)
    draws = uniform(window_keys(integer_seed(seed, _SPLIT), 0, torch.arange(count)), (1,))[:, 0]
    order = torch.argsort(draws, stable=True)
    return order[held:].sort().values, order[:held].sort().values


def batches_of(ids: Tensor, batch_size: int) -> list[Tensor]:
    """Split windows into as few batches as `batch_size` allows, of nearly equal size, none with one window."""
    count = min(-(-len(ids) // batch_size), len(ids) // 2)
    return list(torch.tensor_split(ids, max(count, 1)))


@dataclass(eq=False, repr=False)
class DeepBaseline(Baseline):
    """Base class of the deep baselines, with the parameters of all; `dim` is the number of features.

    Parameters
    ----------
    tensorize : from a batch (b, channels, time) to tensors (b, I, J, K), such as `polyadic.spectral.STFT`; None if the
        input already is a tensor
    augment : maps a batch to its augmented view, as do the augmentations of `polyadic.augment`
    learning_rate, weight_decay : parameters of Adam
    batch_size : maximum number of windows in a batch, not counting their views
    max_epochs, patience : stop when the loss on held-out windows has not fallen by 0.1 % for `patience` epochs, or
        after `max_epochs`; the weights with the lowest loss are kept
    device : "auto", "cpu", "cuda", …
    random_state : seed of the weights, the held-out windows, the order of windows and the augmentations
    """

    _: KW_ONLY
    tensorize: Any = None
    augment: Any = None
    learning_rate: float = 1e-3
    weight_decay: float = 5e-4
    batch_size: int = 128
    max_epochs: int = 100
    patience: int = 5

    @property
    def n_parameters_(self) -> int:
        """Trainable weights: not the input scale, batch norm's running averages or BYOL's target."""
        return self._network.n_parameters()

    @abstractmethod
    def _network_for(self, shape: Sequence[int]) -> Learner:
        """Build a new network for tensors of this shape; its weights come from torch's seeded generator."""

    def _needs_views(self) -> bool:
        return True

    def _learn(self, source: Any, y: Any) -> None:
        if self._needs_views() and self.augment is None:
            raise PolyadicError(f"{type(self).__name__} learns from windows and their views: pass augment")
        codes = self._codes(y, source)
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would also seed the generators of all GPUs.
            torch.default_generator.manual_seed(integer_seed(self.seed_, _WEIGHTS))
            network = self._network_for(self._tensor_shape(source))
        self.history_ = train(network, source, codes, self)
        self._network = network.cpu().eval()

    def _codes(self, y: Any, source: Any) -> Tensor | None:
        """Return the classes of the windows, for supervised baselines: (N,)."""
        return None

    def _features(self, T: Tensor) -> Tensor:
        with torch.no_grad():
            Z: Tensor = self._network.to(T.device)(T)
        return Z.to(T.dtype)


@dataclass(eq=False, repr=False)
class SimCLR(DeepBaseline):
    """SimCLR: pulls features of a window and its augmented view together, and apart from the others in the batch.

    Examples
    --------
    >>> import numpy as np
    >>> from polyadic.augment import Jitter
    >>> from polyadic.spectral import STFT
    >>> X = np.random.default_rng(0).normal(size=(20, 3, 64)).astype(np.float32)
    >>> model = SimCLR(4, tensorize=STFT(n_fft=16, hop=8), augment=Jitter(0.05), max_epochs=1).fit(X)
    >>> model.transform(X).shape
    (20, 4)
    """

    dim: int = 32
    _: KW_ONLY
    temperature: float = 0.5

    def _network_for(self, shape: Sequence[int]) -> Learner:
        return SimCLRNetwork(shape, self.dim, self.temperature)


@dataclass(eq=False, repr=False)
class BYOL(DeepBaseline):
    """BYOL: predicts the features of a window's augmented view from those of the window, and vice versa.

    Targets come from a second encoder, whose weights are a running average of the encoder's. Its features are
    standardised over the batch, without learned weights; otherwise all features would collapse to one point. (In the
    original BYOL, batch norm in larger projection and prediction heads prevents this; the sizes in Table 2 leave no
    room for them.) As the target changes, `held_out` is not strictly comparable between epochs. `momentum` is the
    fraction of the target's weights that is kept at each step.
    """

    dim: int = 32
    _: KW_ONLY
    momentum: float = 0.99

    def _network_for(self, shape: Sequence[int]) -> Learner:
        return BYOLNetwork(shape, self.dim, self.momentum)


@dataclass(eq=False, repr=False)
class AutoEncoder(DeepBaseline):
    """An autoencoder: features from which tensors are reconstructed with minimum mean squared error.

    The error is computed on tensors standardised by channel: predicting their mean has error 1. `contrastive` adds
    SimCLR's loss, times `weight`, between the features of windows and of their augmented views, as in the paper's
    AE_ss; views are then reconstructed as well as windows.
    """

    dim: int = 32
    _: KW_ONLY
    contrastive: bool = False
    weight: float = 1.0
    temperature: float = 0.5

    def _needs_views(self) -> bool:
        return self.contrastive

    def _network_for(self, shape: Sequence[int]) -> Learner:
        return AutoEncoderNetwork(shape, self.dim, self.weight if self.contrastive else 0.0, self.temperature)


class ReferenceCNN(ClassifierMixin, DeepBaseline):  # type: ignore[misc]
    """A CNN trained end to end on labelled windows; its features are those of the backbone.

    With an augmentation, the view of each window is trained with the label of the window.
    """

    classes_: np.ndarray

    def _needs_views(self) -> bool:
        return False

    def _codes(self, y: Any, source: Any) -> Tensor:
        self.classes_, codes = labels_of(y)
        return torch.from_numpy(codes)

    def _network_for(self, shape: Sequence[int]) -> Learner:
        return ClassifierNetwork(shape, len(self.classes_))

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable class of each window: (N,)."""
        Z = torch.as_tensor(self.transform(X))
        network = self._network.to(Z.device)
        assert isinstance(network, ClassifierNetwork)
        with torch.no_grad():
            best = torch.softmax(network.linear(Z.float()), dim=1).argmax(dim=1)
        chosen: np.ndarray = self.classes_[best.cpu().numpy()]
        return chosen
