"""What the search is given of a graph, and what it gives back, is what rewriting the graph would say."""

from dataclasses import replace
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.rewrite import effective_latency, repeatable, rewrite
from indb_tensile.scheduler.search.reorder import rearranged, with_parts
from indb_tensile.scheduler.search.search_arrays import Instances, Outline, lanes, latencies, outline
from indb_tensile.scheduler.search.step_search import GreedyOptions, StepSearch
from tests.scheduler.drawn import drawn
from tests.scheduler.strategies import graphs as step_graphs
from tests.scheduler.strategies import latencies as step_latencies
from tests.scheduler.strategies import links


@settings(max_examples=200, deadline=None)
@given(step_graphs(), links(), st.data())
def test_tensors_made_again_are_counted_as_rewriting_counts_them(
    graph: StepGraph, link: Link, data: st.DataObject
) -> None:
    latency_ns = data.draw(step_latencies(graph))
    start = with_parts(graph, rearranged(graph))
    search = StepSearch(graph, latency_ns, link, executions=start)
    search.lower(data.draw(st.integers(0, liveness_peak(graph))), GreedyOptions(lane_price=100.0), most=100)
    _agrees(graph, start, search.plan("test").executions)


def test_parts_of_state_and_what_is_made_again_before_and_after_them_are_told_apart() -> None:
    """m is updated in three parts, and so is n; a is made again before, between and after them."""
    large = 96 * 1024 * 1024
    graph = drawn(
        (10, Role.PARAMETER, "....uu"),
        (large, Role.OPTIMIZER_STATE, "....u."),
        (large, Role.OPTIMIZER_STATE, ".....u"),
        (10, Role.ACTIVATION, "wrrrrr"),
    )
    operators = tuple(op if k < 4 else _update(op) for k, op in enumerate(graph.operators))
    graph = StepGraph(tensors=graph.tensors, operators=operators)
    start = with_parts(graph, rearranged(graph))
    assert len(start) == 4 + 3 + 3
    again = Execution(operator=OpIndex(0))
    made = start.index(again) + 1
    first = next(k for k, execution in enumerate(start) if execution.part == 2) + 1
    assert made < first - 2
    _agrees(graph, start, (*start[:made], again, *start[made:first], again, *start[first:], again))


@settings(max_examples=200, deadline=None)
@given(step_graphs(), st.sampled_from(("captured", "late", "in parts")))
def test_an_order_is_what_rewriting_the_graph_makes_of_it(graph: StepGraph, which: str) -> None:
    order = rearranged(graph)
    runs = {
        "captured": (),
        "late": tuple(Execution(operator=k) for k in order),
        "in parts": with_parts(graph, order),
    }[which]
    _is_that_of(outline(graph, runs), rewrite(graph, runs).graph if runs else graph)


def test_an_update_in_parts_keeps_whole_what_others_access_and_what_is_too_small() -> None:
    """m is its own and large, t is its own and too small for parts, s is read by the other update, too."""
    large = 96 * 1024 * 1024
    graph = drawn(
        (10, Role.PARAMETER, "..uu"),
        (large, Role.OPTIMIZER_STATE, "..u."),
        (100, Role.OPTIMIZER_STATE, "..u."),
        (large, Role.OPTIMIZER_STATE, "..ru"),
        (10, Role.ACTIVATION, "wrrr"),
    )
    operators = tuple(op if k < 2 else _update(op) for k, op in enumerate(graph.operators))
    graph = StepGraph(tensors=graph.tensors, operators=operators)
    runs = with_parts(graph, rearranged(graph))
    drawn_up = outline(graph, runs)
    _is_that_of(drawn_up, rewrite(graph, runs).graph)
    assert drawn_up.splits == ((1, 3),)


@settings(max_examples=50, deadline=None)
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


def _agrees(graph: StepGraph, start: tuple[Execution, ...], executions: tuple[Execution, ...]) -> None:
    """At every access of every operator."""
    base, final = rewrite(graph, start).graph, rewrite(graph, executions or start).graph
    order = [start.index(execution) for execution in executions or start]
    instances = Instances(outline(graph, start), order)
    for position, index in enumerate(order):
        known, here = base.operators[index], final.operators[position]
        pairs = zip((*known.reads, *known.writes), (*here.reads, *here.writes), strict=True)
        for mine, theirs in pairs:
            assert instances.at(mine, position) == theirs
            assert instances.source(theirs) == mine


def _is_that_of(found: Outline, base: StepGraph) -> None:
    assert found.size_bytes.tolist() == [tensor.size_bytes for tensor in base.tensors]
    assert found.persistent.tolist() == [tensor.persistent for tensor in base.tensors]
    assert found.workspace_bytes.tolist() == [operator.workspace_bytes for operator in base.operators]
    assert found.floor_bytes == floor(base)
    again = repeatable(base)
    for index, operator in enumerate(base.operators):
        place = slice(found.offset[index], found.offset[index + 1])
        touched = sorted({*operator.reads, *operator.writes})
        assert found.access[place].tolist() == touched
        assert found.writes[place].tolist() == [tensor in operator.writes for tensor in touched]
        uploads = operator.stage is Stage.UPLOAD
        assert found.upload[index] == uploads
        assert found.repeatable[index] == (again[index] and not uploads)
        assert found.written[index] == (operator.writes if again[index] else ())
    assert dict(found.uploads) == {
        k: sum(base.tensors[t].size_bytes for t in {*operator.writes})
        for k, operator in enumerate(base.operators)
        if operator.stage is Stage.UPLOAD
    }
