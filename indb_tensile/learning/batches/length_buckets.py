"""Trains texts in batches of like length, so that a batch computes few tokens that are padding.

A few lengths are chosen from the training rows, each of which becomes a captured step with shapes of its own. The
longest length is that of the column; a shorter step reads the first tokens of each row only, because all others are
padding. Which rows share a batch depends on the seed, the epoch and the rows (batch_order.py), and not on where the
rows are stored.

In each epoch a bucket's rows that do not fill a batch join those of the next longer bucket, so there is one smaller
batch at most, of the longest length, and as many batches as without buckets.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import Tensor

from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.networks.cut_texts import CutColumn, cut_column
from indb_tensile.learning.storage.row_storage import row_blocks

Lengths = npt.NDArray[np.int64]

_CANDIDATES = 32  # lengths to choose from at most; the choice takes milliseconds, and three times as long for 64
_MULTIPLE = 4  # tokens from one length to choose from to the next at least
_LEAST_SHARE = 0.02  # of the training rows: a bucket with fewer saves little, and costs a capture and a plan, too
_WORTH = 1.03  # ratio of the tokens of fewer lengths to those of more, from which more are chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthBuckets:
    """The lengths to which training rows are padded, in ascending order, and each row's place among them.

    `of_row` is uint8 (rows,), and `batch_rows` are the rows of a full batch.
    """

    column: CutColumn
    lengths: tuple[int, ...]
    of_row: npt.NDArray[np.uint8]
    batch_rows: int

    @property
    def last(self) -> int:
        """Return the place of the longest length."""
        return len(self.lengths) - 1

    def bucket_of(self, order: Tensor) -> int:
        """Return the bucket of a batch of these rows: that of its longest text.

        A smaller batch is in the last one.
        """
        return self.last if len(order) < self.batch_rows else int(self.of_row[order.numpy()].max())

    def shortened(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield copies of whole rows cut to each length but the longest."""
        for length in self.lengths[:-1]:
            yield self.column.cut(rows, length)

    def of_part(self, part: Part) -> "LengthBuckets":
        """Return the buckets of the rows of another part."""
        of_row = np.searchsorted(self.lengths, text_lengths(part, self.column)).astype(np.uint8)
        return replace(self, of_row=of_row)

    def mean(self, values: Sequence[float]) -> float:
        """Return the mean over an epoch's full batches of a value that each length has."""
        pairs = zip(self.full_batches, values, strict=True)
        return sum(count * value for count, value in pairs) / max(1, sum(self.full_batches))

    @cached_property
    def full_batches(self) -> tuple[int, ...]:
        """Return how many full batches of each length an epoch has."""
        return batches_by_length(np.bincount(self.of_row, minlength=len(self.lengths)).tolist(), self.batch_rows)

    @property
    def token_share(self) -> float:
        """Return the tokens of the column that full batches compute, as a share of those without buckets."""
        return self.mean(self.lengths) / self.column.length


def batches_by_length(rows: Sequence[int], batch_rows: int) -> tuple[int, ...]:
    """Return how many full batches of each length an epoch has, from the rows of each length.

    Rows that do not fill a batch join those of the next longer length.
    """
    counts, carried = [], 0
    for own in rows:
        full, carried = divmod(own + carried, batch_rows)
        counts.append(full)
    return tuple(counts)


def length_buckets(part: Part, preprocessor: Preprocessor, most: int | None, batch_rows: int) -> LengthBuckets | None:
    """Return at most `most` buckets of the training rows in `part`; None where one length is best.

    Raises RequestError if buckets are asked for and no column is read as tokens, or a row has an image.
    """
    if most is None or most == 1:
        return None
    column = cut_column(preprocessor)
    if part.narrow is not None:
        column = column.moved(part.narrow.added)
    lengths, batch_rows = text_lengths(part, column), min(batch_rows, part.rows)
    chosen = choose_lengths(lengths, column.length, most, batch_rows)
    if len(chosen) == 1:
        return None
    of_row = np.searchsorted(chosen, lengths).astype(np.uint8)
    return LengthBuckets(column=column, lengths=chosen, of_row=of_row, batch_rows=batch_rows)


def text_lengths(part: Part, column: CutColumn) -> Lengths:
    """Return the number of tokens that each row has in this column."""
    lengths = np.zeros(part.rows, np.int64)
    for start, end in row_blocks(part.rows):
        lengths[start:end] = np.count_nonzero(part.x.numpy()[start:end, column.begin : column.end], axis=1)
    part.storage.release()
    return lengths


def choose_lengths(lengths: Lengths, longest: int, most: int, batch_rows: int) -> tuple[int, ...]:
    """Return at most `most` lengths, the last of which is `longest`, with the fewest tokens in all rows together.

    Each length has enough rows of its own for a full batch. Fewer lengths are returned if more of them save little.
    """
    step = max(_MULTIPLE, -(-longest // _CANDIDATES))
    ends = [*range(step, longest, step), longest]
    rows = [int((lengths <= end).sum()) for end in ends]
    fewest = max(batch_rows, math.ceil(_LEAST_SHARE * len(lengths)))
    by_count = _cheapest(ends, rows, most, fewest)
    chosen = by_count[0]
    for cheaper in by_count[1:]:
        if _tokens(cheaper, ends, rows) * _WORTH <= _tokens(chosen, ends, rows):
            chosen = cheaper
    return chosen


def _cheapest(ends: Sequence[int], rows: Sequence[int], most: int, fewest: int) -> list[tuple[int, ...]]:
    """Return the cheapest choice of one length, of two, and so on. `rows` are the rows up to each of the `ends`."""
    known: dict[int, tuple[int, tuple[int, ...]]] = {  # by the last end: the tokens, and the lengths
        at: (end * rows[at], (end,)) for at, end in enumerate(ends) if rows[at] >= fewest or at == len(ends) - 1
    }
    choices = [known[len(ends) - 1][1]]
    for _ in range(1, most):
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for at, end in enumerate(ends):
            steps = [
                (tokens + end * (rows[at] - rows[before]), (*own, end))
                for before, (tokens, own) in known.items()
                if before < at and rows[at] - rows[before] >= fewest
            ]
            if steps:
                longer[at] = min(steps)
        if len(ends) - 1 not in longer:
            break
        known = longer
        choices.append(known[len(ends) - 1][1])
    return choices


def _tokens(chosen: tuple[int, ...], ends: Sequence[int], rows: Sequence[int]) -> int:
    """Return the tokens of all rows, each padded to the shortest of these lengths that holds it."""
    up_to = [0, *(rows[ends.index(length)] for length in chosen)]
    return sum(length * (up_to[at + 1] - up_to[at]) for at, length in enumerate(chosen))
