"""TENSILE section IV-D on graphs small enough to follow by hand: operators of 100 us unless a test says otherwise."""

import dataclasses
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import OpIndex, Role, StepGraph, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import peak
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.tensile.recompute_events import RecomputeEvents, msps
from indb_tensile.scheduler.tensile.swap_events import Rules, SwapEvents
from tests.scheduler.access_rows import graph_from_rows
from tests.scheduler.strategies import graphs, latencies, links

LINK = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)
US = 1000
ACTIVATION, PARAMETER, BATCH = Role.ACTIVATION, Role.PARAMETER, Role.INPUT


def _drawn(*rows: tuple[int, Role, str], workspace: Mapping[int, int] | None = None) -> StepGraph:
    """Operator 0 uploads the batch, which nobody can make again."""
    return graph_from_rows(*rows, workspace=workspace, uploads=(0,))


# Operator 1 makes 60 bytes of the batch, which are used at the end; the batch is used until then. Peak at 3: 170.
MADE_OF_THE_BATCH = _drawn((10, BATCH, "wr...r."), (60, ACTIVATION, ".w...r."), (100, ACTIVATION, "...wr.."))


def test_msps_is_what_is_saved_for_the_time_it_costs() -> None:
    """Equation 4."""
    assert msps(600, 200) == 3.0
    assert msps(600, 0) == 600.0


def test_a_tensor_is_released_after_a_use_and_made_again_before_the_next() -> None:
    events = _events(MADE_OF_THE_BATCH)
    assert events.peak_bytes == 170
    assert _recomputed(events) == [1]
    assert events.peak_bytes == 110
    plan = events.plan("test")
    assert plan == Plan(policy="test", executions=_order(0, 1, 2, 3, 4, 1, 5, 6))
    assert peak(MADE_OF_THE_BATCH, plan) == 110
    assert check.faults(MADE_OF_THE_BATCH, plan) == ()


def test_the_largest_msps_goes_first_not_the_largest_tensor() -> None:
    """60 bytes in 100 us against 70 in 400 us, and 60 in 300 us; operator 4 is the peak."""
    rows = (
        (10, BATCH, "wrrr...r"),
        (60, ACTIVATION, ".w.....r"),
        (70, ACTIVATION, "..w....r"),
        (60, ACTIVATION, "...w...r"),
    )
    graph = _drawn(*rows, (300, ACTIVATION, "....wr.."))
    events = _events(graph, latency=(100, 100, 400, 300, 100, 100, 100, 100))
    assert _recomputed(events) == [1, 3, 2]


def test_only_what_is_idle_on_the_device_at_the_peak_is_recomputed() -> None:
    """Of 90 bytes that are gone, 60 that are idle and 30 that are used at the peak, operator 4."""
    rows = ((90, ACTIVATION, ".w.r...."), (60, ACTIVATION, "..w....r"), (30, ACTIVATION, ".w..r..."))
    assert _recomputed(_events(_drawn((10, BATCH, "wrr....r"), *rows, (200, ACTIVATION, "....wr..")))) == [2]


def test_a_tensor_whose_source_is_released_before_is_not_recomputed() -> None:
    """What operator 1 makes is used for the last time by operator 2: it would have to be made again itself."""
    graph = _drawn(
        (10, BATCH, "wr....r"), (20, ACTIVATION, ".wr...."), (60, ACTIVATION, "..w..r."), (100, ACTIVATION, "...wr..")
    )
    assert _recomputed(_events(graph)) == []


def test_a_tensor_whose_source_is_swapped_out_meanwhile_is_not_recomputed() -> None:
    graph = _drawn((100, ACTIVATION, "...wr..."), (60, PARAMETER, ".r....r."), (60, ACTIVATION, ".w....r."))
    assert _recomputed(_events(graph)) == [2]
    assert _recomputed(_events(graph, swapped=(1, 3))) == []


def test_a_source_that_was_away_across_the_iterations_only_was_never_released_here() -> None:
    graph = _drawn((100, ACTIVATION, "....wr...."), (60, PARAMETER, "..r....u.."), (60, ACTIVATION, "..w....r.."))
    assert _recomputed(_events(graph, swapped=(1, 0))) == [2]
    assert _recomputed(_events(graph, swapped=(1, 5))) == []


