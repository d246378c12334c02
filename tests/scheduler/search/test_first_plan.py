"""The first plan of any graph: lawful, within the limit wherever swapping is, and of no more work than its size."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.bench.harness.recurrent import recurrent
from indb_tensile.bench.harness.residual import residual
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak, peak
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from indb_tensile.scheduler.search.execution_orders import ExecutionOrders
from indb_tensile.scheduler.search.first_plan import layout_allowance
from indb_tensile.scheduler.search.local_search import Effort, fits_layout_limit
from indb_tensile.scheduler.search.step_search import StepSearch
from indb_tensile.scheduler.timing.machines import REFERENCE, latencies, link
from tests.scheduler.strategies import graphs as step_graphs
from tests.scheduler.strategies import latencies as drawn_latencies
from tests.scheduler.strategies import links

FORMER_LIMIT = 4_000  # operators from which on another, poorer search had to do
SWEPT = 200  # layouts of sweeps at every price in every order, whatever the size
LINK = link(25.0)


@settings(max_examples=150, deadline=None)
@given(st.data(), step_graphs(), links(), st.sampled_from(Effort))
def test_a_plan_is_lawful_and_within_the_limit_wherever_swapping_everything_is(
    data: st.DataObject, graph: StepGraph, drawn_link: Link, effort: Effort
) -> None:
    latency_ns = data.draw(drawn_latencies(graph))
    everything = StepSearch(graph, latency_ns, drawn_link)
    everything.exhaust()
    limit_bytes = data.draw(st.integers(everything.peak_bytes, max(everything.peak_bytes, liveness_peak(graph))))
    ladder = CandidatePlans(graph, latency_ns, drawn_link, effort=effort)
    rung = ladder.best(limit_bytes)
    plan = ladder.plan(rung, "test")
    assert faults(graph, plan) == ()
    assert peak(graph, plan) == rung.peak_bytes <= limit_bytes
    if effort > Effort.QUICK:  # which alone does not search the captured order
        assert rung.iteration_ns <= everything.iteration_ns


@settings(max_examples=40, deadline=None)
@given(st.data(), step_graphs(), links())
def test_equal_graphs_get_equal_plans(data: st.DataObject, graph: StepGraph, drawn_link: Link) -> None:
    latency_ns = data.draw(drawn_latencies(graph))
    limit_bytes = data.draw(st.integers(floor(graph), max(floor(graph), liveness_peak(graph))))
    found = []
    for same in (graph, replace(graph)):
        ladder = CandidatePlans(same, latency_ns, drawn_link)
        found.append(ladder.within(limit_bytes, "test"))
    assert found[0] == found[1]


@pytest.mark.parametrize("family", [residual, recurrent])
@pytest.mark.parametrize("share", [60, 30])
def test_a_large_graph_is_planned_in_as_few_layouts_as_a_larger_one(
    family: Callable[[int], StepGraph], share: int
) -> None:
    """What one layout costs is linear; that so few are made is what makes planning so."""
    layouts = []
    for operators in (8_000, 16_000):
        graph = family(operators)
        ladder = CandidatePlans(graph, latencies(graph, REFERENCE), LINK)
        rung = ladder.best(liveness_peak(graph) * share // 100)
        layouts.append(ladder.layouts)
        assert rung.peak_bytes <= liveness_peak(graph) * share // 100
        assert rung.iteration_ns < 1.3 * ladder.top.iteration_ns
        assert ladder.layouts <= layout_allowance(operators) + SWEPT
    assert layouts[1] <= layouts[0]


@pytest.mark.parametrize("share", [90, 60, 30])
def test_a_network_one_block_deeper_takes_hardly_longer_across_the_former_limit(share: int) -> None:
    """The overhead, not the time: a deeper network of equal blocks has the same share to save per block."""
    overheads = []
    for operators in (FORMER_LIMIT - 75, FORMER_LIMIT - 50, FORMER_LIMIT, FORMER_LIMIT + 25):
        graph = residual(operators)
        ladder = CandidatePlans(graph, latencies(graph, REFERENCE), LINK)
        rung = ladder.best(liveness_peak(graph) * share // 100)
        overheads.append(rung.iteration_ns / ladder.top.iteration_ns)
    assert max(overheads) <= 1.02 * min(overheads)


def test_the_allowance_falls_smoothly_with_size() -> None:
    """No graph gets more than a hundredth less work than one of an operator less, once a layout is that little."""
    work = [layout_allowance(operators) * operators for operators in range(1_000, 12_000)]
    pairs = enumerate(pairwise(work), 1_000)
    assert all(0.99 * before <= after + operators for operators, (before, after) in pairs)
    assert layout_allowance(100) > layout_allowance(1_000) > layout_allowance(10_000) > layout_allowance(100_000)
    assert layout_allowance(10_000, 16) == pytest.approx(16 * layout_allowance(10_000), rel=0.1)


@pytest.mark.nightly
def test_more_work_never_loses_more_than_a_hundredth() -> None:
    graph = residual(600)
    latency_ns = latencies(graph, REFERENCE)
    for share in (80, 50, 30):
        times = [
            CandidatePlans(graph, latency_ns, LINK, work=work).best(liveness_peak(graph) * share // 100).iteration_ns
            for work in (0.25, 1.0, 4.0)
        ]
        assert times[2] <= 1.01 * times[1] <= 1.02 * times[0]


def test_all_effort_is_never_slower_than_the_usual_one_and_improves_large_graphs_in_bounded_layouts() -> None:
    graph = residual(8_000)
    latency_ns, limit_bytes = latencies(graph, REFERENCE), liveness_peak(graph) * 2 // 5
    usual, full = (CandidatePlans(graph, latency_ns, LINK, effort=effort) for effort in (Effort.USUAL, Effort.FULL))
    assert full.best(limit_bytes).iteration_ns < usual.best(limit_bytes).iteration_ns
    assert full.layouts <= 60 * 1_000_000 // 8_000


def test_what_is_swept_alone_is_within_the_limit_though_nothing_may_be_made_again() -> None:
    graph = recurrent(3_000)
    latency_ns, limit_bytes = latencies(graph, REFERENCE), liveness_peak(graph) // 2
    orders = ExecutionOrders(graph, latency_ns, LINK, share=1.0, rewrites=False, early=False)
    search = orders.search(0)
    assert search.sweep(limit_bytes, drops=False, lane_price=0.0)
    plan = search.plan("test")
    assert (faults(graph, plan), plan.executions, search.room_bytes) == ((), (), limit_bytes)
    assert search.peak_bytes <= limit_bytes


def test_a_way_down_is_not_begun_that_takes_more_layouts_than_there_are() -> None:
    assert fits_layout_limit(1_000, 40)
    assert not fits_layout_limit(10_000, 40)
