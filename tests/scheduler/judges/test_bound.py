"""Check the lower bound on the peak: no plan is below it, not even among all plans of a small graph, and it is higher
than the floor.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.bound_moments import movable
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.judges.equivalence import judge
from indb_tensile.scheduler.judges.peak_bound import bound_bytes, covers, least_bytes
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, gaps, liveness_peak, peak
from indb_tensile.scheduler.plan import Execution, Infeasible, Plan, Swap
from indb_tensile.scheduler.planner import plan_jobs
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.rewrite import effective, repeatable
from indb_tensile.scheduler.search.reorder import rearranged, with_parts
from indb_tensile.scheduler.search.step_search import GreedyOptions, StepSearch
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload
from tests.nightly import few_examples, some_examples
from tests.scheduler.access_rows import graph_from_rows
from tests.scheduler.plan_parts import execution_order
from tests.scheduler.strategies import graphs, latencies, links

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
NEVER = Link(out_bytes_per_s=10**3, in_bytes_per_s=10**3)  # 1 ms a byte
A, P = Role.ACTIVATION, Role.PARAMETER


def test_without_time_to_copy_or_rerun_the_bound_is_the_liveness_peak() -> None:
    graph = graph_from_rows((40, A, "w..r"), (30, A, ".wr."), (7, P, "r..."))
    assert bound_bytes(graph, (100,) * 4, NEVER, 400) == liveness_peak(graph) == 77


def test_bytes_that_the_lanes_carry_between_accesses_may_be_away() -> None:
    """Two operators of 15 ns lie between the middle operator and the two accesses, so 15 of 40 bytes can be copied
    each way.
    """
    graph = graph_from_rows((40, A, "w...r"), (30, A, "..w.."))
    assert bound_bytes(graph, (100, 15, 100, 15, 100), LINK, 330) == 70 - 15
    assert bound_bytes(graph, (100, 40, 100, 40, 100), LINK, 380) == 40, "now operator 0 is the largest"


def test_stall_time_is_spent_before_or_after_the_peak_but_not_twice() -> None:
    """There are 20 ns more. 10 ns before the peak and 10 ns after it are best, since both copies have to take
    place.
    """
    graph = graph_from_rows((40, A, "w...r"), (30, A, "..w.."))
    latency_ns = (10**6, 15, 100, 15, 100)  # operator 0 takes too long to run again
    assert bound_bytes(graph, latency_ns, LINK, sum(latency_ns) + 20) == 70 - 15 - 10


def test_rerun_takes_its_own_time_and_that_of_its_sources() -> None:
    """Recomputing b takes 50 ns. Its source a is gone and takes 30 ns more."""
    graph = graph_from_rows((40, A, "wr...."), (40, A, ".w...r"), (60, A, "..wr.."))
    latency_ns = (30, 50, 10, 10, 10, 10)
    time_ns = sum(latency_ns)
    assert bound_bytes(graph, latency_ns, NEVER, time_ns) == 100
    assert bound_bytes(graph, latency_ns, NEVER, time_ns + 40) in range(61, 82), (
        "half of b: the bound counts fractions of operators"
    )
    assert bound_bytes(graph, latency_ns, NEVER, time_ns + 79) in (80, 81), "a and b are both held at operator 1"


@pytest.mark.nightly
def test_two_consecutive_peaks_share_the_extra_time() -> None:
    """Recomputing a takes 40 ns, and so does recomputing c. With 50 ns only one of the two peaks can go without its
    tensor.
    """
    graph = graph_from_rows((40, A, "w..r...."), (30, A, ".wr....."), (40, A, "....w..r"), (30, A, ".....wr."))
    latency_ns = (40, 10, 10, 10) * 2
    time_ns = sum(latency_ns)
    assert bound_bytes(graph, latency_ns, NEVER, time_ns) == 70
    assert bound_bytes(graph, latency_ns, NEVER, time_ns + 49) in range(44, 47), "each peak gets 25 of 40 ns"
    assert bound_bytes(graph, latency_ns, NEVER, time_ns + 80) == 40


@pytest.mark.nightly
def test_a_low_load_within_a_step_does_not_hide_that_two_steps_share_the_extra_time() -> None:
    """Each step needs a at two peaks with a low load between them. Recomputing a takes 40 ns, and 49 ns are there for
    both steps.
    """
    graph = graph_from_rows((40, A, "w.....r."), (30, A, ".wr....."), (25, A, "....wr.."))
    graph, latency_ns = _repeated(graph, 2), (40, 10, 10, 10, 10, 10, 10, 10) * 2
    assert bound_bytes(graph, latency_ns, NEVER, sum(latency_ns)) == 70
    assert bound_bytes(graph, latency_ns, NEVER, sum(latency_ns) + 49) in range(44, 47), "each step gets 25 of 40 ns"


def test_a_higher_peak_gets_more_of_the_extra_time() -> None:
    """With 20 of 50 ns for the peak of 70 bytes and 30 ns for the peak of 80 bytes both keep 50 bytes."""
    graph = graph_from_rows((40, A, "w..r...."), (30, A, ".wr....."), (40, A, "....w..r"), (40, A, ".....wr."))
    latency_ns = (40, 10, 10, 10) * 2
    assert bound_bytes(graph, latency_ns, NEVER, sum(latency_ns) + 50) in range(48, 52)


@pytest.mark.nightly
@few_examples()
@given(graphs(), st.integers(2, 3), links(), st.data())
def test_no_search_is_below_the_bound_of_a_repeated_step(
    graph: StepGraph, times: int, link: Link, data: st.DataObject
) -> None:
    latency_ns = data.draw(latencies(graph)) * times
    graph = _repeated(graph, times)
    search = StepSearch(graph, latency_ns, link)
    least, most = floor(graph), liveness_peak(graph)
    for _ in range(3):
        budget = data.draw(st.integers(least, max(least, most)))
        if search.sweep(budget, drops=True, lane_price=data.draw(st.sampled_from((0.0, 0.1, 1.0)))):
            search.exchange(drops=True, most=50)
            _assert_not_below_the_bound(graph, latency_ns, link, search.plan("test"))
        search.clear()
        search.lower(budget, GreedyOptions(), most=100)
        _assert_not_below_the_bound(graph, latency_ns, link, search.plan("test"))


def _repeated(graph: StepGraph, times: int) -> StepGraph:
    """Return the same operators several times, each time with tensors of their own except for the persistent ones."""
    tensors = list(graph.tensors)
    operators = list(graph.operators)
    for _ in range(times - 1):
        copy_of = {t.id: t.id for t in graph.tensors if t.persistent}
        for tensor in graph.tensors:
            if not tensor.persistent:
                copy_of[tensor.id] = TensorId(len(tensors))
                tensors.append(replace(tensor, id=copy_of[tensor.id]))
        operators += [
            replace(op, reads=tuple(copy_of[t] for t in op.reads), writes=tuple(copy_of[t] for t in op.writes))
            for op in graph.operators
        ]
    return StepGraph(tensors=tuple(tensors), operators=tuple(operators))


def test_update_may_run_early_and_in_parts() -> None:
    sizes = [(1024, P), (4096, Role.OPTIMIZER_STATE), (1024, A)]
    tensors = tuple(
        Tensor(id=TensorId(k), name=f"t{k}", size_bytes=size, role=role) for k, (size, role) in enumerate(sizes)
    )
    gradient = _operator("gradient", Stage.BACKWARD, (0,), (2,))
    update = replace(_operator("update", Stage.OPTIMIZER, (0, 1, 2), (0, 1)), splittable=True)
    graph = StepGraph(tensors=tensors, operators=(gradient, update))
    assert (floor(graph), least_bytes(graph)) == (6144, 2048)
    assert movable(graph, update)
    assert not movable(graph, gradient)


def test_an_update_comes_before_a_moment_or_after_it_and_its_state_is_not_away_by_both_ways() -> None:
    """State of 3,000 bytes is away at the last operator if it leaves between the update and that operator, in 500 ns.

    Or it comes in between that operator and the update, in no time, and the gradient of 1,000 bytes waits for it.
    """
    tensors = tuple(
        Tensor(id=TensorId(k), name=f"t{k}", size_bytes=size, role=role)
        for k, (size, role) in enumerate([(3000, Role.OPTIMIZER_STATE), (1000, A), (4000, A)])
    )
    gradient = _operator("gradient", Stage.BACKWARD, (), (1,))
    middle = _operator("middle", Stage.BACKWARD, (), ())
    last = _operator("last", Stage.BACKWARD, (), (2,))
    update = replace(_operator("update", Stage.OPTIMIZER, (0, 1), (0,)), splittable=True)
    graph = StepGraph(tensors=tensors, operators=(gradient, middle, last, update))
    latency_ns = (100_000, 500, 100_000, 0)
    assert bound_bytes(graph, latency_ns, LINK, sum(latency_ns)) in (6499, 6500)
    slower_ns = sum(latency_ns) + 3000
    assert bound_bytes(graph, latency_ns, LINK, slower_ns) in range(3990, 4001), "it leaves before the last operator"


def test_bound_does_not_cover_plans_that_reorder_other_operators() -> None:
    graph = graph_from_rows((4, A, "w.r"), (4, A, ".wr"))
    assert covers(graph, Plan(policy="test"))
    assert covers(graph, Plan(policy="test", executions=execution_order(0, 1, 0, 2)))
    assert not covers(graph, Plan(policy="test", executions=execution_order(1, 0, 2)))


@some_examples()
@given(st.data())
def test_no_plan_of_a_small_graph_is_below_the_bound(data: st.DataObject) -> None:
    graph = data.draw(_small_graphs())
    latency_ns = data.draw(latencies(graph))
    link = data.draw(links())
    lowest: dict[int, int] = {}
    for plan in _all_plans(graph):
        (forecast,) = simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link)
        lowest[forecast.iteration_ns] = min(
            forecast.peak_bytes, lowest.get(forecast.iteration_ns, forecast.peak_bytes)
        )
    best_bytes = max(lowest.values()) + 1
    for time_ns, peak_bytes in sorted(lowest.items()):
        if peak_bytes < best_bytes:  # no plan that is as fast has a lower peak
            best_bytes = peak_bytes
            assert bound_bytes(graph, latency_ns, link, time_ns) <= peak_bytes


@few_examples()
@given(graphs(), links(), st.data())
def test_no_policy_and_no_search_is_below_the_bound(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    stages = data.draw(st.sampled_from((Stage.FORWARD, Stage.OPTIMIZER)))
    operators = tuple(replace(op, stage=stages if k % 3 == 2 else op.stage) for k, op in enumerate(graph.operators))
    graph = replace(graph, operators=operators)
    latency_ns = data.draw(latencies(graph))
    job = Workload(job=JobId(1), graphs=(graph,), latency_ns=(latency_ns,))
    least, most = floor(graph), liveness_peak(graph)
    budget = data.draw(st.integers(least, max(least, most)))
    policy = data.draw(st.sampled_from(sorted(POLICIES)))
    planned = plan_jobs((job,), budget_bytes=budget, link=link, policy=policy)
    if not isinstance(planned, Infeasible):
        _assert_not_below_the_bound(graph, latency_ns, link, planned[0].plans[0])
    search = StepSearch(graph, latency_ns, link, executions=with_parts(graph, rearranged(graph)))
    search.lower(budget, GreedyOptions(), most=100)
    _assert_not_below_the_bound(graph, latency_ns, link, search.plan("test"))
    search.exhaust()
    _assert_not_below_the_bound(graph, latency_ns, link, search.plan("test"))


def _assert_not_below_the_bound(graph: StepGraph, latency_ns: tuple[int, ...], link: Link, plan: Plan) -> None:
    assert covers(graph, plan)
    (forecast,) = simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link)
    assert bound_bytes(graph, latency_ns, link, forecast.iteration_ns) <= peak(graph, plan)


# --- all plans ---------------------------------------------------------------------------------------------------


def _all_plans(graph: StepGraph) -> Iterator[Plan]:
    """Yield every plan that the bound covers, with at most one operator run again."""
    for executions in _all_orders(graph):
        order = Plan(policy="test", executions=executions)
        if faults(graph, order):
            continue
        final = effective(graph, order)
        count = len(final.operators)
        options: list[list[Swap | None]] = []
        for gap in gaps(final):
            inside = (gap.needed_by - gap.out_after - 1) % count
            options.append([None])
            for free, back in combinations_with_replacement(range(1, inside + 2), 2):
                if free == back:
                    continue
                for copies in (True, False):
                    swap = Swap(
                        tensor=gap.tensor,
                        out_after=gap.out_after,
                        free_at=OpIndex((gap.out_after + free) % count),
                        in_at=OpIndex((gap.out_after + back) % count),
                        needed_by=gap.needed_by,
                        copies=copies,
                    )
                    options[-1].append(swap)
        for chosen in product(*options):
            swaps = tuple(sorted((s for s in chosen if s is not None), key=lambda s: (s.tensor, s.out_after)))
            plan = replace(order, swaps=swaps)
            if not faults(graph, plan):
                yield plan


def _all_orders(graph: StepGraph) -> Iterator[tuple[Execution, ...]]:
    orders: set[tuple[int, ...]] = {tuple(k for k, op in enumerate(graph.operators) if not movable(graph, op))}
    for moved in (k for k, op in enumerate(graph.operators) if movable(graph, op)):
        orders = {(*o[:at], moved, *o[at:]) for o in orders for at in range(len(o) + 1)}
    orders = {o for o in orders if not judge(graph, execution_order(*o)).faults}
    repeatable_operators = [k for k, may in enumerate(repeatable(graph)) if may]
    with_rerun = {
        (*o[:at], k, *o[at:])
        for o in orders
        for k in repeatable_operators
        for at in range(o.index(k) + 1, len(o) + 1)
    }
    for order in sorted(orders | with_rerun):
        yield execution_order(*order)


@st.composite
def _small_graphs(draw: st.DrawFn) -> StepGraph:
    """Draw a graph of two to four operators and up to three tensors."""
    roles = draw(st.lists(st.sampled_from((P, Role.BUFFER, A, A)), min_size=1, max_size=3))
    tensors = tuple(
        Tensor(id=TensorId(k), name=f"t{k}", size_bytes=draw(st.integers(1, 40)), role=role)
        for k, role in enumerate(roles)
    )
    operators = []
    alive = [t.id for t in tensors if t.persistent]
    fresh = [t.id for t in tensors if not t.persistent]
    for index in range(draw(st.integers(2, 4))):
        reads = draw(st.lists(st.sampled_from(alive), max_size=2, unique=True)) if alive else []
        most = draw(st.integers(0, 1))
        writes = draw(st.lists(st.sampled_from(alive), max_size=most)) if alive else []
        makes = draw(st.booleans())
        if fresh and makes:
            alive.append(fresh.pop())
            writes.append(alive[-1])
        stage = draw(st.sampled_from((Stage.FORWARD, Stage.FORWARD, Stage.OPTIMIZER, Stage.UPLOAD)))
        stage = stage if writes or stage is not Stage.UPLOAD else Stage.FORWARD
        operators.append(_operator(f"op{index}", stage, tuple(reads), tuple(writes)))
    return StepGraph(tensors=tensors, operators=tuple(operators))


def _operator(name: str, stage: Stage, reads: tuple[int, ...], writes: tuple[int, ...]) -> Operator:
    return Operator(
        name=name,
        signature=name,
        stage=stage,
        reads=tuple(TensorId(t) for t in reads),
        writes=tuple(TensorId(t) for t in writes),
    )
