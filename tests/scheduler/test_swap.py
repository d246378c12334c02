"""One graph's swaps: what the calendar promises, the simulator and the judge must find."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.scheduler import check
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import load
from indb_tensile.scheduler.plan import Swap
from indb_tensile.scheduler.simulate import JobRun, simulate
from indb_tensile.scheduler.swap import SwapPlan
from tests.scheduler.strategies import graphs, latencies, links

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte


@settings(max_examples=400, deadline=None)
@given(st.data(), graphs(), links())
def test_swaps_that_were_promised_to_stall_nobody_stall_nobody(
    data: st.DataObject, graph: StepGraph, link: Link
) -> None:
    latency = data.draw(latencies(graph))
    plan = _swap_everything(data, graph, latency, link, stalls=False)
    assert check.faults(graph, plan.plan("test")) == ()
    forecast = simulate([JobRun(graph=graph, plan=plan.plan("test"), latency_ns=latency)], link)[0]
    calm = simulate(
        [JobRun(graph=graph, plan=SwapPlan(graph, latency, link, 1.0).plan("x"), latency_ns=latency)], link
    )
    assert (forecast.stall_out_ns, forecast.stall_in_ns) == (0, 0)
    assert forecast.iteration_ns == calm[0].iteration_ns == plan.axis.period_ns


@settings(max_examples=300, deadline=None)
@given(st.data(), graphs(), links())
def test_stalls_are_accepted_only_with_a_lower_load_and_within_the_rules(
    data: st.DataObject, graph: StepGraph, link: Link
) -> None:
    latency = data.draw(latencies(graph))
    plan = SwapPlan(graph, latency, link, 1.0)
    for _ in range(200):
        operator = plan.load.argmax()
        found = plan.candidates(operator)
        if len(found.gap) == 0:
            break
        before = plan.load.by_operator()
        pick = data.draw(st.integers(0, len(found.gap) - 1))
        assert plan.swap(int(found.gap[pick]), operator, stalls=True)
        after = plan.load.by_operator()
        assert after[operator] < before[operator]
        assert max(after) <= max(before)
        assert check.faults(graph, plan.plan("test")) == ()
        assert load(graph, plan.plan("test")) == after
    operator = plan.load.argmax()
    resident = plan.load.at(operator) - plan.least[operator]
    assert resident == sum(graph.tensors[t].size_bytes for t in plan.idle)


@settings(max_examples=200, deadline=None)
@given(st.data(), graphs(), links())
def test_pruning_keeps_the_cap_and_the_rules(data: st.DataObject, graph: StepGraph, link: Link) -> None:
    latency = data.draw(latencies(graph))
    plan = _swap_everything(data, graph, latency, link, stalls=True)
    cap = plan.peak_bytes + data.draw(st.integers(0, 50))
    before = plan.swap_count
    plan.prune(cap)
    assert plan.swap_count <= before
    assert check.faults(graph, plan.plan("test"), limit_bytes=cap) == ()
    assert load(graph, plan.plan("test")) == plan.load.by_operator()


@settings(max_examples=200, deadline=None)
@given(st.data(), graphs(), links())
def test_a_swap_lowers_the_peaks_operator_or_changes_nothing(
    data: st.DataObject, graph: StepGraph, link: Link
) -> None:
    plan = _swap_everything(data, graph, data.draw(latencies(graph)), link, stalls=False)
    operator = plan.load.argmax()
    for gap in plan.holding(operator).tolist():
        before, loads = plan.plan("test"), plan.load.by_operator()
        if plan.swap(gap, operator, stalls=False):
            assert plan.load.at(operator) < loads[operator]
            assert plan.peak_bytes <= max(loads)
        else:
            assert plan.plan("test") == before
            assert plan.load.by_operator() == loads


def test_a_second_copy_waits_behind_the_first_in_the_lane() -> None:
    """Two tensors of 10 bytes leave after operator 0; operators take 8 us, a copy 10 us."""
    plan = SwapPlan(_two_after_one(), (8_000,) * 10, SLOW, 1.0)
    assert all(plan.swap(gap, 5, stalls=False) for gap in plan.holding(5).tolist())
    # Out 8..18, then 18..28. Back 56..66, and before it 48..58, which still lets the other end by 72.
    assert plan.plan("test").swaps == (_swap(0, 0, 3, 7, 9), _swap(1, 0, 4, 6, 9))


def test_half_a_lane_makes_a_copy_take_twice_as_long() -> None:
    whole, half = (SwapPlan(_two_after_one(), (8_000,) * 10, SLOW, share) for share in (1.0, 0.5))
    assert whole.swap(int(whole.holding(5)[0]), 5, stalls=False)
    assert half.swap(int(half.holding(5)[0]), 5, stalls=False)
    assert whole.plan("test").swaps == (_swap(0, 0, 3, 7, 9),)
    assert half.plan("test").swaps == (_swap(0, 0, 4, 6, 9),)


def test_an_unchanged_tensor_leaves_again_without_a_copy() -> None:
    """Written by operator 0, read by 4 and 8: the copy of the first gap serves the second, not the third."""
    graph = _one_parameter(count=12, accesses={0: True, 4: False, 8: False})
    plan = SwapPlan(graph, (100_000,) * 12, SLOW, 1.0)
    for operator in (2, 6, 10):
        assert plan.swap(int(plan.holding(operator)[0]), operator, stalls=False)
    swaps = plan.plan("test").swaps
    assert [(s.out_after, s.free_at, s.copies) for s in swaps] == [(0, 2, True), (4, 5, False), (8, 9, False)]


def test_a_tensor_that_is_away_at_the_start_has_a_host_copy() -> None:
    graph = _one_parameter(count=12, accesses={2: False, 6: False, 8: True})
    plan = SwapPlan(graph, (100_000,) * 12, SLOW, 1.0)
    for operator in (10, 4):
        assert plan.swap(int(plan.holding(operator)[0]), operator, stalls=False)
    swaps = plan.plan("test").swaps
    assert swaps == (_swap(0, 2, 3, 5, 6, copies=False), _swap(0, 8, 10, 1, 2))


def test_a_copy_that_ends_after_the_peak_does_not_help_it() -> None:
    plan = SwapPlan(_two_after_one(), (8_000,) * 10, SLOW, 1.0)
    gap = int(plan.holding(2)[0])
    assert not plan.swap(gap, 2, stalls=False), "the copy is done at 18, operator 2 starts at 16"
    assert plan.swap(gap, 3, stalls=False)


def test_a_gap_too_short_for_its_copies_is_refused_and_priced() -> None:
    plan = SwapPlan(_two_after_one(), (2_000,) * 10, SLOW, 1.0)
    gap = int(plan.holding(5)[0])
    assert not plan.swap(gap, 5, stalls=False)
    estimate = plan.candidates(5)
    # Out 2..12 but due at 10; back 12..22 but due at 18.
    assert dict(zip(estimate.gap.tolist(), estimate.stall_ns.tolist(), strict=True))[gap] == 2_000 + 4_000
    assert plan.swap(gap, 5, stalls=True)
    swap = plan.plan("test")
    assert swap.swaps == (_swap(0, 0, 5, 6, 9),)
    forecast = simulate([JobRun(graph=_two_after_one(), plan=swap, latency_ns=(2_000,) * 10)], SLOW)[0]
    assert (forecast.stall_out_ns, forecast.stall_in_ns) == (2_000, 4_000)
    assert plan.axis.period_ns == forecast.iteration_ns == 26_000


def _swap_everything(
    data: st.DataObject, graph: StepGraph, latency: tuple[int, ...], link: Link, *, stalls: bool
) -> SwapPlan:
    """Try gaps in a random order, each at a random operator within it, or at none."""
    plan = SwapPlan(graph, latency, link, 1.0)
    for operator in data.draw(st.permutations(range(len(graph.operators)))):
        for gap in plan.holding(operator).tolist():
            plan.swap(gap, operator if data.draw(st.booleans()) else None, stalls=stalls)
    assert np.array_equal(load(graph, plan.plan("test")), plan.load.by_operator())
    return plan


def _swap(tensor: int, out_after: int, free_at: int, in_at: int, needed_by: int, *, copies: bool = True) -> Swap:
    return Swap(
        tensor=TensorId(tensor),
        out_after=OpIndex(out_after),
        free_at=OpIndex(free_at),
        in_at=OpIndex(in_at),
        needed_by=OpIndex(needed_by),
        copies=copies,
    )


def _operator(reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
    return Operator(name="op", signature="op", stage=Stage.FORWARD, reads=reads, writes=writes)


def _two_after_one() -> StepGraph:
    """Operator 0 of ten makes two tensors of 10 bytes, operator 9 uses them."""
    tensors = tuple(Tensor(id=TensorId(i), name=f"t{i}", size_bytes=10, role=Role.ACTIVATION) for i in range(2))
    both = tuple(t.id for t in tensors)
    return StepGraph(tensors=tensors, operators=(_operator((), both), *[_operator((), ())] * 8, _operator(both, ())))


def _one_parameter(*, count: int, accesses: dict[int, bool]) -> StepGraph:
    """A parameter of 60 bytes and the operators that access it, each writing it or not."""
    tensor = Tensor(id=TensorId(0), name="p", size_bytes=60, role=Role.PARAMETER)
    operators = []
    for index in range(count):
        operators.append(
            _operator((tensor.id,) if index in accesses else (), (tensor.id,) if accesses.get(index) else ())
        )
    return StepGraph(tensors=(tensor,), operators=tuple(operators))


def test_a_swap_that_another_spares_its_copy_gives_memory_back_at_once() -> None:
    """The last gap is swapped first and copies past the end; then the first gap's copy serves it too."""
    graph = _one_parameter(count=12, accesses={2: True, 10: False})
    plan = SwapPlan(graph, (50_000,) * 12, SLOW, 1.0)
    assert plan.swap(int(plan.holding(0)[0]), 0, stalls=True)
    assert plan.plan("test").swaps == (_swap(0, 10, 0, 1, 2),)
    assert plan.swap(int(plan.holding(6)[0]), 6, stalls=False)
    assert plan.plan("test").swaps == (_swap(0, 2, 5, 8, 10), _swap(0, 10, 11, 1, 2, copies=False))
    assert load(graph, plan.plan("test")) == plan.load.by_operator()


