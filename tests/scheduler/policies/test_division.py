"""Check how a budget is divided between jobs that are planned one by one."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.policies.division import Demand, divide
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.nightly import some_examples
from tests.scheduler.strategies import links, workloads

FIRST = Demand(floor_bytes=4, least_bytes=20, most_bytes=100)
SECOND = Demand(floor_bytes=2, least_bytes=10, most_bytes=40)


def test_each_job_gets_its_most_if_the_budget_is_large_enough() -> None:
    assert divide((FIRST, SECOND), 140) == (100, 40)
    assert divide((FIRST, SECOND), 10**9) == (100, 40)


def test_bytes_above_the_least_are_divided_in_proportion_to_demand() -> None:
    assert divide((FIRST, SECOND), 85) == (60, 25)


def test_bytes_above_the_floors_are_divided_in_proportion_below_the_least() -> None:
    assert divide((FIRST, SECOND), 18) == (12, 6)
    assert divide((FIRST, SECOND), 1) == (4, 2)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), max_size=5),
    st.integers(0, 500),
)
def test_limits_keep_the_budget_unless_the_floors_exceed_it(jobs: list[tuple[int, int, int]], budget: int) -> None:
    demands = [Demand(floor_bytes=a, least_bytes=a + b, most_bytes=a + b + c) for a, b, c in jobs]
    limits = divide(demands, budget)
    assert sum(limits) <= max(budget, sum(d.floor_bytes for d in demands))
    assert all(d.floor_bytes <= limit <= d.most_bytes for d, limit in zip(demands, limits, strict=True))


@some_examples()
@given(workloads(), st.integers(2, 4), st.floats(0, 1.1), links())
def test_per_job_policies_plan_equal_jobs_as_one_job_alone(
    job: Workload, count: int, fraction: float, link: Link
) -> None:
    least, most = least_bytes(job), max(liveness_peak(graph) for graph in job.graphs)
    budget_bytes = least + int((most - least) * fraction)
    jobs = tuple(replace(job, job=JobId(number)) for number in range(1, count + 1))
    for name in (policy.name for policy in POLICIES.values() if policy.plans_jobs_apart):
        alone = POLICIES[name].plan((job,), budget_bytes=budget_bytes, link=link)
        assert POLICIES[name].plan(jobs, budget_bytes=count * budget_bytes, link=link) == alone * count, name
