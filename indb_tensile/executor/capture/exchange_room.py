"""The scratch memory of exchanges: how much an exchange needs beside its values, and which part each buffer gets.

Exchanges of a step run one after another, so all of them use one tensor, the room. It has packed values, where many
small ones are exchanged together, and the pieces in which large ones go (ranks/part_exchange.py). The room is a
tensor of the step graph, so a plan counts it.
"""

from collections.abc import Sequence

import torch

# An exchange takes a gradient piece by piece. Smaller pieces cost more waits for the network, and larger ones more
# memory, whose first touch costs more time than the network where all ranks are of one machine.
PIECE_ELEMENTS = 1 << 19


class ExchangeRoom:
    """The room of one exchange, as elements of one type. Each call of `take` gives other memory."""

    def __init__(self, memory: torch.Tensor, dtype: torch.dtype) -> None:
        size = dtype.itemsize
        self._elements = memory[: memory.numel() // size * size].view(dtype)
        self._taken = 0

    def take(self, elements: int) -> torch.Tensor:
        """Return the next elements, with any values in them."""
        start, self._taken = self._taken, self._taken + elements
        return self._elements[start : self._taken]

    def take_for_network(self, elements: int, *, on_device: bool) -> torch.Tensor:
        """Return the next elements. Where the network sends host memory, those of a GPU's room are elsewhere."""
        own = self.take(elements)
        return own if on_device or own.is_cpu else torch.empty(elements, dtype=own.dtype)


def parts_elements(sizes: Sequence[int], counts: Sequence[int], own: int) -> int:
    """Return the elements of room for the sum over all parts of values of these sizes.

    `counts` has the number of parts of each rank, and `own` is that of this one.
    """
    elements = sum(sizes)
    packed = max(1, own) * elements if len(sizes) > 1 else 0
    if len(counts) == 2:
        return packed + pair_width(elements)
    if is_chained(elements, counts):
        return packed + 4 * chain_width(elements)  # two pieces that are sent, and two that are received
    return packed + sum(piece_sizes(elements, own, counts))


def pair_width(elements: int) -> int:
    """Return the elements that one of two ranks receives at once (ranks/pair_exchange.py)."""
    return max(1, min(PIECE_ELEMENTS, elements))


def chain_width(elements: int) -> int:
    """Return the elements that one of several ranks passes on at once (ranks/chain_exchange.py).

    With a quarter of a piece, four ranks on two cores took longer for 16 MiB than with an all-to-all.
    """
    return max(1, min(PIECE_ELEMENTS // 2, elements))


def is_chained(elements: int, counts: Sequence[int]) -> bool:
    """Return whether more than two ranks pass a sum of so many elements on from rank to rank.

    That takes fewer bytes if ranks have several parts, and more messages: as many as there are pieces, and nearly two
    for each rank. So there have to be at least as many pieces.
    """
    pieces = -(-elements // chain_width(elements))
    return len(counts) > 2 and max(counts) > 1 and pieces >= 2 * len(counts) - 3


def reduced_elements(sizes: Sequence[int], ranks: int) -> int:
    """Return the elements of room for the sum of one value of each of these sizes over all ranks."""
    elements = sum(sizes)
    packed = elements if len(sizes) > 1 else 0
    return packed + (pair_width(elements) if is_small_pair(elements, ranks) else 0)


def is_small_pair(elements: int, ranks: int) -> bool:
    """Return whether two ranks send each other so few values that this is faster than the library's all-reduce."""
    return ranks == 2 and elements <= PIECE_ELEMENTS


def piece_width(elements: int, ranks: int) -> int:
    """Return the elements of each rank's stretch of a piece."""
    return max(1, -(-min(PIECE_ELEMENTS, elements) // ranks))


def piece_sizes(elements: int, own: int, counts: Sequence[int]) -> tuple[int, int]:
    """Return the elements of a piece that are sent and received: first the parts' values, then their sums."""
    ranks = len(counts)
    width = piece_width(elements, ranks)
    return ranks * max(1, own) * width, max(ranks, sum(counts)) * width


def owner_elements(sizes: Sequence[int], owners: Sequence[int], counts: Sequence[int], own: int, rank: int) -> int:
    """Return the elements of room for an exchange in which each sum goes to one rank only, the owner of the value.

    Each value has a size and an owner. `counts` and `own` are as for `parts_elements`, and `rank` is this rank.
    """
    lengths = owner_lengths(sizes, owners, len(counts))
    packed = _packed(lengths, owners)
    joined = own * sum(packed) if own else packed[rank]
    if len(counts) > 2:
        return joined + sum(owner_piece_sizes(lengths, own, counts, rank))
    passed = 0 if own or not counts[0] else lengths[1 - rank]  # from the first rank, and back
    return joined + pair_width(max(lengths)) + passed


def handed_out_elements(sizes: Sequence[int], owners: Sequence[int], ranks: int) -> int:
    """Return the elements of room for an exchange in which the owner of each value sends it to all other ranks."""
    return sum(_packed(owner_lengths(sizes, owners, ranks), owners))


def _packed(lengths: Sequence[int], owners: Sequence[int]) -> list[int]:
    """Return how many elements of each rank are copied together. The only value of a rank is sent from its place."""
    return [length if owners.count(owner) > 1 else 0 for owner, length in enumerate(lengths)]


def owner_lengths(sizes: Sequence[int], owners: Sequence[int], ranks: int) -> list[int]:
    """Return the number of elements that each rank owns."""
    lengths = [0] * ranks
    for size, owner in zip(sizes, owners, strict=True):
        lengths[owner] += size
    return lengths


def owner_width(lengths: Sequence[int]) -> int:
    """Return the most elements of an owner's stretch that one piece has."""
    return min(max(1, PIECE_ELEMENTS // len(lengths)), max(lengths))


def owner_piece_sizes(lengths: Sequence[int], own: int, counts: Sequence[int], rank: int) -> tuple[int, int]:
    """Return the elements of a piece that are received and sent."""
    width = owner_width(lengths)
    return sum(counts) * min(width, lengths[rank]), own * sum(min(width, length) for length in lengths)
