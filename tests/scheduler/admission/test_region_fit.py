"""Check that admitted plans fit when their tensors are placed in whole regions, with planners whose placements have
gaps.
"""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.pool import Pool
from indb_tensile.scheduler.admission.region_fit import fit, fits, grant_of
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload
from tests.scheduler.admission.fake_controller import REGION, HalvingPlanner, graph

POOL = Pool(budget_bytes=16 * REGION, region_bytes=REGION)


@dataclass(frozen=True)
class FragmentingPlanner(HalvingPlanner):
    """Return plans whose placements take `gaps_bytes` more than the plans hold."""

    gaps_bytes: int = 0

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        return plan.peak_bytes + self.gaps_bytes


def workload(regions: int, job: int = 1, limit_bytes: int | None = None) -> Workload:
    return Workload(job=JobId(job), graphs=(graph(regions),), latency_ns=((1000,),), limit_bytes=limit_bytes)


def test_plan_is_granted_the_size_of_its_placement() -> None:
    planner = FragmentingPlanner(gaps_bytes=REGION + 1)
    plans = fit(planner, POOL, (workload(8),), budget_bytes=16 * REGION)
    assert isinstance(plans, tuple)
    assert (plans[0].peak_bytes, grant_of(planner, POOL, workload(8), plans[0])) == (8 * REGION, 10 * REGION)


def test_planner_gets_a_smaller_budget_if_the_gaps_do_not_fit() -> None:
    planner = FragmentingPlanner(gaps_bytes=REGION // 2)
    plans = fit(planner, POOL, (workload(9, 1), workload(9, 2)), budget_bytes=16 * REGION)
    assert isinstance(plans, tuple)
    peaks = [plan.peak_bytes // REGION for plan in plans]
    assert (peaks, sum(peaks)) == ([9, 5], 14)


@dataclass(frozen=True)
class BudgetsPlanner(FragmentingPlanner):
    """Lists the budgets for which it was asked for plans."""

    budgets: list[int] = field(default_factory=list)

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        self.budgets.append(budget_bytes)
        return super().plan(workloads, budget_bytes=budget_bytes)


@pytest.mark.parametrize(("regions", "left_out"), [(16, 0), (1000, 2)])
def test_two_jobs_are_first_planned_for_a_region_each_less_if_that_is_little(regions: int, left_out: int) -> None:
    planner, pool = BudgetsPlanner(), Pool(budget_bytes=regions * REGION, region_bytes=REGION)
    fit(planner, pool, (workload(regions, 1), workload(regions // 2, 2)), budget_bytes=regions * REGION)
    assert planner.budgets == [(regions - left_out) * REGION]


def test_jobs_that_need_the_last_region_get_it() -> None:
    planner, pool = BudgetsPlanner(), Pool(budget_bytes=1000 * REGION, region_bytes=REGION)
    plans = fit(planner, pool, (workload(1000, 1), workload(1000, 2)), budget_bytes=1000 * REGION)
    assert isinstance(plans, tuple)
    assert planner.budgets == [998 * REGION, 1000 * REGION]


def test_gaps_count_towards_a_jobs_own_limit() -> None:
    planner, limited = FragmentingPlanner(gaps_bytes=2 * REGION), workload(8, limit_bytes=7 * REGION)
    plans = fit(planner, POOL, (limited,), budget_bytes=16 * REGION)
    assert isinstance(plans, tuple)
    assert (plans[0].peak_bytes, grant_of(planner, POOL, limited, plans[0])) == (5 * REGION, 7 * REGION)


def test_job_beyond_its_own_limit_by_a_byte_gets_the_least_plan_where_it_cannot_give_a_region() -> None:
    """Each plan of a whole region has a gap of one byte, and the least plan has half a region."""
    planner, jobs = FragmentingPlanner(gaps_bytes=1), [workload(1, job, limit_bytes=REGION) for job in (1, 2)]
    plans = fit(planner, POOL, jobs, budget_bytes=2 * REGION)
    assert isinstance(plans, tuple)
    assert [plan.peak_bytes for plan in plans] == [REGION // 2] * 2


def test_jobs_whose_placements_do_not_fit_together_are_infeasible() -> None:
    planner = FragmentingPlanner(gaps_bytes=5 * REGION)
    refusal = fit(planner, POOL, (workload(8, 1), workload(8, 2)), budget_bytes=16 * REGION)
    assert refusal == Infeasible(
        needed_bytes=18 * REGION, budget_bytes=16 * REGION, reason="no room for whole regions"
    )


def test_job_alone_that_cannot_be_placed_is_granted_its_peak() -> None:
    planner = FragmentingPlanner(gaps_bytes=13 * REGION)
    plans = fit(planner, POOL, (workload(8),), budget_bytes=16 * REGION)
    assert isinstance(plans, tuple)
    assert grant_of(planner, POOL, workload(8), plans[0]) == 8 * REGION
    waiting = fit(FragmentingPlanner(gaps_bytes=10 * REGION), POOL, (workload(8),), budget_bytes=7 * REGION)
    assert waiting == Infeasible(
        needed_bytes=14 * REGION, budget_bytes=7 * REGION, reason="no room for whole regions"
    )


def test_planner_that_exceeds_the_budget_is_an_invariant_error() -> None:
    class OverspendingPlanner(HalvingPlanner):
        def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
            return super().plan(workloads, budget_bytes=budget_bytes + 1)

    with pytest.raises(InvariantError, match="was given 4194304 bytes and used"):
        fit(OverspendingPlanner(), POOL, (workload(5),), budget_bytes=4 * REGION)


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.integers(0, 3 * REGION),
    st.integers(0, 16 * REGION),
    st.none() | st.integers(REGION, 12 * REGION),
)
def test_admitted_jobs_fit_or_one_job_alone_could_not_be_placed(
    sizes: list[int], gaps_bytes: int, budget_bytes: int, limit_bytes: int | None
) -> None:
    planner = FragmentingPlanner(gaps_bytes=gaps_bytes)
    jobs = [workload(size, job, limit_bytes) for job, size in enumerate(sizes)]
    plans = fit(planner, POOL, jobs, budget_bytes=budget_bytes)
    least = [plan_at_least(planner, job) for job in jobs]
    if isinstance(plans, Infeasible):
        assert not fits(planner, POOL, jobs, least, budget_bytes=POOL.whole(budget_bytes))
        return
    grants = [grant_of(planner, POOL, *job) for job in zip(jobs, plans, strict=True)]
    assert sum(grants) <= POOL.whole(budget_bytes)
    if not fits(planner, POOL, jobs, plans, budget_bytes=POOL.whole(budget_bytes)):
        assert grants == [POOL.regions(plan.peak_bytes) for plan in plans]
        assert len(jobs) == 1


def plan_at_least(planner: FragmentingPlanner, job: Workload) -> JobPlan:
    """Return the plan of this job, without its own limit, within the least budget that the planner can meet."""
    least_bytes = planner.least_bytes(job)
    plans = planner.plan((replace(job, limit_bytes=None),), budget_bytes=least_bytes)
    assert isinstance(plans, tuple)
    return plans[0]
