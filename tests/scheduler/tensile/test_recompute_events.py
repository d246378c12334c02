"""Check TENSILE's section IV-D on graphs small enough to follow by hand. Operators take 100 us unless a test says
otherwise.
"""

import dataclasses
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import OpIndex, Role, StepGraph, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import peak
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.tensile.recompute_events import RecomputeEvents, msps
from indb_tensile.scheduler.tensile.swap_events import Rules, SwapEvents
from tests.scheduler.access_rows import graph_from_rows
from tests.scheduler.plan_parts import execution_order
from tests.scheduler.strategies import graphs, latencies, links

LINK = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)
US = 1000
ACTIVATION, PARAMETER, BATCH = Role.ACTIVATION, Role.PARAMETER, Role.INPUT


def _graph(*rows: tuple[int, Role, str], workspace: Mapping[int, int] | None = None) -> StepGraph:
    """Return the graph of these rows. Operator 0 uploads the batch, which cannot be recomputed."""
    return graph_from_rows(*rows, workspace=workspace, uploads=(0,))


# Operator 1 makes 60 bytes from the batch. Operator 5 reads both. The peak is 170 bytes at operator 3.
RECOMPUTABLE = _graph((10, BATCH, "wr...r."), (60, ACTIVATION, ".w...r."), (100, ACTIVATION, "...wr.."))


def test_msps_is_bytes_saved_for_each_unit_of_time() -> None:
    """Equation 4."""
    assert msps(600, 200) == 3.0
    assert msps(600, 0) == 600.0


def test_tensor_is_released_after_a_use_and_recomputed_before_the_next() -> None:
    events = _events(RECOMPUTABLE)
    assert events.peak_bytes == 170
    assert _recomputed(events) == [1]
    assert events.peak_bytes == 110
    plan = events.plan("test")
    assert plan == Plan(policy="test", executions=execution_order(0, 1, 2, 3, 4, 1, 5, 6))
    assert peak(RECOMPUTABLE, plan) == 110
    assert check.faults(RECOMPUTABLE, plan) == ()


def test_largest_msps_is_recomputed_first() -> None:
    """The tensors save 60 bytes for 100 us, 70 for 400 us and 60 for 300 us. The largest tensor is not the first.
    Operator 4 is the peak.
    """
    rows = (
        (10, BATCH, "wrrr...r"),
        (60, ACTIVATION, ".w.....r"),
        (70, ACTIVATION, "..w....r"),
        (60, ACTIVATION, "...w...r"),
    )
    graph = _graph(*rows, (300, ACTIVATION, "....wr.."))
    events = _events(graph, latency=(100, 100, 400, 300, 100, 100, 100, 100))
    assert _recomputed(events) == [1, 3, 2]


def test_only_tensors_idle_at_the_peak_are_recomputed() -> None:
    """At the peak, operator 4, 90 bytes are released, 60 bytes are idle and 30 bytes are in use."""
    rows = ((90, ACTIVATION, ".w.r...."), (60, ACTIVATION, "..w....r"), (30, ACTIVATION, ".w..r..."))
    assert _recomputed(_events(_graph((10, BATCH, "wrr....r"), *rows, (200, ACTIVATION, "....wr..")))) == [2]


def test_tensor_whose_source_was_released_is_not_recomputed() -> None:
    """Operator 2 reads the output of operator 1 last, so that output would have to be recomputed itself."""
    graph = _graph(
        (10, BATCH, "wr....r"), (20, ACTIVATION, ".wr...."), (60, ACTIVATION, "..w..r."), (100, ACTIVATION, "...wr..")
    )
    assert _recomputed(_events(graph)) == []


def test_tensor_whose_source_is_swapped_out_is_not_recomputed() -> None:
    graph = _graph((100, ACTIVATION, "...wr..."), (60, PARAMETER, ".r....r."), (60, ACTIVATION, ".w....r."))
    assert _recomputed(_events(graph)) == [2]
    assert _recomputed(_events(graph, swapped=(1, 3))) == []


def test_source_away_between_iterations_only_counts_as_held() -> None:
    graph = _graph((100, ACTIVATION, "....wr...."), (60, PARAMETER, "..r....u.."), (60, ACTIVATION, "..w....r.."))
    assert _recomputed(_events(graph, swapped=(1, 0))) == [2]
    assert _recomputed(_events(graph, swapped=(1, 5))) == []


