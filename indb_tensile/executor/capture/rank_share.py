"""The parts of each batch that one of several devices (ranks) computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise

from indb_tensile.errors import RequestError


class Reduce(StrEnum):
    """How ranks add up gradients; a test compares it with the hyper-parameter `reduce`."""

    EXACT = "exact"  # in the order of the parts, as one device adds them
    FAST = "fast"  # each rank adds up its own parts first, and the library's all-reduce adds up the ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """Which of the ranks this device is. Parts belong to the batch, so their number does not depend on the ranks.

    With `divides_state` each rank keeps the optimizer's state of some parameters only (state_division.py).
    """

    rank: int
    ranks: int
    reduce: Reduce = Reduce.EXACT
    divides_state: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise RequestError(f"rank {self.rank} of {self.ranks} does not exist")

    def counts(self, parts: int) -> tuple[int, ...]:
        """Return the number of parts of each rank, nearly as many for each; the last batch of an epoch may have fewer
        parts than there are ranks.
        """
        return tuple(map(len, _divided(parts, self.ranks)))

    def own(self, parts: int) -> range:
        """Return the numbers of this rank's parts, which are consecutive."""
        return _divided(parts, self.ranks)[self.rank]


def divide_parts(parts: int, ranks: int) -> tuple[range, ...]:
    """Return the parts of each rank: consecutive, and nearly as many for each.

    Raises RequestError if a rank would have none.
    """
    if not 1 <= ranks <= parts:
        raise RequestError(
            f"{parts} parts of a batch cannot be divided among {ranks} devices: each needs at least one",
            hint="Use fewer devices, or a smaller micro_batch_size.",
        )
    return _divided(parts, ranks)


def parts_of(counts: Sequence[int]) -> tuple[range, ...]:
    """Return the parts of each rank, for their numbers."""
    return tuple(range(start, end) for start, end in pairwise([0, *accumulate(counts)]))


def _divided(parts: int, ranks: int) -> tuple[range, ...]:
    ends = [parts * rank // ranks for rank in range(ranks + 1)]
    return tuple(range(start, end) for start, end in pairwise(ends))
