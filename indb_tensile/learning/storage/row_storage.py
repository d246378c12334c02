"""Holds arrays that have an entry for each row of a table: in memory, or in an unnamed file that is mapped to memory.

A table that does not fit into a trainer's memory is stored in a file. What reads such arrays works on blocks of rows,
and gives the same bits wherever the rows are. The file is written with `pwrite` before it is read through its
mapping, so a full disk raises an error and does not end the process. The kernel removes the file with its process.
"""

import ctypes
import errno
import math
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError, RowFileError
from indb_tensile.sizes import size

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

BLOCK_ROWS = 1 << 18  # rows of a pass over an array: temporary arrays of 2 MB each

_UNWRITTEN_BYTES = 32 << 20  # written at a time; up to twice that waits for the disk, in a control group's memory
_COPIED_BYTES = 8 << 20
_WAIT_BEFORE, _START_WRITING = 1, 2  # SYNC_FILE_RANGE_WAIT_BEFORE and SYNC_FILE_RANGE_WRITE of linux/fs.h
_sync_file_range = ctypes.CDLL(None, use_errno=True).sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class RowArray(Protocol):
    """An array that is written from its first row to its last, and then read."""

    def write(self, start: int, block: Array) -> None:
        """Set the rows from `start` on."""
        ...

    def resize(self, rows: int) -> None:
        """Change the number of rows. The rows that stay keep their values."""
        ...

    @property
    def values(self) -> Array:
        """Return the whole array."""
        ...


class RowStorage(Protocol):
    """A place for arrays."""

    def array(self, rows: int, shape: Shape, dtype: npt.DTypeLike) -> RowArray:
        """Return a new array of `rows` rows of this shape."""
        ...

    def scratch(self) -> AbstractContextManager[None]:
        """Let the arrays that are made in this context be overwritten after it."""
        ...

    def change(self, values: Array, row: int, begin: int, numbers: Array) -> None:
        """Replace the numbers of a row of an array (rows, numbers) from `begin` on, by one thread for each row."""
        ...

    def release(self) -> None:
        """Return the memory of stored arrays that can be read again."""
        ...

    def read_ahead(self, values: Array, ranges: Sequence[tuple[int, int]]) -> None:
        """Begin to read these ranges of rows of an array, if they are not in memory."""
        ...

    def read(self, values: Array, start: int, out: Array) -> None:
        """Copy the rows of an array from `start` on to `out`, without its mapping."""
        ...

    def read_in_turns(self, values: Array) -> None:
        """Expect that blocks of this array are read in turns with those of many others, after `will_need`."""
        ...


class MemoryArray:
    """An array in memory. It grows in place: the C library moves the pages of a large block and copies nothing."""

    def __init__(self, rows: int, shape: Shape, dtype: npt.DTypeLike) -> None:
        self._values: Array = np.empty((rows, *shape), dtype)

    def write(self, start: int, block: Array) -> None:
        """Set the rows from `start` on."""
        self._values[start : start + len(block)] = block

    def resize(self, rows: int) -> None:
        """Change the number of rows. No view of the array exists yet."""
        self._values.resize((rows, *self._values.shape[1:]), refcheck=False)

    @property
    def values(self) -> Array:
        """Return the whole array."""
        return self._values


