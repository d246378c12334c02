"""Check the residency intervals of a plan: at every operator their sum is the load."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, Role, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA, load
from indb_tensile.scheduler.memory.residency import Interval, intervals, load_bound
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.nightly import some_examples
from tests.scheduler.plan_parts import forward_operator, swap
from tests.scheduler.strategies import graphs, links, workloads


@some_examples()
@given(workloads(), links(), st.floats(0, 1), st.sampled_from(sorted(POLICIES)))
def test_intervals_of_every_plan_sum_up_to_its_load(
    workload: Workload, link: Link, fraction: float, policy: str
) -> None:
    least = least_bytes(workload)
    plans = POLICIES[policy].plan((workload,), budget_bytes=least + round(fraction * least), link=link)[0]
    for graph, plan in zip(workload.graphs, plans, strict=True):
        count = len(effective(graph, plan).operators)
        plan_intervals = intervals(graph, plan)
        assert load_of_intervals(plan_intervals, count) == load(graph, plan)
        assert load_bound(plan_intervals, count) == check.peak(graph, plan)


@given(graphs())
def test_tensor_without_swaps_has_one_interval(graph: StepGraph) -> None:
    for plan in (VANILLA, LIVENESS):
        tensors = [i.tensor for i in intervals(graph, plan) if i.tensor is not None]
        assert len(tensors) == len(set(tensors))


def test_swaps_split_a_lifetime_and_an_interval_may_cross_the_end() -> None:
    """`state` is away at operators 2 and 3. `weight` is away at 4, 5 and 0, so it returns in the next iteration."""
    graph = _graph()
    plan = Plan(policy="p", swaps=(swap(0, 3, 4, 1, 1), swap(1, 0, 2, 4, 4), swap(2, 1, 3, 3, 4)))
    assert intervals(graph, plan) == (
        _interval(0, 1, 4, 10),
        _interval(1, 4, 8, 20),
        _interval(2, 1, 3, 30),
        _interval(2, 3, 5, 30),
        _interval(None, 5, 6, 7),
    )


def test_tensor_on_the_host_has_no_interval_and_unreleased_tensors_last_to_the_end() -> None:
    plan = Plan(policy="p", release=False, away=frozenset({TensorId(1)}))
    assert intervals(_graph(), plan) == (
        _interval(0, 0, 6, 10),
        _interval(2, 1, 6, 30),
        _interval(None, 5, 6, 7),
    )


def test_recomputed_tensor_has_one_interval_for_each_computation() -> None:
    order = (0, 1, 2, 3, 1, 4, 5)
    plan = Plan(policy="p", executions=tuple(Execution(operator=OpIndex(k)) for k in order))
    assert intervals(_graph(), plan)[2:] == (
        _interval(2, 1, 2, 30),
        _interval(3, 4, 6, 30),
        _interval(None, 6, 7, 7),
    )


def test_empty_interval_is_refused() -> None:
    for first, stop, size_bytes in ((1, 1, 5), (-1, 2, 5), (0, 1, 0)):
        with pytest.raises(InvariantError, match="empty"):
            _interval(0, first, stop, size_bytes)


def load_of_intervals(plan_intervals: tuple[Interval, ...], count: int) -> tuple[int, ...]:
    load_bytes = [0] * count
    for interval in plan_intervals:
        for moment in range(interval.first, interval.stop):
            load_bytes[moment % count] += interval.size_bytes
    return tuple(load_bytes)


def _graph() -> StepGraph:
    tensors = (
        Tensor(id=TensorId(0), name="weight", size_bytes=10, role=Role.PARAMETER),
        Tensor(id=TensorId(1), name="state", size_bytes=20, role=Role.OPTIMIZER_STATE),
        Tensor(id=TensorId(2), name="work", size_bytes=30, role=Role.ACTIVATION),
    )
    weight, state, work = (t.id for t in tensors)
    operators = (
        forward_operator((state,), ()),
        forward_operator((weight,), (work,)),
        forward_operator((), ()),
        forward_operator((weight,), ()),
        forward_operator((state, work), ()),
        forward_operator((), (), 7),
    )
    return StepGraph(tensors=tensors, operators=operators)


def _interval(tensor: int | None, first: int, stop: int, size_bytes: int) -> Interval:
    return Interval(
        tensor=None if tensor is None else TensorId(tensor), first=OpIndex(first), stop=stop, size_bytes=size_bytes
    )
