"""Check the judge itself: it finds no fault in valid plans and names every rule that a plan breaks."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults, faults_together, peak, steps, together_bytes
from indb_tensile.scheduler.judges.gate_check import JobLoads
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.timing.schedule import Gate, Schedule
from tests.scheduler.plan_parts import swap

P, Q, A = TensorId(0), TensorId(1), TensorId(2)


@pytest.mark.parametrize(
    "swaps",
    [
        (),
        (swap(P, 0, 1, 4, 4),),
        (swap(P, 0, 2, 3, 4), swap(P, 5, 6, 7, 0)),
        (swap(P, 5, 0, 0, 0),),
        (swap(P, 5, 7, 0, 0),),
        (swap(A, 1, 2, 6, 6),),
        (swap(Q, 2, 3, 2, 2),),
    ],
)
def test_valid_plans_have_no_fault(swaps: tuple[Swap, ...]) -> None:
    assert faults(_graph(), Plan(policy="test", swaps=swaps)) == ()


@pytest.mark.parametrize(
    ("swaps", "fault"),
    [
        ((swap(P, 0, 1, 5, 5),), r"operator 4 \(op4\) accesses tensor 0 \(p\), which is away"),
        ((swap(P, 0, 2, 3, 5),), r"operator 4 \(op4\) accesses tensor 0 \(p\), which is returning"),
        ((swap(P, 0, 5, 5, 5),), r"operator 4 \(op4\) accesses tensor 0 \(p\), which is leaving"),
        ((swap(P, 1, 2, 3, 4),), r"leaves after operator 1, which does not access it"),
        ((swap(P, 0, 2, 3, 3),), r"swapped in for operator 3, which does not access it"),
        ((swap(P, 0, 3, 2, 4),), r"boundaries not in the order"),
        ((swap(P, 0, 2, 4, 3),), r"boundaries not in the order"),
        ((swap(P, 0, 2, 3, 4), swap(P, 1, 2, 3, 4)), r"tensor 0 \(p\) leaves while leaving"),
        ((swap(P, 0, 2, 3, 4, copies=False),), r"leaves at 2 without a valid host copy"),
        ((swap(P, 4, 6, 7, 0),), r"operator 5 \(op5\) accesses tensor 0 \(p\), which is leaving"),
        ((swap(A, 1, 2, 0, 0),), r"does not persist, but its swap crosses the end"),
        ((swap(A, 6, 7, 0, 1),), r"does not persist, but its swap crosses the end"),
        ((swap(TensorId(9), 0, 1, 2, 3),), r"index out of range"),
        ((swap(P, 0, 1, 2, 44),), r"index out of range"),
    ],
)
def test_every_broken_rule_is_named(swaps: tuple[Swap, ...], fault: str) -> None:
    found_faults = faults(
        _graph(), Plan(policy="test", swaps=tuple(sorted(swaps, key=lambda s: (s.tensor, s.out_after))))
    )
    assert any(re.search(fault, text) for text in found_faults), found_faults


@given(positions=st.tuples(*[st.integers(0, 7)] * 4))
def test_boundaries_are_in_order_if_a_walk_from_the_access_meets_them_in_order(positions: tuple[int, ...]) -> None:
    out_after, *boundaries = positions
    walk = [(out_after + step) % 8 for step in range(1, 9)]
    met_at = [walk.index(boundary) for boundary in boundaries]
    plan = Plan(policy="test", swaps=(swap(P, *positions),))
    fault_named = any("boundaries not in the order" in fault for fault in faults(_graph(), plan))
    assert fault_named == (met_at != sorted(met_at))


def test_host_copy_is_valid_until_the_tensor_is_written() -> None:
    """Operator 2 alone writes q. Operator 5 writes p, operators 0 and 4 read p."""
    no_copy_yet = (swap(P, 0, 1, 3, 4, copies=False), swap(P, 5, 6, 0, 0))
    assert any("without a valid host copy" in f for f in faults(_graph(), Plan(policy="test", swaps=no_copy_yet)))
    away_at_start = (swap(P, 5, 6, 1, 1),)
    graph = _graph(first_access_of_p=1)
    assert faults(graph, Plan(policy="test", swaps=away_at_start)) == ()
    valid = (swap(P, 1, 2, 3, 4, copies=False), swap(P, 5, 6, 1, 1))
    assert faults(graph, Plan(policy="test", swaps=valid)) == ()
    assert faults(_graph(), Plan(policy="test", swaps=(swap(P, 0, 1, 3, 4), swap(P, 5, 6, 0, 0)))) == ()
    stale = (swap(P, 1, 2, 3, 4), swap(P, 5, 6, 1, 1, copies=False))
    assert any("without a valid host copy" in f for f in faults(graph, Plan(policy="test", swaps=stale)))


def test_only_unaccessed_persistent_tensors_may_stay_on_the_host() -> None:
    assert any("which is away" in f for f in faults(_graph(), Plan(policy="test", away=frozenset({P}))))
    assert any("no persistent tensor" in f for f in faults(_graph(), Plan(policy="test", away=frozenset({A}))))
    away_and_swapped = Plan(policy="test", away=frozenset({P}), swaps=(swap(P, 0, 1, 4, 4),))
    assert any("is away and is swapped" in f for f in faults(_graph(), away_and_swapped))


def test_peak_counts_tensors_between_their_boundaries() -> None:
    """p (10) and q (20) persist, a (30) lives from 1 to 6, and operator 3 has a workspace of 5."""
    graph = _graph()
    assert peak(graph, Plan(policy="test")) == 65
    assert peak(graph, Plan(policy="test", swaps=(swap(P, 0, 3, 4, 4),))) == 60
    assert peak(graph, Plan(policy="test", swaps=(swap(A, 1, 2, 6, 6),))) == 60
    all_swaps = (swap(P, 0, 1, 4, 4), swap(P, 5, 6, 0, 0), swap(Q, 2, 3, 2, 2), swap(A, 1, 2, 6, 6))
    assert peak(graph, Plan(policy="test", swaps=all_swaps)) == 30


def test_plans_above_a_limit_or_the_budget_are_faults() -> None:
    graph, plan = _graph(), Plan(policy="test")
    assert faults(graph, plan, limit_bytes=65) == ()
    assert faults(graph, plan, limit_bytes=64) == ("the peak of 65 bytes is over the limit of 64",)
    assert faults_together([[(graph, plan)], [(graph, plan)]], budget_bytes=130) == ()
    (fault,) = faults_together([[(graph, plan)], [(graph, plan)]], budget_bytes=129)
    assert fault == "the jobs' peaks are 130 bytes together, over the budget of 129"


def test_graphs_of_a_job_share_their_persistent_tensors() -> None:
    plan = Plan(policy="test")
    alone = StepGraph(tensors=_graph().tensors[:1], operators=(_operator("x", (P,), ()),))
    (fault,) = faults_together([[(_graph(), plan), (alone, plan)]], budget_bytes=1000)
    assert fault == "job 0: its graphs do not have the same persistent tensors"
    invalid = Plan(policy="test", swaps=(swap(P, 1, 2, 3, 4),))
    found_faults = faults_together([[(_graph(), plan), (_graph(), invalid)]], budget_bytes=1000)
    assert found_faults[0].startswith("job 0, graph 1: ")


def test_waiting_job_has_released_memory_but_not_taken_any() -> None:
    """p is released at boundary 2 before the gate, and p returns at boundary 3 after the gate. Operator 1 makes a."""
    plan = Plan(policy="test", swaps=(swap(P, 0, 2, 3, 4),))
    assert steps([(_graph(), plan)]) == JobLoads(
        running_bytes=(30, 60, 50, 65, 60, 60, 60, 30), waiting_bytes=(30, 30, 50, 50, 60, 60, 60, 30)
    )


def test_other_graphs_of_a_job_run_before_its_first_gate() -> None:
    plan = Plan(policy="test")
    other = StepGraph(tensors=_graph().tensors, operators=(_operator("x", (), (A,), 3),))
    assert steps([(_graph(), plan), (other, plan)]).waiting_bytes[:2] == (63, 30)


def test_jobs_with_gates_are_judged_by_the_loads_that_the_gates_allow() -> None:
    """Only one job at a time runs its operators 1 to 6 with at most 65 bytes, beside the other job's 30. The third
    job has no gates.
    """
    turns = Schedule(
        jobs=(0, 2),
        iterations=(1, 1),
        gates=(
            Gate(job=0, iteration=0, operator=1, after_job=1, after_iteration=-1, after_operator=6),
            Gate(job=1, iteration=0, operator=1, after_job=0, after_iteration=0, after_operator=6),
        ),
        budget_bytes=95,
    )
    jobs = [[(_graph(), Plan(policy="test"))]] * 3
    assert together_bytes(jobs, [turns]) == 95 + 65
    assert faults_together(jobs, budget_bytes=160, schedules=[turns]) == ()
    assert faults_together(jobs, budget_bytes=159, schedules=[turns]) == (
        "the jobs' peaks are 160 bytes together, over the budget of 159",
    )
    tight = dataclasses.replace(turns, budget_bytes=94)
    assert faults_together(jobs, budget_bytes=1000, schedules=[tight]) == (
        "the jobs can come to 95 bytes together, over the budget of 94",
    )


def test_schedules_of_unknown_or_repeated_jobs_are_faults() -> None:
    jobs = [[(_graph(), Plan(policy="test"))]] * 2
    unknown_job = Schedule(jobs=(2,), iterations=(1,), gates=(), budget_bytes=95)
    assert faults_together(jobs, budget_bytes=1000, schedules=[unknown_job]) == (
        "the schedules are of jobs [2], of 2",
    )
    schedule = Schedule(jobs=(0, 1), iterations=(1, 1), gates=(), budget_bytes=130)
    found_faults = faults_together(jobs, budget_bytes=1000, schedules=[schedule, schedule])
    assert found_faults == ("the schedules are of jobs [0, 1, 0, 1], of 2",)


@pytest.mark.parametrize(
    ("swaps", "fault"),
    [
        ((), None),
        ((swap(A, 0, 1, 2, 2),), None),  # before the exchange
        ((swap(A, 4, 5, 6, 7),), None),  # and after it
        ((swap(P, 0, 1, 4, 6),), None),  # another tensor meanwhile
        ((swap(A, 2, 3, 4, 4),), r"tensor 2 \(a\) leaves while exchange 0 uses it"),
        ((swap(Q, 2, 3, 4, 4),), r"tensor 1 \(q\) leaves while exchange 0 uses it"),
    ],
)
def test_tensors_of_an_exchange_stay_until_it_has_ended(swaps: tuple[Swap, ...], fault: str | None) -> None:
    found_faults = faults(_exchange_graph(), Plan(policy="test", swaps=swaps))
    assert found_faults == () if fault is None else any(re.search(fault, text) for text in found_faults), found_faults


def test_operators_keep_off_the_tensors_of_an_exchange_until_it_has_ended() -> None:
    graph = _exchange_graph()
    reading = dataclasses.replace(graph.operators[3], reads=(A,))
    operators = (*graph.operators[:3], reading, *graph.operators[4:])
    assert faults(dataclasses.replace(graph, operators=operators), Plan(policy="test")) == (
        "operator 3 (op3) accesses tensor 2 (a) while exchange 0 uses it",
    )


def test_order_that_takes_an_operator_into_an_exchange_is_a_fault() -> None:
    order = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 2, 7, 3, 4, 5, 6))
    assert any(
        "operator 7 (op7) sees other values" in text
        for text in faults(_exchange_graph(), Plan(policy="test", executions=order))
    )


def _operator(
    name: str, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...], workspace_bytes: int = 0
) -> Operator:
    return Operator(
        name=name, signature=name, stage=Stage.FORWARD, reads=reads, writes=writes, workspace_bytes=workspace_bytes
    )


def _graph(first_access_of_p: int = 0) -> StepGraph:
    """Return a graph of 8 operators: 0 (or 1) and 4 read p, 5 writes p, 2 updates q, 1 makes a, and 6 reads a."""
    tensors = (
        Tensor(id=P, name="p", size_bytes=10, role=Role.PARAMETER),
        Tensor(id=Q, name="q", size_bytes=20, role=Role.OPTIMIZER_STATE),
        Tensor(id=A, name="a", size_bytes=30, role=Role.ACTIVATION),
    )
    reads: list[tuple[TensorId, ...]] = [(), (), (Q,), (), (P,), (), (A,), ()]
    reads[first_access_of_p] = (P,)
    writes = [(), (A,), (Q,), (), (), (P,), (), ()]
    operators = [_operator(f"op{k}", reads[k], writes[k], 5 if k == 3 else 0) for k in range(8)]
    return StepGraph(tensors=tensors, operators=tuple(operators))


def _exchange_graph() -> StepGraph:
    """Return a graph of 8 operators: 0 makes a, 2 starts an exchange of a and q, 4 awaits it, 0 and 6 read p, 7 a."""
    tensors = _graph().tensors
    reads: list[tuple[TensorId, ...]] = [(P,), (), (A, Q), (), (A, Q), (), (P,), (A,)]
    writes = [(A,), (), (A, Q), (), (A, Q), (), (), ()]
    operators = [_operator(f"op{k}", reads[k], writes[k]) for k in range(8)]
    operators[2] = dataclasses.replace(operators[2], random=True, starts=0)
    operators[4] = dataclasses.replace(operators[4], random=True, awaits=0)
    return StepGraph(tensors=tensors, operators=tuple(operators))
