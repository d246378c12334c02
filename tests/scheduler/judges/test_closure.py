"""Check the weight of the heaviest closed set of nodes, against all closed sets of small graphs."""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.judges.closure import heaviest_closure


def test_node_is_taken_with_its_needs_if_their_sum_is_positive() -> None:
    assert heaviest_closure((5, -3), ((0, 1),)) == 2
    assert heaviest_closure((3, -5), ((0, 1),)) == 0
    assert heaviest_closure((3, 4, -5), ((0, 2), (1, 2))) == 2, "either node alone costs more than it gains"


def test_nodes_that_need_each_other_are_taken_together() -> None:
    assert heaviest_closure((5, -3, -1), ((0, 1), (1, 2), (2, 0))) == 1


def test_empty_set_weighs_zero() -> None:
    assert heaviest_closure((), ()) == 0
    assert heaviest_closure((-4, -1), ()) == 0


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """Draw up to nine weighted nodes, and needs between any two of them."""
    weights = draw(st.lists(st.integers(-9, 9), min_size=1, max_size=9))
    nodes = st.integers(0, len(weights) - 1)
    return weights, draw(st.lists(st.tuples(nodes, nodes), max_size=20))


@given(graphs())
def test_result_is_the_heaviest_of_all_closed_sets(graph: tuple[list[int], list[tuple[int, int]]]) -> None:
    weights, needs = graph
    sets = ({k for k in range(len(weights)) if number >> k & 1} for number in range(1 << len(weights)))
    closed = (chosen for chosen in sets if all(b in chosen or a not in chosen for a, b in needs))
    assert heaviest_closure(weights, needs) == max(sum(weights[k] for k in chosen) for chosen in closed)
