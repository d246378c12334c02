"""Check that gradients of parts on several ranks add up to the bits that one device computes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.exchange_room import PIECE_ELEMENTS, ExchangeRoom, chain_width, is_chained
from indb_tensile.executor.capture.rank_share import divide_parts
from indb_tensile.executor.ranks.chain_exchange import chain_ticks
from indb_tensile.executor.ranks.pair_exchange import sum_of_both
from indb_tensile.executor.ranks.part_exchange import PartExchange
from indb_tensile.executor.ranks.rank_group import RankGroup
from tests.executor.ranks.group_kinds import GroupKind, group_kinds
from tests.executor.ranks.rank_steps import room_of
from tests.executor.ranks.rank_threads import on_ranks
from tests.nightly import some_examples


def drawn(parts: int, elements: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Return gradients of very different sizes, whose sums depend on the order."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.randint(-6, 7, (parts, elements), generator=generator)
    return (torch.randn(parts, elements, generator=generator, dtype=torch.float64) * sizes).to(dtype)


def of_one_device(gradients: Tensor) -> Tensor:
    """Add up gradients like eager's gradient accumulation: in place, part by part."""
    parameter = torch.zeros(gradients.shape[1], dtype=gradients.dtype, requires_grad=True)
    for gradient in gradients:
        (parameter * gradient).sum().backward()
    assert parameter.grad is not None
    return parameter.grad


def sums(gradients: Tensor, ranks: int, kind: GroupKind) -> list[Tensor]:
    parts = divide_parts(len(gradients), ranks)

    def run(rank: int, group: RankGroup) -> Tensor:
        own = gradients[parts[rank].start : parts[rank].stop].to(kind.place(rank))
        total = torch.empty_like(gradients[0], device=own.device)
        PartExchange(group=group, parts=parts).exact_sum([*own], total, room_of(total, len(own), parts))
        group.settle()
        return total.cpu()

    return on_ranks(ranks, run, kind=kind)


@pytest.mark.parametrize("kind", group_kinds(4))
@some_examples()
@given(
    ranks=st.integers(1, 4),
    more=st.integers(0, 3),
    elements=st.integers(0, 40),
    dtype=st.sampled_from((torch.float32, torch.bfloat16, torch.float64)),
    seed=st.integers(0, 1000),
)
def test_exact_sum_has_the_bits_of_one_device_on_every_rank(
    kind: GroupKind, ranks: int, more: int, elements: int, dtype: torch.dtype, seed: int
) -> None:
    gradients = drawn(ranks + more, elements, dtype, seed)
    expected = of_one_device(gradients)
    assert all(torch.equal(total, expected) for total in sums(gradients, ranks, kind))


