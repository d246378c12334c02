"""Collects the columns of a table block by block while the table is read, within a memory limit.

Arrays grow in place: the C library moves the pages of a large block (mremap) and copies nothing. So the columns need
their final size only, whereas joining a list of blocks would need twice that. Numbers that COPY sends in four bytes
or less are stored in four, and a column without NULL has no mask of its own.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.columns import ColumnData, ColumnKind, CopyEncoding, Mask
from indb_tensile.learning.splits import Hashes, row_hashes

_SPARE = 16  # an array grows by at least 1/16 of its length, so that not every small block moves it

_DTYPES: dict[ColumnKind, Any] = {
    ColumnKind.INTEGER: np.int64,
    ColumnKind.FLOAT: np.float64,
    ColumnKind.BOOLEAN: np.bool_,
    ColumnKind.TEXT: np.object_,
    ColumnKind.DATE: np.float64,
    ColumnKind.TIME: np.float64,
    ColumnKind.ARRAY: np.float64,
}


# The dtype in memory of numbers that COPY sends in this dtype. The conversion is exact.
_NARROW: dict[str, Any] = {">i2": np.int32, ">i4": np.int32, ">f4": np.float32}


def stored_bytes(wire: CopyEncoding) -> int:
    """Return the bytes in memory of one value of fixed width, or of one element of an array."""
    if wire.kind is ColumnKind.ARRAY:
        return int(np.dtype(wire.stored or wire.item).itemsize)
    narrow = _NARROW.get(wire.item) if wire.kind in (ColumnKind.INTEGER, ColumnKind.FLOAT) else None
    return int(np.dtype(narrow or _DTYPES[wire.kind]).itemsize)


class ColumnStore:
    """The columns of all blocks read so far, and a hash of each row.

    `stored` names the columns to store. The hash of a row is computed from its `identity` columns, which need not be
    stored. If the columns would need more than `limit_bytes`, the store calls `refuse` with the number of bytes
    before it allocates them; `refuse` must raise an exception.
    """

    def __init__(
        self,
        wires: dict[str, CopyEncoding],
        *,
        stored: Sequence[str],
        identity: Sequence[str],
        limit_bytes: int,
        refuse: Callable[[int], None],
    ) -> None:
        self._columns = {name: _Column(wires[name]) for name in stored}
        self._identity = tuple(identity)
        self._hashes = _GrowingArray(np.zeros(0, np.uint64))
        self._limit_bytes = limit_bytes
        self._refuse = refuse
        self.rows = 0
        self.size_bytes = 0

    def add(self, columns: dict[str, ColumnData], rows: int) -> None:
        """Append the next block."""
        size_bytes = self.size_bytes + 8 * rows
        size_bytes += sum(column.size_bytes(columns[name]) for name, column in self._columns.items())
        if size_bytes > self._limit_bytes:
            self._refuse(size_bytes)
        self.size_bytes = size_bytes
        for name, column in self._columns.items():
            column.add(columns[name])
        self._hashes.add(row_hashes([columns[name] for name in self._identity], rows))
        self.rows += rows

    def columns(self) -> dict[str, ColumnData]:
        """Return the complete columns."""
        return {name: column.whole() for name, column in self._columns.items()}

    def row_hash(self) -> Hashes:
        """Return a hash of each row."""
        return self._hashes.whole()


class _GrowingArray:
    """An array that grows along its first axis."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._values = values
        self._rows = 0

    def add(self, block: npt.NDArray[Any]) -> None:
        rows = self._rows + len(block)
        if rows > len(self._values):
            self._resize(max(rows, len(self._values) + len(self._values) // _SPARE))
        self._values[self._rows : rows] = block
        self._rows = rows

    def whole(self) -> npt.NDArray[Any]:
        self._resize(self._rows)
        return self._values

    def _resize(self, rows: int) -> None:
        self._values.resize((rows, *self._values.shape[1:]), refcheck=False)  # no other references exist yet


class _Column:
    """The values and the mask of one stored column.

    The shape of an array column is unknown until its first array arrives; rows before that are only counted.
    """

    def __init__(self, wire: CopyEncoding) -> None:
        self._kind = wire.kind
        self._narrow = _NARROW.get(wire.item) if wire.kind in (ColumnKind.INTEGER, ColumnKind.FLOAT) else None
        self._missing: _GrowingArray | None = None  # None while no value is missing
        self._values: _GrowingArray | None = None
        self._empty_rows = 0
        self._rows = 0

    def size_bytes(self, block: ColumnData) -> int:
        """Return the bytes that a block needs in this column.

        Equal texts of a block count once, whether or not they are one object. Texts of earlier blocks are not
        considered.
        """
        texts = sum(sys.getsizeof(text) for text in set(block.values)) if self._kind is ColumnKind.TEXT else 0
        masks = 0 if self._missing is None and not block.missing.any() else len(block.missing)
        if self._missing is None and masks:
            masks += self._rows
        values = block.values.nbytes if self._narrow is None else len(block.values) * np.dtype(self._narrow).itemsize
        return values + masks + texts

    def add(self, block: ColumnData) -> None:
        self._add_mask(block.missing)
        if self._kind is ColumnKind.ARRAY and block.shape == (0,):
            self._empty_rows += len(block.missing)
            return
        if self._values is None:
            empty = np.zeros((self._empty_rows, *block.shape), self._narrow or block.values.dtype)
            self._values = _GrowingArray(empty[:0].copy())
            self._values.add(empty)
        self._values.add(block.values)

    def _add_mask(self, missing: Mask) -> None:
        if self._missing is None and missing.any():
            self._missing = _GrowingArray(np.zeros(0, np.bool_))
            self._missing.add(np.zeros(self._rows, np.bool_))
        if self._missing is not None:
            self._missing.add(missing)
        self._rows += len(missing)

    def whole(self) -> ColumnData:
        missing: Mask = np.broadcast_to(np.False_, self._rows) if self._missing is None else self._missing.whole()
        if self._values is not None:
            return ColumnData(kind=self._kind, values=self._values.whole(), missing=missing)
        shape = (len(missing), 0) if self._kind is ColumnKind.ARRAY else (0,)
        values: npt.NDArray[Any] = np.zeros(shape, _DTYPES[self._kind])
        return ColumnData(kind=self._kind, values=values, missing=missing)
