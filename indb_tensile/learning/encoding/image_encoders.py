"""The encoder of a column of images: pixels of one size, and the function from a pixel to the network's number.

An image is stored as bytes, one for each pixel and channel, and becomes single precision when a batch is gathered
(packed_rows.py) or a row is predicted. Both compute the same numbers.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError
from indb_tensile.learning.encoding.encoders import Missing, require
from indb_tensile.learning.encoding.image_decoding import ImageForm, Unreadable, decode
from indb_tensile.learning.storage.columns import ColumnData, ColumnRows

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

READABLE = "Replace the value by an image of one of these formats: PNG, JPEG, WebP, BMP, GIF, TIFF; or give NULL."
_HIGHEST = 255
_BLOCK_NUMBERS = 1 << 22  # pixels whose sums are added at a time


@dataclass(frozen=True, kw_only=True)
class Images:
    """The encoder of a column of images as (rows, channels * height * width).

    `mean` and `scale` have a number for each channel, of pixels from 0 to 1; `fill` is the pixel of a missing image.
    With `skips`, an image that cannot be read has numbers that are not a number, and so has every answer for it.
    """

    name: str
    height: int
    width: int
    channels: int
    resize: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    fill: tuple[int, ...]
    required: bool = False
    skips: bool = False

    @classmethod
    def fit(
        cls,
        name: str,
        data: ColumnRows,
        form: ImageForm,
        *,
        standardize: bool,
        missing: Missing,
        skips: bool,
    ) -> "Images":
        """Fit the encoder to the training rows, which are decoded.

        The sums are of integers, so they do not depend on the order of the rows.
        """
        count, sums, squares = 0, np.zeros(form.channels, np.int64), np.zeros(form.channels, np.int64)
        for block in data.blocks(_BLOCK_NUMBERS):
            pixels = block.values[~block.missing]
            values = pixels.transpose(1, 0, 2, 3).reshape(form.channels, -1)
            count += values.shape[1]
            for channel, own in enumerate(values):
                seen = np.bincount(own, minlength=_HIGHEST + 1)
                sums[channel] += int(seen @ np.arange(_HIGHEST + 1))
                squares[channel] += int(seen @ np.arange(_HIGHEST + 1) ** 2)
        mean = sums / max(1, count)
        deviation = np.sqrt(np.maximum(squares / max(1, count) - mean**2, 0.0))
        plain = np.zeros_like(mean), np.ones_like(mean)
        shift, scale = (mean / _HIGHEST, deviation / _HIGHEST) if standardize else plain
        return cls(
            name=name,
            height=form.height,
            width=form.width,
            channels=form.channels,
            resize=form.resize,
            mean=tuple(shift.tolist()),
            scale=tuple(np.where(scale > 0, scale, 1.0).tolist()),
            fill=tuple(int(value) for value in np.rint(mean)),
            required=missing == "error",
            skips=skips,
        )

    @property
    def form(self) -> ImageForm:
        """Return the form that images are brought to."""
        return ImageForm(height=self.height, width=self.width, channels=self.channels, resize=self.resize)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return channels, height and width."""
        return self.form.shape

    @property
    def size(self) -> int:
        """Return how many numbers an image has."""
        return self.channels * self.height * self.width

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        return tuple(f"{self.name}[{place + 1}]" for place in range(self.size))

    def pixels(self, data: ColumnData) -> tuple[Bytes, npt.NDArray[np.bool_]]:
        """Return the pixels of each row, and a mask of the rows whose images cannot be read.

        Raises DataError that names the first such row, unless the encoder skips them.
        """
        if self.required:
            require(self.name, data.missing)
        rows = len(data.missing)
        broken = np.zeros(rows, np.bool_)
        decoded: npt.NDArray[Any] = data.values
        if decoded.dtype != np.uint8:  # bytes, which were not decoded yet
            decoded = np.zeros((rows, *self.shape), np.uint8)
            for row, (raw, is_missing) in enumerate(zip(data.values, data.missing, strict=True)):
                if is_missing:
                    continue
                image = decode(raw, self.form)
                if isinstance(image, Unreadable):
                    if not self.skips:
                        message = f'column "{self.name}", row {row + 1}: the value {image.reason}'
                        raise DataError(message, hint=READABLE)
                    broken[row] = True
                else:
                    decoded[row] = image
        if data.missing.any():
            decoded = decoded.copy() if decoded is data.values else decoded
            decoded[data.missing] = np.array(self.fill, np.uint8)[:, None, None]
        return decoded.reshape(rows, self.size), broken

    def floats(self, data: ColumnData) -> Floats:
        """Encode a column as (rows, numbers) in single precision."""
        pixels, broken = self.pixels(data)
        numbers = np.empty(pixels.shape, np.float32)
        self.convert(pixels, numbers)
        numbers[broken] = np.nan
        return numbers

    def convert(self, pixels: Bytes, out: Floats) -> None:
        """Write the numbers of pixels (rows, numbers) to `out`."""
        factor, offset = self._line
        by_channel = (len(pixels), self.channels, self.height * self.width)
        own = out if out.flags.c_contiguous else np.empty(out.shape, np.float32)
        view = own.reshape(by_channel)
        np.multiply(pixels.reshape(by_channel), factor, out=view, dtype=np.float32)
        view += offset
        if own is not out:
            out[...] = own

    @cached_property
    def _line(self) -> tuple[Floats, Floats]:
        """Return the factor and the offset of each channel, by which a pixel becomes a number."""
        mean, scale = np.array(self.mean), np.array(self.scale)
        factor, offset = 1 / (_HIGHEST * scale), -mean / scale
        return factor.astype(np.float32)[:, None], offset.astype(np.float32)[:, None]
