"""A second thread gathers the next batch while the present batch is used."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.learning.batch_prefetch import ALIGNMENT_BYTES, BatchPrefetcher
from indb_tensile.learning.hyperparams import TrainingSettings
from indb_tensile.learning.preparation import Part, batches


def part(rows: int, *shape: int) -> Part:
    generator = torch.Generator().manual_seed(rows)
    return Part(x=torch.randn(rows, *shape, generator=generator), y=torch.arange(rows))


@given(
    rows=st.integers(1, 70),
    size=st.integers(1, 20),
    shape=st.sampled_from([(1,), (3,), (2, 3, 5)]),
    epochs=st.integers(1, 3),
)
def test_prefetched_batches_have_the_order_and_the_bits_of_batches_gathered_by_one_thread(
    rows: int, size: int, shape: tuple[int, ...], epochs: int
) -> None:
    whole, settings = part(rows, *shape), TrainingSettings.parse({"batch_size": size}, rows)
    with BatchPrefetcher() as feed:
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
    with BatchPrefetcher() as feed, closing(feed.batches((whole.x,), recorded_orders(taken, 10))) as fed:
        for number, _ in enumerate(fed):
            assert taken == list(range(min(number + 2, 10)))


def test_a_batch_is_unchanged_while_the_next_one_is_gathered() -> None:
    whole = part(10, 4)
    with BatchPrefetcher() as feed, closing(feed.batches((whole.x,), recorded_orders([], 10))) as fed:
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


def test_an_error_in_the_thread_is_raised_to_the_consumer_of_its_batch() -> None:
    whole = part(10, 4)
    with (
        BatchPrefetcher() as feed,
        closing(feed.batches((whole.x,), iter([torch.tensor([1]), torch.zeros(2, 2)]))) as fed,
    ):
        next(fed)
        with pytest.raises((TypeError, ValueError)):
            next(fed)
