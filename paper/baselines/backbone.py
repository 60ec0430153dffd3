"""The backbone of all deep baselines: residual blocks over channel × frequency × time (appendix D.4).

The paper shows its backbone in a figure and gives its size in Table 2. Here, the layers follow from a rule, which
reproduces the paper's sizes to within 10 % for its four shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from polyadic.errors import PolyadicError

_ROWS = 3
_FIRST, _WIDEST, _MULTIPLE = 16, 64, 4


def grids(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return the numbers of frequencies and frames before the first block and after each block.

    A block halves both, rounding up. There is at least one block, and as many as needed until neither exceeds 3.

    Parameters
    ----------
    shape : (I, J, K), or (I, K) for tensors without frequencies

    Examples
    --------
    >>> grids((18, 33, 33))
    [(33, 33), (17, 17), (9, 9), (5, 5), (3, 3)]
    """
    if len(shape) not in (2, 3):
        raise PolyadicError(
            f"tensorize must return tensors of channels × frequencies × frames, or channels × frames, for a "
            f"convolutional network, but returned shape {tuple(shape)}"
        )
    sizes = [(1 if len(shape) == 2 else int(shape[1]), int(shape[-1]))]
    while len(sizes) == 1 or max(sizes[-1]) > _ROWS:
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
    last = min(_FIRST * 2 ** ((n_blocks - 2) / 2), _WIDEST)
    exact = [max(_FIRST, last * 2 ** (-max(n_blocks - 2 - block, 0) / 2)) for block in range(n_blocks)]
    return [_MULTIPLE * round(width / _MULTIPLE) for width in exact]


class Standardize(nn.Module):
    """Standardises tensors by channel, to mean 0 and standard deviation 1, in float32.

    Mean and standard deviation are computed once, before training. They are buffers: saved with the model, but not
    learnable parameters.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_channels, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(n_channels, dtype=torch.float64))

    def measure(self, batches: Iterable[Tensor]) -> None:
        """Compute mean and standard deviation from some batches (b, I, …)."""
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
        silent = deviation <= 1e-12 * mean.abs()
        self.scale.copy_(torch.where(silent, torch.ones_like(deviation), deviation))

    def forward(self, T: Tensor) -> Tensor:
        """Map (b, I, J, K) or (b, I, K) to (b, I, J, K) float32, with one frequency if there was none."""
        T = T[:, :, None] if T.ndim == 3 else T
        return ((T - self.mean.to(T)[:, None, None]) / self.scale.to(T)[:, None, None]).float()


class ResidualBlock(nn.Module):
    """A residual block with two 3 × 3 convolutions; halves frequencies and frames, rounding up."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride=2, padding=1, bias=False, dtype=torch.float32),
            nn.BatchNorm2d(n_out, dtype=torch.float32),
            nn.ReLU(),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=False, dtype=torch.float32),
            nn.BatchNorm2d(n_out, dtype=torch.float32),
        )
        self.shortcut = nn.Sequential(
            nn.AvgPool2d(2, ceil_mode=True),
            nn.Conv2d(n_in, n_out, 1, bias=False, dtype=torch.float32),
            nn.BatchNorm2d(n_out, dtype=torch.float32),
        )

    def forward(self, T: Tensor) -> Tensor:
        return torch.relu(self.branch(T) + self.shortcut(T))


class Backbone(nn.Module):
    """A convolution, residual blocks, and the mean over the remaining frames.

    Parameters
    ----------
    shape : (I, J, K) of a tensor, or (I, K)

    Examples
    --------
    >>> Backbone((18, 33, 33))(torch.randn(2, 18, 33, 33)).shape
    torch.Size([2, 96])
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        sizes = grids(shape)
        channels = widths(len(sizes) - 1)
        self.grids = sizes
        self.n_channels = channels[-1]
        self.n_features = channels[-1] * sizes[-1][0]
        self.stem = nn.Sequential(
            nn.Conv2d(int(shape[0]), channels[0], 3, padding=1, bias=False, dtype=torch.float32),
            nn.BatchNorm2d(channels[0], dtype=torch.float32),
            nn.ReLU(),
        )
        pairs = zip([channels[0], *channels[:-1]], channels, strict=True)
        self.blocks = nn.Sequential(*(ResidualBlock(n_in, n_out) for n_in, n_out in pairs))

    def forward(self, T: Tensor) -> Tensor:
        """Map standardised tensors (b, I, J, K) to features (b, n_features)."""
        maps: Tensor = self.blocks(self.stem(T))
        return maps.mean(dim=3).flatten(1)


class Encoder(nn.Module):
    """The backbone and one linear layer to `dim` features.

    Parameters
    ----------
    shape : (I, J, K) of a tensor, or (I, K)
    dim : number of features
    """

    def __init__(self, shape: Sequence[int], dim: int) -> None:
        super().__init__()
        self.backbone = Backbone(shape)
        self.linear = nn.Linear(self.backbone.n_features, dim, dtype=torch.float32)

    def forward(self, T: Tensor) -> Tensor:
        """Map standardised tensors (b, I, J, K) to features (b, dim)."""
        features: Tensor = self.linear(self.backbone(T))
        return features
