"""The sources from which the batches of a part are gathered: rows as they are stored, or unpacked images."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.augmentation import Augmentation
from indb_tensile.learning.block_cache import ArrayRows, Order, RowSource
from indb_tensile.learning.encoded_parts import Part
from indb_tensile.learning.hyperparams import TrainingSettings
from indb_tensile.learning.packed_rows import PackedForm
from indb_tensile.learning.shuffling import row_sources

Array = npt.NDArray[Any]


class UnpackedBatches:
    """Packed rows that become single precision while a batch is gathered, in an epoch with changed images."""

    def __init__(self, packed: RowSource, form: PackedForm, augmentation: Augmentation | None = None) -> None:
        self._packed = packed
        self._form = form
        self._augmentation = augmentation
        self._room = np.empty((0, form.row_bytes), np.uint8)
        self.epoch = 0

    def take(self, order: Order, out: Array) -> None:
        """Write the rows at these positions to `out`, as the network reads them."""
        if len(self._room) < len(order):
            self._room = np.empty((len(order), self._form.row_bytes), np.uint8)
        rows = self._room[: len(order)]
        self._packed.take(order, rows)
        pixels = self._form.pixels(rows)
        if self._augmentation is not None:
            pixels = [
                self._augmentation.apply(own, image, column, self.epoch, order)
                for column, (own, image) in enumerate(zip(pixels, self._form.images, strict=True))
            ]
        self._form.unpack(rows, out, pixels)


@dataclass(kw_only=True, eq=False)
class TrainingSources:
    """The sources of the training rows' batches. They are made once, since they may hold blocks of a file."""

    part: Part
    settings: TrainingSettings
    _sources: tuple[RowSource, RowSource] = field(init=False)

    def __post_init__(self) -> None:
        part, form = self.part, self.part.form
        x, y = row_sources(part.storage, part.x, part.y, self.settings.batch_size)
        if form is not None:
            x = UnpackedBatches(x, form, Augmentation.of(self.settings))
        self._sources = x, y

    def of_epoch(self, epoch: int) -> tuple[RowSource, RowSource]:
        """Return the sources in this epoch. A pass over another epoch has ended."""
        if isinstance(self._sources[0], UnpackedBatches):
            self._sources[0].epoch = epoch
        return self._sources


def ordered_sources(part: Part) -> tuple[RowSource, RowSource]:
    """Return the sources of a pass over the rows in order, as they are."""
    x: RowSource = ArrayRows(part.x.numpy())
    if part.form is not None:
        x = UnpackedBatches(x, part.form)
    return x, ArrayRows(part.y.numpy())
