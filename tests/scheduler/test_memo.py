"""Check the memo of results by graph: it finds a result by the same graph object, is bounded, and ends with the
graph.
"""

import gc
import weakref
from dataclasses import replace

import pytest

from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.memo import Memo


def test_result_is_computed_once_for_each_graph_and_key() -> None:
    graph, memo = _graph(), Memo[object](4)
    first, second = memo.get(graph, ("a",), object), memo.get(graph, ("b",), object)
    assert first is not second
    assert memo.get(graph, ("a",), object) is first
    assert memo.get(replace(graph), ("a",), object) is not first, "an equal graph is another key"


def test_oldest_result_is_dropped() -> None:
    graph, memo = _graph(), Memo[object](2)
    _, second, third = (memo.get(graph, (key,), object) for key in (1, 2, 3))
    assert memo.get(graph, (3,), object) is third
    assert memo.get(graph, (2,), object) is second
    memo.get(graph, (1,), object)  # is computed again
    assert memo.get(graph, (2,), object) is not second


def test_failed_computation_is_not_cached() -> None:
    graph, memo = _graph(), Memo[float](2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            memo.get(graph, (), lambda: 1 / 0)
    assert memo.get(graph, (), lambda: 1.0) == 1.0


def test_results_are_freed_with_their_graph() -> None:
    graph, memo = _graph(), Memo[set[int]](2)
    result = weakref.ref(memo.get(graph, (), _Value))
    gc.collect()
    assert result() is not None
    del graph
    gc.collect()
    assert result() is None


class _Value(set[int]):
    """A value that can be referenced weakly."""


def _graph() -> StepGraph:
    operator = Operator(name="op", signature="op", stage=Stage.FORWARD, reads=(), writes=(TensorId(0),))
    tensor = Tensor(id=TensorId(0), name="t", size_bytes=1, role=Role.ACTIVATION)
    return StepGraph(tensors=(tensor,), operators=(operator,))
