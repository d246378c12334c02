"""Divides the rows of a part into batches: shuffled anew for each epoch of a training, in order for a validation."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from indb_tensile.learning.encoded_parts import Part
from indb_tensile.learning.hyperparams import TrainingSettings
from indb_tensile.learning.shuffling import WINDOW_BYTES, shuffled_windows


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


def batches(part: Part, epoch: int, settings: TrainingSettings) -> Iterator[Tensor]:
    """Yield the rows of each batch of this epoch (from 0): the full batches, then the smaller one.

    The order depends on the seed, the epoch and the size of the rows only, and not on where the rows are.
    """
    plan = batch_plan(part.rows, settings)
    remaining = plan.full * plan.full_rows + plan.tail_rows
    # One generator per pair of seed and epoch: seed + epoch would repeat the orders of another seed.
    mixed = np.random.SeedSequence((settings.seed, epoch)).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(mixed >> np.uint64(1)))
    rows = torch.empty(0, dtype=torch.int64)
    for window in shuffled_windows(part.x, generator, part.storage):
        rows = torch.cat((rows, window))[:remaining]
        complete = len(rows) // plan.full_rows * plan.full_rows
        yield from _slices(rows[:complete], plan.full_rows)
        rows, remaining = rows[complete:], remaining - complete
    yield from _slices(rows[:remaining], plan.full_rows)


def ordered_batches(part: Part, size: int) -> Iterator[Tensor]:
    """Yield every row once, in order, for a validation pass.

    All batches are full except the last, which may have a single row.
    """
    released = 0
    for start in range(0, part.rows, max(size, 1)):
        yield torch.arange(start, min(start + size, part.rows))
        if (start - released) * part.x[:1].nbytes >= WINDOW_BYTES:
            part.storage.release()
            released = start


def _slices(order: Tensor, size: int) -> Iterator[Tensor]:
    for start in range(0, len(order), max(size, 1)):
        yield order[start : start + size]
