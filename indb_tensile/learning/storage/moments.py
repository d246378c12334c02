"""Means, scales, medians and most frequent values of the training rows, computed block by block.

Numbers that fit into one block are standardised by scikit-learn, so models of small tables have the bits of release
0.1. The moments of more blocks are combined as by Chan, Golub and LeVeque (1983). They depend on the size of a block,
which is a constant, and never on where the rows are stored.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt
from sklearn.preprocessing import StandardScaler

from indb_tensile.errors import DataError
from indb_tensile.learning.storage.columns import Mask
from indb_tensile.learning.storage.row_storage import RowStorage, row_blocks

Matrix = npt.NDArray[np.float64]
Blocks = Callable[[], Iterator[Matrix]]  # the rows of a column, block by block, as often as it is called

FIT_BLOCK_NUMBERS = 1 << 20  # numbers of a block: 8 MB, and as much for each of some intermediate results
LARGEST = 1e150  # squares of larger values overflow a double


def moments(blocks: Iterable[Matrix], names: Sequence[str]) -> tuple[Matrix, Matrix]:
    """Return the mean and the scale of each column of the blocks (rows, columns); NaN is ignored.

    A column without values gets mean 0 and scale 1, a constant column gets scale 1. Raises DataError for values that
    are too large.
    """
    following = iter(blocks)
    first = next(following)
    second = next(following, None)
    _require_moderate(first, names)
    if second is None:
        return _moments_at_once(first)
    running = _RunningMoments(first.shape[1])
    for block in chain((first, second), following):
        _require_moderate(block, names)
        running.add(block)
    return running.mean, running.scale()


def moments_by_column(columns: Iterable[tuple[str, Blocks]]) -> Iterator[tuple[float, float]]:
    """Yield the mean and the scale of each column, as `moments` of the column alone, bit for bit.

    Columns of one block are computed together, since scikit-learn checks its input for longer than it adds up a few
    hundred rows. At most two blocks of numbers are held at a time.
    """
    held: list[tuple[str, Matrix]] = []
    for name, blocks in columns:
        following = iter(blocks())
        first = next(following)
        second = next(following, None)
        if second is not None or (len(held) + 1) * first.size > FIT_BLOCK_NUMBERS:
            yield from _moments_together(held)
            held = []
        if second is None:
            held.append((name, first))
        else:
            mean, scale = moments((block[:, None] for block in chain((first, second), following)), [name])
            yield float(mean[0]), float(scale[0])
    yield from _moments_together(held)


def _moments_together(held: Sequence[tuple[str, Matrix]]) -> Iterator[tuple[float, float]]:
    """Yield the mean and the scale of each of these columns of as many rows."""
    if held:
        names = [name for name, _ in held]
        mean, scale = moments([np.stack([block for _, block in held]).T], names)
        yield from zip(mean.tolist(), scale.tolist(), strict=True)


def finite_or_nan(values: Matrix) -> Matrix:
    """Replace every value that is not finite by NaN."""
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, np.nan)


def median(blocks: Blocks, otherwise: float, storage: RowStorage) -> float:
    """Return the median of the finite values of all blocks, or `otherwise` if there are none.

    For an even number of values the median is the mean of the middle two. `blocks` is called twice.
    """
    with finite_values(blocks, storage) as values:
        if not len(values):
            return float(otherwise)
        middle = [(len(values) - 1) // 2, len(values) // 2]
        values.partition(middle)
        return float(values[middle].mean())


def most_frequent(blocks: Blocks, storage: RowStorage) -> float | None:
    """Return the most frequent finite value, the least of equally frequent ones; None if there are no values.

    `blocks` is called twice.
    """
    with finite_values(blocks, storage) as values:
        values.sort()
        return _longest_run(values)


def _longest_run(values: Matrix) -> float | None:
    """Return the most frequent of sorted values."""
    best: float | None = None
    best_count = last_count = 0
    last = np.nan
    for start, end in row_blocks(len(values), FIT_BLOCK_NUMBERS):
        distinct, counts = np.unique(values[start:end], return_counts=True)
        if distinct[0] == last:  # the equal values of the block before
            counts[0] += last_count
        place = int(np.argmax(counts))
        if counts[place] > best_count:
            best, best_count = float(distinct[place]), int(counts[place])
        last, last_count = float(distinct[-1]), int(counts[-1])
    return best


@contextmanager
def finite_values(blocks: Blocks, storage: RowStorage) -> Iterator[Matrix]:
    """Give a copy of the finite values, which may be changed, until the context ends. `blocks` is called twice."""
    with storage.scratch():
        count = sum(int(np.isfinite(block).sum()) for block in blocks())
        copied, place = storage.array(count, (), np.float64), 0
        for block in blocks():
            finite = block[np.isfinite(block)]
            copied.write(place, finite)
            place += len(finite)
        yield copied.values


@dataclass(slots=True)
class _RunningMoments:
    """Number, mean and sum of squared deviations of the values of each column."""

    columns: int
    count: Matrix = field(init=False)
    mean: Matrix = field(init=False)
    squares: Matrix = field(init=False)

    def __post_init__(self) -> None:
        self.count, self.mean, self.squares = (np.zeros(self.columns) for _ in range(3))

    def add(self, block: Matrix) -> None:
        finite = np.isfinite(block)
        count = finite.sum(axis=0).astype(np.float64)
        known = np.where(finite, block, 0.0)
        mean = known.sum(axis=0) / np.maximum(count, 1)
        known -= mean
        known[~finite] = 0.0
        known *= known
        both = np.maximum(self.count + count, 1)
        distance = mean - self.mean
        self.squares += known.sum(axis=0) + distance * distance * self.count * count / both
        self.mean += np.where(count > 0, distance * count / both, 0.0)
        self.count += count

    def scale(self) -> Matrix:
        """Return the standard deviations; 1 where the deviation is zero or no more than rounding errors."""
        variance = self.squares / np.maximum(self.count, 1)
        error = np.finfo(np.float64).eps * self.count
        constant = variance <= error * variance + (error * self.mean) ** 2
        return np.where(constant, 1.0, np.sqrt(variance))


def _require_moderate(values: Matrix, names: Sequence[str]) -> None:
    largest = np.maximum(np.fmax.reduce(values, axis=0, initial=0.0), -np.fmin.reduce(values, axis=0, initial=0.0))
    if (largest > LARGEST).any():
        column = int(np.argmax(largest))
        hint = "Scale the column in SQL, or leave it out with exclude."
        raise DataError(f'column "{names[column]}" holds {largest[column]:g}, too large to standardise', hint=hint)


def _moments_at_once(values: Matrix) -> tuple[Matrix, Matrix]:
    has_value: Mask = np.asarray(np.isfinite(values).any(axis=0))
    mean, scale = np.zeros(values.shape[1]), np.ones(values.shape[1])
    if has_value.any():
        # numpy adds up each column separately, since the selected columns are stored column by column.
        scaler = StandardScaler().fit(values if values.shape[1] == 1 else values[:, has_value])
        mean[has_value], scale[has_value] = scaler.mean_, scaler.scale_
    return mean, scale
