"""Check which of the valid plans the policy tensile+ chooses, and how it divides the lanes."""

from dataclasses import replace

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies.tensile_plus import lane_shares, tensile_plus
from indb_tensile.scheduler.workload import Workload

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte


def test_swapping_stops_at_the_budget() -> None:
    job = _job(1, (10, 12), 100_000)
    assert _swapped(_tensile((job,), budget=122)[0]) == []
    assert _swapped(_tensile((job,), budget=121)[0]) in ([0], [1])
    assert _swapped(_tensile((job,), budget=100)[0]) == [0, 1]


def test_smallest_sufficient_stall_is_chosen() -> None:
    """Both copies are late: swapping 12 bytes costs 2 x 4 us, swapping 60 bytes costs 2 x 52 us."""
    job = _job(1, (12, 60), 2_000)
    assert _swapped(_tensile((job,), budget=171)[0]) == [0]
    assert _swapped(_tensile((job,), budget=112)[0]) == [1], (
        "swapping 12 bytes is not enough alone, and is not needed beside 60"
    )


def test_job_with_the_smaller_slowdown_is_swapped() -> None:
    """Both jobs have the same tensors. The second job's operators are long enough to hide its copies."""
    short, long = _job(1, (12, 60), 2_000), _job(2, (12, 60), 200_000)
    plans = _tensile((short, long), budget=2 * 172 - 30)
    assert [_swapped(p) for p in plans] == [[], [1]]


def test_equal_graphs_with_different_latencies_get_different_plans() -> None:
    short = _job(1, (12, 60), 2_000)
    long = replace(short, job=JobId(2), latency_ns=_job(2, (12, 60), 200_000).latency_ns)
    plans = _tensile((short, long), budget=2 * 172 - 30)
    assert [_swapped(p) for p in plans] == [[], [1]]


def test_small_job_keeps_its_memory_if_a_large_one_is_no_slower_in_the_rest() -> None:
    """Equal parts leave the small job all that it can use. The large one hides its copies behind long operators."""
    small, large = _job(1, (3, 3), 200_000), _job(2, (40, 400), 200_000)
    together = _tensile((small, large), budget=106 + 540 - 5)
    assert [_swapped(plan) for plan in together] == [[], [0]]
    assert together[1:] == _tensile((large,), budget=540 - 5)


def test_small_job_gives_memory_up_if_the_large_one_would_be_slower() -> None:
    small, large = _job(1, (3, 3), 200_000), _job(2, (40, 400), 2_000)
    assert [_swapped(plan) for plan in _tensile((small, large), budget=106 + 540 - 5)] == [[0, 1], []]


def test_lane_shares_follow_swappable_bytes_per_time() -> None:
    first, second = _job(1, (10, 20), 100_000), _job(2, (10, 20), 50_000)
    shares = lane_shares((first, second))
    assert [round(share, 6) for share in shares] == [0.333333, 0.666667]
    assert lane_shares((first,)) == (1.0,)


def _tensile(jobs: tuple[Workload, ...], *, budget: int) -> list[Plan]:
    return [plans[0] for plans in tensile_plus(jobs, budget_bytes=budget, link=SLOW)]


def _swapped(plan: Plan) -> list[int]:
    return [swap.tensor for swap in plan.swaps]


def _job(job: int, sizes: tuple[int, int], operator_ns: int) -> Workload:
    """Return a job of two parameters. Operators 0 and 8 read the first, 1 and 9 the second; operator 5 has a
    workspace of 100 bytes.
    """
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
