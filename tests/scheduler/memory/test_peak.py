"""Check the analysis of loads and peaks: by hand on small graphs, and against the independent judge on random
graphs.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.memory.peak import (
    LIVENESS,
    VANILLA,
    Gap,
    Load,
    accesses,
    floor,
    gaps,
    leaving_at_start,
    liveness_peak,
    load,
    peak,
    resident_at_start,
    vanilla_peak,
    working_sets,
)
from indb_tensile.scheduler.plan import Plan
from tests.scheduler.plan_parts import forward_operator, swap
from tests.scheduler.strategies import graphs

W, X, Y, Z = (TensorId(i) for i in range(4))


def test_load_of_a_small_step_is_as_counted_by_hand() -> None:
    """w (100 bytes) and the optimizer state (7) persist. The batch x (10) comes first, then y (20) and z (30)."""
    graph = _step()
    assert load(graph, LIVENESS) == (117, 137, 157, 177, 112, 107)
    assert load(graph, VANILLA) == (117, 137, 167, 187, 172, 167)
    assert (liveness_peak(graph), vanilla_peak(graph)) == (177, 187)
    assert working_sets(graph) == (10, 130, 50, 170, 112, 7)
    assert floor(graph) == 170


def test_operators_between_the_start_and_the_end_of_an_exchange_need_room_beside_its_tensors() -> None:
    """A gradient of 30 bytes is exchanged while an operator makes 20 bytes with 40 bytes of workspace."""
    gradient, other = TensorId(0), TensorId(1)
    sizes = {gradient: 30, other: 20}
    exchange = replace(forward_operator((gradient,), (gradient,)), random=True)
    graph = StepGraph(
        tensors=tuple(Tensor(id=t, name=f"t{t}", size_bytes=size, role=Role.ACTIVATION) for t, size in sizes.items()),
        operators=(
            forward_operator((), (gradient,)),
            replace(exchange, starts=0),
            forward_operator((), (other,), 40),
            replace(exchange, awaits=0),
            forward_operator((gradient, other), ()),
        ),
    )
    assert working_sets(graph) == (30, 30, 60, 30, 50)
    assert floor(graph) == 90


def test_swap_across_the_end_of_the_iteration_lowers_the_load_at_both_ends() -> None:
    graph = _step()
    plan = Plan(policy="test", swaps=(swap(W, 4, 5, 1, 1),))
    assert load(graph, plan) == (17, 137, 157, 177, 112, 7)
    assert resident_at_start(graph, plan) == {TensorId(4)}
    assert resident_at_start(graph, LIVENESS) == {W, TensorId(4)}


def test_copies_at_boundary_zero_are_complete_at_the_start() -> None:
    graph = _step()
    assert resident_at_start(graph, Plan(policy="test", swaps=(swap(W, 4, 0, 1, 1),))) == {TensorId(4)}
    assert resident_at_start(graph, Plan(policy="test", swaps=(swap(W, 4, 5, 0, 1),))) == {W, TensorId(4)}


def test_copy_in_progress_at_the_start_is_named() -> None:
    graph = _step()
    in_progress, complete = swap(TensorId(4), 5, 2, 4, 4), swap(TensorId(4), 5, 0, 4, 4)
    assert leaving_at_start(graph, Plan(policy="test", swaps=(in_progress,))) == (in_progress,)
    assert leaving_at_start(graph, Plan(policy="test", swaps=(complete,))) == ()


def test_only_gaps_of_persistent_tensors_cross_the_end() -> None:
    graph = _step()
    assert accesses(graph) == ((1, 3, 4), (0, 1), (1, 2, 3), (2, 3), (4, 5))
    assert gaps(graph) == (
        Gap(tensor=W, out_after=OpIndex(1), needed_by=OpIndex(3)),
        Gap(tensor=W, out_after=OpIndex(4), needed_by=OpIndex(1)),
        Gap(tensor=TensorId(4), out_after=OpIndex(5), needed_by=OpIndex(4)),
    )


def test_tensor_accessed_once_has_one_gap_around_the_iteration() -> None:
    tensor = Tensor(id=TensorId(0), name="p", size_bytes=4, role=Role.PARAMETER)
    idle = forward_operator((), ())
    graph = StepGraph(tensors=(tensor,), operators=(idle, forward_operator((tensor.id,), ()), idle))
    assert gaps(graph) == (Gap(tensor=tensor.id, out_after=OpIndex(1), needed_by=OpIndex(1)),)
    assert load(graph, Plan(policy="test", swaps=(swap(tensor.id, 1, 2, 1, 1),))) == (0, 4, 0)
    assert gaps(StepGraph(tensors=(tensor,), operators=(forward_operator((tensor.id,), ()),))) == ()


def test_tensors_on_the_host_or_without_accesses_hold_no_memory() -> None:
    tensors = (
        Tensor(id=TensorId(0), name="state", size_bytes=50, role=Role.OPTIMIZER_STATE),
        Tensor(id=TensorId(1), name="unused", size_bytes=9, role=Role.ACTIVATION),
    )
    graph = StepGraph(tensors=tensors, operators=(forward_operator((), (), 3),))
    assert load(graph, LIVENESS) == (53,)
    assert load(graph, Plan(policy="test", away=frozenset({TensorId(0)}))) == (3,)
    assert resident_at_start(graph, Plan(policy="test", away=frozenset({TensorId(0)}))) == frozenset()


@given(graphs())
def test_floor_liveness_and_vanilla_peaks_are_in_order_and_the_judge_agrees(graph: StepGraph) -> None:
    assert floor(graph) <= liveness_peak(graph) <= vanilla_peak(graph)
    for plan in (LIVENESS, VANILLA):
        assert check.faults(graph, plan) == ()
        assert peak(graph, plan) == check.peak(graph, plan) == max(load(graph, plan))


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(-9, 9)), max_size=20),
    st.tuples(st.integers(0, 30), st.integers(0, 12)),
)
def test_range_addition_wraps_around_the_end(
    count: int, additions: list[tuple[int, int, int]], question: tuple[int, int]
) -> None:
    loads, plain = Load((0,) * count), [0] * count
    for first, length, delta in additions:
        length = min(length, count)
        loads.add(first, first + length, delta)
        for index in range(first, first + length):
            plain[index % count] += delta
    assert loads.by_operator() == tuple(plain)
    assert loads.maximum() == max(plain)
    assert loads.argmax() == plain.index(max(plain))
    first, length = question[0], min(question[1], count)
    in_range = [plain[i % count] for i in range(first, first + length)]
    assert loads.maximum_of(first, first + length) == max(in_range, default=0)
    copied = loads.copy()
    copied.add(0, 1, 5)
    assert (loads.at(0), copied.at(0)) == (plain[0], plain[0] + 5)


def _step() -> StepGraph:
    """Return a step: upload x; y from x and w; z from y; the gradient of w in place of z; two optimizer operators."""
    roles = (Role.PARAMETER, Role.INPUT, Role.ACTIVATION, Role.ACTIVATION, Role.OPTIMIZER_STATE)
    sizes = (100, 10, 20, 30, 7)
    tensors = tuple(
        Tensor(id=TensorId(i), name=f"t{i}", size_bytes=size, role=role)
        for i, (size, role) in enumerate(zip(sizes, roles, strict=True))
    )
    state = TensorId(4)
    operators = (
        Operator(name="upload", signature="upload", stage=Stage.UPLOAD, reads=(), writes=(X,)),
        forward_operator((X, W), (Y,)),
        forward_operator((Y,), (Z,)),
        forward_operator((Y, Z, W), (Z,), 20),
        forward_operator((W, state), (W, state), 5),
        forward_operator((state,), (state,)),
    )
    return StepGraph(tensors=tensors, operators=operators)
