"""What the policy chooses, as opposed to what it may do."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies.tensile_plus import divide_by_curves, lane_shares, tensile_plus
from indb_tensile.scheduler.search.candidate import CandidatePlan
from indb_tensile.scheduler.workload import Workload

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte


def test_it_stops_at_the_budget() -> None:
    job = _job(1, (10, 12), 100_000)
    assert _swapped(_tensile((job,), budget=122)[0]) == []
    assert _swapped(_tensile((job,), budget=121)[0]) in ([0], [1])
    assert _swapped(_tensile((job,), budget=100)[0]) == [0, 1]


def test_with_stalls_the_least_wait_that_is_enough_is_chosen() -> None:
    """Both copies are late: 12 bytes cost 2 x 4 us, 60 bytes 2 x 52 us."""
    job = _job(1, (12, 60), 2_000)
    assert _swapped(_tensile((job,), budget=171)[0]) == [0]
    assert _swapped(_tensile((job,), budget=112)[0]) == [1], "12 bytes less would not be enough, and are not needed"


def test_the_job_that_slows_down_least_gives_the_memory() -> None:
    """The same tensors and bytes; the second job's operators are long enough to hide its copies."""
    hurried, patient = _job(1, (12, 60), 2_000), _job(2, (12, 60), 200_000)
    plans = _tensile((hurried, patient), budget=2 * 172 - 30)
    assert [_swapped(p) for p in plans] == [[], [1]]


def test_equal_graphs_with_other_latencies_are_other_jobs() -> None:
    hurried = _job(1, (12, 60), 2_000)
    patient = replace(hurried, job=JobId(2), latency_ns=_job(2, (12, 60), 200_000).latency_ns)
    plans = _tensile((hurried, patient), budget=2 * 172 - 30)
    assert [_swapped(p) for p in plans] == [[], [1]]


def test_a_budget_is_divided_where_each_byte_slows_down_least() -> None:
    """Per byte: the first curve's steps cost 1 % then 4 %, the second's 2 %; 10 bytes of the last step stay over."""
    first = (_rung(100, 1000), _rung(80, 1200), _rung(60, 2000))
    second = (_rung(100, 1000), _rung(70, 1600))
    assert divide_by_curves((first, second), (1.0, 1.0), 200) == (100, 100)
    assert divide_by_curves((first, second), (1.0, 1.0), 190) == (90, 100)
    assert divide_by_curves((first, second), (1.0, 1.0), 160) == (80, 80)
    assert divide_by_curves((first, second), (1.0, 1.0), 120) == (60, 70), "less there is not"
    assert divide_by_curves((first, second), (9.0, 1.0), 170) == (100, 70), "who has priority keeps its memory"


def test_a_step_past_a_bad_rung_is_seen() -> None:
    """The next rung costs 50 for 1 byte, the one after it 60 for 50."""
    curve = (_rung(100, 1000), _rung(99, 1050), _rung(50, 1060))
    other = (_rung(100, 1000), _rung(50, 1500))
    assert divide_by_curves((curve, other), (1.0, 1.0), 150) == (50, 100)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(1, 99), st.integers(1001, 9999)), max_size=5), min_size=1, max_size=3),
    st.integers(0, 300),
)
def test_a_division_keeps_to_the_budget_where_the_curves_allow(
    steps: list[list[tuple[int, int]]], budget: int
) -> None:
    curves = [(_rung(100, 1000), *(_rung(p, t) for p, t in sorted(s, reverse=True))) for s in steps]
    caps = divide_by_curves(curves, [1.0] * len(curves), budget)
    assert all(curve[-1].peak_bytes <= cap <= 100 for curve, cap in zip(curves, caps, strict=True))
    least = sum(curve[-1].peak_bytes for curve in curves)
    assert sum(caps) <= max(budget, least)
    assert sum(caps) == min(100 * len(curves), max(budget, least)), "and leaves nothing of it unused"


def test_lanes_are_shared_by_what_jobs_could_give_up_per_time() -> None:
    first, second = _job(1, (10, 20), 100_000), _job(2, (10, 20), 50_000)
    shares = lane_shares((first, second))
    assert [round(share, 6) for share in shares] == [0.333333, 0.666667]
    assert lane_shares((first,)) == (1.0,)


def _tensile(jobs: tuple[Workload, ...], *, budget: int) -> list[Plan]:
    return [plans[0] for plans in tensile_plus(jobs, budget_bytes=budget, link=SLOW)]


def _rung(peak_bytes: int, iteration_ns: int) -> CandidatePlan:
    return CandidatePlan(order=0, peak_bytes=peak_bytes, iteration_ns=iteration_ns, lane_ns=0, choices=())


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
