"""Check the first plan of a graph: it is valid, meets every limit that swapping alone meets, and takes work in
proportion to the graph's size.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.bench.harness.networks.recurrent import recurrent
from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak, peak
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from indb_tensile.scheduler.search.execution_orders import ExecutionOrders
from indb_tensile.scheduler.search.layout_allowances import layout_allowance
from indb_tensile.scheduler.search.local_search import Effort, fits_layout_limit
from indb_tensile.scheduler.search.step_search import StepSearch
from indb_tensile.scheduler.timing.machines import REFERENCE, latencies, link
from tests.nightly import nightly_unless, some_examples
from tests.scheduler.strategies import graphs as step_graphs
from tests.scheduler.strategies import latencies as step_latencies
from tests.scheduler.strategies import links

LARGE = 4_000  # operators; smaller and larger graphs must be searched in the same way
SWEPT = 200  # layouts of the sweeps at every price in every order, for any size
LINK = link(25.0)


@given(st.data(), step_graphs(), links(), st.sampled_from(Effort))
def test_plan_is_valid_and_meets_every_limit_that_swapping_everything_meets(
    data: st.DataObject, graph: StepGraph, lanes: Link, effort: Effort
) -> None:
    latency_ns = data.draw(step_latencies(graph))
    swap_all = StepSearch(graph, latency_ns, lanes)
    swap_all.exhaust()
    limit_bytes = data.draw(st.integers(swap_all.peak_bytes, max(swap_all.peak_bytes, liveness_peak(graph))))
    candidates = CandidatePlans(graph, latency_ns, lanes, effort=effort)
    candidate = candidates.best(limit_bytes)
    plan = candidates.plan(candidate, "test")
    assert faults(graph, plan) == ()
    assert peak(graph, plan) == candidate.peak_bytes <= limit_bytes
    if effort > Effort.QUICK:  # quick effort alone does not search the captured order
        assert candidate.iteration_ns <= swap_all.iteration_ns


@some_examples()
@given(st.data(), step_graphs(), links())
def test_equal_graphs_get_equal_plans(data: st.DataObject, graph: StepGraph, lanes: Link) -> None:
    latency_ns = data.draw(step_latencies(graph))
    limit_bytes = data.draw(st.integers(floor(graph), max(floor(graph), liveness_peak(graph))))
    plans = []
    for equal_graph in (graph, replace(graph)):
        candidates = CandidatePlans(equal_graph, latency_ns, lanes)
        plans.append(candidates.within(limit_bytes, "test"))
    assert plans[0] == plans[1]


@pytest.mark.nightly
@pytest.mark.parametrize("family", nightly_unless(lambda family: family is recurrent, [residual, recurrent]))
@pytest.mark.parametrize("share", [pytest.param(60, marks=pytest.mark.nightly), 30])
def test_larger_graph_takes_no_more_layouts(family: Callable[[int], StepGraph], share: int) -> None:
    """The cost of one layout is linear in the size, so planning is linear if the number of layouts does not grow."""
    layouts = []
    for operators in (8_000, 16_000):
        graph = family(operators)
        candidates = CandidatePlans(graph, latencies(graph, REFERENCE), LINK)
        candidate = candidates.best(liveness_peak(graph) * share // 100)
        layouts.append(candidates.layouts)
        assert candidate.peak_bytes <= liveness_peak(graph) * share // 100
        assert candidate.iteration_ns < 1.3 * candidates.top.iteration_ns
        assert candidates.layouts <= layout_allowance(operators) + SWEPT
    assert layouts[1] <= layouts[0]


@pytest.mark.nightly
@pytest.mark.parametrize("share", [90, 60, 30])
def test_overhead_hardly_changes_with_depth_across_a_large_size(share: int) -> None:
    """The overhead is compared, not the time: a deeper network of equal blocks can save the same share for each
    block.
    """
    overheads = []
    for operators in (LARGE - 75, LARGE - 50, LARGE, LARGE + 25):
        graph = residual(operators)
        candidates = CandidatePlans(graph, latencies(graph, REFERENCE), LINK)
        candidate = candidates.best(liveness_peak(graph) * share // 100)
        overheads.append(candidate.iteration_ns / candidates.top.iteration_ns)
    assert max(overheads) <= 1.02 * min(overheads)


@pytest.mark.parametrize(("share", "most_overhead"), [(60, 1.016), (50, 1.070)])
def test_largest_update_runs_later_where_its_state_would_return_at_the_peak(share: int, most_overhead: float) -> None:
    """Its state of 256 MiB comes in while two thirds of the activations are on the device, if it runs beside its
    gradient: then the overheads are 1.026 and 1.082.
    """
    graph = _last_layer_with_large_state()
    candidates = CandidatePlans(graph, (*(4_000_000,) * 12, 100_000), LINK)
    candidate = candidates.best(liveness_peak(graph) * share // 100)
    plan = candidates.plan(candidate, "test")
    assert faults(graph, plan) == ()
    assert candidate.iteration_ns <= most_overhead * candidates.top.iteration_ns


def _last_layer_with_large_state() -> StepGraph:
    """Return six layers with activations of 64 MiB. The last layer alone has a parameter."""
    mib = 1024 * 1024
    sizes = [(16, Role.PARAMETER), (256, Role.OPTIMIZER_STATE), (16, Role.ACTIVATION), *[(64, Role.ACTIVATION)] * 6]
    tensors = tuple(
        Tensor(id=TensorId(k), name=f"t{k}", size_bytes=size * mib, role=role) for k, (size, role) in enumerate(sizes)
    )
    forward = [_operator(f"forward {k}", Stage.FORWARD, (2 + k,) if k else (), (3 + k,)) for k in range(6)]
    backward = [_operator(f"backward {k}", Stage.BACKWARD, (3 + k,), ()) for k in reversed(range(5))]
    last = _operator("backward 5", Stage.BACKWARD, (0, 8), (2,))
    update = replace(_operator("update", Stage.OPTIMIZER, (0, 1, 2), (0, 1)), splittable=True)
    return StepGraph(tensors=tensors, operators=(*forward, last, *backward, update))


def _operator(name: str, stage: Stage, reads: tuple[int, ...], writes: tuple[int, ...]) -> Operator:
    return Operator(
        name=name,
        signature=name,
        stage=stage,
        reads=tuple(map(TensorId, reads)),
        writes=tuple(map(TensorId, writes)),
    )


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


@pytest.mark.nightly
def test_full_effort_improves_large_graphs_in_bounded_layouts() -> None:
    graph = residual(8_000)
    latency_ns, limit_bytes = latencies(graph, REFERENCE), liveness_peak(graph) * 2 // 5
    usual, full = (CandidatePlans(graph, latency_ns, LINK, effort=effort) for effort in (Effort.USUAL, Effort.FULL))
    assert full.best(limit_bytes).iteration_ns < usual.best(limit_bytes).iteration_ns
    assert full.layouts <= 60 * 1_000_000 // 8_000


def test_sweep_alone_meets_the_limit_without_recomputation() -> None:
    graph = recurrent(3_000)
    latency_ns, limit_bytes = latencies(graph, REFERENCE), liveness_peak(graph) // 2
    orders = ExecutionOrders(graph, latency_ns, LINK, share=1.0, rewrites=False, early=False)
    search = orders.search(0)
    assert search.sweep(limit_bytes, drops=False, lane_price=0.0)
    plan = search.plan("test")
    assert (faults(graph, plan), plan.executions, search.room_bytes) == ((), (), limit_bytes)
    assert search.peak_bytes <= limit_bytes


def test_local_search_that_exceeds_the_layout_limit_does_not_start() -> None:
    assert fits_layout_limit(1_000, 40)
    assert not fits_layout_limit(10_000, 40)
