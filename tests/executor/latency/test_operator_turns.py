"""Operators are timed in turns, within the grant, and leave no memory behind."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from indb_tensile.executor.latency.calibrate import kernels
from indb_tensile.executor.latency.operator_turns import TimedCall, accessed_bytes, alternate, groups, time_in_turns
from indb_tensile.scheduler.memory.peak import liveness_peak
from tests.executor.conftest import GRANT_BYTES, captured


class _Steps:
    """Calls that take time of a clock of their own, and what ran in which order."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.ran: list[str] = []

    def clock(self) -> int:
        return self.now_ns

    def call(self, name: str, *taken_ns: int) -> TimedCall:
        left = list(taken_ns)

        @contextmanager
        def context() -> Iterator[None]:
            self.now_ns += 1000  # entering a context is no part of the call
            yield

        def run() -> None:
            self.ran.append(name)
            self.now_ns += left.pop(0)

        return context, run


def test_calls_take_turns_and_the_median_of_each_counts() -> None:
    steps = _Steps()
    calls = [steps.call("a", 90, 2, 3), steps.call("b", 5, 50, 4)]
    assert alternate(calls, 3, steps.clock) == [3, 5]
    assert steps.ran == ["a", "b", "a", "b", "a", "b"]


@pytest.mark.parametrize("share", [1.0, 0.3, 0.0])
def test_groups_have_every_call_once_in_order_and_at_most_the_grant_or_the_peak_of_their_step(share: float) -> None:
    steps = captured("transformer")
    work = list(kernels(steps).values())
    peak_bytes = max(liveness_peak(step.graph) for step in steps)
    grant_bytes = round(share * peak_bytes)
    divided = [list(group) for group in groups(work, {call.signature: 8 for _, call in work}, grant_bytes)]
    assert [item for group in divided for item in group] == work
    for group in divided:
        total_bytes = sum(accessed_bytes(step, call) for step, call in group) + 8
        assert total_bytes <= min(grant_bytes, peak_bytes) or len(group) == 1
    assert len(divided) < len(work) or share == 0.0


def test_calls_that_take_turns_all_have_a_time() -> None:
    steps = captured("lstm")
    work = list(kernels(steps).values())
    times_ns = time_in_turns(work, dict.fromkeys(kernels(steps), 0), GRANT_BYTES)
    assert times_ns.keys() == kernels(steps).keys()
    assert min(times_ns.values()) > 0
