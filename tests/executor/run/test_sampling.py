"""A runner measures its operators in sampled iterations, which change no bit."""

from collections.abc import Sequence
from itertools import accumulate, chain, repeat

import pytest
import torch

from indb_tensile.executor.latency.gpu_clock import EventClock
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA, peak
from tests.device.fake_device import FakeDevice
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.plans import random_plans


def test_sampled_iterations_give_a_latency_for_every_operator_and_the_latencies_add_up() -> None:
    job, steps = prepared("cnn")
    device, state = MemoryDevice(), job.state()
    runner = Runner(device, state, steps, sample_every=2)
    runner.adopt(random_plans(steps, 3), 1)
    assert runner.measured() is None
    for _ in range(2):
        runner.train(*job.batches[0], 0.01)
    measured = runner.measured()
    assert measured is not None
    assert len(measured.latency_ns) == len(steps[0].graph.operators)
    assert measured.samples == 1
    # The memory device reports a wait of one nanosecond per byte, which counts as stall, not as operator time.
    assert measured.stall_ns > 0
    assert sum(measured.latency_ns) == measured.iteration_ns - measured.stall_ns
    assert measured.peak_bytes == peak(steps[0].graph, random_plans(steps, 3)[0])
    assert runner.measured() is None
    assert device.high_water_bytes == device.used_bytes


@pytest.mark.parametrize(("after_ns", "samples"), [(0, 2), (1 << 62, 0), (None, 0)])
def test_long_iterations_are_all_sampled_except_the_first_under_new_plans(after_ns: int | None, samples: int) -> None:
    job, steps = prepared("mlp")
    runner = Runner(MemoryDevice(), job.state(), steps, sample_every=1_000, sample_after_ns=after_ns)
    runner.adopt((LIVENESS,) * 3, 1)
    for _ in range(3):
        runner.train(*job.batches[0], 0.01)
    measured = runner.measured()
    assert (0 if measured is None else measured.samples) == samples


def test_the_first_iteration_after_any_change_of_plans_is_not_timed() -> None:
    job, steps = prepared("mlp")
    runner = Runner(MemoryDevice(), job.state(), steps, sample_every=2, sample_after_ns=0)
    for generation in (1, 2):
        runner.adopt((LIVENESS,) * 3, generation)
        runner.train(*job.batches[0], 0.01)
        assert runner.measured() is None
    runner.train(*job.batches[0], 0.01)
    measured = runner.measured()
    assert measured is not None
    assert measured.samples == 1


class SlicedClock(EventClock):
    """Every operator takes 1 us, and once the first one is interrupted by another process for 2 ms."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._moments = self._readings = 0

    def __call__(self) -> int:
        self._moments += 1
        return self._moments - 1

    def read(self, moments: Sequence[int]) -> list[int]:
        self._moments, self._readings = 0, self._readings + 1
        return [1_000 * number + 2_000_000 * (number > 0 and self._readings == 2) for number in moments]


def test_operators_of_a_gpu_are_timed_by_its_clock_and_without_time_slices_of_other_processes() -> None:
    job, steps = prepared("mlp")
    count = len(steps[0].graph.operators)
    runner = Runner(FakeDevice(1 << 24, 1 << 24), job.state(), steps, sample_every=1, operator_clock=SlicedClock())
    runner.adopt((LIVENESS,) * 3, 1)
    for _ in range(4):
        runner.train(*job.batches[0], 0.01)
    measured = runner.measured()
    assert measured is not None
    assert (measured.latency_ns, measured.iteration_ns) == ((1_000,) * count, 1_000 * count + 500_000)


def test_one_slow_sample_among_many_is_not_hidden() -> None:
    """The clock advances by 1 ns at each reading, but by 301 ns at the last reading of the second iteration."""
    job, steps = prepared("mlp")
    count = len(steps[0].graph.operators)
    clock = accumulate(chain(repeat(1, 2 * count + 2), (301,), repeat(1)))
    device = FakeDevice(1 << 24, 1 << 24)  # copies take no time
    runner = Runner(device, job.state(), steps, sample_every=1, clock=lambda: next(clock))
    runner.adopt((LIVENESS,) * 3, 1)
    for _ in range(3):
        runner.train(*job.batches[0], 0.01)
    measured = runner.measured()
    assert measured is not None
    assert measured.latency_ns == (*repeat(1, count - 1), 101)


def test_time_from_the_last_operator_of_an_iteration_to_the_first_of_the_next_is_measured() -> None:
    """The clock advances by 1 ns at each reading, but by 40 before the first operator and by 2 after the last."""
    job, steps = prepared("mlp")
    marks = len(steps[0].graph.operators) + 1
    clock = accumulate(chain.from_iterable(repeat((40, *repeat(1, marks - 1), 2))))
    device = FakeDevice(1 << 24, 1 << 24)  # copies take no time
    runner = Runner(device, job.state(), steps, sample_every=1, clock=lambda: next(clock))
    runner.adopt((LIVENESS,) * 3, 1)
    runner.train(*job.batches[0], 0.01)
    first = runner.measured()
    assert first is not None
    assert first.between_ns == 0  # nothing was before it
    for _ in range(3):
        runner.train(*job.batches[0], 0.01)
    measured = runner.measured()
    assert measured is not None
    assert (measured.between_ns, measured.iteration_ns) == (42, marks - 1)


def test_only_full_batches_are_sampled() -> None:
    job, steps = prepared("mlp")
    runner = Runner(MemoryDevice(), job.state(), steps, sample_every=2)
    runner.adopt((LIVENESS,) * 3, 1)
    for batch in (job.batches[0], job.batches[-1]) * 2:  # full, tail, full, tail: every second batch is a tail
        runner.train(*batch, 0.01)
    measured = runner.measured()
    assert measured is not None
    assert measured.samples == 1


def test_timed_iterations_give_the_same_bits() -> None:
    job, steps = prepared("cnn")
    eager, state = Eager(job), job.state()
    runner = Runner(MemoryDevice(), state, steps, sample_every=1)
    runner.adopt(random_plans(steps, 4), 1)
    assert bits(drive(runner, job)) == bits(drive(eager, job))
    assert state_bits(state.export()) == state_bits(eager.export())


def test_the_high_water_mark_of_a_plan_excludes_earlier_plans() -> None:
    job, steps = prepared("mlp")
    device = MemoryDevice()
    runner = Runner(device, job.state(), steps, sample_every=1)
    runner.adopt((VANILLA,) * 3, 1)
    runner.train(*job.batches[0], 0.01)
    runner.adopt((LIVENESS,) * 3, 2)
    runner.train(*job.batches[0], 0.01)
    measured = runner.measured()
    assert measured is not None
    assert measured.peak_bytes == peak(steps[0].graph, LIVENESS) < peak(steps[0].graph, VANILLA)
