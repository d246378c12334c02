"""Check how many layouts the search for a first plan may take, by the size of the graph."""

from itertools import pairwise

import pytest

from indb_tensile.scheduler.search.layout_allowances import delay_allowance, layout_allowance


def test_layout_allowance_falls_smoothly_with_size() -> None:
    """No graph gets more than 1 % less work than a graph with one operator less, apart from the rounding to whole
    layouts.
    """
    work = [layout_allowance(operators) * operators for operators in range(1_000, 12_000)]
    pairs = enumerate(pairwise(work), 1_000)
    assert all(0.99 * before <= after + operators for operators, (before, after) in pairs)
    assert layout_allowance(100) > layout_allowance(1_000) > layout_allowance(10_000) > layout_allowance(100_000)
    assert layout_allowance(10_000, 16) == pytest.approx(16 * layout_allowance(10_000), rel=0.1)


def test_search_in_another_order_takes_at_most_half_of_the_allowance() -> None:
    for operators in (2, 100, 1_000, 10_000, 100_000):
        assert layout_allowance(operators) // 8 <= delay_allowance(operators) <= layout_allowance(operators) // 2
    assert delay_allowance(1_500) == layout_allowance(1_500) // 8, "the allowance alone takes a second"
