"""Check that judging and scoring take steps in proportion to operators, accesses and swaps: a graph of twice the size
takes twice the steps.

A step is one executed line of the scheduler's own sources. Each call gets a graph of its own, so no cached result of
an earlier call shortens it.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.judges.bound_moments import Moments
from indb_tensile.scheduler.judges.check import faults, steps
from indb_tensile.scheduler.judges.equivalence import judge
from indb_tensile.scheduler.judges.gate_check import most_bytes
from indb_tensile.scheduler.judges.peak_bound import bound_bytes
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import rewrite
from indb_tensile.scheduler.score import score
from indb_tensile.scheduler.timing.job_runs import Compute, JobRun
from indb_tensile.scheduler.timing.schedule import Gate, Schedule
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload
from tests.nightly import nightly_unless
from tests.scheduler.large import FAMILIES, busy_plan, lines_run

_LINK = Link(out_bytes_per_s=25 * 10**9, in_bytes_per_s=25 * 10**9, per_copy_ns=1_000)
_FEW = 150  # operators
_GROWTH = 1.1  # the largest accepted growth of the steps for each operator when the operators are doubled


def _latency(graph: StepGraph) -> tuple[int, ...]:
    return (20_000,) * len(graph.operators)


def _judge(graph: StepGraph, plan: Plan) -> None:
    assert faults(graph, plan) == ()


def _equivalence(graph: StepGraph, plan: Plan) -> None:
    assert judge(graph, plan.executions).faults == ()


def _rewrite(graph: StepGraph, plan: Plan) -> None:
    rewrite(graph, plan.executions)


def _peak(graph: StepGraph, plan: Plan) -> None:
    peak(graph, plan)


def _simulate(graph: StepGraph, plan: Plan) -> None:
    simulate([JobRun(graph=graph, plan=plan, latency_ns=_latency(graph))], _LINK)


def _simulate_together(graph: StepGraph, plan: Plan) -> None:
    run = JobRun(graph=graph, plan=plan, latency_ns=_latency(graph))
    simulate([run, run], _LINK, compute=Compute.TURNS)


def _moments(graph: StepGraph, plan: Plan) -> None:
    moments = Moments(graph, _latency(graph), _LINK)
    moments.held_bytes()
    moments.moment(int(moments.fixed.nonzero()[0][-1]) // 2)


def _bound(graph: StepGraph, plan: Plan) -> None:
    bound_bytes(graph, _latency(graph), _LINK, 21_000 * len(graph.operators))


def _cuts(graph: StepGraph, plan: Plan) -> None:
    """Judge two jobs. Every tenth operator of the second job waits for the same operator of the first."""
    loads = steps([(graph, plan)])
    count = len(loads.running_bytes)
    gates = tuple(
        Gate(job=1, iteration=0, operator=k, after_job=0, after_iteration=0, after_operator=k)
        for k in range(5, count - 5, 10)
    )
    schedule = Schedule(jobs=(0, 1), iterations=(1, 1), gates=gates, budget_bytes=1)
    most_bytes([loads, loads], schedule)


def _score(graph: StepGraph, plan: Plan) -> None:
    workload = Workload(job=JobId(1), graphs=(graph,), latency_ns=(_latency(graph),))
    (job_score,) = score([workload], [(plan,)], _LINK)
    assert job_score.faults == ()


@pytest.mark.by_day("_judge", "_equivalence", "_rewrite", "_peak", "_simulate-", "_moments", "_cuts")
@pytest.mark.parametrize("family", nightly_unless(lambda family: family == "residual", FAMILIES))
@pytest.mark.parametrize(
    "call",
    [
        *(_judge, _equivalence, _rewrite, _peak, _simulate, _moments, _bound, _cuts),
        *(pytest.param(call, marks=pytest.mark.nightly) for call in (_simulate_together, _score)),  # seconds each
    ],
)
def test_twice_the_operators_take_about_twice_the_steps(family: str, call: Callable[[StepGraph, Plan], None]) -> None:
    few, many = (_steps_each(FAMILIES[family](operators), call) for operators in (_FEW, 2 * _FEW))
    assert many / few <= _GROWTH, f"{many} steps for each of {2 * _FEW} operators, {few} for each of {_FEW}"


def _steps_each(graph: StepGraph, call: Callable[[StepGraph, Plan], None]) -> float:
    """Return the lines run for each operator, for a graph without cached results and a plan made before."""
    plan = busy_plan(graph)
    uncached = replace(graph)
    return lines_run(lambda: call(uncached, plan)) / len(graph.operators)
