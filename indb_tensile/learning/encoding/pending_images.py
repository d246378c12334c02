"""Images that are decoded while the training goes on: a sample before the rows are encoded, all others behind it.

The encoder of a column needs the mean and the deviation of its pixels, and takes them from a sample of the training
rows. Then the rows of all parts are encoded with zeros in place of the other images. Threads decode those into the
encoded rows (background_decoding.py) while the network is captured and planned, waits for memory, and trains. A batch
waits for its own rows only. So a training begins as early with a million photographs as with a thousand, and the
pixels of an image are in memory once and not also in a column of decoded images.

The sample has the rows with the least hash, so it does not depend on the order of the rows.
"""

import bisect
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError
from indb_tensile.learning.encoding.image_decoding import ImageForm, Pixels, Unreadable, decode
from indb_tensile.learning.encoding.image_faults import RowTitles, unreadable_error
from indb_tensile.learning.encoding.packed_rows import PackedForm
from indb_tensile.learning.storage.background_decoding import BackgroundDecoding, Numbers
from indb_tensile.learning.storage.block_cache import Array, Order, RowSource
from indb_tensile.learning.storage.columns import ColumnData, Columns, Rows, TableData
from indb_tensile.learning.storage.row_storage import RowStorage, row_blocks

DECODING_THREADS = max(1, min(4, len(os.sched_getaffinity(0))))
_SAMPLE_ROWS = 256  # the mean of so many images differs from that of all by a sixteenth of their deviation
_SAMPLE_NUMBERS = 1 << 26  # pixels of a sample in memory, unless that were fewer than the least rows
_LEAST_SAMPLE_ROWS = 64
_TAKEN_ROWS = 16  # rows of the sample that a thread takes at a time
_RELEASED_BLOCKS = 64  # decoded before the pages of a file are released
_RELEASED_ROWS = 4096  # the same, of rows that are decoded in the background

Block = TypeVar("Block")


