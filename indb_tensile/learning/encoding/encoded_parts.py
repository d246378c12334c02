"""The rows of one part of a training, as the tensors that the network reads: inputs, targets, and weights of rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from indb_tensile.learning.encoding.block_encoding import encode
from indb_tensile.learning.encoding.narrow_rows import NarrowForm
from indb_tensile.learning.encoding.packed_rows import PackedForm, UnpackedRows
from indb_tensile.learning.encoding.packed_targets import pack, pair_of
from indb_tensile.learning.encoding.pair_encoding import loss_targets
from indb_tensile.learning.encoding.pending_images import AwaitedImages, PendingImages
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.encoding.row_weights import Weights
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.storage.columns import ColumnRows, Rows, TableData
from indb_tensile.learning.storage.row_storage import BLOCK_ROWS, MEMORY, RowStorage, row_blocks

_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Rows of one part on the host.

    `x` is float32 (rows, *input_shape), or with a `form` uint8 (rows, bytes), which it unpacks, or with a `narrow`
    form int16 (rows, width), which the network reads as it is. `y` is what the loss takes: the targets, or targets
    and weights (packed_targets.py). `targets` are int64 class numbers (rows,), or float32 values or memberships
    (rows, outputs). Those of pairs are int64 numbers of items (rows,), and `y` is what `loss_targets` makes of them.
    All others are in `storage`. `images` waits for images that are decoded meanwhile: rows are read through the
    methods of the part or through the sources of batches (batch_sources.py).
    """

    x: Tensor
    y: Tensor
    targets: Tensor
    storage: RowStorage = MEMORY
    form: PackedForm | None = None
    narrow: NarrowForm | None = None
    images: AwaitedImages | None = None

    @cached_property
    def example(self) -> Tensor:
        """Return rows as the network reads them, one at least, for shape and type. Images may not be decoded yet."""
        return self.x if self.form is None else torch.from_numpy(self.form.unpacked(self.x[:1].numpy()))

    def first(self, rows: int) -> Tensor:
        """Return the first rows as the network reads them."""
        return self.chosen(np.arange(min(rows, self.rows), dtype=np.int64))

    def chosen(self, places: Rows) -> Tensor:
        """Return a copy of these rows as the network reads them. Raises DataError for images that cannot be read."""
        if self.images is not None:
            self.images.require(places)
        own = self.x.numpy()[places]
        return torch.from_numpy(own if self.form is None else self.form.unpacked(own))

    @property
    def numbers(self) -> Tensor | UnpackedRows:
        """Return the encoded rows in single precision, of packed ones the numbers that are no pixels."""
        return self.unpacked if self.form is None else torch.from_numpy(self.form.dense(self.x.numpy()))

    @property
    def unpacked(self) -> Tensor | UnpackedRows:
        """Return the rows in single precision: an array, or what unpacks the rows that are taken from it.

        Waits until all images are decoded. Raises DataError for one that cannot be read.
        """
        if self.images is not None:
            self.images.decoding.finish()
        form = self.form or self.narrow
        return self.x if form is None else UnpackedRows(self.x.numpy(), form)

    @property
    def ordered_bytes(self) -> int:
        """Return the bytes of a row by which an epoch is put into order (shuffling.py).

        A narrow row counts as in single precision: whether rows are narrow does not change the batches.
        """
        return self.x[:1].nbytes if self.narrow is None else _FLOAT_BYTES * self.narrow.encoded_width

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.y)


def encode_parts(
    table: TableData,
    preprocessor: Preprocessor,
    parts: Sequence[Rows],
    weights: Sequence[Weights] | None,
    *,
    consume: bool,
    mixed: bool = False,
    pending: PendingImages | None = None,
) -> list[Part]:
    """Return the rows of each part as tensors. With `consume` the table's columns are emptied.

    With `mixed` the loss takes pairs of weighted classes, as those of mixed rows. The `pending` images are decoded
    from now on.
    """
    target = preprocessor.target
    storage = table.storage
    targets = [_encode_target(ColumnRows(table.columns[target.column], part), target, storage) for part in parts]
    encoded = encode(
        table.columns,
        preprocessor,
        parts,
        consume=consume,
        storage=storage,
        own_numbers=preprocessor.placed_of_training,
    )
    if consume:
        table.columns.clear()  # their pages were freed
    storage.release()
    of_rows = [torch.from_numpy(y) for y in targets]
    packed = of_rows
    if target.pair is not None:
        packed = [torch.from_numpy(y) for y in loss_targets(targets)]
    if weights is not None:
        packed = [_packed(y, own, storage) for y, own in zip(of_rows, weights, strict=True)]
    if mixed:
        packed = [_paired(y, storage) for y in packed]
    form, narrow = preprocessor.packed_form, preprocessor.narrow_form
    awaited: Sequence[AwaitedImages | None] = [None] * len(parts)
    if pending is not None and form is not None:
        awaited = pending.decode_into(encoded, parts, form)
    return [
        Part(x=torch.from_numpy(x), y=y, targets=own, storage=storage, form=form, narrow=narrow, images=images)
        for x, y, own, images in zip(encoded, packed, of_rows, awaited, strict=True)
    ]


def _encode_target(rows: ColumnRows, target: TargetEncoding, storage: RowStorage) -> npt.NDArray[Any]:
    """Return the encoded target of these rows, in `storage`."""
    whole, place = None, 0
    for block in rows.blocks(BLOCK_ROWS):
        encoded = target.encode(block)
        if whole is None:
            whole = storage.array(len(rows), encoded.shape[1:], encoded.dtype)
        whole.write(place, encoded)
        place += len(encoded)
    return target.encode(rows.data.part(0, 0)) if whole is None else whole.values


def _packed(targets: Tensor, weights: Weights, storage: RowStorage) -> Tensor:
    """Return targets and weights as one tensor, in `storage`."""
    width = math.prod(targets.shape[1:]) + math.prod(weights.shape[1:])
    whole = storage.array(len(targets), (width,), np.float32)
    for start, end in row_blocks(len(targets)):
        whole.write(start, pack(targets[start:end], torch.from_numpy(weights[start:end])).numpy())
    return torch.from_numpy(whole.values)


def _paired(targets: Tensor, storage: RowStorage) -> Tensor:
    """Return the classes of rows, or their packed classes and weights, as pairs, in `storage`."""
    whole = storage.array(len(targets), (4,), np.float32)
    for start, end in row_blocks(len(targets)):
        whole.write(start, pair_of(targets[start:end]).numpy())
    return torch.from_numpy(whole.values)
