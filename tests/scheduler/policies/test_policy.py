"""What a policy has to bring, and what it gets if it is no more than a function."""

from collections.abc import Sequence

import pytest

from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.errors import MissingError
from indb_tensile.job import JobId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, floor, liveness_peak, peak
from indb_tensile.scheduler.phased_plans import phased
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.planner import plan_jobs, renew
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES, policy_named
from indb_tensile.scheduler.policies.capuchin import capuchin
from indb_tensile.scheduler.policies.policy import FunctionPolicy, PlanOptions, Plans
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.timing.machines import REFERENCE, latencies
from indb_tensile.scheduler.workload import Workload, least_bytes

_LINK = REFERENCE.link


class _AskedError(Exception):
    """The cancellation check was called."""


def test_policies_are_objects_under_their_own_names() -> None:
    assert {name: policy.name for name, policy in POLICIES.items()} == {name: name for name in POLICIES}
    assert policy_named(DEFAULT_POLICY) is POLICIES["tensile+"]
    with pytest.raises(MissingError, match="there is no policy 'none'"):
        policy_named("none")


def test_a_plain_function_plans_anew_for_each_budget_and_is_told_only_whether_operators_may_run_again() -> None:
    calls: list[tuple[int, bool]] = []

    def noting(
        workloads: Sequence[Workload],
        *,
        budget_bytes: int,
        link: Link,
        rewrites: bool = True,
        cache: PlanCache | None = None,
    ) -> Plans:
        del link, cache
        calls.append((budget_bytes, rewrites))
        return tuple((LIVENESS,) * len(workload.graphs) for workload in workloads)

    job = _job(40)
    policy = FunctionPolicy("noting", noting)
    options = PlanOptions(rewrites=False, effort=Effort.FULL)
    planner = policy.budget_planner((job,), link=_LINK, options=options)
    assert planner.plans(7) == planner.plans_in_phases(8) == ((LIVENESS,),)
    assert calls == [(7, False), (8, False)]
    assert policy.renew((job,), ((LIVENESS,),), budget_bytes=7, link=_LINK) is None
    assert policy.least_bytes(job, link=_LINK) == liveness_peak(job.graphs[0])
    assert calls[2:] == [(0, True)]


def test_the_least_memory_is_that_of_a_plan_for_no_memory_unless_the_policy_reaches_the_floor() -> None:
    job = _job(30)
    (graph,) = job.graphs
    for name in ("liveness", "tensile", "capuchin", DEFAULT_POLICY):
        policy = POLICIES[name]
        ((plan,),) = policy.plan((job,), budget_bytes=0, link=_LINK)
        reached = floor(graph) if name == DEFAULT_POLICY else peak(graph, plan)
        assert policy.least_bytes(job, link=_LINK) == reached, name


def test_the_curve_of_a_function_is_made_of_its_plans() -> None:
    (graph,), (latency_ns,) = _job(30).graphs, _job(30).latency_ns
    curve = FunctionPolicy("capuchin", capuchin).budget_curve(graph, latency_ns, _LINK)
    assert curve.points[0].peak_bytes <= liveness_peak(graph)
    assert len(curve.points) > 2
    for point in curve.points:
        assert point.peak_bytes == peak(graph, point.plan)
        assert point.plan.policy == "capuchin"
    ours = POLICIES[DEFAULT_POLICY].budget_curve(graph, latency_ns, _LINK)
    assert ours.points[-1].peak_bytes <= curve.points[-1].peak_bytes


def test_only_tensile_plus_renews_plans_and_only_its_search_can_be_cancelled() -> None:
    def cancelled() -> None:
        raise _AskedError

    job = _job(30)
    budget_bytes = (floor(job.graphs[0]) + liveness_peak(job.graphs[0])) // 2
    for name in ("vanilla", "tensile", "capuchin", "zico", DEFAULT_POLICY):
        planned = plan_jobs((job,), budget_bytes=1 << 62, link=_LINK, policy=name)
        assert isinstance(planned, tuple)
        renewed = renew((job,), planned, budget_bytes=1 << 62, link=_LINK, policy=name)
        assert (renewed is not None) is (name == DEFAULT_POLICY), name
        if name == DEFAULT_POLICY:
            with pytest.raises(_AskedError):
                plan_jobs((job,), budget_bytes=budget_bytes, link=_LINK, policy=name, cancellation_check=cancelled)
        else:
            plan_jobs((job,), budget_bytes=budget_bytes, link=_LINK, policy=name, cancellation_check=cancelled)


def test_zico_brings_gates_of_its_own() -> None:
    jobs = (_job(40), _job(60, 2))
    plans = ((Plan(policy="zico"),),) * 2
    budget_bytes = sum(liveness_peak(job.graphs[0]) for job in jobs) * 3 // 4
    assert budget_bytes > max(map(least_bytes, jobs))
    own, interleaved = (
        phased(jobs, plans, budget_bytes=budget_bytes, link=_LINK, policy=policy) for policy in ("zico", "liveness")
    )
    assert own != interleaved


def _job(operators: int, number: int = 1) -> Workload:
    graph = residual(operators)
    return Workload(job=JobId(number), graphs=(graph,), latency_ns=(latencies(graph, REFERENCE),))
