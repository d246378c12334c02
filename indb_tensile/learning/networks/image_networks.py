"""Networks that turn an image into one vector: convolutions, residual blocks, or attention between patches.

- `ResidualImage`: He, Zhang, Ren and Sun, "Identity Mappings in Deep Residual Networks" (ECCV 2016).
- `PatchTransformer`: Dosovitskiy and others, "An Image is Worth 16x16 Words" (ICLR 2021), with the mean of all
  patches in place of a class token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from indb_tensile.errors import RequestError
from indb_tensile.learning.networks.sequences import EncoderBlock, Positions

_SMALL_SIDE = 64  # larger images are halved before the first stage


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageColumn:
    """The pixels of a column of images in a row."""

    channels: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """Return how many numbers of a row are pixels of this column."""
        return self.channels * self.height * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """How images are read: the parameters `image_...` of a network for tables."""

    encoder: str
    width: int
    blocks: int
    patch: int
    heads: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ImageOptions":
        """Take the options from the parameters of a network for tables."""
        return cls(**{name: values[f"image_{name}"] for name in ("encoder", "width", "blocks", "patch", "heads")})


class ImageVectors(nn.Module):
    """A vector of `width` numbers for each column of images. Each column has a network of its own."""

    def __init__(self, images: Sequence[ImageColumn], options: ImageOptions) -> None:
        super().__init__()
        self.images = tuple(images)
        self.columns = nn.ModuleList(_encoder(image, options) for image in images)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map the pixels (batch, sum of sizes) to (batch, columns, width)."""
        parts = torch.split(pixels, [image.size for image in self.images], dim=1)
        pairs = zip(self.columns, self.images, parts, strict=True)
        vectors = [encode(own.reshape(-1, i.channels, i.height, i.width)) for encode, i, own in pairs]
        return torch.stack(vectors, dim=1)


class ResidualImage(nn.Module):
    """Stages of residual blocks, each of half the height and width and of twice the channels of the one before it.

    The result is the mean over the places of the last stage.
    """

    def __init__(self, channels: int, height: int, width: int, stages: Sequence[int], first: int) -> None:
        super().__init__()
        stride = 2 if min(height, width) > _SMALL_SIDE else 1
        self.stem = nn.Conv2d(channels, first, 3, stride, 1, bias=False)
        blocks: list[nn.Module] = []
        inputs = first
        for stage, count in enumerate(stages):
            outputs = first * 2**stage
            for place in range(count):
                halves = stage > 0 and place == 0
                blocks.append(ResidualBlock(inputs, outputs, 2 if halves else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.outputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, outputs)."""
        return torch.relu(self.norm(self.blocks(self.stem(x)))).mean(dim=(2, 3))


class ResidualBlock(nn.Module):
    """Two convolutions, each after a normalisation and an activation, added to their input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, height, width) to (batch, outputs, height / stride, width / stride)."""
        active = torch.relu(self.first_norm(x))
        added = x if self.shortcut is None else self.shortcut(active)
        inner = self.first(active)
        return cast(Tensor, added + self.second(torch.relu(self.second_norm(inner))))


class PatchTransformer(nn.Module):
    """The mean of the patches of an image after blocks of attention between them."""

    def __init__(
        self,
        channels: int,
        height: int,
        width: int,
        patch: int,
        outputs: int,
        heads: int,
        blocks: int,
        dropout: float,
    ) -> None:
        super().__init__()
        if patch > min(height, width):
            raise RequestError(
                f"architecture: patches of {patch} pixels do not fit into images of {height} x {width}",
                hint=f"Give patches of at most {min(height, width)} pixels.",
            )
        self.patches = nn.Conv2d(channels, outputs, patch, patch)
        self.positions = Positions((height // patch) * (width // patch), outputs)
        self.blocks = nn.Sequential(*(EncoderBlock(outputs, heads, 2 * outputs, dropout) for _ in range(blocks)))
        self.norm = nn.LayerNorm(outputs)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, outputs)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return cast(Tensor, self.norm(self.blocks(self.positions(tokens))).mean(dim=1))


class ConvolutionalImage(nn.Module):
    """Convolutions, each followed by a pooling layer that halves the image, and the mean over the last places."""

    def __init__(self, channels: int, height: int, width: int, blocks: int, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        side, inputs = min(height, width), channels
        for _ in range(blocks + 1):
            layers += [nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            if side >= 2:
                layers.append(nn.MaxPool2d(2))
            inputs, side = outputs, side // 2
        self.layers = nn.Sequential(*layers)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, outputs)."""
        return cast(Tensor, self.layers(x).mean(dim=(2, 3)))


def image_network(kind: str, values: Mapping[str, Any], shape: Sequence[int], outputs: int) -> nn.Module:
    """Build a `resnet` or `vit` for images of this shape: channels, height, width."""
    channels, height, width = shape
    encoder: ResidualImage | PatchTransformer
    if kind == "resnet":
        encoder = ResidualImage(channels, height, width, values["stages"], values["width"])
    else:
        encoder = PatchTransformer(
            *(channels, height, width, values["patch"], values["width"], values["heads"], values["blocks"]),
            dropout=values["dropout"],
        )
    layers: list[nn.Module] = [encoder]
    if values["dropout"]:
        layers.append(nn.Dropout(values["dropout"]))
    return nn.Sequential(*layers, nn.Linear(encoder.outputs, outputs))


def _encoder(image: ImageColumn, options: ImageOptions) -> nn.Module:
    shape = image.channels, image.height, image.width
    match options.encoder:
        case "convolution":
            return ConvolutionalImage(*shape, options.blocks, options.width)
        case "vit":
            return PatchTransformer(*shape, options.patch, options.width, options.heads, options.blocks, 0.0)
        case _:
            first = max(1, options.width // 4)
            residual = ResidualImage(*shape, (options.blocks,) * 3, first)
            return nn.Sequential(residual, nn.Linear(residual.outputs, options.width))
