"""Recomputation: cones by hand, and any choice of gaps and swaps as a plan that breaks no rule."""

import dataclasses
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.judges.equivalence import judge
from indb_tensile.scheduler.memory.peak import Gap, gaps, peak, unrolled
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.recomputation.recompute import Cone, Recomputation
from indb_tensile.scheduler.rewrite import captured_order, effective
from tests.scheduler.strategies import graphs, latencies

X, A, B, C = (TensorId(k) for k in range(4))


def test_a_cone_goes_up_to_what_is_there() -> None:
    """x (a parameter) -> a -> b -> c; then c, b, a are read again, in this order."""
    found = Recomputation(_chain(), (1, 20, 300, 1, 1, 1))
    a, b = _gap(A, 1, 5), _gap(B, 2, 4)
    assert found.gaps == (a, b)
    assert found.cone(b) == Cone(gap=b, operators=_ops(1), sources=(A,), made=(B,), time_ns=20)
    assert found.cone(b, [a]) == Cone(gap=b, operators=_ops(0, 1), sources=(X,), made=(A, B), time_ns=21)
    assert found.cone(a, [b]) == Cone(gap=a, operators=_ops(0), sources=(X,), made=(A,), time_ns=1)


def test_what_is_made_in_passing_stays_unless_its_gap_is_brief() -> None:
    found = Recomputation(_chain(), (1, 20, 300, 1, 1, 1))
    a, b = _gap(A, 1, 5), _gap(B, 2, 4)
    assert found.order((a, b)) == _order(0, 1, 2, 3, 0, 1, 4, 5)
    assert found.order((a, b), brief=(a,)) == _order(0, 1, 2, 3, 0, 1, 4, 0, 5)
    assert found.order((b,)) == _order(0, 1, 2, 3, 1, 4, 5)
    assert found.extra_ns(found.order((a, b), brief=(a,))) == 22


def test_a_tensor_held_past_its_last_access_is_a_source() -> None:
    """a -> b -> c, and b is read again; a is dead by then."""
    graph = _graph([(), (A,), (B,), (C,), (B,)], [(A,), (B,), (C,), (), ()])
    found = Recomputation(graph, (1, 20, 300, 1, 1))
    b = _gap(B, 2, 4)
    assert found.cone(b).operators == (0, 1)
    assert found.cone(b, retained={A}) == Cone(gap=b, operators=_ops(1), sources=(A,), made=(B,), time_ns=20)
    assert found.order((b,), retained={A}) == _order(0, 1, 2, 3, 1, 4)


