"""Check that exchanges run beside the step that starts them, in order, and end with it."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from time import perf_counter_ns
from typing import Any, cast

import pytest
import torch

from indb_tensile.errors import InvariantError, RankLostError
from indb_tensile.executor.capture.exchange_operator import start_sum_parts_
from indb_tensile.executor.ranks.exchange_lane import ExchangeLane
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging
from tests.executor.ranks.rank_steps import sum_parts
from tests.executor.ranks.rank_threads import on_ranks

HOST = torch.device("cpu")
LIMIT_S = 60.0


def never() -> None:
    raise AssertionError("nothing is under way")


def fail_after(run: Callable[[], None]) -> None:
    run()
    raise ZeroDivisionError


def start_only(value: torch.Tensor) -> None:
    """Start an exchange of two ranks with one part each, and do not wait for it."""
    start_sum_parts_([value], [], torch.empty(1 << 10, dtype=torch.uint8), counts=[1, 1], own=1)


def test_exchanges_run_beside_the_thread_that_starts_them_one_after_another() -> None:
    seen: list[str] = []
    first_may_end = threading.Event()

    def first() -> None:
        assert first_may_end.wait(LIMIT_S)
        seen.append("first")

    lane = ExchangeLane(nullcontext)
    lane.start(first, HOST)
    lane.start(lambda: seen.append("second"), HOST)
    seen.append("computed")
    first_may_end.set()
    lane.finish()
    lane.finish()
    lane.run(lambda: seen.append("third"), HOST)
    (first_begin, first_end), (second_begin, second_end) = lane.take_spans()
    assert first_begin <= first_end <= second_begin <= second_end
    assert lane.take_spans() == ()
    lane.close(never)
    assert seen == ["computed", "first", "second", "third"]


@pytest.fixture
def unbroken() -> Iterator[None]:
    """Let a thread of Python run until it waits."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(LIMIT_S)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("unbroken")
@pytest.mark.parametrize("queued", [1, 2, 3])
def test_step_that_only_waits_makes_the_last_exchange_itself_and_leaves_several_to_the_lane(queued: int) -> None:
    made: list[tuple[int, str, bool]] = []

    def make(number: int) -> None:
        made.append((number, threading.current_thread().name, torch.is_grad_enabled()))

    lane = ExchangeLane(nullcontext)
    for number in range(queued):
        lane.start(partial(make, number), HOST)
    for _ in range(queued):
        lane.finish()
    assert torch.is_grad_enabled()
    assert [number for number, _, _ in made] == [*range(queued)]
    assert not any(with_gradients for _, _, with_gradients in made)
    assert made[0][1] == (threading.current_thread().name if queued == 1 else "exchanges")
    lane.run(partial(make, queued), HOST)
    assert made[-1] == (queued, threading.current_thread().name, False)
    spans = [time for span in lane.take_spans() for time in span]
    assert spans == sorted(spans)
    assert len(spans) == 2 * queued
    lane.close(never)


def test_time_of_an_exchange_has_what_threads_take_to_wake_up_and_no_time_of_another_one() -> None:
    lane = ExchangeLane(nullcontext)
    ended = [threading.Event() for _ in range(2)]
    before_ns = perf_counter_ns()
    for event in ended:
        lane.start(event.set, HOST)
    started_ns = perf_counter_ns()
    assert all(event.wait(LIMIT_S) for event in ended)
    computed_ns = perf_counter_ns()
    lane.start(lambda: None, HOST)
    for _ in range(3):
        lane.finish()
    first, second, third = lane.take_spans()
    assert before_ns <= first[0] <= started_ns
    assert second[0] == max(first[1], second[0])
    assert second[0] <= second[1]
    assert computed_ns <= third[0] <= third[1]
    assert third[1] <= perf_counter_ns()
    lane.close(never)


def test_error_of_an_exchange_is_raised_where_the_step_waits_for_it_and_no_later_one_is_made() -> None:
    made: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError

    lane = ExchangeLane(nullcontext)
    lane.start(fail, HOST)
    lane.start(lambda: made.append(2), HOST)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            lane.finish()
    with pytest.raises(ZeroDivisionError):
        lane.run(lambda: made.append(3), HOST)
    lane.close(never)
    assert made == []


def test_exchange_that_was_not_started_cannot_be_waited_for() -> None:
    lane = ExchangeLane(nullcontext)
    with pytest.raises(InvariantError, match="a step waits for an exchange that it has not started"):
        lane.finish()
    lane.close(never)


def test_waits_alone_are_in_the_context_of_waiting() -> None:
    entered: list[bool] = []

    class Waiting:
        def __enter__(self) -> None:
            entered.append(True)
            may_end.set()

        def __exit__(self, *_: object) -> None:
            entered.append(False)

    may_end = threading.Event()
    lane = ExchangeLane(Waiting)
    lane.start(lambda: None if may_end.wait(LIMIT_S) else never(), HOST)
    assert entered == []
    lane.finish()
    lane.close(never)
    assert entered == [True, False] * 2, "closing waits, too"


def test_rank_that_goes_while_an_exchange_is_under_way_is_noticed() -> None:
    started = threading.Event()

    def run(rank: int, group: RankGroup) -> str:
        with exchanging(group):
            if rank == 1:
                assert started.wait(LIMIT_S)
                return "left"
            start_only(torch.ones(3))
            started.set()
            with pytest.raises(RankLostError) as caught:
                sum_parts(torch.ones(3), [1, 1])
        return caught.value.message

    assert on_ranks(2, run) == ["rank 0 of 2 has lost another rank", "left"]


class Starting:
    """A group of ranks that tells when an exchange of one rank is under way."""

    def __init__(self, group: RankGroup, under_way: threading.Event) -> None:
        self._group = group
        self._under_way = under_way

    def alltoall_base(self, *arguments: Any) -> Any:
        work = self._group.alltoall_base(*arguments)
        self._under_way.set()
        return work

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


@pytest.mark.parametrize("begun", [True, False], ids=["under way", "at any moment"])
def test_step_that_fails_leaves_no_exchange_under_way(begun: bool) -> None:
    left, under_way = threading.Event(), threading.Event()

    def start(value: torch.Tensor) -> None:
        start_only(value)
        if begun:
            assert under_way.wait(LIMIT_S)

    def run(rank: int, group: RankGroup) -> str:
        if rank == 0:
            value = torch.ones(3)
            with pytest.raises(ZeroDivisionError), exchanging(cast(RankGroup, Starting(group, under_way))):
                fail_after(lambda: start(value))
            alive = [thread.name for thread in threading.enumerate() if thread.name == "exchanges"]
            left.set()
            return f"{value.tolist()} {len(alive)}"
        assert left.wait(LIMIT_S), "the other rank waits for this one"
        return "waited"

    assert on_ranks(2, run, timeout_s=2 * LIMIT_S) == ["[1.0, 1.0, 1.0] 0", "waited"]
