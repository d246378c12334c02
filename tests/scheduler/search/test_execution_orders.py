"""Orders of execution by hand: updates of running statistics wait where a plan needs it, and nowhere else."""

from indb_tensile.scheduler.graph import OpIndex, Role
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Execution
from indb_tensile.scheduler.search.candidate import candidate_of
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from indb_tensile.scheduler.search.execution_orders import ExecutionOrders, translate_choices
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.search.reorder import blocking_updates, rearranged
from indb_tensile.scheduler.search.step_search import DROPPED
from tests.scheduler.drawn import drawn

LINK = Link(out_bytes_per_s=5 * 10**8, in_bytes_per_s=5 * 10**8)  # 2 ns a byte
NEVER = Link(out_bytes_per_s=1, in_bytes_per_s=1)
# Operators 1 and 3 update what 0 and 2 read and then cannot read again.
TWO_NORMS = drawn(
    (1, Role.BUFFER, "ru....."),
    (50, Role.ACTIVATION, "w.....r"),
    (2, Role.ACTIVATION, "wr....."),
    (1, Role.BUFFER, "..ru..."),
    (2, Role.ACTIVATION, "..wr..."),
    (50, Role.ACTIVATION, "....wr."),
)


def test_only_updates_of_what_is_read_again_have_to_wait() -> None:
    again = [Execution(operator=OpIndex(k)) for k in (0, 2, 4, 5, 0, 6, 1, 3)]
    assert blocking_updates(TWO_NORMS, again) == {1}
    assert blocking_updates(TWO_NORMS, sorted(again[:-2], key=lambda e: e.operator)[1:]) == set()
    assert rearranged(TWO_NORMS, frozenset({OpIndex(1)})) == (0, 2, 3, 4, 5, 6, 1)


def test_a_plan_lets_those_wait_that_it_has_to_and_no_others() -> None:
    """What the first made is made again; the other's update waits no longer, for what it reads would stay, too."""
    ladder = CandidatePlans(TWO_NORMS, (10,) * 7, NEVER)
    plan = ladder.plan(ladder.best(57), "test")
    assert [execution.operator for execution in plan.executions] == [0, 2, 3, 4, 5, 0, 6, 1]
    assert faults(TWO_NORMS, plan) == ()


def test_updates_that_run_where_they_were_captured_leave_copies_their_time() -> None:
    """The first tensor takes 100 ns to the host, and only while the update runs is there time for that."""
    graph = drawn(
        (50, Role.ACTIVATION, "w.....r"),
        (1, Role.BUFFER, ".ru...."),
        (1, Role.ACTIVATION, ".wr...."),
        (50, Role.ACTIVATION, "...wr.."),
    )
    latency_ns = (1000, 10, 100, 10, 10, 200, 10)
    found = {}
    for effort in Effort:
        ladder = CandidatePlans(graph, latency_ns, LINK, effort=effort)
        rung = ladder.best(60)
        found[effort] = (rung.iteration_ns == sum(latency_ns), ladder.plan(rung, "test").executions)
    late = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 3, 4, 5, 6, 2))
    assert found == {Effort.QUICK: (False, late), Effort.USUAL: (True, ()), Effort.FULL: (True, ())}


def test_choices_that_another_order_does_not_allow_are_not_carried_over() -> None:
    """What the update reads is there until the end only if it waits; else making it again needs what was updated."""
    graph = drawn(
        (1, Role.BUFFER, "ru...."),
        (5, Role.ACTIVATION, "wrr..."),
        (50, Role.ACTIVATION, "..w..r"),
        (50, Role.ACTIVATION, "...wr."),
    )
    ladder = CandidatePlans(graph, (10,) * 6, NEVER)
    plan = ladder.plan(ladder.best(60), "test")
    assert sorted(e.operator for e in plan.executions) == [0, 1, 2, 2, 3, 4, 5]
    assert faults(graph, plan) == ()


def test_a_choice_is_known_by_what_its_gap_lies_between() -> None:
    orders = ExecutionOrders(TWO_NORMS, (10,) * 7, NEVER, share=1.0, rewrites=True, early=True)
    early, late = orders.first
    gap = next(k for k, (tensor, *_) in enumerate(late.between) if tensor == 1)
    late.choose([(gap, DROPPED, DROPPED)])
    settled = orders.search(orders.settled(candidate_of(1, late)))
    settled.choose(translate_choices(late, settled))
    assert [e.operator for e in settled.executions] == [0, 2, 3, 4, 5, 0, 6, 1]
    assert translate_choices(settled, late) == [(gap, DROPPED, DROPPED)]
    assert [between for between in early.between if between[0] == 1] == [late.between[gap]]
