"""Check the candidate plans of one graph within a limit, on examples computed by hand: what is swapped, reordered or
split to meet the limit.
"""

from dataclasses import replace

from indb_tensile.scheduler.graph import Role, Stage, StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from tests.scheduler.access_rows import graph_from_rows

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
NEVER = Link(out_bytes_per_s=1, in_bytes_per_s=1)
MIB = 1024 * 1024


def test_tensors_without_accesses_stay_on_the_host_as_far_as_the_limit_requires() -> None:
    graph = graph_from_rows((30, Role.PARAMETER, ".."), (20, Role.PARAMETER, ".."), (50, Role.ACTIVATION, "wr"))
    candidates = CandidatePlans(graph, (100, 100), LINK)
    peaks_and_away = []
    for limit in (100, 99, 70, 69):
        candidate = candidates.best(limit)
        peaks_and_away.append((candidate.peak_bytes, set(candidates.plan(candidate, "test").away)))
    assert peaks_and_away == [(100, set()), (70, {0}), (70, {0}), (50, {0, 1})]


def test_candidate_with_the_least_peak_is_returned_if_none_meets_the_limit() -> None:
    graph = graph_from_rows((40, Role.ACTIVATION, "w..r"), (60, Role.ACTIVATION, ".wr."))
    assert CandidatePlans(graph, (100,) * 4, LINK).best(10).peak_bytes == floor(graph) == 60


def test_early_updates_shorten_the_lifetimes_of_gradients() -> None:
    """There are two parameters of 10 bytes, each with a gradient of 10. The link is too slow to swap, and
    recomputation takes too long.
    """
    graph = graph_from_rows(
        (10, Role.PARAMETER, "..u."),
        (10, Role.PARAMETER, "...u"),
        (10, Role.ACTIVATION, "w.r."),
        (10, Role.ACTIVATION, ".w.r"),
    )
    graph = _staged(graph, {2: Stage.OPTIMIZER, 3: Stage.OPTIMIZER})
    assert liveness_peak(graph) == 40
    best = CandidatePlans(graph, (10**6,) * 4, NEVER).best(30)
    assert (best.peak_bytes, best.iteration_ns) == (30, 4 * 10**6)


def test_large_update_runs_in_parts_if_the_limit_requires_it() -> None:
    graph = graph_from_rows((64 * MIB, Role.OPTIMIZER_STATE, "u."), (MIB, Role.ACTIVATION, "wr"))
    graph = _staged(graph, {0: Stage.OPTIMIZER})
    graph = replace(graph, operators=(replace(graph.operators[0], splittable=True), *graph.operators[1:]))
    candidates = CandidatePlans(graph, (10**9,) * 2, LINK)
    assert floor(graph) == 65 * MIB
    assert candidates.best(33 * MIB).peak_bytes == 33 * MIB


def _staged(graph: StepGraph, stages: dict[int, Stage]) -> StepGraph:
    operators = tuple(replace(op, stage=stages.get(k, op.stage)) for k, op in enumerate(graph.operators))
    return replace(graph, operators=operators)