def test_swapped_tensor_is_not_recomputed() -> None:
    graph = _graph((10, BATCH, "wr....r"), (60, ACTIVATION, ".w....r"), (100, ACTIVATION, "...wr.."))
    assert _recomputed(_events(graph)) == [1]
    assert _recomputed(_events(graph, swapped=(1, 3))) == []


def test_source_of_a_recomputation_is_not_released() -> None:
    """Tensor 2 is made from tensor 1, and both are made from tensors that stay. If one of them is recomputed, the
    other one stays.
    """
    rows = (
        (10, BATCH, "wr....r"),
        (60, ACTIVATION, ".wr...r"),
        (50, ACTIVATION, "..w..r."),
        (100, ACTIVATION, "...wr.."),
    )
    cheap_last = _events(_graph(*rows), latency=(100, 400, 100, 100, 100, 100, 100))
    assert _recomputed(cheap_last) == [2]
    cheap_first = _events(_graph(*rows), latency=(100, 100, 400, 100, 100, 100, 100))
    assert _recomputed(cheap_first) == [1]


def test_source_may_be_released_after_its_recomputation() -> None:
    """Tensor 2 is recomputed before operator 5. From then to operator 9 tensor 1 is idle, over another peak."""
    rows = ((10, BATCH, "wr.......r"), (60, ACTIVATION, ".wr..r...r"), (50, ACTIVATION, "..w..r...."))
    graph = _graph(*rows, (100, ACTIVATION, "...wr....."), (105, ACTIVATION, "......wr.."))
    events = _events(graph, latency=(100, 400, *(100,) * 8))
    assert _recomputed(events) == [2, 1]
    plan = events.plan("test")
    assert plan.executions == execution_order(0, 1, 2, 3, 4, 2, 5, 6, 7, 8, 1, 9)
    assert check.faults(graph, plan) == ()
    assert peak(graph, plan) == events.peak_bytes == 170


# Operator 1 runs again before operator 6. Then the batch, its output and 50 bytes more are held: 120 of 170.
BESIDE_OTHERS = (
    (10, BATCH, "wr....r."),
    (60, ACTIVATION, ".w....r."),
    (100, ACTIVATION, "...wr..."),
    (50, ACTIVATION, ".....wr."),
)


def test_workspace_of_the_recomputation_counts() -> None:
    assert _recomputed(_events(_graph(*BESIDE_OTHERS, workspace={1: 49}))) == [1]
    assert _recomputed(_events(_graph(*BESIDE_OTHERS, workspace={1: 50}))) == []


def test_other_outputs_of_the_rerun_operator_count() -> None:
    assert _recomputed(_events(_graph(*BESIDE_OTHERS, (49, ACTIVATION, ".w......")))) == [1]
    assert _recomputed(_events(_graph(*BESIDE_OTHERS, (50, ACTIVATION, ".w......")))) == []


def test_output_of_the_rerun_that_is_held_anyway_counts_once() -> None:
    """Operator 1 makes 40 bytes more, which operators 2 and 6 read. Before operator 6, 160 of 210 bytes are held."""
    output = (40, ACTIVATION, ".wr...r.")
    assert _recomputed(_events(_graph(*BESIDE_OTHERS, output, workspace={1: 49}))) == [1]
    assert _recomputed(_events(_graph(*BESIDE_OTHERS, output, workspace={1: 50}))) == []


def test_outputs_and_workspace_of_the_next_operator_do_not_count() -> None:
    output = (30, ACTIVATION, "......w.")
    assert _recomputed(_events(_graph(*BESIDE_OTHERS, output, workspace={1: 49, 6: 20}))) == [1]
    assert _recomputed(_events(_graph(*BESIDE_OTHERS, output, workspace={1: 50, 6: 20}))) == []


def test_recomputation_can_become_the_new_peak() -> None:
    """After tensor 1 the peak is the second run of operator 1, before operator 5. The source of tensor 3 is gone."""
    graph = _graph(
        (10, BATCH, "wr...r.r"),
        (60, ACTIVATION, ".w...r.."),
        (100, ACTIVATION, "...wr..."),
        (50, ACTIVATION, "..w....r"),
        (1, ACTIVATION, "w.r....."),
        workspace={1: 90},
    )
    events = _events(graph)
    first = events.offer()
    assert first is not None
    events.take(first)
    assert events.peak_bytes == 10 + 60 + 50 + 90
    assert events.offer() is None
    assert peak(graph, events.plan("test")) == 210