def test_a_copy_that_another_swap_relies_on_at_the_start_does_not_slip_past_it() -> None:
    """p is away at operator 0, which spares its next swap the copy; q's long copy ahead of it would delay it."""
    p = Tensor(id=TensorId(0), name="p", size_bytes=60, role=Role.PARAMETER)
    q = Tensor(id=TensorId(1), name="q", size_bytes=400, role=Role.PARAMETER)
    reads: dict[int, tuple[TensorId, ...]] = {3: (p.id,), 6: (p.id,), 7: (q.id,), 8: (p.id,)}
    writes: dict[int, tuple[TensorId, ...]] = {7: (q.id,), 8: (p.id,)}
    operators = [_operator(reads.get(k, ()), writes.get(k, ())) for k in range(12)]
    operators[7] = dataclasses.replace(operators[7], workspace_bytes=100)
    graph = StepGraph(tensors=(p, q), operators=tuple(operators))
    for relied_on in (False, True):
        plan = SwapPlan(graph, (100_000,) * 12, SLOW, 1.0)
        around, long = (int(g) for g in sorted(plan.holding(0).tolist(), key=plan.tensor_of))
        assert plan.swap(around, 11, stalls=False)
        if relied_on:
            first = next(g for g in plan.holding(4).tolist() if plan.tensor_of(g) == p.id)
            assert plan.swap(first, 4, stalls=False)
        assert plan.swap(long, 0, stalls=False) is not relied_on
        assert check.faults(graph, plan.plan("test")) == ()


