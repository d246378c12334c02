"""Check the scores of plans, on examples computed by hand."""

from dataclasses import replace

import pytest

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.score import Baseline, baselines, score
from indb_tensile.scheduler.timing.job_runs import Compute, Forecast
from indb_tensile.scheduler.workload import Workload

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
P, A, B = TensorId(0), TensorId(1), TensorId(2)
BASE = Baseline(vanilla_peak_bytes=160, liveness_peak_bytes=150, floor_bytes=100, iteration_ns=400, compute_ns=400)
# p is away during operators 1 and 2. Each copy takes 100 ns: operator 1 hides the copy out, operator 2 the copy in.
SWAP = Swap(tensor=P, out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(2), needed_by=OpIndex(3))


def test_plan_is_compared_with_the_vanilla_and_the_liveness_peak() -> None:
    (job_score,) = score([_workload()], ((LIVENESS,),), LINK)
    assert job_score.baseline == BASE
    assert (job_score.peak_bytes, job_score.msr_vanilla, job_score.msr_liveness, job_score.eor) == (
        150,
        1 - 150 / 160,
        0.0,
        1.0,
    )
    (worse,) = score([_workload()], ((VANILLA,),), LINK)
    assert (worse.peak_bytes, worse.msr_vanilla, worse.msr_liveness, worse.eor) == (160, 0.0, 1 - 160 / 150, 1.0)


def test_overhead_is_relative_to_the_time_without_planning() -> None:
    slow = replace(LINK, in_bytes_per_s=500_000_000)  # the copy in takes 200 ns and ends 100 ns late
    (job_score,) = score([_workload()], ((Plan(policy="test", swaps=(SWAP,)),),), slow)
    stalled = Forecast(
        iteration_ns=500,
        compute_ns=400,
        stall_out_ns=0,
        stall_in_ns=100,
        upload_ns=0,
        peak_bytes=150,
        out_bytes=100,
        in_bytes=100,
    )
    assert (job_score.forecast, job_score.eor, job_score.swaps, job_score.faults) == (stalled, 1.25, 1, ())


def test_figures_are_named_with_their_units() -> None:
    slow = replace(LINK, in_bytes_per_s=500_000_000)
    (job_score,) = score([_workload()], ((Plan(policy="test", swaps=(SWAP,)),),), slow)
    assert job_score.figures() == {
        "vanilla_peak_bytes": 160,
        "liveness_peak_bytes": 150,
        "floor_bytes": 100,
        "planned_floor_bytes": 100,
        "bound_bytes": 100,
        "peak_bytes": 150,
        "msr_vanilla": 0.0625,
        "msr_liveness": 0.0,
        "iteration_us": 0.5,
        "eor": 1.25,
        "cbr": 0.0,
        "compute_us": 0.4,
        "stall_out_us": 0.0,
        "stall_in_us": 0.1,
        "upload_us": 0.0,
        "turn_us": 0.0,
        "out_bytes": 100,
        "in_bytes": 100,
        "swaps": 1,
        "executions_more": 0,
        "faults": [],
    }


def test_a_cache_changes_no_score() -> None:
    """A bound depends on the iteration time and the link. The cache must not return that of another plan or link."""
    slow, cache, workload = replace(LINK, in_bytes_per_s=10**6), PlanCache(), _workload()
    swapped = Plan(policy="test", swaps=(SWAP,))
    cases = [(plan, link) for plan in (LIVENESS, VANILLA, swapped) for link in (slow, LINK)]

    cached = [score([workload], ((plan,),), link, cache=cache) for plan, link in cases]

    assert cached == [score([workload], ((plan,),), link) for plan, link in cases]
    assert {job_score.bound_bytes for (job_score,) in cached} > {100, 150}


def test_bound_is_given_for_one_job_in_captured_order_only() -> None:
    slow = replace(LINK, in_bytes_per_s=10**6)
    plans = (LIVENESS,)
    (alone,) = score([_workload()], (plans,), slow)
    assert alone.bound_bytes == alone.peak_bytes == 150, "no lane returns p in time, and p cannot be recomputed"
    pair = [_workload(), replace(_workload(), job=JobId(2))]
    assert [job_score.bound_bytes for job_score in score(pair, (plans, plans), slow)] == [None, None]
    reordered = Plan(policy="test", executions=tuple(Execution(operator=OpIndex(k)) for k in (1, 0, 2, 3)))
    (job_score,) = score([_workload()], ((reordered,),), slow)
    assert (job_score.faults, job_score.bound_bytes) == ((), None)


