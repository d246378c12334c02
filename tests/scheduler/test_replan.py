"""Check that renewed plans are valid, keep the same limits, and are never slower than the plans that they replace."""

from dataclasses import replace

from hypothesis import given
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
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.nightly import some_examples
from tests.scheduler.access_rows import graph_from_rows
from tests.scheduler.strategies import latencies, links, several_workloads

LINK = Link(out_bytes_per_s=1_000_000_000, in_bytes_per_s=1_000_000_000)  # 1 ns a byte


def test_plan_without_stalls_is_kept() -> None:
    job = _job(1)
    plans = tensile_plus((job,), budget_bytes=100, link=LINK, rewrites=False)
    assert [swap.free_at for swap in plans[0][0].swaps] == [2]
    renewed = replan((_timed(job, (300,) * 10),), plans, budget_bytes=100, link=LINK)
    assert renewed is not None
    assert renewed[0][0] is plans[0][0]


def test_copies_move_to_where_the_new_latencies_hide_them() -> None:
    """The copies take 40 ns. At the old latencies operators 1 and 8 hide them, at the new ones they do not."""
    job = _job(1)
    plans = tensile_plus((job,), budget_bytes=100, link=LINK, rewrites=False)
    drifted = _timed(job, (100, 10, 100, 100, 100, 100, 100, 100, 10, 100))
    renewed = replan((drifted,), plans, budget_bytes=100, link=LINK)
    swap = Swap(tensor=TensorId(0), out_after=OpIndex(0), free_at=OpIndex(3), in_at=OpIndex(7), needed_by=OpIndex(9))
    assert renewed == ((Plan(policy="tensile+", swaps=(swap,)),),)
    assert (_slowdown((drifted,), plans, LINK), _slowdown((drifted,), renewed, LINK)) == ((820 + 60) / 820, 1.0)


def test_renewed_plan_meets_a_lower_budget() -> None:
    job = _job(1, more=((30, Role.PARAMETER, "..r....r.."),))
    plans = tensile_plus((job,), budget_bytes=130, link=LINK, rewrites=False)
    renewed = replan((job,), plans, budget_bytes=100, link=LINK)
    assert renewed is not None
    assert [swap.tensor for swap in plans[0][0].swaps] == [0]
    assert [swap.tensor for swap in renewed[0][0].swaps] == [0, 1]


def test_plan_that_cannot_be_renewed_gives_none() -> None:
    job = _job(1)
    plans = tensile_plus((job,), budget_bytes=100, link=LINK, rewrites=False)
    plan = plans[0][0]
    assert replan((job,), plans, budget_bytes=99, link=LINK) is None, "the floor is 100"
    assert replan((job, _job(2)), (plans[0], plans[0]), budget_bytes=199, link=LINK) is None, (
        "each of the two jobs has a floor of 100"
    )
    assert replan((replace(job, limit_bytes=99),), plans, budget_bytes=100, link=LINK) is None
    assert replan((job, _job(2)), plans, budget_bytes=500, link=LINK) is None
    unusable_plans = (
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
    for unusable in unusable_plans:
        assert replan((job,), ((unusable,),), budget_bytes=10**6, link=LINK) is None, unusable


@some_examples()
@given(several_workloads(), links(), st.floats(0, 1.1), st.booleans(), st.data())
def test_renewed_plan_is_valid_within_its_limits_and_no_slower(
    jobs: tuple[Workload, ...], link: Link, fraction: float, rewrites: bool, data: st.DataObject
) -> None:
    least, most = sum(map(least_bytes, jobs)), sum(max(liveness_peak(g) for g in w.graphs) for w in jobs)
    budget = least + int(fraction * (most - least))
    plans = tensile_plus(jobs, budget_bytes=budget, link=link, rewrites=rewrites)
    drifted = tuple(replace(w, latency_ns=tuple(data.draw(latencies(g)) for g in w.graphs)) for w in jobs)
    renewed = replan(drifted, plans, budget_bytes=budget, link=link)
    assert renewed is not None, "a plan for the budget can be renewed"
    assert renewed == replan(drifted, plans, budget_bytes=budget, link=link)
    pairs = [list(zip(w.graphs, chosen, strict=True)) for w, chosen in zip(drifted, renewed, strict=True)]
    assert check.faults_together(pairs, budget_bytes=budget) == ()
    assert rewrites or all(not plan.executions for chosen in renewed for plan in chosen)
    assert _slowdown(drifted, renewed, link) <= _slowdown(drifted, plans, link)


def _job(job: int, more: tuple[tuple[int, Role, str], ...] = ()) -> Workload:
    """Return a job whose first and last of ten operators read a parameter. Operator 5 has a workspace of 100
    bytes.
    """
    graph = graph_from_rows((40, Role.PARAMETER, "r........r"), *more)
    large_operator = replace(graph.operators[5], workspace_bytes=100)
    graph = replace(graph, operators=(*graph.operators[:5], large_operator, *graph.operators[6:]))
    return Workload(job=JobId(job), graphs=(graph,), latency_ns=((100,) * 10,))


def _timed(job: Workload, latency_ns: tuple[int, ...]) -> Workload:
    return replace(job, latency_ns=(latency_ns,))


def _slowdown(jobs: tuple[Workload, ...], plans: Plans, link: Link) -> float:
    runs = [
        JobRun(graph=w.graphs[0], plan=p[0], latency_ns=w.latency_ns[0]) for w, p in zip(jobs, plans, strict=True)
    ]
    return sum(f.iteration_ns / sum(r.latency_ns) for f, r in zip(simulate(runs, link), runs, strict=True))
