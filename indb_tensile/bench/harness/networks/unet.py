"""U-Nets, whose few large tensors are needed again late: a network for segmentation, and one for diffusion.

Each level of the way down halves the image and doubles the channels. The way up joins the result of each level to the
level's result on the way down, which therefore lives through all levels below it (Ronneberger et al. 2015).
"""

import torch
from torch import nn
from torch.nn.functional import max_pool2d

_WIDTH = 64  # channels of the first level
_GROUPS = 8
_CLASSES = 2  # of a pixel


class LevelledUNet(nn.Module):
    """A U-Net whose levels have 64, 128, 256 and so on channels.

    With `diffusion` it has group normalisation and SiLU, and returns as many channels as the image has. Otherwise it
    has batch normalisation and ReLU, and returns a score for each class of each pixel.
    """

    def __init__(self, channels: int = 3, *, levels: int, diffusion: bool) -> None:
        super().__init__()
        widths = [_WIDTH << level for level in range(levels)]
        upwards = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        inputs = [channels, *widths[:-1]]
        self.down = nn.ModuleList(_block(a, b, diffusion=diffusion) for a, b in zip(inputs, widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(below, above, 2, stride=2) for below, above in upwards)
        self.join = nn.ModuleList(_block(2 * above, above, diffusion=diffusion) for _, above in upwards)
        self.last = nn.Conv2d(_WIDTH, channels if diffusion else _CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a value for each pixel of the images: scores of its classes, or its noise."""
        results = [self.down[0](x)]
        for block in self.down[1:]:
            results.append(block(max_pool2d(results[-1], 2)))
        x = results.pop()
        for up, join in zip(self.up, self.join, strict=True):
            beside = results.pop()
            x = join(torch.cat([beside, up(x, output_size=beside.shape[-2:])], dim=1))
        result: torch.Tensor = self.last(x)
        return result


def _block(inputs: int, outputs: int, *, diffusion: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, outputs) if diffusion else nn.BatchNorm2d(outputs),
            nn.SiLU() if diffusion else nn.ReLU(),
        ]
    return nn.Sequential(*layers)
