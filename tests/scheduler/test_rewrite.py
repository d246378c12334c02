"""Check the graph that runs under a plan with recomputation, reordering and split updates: by hand, and on random
orders against the independent judge of equivalence.
"""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import GraphError, InvariantError
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.judges.check import peak as walked_peak
from indb_tensile.scheduler.judges.equivalence import judge
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, load, peak
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.rewrite import (
    captured_latency,
    captured_order,
    effective,
    effective_latency,
    own_state,
    repeatable,
    rewrite,
)
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from tests.scheduler.plan_parts import execution_order
from tests.scheduler.strategies import graphs

A, B, C, D = (TensorId(k) for k in range(4))
LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)


def test_rerun_operator_writes_a_new_tensor_that_later_operators_read() -> None:
    """x -> a -> b -> c(b) -> d(a, c). `a` is recomputed before `d` and holds no memory in between."""
    graph = _graph([(), (A,), (B,), (A, C)], [(A,), (B,), (C,), (D,)])
    rewritten = rewrite(graph, execution_order(0, 1, 2, 0, 3))
    assert [(op.reads, op.writes) for op in rewritten.graph.operators] == [
        ((), (A,)),
        ((A,), (B,)),
        ((B,), (C,)),
        ((), (TensorId(4),)),
        ((TensorId(4), C), (D,)),
    ]
    assert rewritten.source == (A, B, C, D, A)
    assert rewritten.reruns == frozenset({OpIndex(0)})
    assert rewritten.graph.tensors[4].name == "a again"
    plan = Plan(policy="test", executions=execution_order(0, 1, 2, 0, 3))
    assert load(graph, plan) == (10, 30, 50, 40, 80), (
        "a is released after its first reader; the second a is a new tensor"
    )
    assert faults(graph, plan) == ()


def test_recomputed_tensor_is_the_source_of_the_next_recomputation() -> None:
    graph = _graph([(), (A,), (B,), (A, B, C)], [(A,), (B,), (C,), (D,)])
    rewritten = rewrite(graph, execution_order(0, 1, 2, 0, 1, 3))
    assert rewritten.graph.operators[4].reads == (TensorId(4),)
    assert rewritten.graph.operators[5].reads == (TensorId(4), TensorId(5), C)


def test_recomputation_takes_the_time_of_its_operators() -> None:
    graph = _graph([(), (A,), (B,), (A, C)], [(A,), (B,), (C,), (D,)])
    run = JobRun(
        graph=graph,
        plan=Plan(policy="test", executions=execution_order(0, 1, 2, 0, 3)),
        latency_ns=(100, 200, 300, 400),
    )
    (forecast,) = simulate([run], LINK)
    assert (forecast.iteration_ns, forecast.peak_bytes) == (1100, 80)


def test_plan_counts_reruns_but_not_parts() -> None:
    parts = tuple(Execution(operator=OpIndex(3), part=p, parts=2) for p in range(2))
    assert Plan(policy="test", executions=(*execution_order(0, 1, 2, 0, 1), *parts)).recomputed == 2
    assert Plan(policy="test").recomputed == 0


@pytest.mark.parametrize("parts", [1, 3])
def test_measured_executions_map_to_operator_latencies_and_back(parts: int) -> None:
    split = tuple(Execution(operator=OpIndex(1), part=p, parts=parts) for p in range(parts))
    plan = Plan(policy="test", executions=(*execution_order(0), *split, *execution_order(0, 2)))
    measured_ns = (70_000, *(60_000 for _ in range(parts)), 90_000, 5)
    folded = captured_latency(measured_ns, plan)
    assert folded == (80_000, {1: 60_000, 3: 165_000}[parts], 5)
    assert sum(effective_latency(folded, plan)) == sum(measured_ns)
    assert captured_latency((1, 2, 3), Plan(policy="test")) == (1, 2, 3)


def test_swap_boundaries_are_positions_in_the_rewritten_order() -> None:
    graph = _graph([(), (A,), (A,), (A, B, C)], [(A,), (B,), (C,), (D,)])
    swap = Swap(tensor=B, out_after=OpIndex(1), free_at=OpIndex(2), in_at=OpIndex(4), needed_by=OpIndex(4))
    plan = Plan(policy="test", executions=execution_order(0, 1, 2, 0, 3), swaps=(swap,))
    assert faults(graph, plan) == ()
    assert load(graph, plan) == (10, 30, 40, 40, 100)
    wrong_access = dataclasses.replace(
        plan, swaps=(dataclasses.replace(swap, in_at=OpIndex(3), needed_by=OpIndex(3)),)
    )
    assert "is swapped in for operator 3, which does not access it" in " ".join(faults(graph, wrong_access))


