"""Check that the arrays of the native search describe the same graph as rewriting does."""

from dataclasses import replace
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak, staying
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.rewrite import effective_latency, repeatable, rewrite
from indb_tensile.scheduler.search.reorder import rearranged, with_parts
from indb_tensile.scheduler.search.search_arrays import Instances, Outline, lanes, latencies, outline
from indb_tensile.scheduler.search.step_search import GreedyOptions, StepSearch
from tests.scheduler.access_rows import graph_from_rows
from tests.scheduler.strategies import graphs as step_graphs
from tests.scheduler.strategies import graphs_with_exchanges, links
from tests.scheduler.strategies import latencies as step_latencies


@given(step_graphs(), links(), st.data())
def test_recomputed_tensors_are_numbered_as_by_rewriting(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    latency_ns = data.draw(step_latencies(graph))
    start = with_parts(graph, rearranged(graph))
    search = StepSearch(graph, latency_ns, link, executions=start)
    search.lower(data.draw(st.integers(0, liveness_peak(graph))), GreedyOptions(lane_price=100.0), most=100)
    _assert_instances_match_rewriting(graph, start, search.plan("test").executions)


def test_parts_of_state_and_reruns_around_them_are_distinguished() -> None:
    """m and n are each updated in three parts. a is recomputed before, between and after the updates."""
    large = 96 * 1024 * 1024
    graph = graph_from_rows(
        (10, Role.PARAMETER, "....uu"),
        (large, Role.OPTIMIZER_STATE, "....u."),
        (large, Role.OPTIMIZER_STATE, ".....u"),
        (10, Role.ACTIVATION, "wrrrrr"),
    )
    operators = tuple(op if k < 4 else _update(op) for k, op in enumerate(graph.operators))
    graph = StepGraph(tensors=graph.tensors, operators=operators)
    start = with_parts(graph, rearranged(graph))
    assert len(start) == 4 + 3 + 3
    rerun = Execution(operator=OpIndex(0))
    before = start.index(rerun) + 1
    between = next(k for k, execution in enumerate(start) if execution.part == 2) + 1
    assert before < between - 2
    _assert_instances_match_rewriting(
        graph, start, (*start[:before], rerun, *start[before:between], rerun, *start[between:], rerun)
    )


@given(step_graphs(), st.sampled_from(("captured", "late", "in parts")))
def test_outline_of_an_order_equals_the_rewritten_graph(graph: StepGraph, order_kind: str) -> None:
    order = rearranged(graph)
    runs = {
        "captured": (),
        "late": tuple(Execution(operator=k) for k in order),
        "in parts": with_parts(graph, order),
    }[order_kind]
    _assert_outline_matches(outline(graph, runs), rewrite(graph, runs).graph if runs else graph)


@given(graphs_with_exchanges())
def test_outline_with_exchanges_is_that_of_the_graph(graph: StepGraph) -> None:
    array_outline = outline(graph, ())
    _assert_outline_matches(array_outline, graph)
    stays = staying(graph)
    for index in range(len(graph.operators)):
        accesses = range(array_outline.offset[index], array_outline.offset[index + 1])
        assert [bool(array_outline.stays[k]) for k in accesses] == [
            (int(array_outline.access[k]), index) in stays for k in accesses
        ]


def test_update_in_parts_does_not_split_shared_or_small_tensors() -> None:
    """m is the update's own and large, t is its own and too small for parts, and the other update reads s as well."""
    large = 96 * 1024 * 1024
    graph = graph_from_rows(
        (10, Role.PARAMETER, "..uu"),
        (large, Role.OPTIMIZER_STATE, "..u."),
        (100, Role.OPTIMIZER_STATE, "..u."),
        (large, Role.OPTIMIZER_STATE, "..ru"),
        (10, Role.ACTIVATION, "wrrr"),
    )
    operators = tuple(op if k < 2 else _update(op) for k, op in enumerate(graph.operators))
    graph = StepGraph(tensors=graph.tensors, operators=operators)
    runs = with_parts(graph, rearranged(graph))
    array_outline = outline(graph, runs)
    _assert_outline_matches(array_outline, rewrite(graph, runs).graph)
    assert array_outline.splits == ((1, 3),)


@given(step_graphs(), links(), st.sampled_from((1.0, 0.5, 0.3)), st.data())
def test_times_are_those_of_the_order_and_of_the_link(
    graph: StepGraph, link: Link, share: float, data: st.DataObject
) -> None:
    latency_ns = data.draw(step_latencies(graph))
    start = with_parts(graph, rearranged(graph))
    expected = list(effective_latency(latency_ns, Plan(policy="test", executions=start)))
    base = rewrite(graph, start).graph
    for index, operator in enumerate(base.operators):
        if operator.stage is Stage.UPLOAD:
            expected[index] = link.in_ns(sum(base.tensors[t].size_bytes for t in {*operator.writes}))
    assert latencies(outline(graph, start), latency_ns, link).tolist() == expected
    out_ns, in_ns = lanes(graph, start, link, share)
    assert out_ns.tolist() == [ceil(link.out_ns(t.size_bytes) / share) for t in base.tensors]
    assert in_ns.tolist() == [ceil(link.in_ns(t.size_bytes) / share) for t in base.tensors]


def _update(operator: Operator) -> Operator:
    return replace(operator, stage=Stage.OPTIMIZER, splittable=True)


def _assert_instances_match_rewriting(
    graph: StepGraph, start: tuple[Execution, ...], executions: tuple[Execution, ...]
) -> None:
    """Check that every access of every operator has the same tensor in the arrays and in the rewritten graph."""
    base, final = rewrite(graph, start).graph, rewrite(graph, executions or start).graph
    order = [start.index(execution) for execution in executions or start]
    instances = Instances(outline(graph, start), order)
    for position, index in enumerate(order):
        base_operator, final_operator = base.operators[index], final.operators[position]
        pairs = zip(
            (*base_operator.reads, *base_operator.writes),
            (*final_operator.reads, *final_operator.writes),
            strict=True,
        )
        for base_tensor, final_tensor in pairs:
            assert instances.at(base_tensor, position) == final_tensor
            assert instances.source(final_tensor) == base_tensor


def _assert_outline_matches(array_outline: Outline, base: StepGraph) -> None:
    assert array_outline.size_bytes.tolist() == [tensor.size_bytes for tensor in base.tensors]
    assert array_outline.persistent.tolist() == [tensor.persistent for tensor in base.tensors]
    assert array_outline.workspace_bytes.tolist() == [operator.workspace_bytes for operator in base.operators]
    assert array_outline.floor_bytes == floor(base)
    may_rerun = repeatable(base)
    for index, operator in enumerate(base.operators):
        accesses = slice(array_outline.offset[index], array_outline.offset[index + 1])
        tensors = sorted({*operator.reads, *operator.writes})
        assert array_outline.access[accesses].tolist() == tensors
        assert array_outline.writes[accesses].tolist() == [tensor in operator.writes for tensor in tensors]
        uploads = operator.stage is Stage.UPLOAD
        assert array_outline.upload[index] == uploads
        assert array_outline.repeatable[index] == (may_rerun[index] and not uploads)
        assert array_outline.written[index] == (operator.writes if may_rerun[index] else ())
    assert dict(array_outline.uploads) == {
        k: sum(base.tensors[t].size_bytes for t in {*operator.writes})
        for k, operator in enumerate(base.operators)
        if operator.stage is Stage.UPLOAD
    }
