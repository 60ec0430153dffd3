"""The networks of the deep baselines and their losses (section 4.1, appendix D.4).

All have one backbone: residual blocks over channel × frequency × time. The paper shows it in a figure and gives its
size in Table 2; here, the layers follow from a rule, which reproduces the paper's sizes to within 10 % for its four
shapes. According to these sizes, the paper has no projection head: losses act directly on the outputs of the encoder.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

# ------------------------------------------------------------------------------------------------------------- layers


def grids(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return the numbers of frequencies and frames of tensors (I, J, K) before the first block and after each block.

    A block halves both, rounding up. There is at least one block, and as many as needed until neither exceeds 3.

    Examples
    --------
    >>> grids((18, 33, 33))
    [(33, 33), (17, 17), (9, 9), (5, 5), (3, 3)]
    """
    _, rows, columns = shape
    sizes = [(int(rows), int(columns))]
    while len(sizes) == 1 or max(sizes[-1]) > 3:
        rows, columns = sizes[-1]
        sizes.append((-(-rows // 2), -(-columns // 2)))
    return sizes


def widths(n_blocks: int) -> list[int]:
    """Return the number of channels of each block.

    The last two blocks have width 16·√2^(n−2), but at most 64; each earlier block is narrower than the next by √2, but
    has at least 16 channels; all widths are rounded to multiples of 4.

    Examples
    --------
    >>> widths(4), widths(6)
    ([16, 24, 32, 32], [16, 24, 32, 44, 64, 64])
    """
    last = min(16 * 2 ** ((n_blocks - 2) / 2), 64)
    exact = [max(16, last * 2 ** (-max(n_blocks - 2 - block, 0) / 2)) for block in range(n_blocks)]
    return [4 * round(width / 4) for width in exact]


def _convolution(n_in: int, n_out: int, size: int = 3, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(n_out)]


class ResidualBlock(nn.Module):
    """A residual block with two 3 × 3 convolutions; halves frequencies and frames, rounding up."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_convolution(n_in, n_out, stride=2), nn.ReLU(), *_convolution(n_out, n_out))
        self.shortcut = nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), *_convolution(n_in, n_out, size=1))

    def forward(self, T: Tensor) -> Tensor:
        return torch.relu(self.branch(T) + self.shortcut(T))


class Backbone(nn.Module):
    """A convolution, residual blocks, and the mean over the remaining frames, for tensors (I, J, K).

    Examples
    --------
    >>> Backbone((18, 33, 33))(torch.randn(2, 18, 33, 33)).shape
    torch.Size([2, 96])
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.grids = grids(shape)
        channels = widths(len(self.grids) - 1)
        self.n_channels = channels[-1]
        self.n_features = channels[-1] * self.grids[-1][0]
        self.stem = nn.Sequential(*_convolution(int(shape[0]), channels[0]), nn.ReLU())
        self.blocks = nn.Sequential(*(ResidualBlock(*pair) for pair in pairwise([channels[0], *channels])))

    def forward(self, T: Tensor) -> Tensor:
        """Map standardised tensors (b, I, J, K) to features (b, n_features)."""
        maps: Tensor = self.blocks(self.stem(T))
        return maps.mean(dim=3).flatten(1)


class Encoder(nn.Sequential):
    """The backbone and one linear layer to `dim` features."""

    def __init__(self, shape: Sequence[int], dim: int) -> None:
        backbone = Backbone(shape)
        super().__init__(backbone, nn.Linear(backbone.n_features, dim))


class Decoder(nn.Sequential):
    """The decoder: a linear layer to the backbone's last feature map, then a deconvolution for each block.

    All deconvolutions have half as many channels as the tensor, but at least 4. The decoder mirrors the encoder's
    backbone, from `dim` features to `n_channels` channels.

    Examples
    --------
    >>> Decoder(Backbone((18, 33, 20)), dim=5, n_channels=18)(torch.randn(2, 5)).shape
    torch.Size([2, 18, 33, 20])
    """

    def __init__(self, backbone: Backbone, dim: int, n_channels: int) -> None:
        width = max(n_channels // 2, 4)
        sizes = backbone.grids[::-1]
        rows, columns = sizes[0]
        layers = [
            nn.Linear(dim, backbone.n_features),
            nn.ReLU(),
            nn.Unflatten(1, (backbone.n_channels, rows, 1)),
            nn.ConvTranspose2d(backbone.n_channels, width, (1, columns), bias=False),
        ]
        for number, (small, large) in enumerate(pairwise(sizes)):
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            last = number == len(sizes) - 2
            # A block maps 2n − 1 or 2n to n; the deconvolution restores the original size.
            odd = (large[0] - 2 * small[0] + 1, large[1] - 2 * small[1] + 1)
            n_out = n_channels if last else width
            layers.append(nn.ConvTranspose2d(width, n_out, 3, 2, padding=1, output_padding=odd, bias=last))
        super().__init__(*layers)


# ------------------------------------------------------------------------------------------------------------- losses


def nce_loss(A: Tensor, B: Tensor, temperature: float = 0.5) -> Tensor:
    """Compute the normalised, temperature-scaled cross-entropy loss (NT-Xent) of SimCLR, mean over all 2b features.

    Each of the 2b feature vectors must identify its other view among the other 2b − 1, by cosine over temperature.

    Parameters
    ----------
    A, B : (b, d), features of b windows and of their augmented views

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
    """Compute the squared distance of BYOL between normalised predictions and targets (b, d), mean of 2 − 2 cos.

    Examples
    --------
    >>> float(byol_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])))
    2.0
    """
    return 2 - 2 * (normalize(P, dim=1) * normalize(Z, dim=1)).sum(dim=1).mean()


# ----------------------------------------------------------------------------------------------------------- learners


class Learner(nn.Module):
    """A trainable network: features of tensors (I, J, K), standardised by channel, and a loss.

    Mean and standard deviation of the channels are measured once, before training; they are buffers, not parameters.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, encoder: nn.Module, n_channels: int, n_features: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.n_features = n_features
        self.register_buffer("mean", torch.zeros(n_channels, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(n_channels, dtype=torch.float64))

    @abstractmethod
    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        """Return the mean loss of a batch: one number.

        Parameters
        ----------
        S : (n_views · b, I, J, K), standardised: all windows, then their augmented views if there are any
        codes : (b,), classes of the windows, if known
        """

    def after_step(self) -> None:
        """Run after each step of the optimiser; by default, do nothing."""

    def forward(self, T: Tensor) -> Tensor:
        """Map tensors (b, I, J, K) to features (b, n_features)."""
        Z: Tensor = self.encoder(self.standardize(T))
        return Z

    def standardize(self, T: Tensor) -> Tensor:
        """Return tensors with mean 0 and standard deviation 1 in each channel, in float32."""
        return ((T - self.mean.to(T)[:, None, None]) / self.scale.to(T)[:, None, None]).float()

    def measure(self, batches: Iterable[Tensor]) -> None:
        """Compute mean and standard deviation of the channels from some batches (b, I, J, K)."""
        seen = 0
        mean, squares = torch.zeros_like(self.mean), torch.zeros_like(self.mean)
        for T in batches:
            values = T.to(mean).transpose(0, 1).flatten(1)
            variance, centre = torch.var_mean(values, dim=1, correction=0)
            new = values.shape[1]
            squares += variance * new + (centre - mean).square() * (seen * new / (seen + new))
            mean += (centre - mean) * (new / (seen + new))
            seen += new
        deviation = (squares / seen).sqrt()
        self.mean.copy_(mean)
        # The standard deviation of a constant channel is only rounding error.
        self.scale.copy_(torch.where(deviation <= 1e-12 * mean.abs(), 1.0, deviation))

    def n_parameters(self) -> int:
        """Return the number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)


class SimCLRNetwork(Learner):
    def __init__(self, shape: Sequence[int], dim: int, temperature: float) -> None:
        super().__init__(Encoder(shape, dim), shape[0], dim)
        self.temperature = temperature

    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        plain, augmented = self.encoder(S).chunk(2)
        return nce_loss(plain, augmented, self.temperature)


class BYOLNetwork(Learner):
    def __init__(self, shape: Sequence[int], dim: int, momentum: float) -> None:
        super().__init__(Encoder(shape, dim), shape[0], dim)
        half = max(dim // 2, 1)
        self.predictor = nn.Sequential(nn.Linear(dim, half), nn.ReLU(), nn.Linear(half, dim))
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.spread = nn.BatchNorm1d(dim, affine=False)
        self.momentum = momentum

    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        with torch.no_grad():
            plain, augmented = self.spread(self.target(S)).chunk(2)
        return byol_loss(self.predictor(self.encoder(S)), torch.cat([augmented, plain]))

    @torch.no_grad()
    def after_step(self) -> None:
        torch._foreach_lerp_(list(self.target.parameters()), list(self.encoder.parameters()), 1 - self.momentum)


class AutoEncoderNetwork(Learner):
    def __init__(self, shape: Sequence[int], dim: int, weight: float, temperature: float) -> None:
        encoder = Encoder(shape, dim)
        backbone = encoder[0]
        assert isinstance(backbone, Backbone)
        super().__init__(encoder, shape[0], dim)
        self.decoder = Decoder(backbone, dim, int(shape[0]))
        self.weight = weight
        self.temperature = temperature

    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        Z = self.encoder(S)
        loss = mse_loss(self.decoder(Z), S)
        if self.weight > 0:
            plain, augmented = Z.chunk(2)
            loss = loss + self.weight * nce_loss(plain, augmented, self.temperature)
        return loss


class ClassifierNetwork(Learner):
    def __init__(self, shape: Sequence[int], n_classes: int) -> None:
        backbone = Backbone(shape)
        super().__init__(backbone, shape[0], backbone.n_features)
        self.linear = nn.Linear(backbone.n_features, n_classes)

    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        assert codes is not None
        return cross_entropy(self.linear(self.encoder(S)), codes.repeat(len(S) // len(codes)))
