"""Plans that still fit when they are placed: judged with planners whose placements have gaps."""

from dataclasses import dataclass, replace

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
from tests.scheduler.admission.test_decide import REGION, HalvingPlanner, graph

POOL = Pool(budget_bytes=16 * REGION, region_bytes=REGION)


@dataclass(frozen=True)
class GappyPlanner(HalvingPlanner):
    """Whose plans take some bytes more than they hold when they are placed."""

    gaps_bytes: int = 0

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        return plan.peak_bytes + self.gaps_bytes


def workload(regions: int, job: int = 1, limit_bytes: int | None = None) -> Workload:
    return Workload(job=JobId(job), graphs=(graph(regions),), latency_ns=((1000,),), limit_bytes=limit_bytes)


def test_a_plan_that_has_room_is_granted_what_it_takes_when_it_is_placed() -> None:
    planner = GappyPlanner(gaps_bytes=REGION + 1)
    plans = fit(planner, POOL, (workload(8),), budget_bytes=16 * REGION)
    assert isinstance(plans, tuple)
    assert (plans[0].peak_bytes, grant_of(planner, POOL, workload(8), plans[0])) == (8 * REGION, 10 * REGION)


def test_where_gaps_are_what_does_not_fit_the_planner_is_asked_for_less() -> None:
    planner = GappyPlanner(gaps_bytes=REGION // 2)
    plans = fit(planner, POOL, (workload(9, 1), workload(9, 2)), budget_bytes=16 * REGION)
    assert isinstance(plans, tuple)
    peaks = [plan.peak_bytes // REGION for plan in plans]
    assert (peaks, sum(peaks)) == ([9, 5], 14)


def test_gaps_count_for_a_jobs_own_limit() -> None:
    planner, limited = GappyPlanner(gaps_bytes=2 * REGION), workload(8, limit_bytes=7 * REGION)
    plans = fit(planner, POOL, (limited,), budget_bytes=16 * REGION)
    assert isinstance(plans, tuple)
    assert (plans[0].peak_bytes, grant_of(planner, POOL, limited, plans[0])) == (5 * REGION, 7 * REGION)


def test_jobs_that_find_no_place_together_do_not_fit() -> None:
    planner = GappyPlanner(gaps_bytes=5 * REGION)
    found = fit(planner, POOL, (workload(8, 1), workload(8, 2)), budget_bytes=16 * REGION)
    assert found == Infeasible(needed_bytes=18 * REGION, budget_bytes=16 * REGION, reason="no room for whole regions")


def test_a_job_that_no_device_has_a_place_for_is_granted_what_it_holds() -> None:
    planner = GappyPlanner(gaps_bytes=13 * REGION)
    plans = fit(planner, POOL, (workload(8),), budget_bytes=16 * REGION)
    assert isinstance(plans, tuple)
    assert grant_of(planner, POOL, workload(8), plans[0]) == 8 * REGION
    waiting = fit(GappyPlanner(gaps_bytes=10 * REGION), POOL, (workload(8),), budget_bytes=7 * REGION)
    assert waiting == Infeasible(
        needed_bytes=14 * REGION, budget_bytes=7 * REGION, reason="no room for whole regions"
    )


def test_a_planner_that_uses_more_than_it_was_given_is_told_so() -> None:
    class Greedy(HalvingPlanner):
        def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
            return super().plan(workloads, budget_bytes=budget_bytes + 1)

    with pytest.raises(InvariantError, match="was given 4194304 bytes and used"):
        fit(Greedy(), POOL, (workload(5),), budget_bytes=4 * REGION)


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.integers(0, 3 * REGION),
    st.integers(0, 16 * REGION),
    st.none() | st.integers(REGION, 12 * REGION),
)
def test_what_is_let_in_fits_or_could_not_be_placed_at_all(
    sizes: list[int], gaps_bytes: int, budget_bytes: int, limit_bytes: int | None
) -> None:
    planner = GappyPlanner(gaps_bytes=gaps_bytes)
    jobs = [workload(size, job, limit_bytes) for job, size in enumerate(sizes)]
    plans = fit(planner, POOL, jobs, budget_bytes=budget_bytes)
    least = [plan_at_least(planner, one) for one in jobs]
    if isinstance(plans, Infeasible):
        assert not fits(planner, POOL, jobs, least, budget_bytes=POOL.whole(budget_bytes))
        return
    grants = [grant_of(planner, POOL, *one) for one in zip(jobs, plans, strict=True)]
    assert sum(grants) <= POOL.whole(budget_bytes)
    if not fits(planner, POOL, jobs, plans, budget_bytes=POOL.whole(budget_bytes)):
        assert grants == [POOL.regions(plan.peak_bytes) for plan in plans]
        assert len(jobs) == 1


def plan_at_least(planner: GappyPlanner, one: Workload) -> JobPlan:
    least = planner.least_bytes(one)
    found = planner.plan((replace(one, limit_bytes=None),), budget_bytes=least)
    assert isinstance(found, tuple)
    return found[0]