def test_update_in_parts_splits_its_own_state_only() -> None:
    tensors = (
        _tensor(0, "w", 1024, Role.PARAMETER),
        _tensor(1, "m", 1024, Role.OPTIMIZER_STATE),
        _tensor(2, "step", 4, Role.OPTIMIZER_STATE),
        _tensor(3, "g", 1024, Role.ACTIVATION),
    )
    grad = Operator(name="grad", signature="grad", stage=Stage.BACKWARD, reads=(A,), writes=(D,))
    count = Operator(name="count", signature="count", stage=Stage.OPTIMIZER, reads=(C,), writes=(C,))
    update = Operator(
        name="update",
        signature="u",
        stage=Stage.OPTIMIZER,
        reads=(A, B, C, D),
        writes=(A, B),
        splittable=True,
        flops=8,
    )
    graph = StepGraph(tensors=tensors, operators=(grad, count, update))
    assert own_state(graph) == {2: (B,)}
    order = (*execution_order(0, 1), *(Execution(operator=OpIndex(2), part=p, parts=2) for p in range(2)))
    split_graph = rewrite(graph, order).graph
    assert [t.size_bytes for t in split_graph.tensors] == [1024, 512, 4, 1024, 512]
    assert [(op.reads, op.writes, op.flops) for op in split_graph.operators[2:]] == [
        ((A, B, C, D), (A, B), 4),
        ((A, TensorId(4), C, D), (A, TensorId(4)), 4),
    ]
    plan = Plan(policy="test", executions=order)
    assert faults(graph, plan) == ()
    run = JobRun(graph=graph, plan=plan, latency_ns=(100, 100, 1000))
    assert simulate([run], LINK)[0].iteration_ns == 200 + 2 * 5500, "each part starts a kernel of its own"
    with pytest.raises(GraphError, match="is interrupted before part 1"):
        rewrite(graph, (*order[:3], order[1]))
    with pytest.raises(GraphError, match=r"the order ends before part 1 of 2 of operator \d"):
        rewrite(graph, order[:3])
    with pytest.raises(GraphError, match="cannot run in parts"):
        rewrite(graph, (Execution(operator=OpIndex(0), part=0, parts=2),))


@pytest.mark.parametrize(
    ("order", "fault"),
    [
        ((0, 1, 2), "never run"),
        ((1, 0, 2, 3), "needs a as operator 0 left it"),
        ((0, 1, 2, 3, 9), "there is no operator 9"),
    ],
)
def test_orders_that_change_a_result_are_refused(order: tuple[int, ...], fault: str) -> None:
    graph = _graph([(), (A,), (B,), (A, C)], [(A,), (B,), (C,), (D,)])
    with pytest.raises(GraphError, match=fault):
        rewrite(graph, execution_order(*order))
    assert judge(graph, execution_order(*order)).faults != ()


def test_random_operators_and_updates_never_run_twice() -> None:
    parameter = _tensor(0, "p", 10, Role.PARAMETER)
    tensors = (parameter, *(_tensor(k, f"a{k}", 10) for k in range(1, 3)))
    draw = Operator(name="draw", signature="d", stage=Stage.FORWARD, reads=(), writes=(B,), random=True)
    update = Operator(name="update", signature="u", stage=Stage.OPTIMIZER, reads=(B,), writes=(A,))
    use = Operator(name="use", signature="s", stage=Stage.FORWARD, reads=(A, B), writes=(C,))
    graph = StepGraph(tensors=tensors, operators=(draw, update, use))
    assert repeatable(graph) == (False, False, True)
    with pytest.raises(GraphError, match="draws random numbers"):
        rewrite(graph, execution_order(0, 0, 1, 2))
    with pytest.raises(GraphError, match="needs p as the previous iteration left it, but operator 1 wrote it last"):
        rewrite(graph, execution_order(0, 1, 1, 2))
    for order in ((0, 0, 1, 2), (0, 1, 1, 2), (0, 2, 1)):
        assert judge(graph, execution_order(*order)).faults != ()


def test_part_number_is_below_the_number_of_parts() -> None:
    with pytest.raises(InvariantError, match="part 2 of 2"):
        Execution(operator=OpIndex(0), part=2, parts=2)


@given(graphs(), st.data())
def test_rewriting_and_judge_agree_on_every_order(graph: StepGraph, data: st.DataObject) -> None:
    order = list(captured_order(graph))
    for _ in range(data.draw(st.integers(0, 4))):
        if data.draw(st.booleans()):
            order.insert(data.draw(st.integers(0, len(order))), data.draw(st.sampled_from(order)))
        else:
            moved = order.pop(data.draw(st.integers(0, len(order) - 1)))
            order.insert(data.draw(st.integers(0, len(order))), moved)
    verdict = judge(graph, order)
    try:
        rewritten = rewrite(graph, order)
    except GraphError:
        assert verdict.faults != ()
        return
    assert verdict.faults == ()
    plain = dataclasses.replace(rewritten.graph, operators=verdict.graph.operators)
    assert verdict.graph == plain
    plan = Plan(policy="test", executions=tuple(order))
    assert peak(graph, plan) == walked_peak(graph, plan)
    assert effective(graph, plan) == rewritten.graph
    if not rewritten.reruns and order == list(captured_order(graph)):
        assert peak(graph, plan) == liveness_peak(graph)


def _tensor(index: int, name: str, size_bytes: int, role: Role = Role.ACTIVATION) -> Tensor:
    return Tensor(id=TensorId(index), name=name, size_bytes=size_bytes, role=role)


def _graph(reads: list[tuple[TensorId, ...]], writes: list[tuple[TensorId, ...]]) -> StepGraph:
    """Return a graph of tensors a, b, c and d of 10, 20, 30 and 40 bytes."""
    tensors = tuple(_tensor(k, name, 10 * (k + 1)) for k, name in enumerate("abcd"))
    operators = tuple(
        Operator(name=f"op{k}", signature=f"op{k}", stage=Stage.FORWARD, reads=r, writes=w)
        for k, (r, w) in enumerate(zip(reads, writes, strict=True))
    )
    return StepGraph(tensors=tensors, operators=operators)
