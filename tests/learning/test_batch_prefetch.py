"""A second thread gathers the next batch while the present batch is used."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.learning.batches.batch_order import batches
from indb_tensile.learning.batches.batch_prefetch import ALIGNMENT_BYTES, FEW_BYTES, BatchPrefetcher
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.networks.hyperparams import TrainingSettings

FEW = st.sampled_from([0, 100, FEW_BYTES])  # so that batches are gathered by the second thread, by both, by the first


def part(rows: int, *shape: int) -> Part:
    generator = torch.Generator().manual_seed(rows)
    return Part(x=torch.randn(rows, *shape, generator=generator), y=torch.arange(rows), targets=torch.arange(rows))


@given(
    rows=st.integers(1, 70),
    size=st.integers(1, 20),
    shape=st.sampled_from([(1,), (3,), (2, 3, 5)]),
    epochs=st.integers(1, 3),
    few_bytes=FEW,
)
def test_prefetched_batches_have_the_order_and_the_bits_of_batches_gathered_by_one_thread(
    rows: int, size: int, shape: tuple[int, ...], epochs: int, few_bytes: int
) -> None:
    whole, settings = part(rows, *shape), TrainingSettings.parse({"batch_size": size}, rows)
    with BatchPrefetcher(few_bytes=few_bytes) as feed:
        for epoch in range(epochs):
            expected = list(batches(whole, epoch, settings))
            with closing(feed.batches((whole.x, whole.y), batches(whole, epoch, settings))) as fed:
                for order, (numbers, (x, y)) in zip(expected, fed, strict=True):
                    assert torch.equal(numbers, order)
                    assert x.dtype is torch.float32
                    assert y.dtype is torch.int64
                    assert torch.equal(x.view(torch.int32), whole.x[order].view(torch.int32))
                    assert torch.equal(y, whole.y[order])
                    assert x.data_ptr() % ALIGNMENT_BYTES == 0
        assert feed.waiting.batches == epochs * len(expected)


def test_rows_of_one_number_may_have_any_stride() -> None:
    x = torch.arange(5.0).as_strided((5, 1), (1, 0))
    y = torch.arange(10.0)[::2]
    with BatchPrefetcher() as feed, closing(feed.batches((x, y), recorded_orders([], 5))) as fed:
        assert [(a.tolist(), b.tolist()) for _, (a, b) in fed] == [([[float(n)]], [2.0 * n]) for n in range(5)]


def recorded_orders(taken: list[int], count: int) -> Iterator[torch.Tensor]:
    for number in range(count):
        taken.append(number)
        yield torch.tensor([number])


def test_exactly_one_batch_is_gathered_ahead() -> None:
    whole, taken = part(10, 4), list[int]()
    with BatchPrefetcher(few_bytes=0) as feed, closing(feed.batches((whole.x,), recorded_orders(taken, 10))) as fed:
        for number, _ in enumerate(fed):
            assert taken == list(range(min(number + 2, 10)))


def test_a_batch_is_unchanged_while_the_next_one_is_gathered() -> None:
    whole = part(10, 4)
    with BatchPrefetcher(few_bytes=0) as feed, closing(feed.batches((whole.x,), recorded_orders([], 10))) as fed:
        _, (first,) = next(fed)
        feed._thread.submit(int).result()  # returns after the work queued before it: the second batch
        assert torch.equal(first, whole.x[:1])
        _, (second,) = next(fed)
        assert torch.equal(second, whole.x[1:2])
        assert second.data_ptr() != first.data_ptr()


def test_an_interrupted_pass_leaves_no_thread_and_the_next_pass_starts_from_the_beginning() -> None:
    whole = part(10, 4)
    with BatchPrefetcher() as feed:
        with pytest.raises(RuntimeError, match="the step"):
            interrupt_pass(feed, whole)
        assert [int(order) for order, _ in feed.batches((whole.x,), recorded_orders([], 3))] == [0, 1, 2]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def interrupt_pass(feed: BatchPrefetcher, whole: Part) -> None:
    with closing(feed.batches((whole.x,), recorded_orders([], 10))) as fed:
        for _ in fed:
            raise RuntimeError("the step fails")


@pytest.mark.parametrize("few_bytes", [0, 1000])
def test_an_error_in_the_thread_is_raised_to_the_consumer_of_its_batch(few_bytes: int) -> None:
    whole = part(10, 4)
    with (
        BatchPrefetcher(few_bytes=few_bytes) as feed,
        closing(feed.batches((whole.x,), iter([torch.tensor([1]), torch.zeros(2, 2)]))) as fed,
    ):
        next(fed)
        with pytest.raises((TypeError, ValueError)):
            next(fed)


class FakeUploads:
    """Memory from which batches are uploaded: two sets, with no place for some of the parts."""

    def __init__(self, without: frozenset[int] = frozenset()) -> None:
        self.without = without
        self.sets: list[list[torch.Tensor | None]] = []
        self.waited: list[tuple[int, str]] = []  # the set, and the thread that waited

    def rooms(self, parts: tuple[torch.Tensor, ...], rows: int) -> Sequence[Sequence[torch.Tensor | None]]:
        self.sets = [
            [
                None if n in self.without else torch.empty(rows, *part.shape[1:], dtype=part.dtype)
                for n, part in enumerate(parts)
            ]
            for _ in range(2)
        ]
        return self.sets

    def wait_until_read(self, number: int) -> None:
        self.waited.append((number, threading.current_thread().name))


DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


@given(
    rows=st.integers(1, 40),
    size=st.integers(1, 15),
    parts=st.lists(
        st.tuples(st.sampled_from([(), (1,), (3,), (2, 3), (0,)]), st.sampled_from(DTYPES)), min_size=1, max_size=4
    ),
    without=st.frozensets(st.integers(0, 3)),
    seed=st.integers(0, 1000),
    few_bytes=FEW,
)
def test_batches_in_upload_memory_have_the_order_and_the_bits_of_batches_without_it(
    rows: int,
    size: int,
    parts: list[tuple[tuple[int, ...], torch.dtype]],
    without: frozenset[int],
    seed: int,
    few_bytes: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    whole = tuple(torch.randint(0, 100, (rows, *shape), generator=generator).to(dtype) for shape, dtype in parts)
    chosen = torch.randperm(rows, generator=generator)
    orders = [chosen[first : first + size] for first in range(0, rows, size)]  # the last batch may be smaller
    uploads = FakeUploads(without)
    with BatchPrefetcher(uploads, few_bytes=few_bytes) as feed, closing(feed.batches(whole, iter(orders))) as fed:
        for number, (order, (given_order, batch)) in enumerate(zip(orders, fed, strict=True)):
            assert torch.equal(order, given_order)
            for place, part, gathered in zip(uploads.sets[number % 2], whole, batch, strict=True):
                assert (gathered.dtype, gathered.shape) == (part.dtype, part[order].shape)
                assert torch.equal(gathered, part[order])
                assert place is None or gathered.data_ptr() == place.data_ptr()
    assert [number for number, _ in uploads.waited] == [n % 2 for n in range(len(orders))]


def test_a_set_is_written_again_only_after_the_consumer_has_waited_for_the_upload_from_it() -> None:
    whole, uploads = part(10, 4), FakeUploads()
    with BatchPrefetcher(uploads) as feed, closing(feed.batches((whole.x,), recorded_orders([], 4))) as fed:
        next(fed)
        assert [number for number, _ in uploads.waited] == [0, 1]
        next(fed)
        assert [number for number, _ in uploads.waited] == [0, 1, 0]
    assert {thread for _, thread in uploads.waited} == {threading.current_thread().name}


def test_an_error_while_gathering_into_upload_memory_keeps_its_message() -> None:
    class Unreadable(FakeUploads):
        def rooms(self, parts: tuple[torch.Tensor, ...], rows: int) -> Sequence[Sequence[torch.Tensor | None]]:
            made = super().rooms(parts, rows)
            return [[torch.empty(rows, 9) for _ in tensors] for tensors in made]  # rows of another size

    whole = part(10, 4)
    with (
        BatchPrefetcher(Unreadable()) as feed,
        closing(feed.batches((whole.x,), recorded_orders([], 4))) as fed,
        pytest.raises(ValueError, match="output array does not match"),
    ):
        next(fed)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
