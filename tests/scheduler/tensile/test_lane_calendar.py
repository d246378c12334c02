"""Check the calendar of lane time on an example computed by hand: ten operators of 10 ns, and one copy of 10 ns on
the lane.
"""

import numpy as np

from indb_tensile.scheduler.tensile.lane_calendar import Axis, Entries, Place, Queue

TIES = 4


def test_copy_is_placed_at_the_latest_boundary_from_which_it_is_in_time() -> None:
    assert _queue(due_ns=100).latest(1, 10, 2, 9, 90) == Place(8, 0)
    assert _queue(due_ns=100).latest(1, 10, 2, 5, 90) == Place(5, 0), "behind the copy that is queued at 50"
    assert _queue(due_ns=100).latest(1, 10, 2, 5, 65) == Place(4, 0), "before that copy, which may be delayed"


def test_copy_does_not_make_later_copies_late() -> None:
    assert _queue(due_ns=60).latest(1, 15, 2, 5, 70) == Place(3, 0)


def test_least_late_place_is_returned_if_no_place_is_in_time() -> None:
    assert _queue(due_ns=60).latest(1, 15, 5, 5, 70) == Place(5, 5)
    assert _queue(due_ns=60).latest(1, 15, 4, 4, 70) == Place(4, 5)


def test_copy_out_waits_behind_the_backlog() -> None:
    keys = np.array([5 * TIES + 1, 4 * TIES, 15 * TIES + 1], dtype=np.int64)
    ready, duration = np.array([50, 45, 150], dtype=np.int64), np.array([10, 10, 10], dtype=np.int64)
    done_ns, delay_ns = _queue(due_ns=62).append(keys, ready, duration)
    assert done_ns.tolist() == [70, 55, 170], "the queue repeats in the next iteration"
    assert delay_ns.tolist() == [0, 3, 0]


def test_empty_lane_accepts_a_copy_anywhere() -> None:
    no_entries = np.zeros(0, dtype=np.int64)
    empty = Entries(owner=no_entries, key=no_entries, ready_ns=no_entries, duration_ns=no_entries, due_ns=no_entries)
    queue = Queue(_axis(), empty, TIES)
    assert queue.latest(0, 25, 3, 19, 190) == Place(16, 0)
    assert queue.late_ns.tolist() == []


def test_accepted_stall_delays_later_operators_and_lengthens_the_iteration() -> None:
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
    """Return a queue of one copy, queued at boundary 5."""
    values = (0, 5 * TIES, 50, 10, due_ns)
    owner, key, ready, duration, due = (np.array([v], dtype=np.int64) for v in values)
    entries = Entries(owner=owner, key=key, ready_ns=ready, duration_ns=duration, due_ns=due)
    return Queue(_axis(), entries, TIES)