def test_a_tensor_that_was_swapped_is_not_recomputed() -> None:
    graph = _drawn((10, BATCH, "wr....r"), (60, ACTIVATION, ".w....r"), (100, ACTIVATION, "...wr.."))
    assert _recomputed(_events(graph)) == [1]
    assert _recomputed(_events(graph, swapped=(1, 3))) == []


def test_a_source_that_is_relied_on_is_not_released_itself() -> None:
    """Tensor 2 is made of tensor 1, and both of what stays; whichever goes first, the other one stays."""
    rows = (
        (10, BATCH, "wr....r"),
        (60, ACTIVATION, ".wr...r"),
        (50, ACTIVATION, "..w..r."),
        (100, ACTIVATION, "...wr.."),
    )
    cheap_last = _events(_drawn(*rows), latency=(100, 400, 100, 100, 100, 100, 100))
    assert _recomputed(cheap_last) == [2]
    cheap_first = _events(_drawn(*rows), latency=(100, 100, 400, 100, 100, 100, 100))
    assert _recomputed(cheap_first) == [1]


def test_a_source_may_be_released_after_it_was_relied_on() -> None:
    """Tensor 2 is made again before operator 5; tensor 1 is idle from there to operator 9, over another peak."""
    rows = ((10, BATCH, "wr.......r"), (60, ACTIVATION, ".wr..r...r"), (50, ACTIVATION, "..w..r...."))
    graph = _drawn(*rows, (100, ACTIVATION, "...wr....."), (105, ACTIVATION, "......wr.."))
    events = _events(graph, latency=(100, 400, *(100,) * 8))
    assert _recomputed(events) == [2, 1]
    plan = events.plan("test")
    assert plan.executions == _order(0, 1, 2, 3, 4, 2, 5, 6, 7, 8, 1, 9)
    assert check.faults(graph, plan) == ()
    assert peak(graph, plan) == events.peak_bytes == 170


# Operator 1 runs again before operator 6, where the batch, what it makes and 50 bytes more are: 120 of 170 bytes.
BESIDE_OTHERS = (
    (10, BATCH, "wr....r."),
    (60, ACTIVATION, ".w....r."),
    (100, ACTIVATION, "...wr..."),
    (50, ACTIVATION, ".....wr."),
)


def test_the_moment_of_recomputation_counts_with_its_workspace() -> None:
    assert _recomputed(_events(_drawn(*BESIDE_OTHERS, workspace={1: 49}))) == [1]
    assert _recomputed(_events(_drawn(*BESIDE_OTHERS, workspace={1: 50}))) == []


def test_what_the_operator_makes_in_passing_counts_as_well() -> None:
    assert _recomputed(_events(_drawn(*BESIDE_OTHERS, (49, ACTIVATION, ".w......")))) == [1]
    assert _recomputed(_events(_drawn(*BESIDE_OTHERS, (50, ACTIVATION, ".w......")))) == []


def test_what_the_operator_makes_again_that_is_there_anyway_does_not_count_twice() -> None:
    """Operator 1 makes 40 bytes more, used by operators 2 and 6: 160 of 210 bytes are there before operator 6."""
    made = (40, ACTIVATION, ".wr...r.")
    assert _recomputed(_events(_drawn(*BESIDE_OTHERS, made, workspace={1: 49}))) == [1]
    assert _recomputed(_events(_drawn(*BESIDE_OTHERS, made, workspace={1: 50}))) == []


def test_what_the_next_operator_only_makes_or_needs_to_work_does_not_count_yet() -> None:
    made = (30, ACTIVATION, "......w.")
    assert _recomputed(_events(_drawn(*BESIDE_OTHERS, made, workspace={1: 49, 6: 20}))) == [1]
    assert _recomputed(_events(_drawn(*BESIDE_OTHERS, made, workspace={1: 50, 6: 20}))) == []


