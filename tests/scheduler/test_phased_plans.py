"""Check, on examples computed by hand, how budget steps, plans and schedules are chosen for jobs that share a budget
in phases.
"""

from collections.abc import Sequence

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.phased_plans import Phased, budget_steps, fastest, phased
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.workload import Workload

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)


def test_budget_steps_do_not_depend_on_the_budget_but_only_useful_steps_are_returned() -> None:
    """Without planning two jobs need 40 bytes each. The steps are 80, 60, 45, 33 and 24 bytes, down to the floors of
    20. A budget of at least 80 bytes needs none of them.
    """
    jobs = (_job_with_peak(1), _job_with_peak(2))
    assert budget_steps(jobs, 20) == (33, 24)
    assert budget_steps(jobs, 35) == (60, 45)
    assert budget_steps(jobs, 44) == (80, 60, 45)
    assert budget_steps(jobs, 80) == ()
    assert budget_steps((), 10) == ()


def test_smaller_budget_is_taken_where_it_gives_an_equally_dense_schedule() -> None:
    """Loads are multiples of 10 bytes, so a schedule within 45 bytes is no denser than one within 40. A schedule
    within 50 bytes is denser.
    """
    jobs = (_job_with_peak(1), _job_with_peak(2))
    (schedule,) = _phased(jobs, 45, Compute.TURNS).schedules
    assert (schedule.budget_bytes, schedule.iterations, len(schedule.gates)) == (40, (1, 1), 8)
    (denser,) = _phased(jobs, 50, Compute.TURNS).schedules
    assert (denser.budget_bytes, denser.iterations, len(denser.gates)) == (50, (1, 1), 5)


def test_overlapping_jobs_use_the_whole_budget() -> None:
    """Within 50 bytes each iteration lasts 70 ns. Within 40 bytes one job has to wait for the other."""
    jobs = (_job_with_peak(1), _job_with_peak(2))
    phased_plans = _phased(jobs, 50, Compute.OVERLAP)
    assert [f.iteration_ns for f in phased_plans.forecasts] == [70, 70]
    assert [schedule.budget_bytes for schedule in phased_plans.schedules] == [50]


def test_jobs_get_no_schedule_if_their_peaks_fit_and_no_plan_below_one_peak() -> None:
    jobs = (_job_with_peak(1), _job_with_peak(2))
    assert _phased(jobs, 80, Compute.OVERLAP).schedules == ()
    plans = ((LIVENESS,),) * 2
    for policy in ("liveness", "zico"):
        refused = phased(jobs, plans, budget_bytes=39, link=LINK, policy=policy)
        assert isinstance(refused, Infeasible)
        assert (refused.needed_bytes, refused.budget_bytes) == (40, 39)


def test_fastest_plans_are_chosen_and_the_first_of_equals() -> None:
    jobs = (_job_with_peak(1), _job_with_peak(2))
    slow, quick = _phased(jobs, 40, Compute.OVERLAP), _phased(jobs, 80, Compute.OVERLAP)
    equally_fast = Phased(plans=((Plan(policy="twin"),),) * 2, schedules=(), forecasts=quick.forecasts)
    assert fastest(jobs, (slow, quick, equally_fast)) is quick
    assert fastest(jobs, (slow, equally_fast, quick)) is equally_fast


def _phased(jobs: Sequence[Workload], budget_bytes: int, compute: Compute) -> Phased:
    phased_plans = phased(jobs, ((LIVENESS,),) * len(jobs), budget_bytes=budget_bytes, link=LINK, compute=compute)
    assert isinstance(phased_plans, Phased)
    return phased_plans


def _job_with_peak(number: int) -> Workload:
    """Return a job of seven operators of 10 ns: four make 10 bytes each, and three read the newest tensor not yet
    read.
    """
    tensors = tuple(Tensor(id=TensorId(i), name=f"t{i}", size_bytes=10, role=Role.ACTIVATION) for i in range(4))
    uses: list[tuple[tuple[TensorId, ...], tuple[TensorId, ...]]] = [((), (t.id,)) for t in tensors]
    uses += [((t.id,), ()) for t in tensors[2::-1]]
    operators = tuple(
        Operator(name="op", signature="op", stage=Stage.FORWARD, reads=reads, writes=writes) for reads, writes in uses
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    return Workload(job=JobId(number), graphs=(graph,), latency_ns=((10,) * 7,))
