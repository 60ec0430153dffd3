"""Training of the deep baselines: Adam until the loss on held-out windows reaches a plateau (appendix D.4).

Batch norm needs more than one window, so an epoch is split into batches of nearly equal size, none with one window.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paper.baselines.backbone import Standardize
from polyadic.baselines import Baseline
from polyadic.errors import PolyadicError

_IMPROVEMENT = 1e-3
_MEASURED_WINDOWS = 1024
_PIECE_BYTES = {"cuda": 2**28}
_HELD_OUT_SWEEP = -1
_SPLIT, _WEIGHTS = 0x5B117, 0x3E16475
_COUNTERS = "num_batches_tracked"

History = dict[str, list[float]]


class Learner(nn.Module):
    """A trainable network: features of standardised tensors, and a loss.

    Parameters
    ----------
    shape : (I, J, K) of a tensor, or (I, K)
    n_features : number of features of a window
    """

    def __init__(self, shape: Sequence[int], n_features: int) -> None:
        super().__init__()
        self.shape = tuple(int(size) for size in shape)
        self.n_features = n_features
        self.standardize = Standardize(self.shape[0])

    encoder: nn.Module
    """Maps standardised tensors (b, I, J, K) to features (b, n_features)."""

    def encode(self, S: Tensor) -> Tensor:
        """Map standardised tensors (b, I, J, K) to features (b, n_features)."""
        Z: Tensor = self.encoder(S)
        return Z

    @abstractmethod
    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        """Return the mean loss of a batch: one number.

        Parameters
        ----------
        S : (n_views · b, I, J, K), standardised: all windows, then their augmented views if there are any
        codes : (b,), classes of the windows, if known
        """

    def forward(self, T: Tensor) -> Tensor:
        """Map tensors (b, I, J, K) to features (b, n_features)."""
        return self.encode(self.standardize(T))

    def loss(self, T: Tensor, codes: Tensor | None) -> Tensor:
        """Compute `objective` for unstandardised tensors."""
        return self.objective(self.standardize(T), codes)

    def after_step(self) -> None:
        """Run after each step of the optimiser; by default, do nothing."""

    def n_parameters(self) -> int:
        """Return the number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)


def train(network: Learner, source: Any, codes: Tensor | None, settings: DeepBaseline) -> History:
    """Train until the loss on held-out windows has not fallen by 0.1 % for `patience` epochs; keep the best weights.

    Each epoch has its own order of windows and its own augmentations; the held-out windows have the same augmentations
    in every epoch.

    Parameters
    ----------
    source : batches of the windows, as `Baseline._source` returns them
    codes : (N,), classes of the windows, if the loss needs them
    settings : the fitted baseline's parameters and its `seed_`

    Returns
    -------
    `loss`, `held_out` and `seconds` of each epoch; the network has the weights with the lowest `held_out`, or its
    initial weights if there is no epoch
    """
    network.to(source.device)
    codes = None if codes is None else codes.to(source.device)
    kept, held = hold_out(source.n_windows, settings.holdout, settings.seed_)
    _measure(network, source, kept, settings.batch_size)
    for_training = torch.ones(source.n_windows, dtype=torch.bool)
    for_training[held] = False
    weights = [parameter for parameter in network.parameters() if parameter.requires_grad]
    fused = source.device.type == "cuda" or None  # one kernel launch for all weights
    optimizer = torch.optim.Adam(weights, settings.learning_rate, weight_decay=settings.weight_decay, fused=fused)
    history: History = {"loss": [], "held_out": [], "seconds": []}
    mark, waited = math.inf, 0
    best: dict[str, Tensor] = {}
    for epoch in range(settings.max_epochs):
        begun = time.perf_counter()
        order = source.order(settings.seed_, epoch)
        order = order[for_training[order]]
        network.train()
        loss = _mean_loss(network, source, codes, batches_of(order, settings.batch_size), epoch, optimizer)
        network.eval()
        with torch.no_grad():
            parts = batches_of(held, settings.batch_size)
            held_out = _mean_loss(network, source, codes, parts, _HELD_OUT_SWEEP)
        if not (math.isfinite(loss) and math.isfinite(held_out)):
            raise PolyadicError(
                f"the loss did not stay finite: it is {loss:g} in epoch {epoch + 1}, and {held_out:g} on held-out "
                f"windows; learning_rate={settings.learning_rate:g} may be too large"
            )
        if held_out < min(history["held_out"], default=math.inf):
            best = {name: value.detach().clone() for name, value in network.state_dict().items()}
        for name, value in (("loss", loss), ("held_out", held_out), ("seconds", time.perf_counter() - begun)):
            history[name].append(value)
        if held_out < mark - _IMPROVEMENT * abs(mark) or math.isinf(mark):
            mark, waited = held_out, 0
        else:
            waited += 1
        if waited >= settings.patience:
            break
    if best:
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
    for ids, T in _batches(source, parts, sweep, math.prod(network.shape)):
        loss = network.loss(T, None if codes is None else codes[ids.to(codes.device)])
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            network.after_step()
        total += loss.detach() * len(ids)
    return float(total) / sum(len(ids) for ids in parts)


