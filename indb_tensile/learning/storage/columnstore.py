"""Collects the columns of a table block by block while the table is read, in memory or, beyond a limit, in a file.

Arrays grow in place (row_storage.py). So the columns need their final size only, whereas joining a list of blocks
would need twice that. Numbers that COPY sends in four bytes or less are stored in four, and a column without NULL has
no mask of its own. In a file a text is stored as the number of the text in a list of the column's different texts.
Sets of labels and documents are stored as texts are. Texts that are read as tokens hardly ever repeat, so in a file
their bytes follow one another, with the end of each, as those of images do everywhere.
"""

from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.storage.byte_strings import ByteStrings, StoredTexts, join, joined_bytes
from indb_tensile.learning.storage.coded_texts import CodedTexts, TextCodes, object_bytes
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, CopyEncoding, Mask
from indb_tensile.learning.storage.row_storage import MEMORY, MemoryStorage, RowArray, RowStorage, row_blocks
from indb_tensile.learning.storage.splits import Hashes, row_hashes

_MOVED_ROWS = 1 << 14  # texts that are moved to a file at a time
_SPARE = 16  # an array grows by at least 1/16 of its length, so that not every small block moves it

_DTYPES: dict[ColumnKind, Any] = {
    ColumnKind.INTEGER: np.int64,
    ColumnKind.FLOAT: np.float64,
    ColumnKind.BOOLEAN: np.bool_,
    ColumnKind.TEXT: np.object_,
    ColumnKind.DATE: np.float64,
    ColumnKind.TIME: np.float64,
    ColumnKind.CLOCK: np.float64,
    ColumnKind.DURATION: np.float64,
    ColumnKind.ARRAY: np.float64,
    ColumnKind.LABELS: np.object_,
    ColumnKind.DOCUMENT: np.object_,
    ColumnKind.IMAGE: np.uint8,
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
    stored. If the columns would need more than `limit_bytes` of memory, everything moves to the storage that
    `overflow` returns, before more memory is allocated. In a file only the different texts need memory, but for the
    columns `unlike_texts`, whose texts are expected to be all different and need none. If there is no `overflow`, or
    if the texts alone exceed the limit, the store calls `refuse` with the number of bytes; `refuse` must raise an
    exception. `expected_rows` are reserved in a file.
    """

    def __init__(
        self,
        wires: dict[str, CopyEncoding],
        *,
        stored: Sequence[str],
        identity: Sequence[str],
        limit_bytes: int,
        refuse: Callable[[int], None],
        overflow: Callable[[], RowStorage] | None = None,
        expected_rows: int = 0,
        unlike_texts: Collection[str] = (),
    ) -> None:
        self._columns = {name: StoredColumn(wires[name], unlike_texts=name in unlike_texts) for name in stored}
        self._identity = tuple(identity)
        self._hashes = _GrowingArray((), np.dtype(np.uint64))
        self._limit_bytes = limit_bytes
        self._refuse = refuse
        self._overflow = overflow
        self._expected_rows = expected_rows
        self.storage: RowStorage = MEMORY
        self.rows = 0
        self.size_bytes = 0

    def add(self, columns: dict[str, ColumnData], rows: int) -> None:
        """Append the next block."""
        if isinstance(self.storage, MemoryStorage):
            size_bytes = self.size_bytes + 8 * rows
            size_bytes += sum(column.size_bytes(columns[name]) for name, column in self._columns.items())
            if size_bytes > self._limit_bytes:
                self._leave_memory(size_bytes)
            else:
                self.size_bytes = size_bytes
        for name, column in self._columns.items():
            column.add(columns[name])
        self._hashes.add(row_hashes([columns[name] for name in self._identity], rows))
        self.rows += rows
        if not isinstance(self.storage, MemoryStorage):
            self.size_bytes = sum(column.texts_bytes for column in self._columns.values())
            if self.size_bytes > self._limit_bytes:
                self._refuse(self.size_bytes)

    def identify_by(self, names: Sequence[str]) -> None:
        """Compute the hashes of further rows from these columns."""
        self._identity = tuple(names)

    def move(self, storage: RowStorage) -> None:
        """Move everything to a file. Blocks that come later are stored there too."""
        self.storage = storage
        for column in self._columns.values():
            column.move(storage, self._expected_rows)
        self._hashes.move(storage, self._expected_rows)

    def columns(self) -> dict[str, ColumnData]:
        """Return the complete columns."""
        return {name: column.whole() for name, column in self._columns.items()}

    def largest_texts(self) -> tuple[str, int]:
        """Return the column whose different texts take the most memory in a file, and their bytes."""
        return max(((name, column.texts_bytes) for name, column in self._columns.items()), key=itemgetter(1))

    def row_hash(self) -> Hashes:
        """Return a hash of each row."""
        return self._hashes.whole()

    def _leave_memory(self, size_bytes: int) -> None:
        if self._overflow is None:
            self._refuse(size_bytes)
        else:
            self.move(self._overflow())


class _GrowingArray:
    """An array that grows along its first axis."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], storage: RowStorage = MEMORY) -> None:
        self._shape = shape
        self._dtype = dtype
        self._array: RowArray = storage.array(0, shape, dtype)
        self._capacity = self._rows = 0

    def add(self, block: npt.NDArray[Any]) -> None:
        rows = self._rows + len(block)
        if rows > self._capacity:
            self._resize(max(rows, self._capacity + self._capacity // _SPARE))
        self._array.write(self._rows, block)
        self._rows = rows

    def move(self, storage: RowStorage, expected_rows: int) -> None:
        self._resize(self._rows)
        values = self._array.values
        self._array = storage.array(max(expected_rows, self._rows), self._shape, self._dtype)
        self._capacity = max(expected_rows, self._rows)
        self._array.write(0, values)

    @property
    def rows(self) -> int:
        return self._rows

    def whole(self) -> npt.NDArray[Any]:
        self._resize(self._rows)
        return self._array.values

    def _resize(self, rows: int) -> None:
        self._array.resize(rows)
        self._capacity = rows


class StoredColumn:
    """The values and the mask of one column, which grow block by block.

    The shape of an array column is unknown until its first array arrives; rows before that are only counted.
    """

    def __init__(self, wire: CopyEncoding, *, unlike_texts: bool = False) -> None:
        self._kind = wire.kind
        self._unlike_texts = unlike_texts and wire.kind is ColumnKind.TEXT
        self._narrow = _NARROW.get(wire.item) if wire.kind in (ColumnKind.INTEGER, ColumnKind.FLOAT) else None
        self._missing: _GrowingArray | None = None  # None while no value is missing
        self._values: _GrowingArray | None = None
        self._ends: _GrowingArray | None = None  # of the bytes of each row: of images, and of texts in a file
        self._codes: TextCodes | None = None  # of a text column in a file
        self._storage: RowStorage = MEMORY
        self._expected_rows = 0
        self._empty_rows = 0
        self._rows = 0
        self._all_finite = True

    def size_bytes(self, block: ColumnData) -> int:
        """Return the bytes that a block needs in this column.

        Equal texts of a block count once, whether or not they are one object. Texts of earlier blocks are not
        considered.
        """
        if self._kind is ColumnKind.IMAGE:
            return joined_bytes(block.values) + len(block.values) * (1 + np.dtype(np.int64).itemsize)
        texts = sum(map(object_bytes, set(block.values))) if block.values.dtype.hasobject else 0
        masks = 0 if self._missing is None and not block.missing.any() else len(block.missing)
        if self._missing is None and masks:
            masks += self._rows
        values = block.values.nbytes if self._narrow is None else len(block.values) * np.dtype(self._narrow).itemsize
        return values + masks + texts

    @property
    def texts_bytes(self) -> int:
        """Return the memory of the column's different texts, if the column is in a file."""
        return 0 if self._codes is None else self._codes.size_bytes

    def add(self, block: ColumnData) -> None:
        """Append the rows of a block."""
        self._add_mask(block.missing)
        if self._kind is ColumnKind.IMAGE or (self._unlike_texts and not isinstance(self._storage, MemoryStorage)):
            self._add_bytes(block.values)
            return
        if self._kind is ColumnKind.ARRAY and block.shape == (0,):
            self._empty_rows += len(block.missing)
            return
        values = block.values if self._codes is None else self._codes.encode(block.values)
        if self._values is None:
            self._values = self._new_array(block.shape, np.dtype(self._narrow or values.dtype))
            for start in range(0, self._empty_rows, len(values)):
                self._values.add(np.zeros_like(values[: self._empty_rows - start]))
        self._values.add(values)
        if self._all_finite and np.issubdtype(values.dtype, np.floating):
            self._all_finite = bool(np.isfinite(values).all())

    def _add_bytes(self, values: npt.NDArray[Any]) -> None:
        """Append the bytes of each row to those of the rows before."""
        if self._values is None or self._ends is None:
            self._values = self._new_array((), np.dtype(np.uint8))
            self._ends = self._new_array((), np.dtype(np.int64))
        joined, ends = join(values)
        self._ends.add(ends + self._values.rows)
        self._values.add(joined)

    def move(self, storage: RowStorage, expected_rows: int) -> None:
        """Move the column to a file."""
        self._storage, self._expected_rows = storage, expected_rows
        if self._missing is not None:
            self._missing.move(storage, expected_rows)
        if self._ends is not None:
            self._ends.move(storage, expected_rows)
        if self._unlike_texts:
            texts, self._values = self._values, None
            if texts is not None:
                for start, end in row_blocks(texts.rows, _MOVED_ROWS):
                    self._add_bytes(texts.whole()[start:end])
        elif np.dtype(_DTYPES[self._kind]).hasobject:
            texts = self._values
            self._codes, self._values = TextCodes(), self._new_array((), np.dtype(np.int32))
            if texts is not None:
                self._values.add(self._codes.encode(texts.whole()))
        elif self._values is not None:
            self._values.move(storage, expected_rows)

    def _new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _GrowingArray:
        array = _GrowingArray(shape, dtype)
        if not isinstance(self._storage, MemoryStorage):
            array.move(self._storage, self._expected_rows)
        return array

    def _add_mask(self, missing: Mask) -> None:
        if self._missing is None and missing.any():
            self._missing = self._new_array((), np.dtype(np.bool_))
            for start in range(0, self._rows, len(missing)):
                self._missing.add(np.zeros_like(missing[: self._rows - start]))
        if self._missing is not None:
            self._missing.add(missing)
        self._rows += len(missing)

    def whole(self) -> ColumnData:
        """Return the complete column."""
        missing: Mask = np.broadcast_to(np.False_, self._rows) if self._missing is None else self._missing.whole()
        if self._values is not None:
            values = self._values.whole()
            if self._ends is not None:
                strings = ByteStrings(values, self._ends.whole())
                own = StoredTexts(strings) if self._kind is ColumnKind.TEXT else strings
                return ColumnData(kind=self._kind, values=cast(npt.NDArray[Any], own), missing=missing)
            self._storage.read_in_turns(values)
            if self._codes is not None:
                values = cast(npt.NDArray[Any], CodedTexts(values, self._codes.texts()))
            return ColumnData(kind=self._kind, values=values, missing=missing, all_finite=self._all_finite)
        shape = (len(missing), 0) if self._kind is ColumnKind.ARRAY else (0,)
        return ColumnData(kind=self._kind, values=np.zeros(shape, _DTYPES[self._kind]), missing=missing)
