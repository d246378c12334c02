"""What is known of a moment, by hand: who is needed after it, in which window, and who can make it again."""

from dataclasses import replace

from indb_tensile.scheduler.graph import Role, Stage, StepGraph
from indb_tensile.scheduler.judges.moments import Moments
from indb_tensile.scheduler.link import Link
from tests.scheduler.access_rows import graph_from_rows

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
A, P = Role.ACTIVATION, Role.PARAMETER


def test_what_is_needed_after_a_moment_has_a_window_on_each_lane() -> None:
    """At operator 2: p is read last by 1 and next by 4, and updated by 5; q never is; a goes from 0 to 3."""
    graph = graph_from_rows(
        (10, P, ".r..ru"), (20, P, "r....."), (30, A, "w..r.."), (40, A, "..w..."), workspace={2: 5}
    )
    moment = Moments(graph, (1,) * 6, LINK).moment(2)
    assert (moment.position, moment.own_bytes, moment.must) == (2, 45, 3)
    assert moment.size_bytes.tolist() == [10, 20, 30]
    assert moment.due.tolist() == [4, 7, 3], "p by 4, q by the next iteration's beginning, a by 3"
    assert moment.copied.tolist() == [True, False, True]
    assert moment.since[[0, 2]].tolist() == [-1, 0], "p since the last iteration's update"
    assert moment.node.tolist() == [-1, -1, 0]
    assert moment.cost_ns.tolist() == [1]


def test_a_chain_goes_back_to_what_is_there_anyway() -> None:
    """c is made of b, b of a; only c is needed in the end, and the first operator of all draws what it makes."""
    graph = graph_from_rows((10, A, "wr...."), (20, A, ".wr..."), (30, A, "..w..r"), (40, A, "...wr."))
    moment = Moments(graph, (1, 2, 3, 4, 5, 6), LINK).moment(4)
    assert (moment.must, moment.size_bytes.tolist()) == (1, [30, 20, 10])
    assert moment.cost_ns.tolist() == [1, 2, 3]
    assert (moment.parent.tolist(), moment.through.tolist()[:2]) == ([1, 2, -1], [2, 1])
    assert [level.tolist() for level in moment.levels] == [[0], [1], [2]]
    drawing = replace(graph.operators[0], random=True)
    graph = replace(graph, operators=(drawing, *graph.operators[1:]))
    moment = Moments(graph, (1, 2, 3, 4, 5, 6), LINK).moment(4)
    assert (moment.parent.tolist(), moment.leaf_node.tolist(), moment.leaf_item.tolist()) == ([1, -1], [0], [2])


def test_what_an_update_needs_is_needed_only_where_it_surely_comes_later() -> None:
    """The gradient is read by an update alone, which may run before operator 2, but not where 2 reads the old p."""
    assert _held_at_2("...u", "r...") == 50, "p, and what operator 2 makes"
    assert _held_at_2("..ru", "r...") == 80, "and the gradient"


def _held_at_2(parameter: str, other: str) -> float:
    graph = graph_from_rows((10, P, parameter), (10, P, other), (30, A, ".w.r"), (30, A, "..w."))
    update = replace(graph.operators[3], stage=Stage.OPTIMIZER)
    graph = StepGraph(tensors=graph.tensors, operators=(*graph.operators[:3], update))
    return float(Moments(graph, (1,) * 4, LINK).held_bytes()[2])