class MemoryStorage:
    """Arrays in the process's own memory."""

    def array(self, rows: int, shape: Shape, dtype: npt.DTypeLike) -> MemoryArray:
        """Return a new array."""
        return MemoryArray(rows, shape, dtype)

    def scratch(self) -> AbstractContextManager[None]:
        """Do nothing: an array ends with its last use."""
        return nullcontext()

    def change(self, values: Array, row: int, begin: int, numbers: Array) -> None:
        """Replace the numbers of a row from `begin` on."""
        values[row, begin : begin + len(numbers)] = numbers

    def release(self) -> None:
        """Do nothing: the arrays are nowhere else."""

    def read_ahead(self, values: Array, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing: the arrays are in memory."""

    def read(self, values: Array, start: int, out: Array) -> None:
        """Copy the rows of an array from `start` on to `out`."""
        out[...] = values[start : start + len(out)]

    def read_in_turns(self, values: Array) -> None:
        """Do nothing: the array is in memory."""


MEMORY = MemoryStorage()


class FileStorage:
    """Arrays in one unnamed file in a directory, which is created if it is missing.

    Raises RowFileError if the directory cannot be used or the disk is full. The file lives as long as this object and
    the arrays that were read from it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with TemporaryFile(dir=directory, buffering=0) as file:
                self._descriptor = os.dup(file.fileno())
            # For reads at random places: the kernel reads no more than they ask for.
            self._random = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY)
        except OSError as error:
            raise self._error(f"cannot be used: {error.strerror or error}") from error
        os.posix_fadvise(self._random, 0, 0, os.POSIX_FADV_RANDOM)
        for descriptor in (self._descriptor, self._random):
            weakref.finalize(self, os.close, descriptor)
        self._end = self._size = self._unwritten = 0
        self._mappings: list[tuple[int, mmap.mmap, int]] = []  # address, mapping and length

    def array(self, rows: int, shape: Shape, dtype: npt.DTypeLike) -> "FileArray":
        """Return a new array. It takes space of the disk when it is written."""
        return FileArray(self, rows, shape, np.dtype(dtype))

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Use the range of the arrays of this context again after it. Nothing else may make arrays meanwhile."""
        end = self._end
        try:
            yield
        finally:
            self._end = end

    def change(self, values: Array, row: int, begin: int, numbers: Array) -> None:
        """Replace the numbers of a row from `begin` on, by a call and not by the mapping, as rows are written."""
        self.write(self._offset(values) + (row * values.shape[1] + begin) * values.itemsize, numbers)

    def release(self) -> None:
        """Unmap the pages of the file from this process's memory. The kernel may keep them in its page cache."""
        for _, mapping, _ in self._mappings:
            mapping.madvise(mmap.MADV_DONTNEED)

    def read_ahead(self, values: Array, ranges: Sequence[tuple[int, int]]) -> None:
        """Ask the kernel to read these ranges of rows of an array of this file."""
        offset, row_bytes = self._offset(values), values.nbytes // max(1, len(values))
        for start, end in ranges:
            size_bytes = (end - start) * row_bytes
            os.posix_fadvise(self._random, offset + start * row_bytes, size_bytes, os.POSIX_FADV_WILLNEED)

    def read(self, values: Array, start: int, out: Array) -> None:
        """Read the rows of an array of this file from row `start` on into `out`, by a call and not by the mapping."""
        offset = self._offset(values) + start * (values.nbytes // max(1, len(values)))
        remaining = out.reshape(-1).view(np.uint8).data
        while remaining:
            size_bytes = os.preadv(self._random, [remaining], offset)
            if not size_bytes:
                raise InvariantError(f"the file of rows ends at {offset}, before the end of an array")
            remaining, offset = remaining[size_bytes:], offset + size_bytes

    def read_in_turns(self, values: Array) -> None:
        """Switch off the kernel's reading ahead, which may take megabytes of memory for each of the arrays."""
        _advise(values, 0, len(values), mmap.MADV_RANDOM)

    def _offset(self, values: Array) -> int:
        """Return the offset in the file at which the bytes of this mapped array begin."""
        address = values.ctypes.data
        return next(address - base for base, _, length in self._mappings if base <= address < base + length)

    def reserve(self, size_bytes: int) -> int:
        """Return the offset of a new range of the file. A range without contents takes no space of the disk."""
        start, end = self._end, self._end + _whole_pages(size_bytes)
        if end > self._size:
            self._extend(end)
        self._end = end
        return start

    def write(self, offset: int, data: Array) -> None:
        """Write at this offset. The kernel starts to write earlier bytes to the disk, so that memory holds few."""
        remaining = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        try:
            while remaining:
                written = os.pwrite(self._descriptor, remaining, offset)
                offset += written
                self._unwritten += written
                remaining = remaining[written:]
        except OSError as error:
            raise self._full(error) from error
        if self._unwritten >= _UNWRITTEN_BYTES:
            self._unwritten = 0
            _sync_file_range(self._descriptor, 0, 0, _WAIT_BEFORE | _START_WRITING)

    def copy(self, start: int, target: int, size_bytes: int) -> None:
        """Copy a range of the file to another range."""
        for done in range(0, size_bytes, _COPIED_BYTES):
            part = os.pread(self._descriptor, min(_COPIED_BYTES, size_bytes - done), start + done)
            self.write(target + done, np.frombuffer(part, np.uint8))

    def mapped(self, offset: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return a range of the file as an array. All its rows have been written."""
        size_bytes = math.prod(shape) * dtype.itemsize
        if not size_bytes:
            return np.empty(shape, dtype)
        for _, mapping, length in self._mappings:
            if offset + size_bytes <= length:
                return np.frombuffer(mapping, dtype, math.prod(shape), offset).reshape(shape)
        self._extend(
            max(self._size, 2 * self._end)
        )  # so that a few mappings serve all arrays, since each has a descriptor
        mapping = mmap.mmap(self._descriptor, self._size)
        base = np.frombuffer(mapping, np.uint8, 1).ctypes.data
        self._mappings.append((base, mapping, self._size))
        return np.frombuffer(mapping, dtype, math.prod(shape), offset).reshape(shape)

    def _extend(self, size_bytes: int) -> None:
        """Make the file larger, without taking space of the disk."""
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            raise self._full(error) from error
        self._size = size_bytes

    def _full(self, error: OSError) -> RowFileError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self._error(f"is full: the file of the table's rows has {size(self._end)}")
        return self._error(f"cannot be written: {error.strerror or error}")

    def _error(self, fault: str) -> RowFileError:
        return RowFileError(
            f"directory {self._directory} for the rows of large tables {fault}",
            hint="Free some space, or let the administrator name a directory on another disk with "
            "TENSILE_ROWS_DIRECTORY, or raise TENSILE_READ_LIMIT_BYTES, so that the rows fit into memory.",
        )


class FileArray:
    """An array in a range of a file."""

    def __init__(self, storage: FileStorage, rows: int, shape: Shape, dtype: np.dtype[Any]) -> None:
        self._storage = storage
        self._shape = shape
        self._dtype = dtype
        self._row_bytes = math.prod(shape) * dtype.itemsize
        self._rows = self._reserved_rows = rows
        self._start = storage.reserve(rows * self._row_bytes)

    def write(self, start: int, block: Array) -> None:
        """Set the rows from `start` on."""
        self._storage.write(self._start + start * self._row_bytes, block.astype(self._dtype, copy=False))

    def resize(self, rows: int) -> None:
        """Change the number of rows. An array that outgrows its range moves to another one of twice the size."""
        if rows > self._reserved_rows:
            reserved = 2 * rows
            start = self._storage.reserve(reserved * self._row_bytes)
            self._storage.copy(self._start, start, self._rows * self._row_bytes)
            self._start, self._reserved_rows = start, reserved
        self._rows = rows

    @property
    def values(self) -> Array:
        """Return the whole array."""
        return self._storage.mapped(self._start, (self._rows, *self._shape), self._dtype)


def row_blocks(rows: int, step: int = BLOCK_ROWS) -> Iterator[tuple[int, int]]:
    """Yield the first row of each block and the row after its last one."""
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def will_need(values: Array, start: int, end: int) -> None:
    """Ask the kernel to read these rows of an array, if it is mapped from a file."""
    if end > start:
        _advise(values, start, end, mmap.MADV_WILLNEED)


def _advise(values: Array, start: int, end: int, advice: int) -> None:
    base: Any = values
    while isinstance(base, np.ndarray):
        base = base.base
    mapping = base.obj if isinstance(base, memoryview) else base
    if isinstance(mapping, mmap.mmap) and values.nbytes:
        row_bytes = values.nbytes // len(values)
        offset = values.ctypes.data - np.frombuffer(mapping, np.uint8, 1).ctypes.data
        low = (offset + start * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        mapping.madvise(advice, low, offset + end * row_bytes - low)


class SelectedRows:
    """Some rows of an array in a file, in place of a copy. They are read when they are used."""

    def __init__(self, values: Array, rows: npt.NDArray[np.int64]) -> None:
        self._values = values
        self._rows = rows
        self.dtype = values.dtype
        self.shape = (len(rows), *values.shape[1:])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """Return the rows at a slice, ascending positions or a mask, or a single row."""
        rows = self._rows[key]
        if np.ndim(rows) and len(rows):
            will_need(self._values, int(rows[0]), int(rows[-1]) + 1)
        return self._values[rows]


def gathered(values: Array, positions: npt.NDArray[np.int64], storage: RowStorage) -> Array:
    """Return the entries at these ascending positions as a new array."""
    result = storage.array(len(positions), values.shape[1:], values.dtype)
    for start, end in row_blocks(len(positions), max(1, BLOCK_ROWS // max(1, math.prod(values.shape[1:])))):
        block = positions[start:end]
        will_need(values, int(block[0]), int(block[-1]) + 1)  # the positions ascend
        result.write(start, values[block])
    return result.values


def positions_where(mask: npt.NDArray[np.bool_], storage: RowStorage) -> npt.NDArray[np.int64]:
    """Return the positions at which the mask is true, ascending, as a new array."""
    positions, written = storage.array(int(np.count_nonzero(mask)), (), np.int64), 0
    for start, end in row_blocks(len(mask)):
        block = start + np.flatnonzero(mask[start:end])
        positions.write(written, block)
        written += len(block)
    return positions.values


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
