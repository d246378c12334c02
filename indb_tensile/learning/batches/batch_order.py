"""Divides the rows of a part into batches: shuffled anew for each epoch of a training, in order for a validation.

With length buckets (length_buckets.py) the shuffled rows of each bucket fill batches of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from indb_tensile.learning.batches.length_buckets import LengthBuckets
from indb_tensile.learning.batches.shuffling import WINDOW_BYTES, shuffled_windows
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.networks.hyperparams import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The batches of an epoch: `full` batches of `full_rows` rows, then one of `tail_rows` rows unless that is 0."""

    full_rows: int
    full: int
    tail_rows: int

    @property
    def steps(self) -> int:
        """Return the number of batches in one epoch."""
        return self.full + (self.tail_rows > 0)


def batch_plan(rows: int, settings: TrainingSettings) -> BatchPlan:
    """Return how `rows` rows are divided into batches.

    If there are fewer rows than a batch, all rows are one batch. A last batch of a single row is left out of its
    epoch, because batch normalisation cannot process it; the shuffle leaves out another row in each epoch. With
    `batch_size` 1 no row is left out.
    """
    full_rows = min(settings.batch_size, rows)
    full, tail = divmod(rows, full_rows) if full_rows else (0, 0)
    return BatchPlan(full_rows=full_rows, full=full, tail_rows=0 if tail == 1 else tail)


def example_batches(
    part: Part, settings: TrainingSettings, buckets: LengthBuckets | None = None
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return a batch of each shape that an epoch has.

    These are the full batch, the smaller one if there is one, and the full batches of shorter texts, by length.
    """
    plan = batch_plan(part.rows, settings)
    sizes = (plan.full_rows, plan.tail_rows) if plan.tail_rows else (plan.full_rows,)
    whole = [(part.first(size), part.y[:size]) for size in sizes]
    shorter = () if buckets is None else tuple(buckets.shortened(whole[0][0]))
    return (*whole, *((x, whole[0][1]) for x in shorter))


def batches(
    part: Part, epoch: int, settings: TrainingSettings, buckets: LengthBuckets | None = None
) -> Iterator[Tensor]:
    """Yield the rows of each batch of this epoch (from 0): the full batches, then the smaller one.

    The order depends on the seed, the epoch and the size of the rows only, and not on where the rows are. With
    `buckets` it also depends on which rows are in which one.
    """
    windows = _shuffled(part, epoch, settings)
    yield from _whole_batches(windows, part, settings) if buckets is None else _bucketed(windows, buckets)


def _shuffled(part: Part, epoch: int, settings: TrainingSettings) -> Iterator[Tensor]:
    """Yield all rows in the random order of this epoch, window by window."""
    # One generator per pair of seed and epoch: seed + epoch would repeat the orders of another seed.
    mixed = np.random.SeedSequence((settings.seed, epoch)).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(mixed >> np.uint64(1)))
    yield from shuffled_windows(part, generator)


def _whole_batches(windows: Iterator[Tensor], part: Part, settings: TrainingSettings) -> Iterator[Tensor]:
    plan = batch_plan(part.rows, settings)
    remaining = plan.full * plan.full_rows + plan.tail_rows
    rows = torch.empty(0, dtype=torch.int64)
    for window in windows:
        rows = torch.cat((rows, window))[:remaining]
        complete = len(rows) // plan.full_rows * plan.full_rows
        yield from _slices(rows[:complete], plan.full_rows)
        rows, remaining = rows[complete:], remaining - complete
    yield from _slices(rows[:remaining], plan.full_rows)


def _bucketed(windows: Iterator[Tensor], buckets: LengthBuckets) -> Iterator[Tensor]:
    """Yield a batch whenever a bucket has filled one. At the end, what is left of a bucket joins the next longer one.

    A single row that is left in the end is left out of the epoch, as by `batch_plan`.
    """
    size = buckets.batch_rows
    waiting = [torch.empty(0, dtype=torch.int64) for _ in buckets.lengths]
    for window in windows:
        filled = []
        for bucket, place in _places_by_bucket(window, buckets):
            rows = torch.cat((waiting[bucket], window[place]))
            # A batch is complete at the place of its last row in the window, which orders batches of all buckets.
            ends = range(size - len(waiting[bucket]), len(place) + 1, size)
            filled += [(int(place[end - 1]), batch) for end, batch in zip(ends, _slices(rows, size), strict=False)]
            waiting[bucket] = rows[len(ends) * size :]
        yield from (batch for _, batch in sorted(filled, key=lambda pair: pair[0]))
    left = torch.empty(0, dtype=torch.int64)
    for own in waiting:
        left = torch.cat((left, own))
        if len(left) >= size:
            yield left[:size]
            left = left[size:]
    if len(left) > 1:
        yield left


def _places_by_bucket(window: Tensor, buckets: LengthBuckets) -> Iterator[tuple[int, Tensor]]:
    """Yield each bucket with the places in the window of its rows."""
    own = torch.from_numpy(buckets.of_row[window.numpy()])
    for bucket in range(len(buckets.lengths)):
        yield bucket, (own == bucket).nonzero().flatten()


def ordered_batches(part: Part, size: int, buckets: LengthBuckets | None = None) -> Iterator[Tensor]:
    """Yield every row once, in order, for a validation pass; with `buckets` in the order of their lengths.

    All batches are full except the last, which may have a single row.
    """
    if buckets is not None:
        yield from _slices(torch.from_numpy(np.argsort(buckets.of_row, kind="stable")), size)
        part.storage.release()
        return
    released = 0
    for start in range(0, part.rows, max(size, 1)):
        yield torch.arange(start, min(start + size, part.rows))
        if (start - released) * part.x[:1].nbytes >= WINDOW_BYTES:
            part.storage.release()
            released = start


def _slices(order: Tensor, size: int) -> Iterator[Tensor]:
    for start in range(0, len(order), max(size, 1)):
        yield order[start : start + size]
