"""SimCLR and BYOL on windows and their augmented views (section 4.1).

The losses act directly on the `dim` outputs of the encoder: according to the sizes in Table 2, the paper has no
projection head.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from paper.baselines.backbone import Encoder
from paper.baselines.training import DeepBaseline, Learner
from polyadic.errors import PolyadicError


def nce_loss(A: Tensor, B: Tensor, temperature: float = 0.5) -> Tensor:
    """Compute the normalised, temperature-scaled cross-entropy loss (NT-Xent) of SimCLR.

    Each of the 2b feature vectors must identify its other view among the other 2b − 1, by cosine over temperature.

    Parameters
    ----------
    A, B : (b, d), features of b windows and of their augmented views
    temperature : divisor of the cosines

    Returns
    -------
    the mean over all 2b features

    Examples
    --------
    >>> Z = 100 * torch.eye(3)
    >>> round(float(nce_loss(Z, Z, temperature=0.01)), 4)
    0.0
    """
    Z = normalize(torch.cat([A, B]), dim=1)
    logits = (Z @ Z.T) / temperature
    own = torch.eye(len(Z), dtype=torch.bool, device=Z.device)
    partner = torch.arange(len(Z), device=Z.device).roll(len(A))
    return cross_entropy(logits.masked_fill(own, float("-inf")), partner)


def byol_loss(P: Tensor, Z: Tensor) -> Tensor:
    """Compute the squared distance of BYOL between normalised predictions and targets, 2 − 2 cos.

    Parameters
    ----------
    P, Z : (b, d), predictions and targets

    Returns
    -------
    the mean over the b rows

    Examples
    --------
    >>> float(byol_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])))
    2.0
    """
    return 2 - 2 * (normalize(P, dim=1) * normalize(Z, dim=1)).sum(dim=1).mean()


class _SimCLRNetwork(Learner):
    def __init__(self, shape: Sequence[int], dim: int, temperature: float) -> None:
        super().__init__(shape, dim)
        self.encoder = Encoder(shape, dim)
        self.temperature = temperature

    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        plain, augmented = self.encode(S).chunk(2)
        return nce_loss(plain, augmented, self.temperature)


class _BYOLNetwork(Learner):
    def __init__(self, shape: Sequence[int], dim: int, momentum: float) -> None:
        super().__init__(shape, dim)
        self.encoder = Encoder(shape, dim)
        half = max(dim // 2, 1)
        self.predictor = nn.Sequential(
            nn.Linear(dim, half, dtype=torch.float32), nn.ReLU(), nn.Linear(half, dim, dtype=torch.float32)
        )
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.spread = nn.BatchNorm1d(dim, affine=False, dtype=torch.float32)
        self.momentum = momentum

    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        with torch.no_grad():
            plain, augmented = self.spread(self.target(S)).chunk(2)
        return byol_loss(self.predictor(self.encode(S)), torch.cat([augmented, plain]))

    @torch.no_grad()
    def after_step(self) -> None:
        torch._foreach_lerp_(list(self.target.parameters()), list(self.encoder.parameters()), 1 - self.momentum)


class _SelfSupervised(DeepBaseline):
    """Base class of SimCLR and BYOL, which need an augmentation."""

    def _check_views(self) -> None:
        if self.augment is None:
            raise PolyadicError(
                f"augment is None, but {type(self).__name__} learns from windows and their augmented views: pass an "
                "augmentation"
            )


@dataclass(eq=False, repr=False)
class SimCLR(_SelfSupervised):
    """SimCLR: pulls features of a window and its augmented view together, and apart from the others in the batch.

    `n_parameters_` counts the encoder: the backbone and the linear layer to `dim` features.

    Parameters
    ----------
    dim : number of features
    tensorize : from a batch (b, channels, time) to tensors (b, I, J, K), such as `polyadic.spectral.STFT`; None if the
        input already is a tensor
    augment : maps a batch to its augmented view, as do the augmentations of `polyadic.augment`; required
    temperature : temperature of the loss; see `nce_loss`
    learning_rate, weight_decay : parameters of Adam
    batch_size : maximum number of windows in a batch, not counting their views
    max_epochs, patience : stop when the loss on held-out windows has not fallen by 0.1 % for `patience` epochs, or
        after `max_epochs`; the weights with the lowest loss are kept. With 0 epochs, only the input scale is learned
    holdout : fraction of the windows that is held out, window by window
    device : "auto", "cpu", "cuda", …
    random_state : seed of the weights, the held-out windows, the order of windows and the augmentations

    Attributes
    ----------
    history_ : `loss`, `held_out` and `seconds`, one number per epoch
    n_epochs_, best_epoch_, n_parameters_, seed_ : numbers
    tensorize_ : `tensorize`, calibrated on the data

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
        return _SimCLRNetwork(shape, int(self.dim), float(self.temperature))


@dataclass(eq=False, repr=False)
class BYOL(_SelfSupervised):
    """BYOL: predicts the features of a window's augmented view from those of the window, and vice versa.

    Targets come from a second encoder, whose weights are a running average of the encoder's. Its features are
    standardised over the batch, without learned weights; otherwise all features would collapse to one point. (In the
    original BYOL, batch norm in larger projection and prediction heads prevents this; the sizes in Table 2 leave no
    room for them.)
    `n_parameters_` counts the encoder and the predictor, which has one hidden layer with half as many units as
    features; the target is not trained and not counted.

    Parameters
    ----------
    dim : number of features
    momentum : fraction of the target's weights that is kept at each step
    tensorize, augment, learning_rate, weight_decay, batch_size, max_epochs, patience, holdout : as for `SimCLR`
    device, random_state : as for `SimCLR`

    Attributes
    ----------
    history_, n_epochs_, best_epoch_, n_parameters_, seed_, tensorize_ : as for `SimCLR`; as the target changes,
        `held_out` is not strictly comparable between epochs

    Examples
    --------
    >>> from polyadic.augment import Jitter
    >>> model = BYOL(4, augment=Jitter(0.05), max_epochs=1).fit(torch.randn(20, 3, 64))
    >>> model.transform(torch.randn(5, 3, 64)).shape
    torch.Size([5, 4])
    """

    dim: int = 32
    _: KW_ONLY
    momentum: float = 0.99

    def _network_for(self, shape: Sequence[int]) -> Learner:
        return _BYOLNetwork(shape, int(self.dim), float(self.momentum))
