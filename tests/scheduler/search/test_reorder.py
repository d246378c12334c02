"""Check the reordered optimizer phase: updates run early where they may, all other operators keep their places, and
no result changes.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.search.reorder import delayed, rearranged, updates_beside_gradients, with_parts
from tests.scheduler.strategies import graphs, latencies

MIB = 1024 * 1024


def test_update_runs_once_its_gradient_exists_and_its_parameter_is_read_no_more() -> None:
    """The gradient of w comes first, but the next operator still reads w. The step counter is incremented before all
    updates.
    """
    graph = _step(("grad_w", (0,), (4,)), ("grad_v", (0, 2), (5,)))
    assert updates_beside_gradients(graph) == (2, 0, 1, 3, 4)
    only = _step(("grad_w", (0,), (4,)), ("grad_v", (2,), (5,)))
    assert updates_beside_gradients(only) == (2, 0, 3, 1, 4)


def test_nothing_moves_if_gradients_are_clipped_by_their_common_norm() -> None:
    graph = _step(("grad_w", (0,), (4,)), ("grad_v", (2,), (5,)), clipped=True)
    assert updates_beside_gradients(graph) == (2, 0, 1, 3, 4, 5)


def test_update_waits_for_every_reader_even_if_another_optimizer_operator_moves() -> None:
    """The norm of w is computed early. The gradient of v reads w, which decays after both."""
    tensors = [
        Tensor(id=TensorId(k), name=f"t{k}", size_bytes=10, role=Role.ACTIVATION if k else Role.PARAMETER)
        for k in range(4)
    ]
    operators = (
        _operator("grad_w", Stage.BACKWARD, (), (1,)),
        _operator("grad_v", Stage.BACKWARD, (0,), (2,)),
        _operator("norm_w", Stage.OPTIMIZER, (0,), (3,)),
        _operator("decay_w", Stage.OPTIMIZER, (), (0,)),
    )
    assert updates_beside_gradients(StepGraph(tensors=tuple(tensors), operators=operators)) == (2, 0, 1, 3)


def test_large_update_runs_in_parts() -> None:
    graph = _step(("grad_w", (0,), (4,)), ("grad_v", (2,), (5,)), state_bytes=65 * MIB)
    parts = [e for e in with_parts(graph, updates_beside_gradients(graph)) if e.parts > 1]
    assert parts == [Execution(operator=OpIndex(k), part=part, parts=3) for k in (3, 4) for part in range(3)]
    assert faults(graph, Plan(policy="test", executions=with_parts(graph, updates_beside_gradients(graph)))) == ()


def test_running_statistics_without_later_readers_are_updated_at_the_end() -> None:
    tensors = tuple(
        Tensor(id=TensorId(k), name=f"t{k}", size_bytes=10, role=Role.BUFFER if k < 2 else Role.ACTIVATION)
        for k in range(4)
    )
    first = _operator("first", Stage.FORWARD, (0, 1), (2,))
    update = _operator("update_mean", Stage.FORWARD, (2,), (0,))
    read = _operator("update_read_below", Stage.FORWARD, (2,), (1,))
    last = _operator("last", Stage.FORWARD, (1, 2), (3,))
    graph = StepGraph(tensors=tensors, operators=(first, update, read, last))
    assert rearranged(graph) == (0, 2, 3, 1)


@given(graphs())
def test_reordering_changes_no_result(graph: StepGraph) -> None:
    operators = tuple(replace(op, stage=_stage_of(k, op)) for k, op in enumerate(graph.operators))
    staged = replace(graph, operators=operators)
    plan = Plan(policy="test", executions=with_parts(staged, rearranged(staged)))
    assert faults(staged, plan) == ()


def test_delayed_update_waits_for_a_share_of_the_time_that_follows_it() -> None:
    """Operator 3 updates w beside its gradient. Operators 1 and 2 follow and take 10 and 30 ns."""
    graph = _three_gradients()
    order = updates_beside_gradients(graph)
    assert order == (0, 3, 1, 2)
    latency_ns = (10, 10, 30, 5)
    places = {
        share: delayed(graph, order, OpIndex(3), share, latency_ns).index(OpIndex(3)) for share in (0.2, 0.25, 0.3, 1)
    }
    assert places == {0.2: 2, 0.25: 2, 0.3: 3, 1: 3}
    assert delayed(graph, (*order[:1], *order[2:], order[1]), OpIndex(3), 0.5, latency_ns) == (0, 1, 2, 3)


def test_update_is_not_delayed_past_an_operator_that_reads_the_new_parameter() -> None:
    graph = _three_gradients(reads_after=(0,))
    order = (OpIndex(0), OpIndex(3), OpIndex(1), OpIndex(2))
    assert delayed(graph, order, OpIndex(3), 0.2, (10,) * 4) == (0, 1, 3, 2)
    assert delayed(graph, order, OpIndex(3), 1, (10,) * 4) == order


@given(graphs(), st.data())
def test_delaying_an_update_changes_no_result(graph: StepGraph, data: st.DataObject) -> None:
    operators = tuple(replace(op, stage=_stage_of(k, op)) for k, op in enumerate(graph.operators))
    staged = replace(graph, operators=operators)
    order = rearranged(staged)
    latency_ns = data.draw(latencies(staged))
    for update in (k for k in order if operators[k].stage is Stage.OPTIMIZER):
        later = delayed(staged, order, update, data.draw(st.floats(0, 1)), latency_ns)
        assert faults(staged, Plan(policy="test", executions=with_parts(staged, later))) == ()


def _three_gradients(reads_after: tuple[int, ...] = ()) -> StepGraph:
    """Return a graph of a gradient of w (0), two further operators, and the update of w. The last operator reads
    `reads_after`.
    """
    tensors = tuple(
        Tensor(id=TensorId(k), name=f"t{k}", size_bytes=10, role=Role.ACTIVATION if k else Role.PARAMETER)
        for k in range(4)
    )
    return StepGraph(
        tensors=tensors,
        operators=(
            _operator("grad_w", Stage.BACKWARD, (0,), (1,)),
            _operator("second", Stage.BACKWARD, (), (2,)),
            _operator("third", Stage.BACKWARD, reads_after, (3,)),
            _operator("update_w", Stage.OPTIMIZER, (0, 1), (0,)),
        ),
    )


def _stage_of(index: int, operator: Operator) -> Stage:
    """Assign some operators anywhere to the optimizer stage. Captured graphs have them at the end only, which is
    easier.
    """
    return Stage.OPTIMIZER if index % 3 == 2 else operator.stage


def _step(
    first: tuple[str, tuple[int, ...], tuple[int, ...]],
    second: tuple[str, tuple[int, ...], tuple[int, ...]],
    *,
    clipped: bool = False,
    state_bytes: int = 10,
) -> StepGraph:
    """Return a graph of two gradients (tensors 4 and 5), the step counter (6), and the updates of w (0, state 1) and
    v (2, state 3).
    """
    roles = [Role.PARAMETER, Role.OPTIMIZER_STATE] * 2 + [Role.ACTIVATION] * 2 + [Role.OPTIMIZER_STATE]
    sizes = [10, state_bytes, 10, state_bytes, 10, 10, 4]
    tensors = [
        Tensor(id=TensorId(k), name=f"t{k}", size_bytes=size, role=role)
        for k, (size, role) in enumerate(zip(sizes, roles, strict=True))
    ]
    operators = [_operator(name, Stage.BACKWARD, reads, writes) for name, reads, writes in (first, second)]
    operators.append(_operator("count", Stage.OPTIMIZER, (6,), (6,)))
    norm: tuple[int, ...] = ()
    if clipped:
        tensors.append(Tensor(id=TensorId(7), name="norm", size_bytes=4, role=Role.ACTIVATION))
        operators.append(_operator("norm", Stage.OPTIMIZER, (4, 5), (7,)))
        norm = (7,)
    operators.append(_operator("update_w", Stage.OPTIMIZER, (0, 1, 4, 6, *norm), (0, 1)))
    operators.append(_operator("update_v", Stage.OPTIMIZER, (2, 3, 5, 6, *norm), (2, 3)))
    return StepGraph(tensors=tuple(tensors), operators=tuple(operators))


def _operator(name: str, stage: Stage, reads: tuple[int, ...], writes: tuple[int, ...]) -> Operator:
    return Operator(
        name=name,
        signature=name,
        stage=stage,
        reads=tuple(TensorId(t) for t in reads),
        writes=tuple(TensorId(t) for t in writes),
        splittable=name.startswith("update"),
    )
