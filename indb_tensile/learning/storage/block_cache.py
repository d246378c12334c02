"""Reads rows at random positions of an array in a file, in blocks of adjacent rows that stay in memory for a time.

The shuffle of a large table (shuffling.py) takes all rows of a window's blocks before it goes on to the next window.
So each block is read once in an epoch, if the cache holds the blocks of two windows. A mapping of the file would
leave to the kernel which pages stay, and where memory is short the kernel drops pages of the window that is in use.
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError
from indb_tensile.learning.storage.row_storage import RowStorage

Array = npt.NDArray[Any]
Order = npt.NDArray[np.int64]


class RowSource(Protocol):
    """Rows from which batches are gathered. Those of an array `in_memory` are gathered at once."""

    in_memory: bool

    def take(self, order: Order, out: Array) -> None:
        """Copy the rows at these positions to `out`."""
        ...


class ArrayRows:
    """The rows of an array in memory, or of a mapping that is read from its first row to its last."""

    def __init__(self, values: Array) -> None:
        self._values = values
        self.in_memory = True

    def take(self, order: Order, out: Array) -> None:
        """Copy the rows at these positions to `out`."""
        # Every index is valid. "clip" only prevents numpy from gathering into a temporary array first.
        np.take(self._values, order, axis=0, out=out, mode="clip")


class BlockCache:
    """The `most` blocks of an array in a file that were used last."""

    def __init__(self, storage: RowStorage, values: Array, block_rows: int, most: int) -> None:
        self._storage = storage
        self._values = values
        self._block_rows = block_rows
        blocks = -(-len(values) // block_rows)
        self._rooms = np.empty((min(most, blocks), block_rows, *values.shape[1:]), values.dtype)
        self._room_of_block = np.full(blocks, -1, np.int64)
        self._block_in_room = np.full(len(self._rooms), -1, np.int64)
        self._used = np.zeros(len(self._rooms), np.int64)  # the number of the call that used the room last
        self._calls = 0
        self.in_memory = False

    def take(self, order: Order, out: Array) -> None:
        """Copy the rows at these positions to `out`. They are from at most as many blocks as there is room for."""
        blocks, places = np.divmod(order, self._block_rows)
        rooms = self._room_of_block[blocks]
        self._calls += 1
        self._used[rooms[rooms >= 0]] = self._calls
        if (rooms < 0).any():
            self._load(np.unique(blocks[rooms < 0]))
            rooms = self._room_of_block[blocks]
        rows = self._rooms.reshape(-1, *self._values.shape[1:])
        np.take(rows, rooms * self._block_rows + places, axis=0, out=out, mode="clip")

    def _load(self, missing: Order) -> None:
        """Read these blocks in place of those that were not used for the longest time."""
        rooms = np.argsort(self._used, kind="stable")[: len(missing)]
        if len(rooms) < len(missing) or (self._used[rooms] == self._calls).any():
            raise InvariantError(f"a batch has rows of more than {len(self._rooms)} blocks")
        for block, room in zip(missing.tolist(), rooms.tolist(), strict=True):
            replaced = self._block_in_room[room]
            if replaced >= 0:
                self._room_of_block[replaced] = -1
            start = block * self._block_rows
            end = min(start + self._block_rows, len(self._values))
            self._storage.read(self._values, start, self._rooms[room, : end - start])
            self._room_of_block[block], self._block_in_room[room], self._used[room] = room, block, self._calls
