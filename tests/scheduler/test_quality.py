"""How good the search is, on networks so small that every set of choices can be tried."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from random import Random

import pytest

from indb_tensile.bench.harness.residual import residual
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, gaps, liveness_peak
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.search.step_search import GreedyOptions, StepSearch
from indb_tensile.scheduler.timing.machines import latencies, machine
from tests.scheduler.drawn import drawn

LINK = Link(out_bytes_per_s=5 * 10**8, in_bytes_per_s=5 * 10**8)  # 2 ns a byte
SWAP, DROP = -1, -2  # what stands in a row in place of operators to be covered
NETWORKS = 60

Case = tuple[StepGraph, tuple[int, ...], int]


@pytest.mark.parametrize(
    ("manner", "greedy", "improved"),
    [
        (GreedyOptions(), 48, 52),
        (GreedyOptions(tried=1), 42, 52),
        (GreedyOptions(together=16, tried=2), 32, 34),
        (GreedyOptions(together=64, tried=1, careful=True, lane_price=0.02), 26, 28),
    ],
    ids=["one by one", "by estimate", "many at once", "carefully"],
)
def test_most_networks_are_planned_as_well_as_can_be(manner: GreedyOptions, greedy: int, improved: int) -> None:
    """Of 60: what a rival would reach is not the measure, since every choice was tried; fewer than that is a loss."""
    first = second = 0
    for graph, latency_ns, limit in _networks():
        search = StepSearch(graph, latency_ns, LINK)
        if not search.lower(limit, manner, most=200):
            continue
        search.prune(limit, 20)
        first += search.iteration_ns == _optimum(graph, latency_ns, limit)
        search.improve(limit, manner, most=300, seed=1)
        second += search.iteration_ns == _optimum(graph, latency_ns, limit)
    assert first >= greedy
    assert second >= improved


@pytest.mark.parametrize(
    ("effort", "optimal", "worst"), [(Effort.QUICK, 130, 2.0), (Effort.USUAL, 199, 1.15), (Effort.FULL, 200, 1.0)]
)
def test_more_effort_comes_closer_to_the_optimum(effort: Effort, optimal: int, worst: float) -> None:
    slower = []
    for graph, latency_ns, limit in _networks(200):
        rung = CandidatePlans(graph, latency_ns, LINK, effort=effort).best(limit)
        assert rung.peak_bytes <= limit
        slower.append(rung.iteration_ns / _optimum(graph, latency_ns, limit))
    assert sum(one <= 1 for one in slower) >= optimal
    assert max(slower) <= worst


def test_in_stages_a_plan_is_found_where_no_manner_comes_down_at_once() -> None:
    """A residual network at 15 % of the way up from its floor: 4.1 times the time where nearly all is swapped."""
    graph = residual(300)
    link = Link(out_bytes_per_s=25 * 10**9, in_bytes_per_s=25 * 10**9)
    ladder = CandidatePlans(graph, latencies(graph, machine("h200")), link)
    limit = floor(graph) + (liveness_peak(graph) - floor(graph)) * 15 // 100
    rung = ladder.best(limit)
    assert rung.peak_bytes <= limit
    assert rung.iteration_ns < 3.5 * ladder.top.iteration_ns


@pytest.mark.parametrize(
    ("sizes", "careful", "swapped", "again"),
    [
        ((40, 44), True, [1], [0]),
        ((44, 40), True, [0], [1]),
        ((40, 44), False, [0, 1], []),
    ],
)
def test_with_care_no_more_is_swapped_at_once_than_the_lanes_have_room_for(
    sizes: tuple[int, int], careful: bool, swapped: list[int], again: list[int]
) -> None:
    """80 or 88 ns on each lane, for which there are 120 and 100 ns: one of the two fits, the other is made again."""
    first, second = sizes
    graph = drawn(
        (first, Role.ACTIVATION, "w......r"),
        (second, Role.ACTIVATION, ".w....r."),
        (100, Role.ACTIVATION, "...wr..."),
    )
    search = StepSearch(graph, (30, 20, 100, 50, 50, 100, 20, 20), LINK)
    assert search.lower(100, GreedyOptions(together=8, tried=1, surprise=1.0, careful=careful), most=50)
    plan = search.plan("test")
    order = [execution.operator for execution in plan.executions]
    assert [swap.tensor for swap in plan.swaps] == swapped
    assert sorted(order) == sorted([*range(8), *again] if order else [])


def test_what_is_made_of_what_is_gone_costs_as_much_as_both() -> None:
    """To make c takes 10 ns, but 500 more for what it is made of; d takes 100 alone."""
    rows = ((9, "wr......"), (40, ".w.....r"), (40, "..w....r"), (60, "...wr..."))
    graph = drawn(*((size, Role.ACTIVATION, row) for size, row in rows))
    never = Link(out_bytes_per_s=1, in_bytes_per_s=1)
    search = StepSearch(graph, (500, 10, 100, 50, 50, 50, 50, 50), never)
    assert search.lower(100, GreedyOptions(tried=1), most=20)
    assert [execution.operator for execution in search.plan("test").executions] == [0, 1, 2, 3, 4, 5, 6, 2, 7]


def _networks(count: int = NETWORKS) -> Iterator[Case]:
    """Three or four layers there and back; what a layer makes is read by the next and by its own gradient."""
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
                name=f"op{made}",
                signature=f"op{made}",
                stage=Stage.FORWARD,
                reads=tuple(map(TensorId, reads)),
                writes=(TensorId(made),),
            )
            for reads, made in (*forward, *backward)
        )
        graph = StepGraph(tensors=tensors, operators=operators)
        latency_ns = tuple(random.randint(10, 120) for _ in operators)
        least, most = floor(graph), liveness_peak(graph)
        yield graph, latency_ns, least + (most - least) * random.randint(20, 60) // 100


@cache
def _optimum(graph: StepGraph, latency_ns: tuple[int, ...], limit: int) -> int:
    """The least time within the limit over all choices for all gaps."""
    search = StepSearch(graph, latency_ns, LINK)
    ways = []
    for number, gap in enumerate(gaps(graph)):
        inside = range(gap.out_after + 1, gap.needed_by)
        covers = [(SWAP, SWAP), (DROP, DROP), *((lo, hi) for lo in inside for hi in inside if lo <= hi)]
        ways.append([(), *(((number, lo, hi),) for lo, hi in covers)])
    found = []
    for choices in product(*ways):
        try:
            search.choose([row for rows in choices for row in rows])
        except ValueError:
            continue
        if search.peak_bytes <= limit:
            found.append(search.iteration_ns)
    return min(found)
