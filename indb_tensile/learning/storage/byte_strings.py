"""The bytes of the images or texts of a column, one after the other, in memory or in a file (columnstore.py)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ends = npt.NDArray[np.int64]


class ByteStrings:
    """Byte strings in place of an array of objects: row i ends at `ends[i]` of `data`, where row i + 1 begins.

    A selection of rows shares the bytes. A string is read when it is used.
    """

    def __init__(self, data: Bytes, ends: Ends, rows: Ends | None = None) -> None:
        self._data = data
        self.ends = ends
        self._rows = rows
        self.dtype = np.dtype(object)
        self.shape = (len(ends if rows is None else rows),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        """Return the bytes of a row, or a selection of rows: a slice, positions or a mask."""
        if isinstance(rows, int | np.integer):
            row = int(rows if self._rows is None else self._rows[rows])
            start = int(self.ends[row - 1]) if row else 0
            return self._data[start : int(self.ends[row])].tobytes()
        if self._rows is None:
            return ByteStrings(self._data, self.ends, np.arange(len(self.ends), dtype=np.int64)[rows])
        return ByteStrings(self._data, self.ends, self._rows[rows])

    def __iter__(self) -> Iterator[bytes]:
        return (self[row] for row in range(len(self)))


class StoredTexts:
    """Texts, as their bytes, in place of an array of objects. Rows that are taken from it are such an array.

    A missing text is empty.
    """

    def __init__(self, strings: ByteStrings) -> None:
        self._strings = strings
        self.ends = strings.ends
        self.dtype = strings.dtype
        self.shape = strings.shape

    def __len__(self) -> int:
        return len(self._strings)

    def select(self, rows: Ends) -> "StoredTexts":
        """Return these rows, which share the bytes."""
        return StoredTexts(self._strings[rows])

    def __getitem__(self, rows: Any) -> Any:
        """Return the text of a row, or the texts of a slice, of positions or of a mask."""
        chosen = self._strings[rows]
        if isinstance(chosen, bytes):
            return chosen.decode()
        texts = np.empty(len(chosen), object)
        texts[:] = [raw.decode() for raw in chosen]
        return texts

    def __iter__(self) -> Iterator[str]:
        return (raw.decode() for raw in self._strings)


def join(values: Any) -> tuple[Bytes, Ends]:
    """Return the bytes of all rows, and the end of each. None has no bytes. Texts become their UTF-8 bytes."""
    parts = [raw.encode() if isinstance(raw, str) else raw or b"" for raw in values]
    ends = np.fromiter(map(len, parts), np.int64, len(parts)).cumsum()
    return np.frombuffer(b"".join(parts), np.uint8), ends


def joined_bytes(values: Any) -> int:
    """Return how many bytes all rows have together."""
    return sum(len(raw) for raw in values if raw is not None)
