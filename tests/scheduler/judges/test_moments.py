"""Check, on examples computed by hand, what a moment knows: which tensors are needed after it, in which window each
may be copied, and what can be recomputed.
"""

from dataclasses import replace

from indb_tensile.scheduler.graph import Role, Stage, StepGraph
from indb_tensile.scheduler.judges.bound_moments import Moments
from indb_tensile.scheduler.link import Link
from tests.scheduler.access_rows import graph_from_rows

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
A, P = Role.ACTIVATION, Role.PARAMETER


def test_tensor_needed_after_a_moment_has_a_window_on_each_lane() -> None:
    """The moment is operator 2. Operator 1 reads p last, 4 reads p next and 5 updates p. Nothing writes q. a lives
    from 0 to 3.
    """
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


def test_recomputation_chain_ends_at_tensors_that_are_held_anyway() -> None:
    """c is made from b, and b from a; only c is needed in the end. If the first operator draws random numbers, a
    cannot be recomputed.
    """
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


def test_gradient_is_needed_only_if_its_update_surely_runs_later() -> None:
    """An update alone reads the gradient. It may run before operator 2, unless operator 2 reads the old p."""
    assert _held_at_2("...u", "r...") == 50, "p, and the output of operator 2"
    assert _held_at_2("..ru", "r...") == 80, "the gradient as well"


def _held_at_2(parameter: str, other: str) -> float:
    """Return the bytes held at operator 2, given the accesses of two parameters. Operator 3 is an update."""
    graph = graph_from_rows((10, P, parameter), (10, P, other), (30, A, ".w.r"), (30, A, "..w."))
    update = replace(graph.operators[3], stage=Stage.OPTIMIZER)
    graph = StepGraph(tensors=graph.tensors, operators=(*graph.operators[:3], update))
    return float(Moments(graph, (1,) * 4, LINK).held_bytes()[2])
