"""Check how close the search comes to the optimum, on networks so small that every set of choices can be tried."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from random import Random

import pytest

from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, gaps, liveness_peak
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.search.step_search import GreedyOptions, StepSearch
from indb_tensile.scheduler.timing.machines import latencies, machine
from tests.scheduler.access_rows import graph_from_rows

LINK = Link(out_bytes_per_s=5 * 10**8, in_bytes_per_s=5 * 10**8)  # 2 ns a byte
SWAP, DROP = -1, -2  # a choice has one of these in place of the operators at which the tensor is away
NETWORKS = 60

Case = tuple[StepGraph, tuple[int, ...], int]


@pytest.mark.parametrize(
    ("parameters", "greedy", "improved"),
    [
        (GreedyOptions(), 48, 52),
        (GreedyOptions(tried=1), 42, 52),
        (GreedyOptions(together=16, tried=2), 32, 34),
        (GreedyOptions(together=64, tried=1, careful=True, lane_price=0.02), 26, 28),
    ],
    ids=["one by one", "by estimate", "many at once", "carefully"],
)
def test_most_networks_get_an_optimal_plan(parameters: GreedyOptions, greedy: int, improved: int) -> None:
    """The numbers are of 60 networks and were measured. The optimum is exact, since every set of choices was tried,
    so a smaller number means a worse search.
    """
    optimal_before = optimal_after = 0
    for graph, latency_ns, limit in _networks():
        search = StepSearch(graph, latency_ns, LINK)
        if not search.lower(limit, parameters, most=200):
            continue
        search.prune(limit, 20)
        optimal_before += search.iteration_ns == _optimum(graph, latency_ns, limit)
        search.improve(limit, parameters, most=300, seed=1)
        optimal_after += search.iteration_ns == _optimum(graph, latency_ns, limit)
    assert optimal_before >= greedy
    assert optimal_after >= improved


@pytest.mark.parametrize(
    ("effort", "optimal", "worst"),
    [
        (Effort.QUICK, 130, 2.0),
        (Effort.USUAL, 199, 1.15),
        pytest.param(Effort.FULL, 200, 1.0, marks=pytest.mark.nightly),
    ],
)
def test_more_effort_comes_closer_to_the_optimum(effort: Effort, optimal: int, worst: float) -> None:
    slowdowns = []
    for graph, latency_ns, limit in _networks(200):
        candidate = CandidatePlans(graph, latency_ns, LINK, effort=effort).best(limit)
        assert candidate.peak_bytes <= limit
        slowdowns.append(candidate.iteration_ns / _optimum(graph, latency_ns, limit))
    assert sum(slowdown <= 1 for slowdown in slowdowns) >= optimal
    assert max(slowdowns) <= worst


@pytest.mark.nightly
def test_staged_limits_find_a_plan_that_no_direct_search_finds() -> None:
    """The limit is 15 % of the way from the floor of a residual network to its peak. A plan that swaps nearly
    everything takes 4.1 times as long as no plan.
    """
    graph = residual(300)
    link = Link(out_bytes_per_s=25 * 10**9, in_bytes_per_s=25 * 10**9)
    candidates = CandidatePlans(graph, latencies(graph, machine("h200")), link)
    limit = floor(graph) + (liveness_peak(graph) - floor(graph)) * 15 // 100
    candidate = candidates.best(limit)
    assert candidate.peak_bytes <= limit
    assert candidate.iteration_ns < 3.5 * candidates.top.iteration_ns


@pytest.mark.parametrize(
    ("sizes", "careful", "swapped", "recomputed"),
    [
        ((40, 44), True, [1], [0]),
        ((44, 40), True, [0], [1]),
        ((40, 44), False, [0, 1], []),
    ],
)
def test_careful_search_swaps_only_what_the_lanes_have_time_for(
    sizes: tuple[int, int], careful: bool, swapped: list[int], recomputed: list[int]
) -> None:
    """The two tensors take 80 or 88 ns on each lane, and the lanes have 120 and 100 ns. One of the tensors fits, and
    the other one is recomputed.
    """
    first, second = sizes
    graph = graph_from_rows(
        (first, Role.ACTIVATION, "w......r"),
        (second, Role.ACTIVATION, ".w....r."),
        (100, Role.ACTIVATION, "...wr..."),
    )
    search = StepSearch(graph, (30, 20, 100, 50, 50, 100, 20, 20), LINK)
    assert search.lower(100, GreedyOptions(together=8, tried=1, surprise=1.0, careful=careful), most=50)
    plan = search.plan("test")
    order = [execution.operator for execution in plan.executions]
    assert [swap.tensor for swap in plan.swaps] == swapped
    assert sorted(order) == sorted([*range(8), *recomputed] if order else [])


def test_recomputation_cost_includes_the_sources_that_are_gone() -> None:
    """Tensor c takes 10 ns, and its source that is gone takes 500 ns more. Tensor d takes 100 ns alone."""
    rows = ((9, "wr......"), (40, ".w.....r"), (40, "..w....r"), (60, "...wr..."))
    graph = graph_from_rows(*((size, Role.ACTIVATION, row) for size, row in rows))
    never = Link(out_bytes_per_s=1, in_bytes_per_s=1)
    search = StepSearch(graph, (500, 10, 100, 50, 50, 50, 50, 50), never)
    assert search.lower(100, GreedyOptions(tried=1), most=20)
    assert [execution.operator for execution in search.plan("test").executions] == [0, 1, 2, 3, 4, 5, 6, 2, 7]


def _networks(count: int = NETWORKS) -> Iterator[Case]:
    """Yield networks of three or four layers. The next layer and the layer's own gradient read a layer's output."""
    for seed in range(count):
        random = Random(seed)
        layers = random.randint(3, 4)
        sizes = [random.randint(10, 60) for _ in range(layers)] + [random.randint(5, 30) for _ in range(layers)]
        tensors = tuple(
            Tensor(id=TensorId(k), name=f"t{k}", size_bytes=size, role=Role.ACTIVATION)
            for k, size in enumerate(sizes)
        )
        forward = [((k - 1,) if k else (), k) for k in range(layers)]
        backward = [((k, layers + k + 1) if k + 1 < layers else (k,), layers + k) for k in reversed(range(layers))]
        operators = tuple(
            Operator(
                name=f"op{output}",
                signature=f"op{output}",
                stage=Stage.FORWARD,
                reads=tuple(map(TensorId, reads)),
                writes=(TensorId(output),),
            )
            for reads, output in (*forward, *backward)
        )
        graph = StepGraph(tensors=tensors, operators=operators)
        latency_ns = tuple(random.randint(10, 120) for _ in operators)
        least, most = floor(graph), liveness_peak(graph)
        yield graph, latency_ns, least + (most - least) * random.randint(20, 60) // 100


@cache
def _optimum(graph: StepGraph, latency_ns: tuple[int, ...], limit: int) -> int:
    """Return the least time within the limit over all choices for all gaps."""
    search = StepSearch(graph, latency_ns, LINK)
    choices_by_gap = []
    for number, gap in enumerate(gaps(graph)):
        inside = range(gap.out_after + 1, gap.needed_by)
        choices_of_gap = [(SWAP, SWAP), (DROP, DROP), *((lo, hi) for lo in inside for hi in inside if lo <= hi)]
        choices_by_gap.append([(), *(((number, lo, hi),) for lo, hi in choices_of_gap)])
    times_ns = []
    for choices in product(*choices_by_gap):
        try:
            search.choose([row for rows in choices for row in rows])
        except ValueError:
            continue
        if search.peak_bytes <= limit:
            times_ns.append(search.iteration_ns)
    return min(times_ns)