def most_sampled(numbers: int) -> int:
    """Return how many rows a sample has at most, if the images of a row have this many numbers."""
    return max(_LEAST_SAMPLE_ROWS, min(_SAMPLE_ROWS, _SAMPLE_NUMBERS // numbers))


def decode_rows(
    data: ColumnData, rows: Sequence[int], form: ImageForm, keep: Callable[[int, Pixels], None]
) -> dict[int, str]:
    """Decode the images of these rows, except missing ones, and pass each to `keep`. Returns the faults by row."""
    faults = {}
    for row in rows:
        if not data.missing[row]:
            image = decode(data.values[row], form)
            if isinstance(image, Unreadable):
                faults[row] = image.reason
            else:
                keep(row, image)
    return faults


def decode_blocks(
    blocks: Sequence[Block], decode_block: Callable[[Block], dict[int, str]], storage: RowStorage
) -> dict[int, str]:
    """Decode blocks of rows on several threads. Return the faults of all blocks, by row.

    `decode_block` decodes one block and returns its faults by row.
    """
    faults: dict[int, str] = {}
    with ThreadPoolExecutor(max_workers=DECODING_THREADS, thread_name_prefix="decoding") as threads:
        for first in range(0, len(blocks), _RELEASED_BLOCKS):
            for own in threads.map(decode_block, blocks[first : first + _RELEASED_BLOCKS]):
                faults |= own
            storage.release()
    return faults


class SampledPixels:
    """The pixels of a sample of rows in place of an array of all rows. The pixels of other rows are zeros."""

    def __init__(self, rows: int, form: ImageForm) -> None:
        self.dtype = np.dtype(np.uint8)
        self.shape = (rows, *form.shape)
        self.pixels: dict[int, Pixels] = {}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> npt.NDArray[np.uint8]:
        """Return the pixels of a slice, of positions or of a mask as an array."""
        places = np.arange(len(self))[rows]
        pixels = np.zeros((len(places), *self.shape[1:]), np.uint8)
        for place, row in enumerate(places.tolist()):
            if (own := self.pixels.get(row)) is not None:
                pixels[place] = own
        return pixels


class PendingImages:
    """The columns of images whose rows are decoded while a training goes on."""

    def __init__(self, table: TableData, forms: Mapping[str, ImageForm], known: Rows, titles: RowTitles) -> None:
        """Take the columns of a table that have these forms. The training uses the rows `known`."""
        self.raw = {name: table.columns[name] for name in forms}
        self.forms = forms
        self.storage = table.storage
        self._known = known
        self._hashes = table.row_hash
        self._titles = titles
        self._sample: Rows = np.empty(0, np.int64)
        self._sampled = {name: SampledPixels(table.rows, form) for name, form in forms.items()}

    @property
    def columns(self) -> Columns:
        """Return the columns as decoded ones, of which only the rows of the sample have their pixels."""
        return {
            name: replace(self.raw[name], values=cast(npt.NDArray[Any], sampled))
            for name, sampled in self._sampled.items()
        }

    def sample(self, train: Rows) -> Rows:
        """Decode the images of a sample of the training rows. Returns the rows of the sample in their order.

        Raises DataError that names all rows with an image that cannot be read, if there is one in the sample.
        """
        numbers = sum(math.prod(form.shape) for form in self.forms.values())
        order = np.argsort(self._hashes[train], kind="stable")
        self._sample = np.sort(train[order[: most_sampled(numbers)]])
        for name, sampled in self._sampled.items():
            if self._decode(name, self._sample, sampled.pixels.__setitem__):
                faults = {name: self._decode(name, self._known, lambda *_: None) for name in self.forms}
                raise self.error(faults, complete=True)
        return self._sample

    def decode_into(
        self, encoded: Sequence[npt.NDArray[np.uint8]], parts: Sequence[Rows], form: PackedForm
    ) -> tuple["AwaitedImages", ...]:
        """Begin to decode all other images into the encoded rows of these parts. Returns what waits for each part."""
        writer = _EncodedImages(self, encoded, parts, form)
        rows = writer.rows
        without = np.logical_and.reduce([data.missing[rows] for data in self.raw.values()])
        decoded = np.flatnonzero(without | np.isin(rows, self._sample))
        for sampled in self._sampled.values():
            sampled.pixels.clear()
        decoding = BackgroundDecoding(writer, len(rows), decoded, DECODING_THREADS)
        return tuple(AwaitedImages(decoding, first) for first in writer.firsts)

    def error(self, faults: Mapping[str, Mapping[int, str]], *, complete: bool) -> DataError:
        """Return the error for these faults by column and row. Names the rows of the first column that has some."""
        column = next(name for name in self.forms if faults[name])
        return unreadable_error(column, faults[column], self._titles, complete=complete)

    def _decode(self, name: str, rows: Rows, keep: Callable[[int, Pixels], None]) -> dict[int, str]:
        """Decode the images of these rows on several threads, and pass each to `keep`. Returns the faults by row."""
        data, form = self.raw[name], self.forms[name]
        blocks = [rows[start:end].tolist() for start, end in row_blocks(len(rows), _TAKEN_ROWS)]
        return decode_blocks(blocks, lambda block: decode_rows(data, block, form, keep), self.storage)


class _EncodedImages:
    """Decodes images into the encoded rows of the parts, whose rows are numbered one part after the other."""

    def __init__(
        self,
        images: PendingImages,
        encoded: Sequence[npt.NDArray[np.uint8]],
        parts: Sequence[Rows],
        form: PackedForm,
    ) -> None:
        self._images = images
        self._encoded = encoded
        self.rows = np.concatenate(parts)  # of the table, by number
        self._begins = form.begins
        self._faults: dict[str, dict[int, str]] = {name: {} for name in images.forms}
        self._decoded = itertools.count()
        self.firsts = [0, *itertools.accumulate(map(len, parts))][:-1]  # the number of the first row of each part

    def decode(self, numbers: Numbers) -> bool:
        """Decode the images of these rows. Returns whether one of them cannot be read."""
        faulty = False
        for number, row in zip(numbers.tolist(), self.rows[numbers].tolist(), strict=True):
            part = bisect.bisect_right(self.firsts, number) - 1
            place = number - self.firsts[part]
            for name, form in self._images.forms.items():
                write = partial(self._write, self._encoded[part], place, self._begins[name])
                faults = decode_rows(self._images.raw[name], (row,), form, write)
                self._faults[name] |= faults
                faulty = faulty or bool(faults)
            if next(self._decoded) % _RELEASED_ROWS == 0:
                self._images.storage.release()
        return faulty

    def fault(self, *, complete: bool) -> DataError:
        """Return the error that names the rows whose image cannot be read. With `complete` all rows were tried."""
        return self._images.error({name: dict(own) for name, own in self._faults.items()}, complete=complete)

    def _write(self, encoded: npt.NDArray[np.uint8], place: int, begin: int, _row: int, pixels: Pixels) -> None:
        self._images.storage.change(encoded, place, begin, pixels.reshape(-1))


@dataclass(frozen=True, slots=True)
class AwaitedImages:
    """The rows of a part, of which `first` is the number of the first one, whose images are being decoded."""

    decoding: BackgroundDecoding
    first: int

    def require(self, places: Rows) -> None:
        """Wait until the images of these rows of the part are decoded. Raises DataError if one cannot be read."""
        self.decoding.require(self.first + places)


class AwaitedRows:
    """Encoded rows whose images are decoded before they are taken, together with others of their blocks of rows."""

    def __init__(self, rows: RowSource, images: AwaitedImages, part_rows: int, block_rows: int = 1) -> None:
        self._source = rows
        self._images = images
        self._rows = part_rows
        self._block = np.arange(block_rows, dtype=np.int64)
        self.in_memory = False

    def take(self, order: Order, out: Array) -> None:
        """Copy the rows at these positions to `out`."""
        needed = order
        if len(self._block) > 1:  # a block is read as a whole, and only once
            needed = (np.unique(order // len(self._block))[:, None] * len(self._block) + self._block).reshape(-1)
            needed = needed[needed < self._rows]
        self._images.require(needed)
        self._source.take(order, out)
