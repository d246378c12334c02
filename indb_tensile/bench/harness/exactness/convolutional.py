"""Small convolutional networks of bench/harness/exactness/network_kinds.py."""

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10


def _head(channels: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def _normed(
    before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1
) -> nn.Module:
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(before, after, kernel, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after))


class _Residual(nn.Module):
    """A residual block: two convolutions beside a shortcut (He et al. 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(_normed(before, after, stride=stride), nn.ReLU(), _normed(after, after))
        self.shortcut = _normed(before, after, kernel=1, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return functional.relu_(self.main(x) + self.shortcut(x))


def residual() -> nn.Module:
    """Build a network of three residual blocks."""
    return nn.Sequential(
        _normed(3, 8), nn.ReLU(inplace=True), nn.MaxPool2d(2), _Residual(8, 8, 1), _Residual(8, 16, 2), _head(16)
    )


class _Inverted(nn.Module):
    """A depthwise convolution between pointwise ones, with squeeze and excitation (Tan and Le 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 3 * width
        self.expand = nn.Sequential(_normed(width, inner, kernel=1), nn.SiLU())
        self.depthwise = nn.Sequential(_normed(inner, inner, kernel=5, groups=inner), nn.Hardswish())
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, 4, 1), nn.SiLU(), nn.Conv2d(4, inner, 1)
        )
        self.project = _normed(inner, width, kernel=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        inner = self.depthwise(self.expand(x))
        projected: torch.Tensor = self.project(inner * self.squeeze(inner).sigmoid())
        return x + projected


def depthwise() -> nn.Module:
    """Build a network of two inverted residual blocks."""
    return nn.Sequential(_normed(3, 6, stride=2), _Inverted(6), _Inverted(6), nn.Dropout(0.2), _head(6))


class _Dense(nn.Module):
    """A dense block, each of whose layers reads all before it (Huang et al. 2017), with groups and dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.ELU(), _normed(8 + 4 * k, 4, groups=4, dilation=1 + k % 2)) for k in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def dense() -> nn.Module:
    """Build a network with a dense block between two average pools."""
    return nn.Sequential(_normed(3, 8), nn.AvgPool2d(2), _Dense(), nn.AvgPool2d(2), _head(24))


def _separable(width: int, kernel: int) -> nn.Module:
    first = [nn.ReLU(), nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)]
    second = [nn.ReLU(), nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)]
    return nn.Sequential(*first, _normed(width, width, kernel=1), *second, _normed(width, width, kernel=1))


class Cell(nn.Module):
    """One cell of NASNet-A (Zoph et al. 2018): five sums of separable convolutions and pools, side by side."""

    def __init__(self, previous: int, before: int, width: int) -> None:
        super().__init__()
        self.previous = nn.Sequential(nn.ReLU(), _normed(previous, width, kernel=1))
        self.before = nn.Sequential(nn.ReLU(), _normed(before, width, kernel=1))
        self.separable = nn.ModuleList(_separable(width, kernel) for kernel in (5, 3, 5, 3, 3))
        self.pool = nn.AvgPool2d(3, 1, 1)

    def forward(self, previous: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the cell's output."""
        p, x = self.previous(previous), self.before(x)
        a, b, c, d, e = self.separable
        sums = [a(x) + b(p), c(p) + d(p), self.pool(x) + p, self.pool(p) + self.pool(p), e(x) + x]
        return torch.cat([p, *sums], 1)


class Cells(nn.Module):
    """A chain of `count` cells, each of which reads the two before it, with some 200 operators for each cell."""

    def __init__(self, count: int = 2, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        widths = [width, width, *[6 * width] * count]
        self.cells = nn.ModuleList(Cell(widths[k], widths[k + 1], width) for k in range(count))
        self.head = nn.Linear(6 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        previous = x = self.stem(x)
        for cell in self.cells:
            previous, x = x, cell(previous, x)
        predicted: torch.Tensor = self.head(x.mean((2, 3)))
        return predicted


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015). It upsamples by a transposed convolution and by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _normed(3, 6)
        self.second = _normed(6, 12, stride=2)
        self.third = _normed(12, 12, stride=2, dilation=2)
        self.up = nn.ConvTranspose2d(12, 12, 3, stride=2, padding=1, output_padding=1)
        self.last = nn.Conv2d(24 + 6, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        first = functional.leaky_relu(self.first(x))
        second = functional.leaky_relu(self.second(first))
        third = torch.cat([self.up(functional.leaky_relu(self.third(second))), second], 1)
        up = functional.interpolate(third, scale_factor=2, mode="bilinear", align_corners=False)
        predicted: torch.Tensor = self.last(torch.cat([up, first], 1))
        return predicted


class Volumes(nn.Module):
    """Convolutions in three dimensions, then in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.solid = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2))
        self.line = nn.Sequential(
            nn.Conv1d(4, 6, 5, padding=4, dilation=2), nn.BatchNorm1d(6), nn.GELU(), nn.ConvTranspose1d(6, 4, 4, 2)
        )
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        predicted: torch.Tensor = self.head(self.line(self.solid(x).flatten(2)).amax(2))
        return predicted


def normalised() -> nn.Module:
    """Build a network with every normalisation that torch has."""
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 3, padding=1))
    return nn.Sequential(
        nn.BatchNorm2d(4),
        normed,
        nn.GroupNorm(2, 4),
        nn.PReLU(4),
        spectral,
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        nn.Softplus(),
        nn.LocalResponseNorm(3),
        nn.LayerNorm([8, 8]),
        nn.RMSNorm([8, 8]),
        nn.Flatten(),
        nn.Linear(256, CLASSES),
    )
