"""Check how a job under its plan becomes its load over time."""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.phases.load_cycle import Cycle, curve, cycle, merge_segments
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.timing.job_runs import JobRun
from tests.scheduler.phases.cycle_strategies import cycles

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte


def test_cycle_has_load_and_time_by_operator() -> None:
    """A parameter of 5 bytes is always held. The link copies the batch of 20 bytes in 20 us, not in the captured 1
    ns.
    """
    run = JobRun(graph=_graph(), plan=LIVENESS, latency_ns=(1, 10_000, 10_000, 10_000))
    assert cycle(run, SLOW) == Cycle(
        load_bytes=(25, 35, 15, 5), duration_ns=(20_000, 10_000, 10_000, 10_000), idle_bytes=5
    )


def test_stall_is_part_of_the_operator_that_waits() -> None:
    """Operators 1 and 3 read the parameter, which is away in between. The copies take 5 us out and 5 us back;
    operator 3 waits for the copy back.
    """
    swap = Swap(tensor=TensorId(0), out_after=OpIndex(1), free_at=OpIndex(2), in_at=OpIndex(3), needed_by=OpIndex(3))
    run = JobRun(graph=_graph(), plan=Plan(policy="any", swaps=(swap,)), latency_ns=(1, 10_000, 10_000, 10_000))
    assert cycle(run, SLOW) == Cycle(
        load_bytes=(25, 35, 10, 5), duration_ns=(20_000, 10_000, 15_000, 15_000), idle_bytes=5
    )


def test_idle_bytes_are_the_least_load_of_the_iteration() -> None:
    """The parameter is away from operator 3 to operator 1 of the next iteration, so the job holds nothing in
    between.
    """
    swap = Swap(tensor=TensorId(0), out_after=OpIndex(1), free_at=OpIndex(3), in_at=OpIndex(1), needed_by=OpIndex(1))
    tensors = _graph().tensors
    operators = tuple(
        _operator(k, *uses) for k, uses in enumerate((((), (1,)), ((0, 1), (2,)), ((2,), ()), ((), ())))
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    run = JobRun(graph=graph, plan=Plan(policy="any", swaps=(swap,)), latency_ns=(1, 10_000, 10_000, 10_000))
    assert cycle(run, SLOW) == Cycle(
        load_bytes=(20, 35, 15, 0), duration_ns=(20_000, 15_000, 10_000, 10_000), idle_bytes=0
    )


def test_loads_of_jobs_add_up_and_idle_jobs_count_with_their_idle_bytes() -> None:
    first = Cycle(load_bytes=(3, 9, 4), duration_ns=(10, 10, 10), idle_bytes=2)
    second = Cycle(load_bytes=(7, 5), duration_ns=(5, 10), idle_bytes=1)
    together = curve((first, second), ((0, 0), (20, 1), (30, 0)))
    assert together.times_ns.tolist()[1:] == [0, 10, 20, 25, 30, 35, 40, 50, 60]
    assert together.bytes.tolist() == [3, 4, 10, 11, 9, 8, 4, 10, 5, 3]


def test_neighbours_are_merged_where_that_adds_the_fewest_byte_nanoseconds() -> None:
    """3 bytes more for 10 ns cost less than 1 byte more for 50 ns."""
    load_cycle = Cycle(load_bytes=(10, 13, 20, 19), duration_ns=(10, 10, 10, 50), idle_bytes=4)
    assert merge_segments(load_cycle, 3) == Cycle(
        load_bytes=(13, 20, 19), duration_ns=(20, 10, 50), idle_bytes=4, stops=(2, 3, 4)
    )
    assert merge_segments(load_cycle, 2) == Cycle(
        load_bytes=(13, 20), duration_ns=(20, 60), idle_bytes=4, stops=(2, 4)
    )


@given(cycles(), st.integers(1, 7), st.integers(1, 7))
def test_stretches_hold_at_least_the_load_and_at_most_the_peak(
    load_cycle: Cycle, stretches: int, more_stretches: int
) -> None:
    merged = merge_segments(load_cycle, stretches)
    merged_load = _by_operator(merged)
    assert len(merged.load_bytes) <= stretches
    assert all(a >= b for a, b in zip(merged_load, load_cycle.load_bytes, strict=True))
    assert (merged.peak_bytes, merged.period_ns, merged.idle_bytes) == (
        load_cycle.peak_bytes,
        load_cycle.period_ns,
        load_cycle.idle_bytes,
    )
    assert merge_segments(merged, stretches) == merged
    if more_stretches >= len(load_cycle.load_bytes):
        assert _by_operator(merge_segments(load_cycle, more_stretches)) == load_cycle.load_bytes, (
            "nothing is merged if every operator may be a stretch"
        )


def _by_operator(load_cycle: Cycle) -> tuple[int, ...]:
    spans = zip(load_cycle.load_bytes, (0, *load_cycle.stops), load_cycle.stops, strict=False)
    return tuple(load_bytes for load_bytes, first, stop in spans for _ in range(first, stop))


def _graph() -> StepGraph:
    """Return a graph of a parameter, the batch, and an activation that operator 1 makes and operator 2 reads.
    Operator 3 reads the parameter.
    """
    tensors = tuple(
        Tensor(id=TensorId(i), name=role.value, size_bytes=size, role=role)
        for i, (role, size) in enumerate(((Role.PARAMETER, 5), (Role.INPUT, 20), (Role.ACTIVATION, 10)))
    )
    accessed = (((), (1,)), ((0, 1), (2,)), ((2,), ()), ((0,), ()))
    return StepGraph(tensors=tensors, operators=tuple(_operator(k, *uses) for k, uses in enumerate(accessed)))


def _operator(index: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> Operator:
    return Operator(
        name=f"op{index}",
        signature=f"op{index}",
        stage=Stage.FORWARD if index else Stage.UPLOAD,
        reads=tuple(TensorId(t) for t in reads),
        writes=tuple(TensorId(t) for t in writes),
    )
