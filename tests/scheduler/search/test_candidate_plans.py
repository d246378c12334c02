"""Plans of one graph for any limit, by hand: what leaves, what moves and what comes in parts to get there."""

from dataclasses import replace

from indb_tensile.scheduler.graph import Role, Stage, StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from tests.scheduler.drawn import drawn

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
NEVER = Link(out_bytes_per_s=1, in_bytes_per_s=1)
MIB = 1024 * 1024


def test_what_no_operator_accesses_stays_on_the_host_as_far_as_that_is_needed() -> None:
    graph = drawn((30, Role.PARAMETER, ".."), (20, Role.PARAMETER, ".."), (50, Role.ACTIVATION, "wr"))
    ladder = CandidatePlans(graph, (100, 100), LINK)
    found = []
    for limit in (100, 99, 70, 69):
        rung = ladder.best(limit)
        found.append((rung.peak_bytes, set(ladder.plan(rung, "test").away)))
    assert found == [(100, set()), (70, {0}), (70, {0}), (50, {0, 1})]


def test_where_nothing_is_within_the_limit_the_least_is_given() -> None:
    graph = drawn((40, Role.ACTIVATION, "w..r"), (60, Role.ACTIVATION, ".wr."))
    assert CandidatePlans(graph, (100,) * 4, LINK).best(10).peak_bytes == floor(graph) == 60


def test_gradients_live_shortly_where_their_updates_come_beside_them() -> None:
    """Two parameters of 10, each with a gradient of 10, and nothing that could be swapped or made again in time."""
    graph = drawn(
        (10, Role.PARAMETER, "..u."),
        (10, Role.PARAMETER, "...u"),
        (10, Role.ACTIVATION, "w.r."),
        (10, Role.ACTIVATION, ".w.r"),
    )
    graph = _staged(graph, {2: Stage.OPTIMIZER, 3: Stage.OPTIMIZER})
    assert liveness_peak(graph) == 40
    best = CandidatePlans(graph, (10**6,) * 4, NEVER).best(30)
    assert (best.peak_bytes, best.iteration_ns) == (30, 4 * 10**6)


def test_a_large_update_comes_in_parts_where_the_limit_asks_for_it() -> None:
    graph = drawn((64 * MIB, Role.OPTIMIZER_STATE, "u."), (MIB, Role.ACTIVATION, "wr"))
    graph = _staged(graph, {0: Stage.OPTIMIZER})
    graph = replace(graph, operators=(replace(graph.operators[0], splittable=True), *graph.operators[1:]))
    ladder = CandidatePlans(graph, (10**9,) * 2, LINK)
    assert floor(graph) == 65 * MIB
    assert ladder.best(33 * MIB).peak_bytes == 33 * MIB


def _staged(graph: StepGraph, stages: dict[int, Stage]) -> StepGraph:
    operators = tuple(replace(op, stage=stages.get(k, op.stage)) for k, op in enumerate(graph.operators))
    return replace(graph, operators=operators)