def test_the_moment_of_recomputation_can_become_the_peak_itself() -> None:
    """After tensor 1 the peak is where operator 1 runs again, before operator 5; tensor 3 has lost its source."""
    graph = _drawn(
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


# Operator 1 reads statistics that operator 3 updates, from 30 bytes that operator 2 makes. To run again before
# operator 7 it makes the update wait, and the 30 bytes with it. Peak at 5: 198 bytes.
NORMALISED = _drawn(
    (10, BATCH, "wrr.r...r"),
    (8, Role.BUFFER, ".r.u....."),
    (60, ACTIVATION, ".w.....r."),
    (30, ACTIVATION, "..wr....."),
    (20, ACTIVATION, "....w...r"),
    (100, ACTIVATION, ".....wr.."),
)


def test_an_estimate_that_was_too_low_is_corrected_by_the_plan() -> None:
    events = _events(NORMALISED)
    first = events.offer()
    assert first is not None
    assert events.tensor_of(first) == 2
    events.take(first)
    assert events.peak_bytes == 138
    events.correct()
    assert events.peak_bytes == peak(NORMALISED, events.plan("test")) == 168


def test_a_plan_that_comes_out_no_lower_than_the_swaps_alone_is_dropped() -> None:
    """With 65 bytes that wait, 60 bytes less are 5 more."""
    heavy = dataclasses.replace(NORMALISED.tensors[3], size_bytes=65)
    graph = dataclasses.replace(NORMALISED, tensors=(*NORMALISED.tensors[:3], heavy, *NORMALISED.tensors[4:]))
    events = _events(graph)
    first = events.offer()
    assert first is not None
    events.take(first)
    assert events.plan("test") == Plan(policy="test")


def test_where_recomputation_lowers_nothing_the_swaps_alone_are_the_plan() -> None:
    swapped = SwapEvents(MADE_OF_THE_BATCH, (100 * US,) * 7, LINK, Rules())
    plan = RecomputeEvents(MADE_OF_THE_BATCH, (100 * US,) * 7, swapped).plan("test")
    assert plan == Plan(policy="test")


def test_swaps_stand_where_they_were_between_the_operators() -> None:
    graph = _drawn(
        (10, BATCH, "wr....r"), (60, ACTIVATION, ".w....r"), (100, ACTIVATION, "...wr.."), (20, PARAMETER, "r.....r")
    )
    events = _events(graph, swapped=(3, 3))
    assert _recomputed(events) == [1]
    back = Swap(tensor=TensorId(3), out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(5), needed_by=OpIndex(7))
    assert events.plan("test") == Plan(policy="test", executions=_order(0, 1, 2, 3, 4, 5, 1, 6), swaps=(back,))


@given(st.data(), graphs(), links(), st.integers(1, 40))
def test_recomputing_whatever_is_offered_breaks_no_rule_and_never_raises_the_peak(
    data: st.DataObject, graph: StepGraph, link: Link, slow: int
) -> None:
    latency = tuple(ns * slow for ns in data.draw(latencies(graph)))
    swapped = SwapEvents(graph, latency, link, Rules())
    while len(found := swapped.candidates(swapped.peak.operator, limited=False)):
        swapped.schedule(int(found[0]), swapped.peak.operator)
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
    """Recomputation of a graph in which one (tensor, operator) is swapped out before that operator."""
    latency_ns = tuple(us * US for us in latency or (100,) * len(graph.operators))
    events = SwapEvents(graph, latency_ns, LINK, Rules())
    if swapped is not None:
        tensor, operator = swapped
        numbers = events.candidates(OpIndex(operator), limited=False).tolist()
        (number,) = [n for n in numbers if events.tensor_of(n) == tensor]
        assert events.schedule(number, OpIndex(operator))
    return RecomputeEvents(graph, latency_ns, events)


def _recomputed(events: RecomputeEvents) -> list[int]:
    """The tensors, in the order in which they were chosen."""
    found: list[int] = []
    while (offer := events.offer()) is not None:
        found.append(events.tensor_of(offer))
        events.take(offer)
    return found


def _order(*operators: int) -> tuple[Execution, ...]:
    return tuple(Execution(operator=OpIndex(k)) for k in operators)
