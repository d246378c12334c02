"""Renewed plans: lawful, within the same limits, and never slower than the plans that were followed."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.scheduler import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import liveness_peak
from indb_tensile.scheduler.policies.tensile_plus import Plans, tensile_plus
from indb_tensile.scheduler.replan import replan
from indb_tensile.scheduler.simulate import JobRun, simulate
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.scheduler.strategies import latencies, links, several_workloads


@settings(max_examples=200, deadline=None)
@given(several_workloads(), links(), st.floats(0, 1.1), st.booleans(), st.data())
def test_a_renewed_plan_keeps_every_rule_and_limit_and_is_no_slower(
    jobs: tuple[Workload, ...], link: Link, fraction: float, rewrites: bool, data: st.DataObject
) -> None:
    least, most = sum(map(least_bytes, jobs)), sum(max(liveness_peak(g) for g in w.graphs) for w in jobs)
    budget = least + int(fraction * (most - least))
    plans = tensile_plus(jobs, budget_bytes=budget, link=link, rewrites=rewrites)
    moved = tuple(replace(w, latency_ns=tuple(data.draw(latencies(g)) for g in w.graphs)) for w in jobs)
    found = replan(moved, plans, budget_bytes=budget, link=link)
    assert found is not None, "a plan for the budget can be gone on from"
    assert found == replan(moved, plans, budget_bytes=budget, link=link)
    pairs = [list(zip(w.graphs, chosen, strict=True)) for w, chosen in zip(moved, found, strict=True)]
    assert check.faults_together(pairs, budget_bytes=budget) == ()
    assert rewrites or all(not plan.executions for chosen in found for plan in chosen)
    assert _slowdown(moved, found, link) <= _slowdown(moved, plans, link)


def _slowdown(jobs: tuple[Workload, ...], plans: Plans, link: Link) -> float:
    runs = [
        JobRun(graph=w.graphs[0], plan=p[0], latency_ns=w.latency_ns[0]) for w, p in zip(jobs, plans, strict=True)
    ]
    return sum(f.iteration_ns / sum(r.latency_ns) for f, r in zip(simulate(runs, link), runs, strict=True))
