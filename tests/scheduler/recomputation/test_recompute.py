"""Check recomputation: cones by hand, and valid plans for any choice of gaps and swaps."""

import dataclasses
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.judges.equivalence import judge
from indb_tensile.scheduler.memory.peak import Gap, gaps, peak, unrolled
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.recomputation.recompute import Cone, Recomputation
from indb_tensile.scheduler.rewrite import captured_order, effective
from tests.nightly import some_examples
from tests.scheduler.plan_parts import execution_order, forward_operator, idle_gap
from tests.scheduler.strategies import graphs, latencies

X, A, B, C = (TensorId(k) for k in range(4))


def test_cone_ends_at_tensors_that_are_held() -> None:
    """x (a parameter) -> a -> b -> c; then c, b and a are read again, in this order."""
    recomputation = Recomputation(_chain(), (1, 20, 300, 1, 1, 1))
    a, b = idle_gap(A, 1, 5), idle_gap(B, 2, 4)
    assert recomputation.gaps == (a, b)
    assert recomputation.cone(b) == Cone(gap=b, operators=_ops(1), sources=(A,), made=(B,), time_ns=20)
    assert recomputation.cone(b, [a]) == Cone(gap=b, operators=_ops(0, 1), sources=(X,), made=(A, B), time_ns=21)
    assert recomputation.cone(a, [b]) == Cone(gap=a, operators=_ops(0), sources=(X,), made=(A,), time_ns=1)


def test_by_product_of_a_cone_stays_unless_its_gap_is_brief() -> None:
    recomputation = Recomputation(_chain(), (1, 20, 300, 1, 1, 1))
    a, b = idle_gap(A, 1, 5), idle_gap(B, 2, 4)
    assert recomputation.order((a, b)) == execution_order(0, 1, 2, 3, 0, 1, 4, 5)
    assert recomputation.order((a, b), brief=(a,)) == execution_order(0, 1, 2, 3, 0, 1, 4, 0, 5)
    assert recomputation.order((b,)) == execution_order(0, 1, 2, 3, 1, 4, 5)
    assert recomputation.extra_ns(recomputation.order((a, b), brief=(a,))) == 22


def test_tensor_retained_past_its_last_access_is_a_source() -> None:
    """a -> b -> c, and b is read again, after the last access of a."""
    graph = _graph([(), (A,), (B,), (C,), (B,)], [(A,), (B,), (C,), (), ()])
    recomputation = Recomputation(graph, (1, 20, 300, 1, 1))
    b = idle_gap(B, 2, 4)
    assert recomputation.cone(b).operators == (0, 1)
    assert recomputation.cone(b, retained={A}) == Cone(gap=b, operators=_ops(1), sources=(A,), made=(B,), time_ns=20)
    assert recomputation.order((b,), retained={A}) == execution_order(0, 1, 2, 3, 1, 4)


