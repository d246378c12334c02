"""A split normalisation runs as a whole where nothing happens between its parts, and its second part runs again."""

import re

import pytest

from indb_tensile.executor.capture.normalise_again import normalise_again
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.joint_normalisations import shared_times
from indb_tensile.executor.run.program import Program, compile_program
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.graph import OpIndex
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.rewrite import captured_order, rewrite
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager


def _called(program: Program) -> list[int]:
    return [int(match[1]) for line in program.plain_lines if (match := re.search(r"\bf(\d+)\(", line))]


def _second(step: CapturedStep) -> int:
    (second,) = [k for k, run in enumerate(step.steps) if run.kernel.target is normalise_again]
    return second


def _recomputing(step: CapturedStep) -> Plan:
    """Return a plan that normalises again before the last operator that reads the values."""
    second = _second(step)
    (values,) = step.graph.operators[second].writes
    last = max(k for k, operator in enumerate(step.graph.operators) if values in operator.reads)
    order = [*captured_order(step.graph)]
    order.insert(last, Execution(operator=OpIndex(second)))
    return Plan(policy="test", executions=tuple(order))


def _apart(step: CapturedStep) -> Plan:
    """Return a plan that computes something else between the parts."""
    second = _second(step)
    order = [*captured_order(step.graph)]
    other = next(
        k
        for k in range(second + 1, len(order))
        if step.steps[k].kernel.target is step.steps[second + 1].kernel.target
    )
    order.insert(second, order.pop(other))
    rewrite(step.graph, order)
    return Plan(policy="test", executions=tuple(order))


def _swapping(step: CapturedStep) -> Plan:
    """Return a plan that moves a statistic to the host between the parts, until the backward pass needs it."""
    second = _second(step)
    statistic = step.graph.operators[second].reads[-1]
    needed = min(k for k, o in enumerate(step.graph.operators) if statistic in o.reads and k > second)
    swap = Swap(
        tensor=statistic,
        out_after=OpIndex(second),
        free_at=OpIndex(second + 1),
        in_at=OpIndex(needed - 1),
        needed_by=OpIndex(needed),
    )
    return Plan(policy="test", swaps=(swap,))


@pytest.mark.parametrize(
    ("make", "joint", "first_calls", "second_calls"),
    [
        (lambda _: LIVENESS, 1, 1, 0),
        (_recomputing, 1, 1, 1),
        (_apart, 0, 1, 1),
        (_swapping, 1, 1, 0),
    ],
    ids=["liveness", "recomputing", "apart", "swapping"],
)
def test_a_whole_normalisation_runs_in_place_of_its_second_part(
    make: object, joint: int, first_calls: int, second_calls: int
) -> None:
    job, steps = prepared("cnn")
    assert callable(make)
    plans = (*map(make, steps[:2]), LIVENESS)
    program = compile_program(steps[0], plans[0])
    second = _second(steps[0])
    assert len(program.joint) == joint
    assert _called(program).count(second - 1) == first_calls
    assert _called(program).count(second) == second_calls
    device, state = MemoryDevice(), job.state()
    runner = Runner(device, state, steps)
    runner.adopt(plans, 1)
    eager = Eager(job)
    assert bits(drive(runner, job)) == bits(drive(eager, job))
    assert state_bits(state.export()) == state_bits(eager.export())
    assert device.high_water_bytes == max(peak(s.graph, p) for s, p in zip(steps, plans, strict=True))
    runner.close()


def test_the_time_of_a_whole_is_divided_between_its_parts() -> None:
    assert shared_times([10, 4, 96, 7], {1}) == [10, 85, 15, 7]
    assert shared_times([10, 4, 96, 7], ()) == [10, 4, 96, 7]
