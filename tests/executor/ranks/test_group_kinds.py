"""Check all exchanges of steps with every kind of connection between ranks."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from indb_tensile.executor.capture.exchange_operator import (
    finish_all_reduce_,
    finish_sum_parts_,
    start_all_reduce_,
    start_sum_parts_,
)
from indb_tensile.executor.capture.exchange_room import (
    PIECE_ELEMENTS,
    handed_out_elements,
    owner_elements,
    parts_elements,
    reduced_elements,
)
from indb_tensile.executor.capture.owner_operators import (
    finish_hand_out_,
    finish_sum_at_owners_,
    hand_out_numbers,
    start_hand_out_,
    start_sum_at_owners_,
)
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging
from tests.executor.ranks.group_kinds import GroupKind, group_kinds
from tests.executor.ranks.rank_threads import on_ranks
from tests.executor.ranks.test_part_exchange import drawn, of_one_device

COUNTS = {2: [2, 1], 3: [1, 2, 0]}  # the parts of each rank
SIZES = [[7], [5, 4, 8], [PIECE_ELEMENTS + 3]]  # a value alone, several in a bucket, and one in several pieces
OWNERS = [1, 0, 0, 1]
OWNED_SIZES = [6, 3, PIECE_ELEMENTS, 2]


def gradients_of(sizes: list[int], parts: int) -> list[Tensor]:
    """Return the gradients of each value: one row for each part."""
    return [drawn(parts, size, torch.float32, seed=place) for place, size in enumerate(sizes)]


def room_for(elements: int, place: torch.device) -> Tensor:
    return torch.empty(4 * elements, dtype=torch.uint8, device=place)


def exchanged(kind: GroupKind, ranks: int, run: Callable[[int, torch.device], list[Tensor]]) -> list[list[Tensor]]:
    """Return what each rank has after its exchanges."""

    def of_rank(rank: int, group: RankGroup) -> list[Tensor]:
        with exchanging(group):
            return [value.cpu() for value in run(rank, kind.place(rank))]

    return on_ranks(ranks, of_rank, kind=kind)


def own_parts(gradients: list[Tensor], rank: int, counts: list[int], place: torch.device) -> list[list[Tensor]]:
    """Return the gradients of this rank's parts: those of the first part, then those of the next one."""
    first = sum(counts[:rank])
    numbers = range(first, first + counts[rank])
    return [[rows[part].to(place, copy=True) for rows in gradients] for part in numbers]


@pytest.mark.parametrize("kind", group_kinds(3))
@pytest.mark.parametrize("ranks", COUNTS)
@pytest.mark.parametrize("sizes", SIZES, ids=["alone", "bucket", "pieces"])
def test_sum_of_parts_is_that_of_one_device(sizes: list[int], ranks: int, kind: GroupKind) -> None:
    counts = COUNTS[ranks]
    gradients = gradients_of(sizes, sum(counts))

    def run(rank: int, place: torch.device) -> list[Tensor]:
        parts = own_parts(gradients, rank, counts, place)
        values = parts[0] if parts else [torch.empty(size, device=place) for size in sizes]
        others = [value for part in parts[1:] for value in part]
        room = room_for(parts_elements(sizes, counts, len(parts)), place)
        start_sum_parts_(values, others, room, counts=counts, own=len(parts))
        finish_sum_parts_(values, others, room, counts=counts, own=len(parts))
        return values

    expected = [of_one_device(rows) for rows in gradients]
    for values in exchanged(kind, ranks, run):
        assert all(map(torch.equal, values, expected))


@pytest.mark.parametrize("kind", group_kinds(3))
@pytest.mark.parametrize("ranks", COUNTS)
@pytest.mark.parametrize("sizes", SIZES, ids=["alone", "bucket", "pieces"])
def test_sum_of_the_library_is_equal_on_all_ranks(sizes: list[int], ranks: int, kind: GroupKind) -> None:
    gradients = [torch.arange(ranks * size, dtype=torch.float32).view(ranks, size) for size in sizes]

    def run(rank: int, place: torch.device) -> list[Tensor]:
        values = [rows[rank].to(place, copy=True) for rows in gradients]
        room = room_for(reduced_elements(sizes, ranks), place)
        start_all_reduce_(values, room)
        finish_all_reduce_(values, room)
        return values

    first, *others = exchanged(kind, ranks, run)
    assert all(all(map(torch.equal, first, values)) for values in others)
    for value, rows in zip(first, gradients, strict=True):
        torch.testing.assert_close(value, rows.sum(0))


@pytest.mark.parametrize("kind", group_kinds(3))
@pytest.mark.parametrize("counts", [*COUNTS.values(), [0, 2], [2, 0]], ids=str)
def test_sums_go_to_their_owners_and_values_from_there_to_all(counts: list[int], kind: GroupKind) -> None:
    ranks = len(counts)
    gradients = gradients_of(OWNED_SIZES, sum(counts))

    def run(rank: int, place: torch.device) -> list[Tensor]:
        parts = own_parts(gradients, rank, counts, place)
        mine = [k for k, owner in enumerate(OWNERS) if owner == rank]
        first = parts[0] if parts else [torch.zeros(size, device=place) for size in OWNED_SIZES]
        sums = [first[k] for k in mine]
        own = [value for part in parts for value in part]
        room = room_for(owner_elements(OWNED_SIZES, OWNERS, counts, len(parts), rank), place)
        names = {"counts": counts, "owners": OWNERS, "sizes": OWNED_SIZES, "rank": rank, "dtype": torch.float32}
        start_sum_at_owners_(sums, own, room, **names)
        finish_sum_at_owners_(sums, own, room, **names)
        values = [first[k] if k in mine else torch.zeros_like(first[k]) for k in range(len(OWNERS))]
        room = room_for(handed_out_elements(OWNED_SIZES, OWNERS, ranks), place)
        start_hand_out_(values, room, owners=OWNERS, ranks=ranks, rank=rank)
        finish_hand_out_(values, room, owners=OWNERS, ranks=ranks, rank=rank)
        norms = [first[k].double().norm() for k in mine]
        options = {"ranks": ranks, "rank": rank, "dtype": torch.float64, "device": place}
        return [*values, hand_out_numbers(norms, owners=OWNERS, **options)]

    expected = [of_one_device(rows) for rows in gradients]
    first, *others = exchanged(kind, ranks, run)
    assert all(map(torch.equal, first, expected))
    torch.testing.assert_close(first[-1], torch.stack([value.double().norm() for value in expected]))
    assert all(all(map(torch.equal, first, values)) for values in others)