def test_an_update_of_statistics_waits_for_the_last_re_run() -> None:
    """Normalisation: n = f(a, running), running' = g(a, running); the update copies running' into running."""
    tensors = (_tensor(0, Role.BUFFER), *(_tensor(k) for k in range(1, 5)))
    running, a, n, statistics, g = (t.id for t in tensors)
    operators = (
        _operator((), (a,)),
        _operator((a, running), (n, statistics)),
        _operator((running, statistics), (running,)),
        _operator((n,), (g,)),
        _operator((g,), ()),
        _operator((n, a), ()),
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    found = Recomputation(graph, (1,) * 6)
    n_gap = _gap(n, 3, 5)
    assert found.gaps == (_gap(a, 1, 5), _gap(n, 1, 3), n_gap)
    plan = found.plan("test", (n_gap,))
    assert plan == Plan(policy="test", executions=_order(0, 1, 3, 4, 1, 2, 5))
    assert faults(graph, plan) == ()
    accessed = dataclasses.replace(graph, operators=(*operators, _operator((running,), ())))
    assert Recomputation(accessed, (1,) * 7).gaps == (_gap(a, 1, 5),), "the update may not wait"


def test_what_draws_uploads_or_was_updated_is_not_made_again() -> None:
    def draw(**changes: object) -> tuple[Gap, ...]:
        graph = _graph([(), (A,), (B,), (A, B)], [(A,), (B,), (C,), ()])
        first = dataclasses.replace(graph.operators[0], **changes)  # type: ignore[arg-type]
        return Recomputation(dataclasses.replace(graph, operators=(first, *graph.operators[1:])), (1,) * 4).gaps

    assert draw() == (_gap(A, 1, 3),)
    assert draw(random=True) == draw(stage=Stage.UPLOAD) == draw(writes=(A, X)) == ()
    updated = _graph([(), (A,), (B,), (B,), (A, B)], [(A,), (B,), (A,), (C,), ()])
    assert _gap(A, 2, 4) not in Recomputation(updated, (1,) * 5).gaps
    with pytest.raises(InvariantError, match=r"tensor 1 \(t1\) cannot be made again"):
        Recomputation(updated, (1,) * 5).plan("test", (_gap(A, 2, 4),))


def test_a_swap_that_a_cone_reads_from_keeps_its_longer_part() -> None:
    """b is made again from a, which is swapped from 1 to 8; the re-run is in 7's turn."""
    graph = _graph([(X,), (A,), (B,), *[()] * 4, (B,), (A,)], [(A,), (B,), *[()] * 7])
    found = Recomputation(graph, (10,) * 9)
    swap = Swap(tensor=A, out_after=OpIndex(1), free_at=OpIndex(3), in_at=OpIndex(7), needed_by=OpIndex(8))
    plan = found.plan("test", (_gap(B, 2, 7),), (swap,))
    earlier = Swap(tensor=A, out_after=OpIndex(1), free_at=OpIndex(3), in_at=OpIndex(6), needed_by=OpIndex(7))
    assert plan == Plan(policy="test", executions=_order(0, 1, 2, 3, 4, 5, 6, 1, 7, 8), swaps=(earlier,))
    assert faults(graph, plan) == ()
    needless = found.plan("test", (_gap(A, 1, 8),), (swap,))
    assert needless == Plan(policy="test", executions=_order(0, 1, 2, 3, 4, 5, 6, 7, 0, 8))


def test_a_host_copy_serves_until_the_tensor_is_written() -> None:
    """The parameter x is read at 0, 2 and 5, and written at 5 or not at all."""

    def copies(writes: tuple[TensorId, ...], *boundaries: tuple[int, int, int, int]) -> list[tuple[bool, int]]:
        graph = _graph([(X,), (), (X,), (), (), (X,), ()], [*[()] * 5, writes, ()])
        swaps = [
            Swap(tensor=X, out_after=OpIndex(a), free_at=OpIndex(f), in_at=OpIndex(b), needed_by=OpIndex(n))
            for a, f, b, n in boundaries
        ]
        plan = Recomputation(graph, (10,) * 7).plan("test", (), swaps)
        assert faults(graph, plan) == ()
        return [(s.copies, s.free_at) for s in plan.swaps]

    assert copies((), (0, 1, 2, 2), (2, 4, 5, 5)) == [(True, 1), (False, 3)], "nothing to copy, gone at once"
    assert copies((X,), (0, 1, 2, 2), (5, 6, 0, 0)) == [(True, 1), (True, 6)], "it returns before 0 and was written"
    assert copies((), (0, 2, 2, 2)) == [], "no moment to be away"
    away_at_home = ((2, 4, 5, 5), (5, 6, 0, 0))
    assert copies((), *away_at_home) == [(True, 4), (False, 6)]


@given(st.data())
def test_any_choice_of_gaps_and_swaps_is_a_plan_without_faults(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    base = data.draw(_bases(graph))
    latency_ns = data.draw(latencies(graph))
    found = Recomputation(graph, latency_ns, base)
    dropped = data.draw(_some(found.gaps))
    brief = data.draw(_some(found.gaps))
    held = data.draw(_some(tuple(t.id for t in graph.tensors)))
    swaps = data.draw(_swaps(found.graph))
    plan = found.plan("test", dropped, swaps, brief=brief, retained=held)
    event(f"dropped {min(3, len(dropped))}, swapped {min(3, len(plan.swaps))}")
    assert faults(graph, plan) == ()
    assert effective(graph, plan).operators or not dropped
    if not dropped and not base:
        assert plan.executions == ()
        assert [(s.tensor, s.out_after, s.in_at) for s in plan.swaps] == [
            (s.tensor, s.out_after, s.in_at) for s in sorted(swaps, key=lambda s: (s.tensor, s.out_after))
        ]
    if dropped:
        order = found.order(dropped, brief=brief, retained=held)
        assert found.extra_ns(order) >= 0
        assert len(order) > len(found.graph.operators)
        assert peak(graph, plan) > 0


@given(st.data())
def test_a_cone_is_what_the_order_runs_before_the_gap_ends(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    found = Recomputation(graph, data.draw(latencies(graph)))
    for gap in found.gaps:
        cone = found.cone(gap)
        order = [e.operator for e in found.order((gap,))]
        reruns = [k for at, k in enumerate(order) if k in order[:at]]
        assert cone.operators == tuple(reruns)
        assert gap.tensor in cone.made
        assert found.extra_ns(found.order((gap,))) == cone.time_ns
        assert not {*cone.sources} & {*cone.made}


def _some(values: tuple[Any, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(values), unique=True).map(tuple) if values else st.just(())


@st.composite
def _bases(draw: st.DrawFn, graph: StepGraph) -> tuple[Execution, ...]:
    """No order, or one in which updates moved as far as `rewrite` lets them."""
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
    """Swaps in some gaps, with boundaries anywhere inside."""
    count = len(graph.operators)
    found = []
    for gap in draw(_some(gaps(graph))):
        need = unrolled(gap.needed_by, gap.out_after, count)
        free = draw(st.integers(gap.out_after + 1, need - 1))
        back = draw(st.integers(free + 1, need))
        swap = Swap(
            tensor=gap.tensor,
            out_after=gap.out_after,
            free_at=OpIndex(free % count),
            in_at=OpIndex(back % count),
            needed_by=gap.needed_by,
        )
        found.append(swap)
    return tuple(found)


def _gap(tensor: TensorId, out_after: int, needed_by: int) -> Gap:
    return Gap(tensor=tensor, out_after=OpIndex(out_after), needed_by=OpIndex(needed_by))


def _ops(*operators: int) -> tuple[OpIndex, ...]:
    return tuple(OpIndex(k) for k in operators)


def _order(*operators: int) -> tuple[Execution, ...]:
    return tuple(Execution(operator=OpIndex(k)) for k in operators)


def _operator(reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
    return Operator(name="op", signature="op", stage=Stage.FORWARD, reads=reads, writes=writes)


def _tensor(index: int, role: Role = Role.ACTIVATION) -> Tensor:
    return Tensor(id=TensorId(index), name=f"t{index}", size_bytes=10, role=role)


def _graph(reads: list[tuple[TensorId, ...]], writes: list[tuple[TensorId, ...]]) -> StepGraph:
    """A parameter x and activations a, b, c of 10 bytes each."""
    tensors = (_tensor(0, Role.PARAMETER), *(_tensor(k) for k in range(1, 4)))
    operators = tuple(_operator(r, w) for r, w in zip(reads, writes, strict=True))
    return StepGraph(tensors=tensors, operators=operators)


def _chain() -> StepGraph:
    return _graph([(X,), (A,), (B,), (C,), (B,), (A,)], [(A,), (B,), (C,), (), (), ()])
