"""Autoencoders: AE, and AE_ss with a contrastive loss in its bottleneck (section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from paper.baselines.backbone import Backbone, Encoder
from paper.baselines.contrastive import nce_loss
from paper.baselines.training import DeepBaseline, Learner
from polyadic.errors import PolyadicError

_NARROWEST = 4


class Decoder(nn.Module):
    """The decoder: a linear layer to the backbone's last feature map, then a deconvolution for each block.

    All deconvolutions have half as many channels as the tensor, but at least 4.

    Parameters
    ----------
    backbone : the encoder's backbone, which the decoder mirrors
    dim, n_channels : number of input features, and of output channels

    Examples
    --------
    >>> Decoder(Backbone((18, 33, 20)), dim=5, n_channels=18)(torch.randn(2, 5)).shape
    torch.Size([2, 18, 33, 20])
    """

    def __init__(self, backbone: Backbone, dim: int, n_channels: int) -> None:
        super().__init__()
        width = max(n_channels // 2, _NARROWEST)
        sizes = backbone.grids[::-1]
        rows, columns = sizes[0]
        self.linear = nn.Sequential(
            nn.Linear(dim, backbone.n_features, dtype=torch.float32),
            nn.ReLU(),
            nn.Unflatten(1, (backbone.n_channels, rows, 1)),
        )
        frames = nn.ConvTranspose2d(backbone.n_channels, width, (1, columns), bias=False, dtype=torch.float32)
        layers: list[nn.Module] = [frames, nn.BatchNorm2d(width, dtype=torch.float32), nn.ReLU()]
        for number, (small, large) in enumerate(pairwise(sizes)):
            last = number == len(sizes) - 2
            # A block maps 2n − 1 or 2n to n; the deconvolution restores the original size.
            odd = (large[0] - 2 * small[0] + 1, large[1] - 2 * small[1] + 1)
            n_out = n_channels if last else width
            layers.append(
                nn.ConvTranspose2d(
                    width, n_out, 3, stride=2, padding=1, output_padding=odd, bias=last, dtype=torch.float32
                )
            )
            layers += [] if last else [nn.BatchNorm2d(width, dtype=torch.float32), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, Z: Tensor) -> Tensor:
        """Map features (b, dim) to standardised tensors (b, I, J, K)."""
        T: Tensor = self.layers(self.linear(Z))
        return T


class _AutoEncoderNetwork(Learner):
    def __init__(self, shape: Sequence[int], dim: int, weight: float, temperature: float) -> None:
        super().__init__(shape, dim)
        self.encoder = encoder = Encoder(shape, dim)
        self.decoder = Decoder(encoder.backbone, dim, int(shape[0]))
        self.weight = weight
        self.temperature = temperature

    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        Z = self.encode(S)
        loss = mse_loss(self.decoder(Z), S)
        if self.weight > 0:
            plain, augmented = Z.chunk(2)
            loss = loss + self.weight * nce_loss(plain, augmented, self.temperature)
        return loss


@dataclass(eq=False, repr=False)
class AutoEncoder(DeepBaseline):
    """An autoencoder: features from which tensors are reconstructed with minimum mean squared error.

    The error is computed on tensors standardised by channel: predicting their mean has error 1.
    `n_parameters_` counts the encoder, backbone and linear layer, and the decoder.

    Parameters
    ----------
    dim : number of features
    contrastive : add SimCLR's loss between the features of windows and of their augmented views, as in the paper's
        AE_ss
    tensorize : from a batch (b, channels, time) to tensors (b, I, J, K), such as `polyadic.spectral.STFT`; None if the
        input already is a tensor
    augment : from a batch to its augmented view; required if `contrastive`. If given, views are reconstructed as well
        as windows; None for the paper's AE
    weight, temperature : weight and temperature of SimCLR's loss
    learning_rate, weight_decay, batch_size, max_epochs, patience, holdout : as for `SimCLR`
    device, random_state : as for `SimCLR`

    Attributes
    ----------
    history_, n_epochs_, best_epoch_, n_parameters_, seed_, tensorize_ : as for `SimCLR`

    Examples
    --------
    >>> model = AutoEncoder(4, max_epochs=1).fit(torch.randn(20, 3, 9, 8))
    >>> model.transform(torch.randn(5, 3, 9, 8)).shape
    torch.Size([5, 4])
    """

    dim: int = 32
    _: KW_ONLY
    contrastive: bool = False
    weight: float = 1.0
    temperature: float = 0.5

    def _check_views(self) -> None:
        if self.contrastive and self.augment is None:
            raise PolyadicError(
                "augment is None, but contrastive=True learns from windows and their augmented views: pass an "
                "augmentation, or contrastive=False"
            )

    def _network_for(self, shape: Sequence[int]) -> Learner:
        weight = float(self.weight) if self.contrastive else 0.0
        return _AutoEncoderNetwork(shape, int(self.dim), weight, float(self.temperature))