def _batches(source: Any, parts: Sequence[Tensor], sweep: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches like `source.batches`; on a GPU, where small steps are inefficient, compute many parts at once.

    This is done only if it cannot change the result: built-in augmentations and the STFT treat each window
    independently, but functions of the user may not.

    Parameters
    ----------
    size : number of entries of the tensor of a window
    """
    apart = (source.augment is None or source.augment.per_window) and (
        source.tensorize is None or source.tensorize.per_window
    )
    most = _PIECE_BYTES.get(source.device.type, 0) if apart else 0
    largest = max(len(ids) for ids in parts) * source.n_views * size * source.dtype.itemsize
    count = max(1, most // largest)
    groups = [parts[first : first + count] for first in range(0, len(parts), count)]
    pieces = source.batches([torch.cat(list(group)) for group in groups], sweep)
    for group, (_, T) in zip(groups, pieces, strict=True):
        views = torch.split(T.reshape(source.n_views, -1, *T.shape[1:]), [len(ids) for ids in group], dim=1)
        yield from ((ids, view.flatten(0, 1)) for ids, view in zip(group, views, strict=True))


def _measure(network: Learner, source: Any, kept: Tensor, batch_size: int) -> None:
    """Compute the scale of the channels from training windows, without augmentations."""
    rows = torch.linspace(0, len(kept) - 1, min(len(kept), _MEASURED_WINDOWS), dtype=torch.float64).long()
    plain = replace(source, augment=None)
    network.standardize.measure(T for _, T in plain.batches(torch.split(kept[rows], batch_size), 0))


def hold_out(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the training windows and the held-out windows, at least two of each, both in order.

    Each window has its own random number; those with the lowest are held out.

    Examples
    --------
    >>> [len(part) for part in hold_out(50, 0.1, seed=0)]
    [45, 5]
    """
    if count < 4:
        raise PolyadicError(f"X must have at least 4 windows, two to train on and two to hold out, but has {count}")
    held = min(max(round(share * count), 2), count - 2)
    base = combine_seeds(combine_seeds(seed, _SPLIT), 0)
    keys = _scramble(np.arange(count, dtype=np.uint32) ^ np.uint32(base & 0xFFFFFFFF))
    keys = _scramble(keys + np.uint32(base >> 32 & 0xFFFFFFFF))
    first = _scramble(np.ones(1, np.uint32))
    order = torch.from_numpy(np.argsort(_scramble(keys ^ first) >> np.uint32(8), kind="stable"))
    return order[held:].sort().values, order[:held].sort().values


def combine_seeds(*parts: int) -> int:
    """Combine several integers to one 63-bit seed, by chained splitmix64, as the library does.

    Examples
    --------
    >>> combine_seeds(0, 1) != combine_seeds(1, 0)
    True
    """
    state, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    for part in parts:
        state = (state ^ (part & mask)) + 0x9E3779B97F4A7C15 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return state >> 1


def _scramble(words: np.ndarray) -> np.ndarray:
    """Hash unsigned 32-bit integers: a random number for each window that depends on nothing but its index."""
    words = (words ^ words >> np.uint32(16)) * np.uint32(0x7FEB352D)
    words = (words ^ words >> np.uint32(15)) * np.uint32(0x846CA68B)
    scrambled: np.ndarray = words ^ words >> np.uint32(16)
    return scrambled


def batches_of(ids: Tensor, batch_size: int) -> list[Tensor]:
    """Split windows into as few batches as `batch_size` allows, of nearly equal size, none with one window.

    If that is impossible, because `batch_size` is 2 and the number of windows is odd, one batch has three windows.

    Examples
    --------
    >>> [len(part) for part in batches_of(torch.arange(129), 128)], [len(p) for p in batches_of(torch.arange(5), 2)]
    ([65, 64], [3, 2])
    """
    count = min(-(-len(ids) // batch_size), len(ids) // 2)
    return list(torch.tensor_split(ids, max(count, 1)))


@dataclass(eq=False, repr=False)
class DeepBaseline(Baseline):
    """Base class of the deep baselines: training, and weights in model files.

    A subclass builds its network in `_network_for`; if it needs an augmentation, `_check_views` raises an error without
    one.

    Attributes
    ----------
    history_ : `loss`, `held_out` and `seconds`, one number per epoch
    n_epochs_, best_epoch_ : number of epochs, and the epoch with the lowest `held_out`, whose weights are kept; 0 for
        none
    """

    _: KW_ONLY
    tensorize: Any = None
    augment: Any = None
    learning_rate: float = 1e-3
    weight_decay: float = 5e-4
    batch_size: int = 128
    max_epochs: int = 100
    patience: int = 5
    holdout: float = 0.1
    device: str | torch.device = "auto"
    random_state: Any = 0

    @abstractmethod
    def _network_for(self, shape: Sequence[int]) -> Learner:
        """Build a new network for tensors of this shape; its weights come from torch's seeded generator."""

    def _codes(self, y: Any, source: Any) -> Tensor | None:
        """Return the classes of the windows, for supervised baselines: (N,)."""
        return None

    def _check_views(self) -> None:
        """Raise an error if training needs an augmentation and there is none."""

    def _learn(self, X: Any, y: Any) -> None:
        self._check_views()
        source = self._source(X)
        codes = self._codes(y, source)
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would also seed the generators of all GPUs.
            torch.default_generator.manual_seed(combine_seeds(self.seed_, _WEIGHTS))
            network = self._network_for(self._tensor_shape(source))
        self.history_ = train(network, source, codes, self)
        self._network = network.cpu().eval()

    def _ready(self, T: Tensor) -> Learner:
        """Return the network on the device of these tensors, which must have the shape of the training data."""
        if T.shape[1:] != self._network.shape:
            raise PolyadicError(
                f"tensorize must return tensors of shape {self._network.shape} as in fit, but returned "
                f"{tuple(T.shape[1:])}"
            )
        return self._network.to(T.device)

    def _features(self, T: Tensor) -> Tensor:
        with torch.no_grad():
            Z: Tensor = self._ready(T)(T)
        return Z.to(T.dtype)

    def _width(self) -> int:
        return self._network.n_features

    @property
    def n_epochs_(self) -> int:
        return len(self.history_["loss"])

    @property
    def best_epoch_(self) -> int:
        held_out = self.history_["held_out"]
        return 1 + int(np.argmin(held_out)) if held_out else 0

    @property
    def n_parameters_(self) -> int:
        """Trainable weights: not the input scale, batch norm's running averages or BYOL's target."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        return self._network.n_parameters()

    def _arrays(self) -> dict[str, np.ndarray]:
        return {name: value.cpu().numpy() for name, value in self._state().items()}

    def _extra(self) -> dict[str, Any]:
        return {"shape": list(self._network.shape)}

    def _restore(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        with torch.random.fork_rng(devices=[]):
            self._network = self._network_for([int(size) for size in extra["shape"]]).eval()
        expected = {name: tuple(value.shape) for name, value in self._state().items()}
        came = {name: array.shape for name, array in arrays.items()}
        if came != expected or bool(self.history_["loss"]) != (self.max_epochs > 0):
            raise ValueError(f"the weights {came} are not those of the network, {expected}")
        self._network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, strict=False)

    def _state(self) -> dict[str, Tensor]:
        """Return all weights and buffers, except batch counters, which nothing depends on."""
        return {name: value for name, value in self._network.state_dict().items() if not name.endswith(_COUNTERS)}
