"""Texts, or sets of labels, as numbers: each number is the position of a text in a list of different texts.

So the numbers can be in a file while only the list is in memory (columnstore.py).
"""

import sys
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]
Text = str | tuple[str, ...]  # or a set of labels

_ENTRY_BYTES = 100  # memory of a text in the dictionary and in the list, besides its characters


class TextCodes:
    """The different texts of a column, numbered in the order in which they come."""

    def __init__(self) -> None:
        self._codes: dict[Text | None, int] = {}
        self._counted = 0
        self._texts_bytes = 0

    def encode(self, values: npt.NDArray[Any]) -> Codes:
        """Return the number of each text. None, the value of missing rows, has a number too."""
        codes = self._codes
        encoded = np.fromiter((codes.setdefault(text, len(codes)) for text in values), np.int32, len(values))
        for text in islice(reversed(codes), len(codes) - self._counted):
            self._texts_bytes += object_bytes(text) + _ENTRY_BYTES
        self._counted = len(codes)
        return encoded

    @property
    def size_bytes(self) -> int:
        """Return the memory of the texts."""
        return self._texts_bytes

    def texts(self) -> npt.NDArray[np.object_]:
        """Return the texts by their numbers."""
        texts = np.empty(len(self._codes), object)
        texts[:] = list(self._codes)
        return texts


def object_bytes(value: Text | None) -> int:
    """Return the bytes of a text, or of a set of labels with its texts."""
    labels = value if isinstance(value, tuple) else ()
    return sys.getsizeof(value) + sum(map(sys.getsizeof, labels))


class CodedTexts:
    """A text column in place of an array of objects. Rows that are taken from it are such an array."""

    def __init__(self, codes: Any, texts: npt.NDArray[np.object_]) -> None:
        self.codes = codes
        self.texts = texts
        self.dtype = np.dtype(object)
        self.shape = codes.shape

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Any:
        """Return the texts of these rows: a position, a slice, positions or a mask."""
        return self.texts[self.codes[rows]]
