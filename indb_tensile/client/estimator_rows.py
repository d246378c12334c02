"""The rows of a fit or a prediction of an estimator, as a frame that the client copies into the database.

Arrays become columns x0, x1, …; many columns become one column of arrays, because a row of PostgreSQL has at most
1,600. The target and the weights are columns beside the features. scikit-learn expects a fit to train on all rows,
and a training here needs a test part. So some rows are copied twice, and the column `PART` says that the second copy
tests.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import BigInteger, Boolean, Double
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from indb_tensile.client.frame_columns import Frame
from indb_tensile.errors import RequestError

TARGET, WEIGHT, PART = "tensile target", "tensile weight", "tensile part"
_MOST_COLUMNS = 800  # columns of numbers that fit into a page of PostgreSQL beside the header of a row
_MOST_TESTED = 100  # most rows that are copied for the test part; its metric decides nothing


@dataclass(frozen=True, slots=True, eq=False)
class ArrayFrame:
    """A matrix of numbers as a frame; NaN is missing."""

    values: npt.NDArray[np.float64]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.values)

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return ["x"] if self._one_array else [f"x{place}" for place in range(self.values.shape[1])]

    def declared(self, name: Any) -> TypeEngine[Any] | None:
        """Return the type of a column."""
        return ARRAY(Double()) if self._one_array else Double()

    def block(self, name: Any, start: int, end: int) -> list[Any]:
        """Return values, None where missing."""
        part = self.values[start:end] if self._one_array else self.values[start:end, int(str(name)[1:])]
        if self._one_array:
            return part.tolist()  # type: ignore[no-any-return]
        return [None if value != value else value for value in part.tolist()]

    def like(self, columns: Mapping[str, Sequence[Any]]) -> Any:
        """Return the columns as they are."""
        return columns

    @property
    def _one_array(self) -> bool:
        return int(self.values.shape[1]) > _MOST_COLUMNS


@dataclass(frozen=True, slots=True, eq=False)
class RowsToFit:
    """The features of a fit beside targets and weights. Copies of some of the first rows follow, to test."""

    features: Frame
    targets: npt.NDArray[Any]
    weights: npt.NDArray[np.float64] | None

    def __post_init__(self) -> None:
        for name in (TARGET, WEIGHT, PART):
            if name in self.features.names:
                raise RequestError(f'X has a column named "{name}"', hint="Rename the column.")

    @property
    def rows(self) -> int:
        """Return the number of rows, with those that test."""
        return self.features.rows + len(self._tested)

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return [*self.features.names, TARGET, PART, *([] if self.weights is None else [WEIGHT])]

    def declared(self, name: Any) -> TypeEngine[Any] | None:
        """Return the type of a column."""
        if name == TARGET:
            return BigInteger() if self.targets.dtype.kind == "i" else Double()
        return {PART: Boolean(), WEIGHT: Double()}.get(name) or self.features.declared(name)

    def block(self, name: Any, start: int, end: int) -> list[Any]:
        """Return values, None where missing."""
        count = self.features.rows
        if name == PART:
            return [place >= count for place in range(start, end)]
        own = range(start, min(end, count))
        again = self._tested[max(0, start - count) : max(0, end - count)]
        return [*self._values(name, own.start, own.stop), *(self._values(name, at, at + 1)[0] for at in again)]

    def like(self, columns: Mapping[str, Sequence[Any]]) -> Any:
        """Return the columns as they are."""
        return columns

    def _values(self, name: Any, start: int, end: int) -> list[Any]:
        if end <= start:
            return []
        if name == TARGET:
            return self.targets[start:end].tolist()  # type: ignore[no-any-return]
        if name == WEIGHT:
            assert self.weights is not None
            return self.weights[start:end].tolist()  # type: ignore[no-any-return]
        return self.features.block(name, start, end)

    @property
    def _tested(self) -> list[int]:
        """Return the rows that test: the first one of each class, and the first rows."""
        firsts: Iterable[Any] = ()
        if self.targets.dtype.kind == "i":
            firsts = np.unique(self.targets, return_index=True)[1].tolist()
        return list(dict.fromkeys([*firsts, *range(min(_MOST_TESTED, self.features.rows))]))
