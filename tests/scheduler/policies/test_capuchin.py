"""Check Capuchin on examples computed by hand: tensors with the longest free time are swapped first, then the cheaper
of swap and recomputation is chosen, and the rest is evicted on demand.
"""

import dataclasses

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies.capuchin import capuchin
from indb_tensile.scheduler.policies.feedback import fed_back
from indb_tensile.scheduler.policies.free_time import FreeTime
from indb_tensile.scheduler.policies.msps import SavingPerTime
from indb_tensile.scheduler.recomputation.recompute import Recomputation
from indb_tensile.scheduler.workload import Workload
from tests.scheduler.plan_parts import execution_order, idle_gap, swap
from tests.scheduler.policies.layers import FORWARD, Row, job, step

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # a byte a nanosecond
A, B = TensorId(0), TensorId(1)


def peaked() -> StepGraph:
    """Return a graph that uses a (100 bytes) and b (100) again after c (300). Operator 2 holds 500 bytes, operator 3
    holds 501.
    """
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


def test_tensor_with_the_longest_free_time_is_swapped_if_its_copies_are_hidden() -> None:
    """a is idle from 2,000 to 6,000 ns, b from 3,000 to 5,000 ns. Each copy takes 100 ns."""
    graph = peaked()
    free_time = FreeTime(graph, (1000,) * 7, LINK)
    assert [free_time.of(idle_gap(A, 1, 6)), free_time.of(idle_gap(B, 2, 5))] == [3800, 1800]
    plan = _planned(job(graph), 500)
    assert plan == Plan(policy="capuchin", swaps=(swap(A, 1, 3, 5, 6),))
    assert (faults(graph, plan), peak(graph, plan)) == ((), 500)


def test_sufficient_budget_needs_no_plan() -> None:
    assert _planned(job(peaked()), 501) == Plan(policy="capuchin")


def test_cheaper_of_stall_and_recomputation_is_chosen_if_no_swap_is_hidden() -> None:
    """With operators of 50 ns, a's copy out ends at 200 ns, 50 ns late for operator 3. Recomputing a costs the time
    of operator 0.
    """
    graph = peaked()
    swapped = Plan(policy="capuchin", swaps=(swap(A, 1, 3, 4, 6),))
    recomputed = Plan(policy="capuchin", executions=execution_order(0, 1, 2, 3, 4, 5, 0, 6))
    assert _planned(_job(graph, 50, 50, 50, 50, 50, 50, 50), 500) == swapped
    assert _planned(_job(graph, 40, 40, 50, 50, 50, 50, 50), 500) == recomputed
    assert _planned(_job(graph, 40, 40, 50, 50, 50, 50, 50), 500, rewrites=False).executions == ()
    assert (faults(graph, recomputed), peak(graph, recomputed)) == ((), 401), "a is released before c is made"


def test_saving_per_time_depends_on_the_dropped_tensors() -> None:
    """The graph is a -> b -> c, and then b and a are read again. If a is dropped, recomputing b costs both. If b is
    dropped, recomputing b also needs a.
    """
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
    a, b = idle_gap(A, 1, 5), idle_gap(B, 2, 4)
    assert (saving.time_ns(a), saving.time_ns(b)) == (3, 20)
    assert saving.best((a, b)) == (a, 3)
    saving.drop(a)
    assert (saving.time_ns(b), saving.best((a, b))) == (23, (b, 23))
    saving.keep(a)
    saving.drop(b)
    assert saving.time_ns(a) == 6, "once for itself, once for b"


def test_persistent_tensor_is_evicted_on_demand_with_a_stall() -> None:
    """A parameter is idle while an activation of 100 bytes lives. The parameter could return during the idle
    operator.
    """
    rows: list[Row] = [
        ("use", FORWARD, "w", ""),
        ("make", FORWARD, "", "a"),
        ("use", FORWARD, "a", ""),
        ("idle", FORWARD, "", ""),
        ("use", FORWARD, "w", ""),
    ]
    graph = step({"w": 60, "a": 100}, rows)
    plan = _planned(job(graph), 100)
    assert plan == Plan(policy="capuchin", swaps=(swap(A, 0, 1, 4, 4),))
    assert (faults(graph, plan), peak(graph, plan)) == ((), 100)
    unused = step({"w": 60, "a": 100}, [("idle", FORWARD, "", ""), *rows[1:3]])
    assert _planned(job(unused), 100) == Plan(policy="capuchin", away=frozenset({A}))


def test_late_copy_starts_earlier_as_far_as_memory_allows() -> None:
    """a's copy of 100 ns starts when a is needed. If it started two operators of 50 ns earlier, they would hide
    it.
    """
    graph = peaked()
    late = Plan(policy="capuchin", swaps=(swap(A, 1, 3, 6, 6),))
    earlier = fed_back(graph, (50,) * 7, LINK, late, 500)
    assert earlier == Plan(policy="capuchin", swaps=(swap(A, 1, 3, 4, 6),))
    assert fed_back(graph, (50,) * 7, LINK, earlier, 500) == earlier
    assert fed_back(graph, (50,) * 7, LINK, late, 202) == earlier, "b, e and f or d are held beside a"
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