def test_planned_floor_is_that_of_the_rewritten_graph() -> None:
    executions = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 2, 1, 3))
    (job_score,) = score([_workload()], ((Plan(policy="test", executions=executions),),), LINK)
    assert (job_score.executions_more, job_score.planned_floor_bytes, job_score.forecast.iteration_ns) == (
        1,
        100,
        500,
    )


def test_invalid_plan_gets_the_score_of_no_plan() -> None:
    never_back = replace(SWAP, in_at=OpIndex(3), needed_by=OpIndex(2))
    (job_score,) = score([_workload()], ((Plan(policy="test", swaps=(never_back,)),),), LINK)
    assert job_score.faults
    assert (job_score.peak_bytes, job_score.eor, job_score.swaps) == (150, 1.0, 0)
    incomplete = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 2))
    (job_score,) = score([_workload()], ((Plan(policy="test", executions=incomplete),),), LINK)
    assert job_score.faults
    assert job_score.eor == 1.0


def test_jobs_peak_is_that_of_its_worst_graph() -> None:
    workload = _workload()
    small = StepGraph(tensors=workload.graphs[0].tensors[:1], operators=workload.graphs[0].operators[:1])
    two_graphs = Workload(job=JobId(1), graphs=(small, workload.graphs[0]), latency_ns=((7,), workload.latency_ns[0]))
    (job_score,) = score([two_graphs], ((LIVENESS, LIVENESS),), LINK)
    assert job_score.baseline == replace(BASE, iteration_ns=7, compute_ns=7)
    assert (job_score.peak_bytes, job_score.bound_bytes) == (150, 100)
    broken = Plan(policy="test", swaps=(replace(SWAP, needed_by=OpIndex(2), in_at=OpIndex(1)),))
    (job_score,) = score([two_graphs], ((LIVENESS, broken),), LINK)
    assert job_score.faults[0].startswith("graph 1: ")


@pytest.mark.parametrize(("compute", "expected_ns"), [(Compute.OVERLAP, 400), (Compute.TURNS, 800)])
def test_baseline_has_the_same_jobs_side_by_side(compute: Compute, expected_ns: int) -> None:
    pair = [_workload(), replace(_workload(), job=JobId(2))]
    assert [base.iteration_ns for base in baselines(pair, LINK, compute=compute)] == [expected_ns] * 2
    scores = score(pair, ((LIVENESS,), (LIVENESS,)), LINK, compute=compute)
    assert [job_score.eor for job_score in scores] == [1.0, 1.0]
    baselines_alone = [replace(BASE, iteration_ns=expected_ns // 2)] * 2
    assert [
        job_score.eor
        for job_score in score(pair, ((LIVENESS,), (LIVENESS,)), LINK, compute=compute, against=baselines_alone)
    ] == [
        2,
        2,
    ]


def _workload() -> Workload:
    """Return a job of four operators of 100 ns. Operators 0 and 3 read p (100 bytes), operator 1 makes a (50),
    operator 2 makes b (10).
    """

    def operator(name: str, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
        return Operator(name=name, signature=name, stage=Stage.FORWARD, reads=reads, writes=writes)

    graph = StepGraph(
        tensors=(
            Tensor(id=P, name="p", size_bytes=100, role=Role.PARAMETER),
            Tensor(id=A, name="a", size_bytes=50, role=Role.ACTIVATION),
            Tensor(id=B, name="b", size_bytes=10, role=Role.ACTIVATION),
        ),
        operators=(
            operator("use", (P,), ()),
            operator("make a", (), (A,)),
            operator("make b", (), (B,)),
            operator("use", (P,), ()),
        ),
    )
    return Workload(job=JobId(1), graphs=(graph,), latency_ns=((100,) * 4,))
