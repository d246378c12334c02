"""What plans are worth, by hand."""

from dataclasses import replace

import pytest

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.score import Baseline, baselines, score
from indb_tensile.scheduler.timing.simulate import Compute, Forecast
from indb_tensile.scheduler.workload import Workload

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
P, A, B = TensorId(0), TensorId(1), TensorId(2)
BASE = Baseline(vanilla_peak_bytes=160, liveness_peak_bytes=150, floor_bytes=100, iteration_ns=400, compute_ns=400)
# p leaves for operators 1 and 2, 100 ns each way: behind operators 1 and 2.
SWAP = Swap(tensor=P, out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(2), needed_by=OpIndex(3))


def test_a_plan_is_compared_with_freeing_nothing_and_with_freeing_after_the_last_use() -> None:
    (found,) = score([_workload()], ((LIVENESS,),), LINK)
    assert found.baseline == BASE
    assert (found.peak_bytes, found.msr_vanilla, found.msr_liveness, found.eor) == (150, 1 - 150 / 160, 0.0, 1.0)
    (worse,) = score([_workload()], ((VANILLA,),), LINK)
    assert (worse.peak_bytes, worse.msr_vanilla, worse.msr_liveness, worse.eor) == (160, 0.0, 1 - 160 / 150, 1.0)


def test_overhead_is_time_over_that_without_planning() -> None:
    slow = replace(LINK, in_bytes_per_s=500_000_000)  # back after 200 ns: 100 too late
    (found,) = score([_workload()], ((Plan(policy="test", swaps=(SWAP,)),),), slow)
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
    assert (found.forecast, found.eor, found.swaps, found.faults) == (stalled, 1.25, 1, ())


def test_every_figure_is_printed_with_its_unit() -> None:
    slow = replace(LINK, in_bytes_per_s=500_000_000)
    (found,) = score([_workload()], ((Plan(policy="test", swaps=(SWAP,)),),), slow)
    assert found.figures() == {
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


def test_a_bound_stands_beside_a_plan_of_one_job_that_keeps_to_the_order() -> None:
    slow = replace(LINK, in_bytes_per_s=10**6)
    plans = (LIVENESS,)
    (alone,) = score([_workload()], (plans,), slow)
    assert alone.bound_bytes == alone.peak_bytes == 150, "no lane brings p back in time, and nothing makes it again"
    pair = [_workload(), replace(_workload(), job=JobId(2))]
    assert [one.bound_bytes for one in score(pair, (plans, plans), slow)] == [None, None]
    other = Plan(policy="test", executions=tuple(Execution(operator=OpIndex(k)) for k in (1, 0, 2, 3)))
    (found,) = score([_workload()], ((other,),), slow)
    assert (found.faults, found.bound_bytes) == ((), None)


def test_the_floor_is_that_of_the_graph_that_runs() -> None:
    executions = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 2, 1, 3))
    (found,) = score([_workload()], ((Plan(policy="test", executions=executions),),), LINK)
    assert (found.executions_more, found.planned_floor_bytes, found.forecast.iteration_ns) == (1, 100, 500)


def test_a_broken_plan_is_worth_nothing() -> None:
    never_back = replace(SWAP, in_at=OpIndex(3), needed_by=OpIndex(2))
    (found,) = score([_workload()], ((Plan(policy="test", swaps=(never_back,)),),), LINK)
    assert found.faults
    assert (found.peak_bytes, found.eor, found.swaps) == (150, 1.0, 0)
    incomplete = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 2))
    (found,) = score([_workload()], ((Plan(policy="test", executions=incomplete),),), LINK)
    assert found.faults
    assert found.eor == 1.0


def test_several_graphs_of_a_job_count_with_the_worst_of_them() -> None:
    workload = _workload()
    small = StepGraph(tensors=workload.graphs[0].tensors[:1], operators=workload.graphs[0].operators[:1])
    both = Workload(job=JobId(1), graphs=(small, workload.graphs[0]), latency_ns=((7,), workload.latency_ns[0]))
    (found,) = score([both], ((LIVENESS, LIVENESS),), LINK)
    assert found.baseline == replace(BASE, iteration_ns=7, compute_ns=7)
    assert (found.peak_bytes, found.bound_bytes) == (150, 100)
    broken = Plan(policy="test", swaps=(replace(SWAP, needed_by=OpIndex(2), in_at=OpIndex(1)),))
    (found,) = score([both], ((LIVENESS, broken),), LINK)
    assert found.faults[0].startswith("graph 1: ")


@pytest.mark.parametrize(("compute", "expected_ns"), [(Compute.OVERLAP, 400), (Compute.TURNS, 800)])
def test_jobs_are_compared_with_the_same_jobs_side_by_side(compute: Compute, expected_ns: int) -> None:
    pair = [_workload(), replace(_workload(), job=JobId(2))]
    assert [base.iteration_ns for base in baselines(pair, LINK, compute=compute)] == [expected_ns] * 2
    found = score(pair, ((LIVENESS,), (LIVENESS,)), LINK, compute=compute)
    assert [one.eor for one in found] == [1.0, 1.0]
    given = [replace(BASE, iteration_ns=expected_ns // 2)] * 2
    assert [one.eor for one in score(pair, ((LIVENESS,), (LIVENESS,)), LINK, compute=compute, against=given)] == [
        2,
        2,
    ]


def _workload() -> Workload:
    """p (100 bytes) for operators 0 and 3; a (50) for 1; b (10) for 2. 100 ns each."""

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