# Operator 1 reads statistics, which operator 3 updates from 30 bytes that operator 2 makes. If operator 1 runs again
# before operator 7, the update has to wait until then, and the 30 bytes stay. The peak is 198 bytes at operator 5.
NORMALISED = _graph(
    (10, BATCH, "wrr.r...r"),
    (8, Role.BUFFER, ".r.u....."),
    (60, ACTIVATION, ".w.....r."),
    (30, ACTIVATION, "..wr....."),
    (20, ACTIVATION, "....w...r"),
    (100, ACTIVATION, ".....wr.."),
)


def test_low_estimate_is_corrected_by_the_plan() -> None:
    events = _events(NORMALISED)
    first = events.offer()
    assert first is not None
    assert events.tensor_of(first) == 2
    events.take(first)
    assert events.peak_bytes == 138
    events.correct()
    assert events.peak_bytes == peak(NORMALISED, events.plan("test")) == 168


def test_plan_no_lower_than_swaps_alone_is_dropped() -> None:
    """The waiting tensor has 65 bytes, so saving 60 bytes costs 5 bytes."""
    heavy = dataclasses.replace(NORMALISED.tensors[3], size_bytes=65)
    graph = dataclasses.replace(NORMALISED, tensors=(*NORMALISED.tensors[:3], heavy, *NORMALISED.tensors[4:]))
    events = _events(graph)
    first = events.offer()
    assert first is not None
    events.take(first)
    assert events.plan("test") == Plan(policy="test")


def test_plan_without_recomputation_is_the_swaps_alone() -> None:
    swapped = SwapEvents(RECOMPUTABLE, (100 * US,) * 7, LINK, Rules())
    plan = RecomputeEvents(RECOMPUTABLE, (100 * US,) * 7, swapped).plan("test")
    assert plan == Plan(policy="test")


def test_swaps_keep_their_places_between_the_operators() -> None:
    graph = _graph(
        (10, BATCH, "wr....r"), (60, ACTIVATION, ".w....r"), (100, ACTIVATION, "...wr.."), (20, PARAMETER, "r.....r")
    )
    events = _events(graph, swapped=(3, 3))
    assert _recomputed(events) == [1]
    parameter_swap = Swap(
        tensor=TensorId(3), out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(5), needed_by=OpIndex(7)
    )
    assert events.plan("test") == Plan(
        policy="test", executions=execution_order(0, 1, 2, 3, 4, 5, 1, 6), swaps=(parameter_swap,)
    )


@given(st.data(), graphs(), links(), st.integers(1, 40))
def test_every_offered_recomputation_is_valid_and_never_raises_the_peak(
    data: st.DataObject, graph: StepGraph, link: Link, slowdown: int
) -> None:
    latency = tuple(ns * slowdown for ns in data.draw(latencies(graph)))
    swapped = SwapEvents(graph, latency, link, Rules())
    while len(candidates := swapped.candidates(swapped.peak.operator, limited=False)):
        swapped.schedule(int(candidates[0]), swapped.peak.operator)
    events = RecomputeEvents(graph, latency, swapped)
    estimated = events.peak_bytes
    assert estimated == swapped.peak.size_bytes
    while (offer := events.offer()) is not None:
        events.take(offer)
        assert events.peak_bytes <= estimated
        estimated = events.peak_bytes
        plan = events.plan("test")
        assert check.faults(graph, plan) == ()
        assert peak(graph, plan) <= swapped.peak.size_bytes
    events.correct()
    assert peak(graph, events.plan("test")) <= events.peak_bytes


def _events(
    graph: StepGraph, *, swapped: tuple[int, int] | None = None, latency: tuple[int, ...] | None = None
) -> RecomputeEvents:
    """Return the recomputations of a graph. `swapped` is a tensor and the operator before which the tensor is swapped
    out.
    """
    latency_ns = tuple(us * US for us in latency or (100,) * len(graph.operators))
    events = SwapEvents(graph, latency_ns, LINK, Rules())
    if swapped is not None:
        tensor, operator = swapped
        numbers = events.candidates(OpIndex(operator), limited=False).tolist()
        (number,) = [n for n in numbers if events.tensor_of(n) == tensor]
        assert events.schedule(number, OpIndex(operator))
    return RecomputeEvents(graph, latency_ns, events)


def _recomputed(events: RecomputeEvents) -> list[int]:
    """Return the recomputed tensors in the order in which they were chosen."""
    tensors: list[int] = []
    while (offer := events.offer()) is not None:
        tensors.append(events.tensor_of(offer))
        events.take(offer)
    return tensors
