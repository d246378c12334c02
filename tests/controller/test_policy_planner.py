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
SLOW = Link(out_bytes_per_s=4 * 10**9, in_bytes_per_s=4 * 10**9)  # a tensor in a quarter of an operator
LINK = Link(out_bytes_per_s=10**12, in_bytes_per_s=10**12)


def chain(count: int) -> Workload:
    """`count` activations made one after another, then read back in reverse: much idles across the peak."""
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


def test_tensile_plans_below_the_liveness_peak_and_says_the_floor_is_the_least() -> None:
    workload, planner = chain(8), PolicyPlanner(link=LINK, policy="tensile+")
    peak_bytes = liveness_peak(workload.graphs[0])
    assert planner.least_bytes(workload) == floor(workload.graphs[0])
    plans = planner.plan((workload,), budget_bytes=peak_bytes - MIB)
    assert not isinstance(plans, Infeasible)
    assert plans[0].peak_bytes < peak_bytes


def test_where_the_host_pool_is_small_plans_swap_less_and_where_nothing_helps_it_is_named() -> None:
    workload = chain(8)
    budget_bytes = liveness_peak(workload.graphs[0]) - 3 * MIB
    free = PolicyPlanner(link=SLOW, policy="tensile+").plan((workload,), budget_bytes=budget_bytes)
    assert not isinstance(free, Infeasible)
    kept_bytes = host_bytes(workload.graphs, free[0].plans)
    assert kept_bytes >= 3 * MIB
    small = PolicyPlanner(link=SLOW, policy="tensile+", host_bytes=kept_bytes)
    assert small.plan((workload,), budget_bytes=budget_bytes) == free
    smaller = PolicyPlanner(link=SLOW, policy="tensile+", host_bytes=kept_bytes - MIB)
    found = smaller.plan((workload,), budget_bytes=budget_bytes)
    assert not isinstance(found, Infeasible)
    assert found[0].peak_bytes <= budget_bytes
    assert host_bytes(workload.graphs, found[0].plans) < kept_bytes
    assert found == smaller.foresee((workload,), found)
    nothing = PolicyPlanner(link=SLOW, policy="tensile+", host_bytes=0)
    refused = nothing.plan((workload,), budget_bytes=floor(workload.graphs[0]))
    assert isinstance(refused, Infeasible)
    assert refused.needed_bytes == liveness_peak(workload.graphs[0])
    assert "host_pool_bytes" in refused.reason


def test_what_a_job_has_of_the_host_pool_counts_until_it_follows_another_plan() -> None:
    workload = chain(8)
    budget_bytes = liveness_peak(workload.graphs[0]) - 3 * MIB
    free = PolicyPlanner(link=SLOW, policy="tensile+").plan((workload,), budget_bytes=budget_bytes)
    assert not isinstance(free, Infeasible)
    kept_bytes = host_bytes(workload.graphs, free[0].plans)
    planner = PolicyPlanner(link=SLOW, policy="tensile+", host_bytes=2 * kept_bytes)
    beside = replace(chain(0), job=JobId(2), host_bytes=kept_bytes)  # whatever it is given, it has that until then
    both = (workload, beside)
    assert planner.plan(both, budget_bytes=budget_bytes + 2 * MIB) == planner.plan(
        (workload, replace(beside, host_bytes=0)), budget_bytes=budget_bytes + 2 * MIB
    )
    more = (workload, replace(beside, host_bytes=kept_bytes + MIB))
    less = planner.plan(more, budget_bytes=budget_bytes + 2 * MIB)
    assert not isinstance(less, Infeasible)
    assert host_bytes(workload.graphs, less[0].plans) < kept_bytes
    assert planner.renew(more, (*free, less[1]), budget_bytes=budget_bytes + 2 * MIB) is None


def test_drifted_plans_are_renewed_within_the_budget_and_no_slower() -> None:
    planner = PolicyPlanner(link=LINK, policy="tensile+")
    for count in (8, 1_600):
        workload = chain(count)
        budget_bytes = liveness_peak(workload.graphs[0]) * 4 // 5
        plans = planner.plan((workload,), budget_bytes=budget_bytes)
        assert not isinstance(plans, Infeasible)
        slower = replace(workload, latency_ns=(tuple(2 * ns for ns in workload.latency_ns[0]),))
        again = planner.renew((slower,), plans, budget_bytes=budget_bytes)
        assert again is not None
        for plan in again:
            assert plan.peak_bytes <= budget_bytes
            assert plan.forecast.compute_ns == sum(slower.latency_ns[0])
            assert plan.forecast.iteration_ns <= planner.foresee((slower,), plans)[0].forecast.iteration_ns


def test_improving_ends_with_what_is_raised_meanwhile_and_else_does_not_depend_on_who_watches() -> None:
    workload, heard = chain(8), []
    budget_bytes = liveness_peak(workload.graphs[0]) * 2 // 3
    planner = PolicyPlanner(link=SLOW, policy="tensile+")
    plans = planner.plan((workload,), budget_bytes=budget_bytes)
    assert not isinstance(plans, Infeasible)
    watched = replace(planner, cancellation_check=lambda: heard.append(len(heard)))
    found = planner.renew((workload,), plans, budget_bytes=budget_bytes)
    assert watched.renew((workload,), plans, budget_bytes=budget_bytes) == found
    assert len(heard) > 1
    cancellation = ImprovementCancellation()
    cancellation.end()
    with pytest.raises(ImprovementCancelled):
        replace(planner, cancellation_check=cancellation.check).renew((workload,), plans, budget_bytes=budget_bytes)
    cancellation.begin()
    hurried = replace(planner, cancellation_check=cancellation.check)
    assert hurried.renew((workload,), plans, budget_bytes=budget_bytes) == found


def test_tensile_as_published_goes_as_low_as_nobody_waits_and_says_so() -> None:
    """At 1,000 MB/s a copy takes an operator and a bit: what the floor would take, this link does not give."""
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


def test_plans_of_other_policies_are_made_anew() -> None:
    workload, planner = chain(8), PolicyPlanner(link=LINK, policy="liveness")
    peak_bytes = liveness_peak(workload.graphs[0])
    plans = planner.plan((workload,), budget_bytes=peak_bytes)
    assert not isinstance(plans, Infeasible)
    assert planner.renew((workload,), plans, budget_bytes=peak_bytes) is None


def test_the_settings_policies_are_all_there() -> None:
    assert set(config.POLICIES) <= set(POLICIES)


def test_liveness_swaps_nothing_and_its_one_peak_is_the_least() -> None:
    workload, planner = chain(8), PolicyPlanner(link=LINK, policy="liveness")
    peak_bytes = liveness_peak(workload.graphs[0])
    assert planner.least_bytes(replace(workload, limit_bytes=MIB)) == peak_bytes
    assert isinstance(planner.plan((workload,), budget_bytes=peak_bytes - MIB), Infeasible)
