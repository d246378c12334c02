"""The native search: whatever it chooses is a lawful plan whose peak and time are what it says."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, gaps, liveness_peak, peak
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from indb_tensile.scheduler.search.reorder import updates_beside_gradients, with_parts
from indb_tensile.scheduler.search.step_search import Manner, StepSearch
from indb_tensile.scheduler.timing.simulate import JobRun, simulate
from tests.scheduler.drawn import drawn
from tests.scheduler.strategies import graphs as step_graphs
from tests.scheduler.strategies import latencies, links

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)  # 1 ns a byte
SWAP, DROP = -1, -2  # what stands in a row in place of operators to be covered


def test_nothing_is_chosen_at_first() -> None:
    search = StepSearch(_chain(), (100,) * 6, LINK)
    assert (search.peak_bytes, search.iteration_ns, search.plan("test")) == (90, 600, Plan(policy="test"))


def test_what_has_time_to_leave_is_swapped() -> None:
    """`a` (40 bytes) is written by operator 0 and read by operator 5: 40 ns out, 40 ns back, for nothing."""
    search = StepSearch(_chain(), (100,) * 6, LINK)
    assert search.lower(80, Manner(drops=False), most=100)
    swap = Swap(tensor=TensorId(0), out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(4), needed_by=OpIndex(5))
    assert search.plan("test") == Plan(policy="test", swaps=(swap,))
    assert (search.peak_bytes, search.iteration_ns) == (80, 600)


def test_what_has_no_time_to_leave_is_made_again() -> None:
    slow = Link(out_bytes_per_s=10**6, in_bytes_per_s=10**6)
    search = StepSearch(_chain(), (100,) * 6, slow)
    assert search.lower(60, Manner(), most=100)
    order = tuple(Execution(operator=OpIndex(k)) for k in (0, 1, 2, 3, 4, 0, 5))
    assert search.plan("test") == Plan(policy="test", executions=order)
    assert search.iteration_ns == 700


def test_what_is_chosen_can_be_chosen_again_with_other_times() -> None:
    search = StepSearch(_chain(), (100,) * 6, LINK)
    search.lower(80, Manner(drops=False), most=100)
    chosen, planned = search.choices, search.plan("test")
    search.clear()
    search.choose(chosen)
    assert search.plan("test") == planned
    search.retime((200,) * 6)
    assert (search.iteration_ns, search.peak_bytes) == (1200, 80)


def test_many_small_swaps_for_which_the_lanes_have_time_replace_a_recomputation() -> None:
    """Four tensors of 20 bytes are away during operator 2 for nothing. A single one does not make room for 60 bytes.

    To swap `a` takes 120 ns of waiting, and to recompute it 100 ns.
    """
    state = [(20, Role.PARAMETER, "u...")] * 4
    graph = drawn((60, Role.ACTIVATION, ".w.r"), (80, Role.ACTIVATION, "..w."), *state)
    latency_ns = (100, 100, 100, 100)
    search = StepSearch(graph, latency_ns, LINK)
    gap = next(k for k, (tensor, _, _) in enumerate(search.between) if tensor == 0)
    search.choose([(gap, DROP, DROP)])
    assert search.fill(160)
    search.exchange(drops=True, most=100)
    assert (search.iteration_ns, len(search.choices)) == (500, 1), "no exchange of single choices is faster"
    assert search.swap_idle(most=100)
    assert (search.iteration_ns, search.peak_bytes <= 160) == (400, True)
    assert not search.swap_idle(most=100)
    _judge(graph, latency_ns, LINK, search)


@settings(max_examples=150, deadline=None)
@given(step_graphs(), links(), st.data())
def test_every_choice_is_lawful_and_is_what_it_says(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    latency_ns = data.draw(latencies(graph))
    rewrites = data.draw(st.booleans())
    executions = with_parts(graph, updates_beside_gradients(graph)) if rewrites else ()
    search = StepSearch(graph, latency_ns, link, executions=executions)
    limit = data.draw(st.integers(0, liveness_peak(graph)))
    manner = Manner(drops=rewrites, together=data.draw(st.sampled_from((1, 4))), tried=2)
    reached = search.lower(limit, manner, most=200)
    _judge(graph, latency_ns, link, search)
    assert not reached or search.peak_bytes <= limit
    held = max(limit, search.peak_bytes)
    before_ns = search.iteration_ns
    search.prune(held, 50)
    search.improve(held, manner, most=50, seed=1)
    assert search.peak_bytes <= held
    assert search.iteration_ns <= before_ns
    _judge(graph, latency_ns, link, search)
    _adopts(graph, latency_ns, link, search, executions)
    assert search.fill(held), "what is chosen is within the limit"
    _judge(graph, latency_ns, link, search)
    search.exchange(drops=rewrites, most=50)
    exchanged_ns = search.iteration_ns
    faster = search.swap_idle(most=50)
    assert search.iteration_ns < exchanged_ns or (search.iteration_ns == exchanged_ns and search.peak_bytes <= held)
    assert rewrites or not faster, "nothing is recomputed that swaps could replace"
    assert search.peak_bytes <= held
    assert rewrites or not search.plan("test").executions
    _judge(graph, latency_ns, link, search)
    _adopts(graph, latency_ns, link, search, executions)
    search.exhaust()
    unused = {t.id for t in graph.tensors if t.persistent} - {
        t for op in graph.operators for t in (*op.reads, *op.writes)
    }
    idle_bytes = sum(graph.tensors[t].size_bytes for t in unused)
    assert search.peak_bytes == search.floor_bytes + idle_bytes, "swapping everything reaches the floor"
    _judge(graph, latency_ns, link, search)
    _adopts(graph, latency_ns, link, search, executions)


@settings(max_examples=150, deadline=None)
@given(step_graphs(), links(), st.data())
def test_pressing_meets_every_limit_that_swapping_everything_meets(
    graph: StepGraph, link: Link, data: st.DataObject
) -> None:
    latency_ns = data.draw(latencies(graph))
    search = StepSearch(graph, latency_ns, link)
    search.exhaust()
    least_bytes = search.peak_bytes
    search.clear()
    search.lower(data.draw(st.integers(0, liveness_peak(graph))), Manner(drops=data.draw(st.booleans())), most=20)
    made_again = any(row[1] == DROP for row in search.choices)
    limit_bytes = data.draw(st.integers(0, liveness_peak(graph)))
    pressed = search.press(limit_bytes, most=10_000)
    assert pressed == (search.peak_bytes <= limit_bytes)
    assert made_again or pressed == (limit_bytes >= least_bytes)
    _judge(graph, latency_ns, link, search)


@settings(max_examples=60, deadline=None)
@given(step_graphs(), links(), st.data())
def test_a_curve_falls_and_its_plans_are_what_it_says(graph: StepGraph, link: Link, data: st.DataObject) -> None:
    latency_ns = data.draw(latencies(graph))
    ladder = CandidatePlans(graph, latency_ns, link)
    curve = ladder.curve()
    for higher, lower in pairwise(curve[1:]):
        assert (higher.peak_bytes, -higher.iteration_ns) > (lower.peak_bytes, -lower.iteration_ns)
    limits = sorted(data.draw(st.lists(st.integers(0, liveness_peak(graph)), min_size=2, max_size=3)))
    for limit in limits:
        plan = ladder.plan(ladder.best(limit), "test")
        assert faults(graph, plan) == ()
        idle = sum(t.size_bytes for t in graph.tensors if t.id in plan.away)
        assert peak(graph, plan) <= max(limit, floor(graph)) or idle == 0


# --- what is chosen by hand ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "made", "random", "uploads"),
    [
        ("wr...", ".w..r", True, ()),  # draws random numbers
        ("wr...", ".w..r", False, (0,)),  # the next batch stands where this one came from
        ("wur..", "..w.r", False, ()),  # was updated in place since it was made
        ("wr.u.", ".w..r", False, ()),  # is overwritten before it would be needed
        ("wr.ur", ".w..r", False, ()),  # the same, and what it was overwritten with is there
    ],
)
def test_what_is_made_of_what_is_gone_for_good_is_not_made_again(
    source: str, made: str, random: bool, uploads: tuple[int, ...]
) -> None:
    graph = drawn((10, Role.ACTIVATION, source), (10, Role.ACTIVATION, made), uploads=uploads)
    graph = replace(graph, operators=(replace(graph.operators[0], random=random), *graph.operators[1:]))
    search = StepSearch(graph, (100,) * 5, LINK)
    (gap,) = (k for k, gap in enumerate(gaps(graph)) if gap.tensor == 1)
    with pytest.raises(ValueError, match="something dropped cannot be made again"):
        search.choose(_chosen({gap: DROP}))


def test_what_is_not_made_by_one_operator_alone_that_may_run_again_is_not_dropped() -> None:
    updated, batch = drawn((10, Role.ACTIVATION, "wu..r")), drawn((10, Role.INPUT, "w...r"), uploads=(0,))
    random = drawn((10, Role.ACTIVATION, "w...r"))
    random = replace(random, operators=(replace(random.operators[0], random=True), *random.operators[1:]))
    for graph in (updated, batch, random):
        with pytest.raises(ValueError, match="something is dropped that cannot be made again"):
            StepSearch(graph, (100,) * 5, LINK).choose(_chosen({0: DROP}))


def test_what_is_never_written_is_not_copied_out_where_it_is_away_when_the_iteration_starts() -> None:
    graph = drawn((40, Role.PARAMETER, ".r...."))
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
    ("source", "made", "again", "swapped"),
    [
        ("wr......r..", ".wr.r......", 4, (0, 4, 9)),
        ("wr........r", ".wr....r...", 7, (0, 1, 7)),
    ],
)
def test_of_a_gap_in_which_something_is_made_again_the_longer_part_is_swapped(
    source: str, made: str, again: int, swapped: tuple[int, int, int]
) -> None:
    """b, dropped after operator 2, is made of a right before it is read: a can leave before that, or else after."""
    graph = drawn((10, Role.ACTIVATION, source), (10, Role.ACTIVATION, made))
    search = StepSearch(graph, (100,) * 11, LINK)
    search.choose(_chosen({0: SWAP, 1: DROP}))
    plan = search.plan("test")
    assert [execution.operator for execution in plan.executions] == [*range(again), 1, *range(again, 11)]
    assert [(swap.tensor, swap.out_after, swap.needed_by) for swap in plan.swaps] == [swapped]


def test_a_choice_that_others_profit_from_is_not_taken_back() -> None:
    """p leaves for long and then for a moment, in which only its valid host copy saves a wait."""
    graph = drawn((100, Role.PARAMETER, "u....r.r"), (60, Role.ACTIVATION, "......w."))
    search = StepSearch(graph, (100,) * 8, LINK)
    search.choose(_chosen({0: SWAP, 1: SWAP}, cover={1: (6, 6)}))
    before = (search.peak_bytes, search.iteration_ns)
    search.prune(100, 10)
    assert (search.peak_bytes, search.iteration_ns) == before == (100, 900)
    assert search.choices == [(0, SWAP, SWAP), (1, 6, 6)]


def test_of_two_copies_back_the_one_that_is_needed_first_makes_way_for_the_other() -> None:
    """a takes 150 ns until 1,100; b, needed at 1,000, therefore comes before 950 and starts at boundary 8."""
    graph = drawn((150, Role.ACTIVATION, "w..........r"), (100, Role.ACTIVATION, ".w........r."))
    search = StepSearch(graph, (100,) * 12, LINK)
    search.choose(_chosen({0: SWAP, 1: SWAP}))
    assert [swap.in_at for swap in search.plan("test").swaps] == [9, 8]
    assert search.iteration_ns == 1200


def test_what_two_need_that_are_made_again_is_made_once() -> None:
    graph = drawn((10, Role.ACTIVATION, "wrr..."), (10, Role.ACTIVATION, ".w...r"), (10, Role.ACTIVATION, "..w..r"))
    search = StepSearch(graph, (100,) * 6, LINK)
    search.choose(_chosen({0: DROP, 1: DROP}))
    assert [e.operator for e in search.plan("test").executions] == [0, 1, 2, 3, 4, 0, 1, 2, 5]


def test_a_share_of_the_lanes_makes_copies_longer() -> None:
    search = StepSearch(_chain(), (100,) * 6, LINK, share=0.5)
    assert search.lower(80, Manner(drops=False), most=100)
    assert search.lane_ns == 2 * 40 / 0.5


def _chosen(wanted: dict[int, int], cover: dict[int, tuple[int, int]] | None = None) -> list[tuple[int, int, int]]:
    return [(gap, *(cover or {}).get(gap, (what, what))) for gap, what in wanted.items()]


def _judge(graph: StepGraph, latency_ns: tuple[int, ...], link: Link, search: StepSearch) -> None:
    plan = search.plan("test")
    assert faults(graph, plan) == ()
    assert peak(graph, plan) == search.peak_bytes
    (forecast,) = simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link)
    assert forecast.iteration_ns == search.iteration_ns


def _adopts(
    graph: StepGraph, latency_ns: tuple[int, ...], link: Link, search: StepSearch, executions: tuple[Execution, ...]
) -> None:
    """The plan is read back by a search that knows nothing: it stands as it stood, and can be gone on from."""
    other = StepSearch(graph, latency_ns, link, executions=executions)
    plan = search.plan("test")
    assert other.adopt(plan) == (search.peak_bytes, search.iteration_ns)
    assert [(s.tensor, s.out_after, s.needed_by) for s in other.plan("test").swaps] == [
        (s.tensor, s.out_after, s.needed_by) for s in plan.swaps
    ]
    assert other.plan("test").executions == plan.executions


def _chain() -> StepGraph:
    """a (40) is made first and read last; in between b, c and d (30, 20, 30) come and go."""
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
