"""The scored rows of an evaluation, in files without a name: the service's memory holds one part at a time."""

import tempfile
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from .answers import Scored

Array = npt.NDArray[Any]


class Scores:
    """Rows in the order in which they were added, all of one version."""

    def __init__(self) -> None:
        self._outputs = _Column()
        self._targets = _Column()

    def __len__(self) -> int:
        """How many rows there are."""
        return self._outputs.rows

    def add(self, scored: Sequence[Scored]) -> None:
        """Append rows. Raises OSError where the disk is full."""
        if scored:
            self._outputs.add(np.array([one.outputs for one in scored], np.float32))
            self._targets.add(np.array([one.target for one in scored]))

    def arrays(self) -> tuple[Array, Array]:
        """(rows, outputs) and the targets. There must be rows."""
        return self._outputs.mapped(), self._targets.mapped()

    def close(self) -> None:
        """Give the disk's space back; arrays that are mapped stay."""
        self._outputs.close()
        self._targets.close()


class _Column:
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
