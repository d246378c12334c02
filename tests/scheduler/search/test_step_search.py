"""Check the native search: every choice is a valid plan, and the search states the plan's peak and time correctly."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, gaps, liveness_peak, peak
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from indb_tensile.scheduler.search.reorder import updates_beside_gradients, with_parts
from indb_tensile.scheduler.search.step_search import GreedyOptions, StepSearch
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from tests.nightly import some_examples
from tests.scheduler.access_rows import DENSE_NS, dense_graph, graph_from_rows
from tests.scheduler.strategies import graphs as step_graphs
from tests.scheduler.strategies import graphs_with_exchanges, latencies, links

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
SWAP, DROP = -1, -2  # a choice has one of these in place of the operators at which the tensor is away


@given(graphs_with_exchanges(), links(), st.data())
def test_search_moves_no_tensor_while_an_exchange_uses_it(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    search = StepSearch(graph, data.draw(latencies(graph)), link)
    search.exhaust()
    plan = search.plan("test")
    assert faults(graph, plan) == ()
    swapped = {(swap.tensor, swap.out_after) for swap in plan.swaps}
    assert swapped == {(gap.tensor, gap.out_after) for gap in gaps(graph)}, "all other gaps are used"


def test_search_starts_without_choices() -> None:
    search = StepSearch(_chain(), (100,) * 6, LINK)
    assert (search.peak_bytes, search.iteration_ns, search.plan("test")) == (90, 600, Plan(policy="test"))


def test_tensor_with_time_for_its_copies_is_swapped() -> None:
    """Operator 0 writes `a` (40 bytes) and operator 5 reads `a`. The copies of 40 ns each are hidden."""
    search = StepSearch(_chain(), (100,) * 6, LINK)
    assert search.lower(80, GreedyOptions(drops=False), most=100)
    swap = Swap(tensor=TensorId(0), out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(4), needed_by=OpIndex(5))
    assert search.plan("test") == Plan(policy="test", swaps=(swap,))
    assert (search.peak_bytes, search.iteration_ns) == (80, 600)


def test_tensor_without_time_for_its_copies_is_recomputed() -> None:
    slow = Link(out_bytes_per_s=10**6, in_bytes_per_s=10**6)
    search = StepSearch(_chain(), (100,) * 6, slow)
    assert search.lower(60, GreedyOptions(), most=100)
    order = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 2, 3, 4, 0, 5))
    assert search.plan("test") == Plan(policy="test", executions=order)
    assert search.iteration_ns == 700


def test_choices_can_be_restored() -> None:
    search = StepSearch(_chain(), (100,) * 6, LINK)
    search.lower(80, GreedyOptions(drops=False), most=100)
    choices, planned = search.choices, search.plan("test")
    search.clear()
    search.choose(choices)
    assert search.plan("test") == planned


def test_many_small_swaps_for_which_the_lanes_have_time_replace_a_recomputation() -> None:
    """Four tensors of 20 bytes are away during operator 2 for nothing. A single one does not make room for 60 bytes.

    To swap `a` takes 120 ns of waiting, and to recompute it 100 ns.
    """
    state = [(20, Role.PARAMETER, "u...")] * 4
    graph = graph_from_rows((60, Role.ACTIVATION, ".w.r"), (80, Role.ACTIVATION, "..w."), *state)
    latency_ns = (100, 100, 100, 100)
    search = StepSearch(graph, latency_ns, LINK)
    gap = next(k for k, (tensor, _, _) in enumerate(search.gap_keys) if tensor == 0)
    search.choose([(gap, DROP, DROP)])
    assert search.fill(160)
    search.exchange(drops=True, most=100)
    assert (search.iteration_ns, len(search.choices)) == (500, 1), "no exchange of single choices is faster"
    assert search.swap_idle(most=100)
    assert (search.iteration_ns, search.peak_bytes <= 160) == (400, True)
    assert not search.swap_idle(most=100)
    _assert_valid_as_stated(graph, latency_ns, LINK, search)


@pytest.mark.parametrize(("hold", "again"), [(True, (4, 7, 2, 8)), (False, (0, 1, 2, 3, 4, 7, 8))])
def test_recomputations_of_large_results_hold_the_small_tensors_that_they_read(
    hold: bool, again: tuple[int, ...]
) -> None:
    search = StepSearch(dense_graph(), DENSE_NS, LINK, hold=hold)
    assert [tensor for tensor, _, _ in search.gap_keys if tensor in (2, 4)] == [2, 4]
    search.choose([(gap, DROP, DROP) for gap, (tensor, _, _) in enumerate(search.gap_keys) if tensor in (2, 4)])
    order = tuple(Execution(operator=OpIndex(k)) for k in (*range(7), *again))
    assert search.plan("test") == Plan(policy="test", executions=order)
    assert search.holds == hold
    _assert_valid_as_stated(dense_graph(), DENSE_NS, LINK, search)
    _assert_adoptable(dense_graph(), DENSE_NS, LINK, search, ())


def test_first_plan_holds_three_small_tensors_in_place_of_running_their_slow_operators_again() -> None:
    slow = Link(out_bytes_per_s=10**6, in_bytes_per_s=10**6)
    candidates = CandidatePlans(dense_graph(), DENSE_NS, slow)
    best = candidates.best(130)
    assert (best.peak_bytes, best.iteration_ns) == (110, sum(DENSE_NS) + 10 + 10)
    plan = candidates.plan(best, "test")
    assert faults(dense_graph(), plan) == ()
    assert [run.operator for run in plan.executions] == [*range(7), 4, 7, 2, 8]


@some_examples()
@given(step_graphs(), links(), st.data())
def test_every_search_gives_a_valid_plan_with_the_stated_peak_and_time(
    graph: StepGraph, link: Link, data: st.DataObject
) -> None:
    latency_ns = data.draw(latencies(graph))
    rewrites = data.draw(st.booleans())
    executions = with_parts(graph, updates_beside_gradients(graph)) if rewrites else ()
    search = StepSearch(graph, latency_ns, link, executions=executions, hold=data.draw(st.booleans()))
    limit = data.draw(st.integers(0, liveness_peak(graph)))
    parameters = GreedyOptions(drops=rewrites, together=data.draw(st.sampled_from((1, 4))), tried=2)
    reached = search.lower(limit, parameters, most=200)
    _assert_valid_as_stated(graph, latency_ns, link, search)
    assert not reached or search.peak_bytes <= limit
    limit_bytes = max(limit, search.peak_bytes)
    before_ns = search.iteration_ns
    search.prune(limit_bytes, 50)
    search.improve(limit_bytes, parameters, most=50, seed=1)
    assert search.peak_bytes <= limit_bytes
    assert search.iteration_ns <= before_ns
    _assert_valid_as_stated(graph, latency_ns, link, search)
    _assert_adoptable(graph, latency_ns, link, search, executions)
    assert search.fill(limit_bytes), "the choices meet the limit"
    _assert_valid_as_stated(graph, latency_ns, link, search)
    search.exchange(drops=rewrites, most=50)
    exchanged_ns = search.iteration_ns
    faster = search.swap_idle(most=50)
    assert search.iteration_ns < exchanged_ns or (
        search.iteration_ns == exchanged_ns and search.peak_bytes <= limit_bytes
    )
    assert rewrites or not faster, "nothing is recomputed that swaps could replace"
    assert search.peak_bytes <= limit_bytes
    assert rewrites or not search.plan("test").executions
    _assert_valid_as_stated(graph, latency_ns, link, search)
    _assert_adoptable(graph, latency_ns, link, search, executions)
    search.exhaust()
    unused = {t.id for t in graph.tensors if t.persistent} - {
        t for op in graph.operators for t in (*op.reads, *op.writes)
    }
    idle_bytes = sum(graph.tensors[t].size_bytes for t in unused)
    assert search.peak_bytes == search.floor_bytes + idle_bytes, "swapping everything reaches the floor"
    _assert_valid_as_stated(graph, latency_ns, link, search)
    _assert_adoptable(graph, latency_ns, link, search, executions)


@given(step_graphs(), links(), st.data())
def test_press_meets_every_limit_that_swapping_everything_meets(
    graph: StepGraph, link: Link, data: st.DataObject
) -> None:
    latency_ns = data.draw(latencies(graph))
    search = StepSearch(graph, latency_ns, link)
    search.exhaust()
    least_bytes = search.peak_bytes
    search.clear()
    search.lower(
        data.draw(st.integers(0, liveness_peak(graph))), GreedyOptions(drops=data.draw(st.booleans())), most=20
    )
    recomputes = any(row[1] == DROP for row in search.choices)
    limit_bytes = data.draw(st.integers(0, liveness_peak(graph)))
    pressed = search.press(limit_bytes, most=10_000)
    assert pressed == (search.peak_bytes <= limit_bytes)
    assert recomputes or pressed == (limit_bytes >= least_bytes)
    _assert_valid_as_stated(graph, latency_ns, link, search)


@given(step_graphs(), links(), st.data())
def test_curve_falls_and_its_plans_meet_their_limits(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    latency_ns = data.draw(latencies(graph))
    candidates = CandidatePlans(graph, latency_ns, link)
    curve = candidates.curve()
    for higher, lower in pairwise(curve[1:]):
        assert (higher.peak_bytes, -higher.iteration_ns) > (lower.peak_bytes, -lower.iteration_ns)
    limits = sorted(data.draw(st.lists(st.integers(0, liveness_peak(graph)), min_size=2, max_size=3)))
    for limit in limits:
        plan = candidates.plan(candidates.best(limit), "test")
        assert faults(graph, plan) == ()
        idle = sum(t.size_bytes for t in graph.tensors if t.id in plan.away)
        assert peak(graph, plan) <= max(limit, floor(graph)) or idle == 0


# --- choices made by hand ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "made", "random", "uploads"),
    [
        ("wr...", ".w..r", True, ()),  # the source's maker draws random numbers
        ("wr...", ".w..r", False, (0,)),  # the source is the batch, and its host buffer holds the next batch by then
        ("wur..", "..w.r", False, ()),  # the source was updated in place after it was made
        ("wr.u.", ".w..r", False, ()),  # the source is overwritten before the recomputation
        ("wr.ur", ".w..r", False, ()),  # the same, and the overwritten source is held
    ],
)
def test_tensor_with_a_lost_source_is_not_recomputed(
    source: str, made: str, random: bool, uploads: tuple[int, ...]
) -> None:
    graph = graph_from_rows((10, Role.ACTIVATION, source), (10, Role.ACTIVATION, made), uploads=uploads)
    graph = replace(graph, operators=(replace(graph.operators[0], random=random), *graph.operators[1:]))
    search = StepSearch(graph, (100,) * 5, LINK)
    (gap,) = (k for k, gap in enumerate(gaps(graph)) if gap.tensor == 1)
    with pytest.raises(ValueError, match="something dropped cannot be made again"):
        search.choose(_choices({gap: DROP}))


def test_tensor_without_a_repeatable_maker_is_not_dropped() -> None:
    updated, batch = (
        graph_from_rows((10, Role.ACTIVATION, "wu..r")),
        graph_from_rows((10, Role.INPUT, "w...r"), uploads=(0,)),
    )
    random = graph_from_rows((10, Role.ACTIVATION, "w...r"))
    random = replace(random, operators=(replace(random.operators[0], random=True), *random.operators[1:]))
    for graph in (updated, batch, random):
        with pytest.raises(ValueError, match="something is dropped that cannot be made again"):
            StepSearch(graph, (100,) * 5, LINK).choose(_choices({0: DROP}))


def test_unwritten_tensor_away_at_the_start_is_not_copied_out() -> None:
    graph = graph_from_rows((40, Role.PARAMETER, ".r...."))
    search = StepSearch(graph, (100,) * 6, LINK)
    search.choose([(0, 4, 6)])
    assert search.plan("test").swaps == (
        Swap(
            tensor=TensorId(0),
            out_after=OpIndex(1),
            free_at=OpIndex(2),
            in_at=OpIndex(1),
            needed_by=OpIndex(1),
            copies=False,
        ),
    )
    assert search.lane_ns == 40


@pytest.mark.parametrize(
    ("source", "made", "position", "swapped"),
    [
        ("wr......r..", ".wr.r......", 4, (0, 4, 9)),
        ("wr........r", ".wr....r...", 7, (0, 1, 7)),
    ],
)
def test_longer_part_of_a_gap_split_by_a_recomputation_is_swapped(
    source: str, made: str, position: int, swapped: tuple[int, int, int]
) -> None:
    """b is dropped after operator 2 and recomputed from a right before its use. a can be away before that or after
    it.
    """
    graph = graph_from_rows((10, Role.ACTIVATION, source), (10, Role.ACTIVATION, made))
    search = StepSearch(graph, (100,) * 11, LINK)
    search.choose(_choices({0: SWAP, 1: DROP}))
    plan = search.plan("test")
    assert [execution.operator for execution in plan.executions] == [*range(position), 1, *range(position, 11)]
    assert [(swap.tensor, swap.out_after, swap.needed_by) for swap in plan.swaps] == [swapped]


def test_choice_that_another_choice_depends_on_is_not_pruned() -> None:
    """p is away for long and then for one operator. Only the host copy of the first swap makes the second swap free
    of stalls.
    """
    graph = graph_from_rows((100, Role.PARAMETER, "u....r.r"), (60, Role.ACTIVATION, "......w."))
    search = StepSearch(graph, (100,) * 8, LINK)
    search.choose(_choices({0: SWAP, 1: SWAP}, cover={1: (6, 6)}))
    before = (search.peak_bytes, search.iteration_ns)
    search.prune(100, 10)
    assert (search.peak_bytes, search.iteration_ns) == before == (100, 900)
    assert search.choices == [(0, SWAP, SWAP), (1, 6, 6)]


def test_copy_in_that_is_needed_first_starts_early_enough_for_the_next() -> None:
    """a takes 150 ns and has to end by 1,100, so it starts by 950. b is needed at 1,000, so it ends before 950 and
    starts at boundary 8.
    """
    graph = graph_from_rows((150, Role.ACTIVATION, "w..........r"), (100, Role.ACTIVATION, ".w........r."))
    search = StepSearch(graph, (100,) * 12, LINK)
    search.choose(_choices({0: SWAP, 1: SWAP}))
    assert [swap.in_at for swap in search.plan("test").swaps] == [9, 8]
    assert search.iteration_ns == 1200


def test_common_source_of_two_recomputed_tensors_is_recomputed_once() -> None:
    graph = graph_from_rows(
        (10, Role.ACTIVATION, "wrr..."), (10, Role.ACTIVATION, ".w...r"), (10, Role.ACTIVATION, "..w..r")
    )
    search = StepSearch(graph, (100,) * 6, LINK)
    search.choose(_choices({0: DROP, 1: DROP}))
    assert [e.operator for e in search.plan("test").executions] == [0, 1, 2, 3, 4, 0, 1, 2, 5]


def test_share_of_the_lanes_makes_copies_longer() -> None:
    search = StepSearch(_chain(), (100,) * 6, LINK, share=0.5)
    assert search.lower(80, GreedyOptions(drops=False), most=100)
    assert search.lane_ns == 2 * 40 / 0.5


def _choices(
    choice_by_gap: dict[int, int], cover: dict[int, tuple[int, int]] | None = None
) -> list[tuple[int, int, int]]:
    """Return rows of choices by gap. `cover` has the gaps at whose given operators the tensor has to be away."""
    return [(gap, *(cover or {}).get(gap, (choice, choice))) for gap, choice in choice_by_gap.items()]


def _assert_valid_as_stated(graph: StepGraph, latency_ns: tuple[int, ...], link: Link, search: StepSearch) -> None:
    plan = search.plan("test")
    assert faults(graph, plan) == ()
    assert peak(graph, plan) == search.peak_bytes
    (forecast,) = simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link)
    assert forecast.iteration_ns == search.iteration_ns


def _assert_adoptable(
    graph: StepGraph, latency_ns: tuple[int, ...], link: Link, search: StepSearch, executions: tuple[Execution, ...]
) -> None:
    """Check that a new search adopts the plan with the same peak, time and swaps."""
    other = StepSearch(graph, latency_ns, link, executions=executions)
    plan = search.plan("test")
    assert other.adopt(plan) == (search.peak_bytes, search.iteration_ns)
    assert [(s.tensor, s.out_after, s.needed_by) for s in other.plan("test").swaps] == [
        (s.tensor, s.out_after, s.needed_by) for s in plan.swaps
    ]
    assert other.plan("test").executions == plan.executions


def _chain() -> StepGraph:
    """Return a graph in which a (40 bytes) is made first and read last. b, c and d (30, 20, 30) live in between."""
    sizes = (40, 30, 20, 30, 10)
    tensors = tuple(
        Tensor(id=TensorId(k), name="abcde"[k], size_bytes=size, role=Role.ACTIVATION) for k, size in enumerate(sizes)
    )
    accesses: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((), (0,)),
        ((), (1,)),
        ((1,), (2,)),
        ((2,), (3,)),
        ((3,), (4,)),
        ((0, 4), ()),
    ]
    operators = tuple(
        Operator(
            name=f"op{k}",
            signature=f"op{k}",
            stage=Stage.FORWARD,
            reads=tuple(TensorId(t) for t in reads),
            writes=tuple(TensorId(t) for t in writes),
        )
        for k, (reads, writes) in enumerate(accesses)
    )
    return StepGraph(tensors=tensors, operators=operators)
