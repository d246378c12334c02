"""Check that planning jobs together is never worse than giving each an equal part of the budget, and starves no
job.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.policies.quotas import equal_parts
from indb_tensile.scheduler.policies.tensile_plus import slowdown, tensile_plus
from indb_tensile.scheduler.timing.job_runs import Compute, JobRun
from indb_tensile.scheduler.timing.machines import REFERENCE, latencies
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.nightly import nightly_unless, some_examples
from tests.scheduler.large import unrolled
from tests.scheduler.strategies import links, several_workloads

_LINK = REFERENCE.link
_UNFAIR = 1.25  # the largest accepted ratio of a job's slowdown to the mean slowdown


@some_examples()
@given(several_workloads(), links(), st.floats(0, 1), st.sampled_from(list(Compute)))
def test_jobs_planned_together_are_never_slower_than_with_equal_parts(
    jobs: tuple[Workload, ...], link: Link, fraction: float, compute: Compute
) -> None:
    equal, budget_bytes = _plan_equal_parts(jobs, link, fraction)
    together = tensile_plus(jobs, budget_bytes=budget_bytes, link=link, compute=compute)
    if _peak_sum(jobs, equal) > budget_bytes or len({job.max_swapping_rate for job in jobs}) > 1:
        return  # equal parts exceed the budget, or contradict the priorities
    assert _peak_sum(jobs, together) <= budget_bytes
    assert slowdown(jobs, together, link, compute) <= slowdown(jobs, equal, link, compute) * (1 + 1e-9)


@some_examples()
@given(several_workloads(), links(), st.floats(0, 1), st.floats(0, 4))
def test_jobs_beside_a_rank_that_waits_for_others_are_never_slower_than_with_equal_parts(
    jobs: tuple[Workload, ...], link: Link, fraction: float, waits: float
) -> None:
    """The time of the rank, which is the first job, is no less than what its other ranks need."""
    equal, budget_bytes = _plan_equal_parts(jobs, link, fraction)
    waiting = (replace(jobs[0], others_ns=round(waits * jobs[0].step_ns)), *jobs[1:])
    together = tensile_plus(waiting, budget_bytes=budget_bytes, link=link)
    if _peak_sum(jobs, equal) > budget_bytes or len({job.max_swapping_rate for job in jobs}) > 1:
        return
    assert _peak_sum(jobs, together) <= budget_bytes
    assert slowdown(waiting, together, link) <= slowdown(waiting, equal, link) * (1 + 1e-9)


def test_memory_of_a_rank_that_waits_for_others_makes_the_other_job_faster() -> None:
    graph = residual(12)
    jobs = _job(1, graph), _job(2, graph)
    budget_bytes = round(0.7 * 2 * liveness_peak(graph))
    waiting = (replace(jobs[0], others_ns=20 * jobs[0].step_ns), jobs[1])
    before, after = (tensile_plus(each, budget_bytes=budget_bytes, link=_LINK) for each in (jobs, waiting))
    assert _peak_sum(jobs, after) <= budget_bytes
    assert _ratios(jobs, after, Compute.OVERLAP)[1] < _ratios(jobs, before, Compute.OVERLAP)[1]
    assert _ratios(jobs, after, Compute.OVERLAP)[0] < 20, "the rank is not slower than the others need"


@pytest.mark.nightly
@pytest.mark.parametrize("compute", nightly_unless(lambda compute: compute is Compute.OVERLAP, Compute))
@pytest.mark.parametrize("share", [pytest.param(0.6, marks=pytest.mark.nightly), 0.4])
@pytest.mark.parametrize("name", nightly_unless(lambda name: name == "alike", ["different", "alike", "equal"]))
def test_networks_planned_together_are_as_fast_and_as_fair_as_with_equal_parts(
    name: str, share: float, compute: Compute
) -> None:
    steps = {
        "different": [residual(60), residual(120), unrolled(60)],
        "alike": [residual(60), residual(80), residual(100), residual(120)],
        "equal": [residual(80)] * 4,
    }
    jobs = tuple(_job(number, graph) for number, graph in enumerate(steps[name], start=1))
    low, high = sum(map(least_bytes, jobs)), sum(liveness_peak(job.graphs[0]) for job in jobs)
    equal, budget_bytes = _plan_equal_parts(jobs, _LINK, max(0.0, (share * high - low) / (high - low)))
    together = tensile_plus(jobs, budget_bytes=budget_bytes, link=_LINK, compute=compute)
    assert _peak_sum(jobs, together) <= budget_bytes
    assert slowdown(jobs, together, _LINK, compute) <= slowdown(jobs, equal, _LINK, compute) * (1 + 1e-9)
    ratios = _ratios(jobs, together, compute)
    assert max(ratios) <= max(_UNFAIR * sum(ratios) / len(ratios), max(_ratios(jobs, equal, compute)) * (1 + 1e-9))


def _plan_equal_parts(jobs: tuple[Workload, ...], link: Link, fraction: float) -> tuple[Plans, int]:
    """Plan each job alone for its equal part of a budget between the least and the most of all jobs. Return the plans
    and the budget.
    """
    leasts = [least_bytes(job) for job in jobs]
    mosts = [max(liveness_peak(graph) for graph in job.graphs) for job in jobs]
    budget_bytes = sum(leasts) + round(fraction * (sum(mosts) - sum(leasts)))
    parts = equal_parts(leasts, mosts, budget_bytes)
    plans = tuple(
        tensile_plus((job,), budget_bytes=part, link=link)[0] for job, part in zip(jobs, parts, strict=True)
    )
    return plans, budget_bytes


def _peak_sum(jobs: tuple[Workload, ...], plans: Plans) -> int:
    return sum(max(map(peak, job.graphs, chosen)) for job, chosen in zip(jobs, plans, strict=True))


def _ratios(jobs: tuple[Workload, ...], plans: Plans, compute: Compute) -> list[float]:
    """Return each job's iteration time under these plans, divided by its time without plans. All jobs run side by
    side.
    """

    def forecast(chosen: list[Plan]) -> list[int]:
        runs = [
            JobRun(graph=job.graphs[0], plan=plan, latency_ns=job.latency_ns[0])
            for job, plan in zip(jobs, chosen, strict=True)
        ]
        return [job_forecast.iteration_ns for job_forecast in simulate(runs, _LINK, compute=compute)]

    before = forecast([Plan(policy="liveness")] * len(jobs))
    after = forecast([chosen[0] for chosen in plans])
    return [b / a for a, b in zip(before, after, strict=True)]


def _job(number: int, graph: StepGraph) -> Workload:
    return Workload(job=JobId(number), graphs=(graph,), latency_ns=(latencies(graph, REFERENCE),))


@pytest.mark.nightly
def test_division_between_equal_parts_and_curves_helps_all_jobs_if_curves_starve_one() -> None:
    """Four equal networks share 40 % of their peaks. Divided along the curves, one job takes 6 times as long as
    without a plan.
    """
    graph = residual(80)
    jobs = tuple(_job(number, graph) for number in range(1, 5))
    low, high = 4 * least_bytes(jobs[0]), 4 * liveness_peak(graph)
    equal, budget_bytes = _plan_equal_parts(jobs, _LINK, (0.4 * high - low) / (high - low))
    together = tensile_plus(jobs, budget_bytes=budget_bytes, link=_LINK)
    ratios = _ratios(jobs, together, Compute.OVERLAP)
    assert max(ratios) < min(_ratios(jobs, equal, Compute.OVERLAP))
    assert slowdown(jobs, together, _LINK) < 0.8 * slowdown(jobs, equal, _LINK)
