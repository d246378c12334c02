"""Capuchin by hand: free time first, then the cheaper of swap and recomputation, then what is left on demand."""

import dataclasses

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import Gap, liveness_peak, peak
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.policies.capuchin import capuchin
from indb_tensile.scheduler.policies.feedback import fed_back
from indb_tensile.scheduler.policies.free_time import FreeTime
from indb_tensile.scheduler.policies.msps import SavingPerTime
from indb_tensile.scheduler.recomputation.recompute import Recomputation
from indb_tensile.scheduler.workload import Workload
from tests.scheduler.policies.layers import FORWARD, Row, job, step

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # a byte a nanosecond
A, B = TensorId(0), TensorId(1)


def peaked() -> StepGraph:
    """a (of 100 bytes) and b (100) are used again after c (300): 501 bytes at operator 3, 500 at operator 2."""
    sizes = {"a": 100, "b": 100, "c": 300, "d": 1, "e": 1, "f": 1, "g": 1}
    rows: list[Row] = [
        ("make", FORWARD, "", "a"),
        ("make", FORWARD, "a", "b"),
        ("make", FORWARD, "b", "c"),
        ("make", FORWARD, "c", "d"),
        ("make", FORWARD, "d", "e"),
        ("make", FORWARD, "b e", "f"),
        ("make", FORWARD, "a f", "g"),
    ]
    return step(sizes, rows)


def test_the_tensor_with_the_longest_free_time_is_swapped_where_that_hides() -> None:
    """a is idle from 2,000 ns to 6,000, b from 3,000 to 5,000; each copy takes 100."""
    graph = peaked()
    free_time = FreeTime(graph, (1000,) * 7, LINK)
    assert [free_time.of(_gap(A, 1, 6)), free_time.of(_gap(B, 2, 5))] == [3800, 1800]
    plan = _planned(job(graph), 500)
    assert plan == Plan(policy="capuchin", swaps=(_swap(A, 1, 3, 5, 6),))
    assert (faults(graph, plan), peak(graph, plan)) == ((), 500)


def test_nothing_is_done_where_the_budget_holds_everything() -> None:
    assert _planned(job(peaked()), 501) == Plan(policy="capuchin")


def test_where_no_swap_hides_the_cheaper_of_waiting_and_computing_again_is_taken() -> None:
    """At 50 ns an operator a's copy out ends at 200 ns, 50 late for operator 3; made again it costs operator 0."""
    graph = peaked()
    swap = Plan(policy="capuchin", swaps=(_swap(A, 1, 3, 4, 6),))
    again = Plan(policy="capuchin", executions=_order(0, 1, 2, 3, 4, 5, 0, 6))
    assert _planned(_job(graph, 50, 50, 50, 50, 50, 50, 50), 500) == swap
    assert _planned(_job(graph, 40, 40, 50, 50, 50, 50, 50), 500) == again
    assert _planned(_job(graph, 40, 40, 50, 50, 50, 50, 50), 500, rewrites=False).executions == ()
    assert (faults(graph, again), peak(graph, again)) == ((), 401), "a is gone before c is made"


def test_saving_per_time_follows_what_is_dropped() -> None:
    """x -> a -> b -> c; then b, a are read again: without a, b costs both; without b, a is made for it too."""
    sizes = {"a": 10, "b": 10, "c": 10}
    rows: list[Row] = [
        ("make", FORWARD, "", "a"),
        ("make", FORWARD, "a", "b"),
        ("make", FORWARD, "b", "c"),
        ("use", FORWARD, "c", ""),
        ("use", FORWARD, "b", ""),
        ("use", FORWARD, "a", ""),
    ]
    saving = SavingPerTime(Recomputation(step(sizes, rows), (3, 20, 100, 1, 1, 1)))
    a, b = _gap(A, 1, 5), _gap(B, 2, 4)
    assert (saving.time_ns(a), saving.time_ns(b)) == (3, 20)
    assert saving.best((a, b)) == (a, 3)
    saving.drop(a)
    assert (saving.time_ns(b), saving.best((a, b))) == (23, (b, 23))
    saving.keep(a)
    saving.drop(b)
    assert saving.time_ns(a) == 6, "once for itself, once for b"


def test_what_persists_is_evicted_on_demand_and_waited_for() -> None:
    """A parameter is idle while an activation of 100 bytes lives; it could be back during the idle operator."""
    rows: list[Row] = [
        ("use", FORWARD, "w", ""),
        ("make", FORWARD, "", "a"),
        ("use", FORWARD, "a", ""),
        ("idle", FORWARD, "", ""),
        ("use", FORWARD, "w", ""),
    ]
    graph = step({"w": 60, "a": 100}, rows)
    plan = _planned(job(graph), 100)
    assert plan == Plan(policy="capuchin", swaps=(_swap(A, 0, 1, 4, 4),))
    assert (faults(graph, plan), peak(graph, plan)) == ((), 100)
    unused = step({"w": 60, "a": 100}, [("idle", FORWARD, "", ""), *rows[1:3]])
    assert _planned(job(unused), 100) == Plan(policy="capuchin", away=frozenset({A}))


def test_what_came_late_is_fetched_earlier_as_far_as_memory_allows() -> None:
    """a's copy of 100 ns starts when a is needed; two operators of 50 ns before that would hide it."""
    graph = peaked()
    late = Plan(policy="capuchin", swaps=(_swap(A, 1, 3, 6, 6),))
    found = fed_back(graph, (50,) * 7, LINK, late, 500)
    assert found == Plan(policy="capuchin", swaps=(_swap(A, 1, 3, 4, 6),))
    assert fed_back(graph, (50,) * 7, LINK, found, 500) == found
    assert fed_back(graph, (50,) * 7, LINK, late, 202) == found, "b, e and f or d are beside it"
    assert fed_back(graph, (50,) * 7, LINK, late, 201) == late


def test_each_job_is_planned_within_its_part_of_the_budget() -> None:
    graph = peaked()
    plans = capuchin((job(graph), job(graph, number=2)), budget_bytes=2 * liveness_peak(graph) - 2, link=LINK)
    assert plans == ((_planned(job(graph), 500),),) * 2


def _planned(workload: Workload, budget_bytes: int, *, rewrites: bool = True) -> Plan:
    ((plan,),) = capuchin((workload,), budget_bytes=budget_bytes, link=LINK, rewrites=rewrites)
    return plan


def _job(graph: StepGraph, *latency_ns: int) -> Workload:
    return dataclasses.replace(job(graph), latency_ns=(latency_ns,))


def _gap(tensor: TensorId, out_after: int, needed_by: int) -> Gap:
    return Gap(tensor=tensor, out_after=OpIndex(out_after), needed_by=OpIndex(needed_by))


def _swap(tensor: TensorId, *boundaries: int) -> Swap:
    out_after, free_at, in_at, needed_by = (OpIndex(k) for k in boundaries)
    return Swap(tensor=tensor, out_after=out_after, free_at=free_at, in_at=in_at, needed_by=needed_by)


def _order(*operators: int) -> tuple[Execution, ...]:
    return tuple(Execution(operator=OpIndex(k)) for k in operators)
