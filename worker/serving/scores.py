"""Stores the scored rows of an evaluation in unnamed temporary files.

The service's memory then holds one part of the evaluation at a time.
"""

import tempfile
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from .answers import Scored

Array = npt.NDArray[Any]


class ScoreFiles:
    """The scored rows of one version, in the order in which they were added."""

    def __init__(self) -> None:
        self._outputs = _ScoreFile()
        self._targets = _ScoreFile()

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._outputs.rows

    def add(self, scored: Sequence[Scored]) -> None:
        """Append rows. Raises OSError if the disk is full."""
        if scored:
            self._outputs.add(np.array([row.outputs for row in scored], np.float32))
            self._targets.add(np.array([row.target for row in scored]))

    def arrays(self) -> tuple[Array, Array]:
        """Return the outputs, of shape (rows, outputs), and the targets. There must be at least one row."""
        return self._outputs.mapped(), self._targets.mapped()

    def close(self) -> None:
        """Free the disk space. Arrays that are still mapped stay valid."""
        self._outputs.close()
        self._targets.close()


class _ScoreFile:
    """An array of rows in an unnamed temporary file."""

    def __init__(self) -> None:
        self.rows = 0
        self._file: BinaryIO | None = None
        self._item = np.zeros(0)

    def add(self, part: Array) -> None:
        if self._file is None:
            self._file = cast(BinaryIO, tempfile.TemporaryFile(prefix="tensile-scores-"))  # noqa: SIM115 - see close
            self._item = part[:0]
        self._file.write(np.ascontiguousarray(part, self._item.dtype).data)
        self.rows += len(part)

    def mapped(self) -> Array:
        if self._file is None:
            raise ValueError("no row was scored")
        self._file.flush()
        return np.memmap(self._file, self._item.dtype, "r", shape=(self.rows, *self._item.shape[1:]))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
