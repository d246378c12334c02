"""What is remembered of a graph: found again by the same object, bounded, and gone with it."""

import gc
import weakref
from dataclasses import replace

import pytest

from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.memo import Memo


def test_a_result_is_made_once_for_each_graph_and_key() -> None:
    graph, memo = _graph(), Memo[object](4)
    first, second = memo.get(graph, ("a",), object), memo.get(graph, ("b",), object)
    assert first is not second
    assert memo.get(graph, ("a",), object) is first
    assert memo.get(replace(graph), ("a",), object) is not first, "an equal graph is another one"


def test_only_the_latest_are_kept() -> None:
    graph, memo = _graph(), Memo[object](2)
    _, second, third = (memo.get(graph, (key,), object) for key in (1, 2, 3))
    assert memo.get(graph, (3,), object) is third
    assert memo.get(graph, (2,), object) is second
    memo.get(graph, (1,), object)  # is made anew
    assert memo.get(graph, (2,), object) is not second


def test_what_fails_is_not_remembered() -> None:
    graph, memo = _graph(), Memo[float](2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            memo.get(graph, (), lambda: 1 / 0)
    assert memo.get(graph, (), lambda: 1.0) == 1.0


def test_nothing_of_a_graph_outlives_it() -> None:
    graph, memo = _graph(), Memo[set[int]](2)
    made = weakref.ref(memo.get(graph, (), _Value))
    gc.collect()
    assert made() is not None
    del graph
    gc.collect()
    assert made() is None


class _Value(set[int]):
    """Something that can be watched."""


def _graph() -> StepGraph:
    operator = Operator(name="op", signature="op", stage=Stage.FORWARD, reads=(), writes=(TensorId(0),))
    tensor = Tensor(id=TensorId(0), name="t", size_bytes=1, role=Role.ACTIVATION)
    return StepGraph(tensors=(tensor,), operators=(operator,))
