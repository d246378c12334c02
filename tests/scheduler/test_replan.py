"""Renewed plans: lawful, within the same limits, and never slower than the plans that were followed."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import OpIndex, Role, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.policies.replan import replan
from indb_tensile.scheduler.policies.tensile_plus import tensile_plus
from indb_tensile.scheduler.timing.simulate import JobRun, simulate
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.scheduler.drawn import drawn
from tests.scheduler.strategies import latencies, links, several_workloads

LINK = Link(out_bytes_per_s=1_000_000_000, in_bytes_per_s=1_000_000_000)  # 1 ns a byte


def test_a_plan_that_waits_for_nothing_is_kept_as_it_is() -> None:
    job = _job(1)
    plans = tensile_plus((job,), budget_bytes=100, link=LINK, rewrites=False)
    assert [swap.free_at for swap in plans[0][0].swaps] == [2]
    renewed = replan((_timed(job, (300,) * 10),), plans, budget_bytes=100, link=LINK)
    assert renewed is not None
    assert renewed[0][0] is plans[0][0]


def test_copies_end_and_begin_where_the_new_times_have_room() -> None:
    """The copies take 40 ns: operators 1 and 8 were long enough to hide them, and are not any more."""
    job = _job(1)
    plans = tensile_plus((job,), budget_bytes=100, link=LINK, rewrites=False)
    moved = _timed(job, (100, 10, 100, 100, 100, 100, 100, 100, 10, 100))
    renewed = replan((moved,), plans, budget_bytes=100, link=LINK)
    swap = Swap(tensor=TensorId(0), out_after=OpIndex(0), free_at=OpIndex(3), in_at=OpIndex(7), needed_by=OpIndex(9))
    assert renewed == ((Plan(policy="tensile+", swaps=(swap,)),),)
    assert (_slowdown((moved,), plans, LINK), _slowdown((moved,), renewed, LINK)) == ((820 + 60) / 820, 1.0)


def test_a_lower_budget_is_gone_on_to() -> None:
    job = _job(1, more=((30, Role.PARAMETER, "..r....r.."),))
    plans = tensile_plus((job,), budget_bytes=130, link=LINK, rewrites=False)
    renewed = replan((job,), plans, budget_bytes=100, link=LINK)
    assert renewed is not None
    assert [swap.tensor for swap in plans[0][0].swaps] == [0]
    assert [swap.tensor for swap in renewed[0][0].swaps] == [0, 1]


def test_what_cannot_be_gone_on_from_is_for_planning_anew() -> None:
    job = _job(1)
    plans = tensile_plus((job,), budget_bytes=100, link=LINK, rewrites=False)
    plan = plans[0][0]
    assert replan((job,), plans, budget_bytes=99, link=LINK) is None, "the floor is 100"
    assert replan((job, _job(2)), (plans[0], plans[0]), budget_bytes=199, link=LINK) is None, "so it is twice"
    assert replan((replace(job, limit_bytes=99),), plans, budget_bytes=100, link=LINK) is None
    assert replan((job, _job(2)), plans, budget_bytes=500, link=LINK) is None
    wrong = (
        replace(plan, policy="capuchin"),
        replace(plan, release=False),
        replace(plan, away=frozenset({TensorId(0)})),
        replace(plan, away=frozenset({TensorId(7)})),
        replace(plan, executions=(Execution(operator=OpIndex(11)),)),
        replace(plan, executions=(Execution(operator=OpIndex(0)),)),
        replace(plan, swaps=(replace(plan.swaps[0], tensor=TensorId(9)),)),
        replace(plan, swaps=(replace(plan.swaps[0], out_after=OpIndex(1)),)),
        replace(plan, swaps=(replace(plan.swaps[0], needed_by=OpIndex(8)),)),
        replace(plan, swaps=(replace(plan.swaps[0], in_at=OpIndex(1)),)),
        replace(plan, swaps=(replace(plan.swaps[0], free_at=OpIndex(70)),)),
    )
    for other in wrong:
        assert replan((job,), ((other,),), budget_bytes=10**6, link=LINK) is None, other


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


def _job(job: int, more: tuple[tuple[int, Role, str], ...] = ()) -> Workload:
    """A parameter that the first and the last of ten operators read, and a busy moment in between."""
    graph = drawn((40, Role.PARAMETER, "r........r"), *more)
    busy = replace(graph.operators[5], workspace_bytes=100)
    graph = replace(graph, operators=(*graph.operators[:5], busy, *graph.operators[6:]))
    return Workload(job=JobId(job), graphs=(graph,), latency_ns=((100,) * 10,))


def _timed(job: Workload, latency_ns: tuple[int, ...]) -> Workload:
    return replace(job, latency_ns=(latency_ns,))


def _slowdown(jobs: tuple[Workload, ...], plans: Plans, link: Link) -> float:
    runs = [
        JobRun(graph=w.graphs[0], plan=p[0], latency_ns=w.latency_ns[0]) for w, p in zip(jobs, plans, strict=True)
    ]
    return sum(f.iteration_ns / sum(r.latency_ns) for f, r in zip(simulate(runs, link), runs, strict=True))
