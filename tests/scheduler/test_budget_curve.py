"""The reported curve: more of anything, budget, time or bandwidth, never makes it worse."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Role, StepGraph
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, liveness_peak, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies.budget_curve import BudgetCurve, CurvePoint, undisturbed
from indb_tensile.scheduler.policies.candidate_curve import curve, plans_for
from indb_tensile.scheduler.timing.simulate import JobRun, simulate
from tests.scheduler.drawn import drawn
from tests.scheduler.strategies import graphs, latencies, links

SPEEDS = (
    500_000,
    2_000_000,
    8_000_000,
    20_000_000,
)  # those at which the strategies' tensors take as long as operators


def test_a_curve_is_asked_for_a_budget_or_for_a_time() -> None:
    points = tuple(
        CurvePoint(peak_bytes=p, iteration_ns=t, plan=Plan(policy=f"{p}"))
        for p, t in ((90, 100), (60, 110), (20, 300))
    )
    found = BudgetCurve(points=points, base_ns=100)
    assert [found.within(budget) for budget in (95, 90, 89, 20, 19)] == [*points[:1] * 2, points[1], points[2], None]
    assert [found.by(time_ns) for time_ns in (99, 100, 299, 300)] == [None, points[0], points[1], points[2]]
    assert found.eor(points[1]) == 1.1


def test_a_faster_link_offers_what_slower_ones_do_and_more() -> None:
    """40 bytes may leave for 300 ns; the grid's second speed brings them there and back in 80."""
    graph = drawn((40, Role.ACTIVATION, "w..r"), (60, Role.ACTIVATION, ".wr."))
    latency_ns = (10**6, 100, 100, 100)
    link = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
    slow, fast = (curve(graph, latency_ns, link, speeds=grid) for grid in ((10**5,), (10**5, 10**9, 10**10)))
    assert [point.peak_bytes for point in fast.points] == [100, 60]
    assert fast.points[0] == CurvePoint(peak_bytes=100, iteration_ns=1_000_300, plan=Plan(policy="tensile+"))
    assert fast.points[1].iteration_ns <= slow.points[-1].iteration_ns
    assert fast.points[1].plan in plans_for(graph, latency_ns, 10**9) + plans_for(graph, latency_ns, 10**5)


@settings(max_examples=40, deadline=None)
@given(graphs(), links(), st.booleans(), st.data())
def test_every_point_is_a_lawful_plan_and_what_it_says(
    graph: StepGraph, link: Link, rewrites: bool, data: st.DataObject
) -> None:
    link = replace(link, duplex=data.draw(st.sampled_from((1.0, 0.6))))
    latency_ns = data.draw(latencies(graph))
    found = curve(graph, latency_ns, link, rewrites=rewrites, speeds=SPEEDS)
    assert found.points[0].peak_bytes <= liveness_peak(graph)
    for higher, lower in pairwise(found.points):
        assert (higher.peak_bytes, lower.iteration_ns) > (lower.peak_bytes, higher.iteration_ns)
    for point in found.points:
        assert faults(graph, point.plan) == ()
        assert peak(graph, point.plan) == point.peak_bytes
        assert rewrites or not point.plan.executions
        real_ns = _iteration_ns(graph, latency_ns, link, point.plan)
        assert real_ns == point.iteration_ns if link.duplex == 1 else real_ns <= point.iteration_ns
    assert found.base_ns >= _iteration_ns(graph, latency_ns, link, LIVENESS)


@settings(max_examples=60, deadline=None)
@given(graphs(), links(), st.data())
def test_more_budget_time_or_bandwidth_is_never_worse(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    latency_ns = data.draw(latencies(graph))
    link = replace(link, duplex=data.draw(st.sampled_from((1.0, 0.8, 0.5))))
    faster = _faster(link, data)
    slow, fast = (curve(graph, latency_ns, one, speeds=SPEEDS) for one in (link, faster))
    budgets = sorted({p.peak_bytes + d for p in (*slow.points, *fast.points) for d in (-1, 0)})
    times = sorted({p.iteration_ns + d for p in (*slow.points, *fast.points) for d in (-1, 0)})
    for found in (slow, fast):
        assert _falls([_time(found, budget) for budget in budgets])
        assert _falls([_peak(found, time_ns) for time_ns in times])
    assert all(_time(fast, budget) <= _time(slow, budget) for budget in budgets)
    assert all(_peak(fast, time_ns) <= _peak(slow, time_ns) for time_ns in times)


def _faster(link: Link, data: st.DataObject) -> Link:
    """Some of it better and nothing worse."""
    factor = st.floats(1, 8)
    return Link(
        out_bytes_per_s=int(link.out_bytes_per_s * data.draw(factor)),
        in_bytes_per_s=int(link.in_bytes_per_s * data.draw(factor)),
        per_copy_ns=data.draw(st.integers(0, link.per_copy_ns)),
        duplex=data.draw(st.floats(link.duplex, 1)),
    )


def _time(found: BudgetCurve, budget_bytes: int) -> float:
    point = found.within(budget_bytes)
    return float("inf") if point is None else point.iteration_ns


def _peak(found: BudgetCurve, iteration_ns: int) -> float:
    point = found.by(iteration_ns)
    return float("inf") if point is None else point.peak_bytes


def _falls(values: list[float]) -> bool:
    return all(later <= earlier for earlier, later in pairwise(values))


def _iteration_ns(graph: StepGraph, latency_ns: tuple[int, ...], link: Link, plan: Plan) -> int:
    (found,) = simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link)
    return found.iteration_ns


def test_lanes_that_disturb_each_other_are_timed_at_their_slowest() -> None:
    link = Link(out_bytes_per_s=1000, in_bytes_per_s=600, per_copy_ns=30, duplex=0.5)
    assert undisturbed(link) == Link(out_bytes_per_s=500, in_bytes_per_s=300, per_copy_ns=60)
    assert undisturbed(undisturbed(link)) == undisturbed(link)