def test_pruning_keeps_a_copy_that_another_swap_relies_on() -> None:
    """Without the first swap nothing would pass the cap, but the other two would have to copy."""
    graph = _one_parameter(count=12, accesses={0: True, 4: False, 8: False})
    busy = [dataclasses.replace(op, workspace_bytes=50 * (k in (6, 10))) for k, op in enumerate(graph.operators)]
    plan = SwapPlan(dataclasses.replace(graph, operators=tuple(busy)), (100_000,) * 12, SLOW, 1.0)
    for operator in (2, 6, 10):
        assert plan.swap(int(plan.holding(operator)[0]), operator, stalls=False)
    before = plan.plan("test")
    plan.prune(60)
    assert plan.plan("test") == before
    plan.prune(110)
    assert plan.swap_count == 0


def test_a_copy_delayed_by_another_gives_its_memory_back_later() -> None:
    """The copy of tensor 0 is put ahead of tensor 1's in the lane, which was to be done at 18."""
    plan = SwapPlan(_two_after_one(), (8_000,) * 10, SLOW, 1.0)
    first, second = plan.holding(5).tolist()
    assert plan.swap(second, 5, stalls=False)
    assert plan.plan("test").swaps == (_swap(1, 0, 3, 7, 9),)
    assert plan.swap(first, 5, stalls=False)
    assert [(s.tensor, s.free_at) for s in plan.plan("test").swaps] == [(0, 3), (1, 4)]


def test_the_largest_tensor_at_an_operator_comes_first() -> None:
    graph = _two_after_one()
    sizes = [dataclasses.replace(t, size_bytes=10 + 5 * t.id) for t in graph.tensors]
    plan = SwapPlan(dataclasses.replace(graph, tensors=tuple(sizes)), (8_000,) * 10, SLOW, 1.0)
    assert [plan.size_of(g) for g in plan.holding(5).tolist()] == [15, 10]
