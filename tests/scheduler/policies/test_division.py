"""How a budget is divided between jobs that are planned one by one."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.policies.division import Demand, divide
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.scheduler.strategies import links, workloads

FIRST = Demand(floor_bytes=4, least_bytes=20, most_bytes=100)
SECOND = Demand(floor_bytes=2, least_bytes=10, most_bytes=40)


def test_each_job_gets_all_it_would_take_where_there_is_enough() -> None:
    assert divide((FIRST, SECOND), 140) == (100, 40)
    assert divide((FIRST, SECOND), 10**9) == (100, 40)


def test_what_is_left_over_the_least_is_given_in_proportion_to_what_is_wanted() -> None:
    assert divide((FIRST, SECOND), 85) == (60, 25)


def test_below_what_the_policy_reaches_the_same_goes_for_the_floors() -> None:
    assert divide((FIRST, SECOND), 18) == (12, 6)
    assert divide((FIRST, SECOND), 1) == (4, 2)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), max_size=5),
    st.integers(0, 500),
)
def test_the_limits_are_within_the_budget_unless_the_floors_are_not(
    jobs: list[tuple[int, int, int]], budget: int
) -> None:
    demands = [Demand(floor_bytes=a, least_bytes=a + b, most_bytes=a + b + c) for a, b, c in jobs]
    limits = divide(demands, budget)
    assert sum(limits) <= max(budget, sum(d.floor_bytes for d in demands))
    assert all(d.floor_bytes <= limit <= d.most_bytes for d, limit in zip(demands, limits, strict=True))


@settings(max_examples=60, deadline=None)
@given(workloads(), st.integers(2, 4), st.floats(0, 1.1), links())
def test_policies_that_plan_each_job_by_itself_give_equal_jobs_what_one_alone_gets(
    one: Workload, count: int, fraction: float, link: Link
) -> None:
    least, most = least_bytes(one), max(liveness_peak(graph) for graph in one.graphs)
    budget_bytes = least + int((most - least) * fraction)
    jobs = tuple(replace(one, job=JobId(number)) for number in range(1, count + 1))
    for name in (policy.name for policy in POLICIES.values() if policy.plans_jobs_apart):
        alone = POLICIES[name].plan((one,), budget_bytes=budget_bytes, link=link)
        assert POLICIES[name].plan(jobs, budget_bytes=count * budget_bytes, link=link) == alone * count, name
