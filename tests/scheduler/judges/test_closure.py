"""Heaviest closed sets, against all sets there are."""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.judges.closure import heaviest_closure


def test_a_node_is_taken_with_what_it_needs_where_both_together_gain() -> None:
    assert heaviest_closure((5, -3), ((0, 1),)) == 2
    assert heaviest_closure((3, -5), ((0, 1),)) == 0
    assert heaviest_closure((3, 4, -5), ((0, 2), (1, 2))) == 2, "each alone costs more than it brings"


def test_nodes_that_need_each_other_come_together() -> None:
    assert heaviest_closure((5, -3, -1), ((0, 1), (1, 2), (2, 0))) == 1


def test_nothing_weighs_nothing() -> None:
    assert heaviest_closure((), ()) == 0
    assert heaviest_closure((-4, -1), ()) == 0


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """Up to nine nodes, and needs between any of them."""
    weights = draw(st.lists(st.integers(-9, 9), min_size=1, max_size=9))
    nodes = st.integers(0, len(weights) - 1)
    return weights, draw(st.lists(st.tuples(nodes, nodes), max_size=20))


@given(graphs())
def test_it_is_the_heaviest_of_all_closed_sets(graph: tuple[list[int], list[tuple[int, int]]]) -> None:
    weights, needs = graph
    sets = ({k for k in range(len(weights)) if number >> k & 1} for number in range(1 << len(weights)))
    closed = (chosen for chosen in sets if all(b in chosen or a not in chosen for a, b in needs))
    assert heaviest_closure(weights, needs) == max(sum(weights[k] for k in chosen) for chosen in closed)
