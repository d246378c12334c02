"""PyTorch's activation_memory_budget is followed as a plan."""

from typing import Any

import pytest

from indb_tensile.bench.harness.networks.known_networks import Network, capture
from indb_tensile.bench.harness.planning.mincut import mincut_plans, recompute_in_backward
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.memory.peak import liveness_peak, peak


def test_a_recomputed_tensor_is_recomputed_once_right_before_the_backward_pass_needs_it() -> None:
    """Forward computes a = f(x), b = f(a), c = f(b). The backward pass reads b, then a."""
    graph = _graph()
    order = [e.operator for e in recompute_in_backward(graph, {OpIndex(1), OpIndex(2)}).executions]
    assert order == [0, 1, 2, 3, 1, 2, 4, 5]
    assert [e.operator for e in recompute_in_backward(graph, {OpIndex(1)}).executions] == [0, 1, 2, 3, 4, 1, 5]
    assert recompute_in_backward(graph, set()).executions == ()


def _deep(_row: int) -> Any:
    from torch import nn

    layers = [(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)]
    return nn.Sequential(*(layer for group in layers for layer in group))


@pytest.mark.nightly  # tests/bench/test_policies.py plans with this rival by day
def test_a_smaller_budget_recomputes_more_and_every_plan_is_valid() -> None:
    network = Network(name="deep", title="deep", library="torch", batch=512, row=(64,), build=_deep)
    graph = capture(network, 512)
    plans = [plan for plan, _ in mincut_plans(network, 512, graph, (1_000,) * len(graph.operators))]
    assert [faults(graph, plan) for plan in plans] == [()] * len(plans)
    again = [max(0, len(plan.executions) - len(graph.operators)) for plan in plans[: len(plans) // 2]]
    assert again[0] < again[-1]
    assert peak(graph, plans[len(plans) // 2 - 1]) < liveness_peak(graph)
    random_operators = {k for k, o in enumerate(graph.operators) if o.random}
    assert len(random_operators) == 4
    for plan in plans:
        assert sum(e.operator in random_operators for e in plan.executions) == (4 if plan.executions else 0)


def test_the_graph_of_another_network_is_refused() -> None:
    network = Network(name="deep", title="deep", library="torch", batch=512, row=(64,), build=_deep)
    with pytest.raises(AssertionError, match="two captures of"):
        next(mincut_plans(network, 512, capture(network, 8), ()))


def _graph() -> StepGraph:
    def operator(stage: Stage, reads: tuple[int, ...], writes: tuple[int, ...]) -> Operator:
        reading, writing = tuple(map(TensorId, reads)), tuple(map(TensorId, writes))
        return Operator(name="f", signature="f", stage=stage, reads=reading, writes=writing)

    return StepGraph(
        tensors=tuple(
            Tensor(id=TensorId(k), name=name, size_bytes=4, role=Role.INPUT if name == "x" else Role.ACTIVATION)
            for k, name in enumerate("xabc")
        ),
        operators=(
            operator(Stage.UPLOAD, (), (0,)),
            operator(Stage.FORWARD, (0,), (1,)),
            operator(Stage.FORWARD, (1,), (2,)),
            operator(Stage.FORWARD, (2,), (3,)),
            operator(Stage.BACKWARD, (3, 2), ()),
            operator(Stage.BACKWARD, (1, 0), ()),
        ),
    )
