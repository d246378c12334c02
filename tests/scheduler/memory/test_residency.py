"""Residency intervals of a plan: at every operator they hold what the load says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA, load
from indb_tensile.scheduler.memory.residency import Interval, intervals, load_bound
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.scheduler.strategies import graphs, links, workloads


@settings(max_examples=120, deadline=None)
@given(workloads(), links(), st.floats(0, 1), st.sampled_from(sorted(POLICIES)))
def test_the_intervals_of_any_plan_sum_up_to_its_load(
    workload: Workload, link: Link, fraction: float, policy: str
) -> None:
    least = least_bytes(workload)
    plans = POLICIES[policy].plan((workload,), budget_bytes=least + round(fraction * least), link=link)[0]
    for graph, plan in zip(workload.graphs, plans, strict=True):
        count = len(effective(graph, plan).operators)
        held = intervals(graph, plan)
        assert summed(held, count) == load(graph, plan)
        assert load_bound(held, count) == check.peak(graph, plan)


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_without_swaps_a_tensor_is_one_interval(graph: StepGraph) -> None:
    for plan in (VANILLA, LIVENESS):
        held = [i.tensor for i in intervals(graph, plan) if i.tensor is not None]
        assert len(held) == len(set(held))


def test_swaps_split_a_life_and_what_crosses_the_end_is_one_interval() -> None:
    """`state` is away at 2 and 3; `weight` at 4, 5 and 0, so it comes back in the next iteration."""
    graph = _graph()
    plan = Plan(policy="p", swaps=(_swap(0, 3, 4, 1, 1), _swap(1, 0, 2, 4, 4), _swap(2, 1, 3, 3, 4)))
    assert intervals(graph, plan) == (
        _interval(0, 1, 4, 10),
        _interval(1, 4, 8, 20),
        _interval(2, 1, 3, 30),
        _interval(2, 3, 5, 30),
        _interval(None, 5, 6, 7),
    )


def test_what_is_away_holds_nothing_and_what_is_not_released_lasts_to_the_end() -> None:
    plan = Plan(policy="p", release=False, away=frozenset({TensorId(1)}))
    assert intervals(_graph(), plan) == (
        _interval(0, 0, 6, 10),
        _interval(2, 1, 6, 30),
        _interval(None, 5, 6, 7),
    )


def test_a_recomputed_tensor_has_an_interval_for_each_time_it_is_made() -> None:
    order = (0, 1, 2, 3, 1, 4, 5)
    plan = Plan(policy="p", executions=tuple(Execution(operator=OpIndex(k)) for k in order))
    assert intervals(_graph(), plan)[2:] == (
        _interval(2, 1, 2, 30),
        _interval(3, 4, 6, 30),
        _interval(None, 6, 7, 7),
    )


def test_an_empty_interval_is_refused() -> None:
    for first, stop, size_bytes in ((1, 1, 5), (-1, 2, 5), (0, 1, 0)):
        with pytest.raises(InvariantError, match="empty"):
            _interval(0, first, stop, size_bytes)


def summed(held: tuple[Interval, ...], count: int) -> tuple[int, ...]:
    found = [0] * count
    for one in held:
        for at in range(one.first, one.stop):
            found[at % count] += one.size_bytes
    return tuple(found)


def _graph() -> StepGraph:
    tensors = (
        Tensor(id=TensorId(0), name="weight", size_bytes=10, role=Role.PARAMETER),
        Tensor(id=TensorId(1), name="state", size_bytes=20, role=Role.OPTIMIZER_STATE),
        Tensor(id=TensorId(2), name="work", size_bytes=30, role=Role.ACTIVATION),
    )
    weight, state, work = (t.id for t in tensors)
    operators = (
        _operator((state,), ()),
        _operator((weight,), (work,)),
        _operator((), ()),
        _operator((weight,), ()),
        _operator((state, work), ()),
        _operator((), (), 7),
    )
    return StepGraph(tensors=tensors, operators=operators)


def _operator(reads: tuple[TensorId, ...], writes: tuple[TensorId, ...], workspace_bytes: int = 0) -> Operator:
    return Operator(
        name="op", signature="op", stage=Stage.FORWARD, reads=reads, writes=writes, workspace_bytes=workspace_bytes
    )


def _swap(tensor: int, out_after: int, free_at: int, in_at: int, needed_by: int) -> Swap:
    return Swap(
        tensor=TensorId(tensor),
        out_after=OpIndex(out_after),
        free_at=OpIndex(free_at),
        in_at=OpIndex(in_at),
        needed_by=OpIndex(needed_by),
    )


def _interval(tensor: int | None, first: int, stop: int, size_bytes: int) -> Interval:
    return Interval(
        tensor=None if tensor is None else TensorId(tensor), first=OpIndex(first), stop=stop, size_bytes=size_bytes
    )
