"""Check the planner that plans with a policy: budgets, the host pool, renewal, and cancellation."""

from dataclasses import replace

import pytest

from indb_tensile import config
from indb_tensile.controller.background_planner import ImprovementCancellation, ImprovementCancelled
from indb_tensile.controller.policy_planner import PolicyPlanner
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.host_memory import host_bytes
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.workload import Workload

MIB = 1 << 20
SLOW = Link(out_bytes_per_s=4 * 10**9, in_bytes_per_s=4 * 10**9)  # copies a tensor in a quarter of an operator's time
LINK = Link(out_bytes_per_s=10**12, in_bytes_per_s=10**12)


def chain(count: int) -> Workload:
    """`count` activations made one after another, then read back in reverse, so that most are idle at the peak."""
    tensors = tuple(
        Tensor(id=TensorId(i), name=f"a{i}", size_bytes=MIB, role=Role.ACTIVATION) for i in range(count + 1)
    )
    forward = [((), (TensorId(0),)), *(((TensorId(i),), (TensorId(i + 1),)) for i in range(count))]
    backward = [((TensorId(i),), ()) for i in reversed(range(count + 1))]
    operators = tuple(
        Operator(name="op", signature=f"op{k}", stage=Stage.FORWARD, reads=reads, writes=writes)
        for k, (reads, writes) in enumerate([*forward, *backward])
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    return Workload(job=JobId(1), graphs=(graph,), latency_ns=((1_000_000,) * len(operators),))


def test_tensile_plus_plans_below_the_liveness_peak_and_down_to_the_floor() -> None:
    workload, planner = chain(8), PolicyPlanner(link=LINK, policy="tensile+")
    peak_bytes = liveness_peak(workload.graphs[0])
    assert planner.least_bytes(workload) == floor(workload.graphs[0])
    plans = planner.plan((workload,), budget_bytes=peak_bytes - MIB)
    assert not isinstance(plans, Infeasible)
    assert plans[0].peak_bytes < peak_bytes


def test_small_host_pool_limits_swaps_and_is_named_if_no_plan_fits() -> None:
    workload = chain(8)
    budget_bytes = liveness_peak(workload.graphs[0]) - 3 * MIB
    unlimited = PolicyPlanner(link=SLOW, policy="tensile+").plan((workload,), budget_bytes=budget_bytes)
    assert not isinstance(unlimited, Infeasible)
    pool_bytes = host_bytes(workload.graphs, unlimited[0].plans)
    assert pool_bytes >= 3 * MIB
    small = PolicyPlanner(link=SLOW, policy="tensile+", host_bytes=pool_bytes)
    assert small.plan((workload,), budget_bytes=budget_bytes) == unlimited
    smaller = PolicyPlanner(link=SLOW, policy="tensile+", host_bytes=pool_bytes - MIB)
    plans = smaller.plan((workload,), budget_bytes=budget_bytes)
    assert not isinstance(plans, Infeasible)
    assert plans[0].peak_bytes <= budget_bytes
    assert host_bytes(workload.graphs, plans[0].plans) < pool_bytes
    assert plans == smaller.foresee((workload,), plans)
    without_pool = PolicyPlanner(link=SLOW, policy="tensile+", host_bytes=0)
    refused = without_pool.plan((workload,), budget_bytes=floor(workload.graphs[0]))
    assert isinstance(refused, Infeasible)
    assert refused.needed_bytes == liveness_peak(workload.graphs[0])
    assert "host_pool_bytes" in refused.reason


def test_plans_leave_the_host_memory_of_parked_jobs_alone() -> None:
    workload = chain(8)
    budget_bytes = liveness_peak(workload.graphs[0]) - 3 * MIB
    unlimited = PolicyPlanner(link=SLOW, policy="tensile+").plan((workload,), budget_bytes=budget_bytes)
    assert not isinstance(unlimited, Infeasible)
    pool_bytes = host_bytes(workload.graphs, unlimited[0].plans)
    planner = PolicyPlanner(link=SLOW, policy="tensile+", host_bytes=pool_bytes + MIB)
    beside_parked = replace(workload, parked_host_bytes=MIB)
    assert planner.plan((beside_parked,), budget_bytes=budget_bytes) == unlimited
    plans = planner.plan((replace(workload, parked_host_bytes=2 * MIB),), budget_bytes=budget_bytes)
    assert not isinstance(plans, Infeasible)
    assert host_bytes(workload.graphs, plans[0].plans) < pool_bytes
    # The job that returns counts with its own bytes, which only the other jobs' workloads contain.
    returning = replace(chain(0), job=JobId(2), host_bytes=MIB, parked_host_bytes=0)
    both = (replace(workload, parked_host_bytes=MIB), returning)
    together = planner.plan(both, budget_bytes=budget_bytes + 2 * MIB)
    assert together == planner.plan((workload, returning), budget_bytes=budget_bytes + 2 * MIB)


def test_host_memory_of_the_old_plan_counts_until_the_job_follows_the_new_plan() -> None:
    workload = chain(8)
    budget_bytes = liveness_peak(workload.graphs[0]) - 3 * MIB
    unlimited = PolicyPlanner(link=SLOW, policy="tensile+").plan((workload,), budget_bytes=budget_bytes)
    assert not isinstance(unlimited, Infeasible)
    pool_bytes = host_bytes(workload.graphs, unlimited[0].plans)
    planner = PolicyPlanner(link=SLOW, policy="tensile+", host_bytes=2 * pool_bytes)
    other_job = replace(chain(0), job=JobId(2), host_bytes=pool_bytes)  # until it follows a new plan
    both = (workload, other_job)
    assert planner.plan(both, budget_bytes=budget_bytes + 2 * MIB) == planner.plan(
        (workload, replace(other_job, host_bytes=0)), budget_bytes=budget_bytes + 2 * MIB
    )
    larger = (workload, replace(other_job, host_bytes=pool_bytes + MIB))
    less_swapping = planner.plan(larger, budget_bytes=budget_bytes + 2 * MIB)
    assert not isinstance(less_swapping, Infeasible)
    assert host_bytes(workload.graphs, less_swapping[0].plans) < pool_bytes
    assert planner.renew(larger, (*unlimited, less_swapping[1]), budget_bytes=budget_bytes + 2 * MIB) is None


def test_renewed_plans_fit_the_budget_and_are_no_slower() -> None:
    planner = PolicyPlanner(link=LINK, policy="tensile+")
    for count in (8, 1_600):
        workload = chain(count)
        budget_bytes = liveness_peak(workload.graphs[0]) * 4 // 5
        plans = planner.plan((workload,), budget_bytes=budget_bytes)
        assert not isinstance(plans, Infeasible)
        slower = replace(workload, latency_ns=(tuple(2 * ns for ns in workload.latency_ns[0]),))
        renewed = planner.renew((slower,), plans, budget_bytes=budget_bytes)
        assert renewed is not None
        for plan in renewed:
            assert plan.peak_bytes <= budget_bytes
            assert plan.forecast.compute_ns == sum(slower.latency_ns[0])
            assert plan.forecast.iteration_ns <= planner.foresee((slower,), plans)[0].forecast.iteration_ns


def test_cancellation_check_ends_an_improvement_and_changes_no_result() -> None:
    workload, checks = chain(8), []
    budget_bytes = liveness_peak(workload.graphs[0]) * 2 // 3
    planner = PolicyPlanner(link=SLOW, policy="tensile+")
    plans = planner.plan((workload,), budget_bytes=budget_bytes)
    assert not isinstance(plans, Infeasible)
    watched = replace(planner, cancellation_check=lambda: checks.append(len(checks)))
    improved = planner.renew((workload,), plans, budget_bytes=budget_bytes)
    assert watched.renew((workload,), plans, budget_bytes=budget_bytes) == improved
    assert len(checks) > 1
    cancellation = ImprovementCancellation()
    cancellation.end()
    with pytest.raises(ImprovementCancelled):
        replace(planner, cancellation_check=cancellation.check).renew((workload,), plans, budget_bytes=budget_bytes)
    cancellation.begin()
    hurried = replace(planner, cancellation_check=cancellation.check)
    assert hurried.renew((workload,), plans, budget_bytes=budget_bytes) == improved


def test_published_tensile_plans_down_to_the_lowest_peak_without_stalls() -> None:
    """At 1,000 MB/s a copy takes slightly longer than an operator, so no plan without stalls reaches the floor."""
    workload = replace(chain(8), max_swapping_rate=0.5)
    planner = PolicyPlanner(link=Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9), policy="tensile")
    least = planner.least_bytes(replace(workload, limit_bytes=MIB))
    assert floor(workload.graphs[0]) < least < liveness_peak(workload.graphs[0])
    plans = planner.plan((replace(workload, max_swapping_rate=1.0),), budget_bytes=least)
    assert not isinstance(plans, Infeasible)
    assert plans[0].peak_bytes == least
    assert plans[0].forecast.stall_out_ns == plans[0].forecast.stall_in_ns == 0
    refusal = planner.plan((workload,), budget_bytes=least - 1)
    assert isinstance(refusal, Infeasible)


def test_policy_liveness_does_not_renew_plans() -> None:
    workload, planner = chain(8), PolicyPlanner(link=LINK, policy="liveness")
    peak_bytes = liveness_peak(workload.graphs[0])
    plans = planner.plan((workload,), budget_bytes=peak_bytes)
    assert not isinstance(plans, Infeasible)
    assert planner.renew((workload,), plans, budget_bytes=peak_bytes) is None


def test_every_policy_of_the_settings_exists() -> None:
    assert set(config.POLICIES) <= set(POLICIES)


def test_liveness_swaps_nothing_and_needs_its_peak() -> None:
    workload, planner = chain(8), PolicyPlanner(link=LINK, policy="liveness")
    peak_bytes = liveness_peak(workload.graphs[0])
    assert planner.least_bytes(replace(workload, limit_bytes=MIB)) == peak_bytes
    assert isinstance(planner.plan((workload,), budget_bytes=peak_bytes - MIB), Infeasible)
