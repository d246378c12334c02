"""Check execution orders on examples computed by hand: updates of running statistics run later only where a plan
needs it.
"""

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Execution
from indb_tensile.scheduler.search.candidate import candidate_of
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from indb_tensile.scheduler.search.execution_orders import ExecutionOrders, translate_choices
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.search.reorder import blocking_updates, rearranged
from indb_tensile.scheduler.search.step_search import DROPPED
from tests.scheduler.access_rows import graph_from_rows

LINK = Link(out_bytes_per_s=5 * 10**8, in_bytes_per_s=5 * 10**8)  # 2 ns a byte
NEVER = Link(out_bytes_per_s=1, in_bytes_per_s=1)
# Operators 1 and 3 update the statistics that operators 0 and 2 read. After the update 0 and 2 cannot run again.
TWO_NORMS = graph_from_rows(
    (1, Role.BUFFER, "ru....."),
    (50, Role.ACTIVATION, "w.....r"),
    (2, Role.ACTIVATION, "wr....."),
    (1, Role.BUFFER, "..ru..."),
    (2, Role.ACTIVATION, "..wr..."),
    (50, Role.ACTIVATION, "....wr."),
)


def test_only_updates_of_tensors_that_a_rerun_reads_have_to_wait() -> None:
    with_rerun = [Execution(operator=OpIndex(k)) for k in (0, 2, 4, 5, 0, 6, 1, 3)]
    assert blocking_updates(TWO_NORMS, with_rerun) == {1}
    assert blocking_updates(TWO_NORMS, sorted(with_rerun[:-2], key=lambda e: e.operator)[1:]) == set()
    assert rearranged(TWO_NORMS, frozenset({OpIndex(1)})) == (0, 2, 3, 4, 5, 6, 1)


def test_plan_delays_only_the_updates_that_it_has_to() -> None:
    """Tensor 1 is recomputed. The second update runs early, because its delay would keep its source alive as well."""
    candidates = CandidatePlans(TWO_NORMS, (10,) * 7, NEVER)
    plan = candidates.plan(candidates.best(57), "test")
    assert [execution.operator for execution in plan.executions] == [0, 2, 3, 4, 5, 0, 6, 1]
    assert faults(TWO_NORMS, plan) == ()


def test_updates_in_captured_order_hide_copies() -> None:
    """Tensor 0 takes 100 ns to the host. Only the update hides that time, if it runs in captured order."""
    graph = graph_from_rows(
        (50, Role.ACTIVATION, "w.....r"),
        (1, Role.BUFFER, ".ru...."),
        (1, Role.ACTIVATION, ".wr...."),
        (50, Role.ACTIVATION, "...wr.."),
    )
    latency_ns = (1000, 10, 100, 10, 10, 200, 10)
    plans_by_effort = {}
    for effort in Effort:
        candidates = CandidatePlans(graph, latency_ns, LINK, effort=effort)
        candidate = candidates.best(60)
        plans_by_effort[effort] = (
            candidate.iteration_ns == sum(latency_ns),
            candidates.plan(candidate, "test").executions,
        )
    late_update = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 3, 4, 5, 6, 2))
    assert plans_by_effort == {Effort.QUICK: (False, late_update), Effort.USUAL: (True, ()), Effort.FULL: (True, ())}


def test_largest_update_is_delayed_only_if_its_state_is_large_enough() -> None:
    """The update of w runs beside its gradient, before two further operators."""
    roles = (Role.PARAMETER, Role.OPTIMIZER_STATE, *(Role.ACTIVATION,) * 3)
    tensors = tuple(Tensor(id=TensorId(k), name=f"t{k}", size_bytes=10, role=role) for k, role in enumerate(roles))
    operators = tuple(
        Operator(
            name=name,
            signature=name,
            stage=stage,
            reads=tuple(map(TensorId, reads)),
            writes=tuple(map(TensorId, writes)),
            splittable=stage is Stage.OPTIMIZER,
        )
        for name, stage, reads, writes in (
            ("gradient", Stage.BACKWARD, (0,), (2,)),
            ("second", Stage.BACKWARD, (), (3,)),
            ("third", Stage.BACKWARD, (), (4,)),
            ("update", Stage.OPTIMIZER, (0, 1, 2), (0, 1)),
        )
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    orders = ExecutionOrders(graph, (10,) * 4, LINK, share=1, rewrites=True, early=True)
    assert orders.delayed(0.5, 11) is None
    number = orders.delayed(0.5, 10)
    assert number is not None
    assert [execution.operator for execution in orders.search(number).executions] == [0, 1, 3, 2]
    assert orders.delayed(0.5, 10) == number
    full = ExecutionOrders(graph, (10,) * 4, LINK, share=1, rewrites=True, early=True, most=1)
    assert full.delayed(0.5, 10) is None
    quick = ExecutionOrders(graph, (10,) * 4, LINK, share=1, rewrites=True, early=False)
    assert quick.delayed(0.5, 10) is None


def test_choices_that_another_order_forbids_are_not_translated() -> None:
    """If the update runs later, its source stays to the end. If not, recomputation needs the statistics from before
    the update.
    """
    graph = graph_from_rows(
        (1, Role.BUFFER, "ru...."),
        (5, Role.ACTIVATION, "wrr..."),
        (50, Role.ACTIVATION, "..w..r"),
        (50, Role.ACTIVATION, "...wr."),
    )
    candidates = CandidatePlans(graph, (10,) * 6, NEVER)
    plan = candidates.plan(candidates.best(60), "test")
    assert sorted(e.operator for e in plan.executions) == [0, 1, 2, 2, 3, 4, 5]
    assert faults(graph, plan) == ()


def test_choices_are_translated_by_the_accesses_around_their_gaps() -> None:
    orders = ExecutionOrders(TWO_NORMS, (10,) * 7, NEVER, share=1.0, rewrites=True, early=True)
    early_updates, late_updates = orders.first
    gap = next(k for k, (tensor, *_) in enumerate(late_updates.gap_keys) if tensor == 1)
    late_updates.choose([(gap, DROPPED, DROPPED)])
    settled = orders.search(orders.settled(candidate_of(1, late_updates)))
    settled.choose(translate_choices(late_updates, settled))
    assert [e.operator for e in settled.executions] == [0, 2, 3, 4, 5, 0, 6, 1]
    assert translate_choices(settled, late_updates) == [(gap, DROPPED, DROPPED)]
    assert [key for key in early_updates.gap_keys if key[0] == 1] == [late_updates.gap_keys[gap]]
