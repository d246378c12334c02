"""Encoded rows that are made a slice at a time, so that many variants of a few rows take no memory."""

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


class EncodedRows(Sequence[Array]):
    """The rows from `begin` to `end` that `make(begin, end)` returns as one array."""

    def __init__(self, make: Callable[[int, int], Array], begin: int, end: int) -> None:
        self._make = make
        self._begin = begin
        self._end = end

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._end - self._begin

    @overload
    def __getitem__(self, rows: int) -> Array: ...
    @overload
    def __getitem__(self, rows: slice) -> "EncodedRows": ...
    def __getitem__(self, rows: int | slice) -> "Array | EncodedRows":
        """Return one row, or adjacent rows, which are not made yet."""
        if isinstance(rows, slice):
            begin, end, _ = rows.indices(len(self))
            return EncodedRows(self._make, self._begin + begin, self._begin + max(begin, end))
        place = range(self._begin, self._end)[rows]
        row: Array = self._make(place, place + 1)[0]
        return row

    def array(self) -> Array:
        """Make the rows."""
        return self._make(self._begin, self._end)


def rows_of_array(x: Array) -> EncodedRows:
    """Return the rows of an array."""
    return EncodedRows(lambda begin, end: x[begin:end], 0, len(x))
