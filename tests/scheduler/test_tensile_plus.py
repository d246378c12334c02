"""What the policy chooses, as opposed to what it may do."""

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies.tensile_plus import lane_shares, tensile_plus
from indb_tensile.scheduler.workload import Workload

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte


def test_the_largest_tensor_of_all_jobs_goes_first() -> None:
    small, large = _job(1, (10, 12), 100_000), _job(2, (11, 30), 100_000)
    plans = _tensile((small, large), budget=262)
    assert [_swapped(p) for p in plans] == [[], [1]]


def test_it_stops_at_the_budget() -> None:
    job = _job(1, (10, 12), 100_000)
    assert _swapped(_tensile((job,), budget=122)[0]) == []
    assert _swapped(_tensile((job,), budget=121)[0]) == [1]


def test_with_stalls_the_most_bytes_for_the_time_go_first() -> None:
    """Both copies are late at once: 12 bytes cost 2 x 4 us, 60 bytes 2 x 52 us."""
    job = _job(1, (12, 60), 2_000)
    assert _swapped(_tensile((job,), budget=171)[0]) == [0]


def test_swaps_that_later_ones_made_needless_are_undone() -> None:
    """12 bytes leave first, but then 60 have to leave too, and 60 alone are enough."""
    job = _job(1, (12, 60), 2_000)
    assert _swapped(_tensile((job,), budget=111)[0]) == [0, 1]
    assert _swapped(_tensile((job,), budget=112)[0]) == [1]


def test_lanes_are_shared_by_what_jobs_could_give_up_per_time() -> None:
    first, second = _job(1, (10, 20), 100_000), _job(2, (10, 20), 50_000)
    shares = lane_shares((first, second))
    assert [round(share, 6) for share in shares] == [0.333333, 0.666667]
    assert lane_shares((first,)) == (1.0,)


def _tensile(jobs: tuple[Workload, ...], *, budget: int) -> list[Plan]:
    return [plans[0] for plans in tensile_plus(jobs, budget_bytes=budget, link=SLOW)]


def _swapped(plan: Plan) -> list[int]:
    return [swap.tensor for swap in plan.swaps]


def _job(job: int, sizes: tuple[int, int], operator_ns: int) -> Workload:
    """Two parameters, the first used by operators 0 and 8, the second by 1 and 9; operator 5 needs 100 bytes."""
    tensors = tuple(
        Tensor(id=TensorId(i), name=f"p{i}", size_bytes=size, role=Role.PARAMETER) for i, size in enumerate(sizes)
    )
    operators = tuple(
        Operator(
            name="op",
            signature="op",
            stage=Stage.FORWARD,
            reads=(TensorId(k % 8),) if k % 8 < 2 else (),
            writes=(),
            workspace_bytes=100 * (k == 5),
        )
        for k in range(10)
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    return Workload(job=JobId(job), graphs=(graph,), latency_ns=((operator_ns,) * 10,))
