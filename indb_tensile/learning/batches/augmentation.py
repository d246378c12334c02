"""Changes the images of a training a little in each epoch: mirrored, shifted, turned, of other colours, with a hole.

The draws of a row depend on the seed of the training, the epoch and the row alone, not on its batch or thread. So a
training that goes on after a kill has the images that it would have had. Bytes are changed, before they become
numbers. A batch of a validation or of a prediction is never changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.encoding.image_encoders import Images
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.storage.seeded_draws import Draws, Rows, draw

Pixels = npt.NDArray[np.uint8]  # (rows, channels, height, width)

_HIGHEST = 255
_FLIP, _DOWN, _RIGHT, _TURN, _LIGHT, _CONTRAST, _HOLE_DOWN, _HOLE_RIGHT, _TINT = range(
    9
)  # what a number is drawn for
_MOST_CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """How far images are changed: shares of their sides, degrees, and the share of brightness, contrast and tint."""

    seed: int
    flip: bool = False
    shift: float = 0.0
    rotation: float = 0.0
    color: float = 0.0
    cutout: float = 0.0

    @classmethod
    def of(cls, settings: TrainingSettings) -> "Augmentation | None":
        """Return what the settings of a training ask for, or None for nothing."""
        own = cls(
            seed=settings.seed,
            flip=settings.augment_flip,
            shift=settings.augment_shift,
            rotation=settings.augment_rotation,
            color=settings.augment_color,
            cutout=settings.augment_cutout,
        )
        return own if own != cls(seed=settings.seed) else None

    def apply(self, pixels: Pixels, image: Images, column: int, epoch: int, rows: Rows) -> Pixels:
        """Return changed copies of the images of these rows in this epoch."""
        changed = pixels.copy()
        draws = [draw(self.seed, epoch, column * 64 + kind, rows) for kind in range(_TINT + _MOST_CHANNELS)]
        fill = np.array(image.fill, np.uint8)
        if self.flip:
            mirrored = draws[_FLIP] < 0.5
            changed[mirrored] = changed[mirrored, :, :, ::-1]
        if self.rotation:
            _turn(changed, (2 * draws[_TURN] - 1) * self.rotation, fill)
        if self.shift:
            _shift(
                changed,
                _steps(draws[_DOWN], self.shift, image.height),
                _steps(draws[_RIGHT], self.shift, image.width),
            )
        if self.color:
            _recolor(changed, draws, self.color)
        if self.cutout:
            _cut(changed, draws[_HOLE_DOWN], draws[_HOLE_RIGHT], self.cutout, fill)
        return changed


def _steps(draws: Draws, share: float, side: int) -> list[int]:
    """Return whole pixels from minus to plus a share of a side."""
    most = int(share * side)
    steps: list[int] = (np.floor(draws * (2 * most + 1)) - most).astype(np.int64).tolist()
    return steps


def _shift(pixels: Pixels, down: Sequence[int], right: Sequence[int]) -> None:
    """Move each image; the pixels at its edge are repeated where nothing is left."""
    height, width = pixels.shape[2:]
    ys, xs = np.arange(height), np.arange(width)
    for own, y, x in zip(pixels, down, right, strict=True):
        if x or y:
            own[...] = own[:, (ys - y).clip(0, height - 1)][:, :, (xs - x).clip(0, width - 1)]


def _turn(pixels: Pixels, degrees: Draws, fill: npt.NDArray[np.uint8]) -> None:
    """Turn each image around its middle."""
    from PIL import Image  # imported here, since most trainings have no images to turn

    for own, angle in zip(pixels, degrees.tolist(), strict=True):
        for channel, plane in enumerate(own):
            turned = Image.fromarray(plane).rotate(
                angle, Image.Resampling.BILINEAR, fillcolor=int(fill[min(channel, len(fill) - 1)])
            )
            plane[...] = np.asarray(turned)


def _recolor(pixels: Pixels, draws: Sequence[Draws], share: float) -> None:
    """Change brightness and contrast of each image, and how strong each of its colours is."""
    channels = pixels.shape[1]
    levels = np.arange(_HIGHEST + 1)
    lights, contrasts = (1 + share * (2 * draws[kind] - 1) for kind in (_LIGHT, _CONTRAST))
    for row, own in enumerate(pixels):
        middle = float(own.mean(dtype=np.float64))
        for channel in range(channels):
            tint = 1 + share / 2 * (2 * draws[_TINT + channel][row] - 1) if channels > 1 else 1.0
            line = ((levels - middle) * contrasts[row] + middle) * lights[row] * tint
            own[channel] = np.rint(line).clip(0, _HIGHEST).astype(np.uint8)[own[channel]]


def _cut(pixels: Pixels, down: Draws, right: Draws, share: float, fill: npt.NDArray[np.uint8]) -> None:
    """Replace a rectangle of each image, whose sides are a share of the image's, by the mean colour."""
    height, width = pixels.shape[2:]
    tall, wide = max(1, round(share * height)), max(1, round(share * width))
    for own, y, x in zip(pixels, down.tolist(), right.tolist(), strict=True):
        top, left = int(y * height) - tall // 2, int(x * width) - wide // 2
        own[:, max(0, top) : top + tall, max(0, left) : left + wide] = fill[:, None, None]
