"""Random networks of named layers: the policies that decide by layers or recompute break no rule on any of them."""

import dataclasses

from hypothesis import event, given, settings
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Stage, StepGraph
from indb_tensile.scheduler.judges.check import faults_together
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.policies.policy import PlanOptions
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.scheduler.strategies import graphs, latencies, links

_FORWARD = (
    "aten.convolution.default",
    "aten.relu.default",
    "aten.max_pool2d_with_indices.default",
    "aten._native_batch_norm_legit_functional.default",
    "aten.add.Tensor",
    "aten.cat.default",
    "aten.mm.default",
)
_BACKWARD = ("aten.convolution_backward.default", "aten.threshold_backward.default", "aten.mm.default")


@st.composite
def _networks(draw: st.DrawFn) -> StepGraph:
    """A random graph whose operators are layers, forward up to some operator and backward from there."""
    graph = draw(graphs())
    turn = draw(st.integers(0, len(graph.operators)))
    operators = []
    for index, operator in enumerate(graph.operators):
        if operator.stage is not Stage.UPLOAD:
            stage, names = (Stage.FORWARD, _FORWARD) if index < turn else (Stage.BACKWARD, _BACKWARD)
            random = draw(st.integers(0, 9)) == 0
            operator = dataclasses.replace(operator, name=draw(st.sampled_from(names)), stage=stage, random=random)
        operators.append(operator)
    return dataclasses.replace(graph, operators=tuple(operators))


@st.composite
def _jobs(draw: st.DrawFn) -> tuple[Workload, ...]:
    found = []
    for number in range(1, draw(st.integers(1, 2)) + 1):
        graph = draw(_networks())
        found.append(Workload(job=JobId(number), graphs=(graph,), latency_ns=(draw(latencies(graph)),)))
    return tuple(found)


@settings(max_examples=400, deadline=None)
@given(_jobs(), links(), st.floats(0, 1), st.sampled_from(("vdnn", "superneurons", "capuchin")), st.booleans())
def test_no_rule_is_broken_and_capuchin_reaches_every_budget(
    jobs: tuple[Workload, ...], link: Link, fraction: float, policy: str, rewrites: bool
) -> None:
    floors = sum(least_bytes(job) for job in jobs)
    bars = sum(liveness_peak(job.graphs[0]) for job in jobs)
    budget = floors + int((bars - floors) * fraction)
    options = PlanOptions(rewrites=rewrites)
    plans = POLICIES[policy].plan(jobs, budget_bytes=budget, link=link, options=options)
    assert plans == POLICIES[policy].plan(jobs, budget_bytes=budget, link=link, options=options)
    pairs = [list(zip(job.graphs, chosen, strict=True)) for job, chosen in zip(jobs, plans, strict=True)]
    assert faults_together(pairs, budget_bytes=10**9) == ()
    again = any(len(plan.executions) > len(graph.operators) for of in pairs for graph, plan in of)
    assert rewrites or not again
    event(f"{policy}, swaps: {any(p.swaps for of in plans for p in of)}, runs again: {again}")
    if policy == "capuchin":
        assert sum(peak(graph, plan) for of in pairs for graph, plan in of) <= budget
