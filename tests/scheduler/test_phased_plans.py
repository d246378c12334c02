"""Choosing between plans and schedules, by hand."""

from collections.abc import Sequence

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.phased_plans import Phased, budget_steps, fastest, phased
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.timing.simulate import Compute
from indb_tensile.scheduler.workload import Workload

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)


def test_the_ladder_is_the_same_for_any_budget_and_ends_where_plans_are_of_no_use() -> None:
    """Unplanned two jobs need 40 each. Rungs of 80, 60, 45, 33, 24, down to the floors of 20."""
    jobs = (_hill(1), _hill(2))
    assert budget_steps(jobs, 20) == (33, 24)
    assert budget_steps(jobs, 35) == (60, 45)
    assert budget_steps(jobs, 44) == (80, 60, 45)
    assert budget_steps(jobs, 80) == ()
    assert budget_steps((), 10) == ()


def test_jobs_keep_to_less_where_that_is_as_dense() -> None:
    """Only multiples of 10 bytes make a difference: 45 bytes let two jobs do no more than 40 do, and 50 do."""
    jobs = (_hill(1), _hill(2))
    (schedule,) = _phased(jobs, 45, Compute.TURNS).schedules
    assert (schedule.budget_bytes, schedule.iterations, len(schedule.gates)) == (40, (1, 1), 8)
    (denser,) = _phased(jobs, 50, Compute.TURNS).schedules
    assert (denser.budget_bytes, denser.iterations, len(denser.gates)) == (50, (1, 1), 5)


def test_jobs_that_compute_side_by_side_use_the_whole_budget() -> None:
    """Beside each other an iteration lasts 70 ns; with 40 bytes one has to wait for the other."""
    jobs = (_hill(1), _hill(2))
    found = _phased(jobs, 50, Compute.OVERLAP)
    assert [f.iteration_ns for f in found.forecasts] == [70, 70]
    assert [schedule.budget_bytes for schedule in found.schedules] == [50]


def test_jobs_whose_peaks_fit_have_no_schedule_and_less_than_one_iteration_at_a_time_is_refused() -> None:
    jobs = (_hill(1), _hill(2))
    assert _phased(jobs, 80, Compute.OVERLAP).schedules == ()
    plans = ((LIVENESS,),) * 2
    for policy in ("liveness", "zico"):
        refused = phased(jobs, plans, budget_bytes=39, link=LINK, policy=policy)
        assert isinstance(refused, Infeasible)
        assert (refused.needed_bytes, refused.budget_bytes) == (40, 39)


def test_the_plans_under_which_most_gets_done_are_taken_and_the_first_of_equal_ones() -> None:
    jobs = (_hill(1), _hill(2))
    slow, quick = _phased(jobs, 40, Compute.OVERLAP), _phased(jobs, 80, Compute.OVERLAP)
    twin = Phased(plans=((Plan(policy="twin"),),) * 2, schedules=(), forecasts=quick.forecasts)
    assert fastest(jobs, (slow, quick, twin)) is quick
    assert fastest(jobs, (slow, twin, quick)) is twin


def _phased(jobs: Sequence[Workload], budget_bytes: int, compute: Compute) -> Phased:
    found = phased(jobs, ((LIVENESS,),) * len(jobs), budget_bytes=budget_bytes, link=LINK, compute=compute)
    assert isinstance(found, Phased)
    return found


def _hill(number: int) -> Workload:
    """Seven operators of 10 ns: four make 10 bytes each, three read the youngest that is left."""
    tensors = tuple(Tensor(id=TensorId(i), name=f"t{i}", size_bytes=10, role=Role.ACTIVATION) for i in range(4))
    uses: list[tuple[tuple[TensorId, ...], tuple[TensorId, ...]]] = [((), (t.id,)) for t in tensors]
    uses += [((t.id,), ()) for t in tensors[2::-1]]
    operators = tuple(
        Operator(name="op", signature="op", stage=Stage.FORWARD, reads=reads, writes=writes) for reads, writes in uses
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    return Workload(job=JobId(number), graphs=(graph,), latency_ns=((10,) * 7,))
