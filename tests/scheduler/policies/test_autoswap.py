"""Check AutoSwap's rules on graphs small enough to follow by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, liveness_peak, load, peak
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.policies.autoswap import Selection, autoswap, candidates, least_load, scores
from indb_tensile.scheduler.policies.swap_times import schedule
from indb_tensile.scheduler.workload import Workload
from tests.scheduler.plan_parts import iteration_ns
from tests.scheduler.strategies import graphs, latencies, links

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte
ALONE = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0))


def test_candidates_are_idle_at_the_peak() -> None:
    """The load is 20, 30, 70, 70, 30, 20, and then 30, 65, 65, 30. d and e are not idle across the peak."""
    assert [gap.tensor for gap in candidates(_graph_with_two_peaks())] == [0, 1]


def test_tiny_variables_are_no_candidates() -> None:
    """The threshold is 2 of 2,000 bytes at the peak, and 1 MB beside 2 GB."""
    assert [gap.tensor for gap in candidates(_two_tensors_around_a_workspace((2, 3), 1995))] == [1]
    assert [gap.tensor for gap in candidates(_two_tensors_around_a_workspace((1 << 20, (1 << 20) + 1), 1 << 31))] == [
        1
    ]


def test_four_scores_are_those_of_the_paper() -> None:
    """Operators take 100 us. a is idle for 400 us and takes 20 us each way; b is idle for 200 us and takes 10 us each
    way.
    """
    graph = _graph_with_peak()
    gap_scores = scores(graph, (100_000,) * 6, SLOW, candidates(graph), np.array(load(graph, LIVENESS)))
    assert gap_scores.doa.tolist() == [360_000, 180_000]
    assert gap_scores.aoa.tolist() == [20 * 360_000, 10 * 180_000]
    assert gap_scores.wdoa.tolist() == [(30 + 70 + 70 + 30) * 100_000, (70 + 70) * 100_000]
    assert gap_scores.swdoa.tolist() == [(30 + 70 + 70 + 30) * 100_000, (50 + 50) * 100_000]


def test_missing_time_is_divided_by_the_size_if_copies_outlast_the_gap() -> None:
    """Operators take 2 us. a misses 32 us for 20 bytes, b misses 16 us for 10 bytes."""
    graph = _graph_with_peak()
    gap_scores = scores(graph, (2_000,) * 6, SLOW, candidates(graph), np.array(load(graph, LIVENESS)))
    assert gap_scores.doa.tolist() == [-32_000, -16_000]
    assert gap_scores.aoa.tolist() == [-1_600, -1_600]


def test_combined_score_weighs_the_standardised_scores() -> None:
    graph = _graph_with_peak()
    gap_scores = scores(graph, (100_000,) * 6, SLOW, candidates(graph), np.array(load(graph, LIVENESS)))
    assert gap_scores.combined((1.0, 0.5, -1.0, 0.25)).tolist() == pytest.approx([0.75, -0.75])


def test_best_variables_are_swapped_until_the_load_is_within_the_limit() -> None:
    """Without a the peak is 50, so b is not swapped."""
    swap = Swap(tensor=TensorId(0), out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(4), needed_by=OpIndex(5))
    assert _planned(_graph_with_peak(), 100_000, budget=50) == Plan(policy="autoswap", swaps=(swap,))


def test_weights_reverse_the_order_if_that_costs_less() -> None:
    """Within 70 bytes, operator 2 waits for 20 us if the 30 bytes of a are swapped, and for 10 us if the 10 bytes of
    b are.
    """
    graph = _nested((30, 10, 40))
    assert [swap.tensor for swap in _planned(graph, 10_000, budget=70).swaps] == [1]
    selection = Selection(graph, (10_000,) * 6, SLOW, frozenset(), 70)
    assert [gap.tensor for gap in selection.chosen((0.0, 0.0, 1.0, 0.0))] == [0]
    assert [gap.tensor for gap in selection.chosen((0.0, 0.0, -1.0, 0.0))] == [1]


def test_other_variables_are_swapped_below_the_least_load() -> None:
    graph = _graph_with_two_peaks()
    assert least_load(graph) == 65
    assert [swap.tensor for swap in _planned(graph, 100_000, budget=65).swaps] == [0]
    selection = Selection(graph, (100_000,) * 10, SLOW, frozenset(), 64)
    assert [gap.tensor for gap in selection.chosen((1.0, 1.0, 1.0, 1.0))] == [0, 1, 3]
    plan = _planned(graph, 100_000, budget=64)
    assert [swap.tensor for swap in plan.swaps] == [0, 3]  # b would have to return before its copy out ends
    assert peak(graph, plan) == 50


def test_nothing_is_swapped_if_the_limit_holds_everything() -> None:
    assert _planned(_graph_with_peak(), 100_000, budget=70) == Plan(policy="autoswap")


@given(graphs(), links(), st.data())
def test_no_score_alone_costs_less_than_the_combination(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    latency_ns = data.draw(latencies(graph))
    least, most = least_load(graph), liveness_peak(graph)
    limit = least + int((most - least) * data.draw(st.floats(0, 0.9)))
    workload = Workload(job=JobId(1), graphs=(graph,), latency_ns=(latency_ns,))
    ((plan,),) = autoswap((workload,), budget_bytes=limit, link=link)
    assert faults(graph, plan, limit_bytes=limit) == ()
    for weights in ALONE:
        chosen = Selection(graph, latency_ns, link, plan.away, limit).chosen(weights)
        rival = schedule(graph, latency_ns, link, chosen, limit_bytes=limit, policy="alone", away=plan.away)
        assert iteration_ns(graph, plan, latency_ns, link) <= iteration_ns(graph, rival, latency_ns, link)


def _planned(graph: StepGraph, operator_ns: int, *, budget: int) -> Plan:
    workload = Workload(job=JobId(1), graphs=(graph,), latency_ns=((operator_ns,) * len(graph.operators),))
    ((plan,),) = autoswap((workload,), budget_bytes=budget, link=SLOW)
    assert faults(graph, plan, limit_bytes=budget) == ()
    return plan


def _graph_with_peak() -> StepGraph:
    """Return a graph in which operators 0, 1, 2 make a (20 bytes), b (10), c (40), and operators 5, 4, 3 read
    them.
    """
    return _nested((20, 10, 40))


def _graph_with_two_peaks() -> StepGraph:
    """Return `_graph_with_peak` followed by d (30) and e (35), made by operators 6 and 7 and read by 9 and 8."""
    return _nested((20, 10, 40), (30, 35))


def _two_tensors_around_a_workspace(sizes: tuple[int, int], workspace: int) -> StepGraph:
    """Return a graph of two tensors. Operators 0 and 1 make them, operator 2 has a workspace, and operators 4 and 3
    read them.
    """
    graph = _nested(sizes, gap_bytes=workspace)
    assert len(graph.operators) == 5
    return graph


def _nested(*peaks: tuple[int, ...], gap_bytes: int | None = None) -> StepGraph:
    """Return a graph that, for each peak, makes tensors of these sizes and then reads them in reverse order. With
    `gap_bytes` an operator with this workspace runs in between.
    """
    tensors: list[Tensor] = []
    operators: list[Operator] = []
    for sizes in peaks:
        first = len(tensors)
        for size in sizes:
            tensor = Tensor(
                id=TensorId(len(tensors)), name="abcde"[len(tensors)], size_bytes=size, role=Role.ACTIVATION
            )
            tensors.append(tensor)
            operators.append(_operator(len(operators), (), (tensor.id,)))
        if gap_bytes is not None:
            operators.append(_operator(len(operators), (), (), gap_bytes))
        for tensor in reversed(tensors[first:]):
            operators.append(_operator(len(operators), (tensor.id,), ()))
    return StepGraph(tensors=tuple(tensors), operators=tuple(operators))


def _operator(
    index: int, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...], workspace_bytes: int = 0
) -> Operator:
    return Operator(
        name=f"op{index}",
        signature=f"op{index}",
        stage=Stage.FORWARD,
        reads=reads,
        writes=writes,
        workspace_bytes=workspace_bytes,
    )
