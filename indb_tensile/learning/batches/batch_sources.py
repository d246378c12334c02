"""The sources from which the batches of a part are gathered: stored rows, cut texts, or images, perhaps mixed."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from indb_tensile.learning.batches.augmentation import Augmentation
from indb_tensile.learning.batches.length_buckets import LengthBuckets
from indb_tensile.learning.batches.mixup import MixedInputs, MixedTargets, Mixup
from indb_tensile.learning.batches.shuffling import ordered_rows, row_sources
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.encoding.packed_rows import PackedForm
from indb_tensile.learning.networks.cut_texts import CutColumn
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.storage.block_cache import ArrayRows, Order, RowSource

Array = npt.NDArray[Any]


class UnpackedBatches:
    """Packed rows that become single precision while a batch is gathered, in an epoch with changed images."""

    def __init__(self, packed: RowSource, form: PackedForm, augmentation: Augmentation | None = None) -> None:
        self._packed = packed
        self._form = form
        self._augmentation = augmentation
        self._room = np.empty((0, form.row_bytes), np.uint8)
        self.epoch = 0
        self.in_memory = False  # unpacking takes longer than gathering

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


class CutRows:
    """Rows of tokens without the last ones of a column, if what they are written to is not as wide as they are."""

    def __init__(self, rows: RowSource, column: CutColumn, width: int) -> None:
        self._rows = rows
        self._column = column
        self._width = width
        self._room: Array = np.empty((0, width), np.float32)
        self.in_memory = rows.in_memory

    def take(self, order: Order, out: Array) -> None:
        """Write the rows at these positions to `out`, cut to its width."""
        missing = self._width - out.shape[1]
        if not missing:
            self._rows.take(order, out)
            return
        if len(self._room) < len(order):
            self._room = np.empty((len(order), self._width), out.dtype)
        whole, end = self._room[: len(order)], self._column.end
        self._rows.take(order, whole)
        out[:, : end - missing] = whole[:, : end - missing]
        out[:, end - missing :] = whole[:, end:]


@dataclass(kw_only=True, eq=False)
class TrainingSources:
    """The sources of the training rows' batches. They are made once, since they may hold blocks of a file."""

    part: Part
    settings: TrainingSettings
    buckets: LengthBuckets | None = None
    _sources: tuple[RowSource, RowSource] = field(init=False)
    _changing: list[UnpackedBatches | MixedInputs | MixedTargets] = field(init=False)  # those that differ by epoch
    parts_of: "BatchShapes" = field(init=False)

    def __post_init__(self) -> None:
        part, form = self.part, self.part.form
        scattered = self.buckets is not None
        x, y = row_sources(part, self.settings.batch_size, scattered=scattered)
        if form is not None:
            x = UnpackedBatches(x, form, Augmentation.of(self.settings))
        if self.buckets is not None:
            x = CutRows(x, self.buckets.column, part.x.shape[1])
        self._changing = [x] if isinstance(x, UnpackedBatches) else []
        if (mixup := Mixup.of(self.settings)) is not None:
            x, y = MixedInputs(x, mixup), MixedTargets(y, mixup)
            self._changing += [x, y]
        self._sources, self.parts_of = (x, y), BatchShapes(part, self.buckets)

    def of_epoch(self, epoch: int) -> tuple[RowSource, RowSource]:
        """Return the sources in this epoch. A pass over another epoch has ended."""
        for source in self._changing:
            source.epoch = epoch
        return self._sources


class BatchShapes:
    """Returns tensors with the shapes and types of the rows of a batch. Called with the places of these rows."""

    def __init__(self, part: Part, buckets: LengthBuckets | None) -> None:
        self._whole = part.example, part.y
        self._buckets = buckets
        lengths = () if buckets is None else tuple(buckets.column.length - own for own in buckets.lengths)
        self._views = [(part.x[:, : part.x.shape[1] - missing], part.y) for missing in lengths]

    def __call__(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs, as wide as the batch of these rows, and what the loss takes."""
        return self._whole if self._buckets is None else self._views[self._buckets.bucket_of(order)]


def ordered_sources(part: Part, buckets: LengthBuckets | None = None) -> tuple[RowSource, RowSource]:
    """Return the sources of a pass over the rows in order, as they are. With `buckets` texts are cut."""
    x = ordered_rows(part)
    if part.form is not None:
        x = UnpackedBatches(x, part.form)
    if buckets is not None:
        x = CutRows(x, buckets.column, part.x.shape[1])
    return x, ArrayRows(part.y.numpy())
