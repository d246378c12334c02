"""Check the free intervals of one channel: by hand, and against an array that marks every busy nanosecond."""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.tensile.channel import Channel


def test_swap_out_starts_in_the_first_free_interval_that_holds_it() -> None:
    channel = _channel_with((10, 20), (25, 40))
    assert channel.earliest(0, 100, 10) == 0
    assert channel.earliest(1, 100, 10) == 40, "the 5 ns between the two intervals are too short"
    assert channel.earliest(12, 100, 5) == 20
    assert channel.earliest(12, 45, 10) is None


def test_swap_in_starts_in_the_last_free_interval_that_holds_it() -> None:
    channel = _channel_with((10, 20), (25, 40))
    assert channel.latest(0, 100, 10) == 90
    assert channel.latest(0, 45, 10) == 0
    assert channel.latest(0, 45, 5) == 40
    assert channel.latest(0, 44, 5) == 20
    assert channel.latest(1, 45, 10) is None


def test_interval_across_the_end_of_the_iteration_is_busy_at_its_start() -> None:
    channel = _channel_with((90, 110))
    assert channel.busy() == ((0, 10), (90, 100))
    assert channel.earliest(0, 100, 20) == 10
    assert channel.earliest(85, 200, 20) == 110
    assert channel.latest(40, 105, 20) == 70
    assert channel.latest(140, 205, 20) == 170


def test_adjacent_intervals_merge_and_can_be_released_in_part() -> None:
    channel = _channel_with((10, 20), (30, 40), (20, 30))
    assert channel.busy() == ((10, 40),)
    channel.give_back(15, 10)
    assert channel.busy() == ((10, 15), (25, 40))


def _channel_with(*intervals: tuple[int, int]) -> Channel:
    channel = Channel(100)
    for first, last in intervals:
        channel.take(first, last - first)
    return channel


@given(st.integers(1, 24), st.data())
def test_search_for_free_intervals_agrees_with_marked_nanoseconds(period: int, data: st.DataObject) -> None:
    channel, busy = Channel(period), [False] * period
    taken: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        duration = data.draw(st.integers(1, period))
        ready = data.draw(st.integers(0, 2 * period))
        due = ready + data.draw(st.integers(0, period))
        free = [
            s for s in range(ready, due - duration + 1) if not any(busy[k % period] for k in range(s, s + duration))
        ]
        assert channel.earliest(ready, due, duration) == min(free, default=None)
        assert channel.latest(ready, due, duration) == max(free, default=None)
        if free:
            start = data.draw(st.sampled_from(free))
            channel.take(start, duration)
            taken.append((start, duration))
            _mark(busy, start, duration, True)
        elif taken:
            start, duration = taken.pop()
            channel.give_back(start, duration)
            _mark(busy, start, duration, False)
    assert [any(s <= k < e for s, e in channel.busy()) for k in range(period)] == busy


def _mark(busy: list[bool], start: int, duration: int, value: bool) -> None:
    for k in range(start, start + duration):
        busy[k % len(busy)] = value
