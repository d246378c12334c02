"""Check when chosen swaps leave the device and return under a limit."""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import gaps, peak
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.policies.swap_times import empty_load, schedule
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from tests.scheduler.strategies import graphs, latencies, links

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte


@given(graphs(), links(), st.data())
def test_any_gaps_can_be_swapped_within_a_limit_that_their_absence_meets(
    graph: StepGraph, link: Link, data: st.DataObject
) -> None:
    all_gaps = gaps(graph)
    chosen = [gap for gap in all_gaps if data.draw(st.booleans())]
    least = int(empty_load(graph, chosen).max())
    limit = least + data.draw(st.integers(-3, 60))
    latency_ns = data.draw(latencies(graph))
    plan = schedule(graph, latency_ns, link, chosen, limit_bytes=limit, policy="any")
    assert faults(graph, plan, limit_bytes=max(limit, least)) == ()
    assert plan == schedule(graph, latency_ns, link, chosen, limit_bytes=limit, policy="any")


def test_copy_out_starts_at_once_and_copy_in_as_late_as_possible() -> None:
    """Copies of 20 bytes take 20 us, operators take 100 us."""
    assert _swaps(100_000, limit=50) == (_swap(free_at=2, in_at=4),)


def test_operator_waits_for_a_copy_out_and_copy_in_waits_for_free_memory() -> None:
    """The copy out ends at 30 us, and operator 2 would start at 20 us. The copy back may not start before
    operator 4.
    """
    graph, plan = _graph(), Plan(policy="any", swaps=_swaps(10_000, limit=50))
    assert plan.swaps == (_swap(free_at=2, in_at=4),)
    assert peak(graph, plan) == 50
    (forecast,) = simulate((JobRun(graph=graph, plan=plan, latency_ns=(10_000,) * 6),), SLOW)
    assert (forecast.stall_out_ns, forecast.stall_in_ns, forecast.iteration_ns) == (10_000, 10_000, 80_000)


def test_tensor_that_would_return_before_its_copy_out_ends_is_not_swapped() -> None:
    """The copy out ends at 35 us, and the copy back would start at 55 us. Both moments belong to boundary 3, at 45
    us.
    """
    assert _swaps(15_000, limit=70) == ()
    assert _swaps(20_000, limit=70) == (_swap(free_at=2, in_at=4),)


def test_copies_of_one_direction_run_one_by_one_in_the_order_of_accesses() -> None:
    """The copies out end at 280 and 310 us. The copies back are needed at 800 and 700 us, so they start at 620 and
    590 us.
    """
    tensors = tuple(
        Tensor(id=TensorId(i), name="ab"[i], size_bytes=size, role=Role.ACTIVATION)
        for i, size in enumerate((180, 30))
    )
    uses = {0: ((), (0,)), 1: ((), (1,)), 7: ((1,), ()), 8: ((0,), ())}
    operators = tuple(_operator(k, *uses.get(k, ((), ()))) for k in range(9))
    graph = StepGraph(tensors=tensors, operators=operators)
    plan = schedule(graph, (100_000,) * 9, SLOW, gaps(graph), limit_bytes=10**6, policy="any")
    assert [(s.out_after, s.free_at, s.in_at, s.needed_by) for s in plan.swaps] == [(0, 3, 6, 8), (1, 4, 5, 7)]


def test_persistent_tensor_is_away_across_the_end_of_the_iteration() -> None:
    """Only operators 1 and 2 use the parameter. Its 50 bytes leave from 300 us on and are needed 300 us later."""
    tensors = (Tensor(id=TensorId(0), name="p", size_bytes=50, role=Role.PARAMETER),)
    operators = tuple(_operator(k, (0,) if k in (1, 2) else (), ()) for k in range(5))
    graph = StepGraph(tensors=tensors, operators=operators)
    plan = schedule(graph, (100_000,) * 5, SLOW, gaps(graph), limit_bytes=10**6, policy="any")
    away = Swap(tensor=TensorId(0), out_after=OpIndex(2), free_at=OpIndex(4), in_at=OpIndex(0), needed_by=OpIndex(1))
    assert plan == Plan(policy="any", swaps=(away,))
    assert faults(graph, plan) == ()


def _swaps(operator_ns: int, *, limit: int) -> tuple[Swap, ...]:
    graph = _graph()
    chosen = [gap for gap in gaps(graph) if gap.tensor == 0]
    return schedule(graph, (operator_ns,) * 6, SLOW, chosen, limit_bytes=limit, policy="any").swaps


def _swap(*, free_at: int, in_at: int) -> Swap:
    return Swap(
        tensor=TensorId(0), out_after=OpIndex(0), free_at=OpIndex(free_at), in_at=OpIndex(in_at), needed_by=OpIndex(5)
    )


def _graph() -> StepGraph:
    """Return a graph of activations of 20, 10 and 40 bytes. Operators 0, 1, 2 make them, and operators 5, 4, 3 read
    them: a peak of 70.
    """
    tensors = tuple(
        Tensor(id=TensorId(i), name="abc"[i], size_bytes=size, role=Role.ACTIVATION)
        for i, size in enumerate((20, 10, 40))
    )
    operators = tuple(_operator(k, () if k < 3 else (5 - k,), (k,) if k < 3 else ()) for k in range(6))
    return StepGraph(tensors=tensors, operators=operators)


def _operator(index: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> Operator:
    return Operator(
        name=f"op{index}",
        signature=f"op{index}",
        stage=Stage.FORWARD,
        reads=tuple(TensorId(t) for t in reads),
        writes=tuple(TensorId(t) for t in writes),
    )