@pytest.mark.parametrize("kind", group_kinds(3))
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("more", [0, 1, PIECE_ELEMENTS // 2])
def test_exact_sum_of_a_gradient_in_several_pieces_has_the_bits_of_one_device(
    more: int, ranks: int, kind: GroupKind
) -> None:
    gradients = drawn(3, PIECE_ELEMENTS + more, torch.float32, seed=more)
    expected = of_one_device(gradients)
    assert all(torch.equal(total, expected) for total in sums(gradients, ranks, kind))


@pytest.mark.parametrize("kind", group_kinds(4))
@pytest.mark.parametrize(("ranks", "parts"), [(3, 4), (3, 6), (4, 6), (4, 8)])
@pytest.mark.parametrize("more", [0, 1, PIECE_ELEMENTS // 3])
def test_sum_that_is_passed_on_from_rank_to_rank_has_the_bits_of_one_device(
    ranks: int, parts: int, more: int, kind: GroupKind
) -> None:
    """Some ranks have one part less than the others."""
    counts = [len(own) for own in divide_parts(parts, ranks)]
    elements = 3 * PIECE_ELEMENTS + more
    assert is_chained(elements, counts)
    assert not is_chained(elements, [1] * ranks)
    gradients = drawn(parts, elements, torch.float32, seed=parts)
    expected = of_one_device(gradients)
    assert all(torch.equal(total, expected) for total in sums(gradients, ranks, kind))


@given(
    elements=st.integers(1, 9 * PIECE_ELEMENTS),
    counts=st.lists(st.integers(0, 3), min_size=3, max_size=6).filter(lambda counts: sum(counts) > 0),
)
def test_each_rank_receives_what_the_one_before_sends_and_ends_with_every_total(
    elements: int, counts: list[int]
) -> None:
    ranks = len(counts)
    ticks = [list(chain_ticks(elements, counts, rank)) for rank in range(ranks)]
    summed: list[set[int]] = [set() for _ in counts]  # the pieces whose running sum a rank has, with its own parts
    whole: list[set[int]] = [set() for _ in counts]
    for now in zip(*ticks, strict=True):
        for rank, tick in enumerate(now):
            assert tick.received == now[rank - 1].sent
            summed[rank] |= {tick.begins.start} if tick.begins else set()
            running, total = tick.sent
            assert not running or running.start in summed[rank]
            assert not total or total.start in (summed if rank == ranks - 1 else whole)[rank]
        for rank, tick in enumerate(now):
            running, total = tick.received
            summed[rank] |= {running.start} if running else set()
            whole[rank] |= {total.start} if total else set()
    pieces = set(range(0, elements, chain_width(elements)))
    assert [*whole[:-1], summed[-1]] == [pieces] * ranks
    sent = [sum(len(piece) for tick in own for piece in tick.sent) for own in ticks]
    assert max(sent) <= 2 * elements


@pytest.mark.parametrize("kind", group_kinds(2))
@pytest.mark.parametrize("counts", [(0, 2), (2, 0), (1, 2), (0, 1)])
def test_rank_without_parts_gets_the_sum_of_the_other_one(counts: tuple[int, int], kind: GroupKind) -> None:
    gradients = drawn(sum(counts), 2 * PIECE_ELEMENTS + 7, torch.float32, seed=4)
    parts = (range(counts[0]), range(counts[0], sum(counts)))

    def run(rank: int, group: RankGroup) -> Tensor:
        place = kind.place(rank)
        own = [part.to(place, copy=True) for part in gradients[parts[rank].start : parts[rank].stop]]
        # The sum comes in the place of the first part.
        total = own[0] if own else torch.empty_like(gradients[0], device=place)
        PartExchange(group=group, parts=parts).exact_sum(own, total, room_of(total, len(own), parts))
        group.settle()
        return total.cpu()

    expected = of_one_device(gradients)
    assert all(torch.equal(total, expected) for total in on_ranks(2, run, kind=kind))


@pytest.mark.parametrize("kind", group_kinds(2))
@pytest.mark.parametrize("elements", [1, 40, PIECE_ELEMENTS, PIECE_ELEMENTS + 3])
def test_two_ranks_that_send_each_other_everything_have_the_same_sum(elements: int, kind: GroupKind) -> None:
    values = drawn(2, elements, torch.float32, seed=elements)
    values[:, 0] = torch.tensor([0x7FC00001, 0x7FC00002], dtype=torch.int32).view(torch.float32)  # two kinds of NaN

    def run(rank: int, group: RankGroup) -> Tensor:
        own = values[rank].to(kind.place(rank), copy=True)
        room = torch.empty(4 * elements, dtype=torch.uint8, device=own.device)
        sum_of_both(group, own, ExchangeRoom(room, own.dtype))
        group.settle()
        return own.cpu().view(torch.int32)

    first, second = on_ranks(2, run, kind=kind)
    assert torch.equal(first, second)
    assert torch.equal(first[1:], (values[0] + values[1]).view(torch.int32)[1:])


@pytest.mark.parametrize("kind", group_kinds(3))
def test_sum_of_the_library_differs_with_three_ranks_and_is_equal_on_all_of_them(kind: GroupKind) -> None:
    gradients = drawn(3, 1000, torch.float32, seed=1)

    def run(rank: int, group: RankGroup) -> Tensor:
        total = gradients[rank].to(kind.place(rank), copy=True)
        group.allreduce([total]).wait()
        group.settle()
        return total.cpu()

    first, *others = on_ranks(3, run, kind=kind)
    assert not torch.equal(first, of_one_device(gradients))
    torch.testing.assert_close(first, gradients.double().sum(0).float(), rtol=1e-2, atol=1.0)
    assert all(torch.equal(first, other) for other in others)


@given(parts=st.integers(1, 50), ranks=st.integers(1, 50))
def test_parts_are_divided_in_order_and_nearly_equally(parts: int, ranks: int) -> None:
    if ranks > parts:
        with pytest.raises(RequestError, match=f"{parts} parts of a batch cannot be divided among {ranks} devices"):
            divide_parts(parts, ranks)
        return
    divided = divide_parts(parts, ranks)
    assert [part for rank in divided for part in rank] == list(range(parts))
    assert max(map(len, divided)) - min(map(len, divided)) <= 1


def test_parts_of_another_number_of_ranks_are_refused() -> None:
    def run(_: int, group: RankGroup) -> Tensor:
        with pytest.raises(RequestError, match="the parts of 2 ranks, in a group of 1"):
            PartExchange(group=group, parts=divide_parts(2, 2))
        return torch.empty(0)

    on_ranks(1, run)