def test_update_of_statistics_waits_for_the_last_rerun() -> None:
    """A normalisation computes n = f(a, running) and running' = g(a, running). The update copies running' into
    running.
    """
    tensors = (_tensor(0, Role.BUFFER), *(_tensor(k) for k in range(1, 5)))
    running, a, n, statistics, g = (t.id for t in tensors)
    operators = (
        forward_operator((), (a,)),
        forward_operator((a, running), (n, statistics)),
        forward_operator((running, statistics), (running,)),
        forward_operator((n,), (g,)),
        forward_operator((g,), ()),
        forward_operator((n, a), ()),
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    recomputation = Recomputation(graph, (1,) * 6)
    n_gap = idle_gap(n, 3, 5)
    assert recomputation.gaps == (idle_gap(a, 1, 5), idle_gap(n, 1, 3), n_gap)
    plan = recomputation.plan("test", (n_gap,))
    assert plan == Plan(policy="test", executions=execution_order(0, 1, 3, 4, 1, 2, 5))
    assert faults(graph, plan) == ()
    accessed = dataclasses.replace(graph, operators=(*operators, forward_operator((running,), ())))
    assert Recomputation(accessed, (1,) * 7).gaps == (idle_gap(a, 1, 5),), (
        "a later operator reads running, so the update may not wait"
    )


def test_random_uploaded_and_updated_tensors_are_not_recomputed() -> None:
    def gaps_of(**changes: object) -> tuple[Gap, ...]:
        graph = _graph([(), (A,), (B,), (A, B)], [(A,), (B,), (C,), ()])
        first = dataclasses.replace(graph.operators[0], **changes)  # type: ignore[arg-type]
        return Recomputation(dataclasses.replace(graph, operators=(first, *graph.operators[1:])), (1,) * 4).gaps

    assert gaps_of() == (idle_gap(A, 1, 3),)
    assert gaps_of(random=True) == gaps_of(stage=Stage.UPLOAD) == gaps_of(writes=(A, X)) == ()
    updated = _graph([(), (A,), (B,), (B,), (A, B)], [(A,), (B,), (A,), (C,), ()])
    assert idle_gap(A, 2, 4) not in Recomputation(updated, (1,) * 5).gaps
    with pytest.raises(InvariantError, match=r"tensor 1 \(t1\) cannot be made again"):
        Recomputation(updated, (1,) * 5).plan("test", (idle_gap(A, 2, 4),))


def test_swap_split_by_a_cone_keeps_its_longer_part() -> None:
    """b is recomputed before operator 7 from a, which is swapped from operator 1 to 8."""
    graph = _graph([(X,), (A,), (B,), *[()] * 4, (B,), (A,)], [(A,), (B,), *[()] * 7])
    recomputation = Recomputation(graph, (10,) * 9)
    swap = Swap(tensor=A, out_after=OpIndex(1), free_at=OpIndex(3), in_at=OpIndex(7), needed_by=OpIndex(8))
    plan = recomputation.plan("test", (idle_gap(B, 2, 7),), (swap,))
    earlier = Swap(tensor=A, out_after=OpIndex(1), free_at=OpIndex(3), in_at=OpIndex(6), needed_by=OpIndex(7))
    assert plan == Plan(policy="test", executions=execution_order(0, 1, 2, 3, 4, 5, 6, 1, 7, 8), swaps=(earlier,))
    assert faults(graph, plan) == ()
    needless = recomputation.plan("test", (idle_gap(A, 1, 8),), (swap,))
    assert needless == Plan(policy="test", executions=execution_order(0, 1, 2, 3, 4, 5, 6, 7, 0, 8))


def test_host_copy_is_reused_until_the_tensor_is_written() -> None:
    """Operators 0, 2 and 5 read the parameter x. Operator 5 writes x, or no operator does."""

    def copies(writes: tuple[TensorId, ...], *boundaries: tuple[int, int, int, int]) -> list[tuple[bool, int]]:
        graph = _graph([(X,), (), (X,), (), (), (X,), ()], [*[()] * 5, writes, ()])
        swaps = [
            Swap(tensor=X, out_after=OpIndex(a), free_at=OpIndex(f), in_at=OpIndex(b), needed_by=OpIndex(n))
            for a, f, b, n in boundaries
        ]
        plan = Recomputation(graph, (10,) * 7).plan("test", (), swaps)
        assert faults(graph, plan) == ()
        return [(s.copies, s.free_at) for s in plan.swaps]

    assert copies((), (0, 1, 2, 2), (2, 4, 5, 5)) == [(True, 1), (False, 3)], (
        "the second swap copies nothing, so x is released at once"
    )
    assert copies((X,), (0, 1, 2, 2), (5, 6, 0, 0)) == [(True, 1), (True, 6)], (
        "x returns before operator 0 and was written"
    )
    assert copies((), (0, 2, 2, 2)) == [], "x is away at no operator"
    away_at_the_start = ((2, 4, 5, 5), (5, 6, 0, 0))
    assert copies((), *away_at_the_start) == [(True, 4), (False, 6)]


@some_examples()
@given(st.data())
def test_every_choice_of_gaps_and_swaps_gives_a_valid_plan(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    base = data.draw(_bases(graph))
    latency_ns = data.draw(latencies(graph))
    recomputation = Recomputation(graph, latency_ns, base)
    dropped = data.draw(_subsets(recomputation.gaps))
    brief = data.draw(_subsets(recomputation.gaps))
    retained = data.draw(_subsets(tuple(t.id for t in graph.tensors)))
    swaps = data.draw(_swaps(recomputation.graph))
    plan = recomputation.plan("test", dropped, swaps, brief=brief, retained=retained)
    event(f"dropped {min(3, len(dropped))}, swapped {min(3, len(plan.swaps))}")
    assert faults(graph, plan) == ()
    assert effective(graph, plan).operators or not dropped
    if not dropped and not base:
        assert plan.executions == ()
        assert [(s.tensor, s.out_after, s.in_at) for s in plan.swaps] == [
            (s.tensor, s.out_after, s.in_at) for s in sorted(swaps, key=lambda s: (s.tensor, s.out_after))
        ]
    if dropped:
        order = recomputation.order(dropped, brief=brief, retained=retained)
        assert recomputation.extra_ns(order) >= 0
        assert len(order) > len(recomputation.graph.operators)
        assert peak(graph, plan) > 0


@given(st.data())
def test_cone_has_the_operators_that_the_order_runs_before_the_gap_ends(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    recomputation = Recomputation(graph, data.draw(latencies(graph)))
    for gap in recomputation.gaps:
        cone = recomputation.cone(gap)
        order = [e.operator for e in recomputation.order((gap,))]
        reruns = [k for at, k in enumerate(order) if k in order[:at]]
        assert cone.operators == tuple(reruns)
        assert gap.tensor in cone.made
        assert recomputation.extra_ns(recomputation.order((gap,))) == cone.time_ns
        assert not {*cone.sources} & {*cone.made}


def _subsets(values: tuple[Any, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Draw any subset of these values."""
    return st.lists(st.sampled_from(values), unique=True).map(tuple) if values else st.just(())


@st.composite
def _bases(draw: st.DrawFn, graph: StepGraph) -> tuple[Execution, ...]:
    """Draw no order, or a valid order in which some operators have moved."""
    order = list(captured_order(graph))
    if draw(st.booleans()):
        return ()
    for _ in range(4):
        at, to = (draw(st.integers(0, len(order) - 1)) for _ in range(2))
        moved = [*order[:at], *order[at + 1 :]]
        moved.insert(to, order[at])
        if not judge(graph, moved).faults:
            order = moved
    return tuple(order)


@st.composite
def _swaps(draw: st.DrawFn, graph: StepGraph) -> tuple[Swap, ...]:
    """Draw swaps in some gaps, with boundaries anywhere inside the gaps."""
    count = len(graph.operators)
    swaps = []
    for gap in draw(_subsets(gaps(graph))):
        needed_by = unrolled(gap.needed_by, gap.out_after, count)
        free_at = draw(st.integers(gap.out_after + 1, needed_by - 1))
        in_at = draw(st.integers(free_at + 1, needed_by))
        swap = Swap(
            tensor=gap.tensor,
            out_after=gap.out_after,
            free_at=OpIndex(free_at % count),
            in_at=OpIndex(in_at % count),
            needed_by=gap.needed_by,
        )
        swaps.append(swap)
    return tuple(swaps)


def _ops(*operators: int) -> tuple[OpIndex, ...]:
    return tuple(OpIndex(k) for k in operators)


def _tensor(index: int, role: Role = Role.ACTIVATION) -> Tensor:
    return Tensor(id=TensorId(index), name=f"t{index}", size_bytes=10, role=role)


def _graph(reads: list[tuple[TensorId, ...]], writes: list[tuple[TensorId, ...]]) -> StepGraph:
    """Return a graph of a parameter x and activations a, b and c of 10 bytes each."""
    tensors = (_tensor(0, Role.PARAMETER), *(_tensor(k) for k in range(1, 4)))
    operators = tuple(forward_operator(r, w) for r, w in zip(reads, writes, strict=True))
    return StepGraph(tensors=tensors, operators=operators)


def _chain() -> StepGraph:
    return _graph([(X,), (A,), (B,), (C,), (B,), (A,)], [(A,), (B,), (C,), (), (), ()])
