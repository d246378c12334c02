"""A plan is laid over an iteration: the boundaries add up to the planned load, wherever a gap is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.executor.run.timeline import unroll
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.memory.peak import load, resident_at_start
from indb_tensile.scheduler.plan import Plan, Swap
from tests.executor.plans import random_plan


@st.composite
def graphs(draw: st.DrawFn) -> StepGraph:
    """Small graphs with persistent tensors, in-place updates, workspaces and tensors never accessed."""
    persistent, count = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    tensors = [_tensor(i, draw(st.integers(1, 99)), Role.PARAMETER) for i in range(persistent)]
    operators = []
    for k in range(count):
        reads = draw(st.lists(st.sampled_from(range(len(tensors))), unique=True, max_size=3))
        writes = draw(st.lists(st.sampled_from(range(len(tensors))), unique=True, max_size=2))
        if draw(st.booleans()):
            writes.append(len(tensors))
            tensors.append(_tensor(len(tensors), draw(st.integers(1, 99)), Role.ACTIVATION))
        operators.append(_operator(k, reads, writes, draw(st.integers(0, 50))))
    return StepGraph(tensors=tuple(tensors), operators=tuple(operators))


def _tensor(number: int, size_bytes: int, role: Role) -> Tensor:
    return Tensor(id=TensorId(number), name=f"t{number}", size_bytes=size_bytes, role=role)


def _operator(number: int, reads: list[int], writes: list[int], workspace_bytes: int = 0) -> Operator:
    return Operator(
        name=f"o{number}",
        signature=f"o{number}",
        stage=Stage.FORWARD,
        reads=tuple(TensorId(t) for t in reads),
        writes=tuple(TensorId(t) for t in writes),
        workspace_bytes=workspace_bytes,
    )


@given(graphs(), st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 1.0]))
def test_between_two_boundaries_the_ledger_holds_the_planned_load(graph: StepGraph, seed: int, share: float) -> None:
    plan = random_plan(graph, seed, share)
    timeline = unroll(graph, plan)
    assert timeline.home == resident_at_start(graph, plan)
    start_bytes = used_bytes = sum(graph.tensors[t].size_bytes for t in timeline.home)
    loads = []
    for boundary in timeline.boundaries:
        assert boundary.freed_bytes <= used_bytes, "no boundary frees more than is used"
        used_bytes += boundary.taken_bytes - boundary.freed_bytes
        loads.append(used_bytes)
    assert tuple(loads[:-1]) == load(graph, plan)
    assert loads[-1] == start_bytes, "an iteration ends with the memory of its start"


@given(graphs(), st.integers(0, 10_000))
def test_every_swap_is_copied_out_freed_copied_in_and_awaited_once(graph: StepGraph, seed: int) -> None:
    plan = random_plan(graph, seed, 1.0)
    timeline = unroll(graph, plan)
    for kind in ("outs", "frees", "ins", "needs"):
        placed = [gap.swap for boundary in timeline.boundaries for gap in getattr(boundary, kind)]
        assert sorted(placed, key=lambda s: (s.tensor, s.out_after)) == list(plan.swaps)


@given(graphs(), st.integers(0, 10_000), st.sampled_from([0.5, 1.0]))
def test_every_operator_reads_the_last_written_value_from_the_first_iteration_on(
    graph: StepGraph, seed: int, share: float
) -> None:
    """Start with only the host copies that the timeline requires. Others hold values of another program."""
    timeline = unroll(graph, random_plan(graph, seed, share))
    written = {t.id: 0 for t in graph.tensors if t.persistent}
    device: dict[TensorId, int | None] = dict.fromkeys(timeline.home, 0)
    valid = (
        timeline.copied | (written.keys() - timeline.home) | {g.tensor for g in timeline.outgoing if g.swap.copies}
    )
    host = {t: 0 if t in valid else None for t in written}
    for number in (1, 2):
        for k, boundary in enumerate(timeline.boundaries):
            for gap in boundary.frees:
                device.pop(gap.tensor, None)
            device |= {gap.tensor: host[gap.tensor] for gap in boundary.ins if gap.tensor in written}
            if k == len(graph.operators):
                continue
            operator = graph.operators[k]
            for tensor in written.keys() & {*operator.reads, *operator.writes}:
                assert device[tensor] == written[tensor], f"operator {k} in iteration {number}"
            for tensor in written.keys() & {*operator.writes}:
                written[tensor] = device[tensor] = 10 * k + number
            host |= {g.tensor: written[g.tensor] for g in boundary.outs if g.swap.copies and g.tensor in written}


def _two_uses() -> StepGraph:
    """Return a graph with a parameter that operators 0 and 3 use and operator 3 writes."""
    operators = (_operator(0, [0], [1]), _operator(1, [1], [2]), _operator(2, [2], [3]), _operator(3, [0, 3], [0]))
    tensors = (_tensor(0, 8, Role.PARAMETER), *(_tensor(i, 4, Role.ACTIVATION) for i in (1, 2, 3)))
    return StepGraph(tensors=tensors, operators=operators)


def _swap(out_after: int, free_at: int, in_at: int, needed_by: int, *, copies: bool = True) -> Plan:
    swap = Swap(
        tensor=TensorId(0),
        out_after=OpIndex(out_after),
        free_at=OpIndex(free_at),
        in_at=OpIndex(in_at),
        needed_by=OpIndex(needed_by),
        copies=copies,
    )
    return Plan(policy="one", swaps=(swap,))


def test_a_swap_whose_times_are_out_of_order_is_refused() -> None:
    with pytest.raises(InvariantError, match="out of order"):
        unroll(_two_uses(), _swap(0, 2, 2, 3))


def test_a_swap_that_relies_on_a_stale_host_copy_is_refused() -> None:
    graph = _two_uses()
    operators = (_operator(0, [0], [0, 1]), *graph.operators[1:])
    written_first = StepGraph(tensors=graph.tensors, operators=operators)
    with pytest.raises(InvariantError, match="stale"):
        unroll(written_first, _swap(0, 1, 3, 3, copies=False))


def test_a_swap_without_a_copy_asks_for_a_valid_host_copy_at_the_start() -> None:
    timeline = unroll(_two_uses(), _swap(0, 1, 3, 3, copies=False))
    assert timeline.copied == {0}
    assert timeline.invalidated == {0}, "the parameter is written after its swap-in"


def test_an_idle_persistent_tensor_that_is_away_is_not_resident_at_the_start() -> None:
    graph = _two_uses()
    idle = StepGraph(
        tensors=(
            graph.tensors[0],
            _tensor(1, 5, Role.OPTIMIZER_STATE),
            *(_tensor(i, 4, Role.ACTIVATION) for i in (2,)),
        ),
        operators=(_operator(0, [0], [2]), _operator(1, [2], [0])),
    )
    assert unroll(idle, Plan(policy="p", away=frozenset({TensorId(1)}))).home == {0}
    assert unroll(idle, Plan(policy="p")).home == {0, 1}
