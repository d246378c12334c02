"""Check that the reported budget curve is monotone: a larger budget, more time or a faster link never gives a worse
value.
"""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Role, StepGraph
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, liveness_peak, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies.budget_curve import BudgetCurve, CurvePoint, undisturbed
from indb_tensile.scheduler.policies.candidate_curve import curve, plans_for
from tests.nightly import some_examples
from tests.scheduler.access_rows import graph_from_rows
from tests.scheduler.plan_parts import iteration_ns
from tests.scheduler.strategies import graphs, latencies, links

SPEEDS = (
    500_000,
    2_000_000,
    8_000_000,
    20_000_000,
)  # at these speeds, copies of the strategies' tensors take about as long as operators


def test_curve_returns_its_best_point_within_a_budget_and_by_a_time() -> None:
    points = tuple(
        CurvePoint(peak_bytes=p, iteration_ns=t, plan=Plan(policy=f"{p}"))
        for p, t in ((90, 100), (60, 110), (20, 300))
    )
    budget_curve = BudgetCurve(points=points, base_ns=100)
    assert [budget_curve.within(budget) for budget in (95, 90, 89, 20, 19)] == [
        *points[:1] * 2,
        points[1],
        points[2],
        None,
    ]
    assert [budget_curve.by(time_ns) for time_ns in (99, 100, 299, 300)] == [None, points[0], points[1], points[2]]
    assert budget_curve.eor(points[1]) == 1.1


def test_faster_link_adds_plans_and_keeps_those_of_slower_links() -> None:
    """40 bytes may leave for 300 ns. At the second speed of the grid both copies take 80 ns."""
    graph = graph_from_rows((40, Role.ACTIVATION, "w..r"), (60, Role.ACTIVATION, ".wr."))
    latency_ns = (10**6, 100, 100, 100)
    link = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
    slow, fast = (curve(graph, latency_ns, link, speeds=grid) for grid in ((10**5,), (10**5, 10**9, 10**10)))
    assert [point.peak_bytes for point in fast.points] == [100, 60]
    assert fast.points[0] == CurvePoint(peak_bytes=100, iteration_ns=1_000_300, plan=Plan(policy="tensile+"))
    assert fast.points[1].iteration_ns <= slow.points[-1].iteration_ns
    assert fast.points[1].plan in plans_for(graph, latency_ns, 10**9) + plans_for(graph, latency_ns, 10**5)


@some_examples()
@given(graphs(), links(), st.booleans(), st.data())
def test_every_point_has_a_valid_plan_with_the_stated_peak_and_time(
    graph: StepGraph, link: Link, rewrites: bool, data: st.DataObject
) -> None:
    link = replace(link, duplex=data.draw(st.sampled_from((1.0, 0.6))))
    latency_ns = data.draw(latencies(graph))
    budget_curve = curve(graph, latency_ns, link, rewrites=rewrites, speeds=SPEEDS)
    assert budget_curve.points[0].peak_bytes <= liveness_peak(graph)
    for higher, lower in pairwise(budget_curve.points):
        assert (higher.peak_bytes, lower.iteration_ns) > (lower.peak_bytes, higher.iteration_ns)
    for point in budget_curve.points:
        assert faults(graph, point.plan) == ()
        assert peak(graph, point.plan) == point.peak_bytes
        assert rewrites or not point.plan.executions
        real_ns = iteration_ns(graph, point.plan, latency_ns, link)
        assert real_ns == point.iteration_ns if link.duplex == 1 else real_ns <= point.iteration_ns
    assert budget_curve.base_ns >= iteration_ns(graph, LIVENESS, latency_ns, link)


@some_examples()
@given(graphs(), links(), st.data())
def test_more_budget_time_or_bandwidth_is_never_worse(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    latency_ns = data.draw(latencies(graph))
    link = replace(link, duplex=data.draw(st.sampled_from((1.0, 0.8, 0.5))))
    faster = _faster(link, data)
    slow, fast = (curve(graph, latency_ns, lanes, speeds=SPEEDS) for lanes in (link, faster))
    budgets = sorted({p.peak_bytes + d for p in (*slow.points, *fast.points) for d in (-1, 0)})
    times = sorted({p.iteration_ns + d for p in (*slow.points, *fast.points) for d in (-1, 0)})
    for budget_curve in (slow, fast):
        assert _never_rises([_time(budget_curve, budget) for budget in budgets])
        assert _never_rises([_peak(budget_curve, time_ns) for time_ns in times])
    assert all(_time(fast, budget) <= _time(slow, budget) for budget in budgets)
    assert all(_peak(fast, time_ns) <= _peak(slow, time_ns) for time_ns in times)


def _faster(link: Link, data: st.DataObject) -> Link:
    """Return a link of which no property is worse and some may be better."""
    factor = st.floats(1, 8)
    return Link(
        out_bytes_per_s=int(link.out_bytes_per_s * data.draw(factor)),
        in_bytes_per_s=int(link.in_bytes_per_s * data.draw(factor)),
        per_copy_ns=data.draw(st.integers(0, link.per_copy_ns)),
        duplex=data.draw(st.floats(link.duplex, 1)),
    )


def _time(budget_curve: BudgetCurve, budget_bytes: int) -> float:
    point = budget_curve.within(budget_bytes)
    return float("inf") if point is None else point.iteration_ns


def _peak(budget_curve: BudgetCurve, iteration_ns: int) -> float:
    point = budget_curve.by(iteration_ns)
    return float("inf") if point is None else point.peak_bytes


def _never_rises(values: list[float]) -> bool:
    return all(later <= earlier for earlier, later in pairwise(values))


def test_lanes_that_slow_each_other_down_are_timed_at_their_slowest() -> None:
    link = Link(out_bytes_per_s=1000, in_bytes_per_s=600, per_copy_ns=30, duplex=0.5)
    assert undisturbed(link) == Link(out_bytes_per_s=500, in_bytes_per_s=300, per_copy_ns=60)
    assert undisturbed(undisturbed(link)) == undisturbed(link)
