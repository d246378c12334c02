"""Calls are timed as a device runs them back to back. A double of the device's queue has a clock for each side."""

import pytest

from indb_tensile.executor.latency.gpu_clock import QueueTimer

LAUNCH_NS = 15_000  # a slow host
CYCLES_PER_NS = 2


class FakeQueue:
    """A device that does queued work in order, and a host that takes `LAUNCH_NS` to queue one call.

    The work numbered in `interrupted` is interrupted by another process for two milliseconds.
    """

    def __init__(self, kernel_ns: int, *interrupted: int) -> None:
        self.calls = 0
        self._kernel_ns = kernel_ns
        self._interrupted = interrupted
        self._host_ns = self._device_ns = 0

    def launch(self) -> None:
        self._host_ns += LAUNCH_NS
        self._work(self._kernel_ns + 2_000_000 * (self.calls in self._interrupted))
        self.calls += 1

    def stall(self, cycles: int) -> None:
        self._work(cycles // CYCLES_PER_NS)

    def mark(self) -> int:
        self._work(0)
        return self._device_ns

    def passed_ns(self, start: int, end: int) -> float:
        self._host_ns = max(self._host_ns, end)
        return end - start

    def _work(self, taken_ns: int) -> None:
        self._device_ns = max(self._device_ns, self._host_ns) + taken_ns


@pytest.mark.parametrize("kernel_ns", [800, 15_000, 3_000_000])
def test_time_of_a_call_is_the_kernels_own_whatever_its_launch_takes(kernel_ns: int) -> None:
    queue = FakeQueue(kernel_ns)
    assert QueueTimer(queue).time_ns(queue.launch) == kernel_ns
    assert queue.calls == 80


def test_time_slices_of_other_processes_do_not_count_as_long_as_some_calls_have_none() -> None:
    queue = FakeQueue(5_000, 0, 17, 40, 79)  # the set-up of the first call takes longer, too
    assert QueueTimer(queue).time_ns(queue.launch) == 5_000
