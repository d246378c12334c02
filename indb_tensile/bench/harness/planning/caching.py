"""Models PyTorch's caching allocator, a rival in placement: the bytes that it reserves for a plan's intervals.

The allocator serves requests as they come, without knowledge of later ones. Sizes are in two classes, each with
segments of its own. A request gets the smallest free block that is large enough, which is split if enough remains.
Free neighbours are merged. If no block is large enough, the allocator reserves a new segment. The rules and sizes are
those of its default settings. It keeps its segments, so the figure that counts is the reserved bytes once iterations
repeat.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.config import MIB
from indb_tensile.scheduler.memory.residency import Interval

_BLOCK_BYTES = 512  # sizes are multiples of this
_SMALL_BYTES = MIB  # requests up to this are served from small segments
_SMALL_SEGMENT_BYTES = 2 * MIB
_LARGE_SEGMENT_BYTES = 20 * MIB  # size of the segment for a request below half of this size
_ROUND_BYTES = 2 * MIB  # a larger request's segment is a multiple of this
_ITERATIONS = 3


def reserved_bytes(intervals: Sequence[Interval], count: int) -> int:
    """Return the bytes that the allocator has reserved after some iterations of `count` operators."""
    allocator = _Allocator()
    blocks: dict[int, _Block] = {}
    starts: list[list[int]] = [[] for _ in range(count)]
    stops: list[list[int]] = [[] for _ in range(count)]
    for index, interval in enumerate(intervals):
        if interval.stop - interval.first < count:
            starts[interval.first].append(index)
            stops[interval.stop % count].append(index)
        if interval.stop - interval.first == count or interval.stop > count:  # exists when the first iteration starts
            blocks[index] = allocator.take(interval.size_bytes)
    for _ in range(_ITERATIONS):
        for leaving, coming in zip(stops, starts, strict=True):
            for index in leaving:
                if index in blocks:
                    allocator.give(blocks.pop(index))
            for index in coming:
                blocks[index] = allocator.take(intervals[index].size_bytes)
    return allocator.reserved_bytes


def replayed_bytes(standing: Sequence[int], changes: Sequence[tuple[int, int]]) -> int:
    """Return the reserved bytes after an iteration's allocations were repeated beside permanent tensors.

    `standing` has the sizes of permanent tensors. A change is an address and the bytes allocated there, or the bytes
    freed as a negative number.
    """
    allocator = _Allocator()
    for size_bytes in standing:
        allocator.take(size_bytes)
    for _ in range(_ITERATIONS):
        blocks: dict[int, _Block] = {}
        for address, size_bytes in changes:
            if size_bytes > 0:
                blocks[address] = allocator.take(size_bytes)
            elif address in blocks:
                allocator.give(blocks.pop(address))
        for block in blocks.values():
            allocator.give(block)
    return allocator.reserved_bytes


@dataclass(slots=True, eq=False)
class _Block:
    """A part of a segment, in use or free."""

    address: int
    size_bytes: int
    small: bool
    free: bool = True
    before: "_Block | None" = None  # neighbours in the same segment
    after: "_Block | None" = None


class _Allocator:
    """The allocator's blocks and free lists."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # sizes and addresses, by class
        self._at: dict[int, _Block] = {}

    def take(self, size_bytes: int) -> _Block:
        """Return a block for a request."""
        size = -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        small = size <= _SMALL_BYTES
        free = self._free[small]
        position = bisect_left(free, (size, 0))
        block = self._at[free.pop(position)[1]] if position < len(free) else self._segment(size, small=small)
        rest = block.size_bytes - size
        if rest >= _BLOCK_BYTES if small else rest > _SMALL_BYTES:
            self._split(block, size)
        block.free = False
        return block

    def give(self, block: _Block) -> None:
        """Free a block, and merge it with its free neighbours."""
        block.free = True
        if block.before is not None and block.before.free:
            block = self._merged(block.before, block, listed=block.before)
        if block.after is not None and block.after.free:
            block = self._merged(block, block.after, listed=block.after)
        insort(self._free[block.small], (block.size_bytes, block.address))

    def _segment(self, size: int, *, small: bool) -> _Block:
        if small:
            segment = _SMALL_SEGMENT_BYTES
        elif size < _LARGE_SEGMENT_BYTES // 2:
            segment = _LARGE_SEGMENT_BYTES
        else:
            segment = -(-size // _ROUND_BYTES) * _ROUND_BYTES
        block = _Block(self.reserved_bytes, segment, small)
        self._at[block.address] = block
        self.reserved_bytes += segment
        return block

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size_bytes - size, block.small, before=block, after=block.after)
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size_bytes = rest, size
        self._at[rest.address] = rest
        insort(self._free[rest.small], (rest.size_bytes, rest.address))

    def _merged(self, lower: _Block, upper: _Block, *, listed: _Block) -> _Block:
        free = self._free[listed.small]
        free.pop(bisect_left(free, (listed.size_bytes, listed.address)))
        del self._at[upper.address]
        lower.size_bytes += upper.size_bytes
        lower.after = upper.after
        if lower.after is not None:
            lower.after.before = lower
        return lower
