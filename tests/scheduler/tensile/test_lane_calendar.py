"""The calendar of lane time, by hand: ten operators of 10 ns, one copy of 10 ns on the lane."""

import numpy as np

from indb_tensile.scheduler.tensile.lane_calendar import Axis, Entries, Place, Queue

TIES = 4


def test_a_copy_goes_to_the_latest_boundary_from_which_it_is_in_time() -> None:
    assert _queue(due_ns=100).latest(1, 10, 2, 9, 90) == Place(8, 0)
    assert _queue(due_ns=100).latest(1, 10, 2, 5, 90) == Place(5, 0), "behind the copy asked for at 50"
    assert _queue(due_ns=100).latest(1, 10, 2, 5, 65) == Place(4, 0), "before it, which it may delay"


def test_a_copy_does_not_make_those_behind_it_late() -> None:
    assert _queue(due_ns=60).latest(1, 15, 2, 5, 70) == Place(3, 0)


def test_where_nothing_is_in_time_the_least_late_place_is_named() -> None:
    assert _queue(due_ns=60).latest(1, 15, 5, 5, 70) == Place(5, 5)
    assert _queue(due_ns=60).latest(1, 15, 4, 4, 70) == Place(4, 5)


def test_a_copy_out_waits_behind_the_backlog() -> None:
    keys = np.array([5 * TIES + 1, 4 * TIES, 15 * TIES + 1], dtype=np.int64)
    ready, duration = np.array([50, 45, 150], dtype=np.int64), np.array([10, 10, 10], dtype=np.int64)
    done, behind = _queue(due_ns=62).append(keys, ready, duration)
    assert done.tolist() == [70, 55, 170], "the queue repeats in the next iteration"
    assert behind.tolist() == [0, 3, 0]


def test_an_empty_lane_has_room_anywhere() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    empty = Entries(owner=nothing, key=nothing, ready_ns=nothing, duration_ns=nothing, due_ns=nothing)
    queue = Queue(_axis(), empty, TIES)
    assert queue.latest(0, 25, 3, 19, 190) == Place(16, 0)
    assert queue.late_ns.tolist() == []


def test_an_accepted_stall_moves_what_follows_and_lengthens_the_iteration() -> None:
    axis = _axis()
    axis.stall(3, out_ns=5)
    axis.stall(14, in_ns=2)
    assert axis.period_ns == 107
    assert axis.boundary(np.arange(2, 6)).tolist() == [20, 35, 45, 57]
    assert axis.begin(np.arange(2, 6)).tolist() == [20, 35, 47, 57]
    assert axis.end(np.array([2, 12])).tolist() == [30, 137]
    assert [axis.first_boundary_from(t) for t in (20, 21, 35, 100, 107)] == [2, 3, 3, 10, 10]
    assert axis.last_boundary_by(np.array([34, 35, 106, 107, -1])).tolist() == [2, 3, 9, 10, -1]


def _axis() -> Axis:
    return Axis(np.full(10, 10, dtype=np.int64))


def _queue(*, due_ns: int) -> Queue:
    """One copy, asked for at boundary 5."""
    values = (0, 5 * TIES, 50, 10, due_ns)
    owner, key, ready, duration, due = (np.array([v], dtype=np.int64) for v in values)
    entries = Entries(owner=owner, key=key, ready_ns=ready, duration_ns=duration, due_ns=due)
    return Queue(_axis(), entries, TIES)
