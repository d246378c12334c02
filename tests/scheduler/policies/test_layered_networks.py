"""Check, on random networks of named layers, that policies that decide by layers or recompute give valid plans."""

import dataclasses

from hypothesis import event, given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Stage, StepGraph
from indb_tensile.scheduler.judges.check import faults_together
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.policies.policy import PlanOptions
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.nightly import some_examples
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
    """Draw a graph whose operators are layers. Those from a random operator on belong to the backward pass."""
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
    """Draw one or two jobs of one network each."""
    jobs = []
    for number in range(1, draw(st.integers(1, 2)) + 1):
        graph = draw(_networks())
        jobs.append(Workload(job=JobId(number), graphs=(graph,), latency_ns=(draw(latencies(graph)),)))
    return tuple(jobs)


@some_examples()
@given(_jobs(), links(), st.floats(0, 1), st.sampled_from(("vdnn", "superneurons", "capuchin")), st.booleans())
def test_plans_are_valid_and_capuchin_meets_every_budget(
    jobs: tuple[Workload, ...], link: Link, fraction: float, policy: str, rewrites: bool
) -> None:
    least = sum(least_bytes(job) for job in jobs)
    most = sum(liveness_peak(job.graphs[0]) for job in jobs)
    budget = least + int((most - least) * fraction)
    options = PlanOptions(rewrites=rewrites)
    plans = POLICIES[policy].plan(jobs, budget_bytes=budget, link=link, options=options)
    assert plans == POLICIES[policy].plan(jobs, budget_bytes=budget, link=link, options=options)
    pairs = [list(zip(job.graphs, chosen, strict=True)) for job, chosen in zip(jobs, plans, strict=True)]
    assert faults_together(pairs, budget_bytes=10**9) == ()
    recomputes = any(len(plan.executions) > len(graph.operators) for job_pairs in pairs for graph, plan in job_pairs)
    assert rewrites or not recomputes
    event(f"{policy}, swaps: {any(p.swaps for job_pairs in plans for p in job_pairs)}, runs again: {recomputes}")
    if policy == "capuchin":
        assert sum(peak(graph, plan) for job_pairs in pairs for graph, plan in job_pairs) <= budget
